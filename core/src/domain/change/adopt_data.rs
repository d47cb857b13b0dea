//! An operator takes the data that is on an archive for that of its database: of a server that ran without Kaa, or in a domain that
//! is lost.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName, Generation, SystemId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::Data;
use crate::domain::{Applied, Domain};
use crate::replication::Replication;
use serde::{Deserialize, Serialize};

/// Takes the data of an archive for that of its database, by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptData {
    /// The database.
    pub database: DatabaseName,
    /// The archive.
    pub archive: ArchiveId,
    /// Why, in the operator's words.
    pub why: String,
}

impl Change for AdoptData {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, archive: _, why } = self;
        cut(why, bounds.text);
        bounds.name("the name of a database", database)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, archive, why } = self;
        only_an_operator(actor)?;
        let (system, highest) = domain.may_adopt(&name, archive)?;
        let replicated = domain.replicated_mut(&name)?;
        replicated.own.insert(archive);
        (replicated.system, replicated.initializes) = (Some(system), None);
        replicated.record = Some(Replication::begin_at(archive, highest));
        let subjects = [Subject::Database(name), Subject::Archive(archive)];
        domain.note(actor, subjects, ReplicationEvent::Adopted { archive, system, why }, None);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Whether the data of an archive can be taken for that of its database; its system identifier, and the highest generation that any
    /// volume of the database knows: that one may have been a primary's.
    pub fn may_adopt(&self, name: &DatabaseName, archive: ArchiveId) -> Result<(SystemId, Generation), Refusal> {
        let replicated = self.replicated(name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        if replicated.record.is_some() {
            return Err(Refusal::HasPrimary(name.clone()));
        }
        let process = self.serving(archive).filter(|process| process.database == *name);
        let Some(Data::Initialized { system, highest: _ }) = process.and_then(|process| process.data) else {
            return Err(Refusal::NoDataToAdopt(archive));
        };
        Ok((system, replicated.highest))
    }
}
