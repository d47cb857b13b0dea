//! An operator gives up the data of an archive outside the sync set: it may be overwritten.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Lets the data of an archive be overwritten, by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscardData {
    /// The database.
    pub database: DatabaseName,
    /// The archive.
    pub archive: ArchiveId,
    /// Why, in the operator's words.
    pub why: String,
}

impl Change for DiscardData {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, archive: _, why } = self;
        cut(why, bounds.text);
        bounds.name("the name of a database", database)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, archive: id, why } = self;
        only_an_operator(actor)?;
        domain.may_discard(&name, id)?;
        if !domain.replicated_mut(&name)?.discarded.insert(id) {
            return Ok(Outcome::Unchanged);
        }
        let event = ReplicationEvent::Discarded { archive: id, why };
        domain.note(actor, [Subject::Archive(id), Subject::Database(name)], event, None);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Whether the data of an archive may be given up.
    pub fn may_discard(&self, name: &DatabaseName, id: ArchiveId) -> Result<(), Refusal> {
        let replicated = self.replicated(name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        if self.archives.get(&id).is_none_or(|archive| archive.database != *name) {
            return Err(Refusal::UnknownArchive(id));
        }
        if replicated.counts(id) {
            return Err(Refusal::StillCounts(id));
        }
        // Until there is a record, nothing is there that could take its place.
        replicated.record.as_ref().map(drop).ok_or_else(|| Refusal::NoPrimaryYet(name.clone()))
    }
}
