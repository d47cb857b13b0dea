//! Why Raft did not do what it was asked. Each says whether it may have happened all the same.

use super::types::Node;
use super::wire;
use kaa_core::domain::ids::ServerId;
use kaa_core::domain::version::TooNew;

/// Why a proposal has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// Certainly not proposed: no leader was found in time.
    #[error("there is no leader")]
    NoLeader,
    /// It may have happened, or happen later.
    #[error("it is not known whether this has happened: {why}")]
    Unknown {
        /// How that came.
        why: String,
    },
    /// Certainly not proposed: it is too large.
    #[error("a proposal of {bytes} bytes is too large")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// Certainly not proposed: the leader's volume is nearly full.
    #[error("{server} leads, and {why}")]
    NoRoom {
        /// Whose volume.
        server: ServerId,
        /// How full.
        why: String,
    },
    /// Certainly not proposed: a member would not understand it.
    #[error(transparent)]
    TooNew(#[from] TooNew),
    /// It cannot be encoded.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// Raft has stopped.
    #[error("raft has stopped: {0}")]
    Fatal(String),
}

/// Why a linearizable read is not possible.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No leader was found in time.
    #[error("there is no leader")]
    NoLeader,
    /// The leader has no quorum.
    #[error("there is no quorum: {0}")]
    NoQuorum(String),
    /// The leader's state did not arrive here in time.
    #[error("entry {0} has not been applied here in time")]
    Behind(u64),
    /// Raft has stopped.
    #[error("raft has stopped: {0}")]
    Fatal(String),
}

/// Why the membership was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Another agent leads.
    #[error("another server leads")]
    NotLeader {
        /// The leader, if it is known.
        leader: Option<Node>,
    },
    /// Raft does not allow it now.
    #[error("the membership cannot be changed now: {0}")]
    Refused(String),
    /// It was not done in time; it may still be.
    #[error("the change of the membership was not done within {} s", super::handle::CHANGE_TIMEOUT.as_secs())]
    Timeout,
    /// Raft has stopped.
    #[error("raft has stopped: {0}")]
    Fatal(String),
}

impl ChangeError {
    /// Where the leader can be reached, if it is known.
    pub fn leader_address(&self) -> Option<&str> {
        match self {
            Self::NotLeader { leader } => leader.as_ref().map(|leader| leader.address.as_str()),
            Self::Refused(_) | Self::Timeout | Self::Fatal(_) => None,
        }
    }
}
