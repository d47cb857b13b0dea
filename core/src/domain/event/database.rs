//! What becomes of a database, and of a value.

use crate::domain::database::DatabaseState;
use crate::domain::ids::DatabaseName;
use crate::domain::protocol::Protocol;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum DatabaseEvent {
    /// It was created.
    Created {
        /// The database.
        database: DatabaseName,
        /// Whether one of the name was deleted before.
        again: bool,
    },
    /// It has another state.
    Changed {
        /// The state.
        state: DatabaseState,
    },
    /// It was deleted.
    Deleted {
        /// The database.
        database: DatabaseName,
    },
    /// It was deleted long ago, and was dropped to make room.
    Forgotten {
        /// The database.
        database: DatabaseName,
    },
    /// Its effective protocol version became known.
    ProtocolKnown {
        /// The version.
        protocol: Protocol,
    },
    /// Its effective protocol version was raised.
    ProtocolRaised {
        /// The version before.
        from: Protocol,
        /// The version since.
        to: Protocol,
    },
    /// An operator gave it options.
    Configured {
        /// The names of those that it has now.
        options: Vec<String>,
    },
    /// It was deleted, and an operator purged what was left of it.
    Purged {
        /// The database.
        database: DatabaseName,
    },
}

/// What became of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum ValueEvent {
    /// It was set.
    Set,
    /// It was deleted.
    Deleted,
}

impl DatabaseEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Created { database, again: _ }
            | Self::Deleted { database }
            | Self::Forgotten { database }
            | Self::Purged { database } => database.as_str().len(),
            Self::Configured { options } => options.iter().map(|option| 32 + option.len()).sum(),
            Self::Changed { state: _ } => 0,
            Self::ProtocolKnown { protocol } => protocol.name.len(),
            Self::ProtocolRaised { from, to } => from.name.len() + to.name.len(),
        }
    }
}

impl fmt::Display for DatabaseEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created { database, again: false } => write!(f, "database {database} created"),
            Self::Created { database, again: true } => write!(f, "database {database} recreated"),
            Self::Changed { state } => state.fmt(f),
            Self::ProtocolKnown { protocol } => write!(f, "its protocol version is {protocol}"),
            Self::ProtocolRaised { from, to } => write!(f, "its protocol version was raised from {from} to {to}"),
            Self::Deleted { database } => {
                write!(f, "database {database} deleted: no archive of it is left, and nothing wants it")
            }
            Self::Forgotten { database } => {
                write!(f, "database {database}, which was deleted, is forgotten to make room")
            }
            Self::Configured { options } if options.is_empty() => f.write_str("it has no options"),
            Self::Configured { options } => write!(f, "its options are {}", options.join(", ")),
            Self::Purged { database } => write!(f, "database {database}, which was deleted, is purged"),
        }
    }
}

impl fmt::Display for ValueEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Set => "set",
            Self::Deleted => "deleted",
        })
    }
}
