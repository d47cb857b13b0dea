//! Logs and sets of them, as small as they can be: a state of the model is copied and hashed millions of times.

use kaa_core::membership::logs::Logs;
use kaa_core::membership::quorum_override::Position;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The maximum number of entries of a log.
pub const MOST_ENTRIES: usize = 18;
/// The maximum number of log ids in one run. The ids are 1, 2 and so on.
pub const MOST_IDS: usize = 12;

/// A set of logs, by their log ids: bit `id - 1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ids(u16);

impl Ids {
    /// Every possible log.
    pub const ALL: Self = Self((1 << MOST_IDS) - 1);

    /// Only the log with this id.
    pub fn of(id: u8) -> Self {
        Self(1 << (id - 1))
    }

    pub fn contains(self, id: u8) -> bool {
        self.0 & Self::of(id).0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<u8> for Ids {
    fn from_iter<I: IntoIterator<Item = u8>>(ids: I) -> Self {
        Self(ids.into_iter().fold(0, |all, id| all | Self::of(id).0))
    }
}

impl Logs for Ids {
    fn count(&self) -> usize {
        self.0.count_ones() as usize
    }

    fn common(&self, other: &Self) -> Self {
        Self(self.0 & other.0)
    }

    fn union(&self, other: &Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = (1..=MOST_IDS as u8).filter(|id| self.contains(*id)).map(|id| id.to_string());
        write!(f, "{{{}}}", ids.collect::<Vec<_>>().join(","))
    }
}

/// An entry: a blank or a client's (no voter set), a membership (one), or a joint membership (two).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Entry {
    /// With the epoch in the high four bits.
    pub term: u8,
    halves: [Ids; 2],
}

impl Entry {
    pub fn blank(term: u8) -> Self {
        Self { term, ..Self::default() }
    }

    pub fn voters(term: u8, voters: Ids) -> Self {
        Self { term, halves: [voters, Ids::default()] }
    }

    pub fn joint(term: u8, from: Ids, to: Ids) -> Self {
        Self { term, halves: [from, to] }
    }

    /// The voter sets: none, one, or two during a membership change.
    pub fn halves(&self) -> &[Ids] {
        let count = self.halves.iter().filter(|half| !half.is_empty()).count();
        &self.halves[..count]
    }

    /// Every log that votes in any voter set.
    pub fn all_voters(&self) -> Ids {
        self.halves[0].union(&self.halves[1])
    }

    pub fn is_joint(&self) -> bool {
        !self.halves[1].is_empty()
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term >> 4, self.term & 15)?;
        let halves: Vec<String> = self.halves().iter().map(Ids::to_string).collect();
        f.write_str(&halves.join("+"))
    }
}

/// A Raft log without its clients' data. Past its end it holds default entries, so that equal logs are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Log {
    len: u8,
    entries: [Entry; MOST_ENTRIES],
}

impl Hash for Log {
    /// Hashes only the entries of the log: hashing takes much of the time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.all().hash(state);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl Log {
    pub fn all(&self) -> &[Entry] {
        &self.entries[..self.len as usize]
    }

    /// The entries up to this index, which is counted from 1.
    pub fn up_to(&self, index: u8) -> &[Entry] {
        &self.entries[..index as usize]
    }

    pub fn len(&self) -> u8 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this number of entries can be appended.
    pub fn has_room_for(&self, more: u8) -> bool {
        usize::from(self.len + more) <= MOST_ENTRIES
    }

    pub fn push(&mut self, entry: Entry) {
        self.entries[self.len as usize] = entry;
        self.len += 1;
    }

    pub fn truncate(&mut self, len: u8) {
        self.entries[len as usize..].fill(Entry::default());
        self.len = self.len.min(len);
    }

    /// The position of the last entry, which Raft compares before it votes.
    pub fn last(&self) -> Position {
        let term = self.all().last().map_or(0, |entry| entry.term.into());
        Position { term, index: self.len.into() }
    }

    /// How many entries at the beginning are equal in both logs.
    pub fn shared(&self, other: &Log) -> u8 {
        self.all().iter().zip(other.all()).take_while(|(mine, theirs)| mine == theirs).count() as u8
    }

    /// The last membership and its index. It takes effect when it is appended.
    pub fn membership(&self) -> Option<(u8, Entry)> {
        let at = self.all().iter().rposition(|entry| !entry.halves().is_empty())?;
        Some((at as u8 + 1, self.entries[at]))
    }
}
