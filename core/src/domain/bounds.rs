//! How much the domain holds at most. What it holds is in the memory of every agent, in the log and in every snapshot, so whatever
//! anybody can put into it has a bound here.

/// The bounds. They are the same at every server, and no part of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many tombstones are kept beside the latest of each archive that there is.
    pub tombstones: usize,
    /// How many records the audit trail has.
    pub records: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { tombstones: 1000, records: 4096 }
    }
}
