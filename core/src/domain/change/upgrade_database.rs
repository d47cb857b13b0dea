//! An operator raises the protocol version of a database by hand: `upgrade database-version` of the published client. No engine is
//! restarted by it.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::DatabaseEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ClusterName, DatabaseName, ProtocolId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Raises the effective protocol version of a database by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeDatabase {
    /// The database.
    pub database: DatabaseName,
    /// The version; `None` for the greatest available one.
    pub to: Option<ProtocolId>,
    /// The cluster in which that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// The proof that no workload of the database is being rolled out, and which pods it has.
    pub evidence: Evidence,
}

impl Change for UpgradeDatabase {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, to: _, cluster: _, evidence } = self;
        bounds.name("a database", database)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, to, cluster, evidence } = self;
        only_an_operator(actor)?;
        let versions = domain.versions(&name).ok_or_else(|| Refusal::NoDatabase(name.clone()))?;
        let effective = versions.effective.as_ref();
        if to.is_some() && effective.map(|effective| effective.id) == to {
            return Ok(Outcome::Unchanged);
        }
        let subject = Subject::Database(name.clone());
        if let Some(running) = domain.task_on(&subject) {
            return Err(Refusal::TaskRuns(running.id));
        }
        let now = domain.upgradable(&name).map_err(|why| Refusal::NotUpgradable { database: name.clone(), why })?;
        let mut available = versions.available.into_iter();
        let wanted = to.unwrap_or(now.max.id);
        let to = available.find(|version| version.id == wanted);
        let to = to.ok_or_else(|| Refusal::NoSuchVersion { database: name.clone(), version: wanted })?;
        let of_a_process = || domain.processes_of(&name).next().map(|process| process.cluster.clone());
        let cluster = cluster.or_else(of_a_process).unwrap_or_default();
        domain.settled_elsewhere(&cluster, &name)?;
        domain.anchored(&cluster, &evidence)?;
        domain.all_engines_known(&evidence, &name)?;
        domain.raise_protocol(&name, &to);
        domain.note(actor, [subject], DatabaseEvent::ProtocolRaised { from: now.from, to }, Some(evidence));
        Ok(Outcome::Changed)
    }
}
