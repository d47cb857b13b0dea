//! Which engine may start: at a cold start the storage manager with the newest data goes first.
//!
//! A wrapper holds its child until this gate opens for it, and it is asked again with every entry. While a storage manager
//! of the database is known to run it is open. At a cold start it opens for one storage manager only: every other archive
//! with data that its own does not provably hold has reported its history, and its own has the highest, then the proof to
//! hold more, then the latest proof, then the lowest ordinal, then the lowest id. The others and the transaction engines
//! follow when it runs. Where no archive has data the first that asks goes first. Time opens nothing.
//!
//! A removed archive counts like any other: that its StatefulSet no longer wants it does not say that its data is old. Nor
//! does a storage manager count that is silent: it may run, and it may have ended.
//!
//! Where the pod of a storage manager could not be read, its volume may be a copy of the archive's. It may join, but it does not
//! go first, and what it says of its data says nothing of the archive.
//!
//! A history counts until the engine starts beside another one. Then it may die before anybody hears of it, with data newer
//! than it said.

use super::Domain;
use super::archive::Archive;
use super::database::DatabaseState;
use super::ids::{ArchiveId, DatabaseName};
use super::managers::Managers;
use super::process::{DurableState, EngineKind, Process, SessionState};
use std::fmt;

/// Why an engine does not start yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The domain knows of no such process.
    Unknown,
    /// Archives that may hold newer data have not said how new their data is.
    Histories {
        /// Those whose storage managers have to start.
        archives: Vec<ArchiveId>,
        /// Those among them that are removed, so that Kubernetes does not start them.
        removed: Vec<ArchiveId>,
    },
    /// Another archive goes first, and its engine does not run yet.
    First(ArchiveId),
    /// Storage managers of these archives stop, are silent and may run, or have not said that they still run.
    Unsure(Vec<ArchiveId>),
    /// Which claim its pod mounts, or whether the claim that this archive was on is gone, could not be read yet: its volume may
    /// be a copy of the archive's.
    ClaimUnread(ArchiveId),
    /// A transaction engine waits for a storage manager that runs.
    NoStorageManager,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the domain does not know it yet"),
            Self::Histories { archives, removed } => {
                write!(f, "cold start: waiting for the storage managers of {} to report", listed(archives))?;
                if removed.is_empty() {
                    return Ok(());
                }
                let are = if removed.len() == 1 { "is" } else { "are" };
                write!(f, "; {} {are} removed and may hold newer data: scale the StatefulSet up", listed(removed))?;
                f.write_str(" again, or give the data up with `kaa archive remove`")
            }
            Self::First(archive) => {
                write!(f, "archive {archive} starts first: waiting for its storage manager to run or to end")
            }
            Self::Unsure(archives) => {
                write!(f, "waiting for the storage managers of {}: each has to report,", listed(archives))?;
                f.write_str(" to be proven ended, or to be evicted")
            }
            Self::ClaimUnread(archive) => {
                write!(
                    f,
                    "its pod, or the claim that archive {archive} was on, could not be read, so its volume may be a copy: "
                )?;
                f.write_str("they are read again every 5 s")
            }
            Self::NoStorageManager => f.write_str("waiting for a running storage manager"),
        }
    }
}

fn listed(archives: &[ArchiveId]) -> String {
    let ids: Vec<String> = archives.iter().map(ToString::to_string).collect();
    format!("{} {}", if ids.len() == 1 { "archive" } else { "archives" }, ids.join(", "))
}

/// How an engine may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// On its own data, which is the newest that there is.
    First,
    /// Beside a storage manager that runs, and with data from there: its own may be older. Where it finds none, it has to
    /// end.
    Join,
}

impl Domain {
    /// Whether a storage manager of a database runs, as far as the domain has heard: one that is silent counts.
    pub fn runs(&self, database: &DatabaseName) -> bool {
        self.databases.get(database).is_some_and(|database| database.state == DatabaseState::Running)
    }
}

impl Managers<'_> {
    /// How the engine of a process of this database may start, or why not yet.
    pub(super) fn may_start(&self, process: &Process) -> Result<Start, Held> {
        // A start of one with roles makes no primary: the grant is the gate.
        let has_roles = self.domain.replicated(&process.database).is_some();
        if has_roles || process.durable != DurableState::Requested || self.serve(process) {
            return Ok(Start::Join);
        }
        let unsure = self.unsure(process);
        match process.kind {
            _ if !unsure.is_empty() => Err(Held::Unsure(unsure)),
            EngineKind::Te => Err(Held::NoStorageManager),
            EngineKind::Sm => self.cold_start(process).map(|()| Start::First),
        }
    }

    /// Whether an engine finds a storage manager that runs. To a storage manager, which has data of its own, that has to be
    /// proven as of its registration: the session of one that has ended is live until its agent notices.
    fn serve(&self, process: &Process) -> bool {
        let proven = |archive: ArchiveId| {
            process.kind == EngineKind::Te
                || self.domain.archives.get(&archive).is_some_and(|archive| archive.holds_to >= process.entry)
        };
        self.others(process).any(|other| {
            let runs = other.session.state == SessionState::Live && other.durable == DurableState::Monitored;
            runs && other.archive.is_some_and(proven)
        })
    }

    /// The archives whose storage managers may run or not: they have run, and are silent, stop, or were not asked yet.
    fn unsure(&self, process: &Process) -> Vec<ArchiveId> {
        let unsure = |other: &&Process| match other.session.state {
            _ if other.durable != DurableState::Requested => true,
            SessionState::Live => false,
            SessionState::Lost(_) => other.started.is_some(),
        };
        self.others(process).filter(unsure).filter_map(|other| other.archive).collect()
    }

    /// The storage managers except one.
    fn others(&self, except: &Process) -> impl Iterator<Item = &Process> {
        self.living.iter().copied().filter(move |process| process.id != except.id)
    }

    fn cold_start(&self, process: &Process) -> Result<(), Held> {
        let Some(own) = process.archive.and_then(|archive| self.domain.archives.get(&archive)) else {
            return Err(Held::Unknown);
        };
        if self.may_be_a_copy(process) {
            return Err(Held::ClaimUnread(own.id));
        }
        // It was let start, and is not known to run yet, or not to have been started after all.
        let mut starting = self.others(process);
        let starting = starting.find(|other| other.started.is_some() && other.session.state == SessionState::Live);
        if let Some(archive) = starting.and_then(|other| other.archive) {
            return Err(Held::First(archive));
        }
        let order = self.order();
        let may_be_newer = |archive: &&&Archive| {
            archive.id == own.id || !(self.holds_all_of(own, archive) || order.surpassed.contains(&archive.id))
        };
        let missing = self.data.iter().filter(may_be_newer).filter(|archive| self.history(archive.id).is_none());
        let missing: Vec<&Archive> = missing.copied().chain(self.unheard()).collect();
        match order.first {
            _ if !missing.is_empty() => Err(Held::waiting_for(&missing)),
            _ if self.data.is_empty() => Ok(()),
            Some(first) if first == own.id => Ok(()),
            Some(first) => Err(Held::First(first)),
            None => Err(Held::waiting_for(&self.data)),
        }
    }
}

impl Managers<'_> {
    /// Where several storage managers are held: the archives that never ran of those that have not said what is on their volumes.
    /// It may be data that was restored under a new claim.
    fn unheard(&self) -> impl Iterator<Item = &Archive> {
        let live = |process: &&&Process| process.session.state == SessionState::Live && process.started.is_none();
        let several = self.living.iter().filter(live).nth(1).is_some();
        let silent = self.living.iter().filter(live).filter(move |process| several && process.history.is_none());
        let archives = silent.filter_map(|process| self.domain.archives.get(&process.archive?));
        archives.filter(|archive| !archive.has_data())
    }
}

impl Held {
    fn waiting_for(archives: &[&Archive]) -> Self {
        let removed = archives.iter().filter(|archive| archive.removed.is_some());
        Self::Histories {
            archives: archives.iter().map(|archive| archive.id).collect(),
            removed: removed.map(|archive| archive.id).collect(),
        }
    }
}
