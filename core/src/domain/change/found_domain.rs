//! The first entry of the log.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::ids::{DomainId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::version::Version;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Begins the domain; its first entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FoundDomain {
    /// Its id, made by the founder.
    pub domain: DomainId,
    /// Its name.
    pub name: String,
    /// The UID of the Lease that anchors it.
    pub anchor: Uid,
}

impl Change for FoundDomain {
    fn since(&self) -> Version {
        Version(0, 0, 0)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { domain, name, anchor } = self;
        bounds.names([("the domain's id", domain.as_str()), ("its name", name), ("its anchor", anchor.as_str())])
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { domain: id, name, anchor } = self;
        match &domain.id {
            Some(known) if *known == id => return Ok(Outcome::Unchanged),
            Some(known) => return Err(Refusal::AlreadyFounded(known.clone())),
            None => {}
        }
        let founded = DomainEvent::Founded { name: name.clone(), domain: id.clone() };
        domain.note(actor, [Subject::Domain], founded, None);
        (domain.id, domain.name, domain.anchor) = (Some(id), name, Some(anchor));
        Ok(Outcome::Changed)
    }
}
