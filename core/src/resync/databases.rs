//! A database that has no archive left, and that nothing wants, is deleted.
//!
//! An archive goes only when its claim is gone, so a database whose claims are kept keeps its archives and stays, whatever
//! becomes of its StatefulSets. What wants a database: a StatefulSet or Deployment of it, be it scaled to nothing, a pod or
//! a claim with its label, and a process; a StatefulSet with archives and no label may be any database's. If several clusters
//! share the domain, no agent sees all of that.

use super::plan::{Finding, Kind, Plan, Waiting, WaitingReason};
use super::{DatabaseDeletion, View};
use crate::domain::audit::Subject;
use crate::domain::change::{Command, DeleteDatabase};
use crate::domain::command::Fence;
use crate::domain::database::DatabaseState;
use crate::domain::evidence::Evidence;
use crate::domain::ids::DatabaseName;
use crate::observed::objects::{ARCHIVE_TEMPLATE, StatefulSet};
use crate::observed::{Observed, Unknown};

pub(super) fn plan(view: &View, plan: &mut Plan) {
    for (name, database) in &view.domain.databases {
        let has_archive = view.domain.archives.values().any(|archive| archive.database == *name);
        // One that an operator created waits for its first engine.
        if database.state == DatabaseState::Tombstone || has_archive || database.by_hand {
            continue;
        }
        match stands_against(view, plan, name) {
            Ok(None) => {
                let command = Command::DeleteDatabase(DeleteDatabase {
                    fence: Fence::default(),
                    database: name.clone(),
                    evidence: Evidence::default(),
                });
                plan.findings.push(Finding::new(view.domain, Subject::Database(name.clone()), command, Vec::new()));
            }
            Ok(Some(reason)) => plan.waiting.push(Waiting { subject: Subject::Database(name.clone()), reason }),
            Err(Incomplete) => {}
        }
    }
}

/// Something may want it that is not known, and that is noted already.
struct Incomplete;

fn stands_against(view: &View, plan: &mut Plan, name: &DatabaseName) -> Result<Option<WaitingReason>, Incomplete> {
    let observed = view.observed;
    let unknown = [
        View::known(plan, Kind::StatefulSets, observed.stateful_sets.known()).is_none(),
        View::known(plan, Kind::Deployments, observed.deployments.known()).is_none(),
        View::known(plan, Kind::Claims, observed.claims.known()).is_none(),
        View::known(plan, Kind::Pods, observed.pods.known()).is_none(),
    ];
    if unknown.contains(&true) {
        return Err(Incomplete);
    }
    Ok(if let Some(process) = view.domain.processes.values().find(|process| process.database == *name) {
        Some(WaitingReason::DatabaseInUse(process.id))
    } else if let Some(by) = wanted_by(observed, name).map_err(|_| Incomplete)? {
        Some(WaitingReason::DatabaseWanted { by })
    } else if let Some(other) = view.domain.cluster_against(&view.policy.cluster, name, |found| !found.wanted) {
        Some(WaitingReason::OtherCluster(other.clone()))
    } else if view.policy.database_deletion == DatabaseDeletion::Never {
        Some(WaitingReason::DatabaseDeletionOff)
    } else {
        None
    })
}

/// Something that wants a database, as `kubectl` names it, among everything that is known.
pub fn wanted_by(observed: &Observed, name: &DatabaseName) -> Result<Option<String>, Unknown> {
    let ours = |database: &Option<DatabaseName>| database.as_ref() == Some(name);
    let of_any = |set: &StatefulSet| set.database.is_none() && set.templates.iter().any(|t| t == ARCHIVE_TEMPLATE);
    let set = observed.stateful_sets.known()?.values().find(|set| ours(&set.database) || of_any(set));
    let deployment = observed.deployments.known()?.values().find(|deployment| ours(&deployment.database));
    let claim = observed.claims.known()?.values().find(|claim| ours(&claim.database));
    let pod = observed.pods.known()?.values().find(|pod| ours(&pod.database));
    let set = set.map(|set| format!("statefulset {}", set.name));
    let by = set
        .or_else(|| deployment.map(|deployment| format!("deployment {}", deployment.name)))
        .or_else(|| claim.map(|claim| format!("persistentvolumeclaim {}", claim.name)))
        .or_else(|| pod.map(|pod| format!("pod {}", pod.name)));
    Ok(by)
}
