//! A process: one start of an engine, its session with an agent, and what is left of it when it has exited.

use super::archive::Marker;
use super::database::Incarnation;
use super::ids::{
    ArchiveId, ClusterName, ContainerId, DatabaseName, Millis, NodeId, ProtocolId, ServerId, SessionNumber, StartId,
    Uid,
};
use super::is_default;
use super::replicated::Data;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One running engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Names this start.
    pub id: StartId,
    /// Names the engine within its database.
    pub node: NodeId,
    /// The database it serves.
    pub database: DatabaseName,
    /// Storage manager or transaction engine.
    pub kind: EngineKind,
    /// The archive of a storage manager.
    pub archive: Option<ArchiveId>,
    /// Where its pod lives.
    pub cluster: ClusterName,
    /// Which container it is.
    pub identity: Identity,
    /// The container's id, once learned: until then nothing is judged by it.
    pub container_id: Option<ContainerId>,
    /// Its connection with an agent.
    pub session: Session,
    /// How far the domain has taken it.
    pub durable: DurableState,
    /// What the engine last said of itself.
    pub engine: EngineState,
    /// What it told of itself when it registered.
    pub about: About,
    /// When it registered.
    pub registered: Millis,
    /// The log entry with which it registered.
    #[serde(default)]
    pub entry: u64,
    /// How an operator asked it to end, if one did.
    #[serde(default)]
    pub stop: Option<Stop>,
    /// The log entry with which the domain let a storage manager's engine start; `None` while it holds it.
    #[serde(default)]
    pub started: Option<u64>,
    /// How new a storage manager said that its data is, while its engine was not let start since.
    #[serde(default)]
    pub history: Option<u64>,
    /// Set while no agent has read which claim its pod mounts: the known claim of its archive may be another one.
    #[serde(default)]
    pub claim_unread: bool,
    /// The log entry with which its session was lost, or taken up again; `None` once its engine has been seen to run after
    /// that.
    #[serde(default)]
    pub interrupted: Option<u64>,
    /// What is on its volume, if its database has one primary and it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// What speaks against its server as the next primary, by its wrapper's word.
    #[serde(default, skip_serializing_if = "is_default")]
    pub handicap: Handicap,
}

/// What speaks against a server as the next primary. The greater one is worse. It is a preference: the database is never left without a
/// primary for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handicap {
    /// Its volume has too little room for a primary, which would end soon.
    pub short_of_room: bool,
    /// It has received much log that it has not replayed: it could not open before.
    pub replays_late: bool,
}

impl fmt::Display for Handicap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self { short_of_room: false, replays_late: false } => "nothing",
            Self { short_of_room: true, replays_late: false } => "too little room on its volume",
            Self { short_of_room: false, replays_late: true } => "much log that it has yet to replay",
            Self { short_of_room: true, replays_late: true } => {
                "too little room on its volume, and much log that it has yet to replay"
            }
        })
    }
}

/// The labels that tie a process to Kubernetes: names and values, in the order of the names.
pub type Ties<'a> = [(&'static str, Option<&'a str>); 4];

impl Process {
    /// The labels that tie it to Kubernetes; `claim` is the name of its archive's claim. They win over labels of its own.
    pub fn ties<'a>(&'a self, claim: Option<&'a str>) -> Ties<'a> {
        [
            ("archive-pvc", claim),
            ("container-id", self.container_id.as_ref().map(|id| id.as_str())),
            ("pod-name", Some(&self.identity.pod)),
            ("pod-uid", Some(self.identity.pod_uid.as_str())),
        ]
    }

    /// Its zone: by the label of its pod, else by the label `zone` that its wrapper was given.
    pub fn zone(&self) -> Option<&str> {
        let labelled = || self.about.labels.get(ZONE).map(String::as_str);
        self.about.zone.as_deref().or_else(labelled).filter(|zone| !zone.is_empty())
    }

    /// Whether its engine may have written to its archive.
    pub fn may_have_run(&self) -> bool {
        self.started.is_some() || self.durable != DurableState::Requested
    }
}

/// How a process is asked to end; the later one is the harder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stop {
    /// In the time that its wrapper gives it.
    Gracefully,
    /// At once.
    Kill,
}

/// What an engine does in its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EngineKind {
    /// A storage manager: has an archive.
    #[serde(rename = "SM")]
    Sm,
    /// A transaction engine: has none.
    #[serde(rename = "TE")]
    Te,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sm => "SM",
            Self::Te => "TE",
        })
    }
}

/// Which start of which container a process is. Two registrations with the same identity are the same process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub pod_uid: Uid,
    /// The container's name in the pod.
    pub container: String,
    /// Random, recreated by each start of the wrapper.
    pub nonce: u64,
    /// When the wrapper started, by its node's clock.
    pub started: Millis,
}

/// The label with the zone of an engine, where its pod has none.
const ZONE: &str = "zone";

/// What an engine tells of itself, and what its agent reads of its pod. Upgrades judge by its version and its protocol versions, load
/// balancing by the labels; servers with roles follow its address, and the zone decides between those that are equal otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The pod's address.
    pub address: String,
    /// The host's name.
    pub hostname: String,
    /// The port that the engine serves.
    pub port: u16,
    /// The engine's process id in its container; 0 until it is started.
    pub pid: u32,
    /// The engine's version.
    pub version: String,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// The protocol versions that the engine supports, with their names; empty if it reports none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub protocols: BTreeMap<ProtocolId, String>,
    /// The zone of its pod's node, by a label of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// The connection of a process with one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The agent.
    pub server: ServerId,
    /// Grows with every connection; each report about a session names it.
    pub number: SessionNumber,
    /// Random, made by the wrapper for each connection: tells a repeated registration from a new one.
    pub connection: u64,
    /// Whether it is up.
    pub state: SessionState,
}

impl Session {
    /// Whether the session of a number is over: lost, or followed by a later one. One that the domain has yet to hear
    /// of is not.
    pub fn is_over(&self, number: SessionNumber) -> bool {
        number < self.number || number == self.number && self.state != SessionState::Live
    }
}

/// Whether a session is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionState {
    /// Up; outweighs anything that Kubernetes says.
    Live,
    /// Down since that moment.
    Lost(Millis),
}

/// How far the domain has taken a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DurableState {
    /// Registered.
    Requested,
    /// Has reported that it runs.
    Monitored,
    /// Was told to stop.
    RequestedShutdown,
}

impl fmt::Display for DurableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "REQUESTED",
            Self::Monitored => "MONITORED",
            Self::RequestedShutdown => "REQUESTED_SHUTDOWN",
        })
    }
}

/// What an engine says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineState {
    /// Has not said.
    Unknown,
    /// A storage manager that catches up with the others.
    Syncing,
    /// Serves.
    Running,
    /// Stops.
    ShuttingDown,
}

impl fmt::Display for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "UNKNOWN",
            Self::Syncing => "SYNCING",
            Self::Running => "RUNNING",
            Self::ShuttingDown => "SHUTTING_DOWN",
        })
    }
}

/// What is left of an exited process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The process as it last was.
    pub process: Process,
    /// The database's incarnation that it exited in.
    pub incarnation: Incarnation,
    /// When the domain took note of the exit.
    pub at: Millis,
    /// Why it is gone.
    pub reason: ExitReason,
    /// The engine's exit code, if it is known: 128 + n if signal n ended it.
    pub exit_code: Option<i32>,
}

/// Why a process is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// Its wrapper reported that it stopped after it was told to.
    Graceful,
    /// Its wrapper reported that it ended by itself.
    Exited(String),
    /// Its pod is gone.
    PodGone,
    /// Its container has ended and its wrapper reported nothing.
    ContainerEnded,
    /// Another container took its place in the same pod.
    ContainerReplaced,
    /// The same container name of the same pod registered a later start.
    Restarted(StartId),
    /// It ended because an operator asked for it to be killed.
    Killed,
    /// An operator took it out of the domain.
    Evicted,
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Graceful => f.write_str("Gracefully shutdown engine"),
            Self::Exited(why) => f.write_str(why),
            Self::PodGone => f.write_str("Pod was deleted"),
            Self::ContainerEnded => f.write_str("Container ended without a report"),
            Self::ContainerReplaced => f.write_str("Container was replaced"),
            Self::Restarted(by) => write!(f, "Container restarted as start id {by}"),
            Self::Killed => f.write_str("Killed on request"),
            Self::Evicted => f.write_str("Evicted on request"),
        }
    }
}

/// What an engine says to be known: made by the agent it reached, from the engine's words and what Kubernetes proves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The database it serves.
    pub database: DatabaseName,
    /// Storage manager or transaction engine.
    pub kind: EngineKind,
    /// Where the pod lives.
    pub cluster: ClusterName,
    /// Which start of which container it is.
    pub identity: Identity,
    /// The start id it was given before, if it reconnects.
    pub known_as: Option<StartId>,
    /// A storage manager's claim, read by the agent; `None` if it may not or could not read it.
    pub claim: Option<super::archive::Claim>,
    /// What the volume says of itself.
    pub marker: Option<Marker>,
    /// Where a storage manager's archive is, in its own file system; empty for others.
    pub path: String,
    /// The agent that the engine reached.
    pub server: ServerId,
    /// Random, made for each connection.
    pub connection: u64,
    /// What it tells of itself.
    pub about: About,
    /// What the agent read of its pod; `None` if it may not or could not read it.
    pub evidence: Option<super::evidence::Evidence>,
    /// The log entry that the agent had applied before it read: what the domain has learned since is newer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::{Millis, Session, SessionNumber, SessionState};

    #[test]
    fn a_session_is_over_once_it_is_lost_or_another_has_followed() {
        let session = |state| Session { server: "admin-0".into(), number: SessionNumber(2), connection: 7, state };
        let over = |session: Session| [1, 2, 3].map(|number| session.is_over(SessionNumber(number)));
        assert_eq!(over(session(SessionState::Live)), [true, false, false]);
        assert_eq!(over(session(SessionState::Lost(Millis(5)))), [true, true, false]);
    }
}
