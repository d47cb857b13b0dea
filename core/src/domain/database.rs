//! A database and its incarnations.

use super::ids::{ClusterName, DatabaseName, Millis, NodeId, ResyncEpoch};
use super::protocol::EffectiveProtocol;
use super::replicated::Replicated;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A named database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// The label `database` of its Kubernetes objects.
    pub name: DatabaseName,
    /// Whether it runs.
    pub state: DatabaseState,
    /// Counts its cold starts and the exits since the last.
    pub incarnation: Incarnation,
    /// The node id that the next engine gets.
    pub next_node: NodeId,
    /// When it was created.
    pub created: Millis,
    /// The log entry since which all of its storage managers that run are stopping; `None` while one is not.
    #[serde(default)]
    pub stopping_since: Option<u64>,
    /// Its protocol version; `None` until a storage manager that reports its own has run.
    #[serde(default)]
    pub protocol: Option<EffectiveProtocol>,
    /// The options that an operator gave it: kept and shown, nothing is decided by them.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Set while an operator has created it and no engine has registered for it: the resync does not delete it.
    #[serde(default)]
    pub by_hand: bool,
    /// What the resync leader of each cluster found there, if several clusters share the domain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub judged: BTreeMap<ClusterName, Judged>,
    /// Set if it has one primary: its engines are given roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicated: Option<Box<Replicated>>,
}

impl Database {
    /// Marks it as deleted. No archive is left that holds its data, so one of this name starts with new data.
    pub(super) fn delete(&mut self) {
        self.state = DatabaseState::Tombstone;
        self.replicated = None;
    }
}

/// What the resync leader of a cluster found of a database there. It says so again when that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Whether anything there wants the database.
    pub wanted: bool,
    /// Whether no workload of it is being rolled out there, and every pod of it has a process that serves.
    pub settled: bool,
    /// Under which epoch the leader found that.
    pub epoch: ResyncEpoch,
}

/// Whether a database runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatabaseState {
    /// No storage manager has reported that it runs.
    NotRunning,
    /// At least one storage manager runs.
    Running,
    /// It was deleted. Its name may be used again; its node ids and incarnations continue then.
    Tombstone,
}

impl fmt::Display for DatabaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRunning => "NOT_RUNNING",
            Self::Running => "RUNNING",
            Self::Tombstone => "TOMBSTONE",
        })
    }
}

/// Which run of a database this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation {
    /// Rises by one with each start from `NOT_RUNNING`.
    pub major: u64,
    /// Rises by one with each exit of a process; 0 at a cold start.
    pub minor: u64,
}
