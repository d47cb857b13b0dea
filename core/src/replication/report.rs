//! What the wrapper of a server says of it: a level, said again whenever it changes. Nothing of it is kept but what changes the record.

use super::InForce;
use crate::domain::ids::{ArchiveId, Generation, Permission, StartId};
use crate::domain::process::Handicap;
use crate::domain::replicated::{Begins, Data, Ended, Position};

/// What a wrapper says of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What is on the volume.
    pub data: Data,
    /// The last start that the volume remembered when the wrapper came up; 0 if none.
    pub start_before: StartId,
    /// The start that it remembers now.
    pub start: StartId,
    /// What the server does.
    pub stand: Stand,
    /// Where the logs before the one of its generation begin, if its server was promoted.
    pub ancestors: Vec<Begins>,
    /// The rule that is in force at a primary.
    pub in_force: Option<InForce>,
    /// The last generation in which its server was the primary and has ended, and how.
    pub ended: Option<(Generation, Ended)>,
    /// Set if its data cannot follow the primary of this generation: why.
    pub needs_overwrite: Option<(Generation, String)>,
    /// The last permission to overwrite its data of which it makes no more use.
    pub returned: Permission,
    /// The standbys that a primary sees.
    pub standbys: Vec<Standby>,
    /// The end of its log: written by a primary, replayed at a standby.
    pub end: Position,
    /// The current generation, if its server has not heard the primary for a while.
    pub unheard: Option<Generation>,
    /// What speaks against it as the next primary.
    pub handicap: Handicap,
    /// Whether it keeps the lease that it is assigned.
    pub keeps_lease: bool,
    /// Why the server does not do what it was assigned, if it does not.
    pub trouble: Option<String>,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It does not run.
    Down,
    /// It runs as a standby that follows no server.
    Fenced,
    /// It follows the primary of a generation.
    Follows(Generation),
    /// It was promoted, and lets no client in yet.
    Promoted(Begins),
    /// It lets clients in.
    Open(Begins),
}

/// A standby, as its primary sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standby {
    /// Its archive.
    pub archive: ArchiveId,
    /// Whether it streams, up to the end or nearly.
    pub streams: bool,
    /// How far it has flushed the primary's log.
    pub flushed: Position,
    /// For how long the primary has not heard of it, in milliseconds. It may seem to stream meanwhile.
    pub silent_ms: u64,
    /// Whether it has streamed without an interruption for a while.
    pub is_steady: bool,
}

impl Report {
    /// Where the log of its generation begins, if its server was promoted.
    pub fn begins(&self) -> Option<Begins> {
        match self.stand {
            Stand::Promoted(begins) | Stand::Open(begins) => Some(begins),
            Stand::Down | Stand::Fenced | Stand::Follows(_) => None,
        }
    }

    /// What a primary sees of a standby.
    pub fn standby(&self, archive: ArchiveId) -> Option<&Standby> {
        self.standbys.iter().find(|standby| standby.archive == archive)
    }
}
