//! An operator says that another Kubernetes is the domain's from now on.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::Uid;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Takes another Kubernetes for the one that the domain was founded in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptAnchor {
    /// The UID of the anchor that is known.
    pub known: Uid,
    /// The UID of the anchor that is there now.
    pub anchor: Uid,
    /// Why, in the words of the operator who asks.
    pub why: String,
    /// The anchor as it was read.
    pub evidence: Evidence,
}

impl Change for AdoptAnchor {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { known: _, anchor, why, evidence } = self;
        bounds.name("the anchor's UID", anchor)?;
        fits("why", why, bounds.text)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { known, anchor, why, evidence } = self;
        only_an_operator(actor)?;
        if domain.anchor.as_ref() == Some(&anchor) {
            return Ok(Outcome::Unchanged);
        }
        if domain.anchor.as_ref() != Some(&known) {
            return Err(Refusal::AnotherAnchor(domain.anchor.clone().unwrap_or_default()));
        }
        if !evidence.anchored_by(&anchor) {
            return Err(Refusal::Unproven(format!("the anchor lease has uid {anchor}")));
        }
        let adopted = DomainEvent::AnchorAdopted { anchor: anchor.clone(), before: known, why };
        domain.note(actor, [Subject::Domain], adopted, Some(evidence));
        domain.anchor = Some(anchor);
        Ok(Outcome::Changed)
    }
}
