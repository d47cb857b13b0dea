//! The one encoding of log entries, snapshots and messages: MessagePack with field names behind a format version.
//!
//! With names, a reader finds its way through what an older agent wrote. What a newer one wrote and this one does not
//! know is an error with a sentence, never a guess: two servers that apply an entry differently have diverged.

use super::types::{Node, SnapshotMeta, Vote};
use kaa_core::domain::command::Outcome;
use kaa_core::domain::ids::ServerId;
use kaa_core::domain::version::TooNew;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// The format that this agent writes, and the newest that it reads.
pub const VERSION: u8 = 1;

/// Something that cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is not even a version.
    #[error("{what} is empty")]
    Empty {
        /// What was read.
        what: String,
    },
    /// The format is of the future.
    #[error(
        "{what} was written by a newer agent: its format is {found}, and this agent knows formats \
             up to {VERSION}. Run the newer version here too; nothing was changed"
    )]
    NewerFormat {
        /// What was read.
        what: String,
        /// Its format.
        found: u8,
    },
    /// It is whole, but holds something that this agent does not know, for instance a command.
    #[error(
        "{what} was written by a newer agent: it holds something that this agent does not know. Run \
             the newer version here too; nothing was changed"
    )]
    NotUnderstood {
        /// What was read.
        what: String,
        /// What is not known.
        source: rmp_serde::decode::Error,
    },
    /// It is not whole.
    #[error("{what} is damaged")]
    Damaged {
        /// What was read.
        what: String,
        /// Where it breaks off.
        source: rmp_serde::decode::Error,
    },
    /// It cannot be encoded.
    #[error("cannot encode a message")]
    Encode(#[from] rmp_serde::encode::Error),
}

impl Error {
    /// Whether a newer agent would understand it.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::NewerFormat { .. } | Self::NotUnderstood { .. })
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Encodes a value.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![VERSION];
    rmp_serde::encode::write_named(&mut bytes, value)?;
    Ok(bytes)
}

/// Decodes a value; `what` names it should that fail.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: impl Display) -> Result<T, Error> {
    let Some((&version, body)) = bytes.split_first() else {
        return Err(Error::Empty { what: what.to_string() });
    };
    if version != VERSION {
        return Err(Error::NewerFormat { what: what.to_string(), found: version });
    }
    rmp_serde::from_slice(body).map_err(|source| {
        let what = what.to_string();
        // The encoding describes itself, so that one can tell a whole value that is not understood from a broken one.
        match rmp_serde::from_slice::<IgnoredAny>(body) {
            Ok(_) => Error::NotUnderstood { what, source },
            Err(_) => Error::Damaged { what, source },
        }
    })
}

/// What precedes the bytes of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SnapshotHead {
    pub(super) vote: Vote,
    pub(super) meta: SnapshotMeta,
    pub(super) bytes: u64,
    pub(super) checksum: String,
}

/// Who leads, as the one who was asked knows it.
pub(super) type Leader = Option<(u64, Node)>;

/// The answer to a proposal that was handed on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ProposeReply {
    /// Applied at this index.
    Applied { index: u64, outcome: Outcome },
    /// Certainly not proposed.
    NotLeader { leader: Leader },
    /// Perhaps proposed, and perhaps applied in the future.
    Unknown { why: String },
    /// Certainly not proposed: too large.
    TooLarge { bytes: u64 },
    /// Certainly not proposed: the leader's volume is nearly full.
    NoRoom { server: ServerId, why: String },
    /// Certainly not proposed: a member would not understand it.
    TooNew(TooNew),
}

/// The answer to the question how far one must have applied for a read to be linearizable.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ReadReply {
    /// So far.
    Index(u64),
    /// Ask another.
    NotLeader { leader: Leader },
    /// The leader has no quorum.
    NoQuorum { why: String },
}
