//! Protocol upgrades in a sequence: rollouts of a later release, the annotation that asks for upgrades, and an oracle
//! that does not use the domain's checks.

use super::kubernetes::{DEPLOYMENTS, SETS};
use super::leader::Truth;
use super::run::Run;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::ids::{ProtocolId, StartId, TaskId};
use kaa_core::domain::process::{About, DurableState, EngineKind, EngineState};
use kaa_core::domain::task::StepKind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many versions were raised, and how many engines were stopped for that, in all sequences: an oracle that never
/// sees an upgrade proves nothing.
pub static RAISED: AtomicU64 = AtomicU64::new(0);
pub static STOPPED: AtomicU64 = AtomicU64::new(0);

/// The progress of the tasks, according to the log.
#[derive(Default)]
pub struct Seen {
    steps: BTreeSet<(TaskId, u32)>,
    stopped: BTreeMap<TaskId, StartId>,
    /// The latest release that containers are started with.
    release: u64,
}

/// What an engine of a release reports about itself: each release supports one more protocol version.
pub fn about(release: u64) -> About {
    let protocols = (0..=release).map(|version| (ProtocolId(1000 + version), format!("v{version}")));
    About { version: format!("r{release}"), protocols: protocols.collect(), ..About::default() }
}

impl Run {
    pub fn release(&self) -> u64 {
        self.upgrades.release
    }

    /// A later release: all containers restart with it, or every other one.
    pub fn roll_out(&mut self, all: bool, said: bool) {
        self.upgrades.release += 1;
        let pods: Vec<_> = self.engines.keys().cloned().collect();
        let pods = pods.into_iter().enumerate().filter(|(number, _)| all || number % 2 == 0);
        for (_, pod) in pods {
            self.end_container(&pod, said, true);
            self.start_container(&pod, true);
        }
    }

    /// Sets whether the Deployment asks for upgrades.
    pub fn ask_for_upgrades(&mut self, asks: bool) {
        for name in DEPLOYMENTS {
            if let Some(deployment) = self.kubernetes.is.deployments.get_mut(name) {
                deployment.upgrades_protocol = asks;
            }
        }
    }

    /// Sets whether a rollout of a workload is in progress.
    pub fn set_rolling(&mut self, workload: usize, rolling: bool) {
        match SETS.get(workload) {
            Some(_) => self.kubernetes.edit_set(workload, |set| set.rolling = rolling),
            None => {
                let deployments = self.kubernetes.is.deployments.values_mut();
                deployments.for_each(|deployment| deployment.rolling = rolling);
            }
        }
    }

    /// What a command of a task did although it must not, by the real state at the time when its evidence was read.
    pub fn wrong_upgrade(&mut self, before: &Domain, command: &Command, truth: &Truth) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |holds: bool, what: &str| {
            if !holds {
                wrong.push(what.to_owned());
            }
        };
        let is = &truth.objects;
        let asked = is.deployments.values().any(|deployment| deployment.upgrades_protocol);
        let rolling = is.deployments.values().any(|deployment| deployment.rolling)
            || is.sets.values().any(|set| set.rolling && set.database.as_ref().is_some_and(|it| it.as_str() == "demo"));
        let ours = before.processes.values().filter(|process| process.database.as_str() == "demo");
        let releases: BTreeSet<_> = ours.clone().map(|process| &process.about.version).collect();
        let runs = ours
            .clone()
            .all(|process| process.durable == DurableState::Monitored && process.engine == EngineState::Running);
        let stops: Vec<StartId> = self
            .domain
            .processes
            .iter()
            .filter(|(id, now)| now.stop.is_some() && before.processes.get(*id).is_some_and(|was| was.stop.is_none()))
            .map(|(id, _)| *id)
            .collect();
        match command {
            Command::BeginTask(_) => {
                check(asked && !rolling, "a task began that nobody asked for, or during a rollout");
                check(stops.is_empty(), "the beginning of a task stopped an engine");
            }
            Command::AdvanceTask(change::AdvanceTask { task, step, what, .. }) => {
                check(self.upgrades.steps.insert((*task, *step)), "a step was done twice");
                match what {
                    StepKind::RaiseVersion => {
                        RAISED.fetch_add(1, Ordering::Relaxed);
                        check(asked && !rolling, "a version was raised that nobody asked for, or during a rollout");
                        check(releases.len() == 1 && runs, "a version was raised while processes differ or do not run");
                        check(stops.is_empty(), "an engine was stopped while the version was raised");
                    }
                    StepKind::StopEngine => {
                        STOPPED.fetch_add(stops.len() as u64, Ordering::Relaxed);
                        check(!rolling, "an engine was stopped during a rollout");
                        check(stops.len() <= 1, "two engines were stopped");
                        let kinds = stops.iter().map(|id| before.processes[id].kind);
                        check(kinds.into_iter().all(|kind| kind == EngineKind::Te), "a storage manager was stopped");
                        let another = stops.first().and_then(|id| self.upgrades.stopped.insert(*task, *id));
                        check(another.is_none(), "a task stopped two engines");
                    }
                    StepKind::AwaitEngine => check(stops.is_empty(), "an engine was stopped at the end of a task"),
                }
            }
            _ => check(stops.is_empty(), "the resync stopped an engine that no task names"),
        }
        wrong
    }
}
