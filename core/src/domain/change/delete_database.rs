//! A database that has no archive left, and that nothing wants, is deleted.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::database::DatabaseState;
use crate::domain::event::DatabaseEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::DatabaseName;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Deletes a database that has no archive left and that nothing wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeleteDatabase {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The database.
    pub database: DatabaseName,
    /// The proof that nothing wants it.
    pub evidence: Evidence,
}

impl Change for DeleteDatabase {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, database: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, database: name, evidence } = self;
        if let Some(database) = domain.databases.get_mut(&name) {
            database.delete();
        }
        domain.balancing.drop_database(&name, domain.index);
        domain.end_task_of(actor, &name);
        let deleted = DatabaseEvent::Deleted { database: name.clone() };
        domain.note(actor, [Subject::Database(name)], deleted, Some(evidence));
        Ok(Outcome::Changed)
    }
}

impl Planned for DeleteDatabase {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        vec![Need::WantersOf(self.database.clone()), Need::Anchor]
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, database: name, evidence } = self;
        domain.fenced(fence)?;
        let Some(database) = domain.databases.get(name) else { return Err(Refusal::NoDatabase(name.clone())) };
        if database.state == DatabaseState::Tombstone {
            return Ok(Work::Done);
        }
        if database.by_hand {
            return Err(Refusal::DatabaseByHand(name.clone()));
        }
        if let Some(archive) = domain.archives.values().find(|archive| archive.database == *name) {
            return Err(Refusal::HasArchive { database: name.clone(), archive: archive.id });
        }
        if let Some(process) = domain.processes.values().find(|process| process.database == *name) {
            return Err(Refusal::HasProcess { database: name.clone(), process: process.id });
        }
        if let Some(other) = domain.cluster_against(&fence.cluster, name, |found| !found.wanted) {
            return Err(Refusal::AnotherCluster(other.clone()));
        }
        domain.anchored(&fence.cluster, evidence)?;
        if !evidence.database_unwanted(name) {
            return Err(Refusal::Unproven(format!("nothing wants database {name}")));
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        format!("delete database {}: no archive of it is left, and nothing wants it", self.database)
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::DeleteDatabase(Self { fence, evidence, ..self.clone() })
    }
}
