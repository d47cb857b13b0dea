//! Which engine may start: at a cold start the storage manager with the newest data goes first.
//!
//! A wrapper holds its child until this gate opens for it, and it is asked anew with every entry: nothing is remembered but
//! what was reported. While the database runs it is open. At a cold start it opens when every active archive that has ever
//! run has reported its history, and for the first archive only: the one with the highest history, then the lowest ordinal,
//! then the lowest id. The others and the transaction engines follow when a storage manager runs. Where no archive has
//! ever run there is nothing to wait for. Time opens nothing.
//!
//! A history counts until the database runs. Then every engine may start, and one that did may die before anybody heard of
//! it, with data newer than it said.

use super::Domain;
use super::archive::Archive;
use super::database::DatabaseState;
use super::ids::{ArchiveId, DatabaseName, StartId};
use super::process::{EngineKind, Process};
use std::cmp::Reverse;
use std::fmt;

/// Why an engine does not start yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The domain knows of no such process.
    Unknown,
    /// Archives that have run before have not said how new their data is.
    Histories(Vec<ArchiveId>),
    /// Another archive goes first: its data is the newest.
    First(ArchiveId),
    /// A transaction engine waits for a storage manager that runs.
    NoStorageManager,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the domain does not know it yet"),
            Self::Histories(archives) => {
                let archives: Vec<String> = archives.iter().map(ToString::to_string).collect();
                let which = if archives.len() == 1 { "archive" } else { "archives" };
                write!(f, "cold start: waiting for the storage managers of {which} {} to report", archives.join(", "))
            }
            Self::First(archive) => write!(f, "cold start: archive {archive} has the newest data and goes first"),
            Self::NoStorageManager => f.write_str("waiting for a storage manager that runs"),
        }
    }
}

impl Domain {
    /// Whether the engine of a process may start, or why not.
    pub fn may_start(&self, process: StartId) -> Result<(), Held> {
        let process = self.processes.get(&process).ok_or(Held::Unknown)?;
        match process.kind {
            _ if self.runs(&process.database) => Ok(()),
            EngineKind::Te => Err(Held::NoStorageManager),
            EngineKind::Sm => self.cold_start(process),
        }
    }

    /// Whether a storage manager of a database runs, as far as the domain has heard.
    pub fn runs(&self, database: &DatabaseName) -> bool {
        self.databases.get(database).is_some_and(|database| database.state == DatabaseState::Running)
    }

    fn cold_start(&self, process: &Process) -> Result<(), Held> {
        let have_run = || self.active_archives(&process.database).filter(|archive| archive.ever_ran);
        let history = |archive: &Archive| self.process_on(archive.id).and_then(|process| process.history);
        let missing: Vec<ArchiveId> =
            have_run().filter(|archive| history(archive).is_none()).map(|archive| archive.id).collect();
        if !missing.is_empty() {
            return Err(Held::Histories(missing));
        }
        let first = have_run().max_by_key(|archive| {
            let owner = archive.claim.as_ref().and_then(|claim| claim.owner.as_ref());
            // One whose ordinal is not known comes after those whose is.
            let ordinal = owner.map_or(u32::MAX, |owner| owner.ordinal);
            (history(archive), Reverse(ordinal), Reverse(archive.id))
        });
        match first {
            Some(first) if process.archive != Some(first.id) => Err(Held::First(first.id)),
            Some(_) | None => Ok(()),
        }
    }
}
