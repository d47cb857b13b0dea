//! `kaa archive remove|purge` and `kaa process evict`: the ways out where something waits for what never comes.

use super::api::Error;
use super::{Asking, Reason};
use clap::{Args, Subcommand};
use kaa_core::domain::ids::{ArchiveId, StartId};
use serde_json::Value;

/// `kaa archive`.
#[derive(Debug, Subcommand)]
pub(super) enum Archive {
    /// Removes an archive whose data is lost or obsolete: cold starts no longer wait for it. Its next registration resurrects
    /// it. Refused while a process uses it, and for the last archive of a database
    Remove(Change),
    /// Deletes the record of a removed archive for good. Refused while its claim exists: delete the claim, and the resync
    /// purges the archive
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
    /// Removes a process that is not known to have exited, for example after its node was lost. If its engine still runs and
    /// is reachable, it is told to stop
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
        let query = [("purge", purge), ("why", change.reason.why.as_str())];
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
