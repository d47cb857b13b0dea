//! An entry of the log: who asks for which change, and under which fence.

use super::change::Command;
use super::ids::{ClusterName, Millis, ResyncEpoch};
pub use super::outcome::{Outcome, Refusal, Registered};
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
    /// An agent's server id, or an operator's name.
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
    /// An operator, by way of the API; the name says how they were known: `loopback`, or `user NAME`. Logs name the role as it was
    /// called when they were written.
    #[serde(rename = "Person")]
    Operator,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Agent => "agent",
            Role::ResyncLeader => "resync leader",
            Role::RaftLeader => "raft leader",
            Role::Operator => return f.write_str(&self.name),
        };
        write!(f, "{role} {}", self.name)
    }
}

/// Binds a proposal to the resync leader that planned it. The default binds it to none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
