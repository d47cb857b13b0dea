//! The replicated state, and the one function that changes it.
//!
//! `apply` is total and deterministic: the same entries give the same domain on every server, whatever the entries are.
//! A command that finds what it did not expect is refused with a typed reason and changes nothing, so that a stale or
//! repeated proposal is harmless.

pub mod archive;
pub mod audit;
pub mod balancing;
pub mod bounds;
pub mod change;
pub mod command;
pub mod database;
pub mod event;
pub mod evidence;
pub mod gate;
pub mod ids;
pub mod invariants;
pub mod managers;
pub mod newest;
mod outcome;
mod pause;
pub mod process;
pub mod protocol;
pub mod replicated;
pub mod server;
pub mod snapshot;
pub mod task;
pub mod version;
pub mod voters;

use archive::{Archive, ArchiveState};
use audit::{Audit, Record, Subject};
use balancing::Balancing;
use bounds::Bounds;
use change::Command;
use command::{Actor, Entry, Outcome, Refusal, Request};
use database::{Database, DatabaseState, Incarnation};
use event::{DatabaseEvent, Event, ProcessEvent};
use evidence::Evidence;
use ids::{
    ArchiveId, ClusterName, DatabaseName, DomainId, MembershipEpoch, Millis, ResyncEpoch, ServerId, SessionNumber,
    StartId, TaskId, Uid,
};
pub use pause::Pause;
use process::{DurableState, EngineKind, ExitReason, Process, Tombstone};
use serde::{Deserialize, Serialize};
use server::Server;
use snapshot::Restored;
use std::collections::{BTreeMap, BTreeSet};
use task::Task;
use version::Version;
use voters::Voters;

/// The key prefix under which clients can find the archive of each claim:
/// by `NAME`, or `CLUSTER/NAME` in another cluster than the one that the domain was founded in.
pub const CLAIMS_PREFIX: &str = "archiveVolumeClaims/";

/// The domain state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its id; `None` until it is founded.
    pub id: Option<DomainId>,
    /// Its name.
    pub name: String,
    /// The UID of the Lease that anchors it.
    pub anchor: Option<Uid>,
    /// The cluster that it was founded in, which `anchor` is of; known once another cluster takes part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub founded_in: Option<ClusterName>,
    /// The UID of the anchor in each other cluster that takes part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub anchors: BTreeMap<ClusterName, Uid>,
    /// The last applied entry.
    pub index: u64,
    /// The time of the last applied entry: the greatest of all so far.
    pub time: Millis,
    /// The admin servers.
    pub servers: BTreeMap<ServerId, Server>,
    /// The databases.
    pub databases: BTreeMap<DatabaseName, Database>,
    /// The archives, removed ones too.
    pub archives: BTreeMap<ArchiveId, Archive>,
    /// The living processes.
    pub processes: BTreeMap<StartId, Process>,
    /// What is left of the exited ones.
    pub tombstones: BTreeMap<StartId, Tombstone>,
    /// The key-value store.
    pub values: BTreeMap<String, String>,
    /// Each cluster's resync leader.
    pub resync: BTreeMap<ClusterName, ResyncLeader>,
    /// Set while an operator has paused the resync.
    #[serde(default)]
    pub paused: Option<Pause>,
    /// The last epoch for which it was noted that an operator gave up what only others had.
    #[serde(default)]
    pub lossy_epoch: MembershipEpoch,
    /// Who votes, as it was noted last.
    #[serde(default)]
    pub voters: Option<Voters>,
    /// What is set for load balancing.
    #[serde(default)]
    pub balancing: Balancing,
    /// The snapshot of another domain that it was founded from, if it was.
    #[serde(default)]
    pub restored: Option<Restored>,
    /// The tasks that run, and the last ones that have ended.
    #[serde(default)]
    pub tasks: BTreeMap<TaskId, Task>,
    /// The task id given last.
    #[serde(default)]
    pub last_task: TaskId,
    /// Who changed what, why, and on what evidence.
    pub audit: Audit,
    /// The archive id given last.
    pub last_archive: ArchiveId,
    /// The start id given last.
    pub last_start: StartId,
    /// The first version that understands every entry so far.
    #[serde(default)]
    pub needs: Version,
    /// How much it holds at most.
    #[serde(skip)]
    pub bounds: Bounds,
}

/// Who converges the domain with one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncLeader {
    /// The Lease's UID.
    pub lease: Uid,
    /// The Lease's count of acquisitions when it was acquired.
    pub transitions: u64,
    /// Who acquired it.
    pub holder: ServerId,
    /// The index of the entry that said so.
    pub epoch: ResyncEpoch,
}

/// What a change answers: what it did, or why not.
type Applied = Result<Outcome, Refusal>;

/// Whether a field need not be written: one that is missing reads as this.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Domain {
    /// Carries out one entry.
    pub fn apply(&mut self, entry: Entry) -> Outcome {
        let Entry { index, time, request } = entry;
        self.index = index;
        self.time = self.time.max(time);
        self.needs = self.needs.max(request.command.since());
        let Request { actor, mut command } = request;
        let founded = self.id.is_some() || matches!(command, Command::FoundDomain(_));
        if !founded {
            return Outcome::Refused(Refusal::NotFounded);
        }
        if let Err(excess) = self.bounds.check(&actor, &mut command) {
            return Outcome::Refused(Refusal::OutOfBounds(excess));
        }
        let applied = command.apply(self, &actor);
        if let Ok(Outcome::Changed | Outcome::Registered(_) | Outcome::ArchiveCreated(_)) = applied {
            self.open_gates();
        }
        applied.unwrap_or_else(Outcome::Refused)
    }

    /// The living process, if it is in that session.
    fn of_session(&self, id: StartId, session: SessionNumber) -> Result<&Process, Refusal> {
        let process = self.processes.get(&id).ok_or(Refusal::UnknownProcess(id))?;
        if process.session.number != session {
            let current = process.session.number;
            return Err(Refusal::AnotherSession { process: id, proposed: session, current });
        }
        Ok(process)
    }

    /// The same, to change it.
    fn in_session(&mut self, id: StartId, session: SessionNumber) -> Result<&mut Process, Refusal> {
        self.of_session(id, session)?;
        self.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))
    }

    /// Turns a living process into a tombstone.
    fn bury(
        &mut self,
        actor: &Actor,
        id: StartId,
        reason: ExitReason,
        exit_code: Option<i32>,
        evidence: Option<Evidence>,
    ) {
        let Some(process) = self.processes.remove(&id) else { return };
        let database = process.database.clone();
        self.note_end_of_writing(&process, &reason);
        let incarnation = self.databases.get_mut(&database).map_or(Incarnation::default(), |database| {
            let before = database.incarnation;
            database.incarnation.minor += 1;
            before
        });
        let mut subjects = vec![Subject::Process(id)];
        subjects.extend(process.archive.map(Subject::Archive));
        let exited = ProcessEvent::Exited { process: id, reason: reason.clone(), exit_code };
        self.note(actor, subjects, exited, evidence);
        self.tombstones.insert(id, Tombstone { process, incarnation, at: self.time, reason, exit_code });
        self.drop_old_tombstones(id);
        self.note_stopping(&database, false);
        self.refresh_database(actor, &database);
    }

    /// Keeps the tombstone that was made now, the latest of each archive that there is, and so many of the others.
    fn drop_old_tombstones(&mut self, made: StartId) {
        let most = self.bounds.tombstones + self.archives.len();
        let Some(surplus) = self.tombstones.len().checked_sub(most).filter(|surplus| *surplus > 0) else { return };
        let archives = self.tombstones.values().filter_map(|tombstone| Some((tombstone.process.archive?, tombstone)));
        let there = archives.filter(|(archive, _)| self.archives.contains_key(archive));
        let latest: BTreeMap<ArchiveId, StartId> = there.map(|(archive, it)| (archive, it.process.id)).collect();
        let latest: BTreeSet<StartId> = latest.into_values().collect();
        let spare = self.tombstones.keys().filter(|id| **id != made && !latest.contains(id));
        for id in spare.copied().take(surplus).collect::<Vec<_>>() {
            self.tombstones.remove(&id);
        }
    }

    /// Brings a database's state in line with its processes: it runs while a storage manager does.
    fn refresh_database(&mut self, actor: &Actor, name: &DatabaseName) {
        let runs = self.processes.values().any(|process| {
            process.database == *name && process.kind == EngineKind::Sm && process.durable != DurableState::Requested
        });
        let Some(database) = self.databases.get_mut(name) else { return };
        let state = if runs { DatabaseState::Running } else { DatabaseState::NotRunning };
        if database.state == state || (database.state == DatabaseState::Tombstone && !runs) {
            return;
        }
        database.state = state;
        if runs {
            database.incarnation = Incarnation { major: database.incarnation.major + 1, minor: 0 };
        }
        self.note(actor, [Subject::Database(name.clone())], DatabaseEvent::Changed { state }, None);
    }

    fn note(
        &mut self,
        actor: &Actor,
        subjects: impl IntoIterator<Item = Subject>,
        event: impl Into<Event>,
        evidence: Option<Evidence>,
    ) {
        let (index, at, subjects) = (self.index, self.time, subjects.into_iter().collect());
        let record = Record::new(index, at, actor.clone(), subjects, event.into(), evidence);
        self.audit.push(record, &self.bounds);
    }

    /// The living process on an archive.
    pub fn process_on(&self, archive: ArchiveId) -> Option<&Process> {
        self.processes.values().find(|process| process.archive == Some(archive))
    }

    /// The name of the claim of a process's archive, if it has one.
    pub fn claim_under(&self, process: &Process) -> Option<&str> {
        process.archive.and_then(|archive| Some(self.claim_of(archive)?.name.as_str()))
    }

    /// What is left of the last process on an archive.
    pub fn last_exit_on(&self, archive: ArchiveId) -> Option<&Tombstone> {
        self.tombstones.values().rev().find(|tombstone| tombstone.process.archive == Some(archive))
    }

    /// What an archive does.
    pub fn archive_state(&self, archive: &Archive) -> ArchiveState {
        if self.process_on(archive.id).is_some() {
            ArchiveState::Running
        } else if archive.ever_ran {
            ArchiveState::NotRunning
        } else {
            ArchiveState::Provisioned
        }
    }

    /// The archives of a database that are not removed.
    pub fn active_archives<'a>(&'a self, database: &'a DatabaseName) -> impl Iterator<Item = &'a Archive> {
        self.archives.values().filter(move |archive| archive.database == *database && archive.removed.is_none())
    }
}
