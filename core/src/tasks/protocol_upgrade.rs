//! The automatic upgrade of the protocol version of a database, as the annotation of its Deployment asks for it.
//!
//! A task begins when everything holds at once: the database is RUNNING; every process is MONITORED:RUNNING, of one release, and
//! reports a later version; no workload is being rolled out; and there is a transaction engine to restart. Its steps: raise the
//! version; shut down that one engine; wait for one that started after the upgrade. Until the version is raised the task is
//! given up if anything changes; after that it only goes forward.
//!
//! Not here: the conditions that the domain can judge (`domain::protocol`), and the upgrade by hand (`upgrade_database`).

use super::preference::{any_of, prefers};
use super::waits::TaskWait;
use super::workloads::{Workloads, asking};
use crate::domain::audit::Subject;
use crate::domain::change::{AdvanceTask, BeginTask, Command, FailTask};
use crate::domain::command::Fence;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{DatabaseName, ProtocolId};
use crate::domain::process::{EngineKind, Process};
use crate::domain::protocol::{NotReady, Protocol, Upgradable, reports, serves};
use crate::domain::task::{ProtocolUpgrade, StepKind, Task, TaskKind};
use crate::observed::objects::Deployment;
use crate::resync::View;
use crate::resync::plan::{Finding, Kind, Plan, Waiting, WaitingReason};

pub(super) fn plan(view: &View, plan: &mut Plan) {
    for (name, database) in &view.domain.databases {
        match view.domain.task_on(&Subject::Database(name.clone())) {
            Some(task) if task.cluster == view.policy.cluster => carry_on(view, plan, task),
            Some(_) => {}
            // The annotations of another cluster than the entry point ask for nothing.
            None if !view.policy.entry_point => {}
            None if database.protocol.is_some() || view.domain.processes_of(name).next().is_some() => {
                begin(view, plan, name);
            }
            None => {}
        }
    }
}

fn waits(plan: &mut Plan, name: &DatabaseName, reason: WaitingReason) {
    plan.waiting.push(Waiting { subject: Subject::Database(name.clone()), reason });
}

/// Begins the upgrade of a database, if a Deployment asks for it, or says why not yet.
fn begin(view: &View, plan: &mut Plan, name: &DatabaseName) {
    // Where Deployments may not be listed none is known to ask for an upgrade.
    let Ok(Some(deployment)) = asking(view.observed, name) else { return };
    if !is_ahead(view, name) {
        return;
    }
    let upgrade = match planned(view, deployment, name) {
        Ok(Some(upgrade)) => upgrade,
        Ok(None) => return,
        Err(reason) => return waits(plan, name, reason),
    };
    let command = Command::BeginTask(Box::new(BeginTask {
        fence: Fence::default(),
        reason: format!("an annotation of deployment {} asks for it", deployment.name),
        kind: TaskKind::ProtocolUpgrade(upgrade),
        evidence: Evidence::default(),
    }));
    plan.findings.push(Finding::new(view.domain, Subject::Database(name.clone()), command, Vec::new()));
}

/// Whether there may be a later version: else there is nothing to wait for.
fn is_ahead(view: &View, name: &DatabaseName) -> bool {
    let Some(versions) = view.domain.versions(name) else { return false };
    let silent = view.domain.processes_of(name).any(|process| !reports(process));
    let later = match versions.effective {
        Some(effective) => versions.newest.is_some_and(|newest| newest > effective.id),
        // It is learned when a storage manager runs.
        None => view.domain.runs(name),
    };
    silent || later
}

/// The upgrade that everything allows now; `None` if there is nothing to upgrade to, or the reason to wait.
fn planned(
    view: &View,
    deployment: &Deployment,
    name: &DatabaseName,
) -> Result<Option<ProtocolUpgrade>, WaitingReason> {
    let domain = view.domain;
    let Upgradable { from, max: to, release } = match domain.upgradable(name) {
        Ok(upgradable) => upgradable,
        Err(NotReady::UpToDate) => return unsupported(view, name).map_or(Ok(None), |wait| Err(wait.into())),
        Err(NotReady::EffectiveUnknown) => return Err(TaskWait::UpgradeEffectiveUnknown.into()),
        Err(NotReady::NotRunning) => return Err(TaskWait::UpgradeNotRunning.into()),
        Err(NotReady::VersionsUnknown(process)) => {
            return Err(TaskWait::UpgradeVersionsUnknown(process).into());
        }
        Err(NotReady::Process(process)) => return Err(TaskWait::UpgradeProcessUnready(process).into()),
        Err(NotReady::Archive(archive)) => return Err(TaskWait::UpgradeArchiveIdle(archive).into()),
        Err(NotReady::Pod(pod)) => return Err(TaskWait::UpgradePodUnready { pod }.into()),
        Err(NotReady::Releases { one, other }) => {
            return Err(TaskWait::UpgradeMixedReleases { one, other }.into());
        }
    };
    if let Some(other) = domain.cluster_against(&view.policy.cluster, name, |found| found.settled) {
        return Err(TaskWait::UpgradeOtherCluster(other.clone()).into());
    }
    if domain.declined(name) == Some(to.id) {
        return Err(TaskWait::UpgradeDeclined(to.id).into());
    }
    let workloads = workloads(view, name)?;
    if let Some(workload) = workloads.rolling() {
        return Err(TaskWait::UpgradeRollout { workload }.into());
    }
    if let Some(pod) = domain.unserving(name, &workloads.pods) {
        return Err(TaskWait::UpgradePodUnready { pod: pod.clone() }.into());
    }
    let query = deployment.te_preference.clone();
    let engine = chosen(view, deployment, name, to.id)?;
    if let Some(workload) = workloads.paused() {
        return Err(WaitingReason::WorkloadPaused { workload });
    }
    let (database, uid, deployment) = (name.clone(), deployment.uid.clone(), deployment.name.clone());
    let engine = engine.id;
    Ok(Some(ProtocolUpgrade { database, deployment, uid, from, to, release, engine, query }))
}

/// What the watches show of the workloads of a database.
fn workloads<'a>(view: &View<'a>, name: &DatabaseName) -> Result<Workloads<'a>, WaitingReason> {
    let pods = view.domain.processes_of(name).map(|process| process.identity.pod_uid.clone()).collect();
    Workloads::of(view.observed, name, &pods).map_err(|(kind, why)| WaitingReason::KindUnknown { kind, why })
}

/// A later version that some processes support and one does not.
fn unsupported(view: &View, name: &DatabaseName) -> Option<TaskWait> {
    let versions = view.domain.versions(name)?;
    let newest = versions.releases.into_values().filter_map(|release| release.max).max_by_key(|max| max.id)?;
    let Protocol { id: version, .. } = newest;
    let lacks = |process: &&Process| !process.about.protocols.contains_key(&version);
    let process = view.domain.processes_of(name).find(lacks)?.id;
    Some(TaskWait::UpgradeUnsupported { version, process })
}

/// The transaction engine to restart.
fn chosen<'a>(
    view: &View<'a>,
    deployment: &Deployment,
    name: &DatabaseName,
    to: ProtocolId,
) -> Result<&'a Process, WaitingReason> {
    let engines = view.domain.processes_of(name).filter(|process| process.kind == EngineKind::Te && serves(process));
    let engines: Vec<&Process> = engines.collect();
    let chance = chance(view, name, to);
    let engine = match &deployment.te_preference {
        None => any_of(&engines, chance),
        Some(query) => prefers(query, &engines, chance).map_err(|why| {
            let deployment = deployment.name.clone();
            TaskWait::UpgradeQueryInvalid { deployment, why }
        })?,
    };
    engine.ok_or_else(|| TaskWait::UpgradeNoEngine { query: deployment.te_preference.clone() }.into())
}

/// What decides at random: the domain's id, which is random, mixed with what is upgraded (FNV-1a). All agents show the same
/// choice, and the next upgrade makes another one.
fn chance(view: &View, name: &DatabaseName, to: ProtocolId) -> u64 {
    let id = view.domain.id.as_ref().map_or("", |id| id.as_str());
    let seed = format!("{id}/{name}/{to}/{}", view.domain.last_start);
    seed.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
        >> 16
}

/// The next step of a task that runs, or why it waits.
fn carry_on(view: &View, plan: &mut Plan, task: &Task) {
    let TaskKind::ProtocolUpgrade(upgrade) = &task.kind;
    let Some((step, what)) = task.step() else { return };
    let name = &upgrade.database;
    let known = [
        View::known(plan, Kind::StatefulSets, view.observed.stateful_sets.known()).is_some(),
        View::known(plan, Kind::Deployments, view.observed.deployments.known()).is_some(),
        View::known(plan, Kind::Pods, view.observed.pods.known()).is_some(),
    ];
    match what {
        _ if known.contains(&false) && what != StepKind::AwaitEngine => return,
        StepKind::RaiseVersion => match stands_against(view, upgrade) {
            Some(Against::Waits(reason)) => return waits(plan, name, reason),
            Some(Against::Changed(why)) => return give_up(view, plan, task, why),
            None => {}
        },
        StepKind::StopEngine => {
            let workloads = match workloads(view, name) {
                Ok(workloads) => workloads,
                Err(unknown) => return waits(plan, name, unknown),
            };
            if let Some(workload) = workloads.paused() {
                return waits(plan, name, WaitingReason::WorkloadPaused { workload });
            }
            if let Some(workload) = workloads.rolling() {
                return waits(plan, name, TaskWait::UpgradeRollout { workload }.into());
            }
            if !matches!(asking(view.observed, name), Ok(Some(_))) {
                return waits(plan, name, TaskWait::UpgradeNotAsked(task.id).into());
            }
        }
        StepKind::AwaitEngine => {
            let raised = task.entry_of(StepKind::RaiseVersion).unwrap_or(u64::MAX);
            if view.domain.engine_since(upgrade, raised).is_none() {
                return waits(plan, name, TaskWait::UpgradeEngineAwaited(task.id).into());
            }
        }
    }
    let (fence, evidence) = (Fence::default(), Evidence::default());
    let command = Command::AdvanceTask(AdvanceTask { fence, task: task.id, step, what, evidence });
    plan.findings.push(Finding::new(view.domain, Subject::Task(task.id), command, Vec::new()));
}

/// What stands against raising the version now.
enum Against {
    /// A pause by an annotation, or another cluster that has not said that it is settled.
    Waits(WaitingReason),
    /// Something is not as it was when the task began, so it begins again or not at all.
    Changed(String),
}

fn stands_against(view: &View, upgrade: &ProtocolUpgrade) -> Option<Against> {
    let ProtocolUpgrade { database: name, deployment, uid, from, to, release, engine, query } = upgrade;
    let asked = asking(view.observed, name).ok().flatten();
    let as_it_did = |asked: &&Deployment| (&asked.name, &asked.uid, &asked.te_preference) == (deployment, uid, query);
    let Some(asked) = asked.filter(as_it_did) else {
        return Some(Against::Changed(format!("deployment {deployment} does not ask for it as it did")));
    };
    let now = match planned(view, asked, name) {
        Ok(Some(now)) => now,
        Ok(None) => return Some(Against::Changed(NotReady::UpToDate.to_string())),
        Err(paused @ WaitingReason::WorkloadPaused { .. }) => return Some(Against::Waits(paused)),
        // They were asked to look again when the task began.
        Err(asked @ WaitingReason::Task(TaskWait::UpgradeOtherCluster(_))) => return Some(Against::Waits(asked)),
        Err(reason) => return Some(Against::Changed(reason.to_string())),
    };
    let serving = view.domain.processes.get(engine).is_some_and(serves);
    if (&now.from, &now.to, &now.release) == (from, to, release) && serving {
        return None;
    }
    Some(Against::Changed(format!("process {engine} does not serve any more, or its release is another one")))
}

fn give_up(view: &View, plan: &mut Plan, task: &Task, why: String) {
    let mut why = why;
    crate::domain::bounds::cut(&mut why, view.domain.bounds.text);
    let command = Command::FailTask(FailTask { fence: Fence::default(), task: task.id, why });
    plan.findings.push(Finding::new(view.domain, Subject::Task(task.id), command, Vec::new()));
}
