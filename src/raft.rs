//! Consensus.

pub mod backend;
pub mod snapshot;
pub mod state_machine;
pub mod store;
pub mod types;
pub mod volume;
pub mod wire;
