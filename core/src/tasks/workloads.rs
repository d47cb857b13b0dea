//! What the workloads of a database say about its upgrade: which Deployment asks for it, and whether one is being rolled out.

use crate::domain::evidence::Fact;
use crate::domain::ids::DatabaseName;
use crate::observed::objects::{ARCHIVE_TEMPLATE, Deployment, StatefulSet};
use crate::observed::{Observed, Unknown};

/// The Deployment whose annotation asks for upgrades of a database: the first one by name that is not of a secondary release.
pub fn asking<'a>(observed: &'a Observed, name: &DatabaseName) -> Result<Option<&'a Deployment>, Unknown> {
    let asks = |it: &&Deployment| it.database.as_ref() == Some(name) && it.upgrades_protocol && !it.secondary;
    Ok(observed.deployments.known()?.values().find(asks))
}

/// A workload of a database that is being rolled out, as `kubectl` names it. A StatefulSet with archives and without a label may
/// be any database's.
pub fn rolling(observed: &Observed, name: &DatabaseName) -> Result<Option<String>, Unknown> {
    let ours = |database: &Option<DatabaseName>| database.as_ref() == Some(name);
    let of_any = |set: &StatefulSet| set.database.is_none() && set.templates.iter().any(|t| t == ARCHIVE_TEMPLATE);
    let mut sets = observed.stateful_sets.known()?.values();
    let set = sets.find(|set| set.rolling && (ours(&set.database) || of_any(set)));
    let mut deployments = observed.deployments.known()?.values();
    let deployment = deployments.find(|deployment| deployment.rolling && ours(&deployment.database));
    let set = set.map(|set| format!("statefulset {}", set.name));
    Ok(set.or_else(|| deployment.map(|deployment| format!("deployment {}", deployment.name))))
}

/// What complete lists of the workloads prove.
pub fn facts(observed: &Observed, name: &DatabaseName) -> Result<Vec<Fact>, Unknown> {
    let by = asking(observed, name)?.map(|deployment| format!("deployment {}", deployment.name));
    let asked = by.map(|by| Fact::UpgradeAsked { database: name.clone(), by });
    let rollout = match rolling(observed, name)? {
        Some(workload) => Fact::RollingOut { database: name.clone(), workload },
        None => Fact::Settled { database: name.clone() },
    };
    Ok(asked.into_iter().chain([rollout]).collect())
}
