//! What Kubernetes shows of the workloads of a database that is upgraded: which Deployment asks for it, whether one is being
//! rolled out or paused, and which pods there are, also those whose engines have not registered.

use crate::domain::evidence::Fact;
use crate::domain::ids::{DatabaseName, Uid};
use crate::observed::objects::{ARCHIVE_TEMPLATE, Deployment, Owner, Pod, StatefulSet};
use crate::observed::{Observed, Unknown};
use crate::resync::plan::Kind;
use crate::tasks::preference::MOST_BYTES;
use std::collections::{BTreeMap, BTreeSet};

/// The Deployment whose annotation asks for upgrades of a database: the first one by name that is not of a secondary release.
pub fn asking<'a>(observed: &'a Observed, name: &DatabaseName) -> Result<Option<&'a Deployment>, Unknown> {
    let asks = |it: &&Deployment| it.database.as_ref() == Some(name) && it.upgrades_protocol && !it.secondary;
    Ok(observed.deployments.known()?.values().find(asks))
}

/// The workloads of a database, and its pods.
pub struct Workloads<'a> {
    sets: Vec<&'a StatefulSet>,
    deployments: Vec<&'a Deployment>,
    /// Those that have not ended, by name.
    pub pods: BTreeMap<String, Uid>,
}

impl<'a> Workloads<'a> {
    /// By the label `database`, and by the owners of its pods; `registered` are the pods of its processes. A StatefulSet with
    /// archives and without a label may be any database's.
    pub fn of(
        observed: &'a Observed,
        name: &DatabaseName,
        registered: &BTreeSet<Uid>,
    ) -> Result<Self, (Kind, Unknown)> {
        let sets = observed.stateful_sets.known().map_err(|why| (Kind::StatefulSets, why))?;
        let deployments = observed.deployments.known().map_err(|why| (Kind::Deployments, why))?;
        let pods = observed.pods.known().map_err(|why| (Kind::Pods, why))?;
        let ours = |database: &Option<DatabaseName>| database.as_ref() == Some(name);
        let certain = |pod: &&Pod| ours(&pod.database) || registered.contains(&pod.uid);
        let owners: Vec<&Owner> = pods.values().filter(certain).filter_map(|pod| pod.owner.as_ref()).collect();
        let of_any = |set: &StatefulSet| set.database.is_none() && set.templates.iter().any(|t| t == ARCHIVE_TEMPLATE);
        let is_set =
            |set: &&StatefulSet| ours(&set.database) || of_any(set) || owners.iter().any(|owner| owner.uid == set.uid);
        let is_deployment =
            |it: &&Deployment| ours(&it.database) || owners.iter().any(|owner| is_replica_set_of(owner, it));
        let sets: Vec<_> = sets.values().filter(is_set).collect();
        let deployments: Vec<_> = deployments.values().filter(is_deployment).collect();
        let owned = |owner: &Owner| {
            owners.iter().any(|known| known.uid == owner.uid)
                || sets.iter().any(|set| set.uid == owner.uid)
                || deployments.iter().any(|deployment| is_replica_set_of(owner, deployment))
        };
        let is_pod = |pod: &&Pod| certain(pod) || pod.database.is_none() && pod.owner.as_ref().is_some_and(owned);
        let pods = pods.values().filter(|pod| !pod.ended).filter(is_pod);
        let pods = pods.map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
        Ok(Self { sets, deployments, pods })
    }

    /// One that is being rolled out, as `kubectl` names it.
    pub fn rolling(&self) -> Option<String> {
        self.first(|set| set.rolling, |deployment| deployment.rolling)
    }

    /// One that an annotation pauses, as `kubectl` names it.
    pub fn paused(&self) -> Option<String> {
        self.first(|set| set.paused, |deployment| deployment.paused)
    }

    fn first(&self, sets: fn(&StatefulSet) -> bool, deployments: fn(&Deployment) -> bool) -> Option<String> {
        let set = self.sets.iter().find(|set| sets(set)).map(|set| format!("statefulset {}", set.name));
        let deployment = || self.deployments.iter().find(|deployment| deployments(deployment));
        set.or_else(|| deployment().map(|deployment| format!("deployment {}", deployment.name)))
    }
}

/// Whether the owner of a pod is a ReplicaSet of a Deployment: it has its name, a dash and a hash.
fn is_replica_set_of(owner: &Owner, deployment: &Deployment) -> bool {
    let hash = owner.name.strip_prefix(&deployment.name).and_then(|rest| rest.strip_prefix('-'));
    owner.kind == "ReplicaSet" && hash.is_some_and(|hash| !hash.contains('-'))
}

/// What complete lists of the workloads prove.
pub fn facts(observed: &Observed, name: &DatabaseName, registered: &BTreeSet<Uid>) -> Result<Vec<Fact>, Unknown> {
    let workloads = Workloads::of(observed, name, registered).map_err(|(_, why)| why)?;
    let (rolling, paused) = (workloads.rolling(), workloads.paused());
    // A query that is too long is none.
    let asks = asking(observed, name)?.filter(|it| it.te_preference.as_ref().is_none_or(|it| it.len() <= MOST_BYTES));
    let asked = asks.map(|deployment| Fact::UpgradeAsked {
        database: name.clone(),
        deployment: deployment.name.clone(),
        uid: deployment.uid.clone(),
        query: deployment.te_preference.clone(),
    });
    let paused = paused.map(|workload| Fact::UpgradePaused { database: name.clone(), workload });
    let rollout = match rolling {
        Some(workload) => Fact::RollingOut { database: name.clone(), workload },
        None => Fact::Settled { database: name.clone(), pods: workloads.pods },
    };
    Ok(asked.into_iter().chain(paused).chain([rollout]).collect())
}
