//! An operator has a removed archive count again: `create archive --archive-id` of the published client. The next start on its volume
//! does the same by itself. Its data counts from then on, so that cold starts wait for it.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::archive::Removal;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ArchiveEvent;
use crate::domain::ids::ArchiveId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Makes a removed archive count again by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResurrectArchive {
    /// The archive.
    pub archive: ArchiveId,
}

impl Change for ResurrectArchive {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { archive: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { archive: id } = self;
        only_an_operator(actor)?;
        let archive = domain.archives.get_mut(&id).ok_or(Refusal::UnknownArchive(id))?;
        if archive.removed.as_ref().and_then(Removal::claim_gone_since).is_some() {
            return Err(Refusal::ClaimGone(id));
        }
        if archive.removed.take().is_none() {
            return Ok(Outcome::Unchanged);
        }
        let database = archive.database.clone();
        let event = ArchiveEvent::Bound { archive: id, resurrected: true, claim: None };
        domain.note(actor, [Subject::Archive(id), Subject::Database(database)], event, None);
        Ok(Outcome::Changed)
    }
}
