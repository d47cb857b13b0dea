//! The shell of Kaa: it performs what `kaa_core` decides.

pub mod agent;
pub mod auth;
pub mod certificates;
pub mod cli;
pub mod clock;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod failpoints;
pub mod http;
pub mod install;
pub mod kubernetes;
pub mod metrics;
pub mod net;
mod pace;
pub mod raft;
pub mod stand_in;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Generated from the .proto files.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    /// What an engine's wrapper and an agent say to each other.
    pub use kaa_engine::proto as engine;
    /// What agents say to each other.
    pub mod raft {
        tonic::include_proto!("kaa.raft.v1");
    }
}
