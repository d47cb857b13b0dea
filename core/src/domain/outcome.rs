//! What the domain answers to a command.

use super::bounds::Excess;
use super::ids::{
    ArchiveId, ClusterName, DatabaseName, DomainId, Generation, MembershipEpoch, Millis, NodeId, ProtocolId, RaftId,
    ResyncEpoch, ServerId, SessionNumber, StartId, TaskId, Uid,
};
use super::process::ExitReason;
use super::protocol::NotReady;
use super::version::TooOld;
use crate::replication::Refused;
use serde::{Deserialize, Serialize};

/// What the domain answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done.
    Changed,
    /// It was so already.
    Unchanged,
    /// The engine is known by these.
    Registered(Registered),
    /// The resync epoch is open.
    ResyncBegun(ResyncEpoch),
    /// The archive that was asked for has this id.
    ArchiveCreated(ArchiveId),
    /// Not done.
    Refused(Refusal),
}

/// What an engine is told when it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// The domain.
    pub domain: DomainId,
    /// Its start id.
    pub process: StartId,
    /// Its node id.
    pub node: NodeId,
    /// A storage manager's archive.
    pub archive: Option<ArchiveId>,
    /// Its session.
    pub session: SessionNumber,
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Nothing but the founding can be the first entry.
    #[error("the domain is not founded yet")]
    NotFounded,
    /// The domain was founded as another.
    #[error("the domain is founded already, as {0}")]
    AlreadyFounded(DomainId),
    /// Another agent has become resync leader since.
    #[error("the proposal is of resync epoch {proposed}, the current one of cluster {cluster} is {current}")]
    StaleResync {
        /// Whose resync.
        cluster: ClusterName,
        /// The proposal's epoch.
        proposed: ResyncEpoch,
        /// The current one; 0 if there is none.
        current: ResyncEpoch,
    },
    /// The Lease was acquired again since.
    #[error("the lease was acquired {last} times already, this is acquisition {proposed}")]
    StaleLease {
        /// The proposal's count.
        proposed: u64,
        /// The last accepted one.
        last: u64,
    },
    /// The Lease is another one, and nothing proves that the old one is gone.
    #[error("the resync lease was recreated, and no fresh read proves that the previous one is gone")]
    LeaseReplaced,
    /// No such server.
    #[error("there is no server {0}")]
    UnknownServer(ServerId),
    /// Something is too long, or there would be too many.
    #[error(transparent)]
    OutOfBounds(#[from] Excess),
    /// The server would not understand what is in the log.
    #[error(transparent)]
    TooOld(TooOld),
    /// A later membership was noted.
    #[error("later voters are known: of epoch {epoch}, since entry {since}")]
    StaleVoters {
        /// The epoch of those that are known.
        epoch: MembershipEpoch,
        /// Since which entry they vote.
        since: u64,
    },
    /// The server came back with another log.
    #[error("server {server} holds log {raft_id} now")]
    AnotherLog {
        /// The server.
        server: ServerId,
        /// Its log.
        raft_id: RaftId,
    },
    /// The server votes, or it is not known who does.
    #[error(
        "server {0} may still vote: it can be removed once it is known not to vote (scale the StatefulSet down if that wants it)"
    )]
    StillVotes(ServerId),
    /// An engine speaks with the server.
    #[error("process {process} has a live session with server {server}")]
    ServerInUse {
        /// The server.
        server: ServerId,
        /// The process.
        process: StartId,
    },
    /// No such process lives.
    #[error("there is no process {0}")]
    UnknownProcess(StartId),
    /// The process that asks to be known has exited.
    #[error("process {process} has exited at {at}: {reason}")]
    Exited {
        /// The process.
        process: StartId,
        /// When.
        at: Millis,
        /// Why.
        reason: ExitReason,
    },
    /// The process that asks to be known has exited so long ago that nothing more is known of it.
    #[error("process {0} has exited, and its exit is no longer recorded")]
    Forgotten(StartId),
    /// Another container claims to be the process.
    #[error("process {0} is of a different container")]
    AnotherIdentity(StartId),
    /// A later start of the same container is known: this one has ended.
    #[error("a later start of this container is known, as process {process}, so this one has ended")]
    EarlierStart {
        /// The later one.
        process: StartId,
    },
    /// Another container speaks under the same name.
    #[error(
        "process {process} speaks as container {container} of this pod, and that container runs: \
         give each wrapper the name of its own container (--container)"
    )]
    ContainerInUse {
        /// The process that is known.
        process: StartId,
        /// The name that both bear.
        container: String,
    },
    /// The session that is meant is over.
    #[error("process {process} is in session {current}, not {proposed}")]
    AnotherSession {
        /// The process.
        process: StartId,
        /// The session that was meant.
        proposed: SessionNumber,
        /// The current one.
        current: SessionNumber,
    },
    /// A report came by a session that is lost.
    #[error("session {session} of process {process} is lost")]
    SessionLost {
        /// The process.
        process: StartId,
        /// The session.
        session: SessionNumber,
    },
    /// A live session outweighs what Kubernetes says.
    #[error("process {0} has a live session")]
    SessionLive(StartId),
    /// The object belongs to another cluster's resync.
    #[error("it belongs to cluster {0}")]
    AnotherCluster(ClusterName),
    /// No such archive.
    #[error("there is no archive {0}")]
    UnknownArchive(ArchiveId),
    /// The archive has moved to another claim.
    #[error("archive {archive} is on a different claim than expected")]
    AnotherClaim {
        /// The archive.
        archive: ArchiveId,
    },
    /// A process is on the archive.
    #[error(
        "archive {archive} is in use by process {process} (`kaa process evict {process}` if its engine has ended for certain)"
    )]
    ArchiveInUse {
        /// The archive.
        archive: ArchiveId,
        /// The process.
        process: StartId,
    },
    /// Purge comes after removal.
    #[error("archive {0} is not removed")]
    NotRemoved(ArchiveId),
    /// An operator has paused the resync.
    #[error("the resync is paused by {by}: {why}")]
    Paused {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// The database still has an archive, be it removed.
    #[error("database {database} still has archive {archive}")]
    HasArchive {
        /// The database.
        database: DatabaseName,
        /// One of its archives.
        archive: ArchiveId,
    },
    /// The database still has a process.
    #[error("database {database} still has process {process}")]
    HasProcess {
        /// The database.
        database: DatabaseName,
        /// One of its processes.
        process: StartId,
    },
    /// Something in Kubernetes wants the database.
    #[error("{by} wants database {database}")]
    DatabaseWanted {
        /// The database.
        database: DatabaseName,
        /// What, as `kubectl` names it.
        by: String,
    },
    /// It is not known of another cluster that all engines of a database there are known.
    #[error("cluster {cluster} does not say that none of its workloads of database {database} is being rolled out")]
    Unsettled {
        /// The cluster.
        cluster: ClusterName,
        /// The database.
        database: DatabaseName,
    },
    /// A cluster is anchored by another Lease than the one meant.
    #[error(
        "cluster {cluster} is anchored by the lease with uid {known}, and not by the one with uid {anchor}: a cluster that is \
         rebuilt, or a second one of that name, joins under a name of its own (--cluster)"
    )]
    AnotherClusterAnchor {
        /// The cluster.
        cluster: ClusterName,
        /// The anchor that is known.
        known: Uid,
        /// The anchor that was meant.
        anchor: Uid,
    },
    /// The domain has servers, archives or processes of a cluster of that name.
    #[error("the domain has a cluster {0} already: give each cluster a name of its own (--cluster)")]
    ClusterTaken(ClusterName),
    /// No other cluster of that name takes part in the domain.
    #[error("no cluster {0} takes part in the domain")]
    UnknownCluster(ClusterName),
    /// The cluster that the domain was founded in cannot be forgotten.
    #[error("the domain was founded in cluster {0}: if it is lost, restore a snapshot into a new domain")]
    FoundingCluster(ClusterName),
    /// A server's name is one of the StatefulSet of another cluster.
    #[error(
        "server {server} has a name of StatefulSet {stateful_set}, which is that of the servers of cluster {cluster}: name the \
         StatefulSets of the clusters differently"
    )]
    ServerOfAnotherCluster {
        /// The server.
        server: ServerId,
        /// The StatefulSet.
        stateful_set: String,
        /// The other cluster.
        cluster: ClusterName,
    },
    /// The domain is anchored by another Lease than the one meant.
    #[error("the domain is anchored by the lease with uid {0}")]
    AnotherAnchor(Uid),
    /// A database keeps its last archive.
    #[error("archive {0} is the last of its database")]
    LastArchive(ArchiveId),
    /// No other active archive is proven to hold all that this one holds.
    #[error("archive {0} may hold data that no other active archive of its database has")]
    MayBeNewest(ArchiveId),
    /// The volume is a copy: the archive that its marker names is on another claim, which still exists.
    #[error(
        "the volume is a copy of archive {archive}, whose claim {claim} still exists: remove the marker \
         (.kaa-archive.json) from the copy, or delete that claim if the archive was moved"
    )]
    Copy {
        /// The archive.
        archive: ArchiveId,
        /// The name of its claim.
        claim: String,
    },
    /// A storage manager's pod mounts no claim for its archive.
    #[error("pod {0} mounts no PersistentVolumeClaim as volume `archive-volume`, and a storage manager needs one")]
    NoClaim(String),
    /// The volume's marker names another database's archive.
    #[error("the volume holds archive {0}, which is of another database")]
    AnotherDatabase(ArchiveId),
    /// The volume's marker names another domain.
    #[error("the volume belongs to domain {0}; remove its marker (.kaa-archive.json) to use it here")]
    ForeignVolume(DomainId),
    /// A transaction engine came before any storage manager.
    #[error("there is no database {0} yet: a storage manager has to register first")]
    NoDatabase(DatabaseName),
    /// The evidence does not prove what the command rests on.
    #[error("no fresh read proves that {0}")]
    Unproven(String),
    /// What rests on nothing but an operator's word needs an operator.
    #[error("only an operator may ask for this")]
    OnlyAnOperator,
    /// Something is there already.
    #[error("the domain is not empty, it has {0}: a snapshot can be restored only into a new, unused domain")]
    NotEmpty(String),
    /// The snapshot is of another format, or contradicts itself.
    #[error("the snapshot cannot be restored: {0}")]
    Unsound(String),
    /// There is no such task, or it ended long ago.
    #[error("there is no task {0}")]
    UnknownTask(TaskId),
    /// The task has ended.
    #[error("task {task} is {state}")]
    TaskEnded {
        /// The task.
        task: TaskId,
        /// How it ended.
        state: String,
    },
    /// The next step of the task is another one.
    #[error("task {task} is at step {next}, and the proposal is of another one (step {proposed})")]
    AnotherStep {
        /// The task.
        task: TaskId,
        /// The step that was meant.
        proposed: u32,
        /// The step that comes next.
        next: u32,
    },
    /// A task runs in the same scope.
    #[error("task {0} runs: wait for its end, or cancel it (`kaa task cancel {0} --reason WHY`)")]
    TaskRuns(TaskId),
    /// The protocol version of the database cannot be raised now.
    #[error("the protocol version of database {database} cannot be raised: {why}")]
    NotUpgradable {
        /// The database.
        database: DatabaseName,
        /// Why.
        why: NotReady,
    },
    /// What would be raised is not what was planned.
    #[error(
        "database {database} would be upgraded from protocol version {from} to {to} now, which is not what was planned"
    )]
    AnotherVersion {
        /// The database.
        database: DatabaseName,
        /// The version in effect now.
        from: ProtocolId,
        /// The greatest available version now.
        to: ProtocolId,
    },
    /// The version is not available.
    #[error("protocol version {version} is not available for database {database}")]
    NoSuchVersion {
        /// The database.
        database: DatabaseName,
        /// The version.
        version: ProtocolId,
    },
    /// An operator cancelled the same upgrade.
    #[error("an operator cancelled this upgrade of database {0}")]
    UpgradeDeclined(DatabaseName),
    /// The engine that would be restarted does not serve.
    #[error("process {0} is no transaction engine that is MONITORED:RUNNING")]
    EngineUnfit(StartId),
    /// No transaction engine has started since the upgrade.
    #[error("no transaction engine of database {0} that started after the upgrade runs yet")]
    NoEngineYet(DatabaseName),
    /// The value is another one.
    #[error("the value differs from the expected one")]
    AnotherValue(Option<String>),
    /// A database of the name is there.
    #[error("there is a database {0}")]
    DatabaseExists(DatabaseName),
    /// No database of the name is there, or it was deleted.
    #[error("there is no database {0}")]
    UnknownDatabase(DatabaseName),
    /// An operator has created the database, and no engine has registered for it: only an operator deletes it.
    #[error("an operator created database {0}, and no engine has registered for it yet")]
    DatabaseByHand(DatabaseName),
    /// The volume of the archive is known to be gone.
    #[error("archive {0} cannot be resurrected: its claim is gone")]
    ClaimGone(ArchiveId),
    /// The engines of the database have no roles, or it has none.
    #[error("database {0} is not one with a primary: no engine that Kaa assigns roles to has registered for it")]
    NotReplicated(DatabaseName),
    /// Engines without roles have run on its archives.
    #[error(
        "database {database} has run without roles, on archive {archive}: use another name, or adopt its data in a new domain"
    )]
    NotReplicatedBefore {
        /// The database.
        database: DatabaseName,
        /// One of its archives.
        archive: ArchiveId,
    },
    /// Nothing was granted yet.
    #[error(
        "database {0} has no primary yet: no archive of it holds data that counts (`kaa show database {0}` says what it waits for, \
         and what ends that)"
    )]
    NoPrimaryYet(DatabaseName),
    /// A primary was granted before.
    #[error("database {0} has data that counts already")]
    HasPrimary(DatabaseName),
    /// There may be data.
    #[error("archive {archive} of database {database} may hold data: nothing is initialized over it or in place of it")]
    HasData {
        /// The database.
        database: DatabaseName,
        /// The archive.
        archive: ArchiveId,
    },
    /// It is data of a server that ran without Kaa, of another domain, or an old state of it.
    #[error(
        "the data on archive {0} is none that the domain knows: it is not overwritten (`kaa database discard NAME --archive {0} \
         --reason WHY` gives it up)"
    )]
    DataNotAdopted(ArchiveId),
    /// There is nothing to adopt.
    #[error("no engine on archive {0} has reported data: it has to be registered and up")]
    NoDataToAdopt(ArchiveId),
    /// No engine on it can take part.
    #[error("archive {0} has no engine that is connected, has the database's data, and was not told to stop")]
    NotServing(ArchiveId),
    /// The record does not change.
    #[error(transparent)]
    Replication(#[from] Refused),
    /// The process does not have that generation.
    #[error("process {process} does not have generation {generation}, or has it no more")]
    NotThePrimary {
        /// The process.
        process: StartId,
        /// The generation.
        generation: Generation,
    },
    /// Nothing proves that the server of the primary has ended.
    #[error(
        "the primary of database {0} may still run: another one is granted once its end is known (`kaa switchover {0}` moves \
         a primary that runs)"
    )]
    PrimaryMayRun(DatabaseName),
    /// A server of the sync set is up.
    #[error(
        "archive {0} holds every acknowledged commit, and the wrapper of its server is connected: nothing has to be given up. If that \
         server cannot start, keep a copy of its volume, and keep its pod from running, before the loss is accepted"
    )]
    NothingToLose(ArchiveId),
    /// The record may be wrong.
    #[error("what is recorded of database {database} may be wrong: {why}")]
    Uncertain {
        /// The database.
        database: DatabaseName,
        /// Why.
        why: String,
    },
    /// Nothing shows yet that the new primary can use its data.
    #[error("the server of the primary of database {0} has not been promoted")]
    NotPromoted(DatabaseName),
    /// Clients are not let in yet.
    #[error("the primary of database {0} is not open")]
    NotOpen(DatabaseName),
    /// One at a time.
    #[error("a switchover of database {0} is under way")]
    SwitchoverUnderWay(DatabaseName),
    /// It is there already.
    #[error("archive {0} is the primary's")]
    IsThePrimary(ArchiveId),
    /// There is no other server.
    #[error("no standby of database {0} is up that could become the primary")]
    NoCandidate(DatabaseName),
    /// It holds every commit that counts, and others may not.
    #[error(
        "archive {0} is in the sync set of its database: it holds every commit that counts. Wait until it has left the set"
    )]
    StillCounts(ArchiveId),
}
