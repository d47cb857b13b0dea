//! A process whose pod is gone, or whose container has ended or was replaced, is removed, but only while its session
//! is lost: a live session outweighs anything that Kubernetes says. A process whose container is not known yet learns
//! it from a running container that started when it did.
//!
//! Not here: a process that reports its own exit, or is replaced by a later start of its container (`domain`).

use super::plan::{Finding, Kind, Plan, WaitingReason};
use super::{View, process_waits};
use crate::domain::archive::Ordinal;
use crate::domain::audit::Subject;
use crate::domain::change::{Command, LearnContainer, LearnOwner, RemoveProcess};
use crate::domain::command::Fence;
use crate::domain::evidence::Evidence;
use crate::domain::ids::Millis;
use crate::domain::process::{DurableState, ExitReason, Process, SessionState};
use crate::observed::objects::{Container, Pod, Running};

/// How long before the wrapper a container may claim to have started: its clock is cut to a second, and the runtime
/// writes the time down a moment after the start.
const STARTED_EARLIER_MS: u64 = 1_500;
/// How long after the wrapper a container may claim to have started: a busy runtime writes the time down late.
const STARTED_LATER_MS: u64 = 10_000;

pub(super) fn plan(view: &View, plan: &mut Plan) {
    let Some(pods) = View::known(plan, Kind::Pods, view.observed.pods.known()) else { return };
    for process in view.domain.processes.values() {
        if process.cluster != view.policy.cluster || process.identity.namespace != view.policy.namespace {
            continue;
        }
        let pod = pods.get(&process.identity.pod).filter(|pod| pod.uid == process.identity.pod_uid);
        match (pod, process.session.state) {
            (None, SessionState::Live) => {
                process_waits(plan, process.id, WaitingReason::SessionLive);
                started(view, plan, process);
            }
            (None, SessionState::Lost(_)) => propose_removal(view, plan, process, ExitReason::PodGone),
            (Some(pod), SessionState::Live) => {
                learn(view, plan, process, pod);
                learn_owner(view, plan, process, pod);
                started(view, plan, process);
            }
            (Some(pod), SessionState::Lost(_)) => judge(view, plan, process, pod),
        }
    }
}

/// The process is silent and its pod is there: has its container ended?
fn judge(view: &View, plan: &mut Plan, process: &Process, pod: &Pod) {
    let Some(id) = &process.container_id else {
        return process_waits(plan, process.id, WaitingReason::ContainerUnknown);
    };
    let container = pod.container(&process.identity.container);
    let ended = container.is_some_and(|container| container.ended.iter().any(|ended| ended.id == *id));
    let other = container.and_then(|c| c.running.as_ref()).filter(|running| running.id != *id);
    if other.is_some_and(|other| other.started <= process.identity.started) {
        // It runs since before the wrapper did, so the wrapper is in it, and was taken for the container before.
        process_waits(plan, process.id, WaitingReason::ContainerUnknown);
    } else if ended {
        propose_removal(view, plan, process, ExitReason::ContainerEnded);
    } else if other.is_some() {
        propose_removal(view, plan, process, ExitReason::ContainerReplaced);
    } else {
        process_waits(plan, process.id, WaitingReason::SessionLost);
    }
}

fn propose_removal(view: &View, plan: &mut Plan, process: &Process, reason: ExitReason) {
    match view.paused_process(process) {
        Some(paused) => process_waits(plan, process.id, paused),
        None => {
            let command = Command::RemoveProcess(RemoveProcess {
                fence: Fence::default(),
                process: process.id,
                session: process.session.number,
                reason,
                evidence: Evidence::default(),
            });
            plan.findings.push(Finding::new(view.domain, Subject::Process(process.id), command, Vec::new()));
        }
    }
}

/// Says why an engine is held, as long as it is.
fn started(view: &View, plan: &mut Plan, process: &Process) {
    if process.durable == DurableState::Requested
        && let Err(held) = view.gates.get_or_init(|| view.domain.gates()).may_start(process.id)
    {
        process_waits(plan, process.id, WaitingReason::StartHeld(held));
    }
}

fn learn(view: &View, plan: &mut Plan, process: &Process, pod: &Pod) {
    if process.container_id.is_some() {
        return;
    }
    let Some(Container { running: Some(running), .. }) = pod.container(&process.identity.container) else { return };
    // A container that has a tombstone was another process: its status is still shown for a while after a restart.
    if !started_with(running, process.identity.started) || view.tombstone_of_container(&running.id).is_some() {
        return;
    }
    let command = Command::LearnContainer(LearnContainer {
        process: process.id,
        pod: process.identity.pod_uid.clone(),
        container: running.id.clone(),
    });
    plan.findings.push(Finding::new(view.domain, Subject::Process(process.id), command, Vec::new()));
}

/// The StatefulSet that owns the pod may be another one than when the engine registered: one that was recreated adopts the
/// pods of the one before it, whose containers run on.
fn learn_owner(view: &View, plan: &mut Plan, process: &Process, pod: &Pod) {
    let archive = process.archive.and_then(|archive| view.domain.archives.get(&archive));
    let Some((archive, claim)) = archive.and_then(|archive| Some((archive, archive.claim.as_ref()?))) else { return };
    let Some((set, ordinal)) = pod.owner.as_ref().zip(pod.ordinal()) else { return };
    let owner = Ordinal { stateful_set: set.name.clone(), uid: set.uid.clone(), ordinal };
    let mounts = pod.archive_claim.as_ref() == Some(&claim.name);
    if process.claim_unread || !mounts || claim.owner.as_ref() == Some(&owner) {
        return;
    }
    let command = Command::LearnOwner(LearnOwner {
        fence: Fence::default(),
        archive: archive.id,
        claim: claim.uid.clone(),
        process: process.id,
        owner,
        evidence: Evidence::default(),
    });
    plan.findings.push(Finding::new(view.domain, Subject::Archive(archive.id), command, Vec::new()));
}

/// Whether a wrapper that started at `wrapper` is the first process of this container. Both clocks are the node's.
fn started_with(running: &Running, wrapper: Millis) -> bool {
    wrapper.since(running.started) <= STARTED_EARLIER_MS && running.started.since(wrapper) <= STARTED_LATER_MS
}

#[cfg(test)]
mod tests {
    use super::{Millis, Running, started_with};

    #[test]
    fn a_container_fits_a_wrapper_that_started_with_it() {
        let fits = |container: u64, wrapper: u64| {
            started_with(&Running { id: "c".into(), started: Millis(container) }, Millis(wrapper))
        };
        assert!(fits(10_000, 10_900), "the container's time is cut to a second");
        assert!(fits(12_000, 10_900), "and may be written down late");
        assert!(!fits(8_000, 10_900), "the container that ran before does not fit");
        assert!(!fits(30_000, 10_900));
    }
}
