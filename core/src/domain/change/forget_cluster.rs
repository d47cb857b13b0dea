//! An operator says that a cluster is lost for good. No agent of another cluster can prove anything about it: without this its servers
//! would keep their votes, and its databases would never be deleted.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::{ArchiveEvent, DomainEvent};
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ArchiveId, ClusterName, ServerId, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::{ExitReason, SessionState};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Drops a lost cluster: its servers, and with them their votes, its processes, and the records of its archives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetCluster {
    /// The cluster.
    pub cluster: ClusterName,
    /// Why, in the operator's words.
    pub why: String,
}

impl Change for ForgetCluster {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { cluster, why } = self;
        bounds.name("a cluster", cluster)?;
        fits("why", why, bounds.text)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { cluster, why } = self;
        only_an_operator(actor)?;
        if domain.founded_in.as_ref() == Some(&cluster) {
            return Err(Refusal::FoundingCluster(cluster));
        }
        let has_part = domain.anchors.contains_key(&cluster) || domain.clusters().any(|known| *known == cluster);
        if domain.founded_in.is_none() || !has_part {
            return Err(Refusal::UnknownCluster(cluster));
        }
        let of_it = || domain.processes.values().filter(|process| process.cluster == cluster);
        if let Some(process) = of_it().find(|process| process.session.state == SessionState::Live) {
            return Err(Refusal::SessionLive(process.id));
        }
        let processes: Vec<StartId> = of_it().map(|process| process.id).collect();
        let archives = domain.archives.values().filter(|archive| archive.cluster == cluster);
        let archives: Vec<ArchiveId> = archives.map(|archive| archive.id).collect();
        let servers = domain.servers.values().filter(|server| server.cluster == cluster);
        let servers: Vec<ServerId> = servers.map(|server| server.id.clone()).collect();
        let forgotten = DomainEvent::ClusterForgotten { cluster: cluster.clone(), why: why.clone() };
        domain.note(actor, [Subject::Domain], forgotten, None);
        for process in processes {
            domain.bury(actor, process, ExitReason::Evicted, None, None);
        }
        for archive in archives {
            let why = format!("cluster {cluster} is lost: {why}");
            domain.forget(actor, archive, ArchiveEvent::Forgotten { archive, why }, Evidence::default());
        }
        for server in servers {
            domain.drop_server(actor, server, Evidence::default());
        }
        domain.anchors.remove(&cluster);
        // Its resync epoch stays: what its agents propose proves nothing without the anchor.
        for database in domain.databases.values_mut() {
            database.judged.remove(&cluster);
        }
        Ok(Outcome::Changed)
    }
}
