//! An operator gives up data that the domain knows nothing of: it may be overwritten.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::ArchiveId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Lets the data of an archive be overwritten, by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscardData {
    /// The archive.
    pub archive: ArchiveId,
    /// Why, in the operator's words.
    pub why: String,
}

impl Change for DiscardData {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { archive: _, why } = self;
        cut(why, bounds.text);
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { archive: id, why } = self;
        only_an_operator(actor)?;
        let archive = domain.archives.get(&id).ok_or(Refusal::UnknownArchive(id))?;
        let name = archive.database.clone();
        let replicated = domain.replicated_mut(&name)?;
        if replicated.counts(id) {
            return Err(Refusal::StillCounts(id));
        }
        if replicated.record.is_none() {
            // Nothing is there yet that could take its place.
            return Err(Refusal::NoPrimaryYet(name));
        }
        if !replicated.discarded.insert(id) {
            return Ok(Outcome::Unchanged);
        }
        let event = ReplicationEvent::Discarded { archive: id, why };
        domain.note(actor, [Subject::Archive(id), Subject::Database(name)], event, None);
        Ok(Outcome::Changed)
    }
}
