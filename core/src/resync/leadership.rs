//! Lease arithmetic: who leads the resync, by what was seen of the Lease and a local monotonic clock.
