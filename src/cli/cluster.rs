//! `kaa cluster remove`: the way out where another cluster of the domain is lost for good.

use super::api::Error;
use super::{Asking, Reason};
use clap::{Args, Subcommand};
use serde_json::Value;

/// `kaa cluster`.
#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Removes all that the domain knows of a cluster that is lost for good: its servers and their votes, its processes, and the
    /// records of its archives. No volume is deleted. Refused while an engine of it has a session, and for the cluster that the
    /// domain was founded in. The cluster may join again
    Remove(Remove),
}

/// Which cluster, and why.
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Its name
    cluster: String,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

impl Cluster {
    /// How the command is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Remove(_) => "cluster remove",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        let Self::Remove(remove) = self;
        let api = remove.asking.api()?;
        let why = [("why", remove.reason.why.as_str())];
        let answer: Value = api.delete(&["kaa", "clusters", &remove.cluster], &why).await?;
        Ok(remove.asking.agent.print(&answer, |_| format!("Cluster {} is removed.\n", remove.cluster)))
    }
}
