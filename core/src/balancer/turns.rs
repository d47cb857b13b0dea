//! Whose turn it is: the counters behind `round_robin`.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many sets take turns without another set's between theirs, if their keys spread well. 32 KiB.
const COUNTERS: usize = 4096;

/// Counts the turns of each set of suitable processes. Shared by all callers; none of them waits.
///
/// A counter for each query would not be fair: clients of two zones who come by turns, with one query and one counter,
/// would each get every second turn of it, and so always the same process of two. A set belongs to one counter by its
/// key, so that clients who send ever other queries cost no memory.
#[derive(Debug)]
pub struct Turns(Vec<AtomicU64>);

impl Default for Turns {
    fn default() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Turns {
    /// Takes the next turn of a set. No two callers get the same one, so that any N callers get N turns in a row.
    pub fn take(&self, set: u64) -> u64 {
        self.counter(set).fetch_add(1, Ordering::Relaxed)
    }

    /// The turn that the next caller gets.
    pub fn next(&self, set: u64) -> u64 {
        self.counter(set).load(Ordering::Relaxed)
    }

    fn counter(&self, set: u64) -> &AtomicU64 {
        &self.0[(set % COUNTERS as u64) as usize]
    }
}
