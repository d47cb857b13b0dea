//! Sets of logs, and which of them decide: a majority of every half, or a member of every such majority.

use crate::domain::ids::RaftId;
use std::collections::BTreeSet;

/// A set of logs: ids in an agent, a bit mask where all states of the protocol are explored.
pub trait Logs: Clone + PartialEq {
    /// How many there are.
    fn count(&self) -> usize;
    /// Those that are in both.
    fn common(&self, other: &Self) -> Self;
    /// Those that are in either.
    fn union(&self, other: &Self) -> Self;
}

impl Logs for BTreeSet<RaftId> {
    fn count(&self) -> usize {
        self.len()
    }

    fn common(&self, other: &Self) -> Self {
        self & other
    }

    fn union(&self, other: &Self) -> Self {
        self | other
    }
}

/// How many of a half decide for it.
pub fn majority(half: &impl Logs) -> usize {
    majority_of(half.count())
}

/// How many of so many decide for them.
pub fn majority_of(voters: usize) -> usize {
    voters / 2 + 1
}

/// Whether these logs can commit and elect by themselves: they are a majority of each half. Without halves, none can.
pub fn commit<L: Logs>(halves: &[L], logs: &L) -> bool {
    !halves.is_empty() && halves.iter().all(|half| half.common(logs).count() >= majority(half))
}

/// Whether no set of servers can commit or elect without one of these logs: every majority of each half has a member in them.
///
/// Each half by itself, not the two together: a membership that follows may need the majority of one half only.
pub fn block<L: Logs>(halves: &[L], logs: &L) -> bool {
    !halves.is_empty() && halves.iter().all(|half| half.count() - half.common(logs).count() < majority(half))
}
