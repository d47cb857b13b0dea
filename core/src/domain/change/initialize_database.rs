//! One archive makes the first data of a database with one primary. Once ever: later empty volumes are copied.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::Data;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Has one archive make the first data of its database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitializeDatabase {
    /// The database.
    pub database: DatabaseName,
    /// The archive.
    pub archive: ArchiveId,
}

impl Change for InitializeDatabase {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, archive: _ } = self;
        bounds.name("the name of a database", database)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, archive } = self;
        let replicated = domain.replicated(&name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        if replicated.initializes == Some(archive) {
            return Ok(Outcome::Unchanged);
        }
        domain.may_initialize(&name, archive)?;
        domain.replicated_mut(&name)?.initializes = Some(archive);
        let subjects = [Subject::Database(name), Subject::Archive(archive)];
        domain.note(actor, subjects, ReplicationEvent::Initializes { archive }, None);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Whether an archive may make the first data: nothing that was ever known of the database holds any.
    pub fn may_initialize(&self, name: &DatabaseName, archive: ArchiveId) -> Result<(), Refusal> {
        let replicated = self.replicated(name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        let holder = self.archives.values().find(|other| other.database == *name && other.ever_ran);
        if let Some(holder) = holder {
            return Err(Refusal::HasData { database: name.clone(), archive: holder.id });
        }
        if replicated.record.is_some() || replicated.system.is_some() {
            return Err(Refusal::HasPrimary(name.clone()));
        }
        // The one that was chosen may be at it.
        let chosen = replicated.initializes.filter(|chosen| *chosen != archive && self.archives.contains_key(chosen));
        if let Some(chosen) = chosen {
            return Err(Refusal::HasData { database: name.clone(), archive: chosen });
        }
        match self.serving(archive).filter(|process| process.database == *name) {
            Some(process) if process.data == Some(Data::Empty) => Ok(()),
            _ => Err(Refusal::NotServing(archive)),
        }
    }
}
