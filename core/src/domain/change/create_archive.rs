//! An operator creates an archive: `create archive` of the published client. An engine that registers on a new volume creates its
//! archive by itself; this one has no claim, and is nothing but an id, until the marker on a volume names it.
//!
//! It holds no data, so that no cold start waits for it and it never starts before an archive with data. If the operator says that
//! it is restored (`--restored`), it counts as one with data that no agent has seen: every cold start of its database waits until an
//! engine registers on it, or an operator removes it. It is never proven to hold all that another archive holds, and never
//! takes the place of a database's last archive.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::archive::Archive;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::database::DatabaseState;
use crate::domain::event::ArchiveEvent;
use crate::domain::ids::{ClusterName, DatabaseName};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Creates an archive by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateArchive {
    /// Its database.
    pub database: DatabaseName,
    /// The cluster of the agent that was asked: it is taken to be there until an engine registers on it in another.
    pub cluster: ClusterName,
    /// Where the engine finds it, in its own file system.
    pub path: String,
    /// Whether there is data on it.
    pub restored: bool,
}

impl Change for CreateArchive {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database: _, cluster, path, restored: _ } = self;
        bounds.name("the cluster", cluster)?;
        fits("the archive's path", path, bounds.path)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database, cluster, path, restored } = self;
        only_an_operator(actor)?;
        let known = domain.databases.get(&database).filter(|known| known.state != DatabaseState::Tombstone);
        if known.is_none() {
            return Err(Refusal::UnknownDatabase(database));
        }
        domain.may_add("archives", domain.archives.len(), domain.bounds.archives)?;
        let id = domain.last_archive.next();
        domain.last_archive = id;
        let archive = Archive {
            id,
            database: database.clone(),
            cluster,
            claim: None,
            bound: domain.index,
            path,
            ever_ran: restored,
            holds_to: 0,
            written_to: None,
            removed: None,
            created: domain.time,
            by_hand: true,
        };
        domain.archives.insert(id, archive);
        let created = ArchiveEvent::Created { archive: id, database: database.clone(), claim: None };
        domain.note(actor, [Subject::Archive(id), Subject::Database(database)], created, None);
        Ok(Outcome::ArchiveCreated(id))
    }
}
