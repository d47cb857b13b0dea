//! What becomes of an admin server.

use crate::domain::ids::{RaftId, ServerId};
use crate::domain::server::raft_log_claim;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum ServerEvent {
    /// It joined.
    Joined {
        /// Its log.
        log: RaftId,
    },
    /// It came back with another log.
    LogReplaced {
        /// Its log.
        log: RaftId,
        /// The one before.
        before: RaftId,
    },
    /// It said something new of itself.
    Described {
        /// Its address.
        address: String,
        /// Its version.
        version: String,
    },
    /// It was removed for good.
    Removed {
        /// Its id.
        server: ServerId,
    },
}

impl ServerEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Joined { log: _ } | Self::LogReplaced { log: _, before: _ } => 0,
            Self::Described { address, version } => address.len() + version.len(),
            Self::Removed { server } => server.as_str().len(),
        }
    }
}

impl fmt::Display for ServerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { log } => write!(f, "joined with log {log}"),
            Self::LogReplaced { log, before } => write!(f, "joined again with another log ({log} instead of {before})"),
            Self::Described { address, version } => write!(f, "reports address {address} and version {version}"),
            Self::Removed { server } => {
                let claim = raft_log_claim(server);
                write!(f, "server {server} removed: its claim {claim} was deleted")
            }
        }
    }
}
