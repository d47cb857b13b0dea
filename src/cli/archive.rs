//! `kaa archive remove|purge` and `kaa process evict`: the ways out where something waits for what never comes.

use super::api::Error;
use super::{Asking, Reason};
use clap::{Args, Subcommand};
use kaa_core::domain::ids::{ArchiveId, StartId};
use serde_json::Value;

/// `kaa archive`.
#[derive(Debug, Subcommand)]
pub(super) enum Archive {
    /// Removes an archive whose data is lost, or older than that of another: no cold start waits for it any more. Its next
    /// registration brings it back. Refused while a process is on it, and for the last archive of a database
    Remove(Change),
    /// Forgets a removed archive for ever. Refused while its claim exists: delete the claim, and the resync purges it
    Purge(Change),
}

/// Which archive, and why.
#[derive(Debug, Args)]
pub(super) struct Change {
    /// Its id
    archive: ArchiveId,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

/// `kaa process`.
#[derive(Debug, Subcommand)]
pub(super) enum Process {
    /// Takes a process out of the domain before it is known to have ended, such as one whose node is lost. If it still runs
    /// and can be reached, it is told to end
    Evict(Evict),
}

/// Which process.
#[derive(Debug, Args)]
pub(super) struct Evict {
    /// Its start id
    process: StartId,
    #[command(flatten)]
    asking: Asking,
}

impl Archive {
    /// How the command is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Remove(_) => "archive remove",
            Self::Purge(_) => "archive purge",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        let (change, purge, done) = match self {
            Self::Remove(change) => (change, "false", "removed"),
            Self::Purge(change) => (change, "true", "purged"),
        };
        let id = change.archive.to_string();
        let api = change.asking.api()?;
        let query = [("purge", purge), ("why", change.reason.because.as_str())];
        let answer: Value = api.delete(&["archives", &id], &query).await?;
        Ok(change.asking.agent.print(&answer, |_| format!("Archive {id} is {done}.\n")))
    }
}

impl Process {
    /// How the command is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Evict(_) => "process evict",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        let Self::Evict(evict) = self;
        let id = evict.process.to_string();
        let api = evict.asking.api()?;
        let answer: Value = api.delete(&["processes", &id], &[("evict", "true")]).await?;
        Ok(evict.asking.agent.print(&answer, |_| format!("Process {id} is evicted.\n")))
    }
}
