//! An operator takes the data that is on an archive for that of its database: of a server that ran without Kaa, or in a domain that
//! is lost.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName};
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
        let replicated = domain.replicated(&name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        if replicated.record.is_some() {
            return Err(Refusal::HasPrimary(name));
        }
        let process = domain.serving(archive).filter(|process| process.database == name);
        let Some(Data::Initialized { system, highest }) = process.and_then(|process| process.data) else {
            return Err(Refusal::NoDataToAdopt(archive));
        };
        // A number that another volume of the database knows may have been a primary's.
        let others = domain.processes.values().filter(|process| process.database == name);
        let known = others.filter_map(|process| match process.data {
            Some(Data::Initialized { highest, .. }) => Some(highest),
            _ => None,
        });
        let highest = known.max().unwrap_or(highest).max(highest);
        let replicated = domain.replicated_mut(&name)?;
        replicated.highest = replicated.highest.max(highest);
        replicated.own.insert(archive);
        (replicated.system, replicated.initializes) = (Some(system), None);
        replicated.record = Some(Replication::begin_at(archive, highest));
        let subjects = [Subject::Database(name), Subject::Archive(archive)];
        domain.note(actor, subjects, ReplicationEvent::Adopted { archive, system, why }, None);
        Ok(Outcome::Changed)
    }
}
