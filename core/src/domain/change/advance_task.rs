//! A step of a task is done. The task and the number of the step make it happen once; the fence makes it the current leader's.

use super::begin_task::{not_paused, settled};
use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::{DatabaseEvent, TaskEvent};
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::TaskId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::Stop;
use crate::domain::task::{ProtocolUpgrade, StepKind, Task, TaskKind};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Does a step of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvanceTask {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The task.
    pub task: TaskId,
    /// The number of the step, which counts from 1.
    pub step: u32,
    /// What the step does.
    pub what: StepKind,
    /// The proof that it may happen.
    pub evidence: Evidence,
}

impl AdvanceTask {
    fn upgrade<'a>(&self, domain: &'a Domain) -> Option<(&'a Task, &'a ProtocolUpgrade)> {
        let task = domain.tasks.get(&self.task)?;
        let TaskKind::ProtocolUpgrade(upgrade) = &task.kind;
        Some((task, upgrade))
    }
}

impl Change for AdvanceTask {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, task: _, step: _, what: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, task: id, step, what, evidence } = self;
        let Some(task) = domain.tasks.get_mut(&id) else { return Err(Refusal::UnknownTask(id)) };
        task.advance(domain.index, domain.time);
        let TaskKind::ProtocolUpgrade(upgrade) = task.kind.clone();
        let advanced = TaskEvent::Advanced { task: id, step, what, last: !task.runs() };
        domain.note(actor, [Subject::Task(id), Subject::Database(upgrade.database.clone())], advanced, Some(evidence));
        match what {
            StepKind::RaiseVersion => {
                let ProtocolUpgrade { database, from, to, .. } = upgrade;
                domain.raise_protocol(&database, &to);
                let raised = DatabaseEvent::ProtocolRaised { from, to };
                domain.note(actor, [Subject::Database(database), Subject::Task(id)], raised, None);
            }
            // One that has ended meanwhile was restarted by something else.
            StepKind::StopEngine if domain.processes.contains_key(&upgrade.engine) => {
                domain.ask_to_stop(actor, upgrade.engine, Stop::Gracefully)?;
            }
            StepKind::StopEngine | StepKind::AwaitEngine => {}
        }
        domain.drop_old_tasks();
        Ok(Outcome::Changed)
    }
}

impl Planned for AdvanceTask {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let Some((_, upgrade)) = self.upgrade(domain) else { return Vec::new() };
        match self.what {
            StepKind::AwaitEngine => Vec::new(),
            StepKind::RaiseVersion | StepKind::StopEngine => {
                vec![domain.workloads_of(&upgrade.database), Need::Anchor]
            }
        }
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, task: id, step, what, evidence } = self;
        domain.led_by(fence)?;
        let Some(task) = domain.at_step(*id, *step, *what)? else { return Ok(Work::Done) };
        if task.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(task.cluster.clone()));
        }
        let TaskKind::ProtocolUpgrade(upgrade) = &task.kind;
        match what {
            StepKind::RaiseVersion => {
                domain.fenced(fence)?;
                domain.may_raise(fence, upgrade, evidence)?;
            }
            StepKind::StopEngine => {
                domain.fenced(fence)?;
                domain.anchored(&fence.cluster, evidence)?;
                if !evidence.upgrade_asked(&upgrade.database) {
                    let what = format!("a Deployment asks for the upgrade of database {}", upgrade.database);
                    return Err(Refusal::Unproven(what));
                }
                not_paused(evidence, &upgrade.database)?;
                settled(evidence, &upgrade.database)?;
            }
            StepKind::AwaitEngine => {
                let raised = task.entry_of(StepKind::RaiseVersion).unwrap_or(u64::MAX);
                if domain.engine_since(upgrade, raised).is_none() {
                    return Err(Refusal::NoEngineYet(upgrade.database.clone()));
                }
            }
        }
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        let Self { task: id, step, what, .. } = self;
        let Some((task, upgrade)) = self.upgrade(domain) else { return format!("task {id}, step {step}") };
        let ProtocolUpgrade { database, from, to, engine, .. } = upgrade;
        let done = match what {
            StepKind::RaiseVersion => {
                format!("raise the protocol version of database {database} from {from} to {to}, which is irreversible")
            }
            StepKind::StopEngine => {
                format!("shut down process {engine} to finish the protocol upgrade of database {database}")
            }
            StepKind::AwaitEngine => {
                let entry = task.entry_of(StepKind::RaiseVersion);
                let since = entry.and_then(|entry| domain.engine_since(upgrade, entry));
                let since = since.map_or("none".to_owned(), |process| process.to_string());
                format!("note that the protocol upgrade of database {database} is done: process {since} runs with {to}")
            }
        };
        format!("task {id}, step {step}: {done}")
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::AdvanceTask(Self { fence, evidence, ..self.clone() })
    }

    fn removes(&self) -> bool {
        self.what != StepKind::AwaitEngine
    }
}
