//! The replicated state, and the one function that changes it.
//!
//! `apply` is total and deterministic: the same entries give the same domain on every server, whatever the entries are.
//! A command that finds what it did not expect is refused with a typed reason and changes nothing, so that a stale or
//! repeated proposal is harmless.

pub mod archive;
pub mod audit;
pub mod bounds;
pub mod command;
pub mod database;
pub mod evidence;
pub mod gate;
pub mod ids;
pub mod invariants;
pub mod managers;
pub mod newest;
mod outcome;
mod owner;
mod pause;
mod person;
pub mod process;
mod registration;
pub mod server;
pub mod snapshot;
mod takeaway;
pub mod version;
pub mod voters;

use archive::{Archive, ArchiveState};
use audit::{Audit, Record, Subject};
use bounds::Bounds;
use command::{Actor, Command, Entry, Outcome, Refusal, Request};
use database::{Database, DatabaseState, Incarnation};
use evidence::Evidence;
use ids::{
    ArchiveId, ClusterName, DatabaseName, DomainId, MembershipEpoch, Millis, ResyncEpoch, ServerId, SessionNumber,
    StartId, Uid,
};
use owner::Learned;
pub use pause::Pause;
use process::{DurableState, EngineKind, EngineState, ExitReason, Process, SessionState, Stop, Tombstone};
use serde::{Deserialize, Serialize};
use server::Server;
use snapshot::Restored;
use std::collections::{BTreeMap, BTreeSet};
use version::Version;
use voters::Voters;

/// The key prefix under which the archive of each claim can be looked up.
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
    /// Set while a person has paused the resync.
    #[serde(default)]
    pub paused: Option<Pause>,
    /// The last epoch for which it was noted that a person gave up what only others had.
    #[serde(default)]
    pub lossy_epoch: MembershipEpoch,
    /// Who votes, as it was noted last.
    #[serde(default)]
    pub voters: Option<Voters>,
    /// The snapshot of another domain that it was founded from, if it was.
    #[serde(default)]
    pub restored: Option<Restored>,
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

/// What an arm of `apply` answers: the change, or why not.
type Applied = Result<Outcome, Refusal>;

impl Domain {
    /// Carries out one entry.
    pub fn apply(&mut self, entry: Entry) -> Outcome {
        let Entry { index, time, request } = entry;
        self.index = index;
        self.time = self.time.max(time);
        self.needs = self.needs.max(request.command.since());
        let Request { actor, mut command } = request;
        let founded = self.id.is_some() || matches!(command, Command::FoundDomain { .. });
        if !founded {
            return Outcome::Refused(Refusal::NotFounded);
        }
        if let Err(excess) = self.bounds.check(&actor, &mut command) {
            return Outcome::Refused(Refusal::OutOfBounds(excess));
        }
        let applied = self.carried_out(&actor, command);
        if let Ok(Outcome::Changed | Outcome::Registered(_)) = applied {
            self.open_gates();
        }
        applied.unwrap_or_else(Outcome::Refused)
    }

    fn carried_out(&mut self, actor: &Actor, command: Command) -> Applied {
        match command {
            Command::FoundDomain { domain, name, anchor } => self.found(actor, domain, name, anchor),
            Command::AdmitServer { server } => self.admit(actor, server),
            Command::BeginResync { cluster, lease, transitions, holder, evidence } => {
                self.begin_resync(actor, cluster, lease, transitions, holder, evidence)
            }
            Command::RegisterProcess(registration) => self.register(actor, *registration),
            Command::LoseSession { process, session, why } => self.lose_session(actor, process, session, &why),
            Command::ReportState { process, session, engine, pid } => {
                self.report_state(actor, process, session, engine, pid)
            }
            Command::ConfirmRunning { process, session, as_of } => self.confirm_running(actor, process, session, as_of),
            Command::ReportHistory { process, session, history } => {
                self.report_history(actor, process, session, history)
            }
            Command::LearnContainer { process, pod, container } => {
                self.learn_container(actor, process, &pod, container)
            }
            Command::ReportExit { process, session, exit_code, reason } => {
                self.report_exit(actor, process, session, exit_code, reason)
            }
            Command::RemoveProcess { fence, process, session, reason, evidence } => {
                self.remove_process(actor, &fence, process, session, reason, evidence)
            }
            Command::RemoveArchive { fence, archive, claim, reason, evidence } => {
                self.remove_archive(actor, &fence, archive, &claim, reason, evidence)
            }
            Command::PurgeArchive { fence, archive, claim, evidence } => {
                self.purge_archive(actor, &fence, archive, &claim, evidence)
            }
            Command::NoteClaimGone { fence, archive, claim, evidence } => {
                self.note_claim_gone(actor, &fence, archive, &claim, evidence)
            }
            Command::DeleteDatabase { fence, database, evidence } => {
                self.delete_database(actor, &fence, &database, evidence)
            }
            Command::RemoveServer { fence, server, raft_id, owner, evidence } => {
                self.remove_server(actor, &fence, &server, raft_id, &owner, evidence)
            }
            Command::PauseResync { why } => self.pause(actor, why),
            Command::ResumeResync => self.resume(actor),
            Command::AdoptAnchor { known, anchor, why, evidence } => {
                self.adopt_anchor(actor, &known, anchor, &why, evidence)
            }
            Command::AcceptLoss { epoch, founder, at, lost } => self.accept_loss(actor, epoch, founder, at, &lost),
            Command::NoteVoters { voters, wanted } => self.note_voters(actor, voters, wanted),
            Command::RestoreDomain(restore) => self.restore(actor, *restore),
            Command::SetValue { key, value, expected } => self.set_value(actor, key, value, &expected),
            Command::StopProcess { process, how } => self.stop_process(actor, process, how),
            Command::EvictProcess { process } => self.evict_process(actor, process),
            Command::GiveUpArchive { archive, why } => self.give_up_archive(actor, archive, &why),
            Command::ForgetArchive { archive, why, evidence } => self.forget_archive(actor, archive, &why, evidence),
            Command::LearnOwner { fence, archive, claim, process, owner, evidence } => {
                self.learn_owner(actor, &fence, Learned { archive, claim, process, owner, evidence })
            }
        }
    }

    fn found(&mut self, actor: &Actor, domain: DomainId, name: String, anchor: Uid) -> Applied {
        match &self.id {
            Some(id) if *id == domain => return Ok(Outcome::Unchanged),
            Some(id) => return Err(Refusal::AlreadyFounded(id.clone())),
            None => {}
        }
        self.note(actor, [Subject::Domain], format!("domain {name} founded as {domain}"), None);
        (self.id, self.name, self.anchor) = (Some(domain), name, Some(anchor));
        Ok(Outcome::Changed)
    }

    fn admit(&mut self, actor: &Actor, mut server: Server) -> Applied {
        let known = self.servers.get(&server.id);
        // One with the log that it has followed so far is sent everything anyhow.
        if known.is_none_or(|known| known.raft_id != server.raft_id) {
            version::may_join(self, &server).map_err(Refusal::TooOld)?;
        }
        if known.is_none() {
            self.may_add("servers", self.servers.len(), self.bounds.servers)?;
        }
        server.joined = known.map_or(self.time, |known| known.joined);
        let what = match known {
            Some(known) if *known == server => return Ok(Outcome::Unchanged),
            Some(known) if known.raft_id != server.raft_id => {
                format!("came back with another log ({} instead of {})", server.raft_id, known.raft_id)
            }
            Some(_) => format!("described itself anew ({}, {})", server.address, server.version),
            None => format!("joined with log {}", server.raft_id),
        };
        self.note(actor, [Subject::Server(server.id.clone())], what, None);
        self.servers.insert(server.id.clone(), server);
        Ok(Outcome::Changed)
    }

    fn begin_resync(
        &mut self,
        actor: &Actor,
        cluster: ClusterName,
        lease: Uid,
        transitions: u64,
        holder: ServerId,
        evidence: Evidence,
    ) -> Applied {
        if let Some(last) = self.resync.get(&cluster) {
            if last.lease == lease && last.transitions == transitions && last.holder == holder {
                return Ok(Outcome::ResyncBegun(last.epoch));
            }
            if last.lease == lease && transitions <= last.transitions {
                return Err(Refusal::StaleLease { proposed: transitions, last: last.transitions });
            }
            if last.lease != lease && !evidence.lease_is(&lease) {
                return Err(Refusal::LeaseReplaced);
            }
        } else {
            self.may_add("clusters", self.resync.len(), self.bounds.clusters)?;
        }
        let epoch = ResyncEpoch(self.index);
        self.note(
            actor,
            [Subject::Resync(cluster.clone()), Subject::Server(holder.clone())],
            format!("{holder} leads the resync of cluster {cluster} from epoch {epoch} on"),
            Some(evidence),
        );
        self.resync.insert(cluster, ResyncLeader { lease, transitions, holder, epoch });
        Ok(Outcome::ResyncBegun(epoch))
    }

    fn lose_session(&mut self, actor: &Actor, id: StartId, session: SessionNumber, why: &str) -> Applied {
        let (now, index) = (self.time, self.index);
        let process = self.in_session(id, session)?;
        if let SessionState::Lost(_) = process.session.state {
            return Ok(Outcome::Unchanged);
        }
        process.session.state = SessionState::Lost(now);
        process.interrupted = Some(index);
        let server = process.session.server.clone();
        self.note(actor, [Subject::Process(id)], format!("session {session} with {server} lost: {why}"), None);
        Ok(Outcome::Changed)
    }

    fn report_state(
        &mut self,
        actor: &Actor,
        id: StartId,
        session: SessionNumber,
        engine: EngineState,
        pid: u32,
    ) -> Applied {
        let process = self.in_session(id, session)?;
        if process.session.state != SessionState::Live {
            return Err(Refusal::SessionLost { process: id, session });
        }
        let durable = match (process.durable, engine) {
            (DurableState::Requested, EngineState::Running) => DurableState::Monitored,
            (DurableState::Monitored, EngineState::ShuttingDown) => DurableState::RequestedShutdown,
            // One that never ran keeps its state whatever it says: its database would be taken to run.
            (durable, _) => durable,
        };
        if (process.durable, process.engine, process.about.pid) == (durable, engine, pid) {
            return Ok(Outcome::Unchanged);
        }
        (process.durable, process.engine, process.about.pid) = (durable, engine, pid);
        let (database, archive) = (process.database.clone(), process.archive);
        let mut subjects = vec![Subject::Process(id)];
        if engine == EngineState::Running
            && let Some(archive) = archive.and_then(|archive| self.archives.get_mut(&archive))
            && !archive.ever_ran
        {
            archive.ever_ran = true;
            subjects.push(Subject::Archive(archive.id));
        }
        self.note(actor, subjects, format!("{durable}:{engine}"), None);
        if let (EngineState::Running, Some(entry)) = (engine, self.processes.get(&id).and_then(|it| it.started)) {
            self.prove(id, entry);
        }
        self.note_stopping(&database, true);
        self.refresh_database(actor, &database);
        Ok(Outcome::Changed)
    }

    fn report_history(&mut self, actor: &Actor, id: StartId, session: SessionNumber, history: u64) -> Applied {
        let process = self.in_session(id, session)?;
        if process.session.state != SessionState::Live {
            return Err(Refusal::SessionLost { process: id, session });
        }
        let (same, held) = (process.history == Some(history), process.started.is_none());
        // Once its engine may start, what is said may be outdated at once. If the gate has closed again meanwhile, its agent
        // says by this that the engine was not told to start.
        if !self.lacks_history(id) && (same || !held) {
            return Ok(Outcome::Unchanged);
        }
        let process = self.in_session(id, session)?;
        process.started = None;
        process.history = Some(history);
        self.note(actor, [Subject::Process(id)], format!("the history of its archive is {history}"), None);
        Ok(Outcome::Changed)
    }

    fn learn_container(&mut self, actor: &Actor, id: StartId, pod: &Uid, container: ids::ContainerId) -> Applied {
        let process = self.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))?;
        if process.identity.pod_uid != *pod {
            return Err(Refusal::AnotherIdentity(id));
        }
        match &process.container_id {
            Some(known) if *known == container => return Ok(Outcome::Unchanged),
            Some(_) => return Err(Refusal::AnotherIdentity(id)),
            None => {}
        }
        process.container_id = Some(container.clone());
        self.note(actor, [Subject::Process(id)], format!("runs in container {container}"), None);
        Ok(Outcome::Changed)
    }

    fn report_exit(
        &mut self,
        actor: &Actor,
        id: StartId,
        session: SessionNumber,
        exit_code: Option<i32>,
        reason: ExitReason,
    ) -> Applied {
        if self.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let asked = self.in_session(id, session)?.stop;
        // The wrapper knows that it was told to stop, and not why.
        let killed = asked == Some(Stop::Kill) && reason == ExitReason::Graceful;
        self.bury(actor, id, if killed { ExitReason::Killed } else { reason }, exit_code, None);
        Ok(Outcome::Changed)
    }

    /// The living process, if it is in that session.
    fn in_session(&mut self, id: StartId, session: SessionNumber) -> Result<&mut Process, Refusal> {
        let process = self.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))?;
        if process.session.number != session {
            let current = process.session.number;
            return Err(Refusal::AnotherSession { process: id, proposed: session, current });
        }
        Ok(process)
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
        let code = exit_code.map_or(String::new(), |code| format!(" ({code})"));
        self.note(actor, subjects, format!("process {id} exited: {reason}{code}"), evidence);
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
        self.note(actor, [Subject::Database(name.clone())], format!("{state}"), None);
    }

    fn note(
        &mut self,
        actor: &Actor,
        subjects: impl IntoIterator<Item = Subject>,
        what: String,
        evidence: Option<Evidence>,
    ) {
        let (index, at, subjects) = (self.index, self.time, subjects.into_iter().collect());
        let record = Record { index, at, actor: actor.clone(), subjects, what, evidence };
        self.audit.push(record, &self.bounds);
    }

    /// The living process on an archive.
    pub fn process_on(&self, archive: ArchiveId) -> Option<&Process> {
        self.processes.values().find(|process| process.archive == Some(archive))
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
