//! What to propose so that the domain follows Kubernetes: domain and observed in, a plan out.
//!
//! A pass is: [`plan()`] over what the watches show, then a fresh read of everything that [`Finding::needs`], then
//! [`confirm`], which turns a finding into a command only if the reads prove it. The command names what it expects, and
//! the domain checks expectation, fence and evidence once more. Nothing is retried within a pass.

pub mod ability;
mod archives;
pub mod databases;
pub mod held;
pub mod leadership;
pub mod plan;
mod processes;
mod servers;
pub mod whatif;

use crate::domain::archive::{Ordinal, RemovalReason};
use crate::domain::audit::Subject;
use crate::domain::change::{self, Command};
use crate::domain::command::Fence;
use crate::domain::evidence::{Evidence, Fact, wants};
use crate::domain::ids::{ArchiveId, ClusterName, Millis, RaftId, StartId, Uid};
use crate::domain::managers::Gates;
use crate::domain::process::{ExitReason, Process, Tombstone};
use crate::domain::{Domain, Pause};
use crate::observed::objects::RAFT_LOG_TEMPLATE;
use crate::observed::{Observed, Unknown};
use plan::{Finding, Kind, Need, Others, Plan, Proposal, Waiting, WaitingReason};
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
}

impl Policy {
    /// The policy of an agent that was told nothing else: purge at once, and delete what nothing wants.
    pub fn new(cluster: ClusterName, namespace: String) -> Self {
        Self { cluster, namespace, purge_delay_ms: 0, database_deletion: DatabaseDeletion::Auto }
    }
}

/// Whether databases are deleted that have no archive left and that nothing wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseDeletion {
    /// By the resync, on evidence.
    Auto,
    /// By nobody.
    Never,
}

/// Every subreconciler, in the order in which its findings are carried out.
const SUBRECONCILERS: [fn(&View, &mut Plan); 4] = [
    processes::plan, // first, since an archive can be judged only when no process is on it
    archives::plan,
    databases::plan, // after them, since a database goes after its archives
    servers::plan,
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
struct View<'a> {
    domain: &'a Domain,
    observed: &'a Observed,
    policy: &'a Policy,
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
    fn known<'a, T>(
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

    /// The StatefulSet of this name, if an annotation on it pauses what would be taken away of it. Another of the same
    /// name counts too: whoever wrote the annotation knows of names only.
    fn paused_set(&self, owner: Option<&Ordinal>) -> Option<WaitingReason> {
        let set = self.observed.stateful_sets.known().ok()?.get(&owner?.stateful_set)?;
        set.paused.then(|| WaitingReason::WorkloadPaused { workload: format!("statefulset {}", set.name) })
    }

    /// What pauses the taking-away of a process: the StatefulSet of its archive. Whose pod another one was is not known
    /// once the pod is gone, so any workload of its database counts.
    fn paused_process(&self, process: &Process) -> Option<WaitingReason> {
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

/// Turns a finding into a command, if the readings prove it; else says what stands against it. `anchor` is the UID of
/// the Lease that anchors the domain.
pub fn confirm(
    finding: &Finding,
    readings: &Readings,
    fence: &Fence,
    anchor: Option<&Uid>,
) -> Result<Command, WaitingReason> {
    let mut evidence = Evidence { read_at: readings.at, facts: Vec::new() };
    for need in &finding.needs {
        match readings.answers.get(need) {
            Some(Ok(facts)) => {
                if let Some(held) = facts.iter().find_map(|fact| stands_against(finding, fact)) {
                    return Err(held);
                }
                evidence.facts.extend(facts.iter().filter(|fact| bears_on(&finding.proposal, fact)).cloned());
            }
            Some(Err(why)) => return Err(WaitingReason::Unread { need: need.clone(), why: why.clone() }),
            None => return Err(WaitingReason::Unread { need: need.clone(), why: "it was not read".to_owned() }),
        }
    }
    if finding.proposal.takes_away() && !anchor.is_some_and(|anchor| evidence.anchored_by(anchor)) {
        return Err(WaitingReason::RestoredElsewhere);
    }
    let fence = fence.clone();
    let (proven, command) = match finding.proposal.clone() {
        Proposal::LearnContainer { process, pod, container } => {
            (true, Command::LearnContainer(change::LearnContainer { process, pod, container }))
        }
        Proposal::RemoveProcess { process, session, pod, pod_uid, container, reason } => {
            let proven = match (&reason, &container) {
                (ExitReason::PodGone, _) => evidence.pod_is_gone(&pod, &pod_uid),
                (ExitReason::ContainerEnded, Some((_, id))) => evidence.container_ended(&pod_uid, id).is_some(),
                (ExitReason::ContainerReplaced, Some((name, id))) => evidence.container_replaced(&pod_uid, name, id),
                _ => false,
            };
            (
                proven,
                Command::RemoveProcess(change::RemoveProcess {
                    fence,
                    process,
                    session,
                    reason,
                    evidence: evidence.clone(),
                }),
            )
        }
        Proposal::RemoveArchive { archive, claim, owner, reason, taken_by } => {
            let proven = match reason {
                RemovalReason::ClaimDeleted => evidence.claim_is_lost(&claim.name, taken_by.as_ref()),
                RemovalReason::ScaledDown => owner.is_some_and(|owner| evidence.ordinal_unwanted(&owner)),
                RemovalReason::GivenUp => false,
            };
            let claim = claim.uid;
            (
                proven,
                Command::RemoveArchive(change::RemoveArchive {
                    fence,
                    archive,
                    claim,
                    reason,
                    evidence: evidence.clone(),
                }),
            )
        }
        Proposal::LearnOwner { archive, claim, process, pod_uid, owner } => {
            let proven = evidence.pod_is_owned_by(&pod_uid, &owner);
            (
                proven,
                Command::LearnOwner(change::LearnOwner {
                    fence,
                    archive,
                    claim,
                    process,
                    owner,
                    evidence: evidence.clone(),
                }),
            )
        }
        Proposal::NoteClaimGone { archive, claim, taken_by } => {
            let proven = evidence.claim_is_lost(&claim.name, taken_by.as_ref());
            (
                proven,
                Command::NoteClaimGone(change::NoteClaimGone {
                    fence,
                    archive,
                    claim: claim.uid,
                    evidence: evidence.clone(),
                }),
            )
        }
        Proposal::DeleteDatabase(database) => {
            let proven = evidence.database_unwanted(&database);
            (proven, Command::DeleteDatabase(change::DeleteDatabase { fence, database, evidence: evidence.clone() }))
        }
        Proposal::RemoveServer { server, raft_id, owner, claim } => {
            let gone = evidence.no_pod(server.as_str()) && evidence.claim_is_gone(&claim);
            let proven = gone && evidence.ordinal_unwanted(&owner);
            (
                proven,
                Command::RemoveServer(change::RemoveServer {
                    fence,
                    server,
                    raft_id,
                    owner,
                    evidence: evidence.clone(),
                }),
            )
        }
        Proposal::PurgeArchive { archive, claim, taken_by } => {
            let proven = evidence.claim_is_lost(&claim.name, taken_by.as_ref());
            (
                proven,
                Command::PurgeArchive(change::PurgeArchive {
                    fence,
                    archive,
                    claim: claim.uid,
                    evidence: evidence.clone(),
                }),
            )
        }
    };
    if proven { Ok(command) } else { Err(WaitingReason::NotConfirmed { read: evidence }) }
}

/// What a fresh read showed that is a reason to wait: a person has asked for it, or all claims are gone at once.
fn stands_against(finding: &Finding, fact: &Fact) -> Option<WaitingReason> {
    match (&finding.proposal, &finding.others, fact) {
        (_, _, Fact::WorkloadPaused { stateful_set }) if is_of(finding, stateful_set) => {
            Some(WaitingReason::WorkloadPaused { workload: format!("statefulset {stateful_set}") })
        }
        (Proposal::PurgeArchive { .. }, _, Fact::PurgeHeld { stateful_set }) if is_of(finding, stateful_set) => {
            Some(WaitingReason::PurgeHeld { stateful_set: stateful_set.clone() })
        }
        (_, Others::ClaimThere(there), Fact::ClaimAbsent { name }) if name == there => {
            let read = Evidence { read_at: Millis::default(), facts: vec![fact.clone()] };
            Some(WaitingReason::NotConfirmed { read })
        }
        (_, Others::Unwanted(ordinals), Fact::StatefulSetIs { name, replicas, first_ordinal, .. }) => {
            let wanted =
                |ordinal: &&Ordinal| ordinal.stateful_set == *name && wants(*first_ordinal, *replicas, ordinal.ordinal);
            let wanted = ordinals.iter().find(wanted);
            wanted.map(|_| WaitingReason::ClaimsVanished { stateful_set: name.clone() })
        }
        _ => None,
    }
}

/// Whether a StatefulSet that was read is the one that the finding is about, and not another of its database.
fn is_of(finding: &Finding, stateful_set: &str) -> bool {
    match &finding.proposal {
        Proposal::RemoveArchive { claim, .. }
        | Proposal::NoteClaimGone { claim, .. }
        | Proposal::PurgeArchive { claim, .. } => {
            claim.owner.as_ref().is_some_and(|owner| owner.stateful_set == stateful_set)
        }
        Proposal::RemoveServer { owner, .. } => owner.stateful_set == stateful_set,
        Proposal::LearnContainer { .. }
        | Proposal::LearnOwner { .. }
        | Proposal::RemoveProcess { .. }
        | Proposal::DeleteDatabase(_) => true,
    }
}

/// Whether a command keeps what was read. A StatefulSet that was read only for what it holds back proves nothing, nor does the
/// claim of another archive.
fn bears_on(proposal: &Proposal, fact: &Fact) -> bool {
    match fact {
        Fact::ClaimIs { name, .. } => matches!(
            proposal,
            Proposal::RemoveArchive { claim, .. } | Proposal::NoteClaimGone { claim, .. } | Proposal::PurgeArchive { claim, .. }
                if claim.name == *name
        ),
        Fact::PurgeHeld { .. } | Fact::WorkloadPaused { .. } => false,
        Fact::PodOwnedBy { .. } => matches!(proposal, Proposal::LearnOwner { .. }),
        Fact::StatefulSetIs { .. } => {
            matches!(
                proposal,
                Proposal::RemoveArchive { reason: RemovalReason::ScaledDown, .. } | Proposal::RemoveServer { .. }
            )
        }
        _ => true,
    }
}

/// A finding about a process that takes it away.
fn remove_process(process: &Process, reason: ExitReason) -> Finding {
    let identity = &process.identity;
    let container = process.container_id.clone().map(|id| (identity.container.clone(), id));
    Finding {
        subject: Subject::Process(process.id),
        needs: vec![Need::Pod(identity.pod.clone()), Need::Anchor],
        others: Others::Any,
        proposal: Proposal::RemoveProcess {
            process: process.id,
            session: process.session.number,
            pod: identity.pod.clone(),
            pod_uid: identity.pod_uid.clone(),
            container,
            reason,
        },
    }
}

/// Notes why nothing is proposed about a process.
fn process_waits(plan: &mut Plan, process: StartId, reason: WaitingReason) {
    plan.waiting.push(Waiting { subject: Subject::Process(process), reason });
}
