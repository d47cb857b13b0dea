//! What can be asked of the domain.
//!
//! Every command names what it expects to find; a command that finds something else is refused and says why, and one
//! that finds its work done changes nothing.
//!
//! What is written here is read from logs for ever. A field that is not known makes the whole entry unknown: two servers
//! that read different things from one entry would no longer be the same.

use super::archive::Ordinal;
use super::evidence::Evidence;
use super::ids::{
    ArchiveId, ClusterName, ContainerId, DatabaseName, DomainId, MembershipEpoch, Millis, RaftId, ResyncEpoch,
    ServerId, SessionNumber, StartId, Uid,
};
pub use super::outcome::{Outcome, Refusal, Registered};
use super::process::{EngineState, ExitReason, Registration, Stop};
use super::server::Server;
use super::snapshot::Restore;
use super::voters::Voters;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One entry of the log, as the state machine sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its place in the log.
    pub index: u64,
    /// When it was proposed, by the proposer's clock; the domain never goes back.
    pub time: Millis,
    /// What is asked, and by whom.
    pub request: Request,
}

/// A command with its author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Who asks.
    pub actor: Actor,
    /// What for.
    pub command: Command,
}

/// Who asks: kept in the audit trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// In which duty.
    pub role: Role,
    /// An agent's server id, or a person's name.
    pub name: String,
}

/// A duty in which a command is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The agent that an engine is connected to.
    Agent,
    /// The holder of the resync Lease.
    ResyncLeader,
    /// The leader of the Raft group.
    RaftLeader,
    /// A person, by way of the API; the name says how they were known: `loopback`, or `user NAME`.
    Person,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Agent => "agent",
            Role::ResyncLeader => "resync leader",
            Role::RaftLeader => "raft leader",
            Role::Person => return f.write_str(&self.name),
        };
        write!(f, "{role} {}", self.name)
    }
}

/// Binds a proposal to the resync leader that planned it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// Whose resync.
    pub cluster: ClusterName,
    /// Under which epoch.
    pub epoch: ResyncEpoch,
}

/// What a value must be for it to be replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Expected {
    /// Whatever it is.
    Anything,
    /// There must be none.
    Absent,
    /// Exactly this.
    Value(String),
}

/// What can be asked of the domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Command {
    /// Begins the domain; its first entry.
    FoundDomain {
        /// Its id, made by the founder.
        domain: DomainId,
        /// Its name.
        name: String,
        /// The UID of the Lease that anchors it.
        anchor: Uid,
    },
    /// Makes a server known, or refreshes what it said of itself.
    AdmitServer {
        /// The server; `joined` is set by the domain.
        server: Server,
    },
    /// Opens a resync epoch.
    BeginResync {
        /// Whose resync.
        cluster: ClusterName,
        /// The Lease's UID.
        lease: Uid,
        /// The Lease's count of acquisitions; grows with each.
        transitions: u64,
        /// Who acquired it.
        holder: ServerId,
        /// The Lease as it was acquired.
        evidence: Evidence,
    },
    /// Makes an engine known, or takes up its session anew. Creates its database and archive where they are missing.
    RegisterProcess(Box<Registration>),
    /// Notes that a session is down.
    LoseSession {
        /// The process.
        process: StartId,
        /// The session that is meant.
        session: SessionNumber,
        /// How it is known.
        why: String,
    },
    /// Notes what an engine says of itself.
    ReportState {
        /// The process.
        process: StartId,
        /// The session by which it was said.
        session: SessionNumber,
        /// The state.
        engine: EngineState,
        /// The engine's process id; 0 if it has none.
        pid: u32,
    },
    /// Notes that a storage manager's engine, asked after an entry of the log, still ran with all data of its database.
    ConfirmRunning {
        /// The process.
        process: StartId,
        /// The session by which it was said.
        session: SessionNumber,
        /// The entry.
        as_of: u64,
    },
    /// Notes how new a storage manager's data is: the higher, the newer.
    ReportHistory {
        /// The process.
        process: StartId,
        /// The session by which it was said.
        session: SessionNumber,
        /// A number that grows with the database.
        history: u64,
    },
    /// Notes which container a process is.
    LearnContainer {
        /// The process.
        process: StartId,
        /// Its pod.
        pod: Uid,
        /// The container's id.
        container: ContainerId,
    },
    /// Notes that an engine has exited, by its wrapper's word.
    ReportExit {
        /// The process.
        process: StartId,
        /// The session by which it was said.
        session: SessionNumber,
        /// Its exit code.
        exit_code: Option<i32>,
        /// How it ended.
        reason: ExitReason,
    },
    /// Takes away a process whose pod or container is gone.
    RemoveProcess {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The process.
        process: StartId,
        /// Its session, which must be lost.
        session: SessionNumber,
        /// What is gone: `PodGone`, `ContainerEnded` or `ContainerReplaced`.
        reason: ExitReason,
        /// The proof.
        evidence: Evidence,
    },
    /// Removes an archive; it can be resurrected.
    RemoveArchive {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The archive.
        archive: ArchiveId,
        /// The UID of its claim.
        claim: Uid,
        /// Why.
        reason: super::archive::RemovalReason,
        /// The proof.
        evidence: Evidence,
    },
    /// Forgets a removed archive for ever.
    PurgeArchive {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The archive.
        archive: ArchiveId,
        /// The UID of its claim.
        claim: Uid,
        /// The proof that the claim is gone.
        evidence: Evidence,
    },
    /// Notes since when the claim of a removed archive is gone, where its removal had another reason: it is not purged at
    /// once.
    NoteClaimGone {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The archive.
        archive: ArchiveId,
        /// The UID of its claim.
        claim: Uid,
        /// The proof that the claim is gone.
        evidence: Evidence,
    },
    /// Deletes a database that has no archive left and that nothing wants.
    DeleteDatabase {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The database.
        database: DatabaseName,
        /// The proof that nothing wants it.
        evidence: Evidence,
    },
    /// Removes a server for good: its StatefulSet does not want it, and its volume was deleted.
    RemoveServer {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The server.
        server: ServerId,
        /// The log that it held; if it came back with another, it stays.
        raft_id: RaftId,
        /// Its place in its StatefulSet.
        owner: Ordinal,
        /// The proof that the ordinal is not wanted and that pod and claim are gone.
        evidence: Evidence,
    },
    /// Has nothing taken away by the resync until `ResumeResync`.
    PauseResync {
        /// Why, in the words of the person who asks.
        why: String,
    },
    /// Ends a pause.
    ResumeResync,
    /// Takes another Kubernetes for the one that the domain was founded in.
    AdoptAnchor {
        /// The UID of the anchor that is known.
        known: Uid,
        /// The UID of the anchor that is there now.
        anchor: Uid,
        /// Why, in the words of the person who asks.
        why: String,
        /// The anchor as it was read.
        evidence: Evidence,
    },
    /// Notes that a person gave up what only others may have held, so that this epoch was founded.
    AcceptLoss {
        /// The epoch.
        epoch: MembershipEpoch,
        /// The server whose log founded it.
        founder: ServerId,
        /// When the person said so.
        at: Millis,
        /// What the person was told would be lost.
        lost: String,
    },
    /// Notes who votes, and how many servers the StatefulSet wanted when that was seen, if it was known.
    NoteVoters {
        /// Who.
        voters: Voters,
        /// How many are wanted.
        wanted: Option<u32>,
    },
    /// Brings the databases, archives and values of another domain into one in which nothing has happened yet.
    RestoreDomain(Box<Restore>),
    /// Sets or deletes a value.
    SetValue {
        /// Its key.
        key: String,
        /// The new value; `None` deletes it.
        value: Option<String>,
        /// What it must be now.
        expected: Expected,
    },
    /// Asks a process to end. Whichever agent has its session passes it on, now or when there is one.
    StopProcess {
        /// The process.
        process: StartId,
        /// How it shall end.
        how: Stop,
    },
    /// Removes an archive on an operator's word: no cold start waits for its data any more.
    GiveUpArchive {
        /// The archive.
        archive: ArchiveId,
        /// Why, in the operator's words.
        why: String,
    },
    /// Forgets a removed archive for ever on an operator's word.
    ForgetArchive {
        /// The archive.
        archive: ArchiveId,
        /// Why, in the operator's words.
        why: String,
        /// The proof that its claim is gone, if its claim is known.
        evidence: Evidence,
    },
    /// Notes which StatefulSet owns the pod that mounts the claim of an archive.
    LearnOwner {
        /// Binds it to its resync leader.
        fence: Fence,
        /// The archive.
        archive: ArchiveId,
        /// The UID of its claim.
        claim: Uid,
        /// The process whose pod was read.
        process: StartId,
        /// The place of that pod in its StatefulSet.
        owner: Ordinal,
        /// The pod as it was read.
        evidence: Evidence,
    },
    /// Takes a process away on a person's word, whether it has ended or not. If it still speaks, it is told to end.
    EvictProcess {
        /// The process.
        process: StartId,
    },
}
