//! What to propose so that the domain follows Kubernetes: domain and observed in, a plan out.
//!
//! A pass is: [`plan()`] over what the watches show, then a fresh read of everything that [`Finding::needs`], then
//! [`confirm`], which turns a finding into a command only if the reads prove it. The command names what it expects, and
//! the domain checks expectation, fence and evidence once more. Nothing is retried within a pass.

pub mod ability;
mod archives;
mod balancer;
mod clusters;
pub mod databases;
mod failing;
pub mod held;
pub mod leadership;
pub mod plan;
mod processes;
mod replication;
mod servers;
pub mod waiting;
pub mod whatif;

use crate::domain::archive::Ordinal;
use crate::domain::audit::Subject;
use crate::domain::change::Command;
use crate::domain::command::{Fence, Refusal};
use crate::domain::evidence::{Evidence, Fact, Need};
use crate::domain::ids::{ArchiveId, ClusterName, DatabaseName, Millis, RaftId, StartId};
use crate::domain::managers::Gates;
use crate::domain::process::{Process, Tombstone};
use crate::domain::{Domain, Pause};
use crate::observed::objects::RAFT_LOG_TEMPLATE;
use crate::observed::{Observed, Unknown};
use plan::{Finding, Kind, Plan, Waiting, WaitingReason};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// What the plan is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Objects of other clusters are not ours to judge.
    pub cluster: ClusterName,
    /// The namespace that is watched; objects of others are not ours to judge.
    pub namespace: String,
    /// How long an archive is kept, removed, once its claim is known to be gone.
    pub purge_delay_ms: u64,
    /// Whether databases are deleted that nothing wants any more.
    pub database_deletion: DatabaseDeletion,
    /// Whether this cluster is the domain's entry point: the one whose annotations configure load balancing and upgrades.
    pub entry_point: bool,
}

impl Policy {
    /// The policy of an agent that was told nothing else: purge at once, and delete what nothing wants.
    pub fn new(cluster: ClusterName, namespace: String) -> Self {
        Self { cluster, namespace, purge_delay_ms: 0, database_deletion: DatabaseDeletion::Auto, entry_point: true }
    }
}

/// Whether databases are deleted that have no archive left and that nothing wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseDeletion {
    /// By the resync, on evidence.
    Auto,
    /// The resync deletes none.
    Never,
}

/// Every subreconciler, in the order in which its findings are carried out.
const SUBRECONCILERS: [fn(&View, &mut Plan); 9] = [
    processes::plan, // first, since an archive can be judged only when no process is on it
    archives::plan,
    databases::plan, // after them, since a database goes after its archives
    servers::plan,
    clusters::plan,
    balancer::plan,
    replication::plan,
    failing::plan,
    crate::tasks::plan,
];

/// What a plan depends on besides the domain and Kubernetes.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// The clock of the agent that plans. It is compared only with what the same clock said before: the domain's own time is
    /// that of the fastest clock there ever was.
    pub now: Millis,
    /// The logs that vote, as Raft says now.
    pub voters: BTreeSet<RaftId>,
}

/// What a subreconciler sees.
pub(crate) struct View<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) observed: &'a Observed,
    pub(crate) policy: &'a Policy,
    now: Millis,
    voters: &'a BTreeSet<RaftId>,
    /// The living process on each archive.
    on_archive: BTreeMap<ArchiveId, &'a Process>,
    /// Looked at only where an engine is held.
    gates: OnceCell<Gates<'a>>,
}

/// Compares the domain with what Kubernetes shows.
pub fn plan(domain: &Domain, observed: &Observed, policy: &Policy, moment: &Moment) -> Plan {
    let Moment { now, ref voters } = *moment;
    let on_archive = domain.processes.values().filter_map(|process| Some((process.archive?, process))).collect();
    let view = View { domain, observed, policy, now, voters, on_archive, gates: OnceCell::new() };
    let mut plan = Plan::default();
    for subreconciler in SUBRECONCILERS {
        subreconciler(&view, &mut plan);
    }
    if let Some(Pause { by, why, .. }) = &domain.paused {
        plan.hold_takeaways(&WaitingReason::Paused { by: by.clone(), why: why.clone() });
        let waiting = WaitingReason::Paused { by: by.clone(), why: why.clone() };
        plan.waiting.push(Waiting { subject: Subject::Domain, reason: waiting });
    }
    if let Some(reason) = not_surely_ours(observed) {
        plan.hold_takeaways(&reason);
    }
    plan
}

/// What is wrong with a database by what the watches show, which need not be in the domain: annotations of its replication that are not
/// followed, and containers that end with an error where the pod has no engine.
pub fn seen_wrong(observed: &Observed, domain: &Domain, name: &DatabaseName) -> Vec<WaitingReason> {
    let replicated = domain.replicated(name);
    let broken = replicated.map(|it| replication::broken_settings(observed, name, it.settings.as_ref()));
    broken.into_iter().flatten().chain(failing::failed_containers(observed, domain, name)).collect()
}

/// Why it is not certain whose the objects of the namespace are: there are several admin StatefulSets, or it is not known
/// whether there are. Nor is it known then which workloads are paused.
fn not_surely_ours(observed: &Observed) -> Option<WaitingReason> {
    let sets = match observed.stateful_sets.known() {
        Ok(sets) => sets,
        Err(why) => return Some(WaitingReason::KindUnknown { kind: Kind::StatefulSets, why }),
    };
    let admin = sets.values().filter(|set| set.templates.iter().any(|template| template == RAFT_LOG_TEMPLATE));
    let names: Vec<String> = admin.map(|set| set.name.clone()).collect();
    (names.len() > 1).then_some(WaitingReason::AmbiguousDomain(names))
}

impl View<'_> {
    /// The objects of a kind, or a reason to wait that is noted once.
    pub(crate) fn known<'a, T>(
        plan: &mut Plan,
        kind: Kind,
        known: Result<&'a BTreeMap<String, T>, Unknown>,
    ) -> Option<&'a BTreeMap<String, T>> {
        match known {
            Ok(objects) => Some(objects),
            Err(why) => {
                let waiting = Waiting { subject: Subject::Domain, reason: WaitingReason::KindUnknown { kind, why } };
                if !plan.waiting.contains(&waiting) {
                    plan.waiting.push(waiting);
                }
                None
            }
        }
    }

    /// The StatefulSet of this name, if an annotation on it pauses what would be removed of it. Another of the same
    /// name counts too: an operator annotates by name, not by UID.
    fn paused_set(&self, owner: Option<&Ordinal>) -> Option<WaitingReason> {
        let set = self.observed.stateful_sets.known().ok()?.get(&owner?.stateful_set)?;
        set.paused.then(|| WaitingReason::WorkloadPaused { workload: format!("statefulset {}", set.name) })
    }

    /// What pauses the removal of a process: the StatefulSet of its archive. Whose pod another one was is not known
    /// once the pod is gone, so any workload of its database counts.
    pub(crate) fn paused_process(&self, process: &Process) -> Option<WaitingReason> {
        let archive = process.archive.and_then(|archive| self.domain.archives.get(&archive));
        let owner = archive.and_then(|archive| archive.claim.as_ref()).and_then(|claim| claim.owner.as_ref());
        if owner.is_some() {
            return self.paused_set(owner);
        }
        let database = Some(&process.database);
        let sets = self.observed.stateful_sets.known().ok().into_iter().flat_map(BTreeMap::values);
        let deployments = self.observed.deployments.known().ok().into_iter().flat_map(BTreeMap::values);
        let set = sets.filter(|set| set.paused && set.database.as_ref() == database);
        let set = set.map(|set| format!("statefulset {}", set.name));
        let deployment = deployments.filter(|deployment| deployment.paused && deployment.database.as_ref() == database);
        let deployment = deployment.map(|deployment| format!("deployment {}", deployment.name));
        set.chain(deployment).next().map(|workload| WaitingReason::WorkloadPaused { workload })
    }

    fn tombstone_of_container(&self, id: &crate::domain::ids::ContainerId) -> Option<&Tombstone> {
        self.domain.tombstones.values().find(|tombstone| tombstone.process.container_id.as_ref() == Some(id))
    }
}

/// The answers to what findings need, each read after the plan was made.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// When the last answer came, by the reader's clock.
    pub at: Millis,
    /// What each read proves, or why it proves nothing.
    pub answers: BTreeMap<Need, Result<Vec<Fact>, String>>,
}

/// Why a finding does not become a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The readings do not prove it, or something stands against it.
    Waits(WaitingReason),
    /// The domain would refuse it, whatever was read.
    Refused(Refusal),
}

impl From<WaitingReason> for Objection {
    fn from(reason: WaitingReason) -> Self {
        Self::Waits(reason)
    }
}

/// Turns a finding into a command, if the readings prove it and the domain would take it; else says what stands against it.
pub fn confirm(finding: &Finding, readings: &Readings, fence: &Fence, domain: &Domain) -> Result<Command, Objection> {
    let Some(change) = finding.command.planned() else { return Ok(finding.command.clone()) };
    let own = change.reads(domain);
    let mut evidence = Evidence { read_at: readings.at, facts: Vec::new() };
    for need in &finding.needs {
        let facts = match readings.answers.get(need) {
            Some(Ok(facts)) => facts,
            Some(Err(why)) => return Err(WaitingReason::Unread { need: need.clone(), why: why.clone() }.into()),
            None => {
                let why = "it was not read".to_owned();
                return Err(WaitingReason::Unread { need: need.clone(), why }.into());
            }
        };
        let against = |fact| finding.guards.iter().find_map(|guard| guard.stands_against(fact));
        if let Some(held) = facts.iter().find_map(against) {
            return Err(held.into());
        }
        // What was read only for the guards proves nothing.
        if own.contains(need) {
            evidence.facts.extend(facts.iter().filter(|fact| change.keeps(fact)).cloned());
        }
    }
    if change.removes() && !domain.anchor_in(&fence.cluster).is_some_and(|anchor| evidence.anchored_by(anchor)) {
        return Err(WaitingReason::RestoredElsewhere.into());
    }
    let command = change.bound(fence.clone(), evidence.clone());
    match command.planned().map(|bound| bound.check(domain)) {
        None | Some(Ok(_)) => Ok(command),
        Some(Err(Refusal::Unproven(_))) => Err(WaitingReason::NotConfirmed { read: evidence }.into()),
        Some(Err(refusal)) => Err(Objection::Refused(refusal)),
    }
}

/// Notes why nothing is proposed about a process.
fn process_waits(plan: &mut Plan, process: StartId, reason: WaitingReason) {
    plan.waiting.push(Waiting { subject: Subject::Process(process), reason });
}
