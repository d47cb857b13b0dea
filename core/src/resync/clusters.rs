//! Where several clusters share the domain, each tells the others what it finds of every database: no agent sees the objects of
//! another cluster.

use super::View;
use super::plan::{Finding, Plan};
use crate::domain::audit::Subject;
use crate::domain::change::{Command, JudgeDatabase};
use crate::domain::command::Fence;
use crate::domain::database::DatabaseState;
use crate::domain::evidence::Evidence;
use crate::domain::ids::DatabaseName;
use crate::resync::databases::wanted_by;
use crate::tasks::workloads::Workloads;

pub(super) fn plan(view: &View, plan: &mut Plan) {
    let cluster = &view.policy.cluster;
    let Some(leader) = view.domain.resync.get(cluster).filter(|_| view.domain.other_cluster(cluster).is_some()) else {
        return;
    };
    for (name, database) in &view.domain.databases {
        let (known, state) = (database.judged.get(cluster), database.state);
        // What is not known is noted by those that remove something.
        let Some((wanted, settled)) = found(view, name).filter(|_| state != DatabaseState::Tombstone) else {
            continue;
        };
        // What allows something elsewhere is taken back first, since that needs no proof that may be missing.
        let is_taken_back = known.is_some_and(|known| wanted && !known.wanted || !settled && known.settled);
        let (wanted, settled) = if is_taken_back { (true, false) } else { (wanted, settled) };
        if known.is_none_or(|known| (known.wanted, known.settled, known.epoch) != (wanted, settled, leader.epoch)) {
            let (fence, evidence) = (Fence::default(), Evidence::default());
            let command = JudgeDatabase { fence, database: name.clone(), wanted, settled, evidence };
            let subject = Subject::Database(name.clone());
            plan.findings.push(Finding::new(view.domain, subject, Command::JudgeDatabase(command), Vec::new()));
        }
    }
}

/// Whether anything here wants the database, and whether all its engines here are known.
fn found(view: &View, name: &DatabaseName) -> Option<(bool, bool)> {
    let pods = view.domain.processes_of(name).map(|process| process.identity.pod_uid.clone()).collect();
    let workloads = Workloads::of(view.observed, name, &pods).ok()?;
    let settled = workloads.rolling().is_none() && view.domain.unserving(name, &workloads.pods).is_none();
    let wanted = wanted_by(view.observed, name).ok()?.is_some() || view.domain.serves_in(&view.policy.cluster, name);
    Some((wanted, settled))
}
