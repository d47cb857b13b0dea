//! What openraft is instantiated with. Nothing outside `raft` names openraft's types.

use super::runtime::Runtime;
use kaa_core::domain::command::{Outcome, Request};
use kaa_core::domain::ids::Millis;
use serde::{Deserialize, Serialize};
use std::fmt;

openraft::declare_raft_types!(
    /// The types of our Raft. Terms carry the membership epoch in their high 32 bits.
    pub TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = u64,
        Node = Node,
        AsyncRuntime = Runtime,
);

/// What the log holds: a request, and when it was proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// By the proposer's clock, or later: as [`super::handle::Handle::now`] has it.
    pub time: Millis,
    /// What is asked.
    pub request: Request,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proposal of {}", self.request.actor)
    }
}

/// What an applied entry answers; `None` for those that are Raft's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied(pub Option<Outcome>);

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Whose log it is that a raft id names, and where to find it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The server's id.
    pub server: String,
    /// `host:port` of its agent-to-agent port.
    pub address: String,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.server, self.address)
    }
}

pub(super) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(super) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(super) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(super) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
pub(super) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(super) type Snapshot = openraft::alias::SnapshotOf<TypeConfig, super::snapshot::SnapshotData>;
pub(super) type Append = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(super) type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub(super) type Transfer = openraft::raft::TransferLeaderRequest<TypeConfig>;
pub(super) type Raft = openraft::Raft<TypeConfig, super::state_machine::StateMachine>;

/// How many low bits of a term count elections; the others are the membership epoch.
const EPOCH_SHIFT: u32 = 32;

/// The first term of an epoch.
pub(super) fn first_term(epoch: u64) -> u64 {
    epoch << EPOCH_SHIFT
}

/// A term without its epoch.
pub(super) fn bare_term(term: u64) -> u64 {
    term & ((1 << EPOCH_SHIFT) - 1)
}
