//! The shell of Kaa: it performs what `kaa_core` decides.

pub mod clock;
pub mod net;
pub mod raft;

/// Generated from the files in `proto/`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    /// What an engine's wrapper and an agent say to each other.
    pub mod engine {
        tonic::include_proto!("kaa.engine.v1");
    }
    /// What agents say to each other.
    pub mod raft {
        tonic::include_proto!("kaa.raft.v1");
    }
}
