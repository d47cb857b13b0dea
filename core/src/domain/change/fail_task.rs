//! A task is given up before it has changed anything: its conditions do not hold any more.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::TaskEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::TaskId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::task::TaskState;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Gives up a task of which no step is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailTask {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The task.
    pub task: TaskId,
    /// Why.
    pub why: String,
}

impl Change for FailTask {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, task: _, why } = self;
        fits("the reason", why, bounds.text)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, task: id, why } = self;
        let now = domain.time;
        let Some(task) = domain.tasks.get_mut(&id) else { return Err(Refusal::UnknownTask(id)) };
        task.end(TaskState::Failed { why: why.clone() }, now);
        let scope = task.kind.scope();
        domain.note(actor, [Subject::Task(id), scope], TaskEvent::Failed { task: id, why }, None);
        domain.drop_old_tasks();
        Ok(Outcome::Changed)
    }
}

impl Planned for FailTask {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        Vec::new()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, task: id, why: _ } = self;
        domain.led_by(fence)?;
        let task = domain.tasks.get(id).ok_or(Refusal::UnknownTask(*id))?;
        if task.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(task.cluster.clone()));
        }
        match &task.state {
            TaskState::Failed { .. } => Ok(Work::Done),
            TaskState::Running if task.done() == 0 => Ok(Work::ToDo),
            TaskState::Running => Err(Refusal::AnotherStep { task: *id, proposed: 1, next: task.done() + 1 }),
            ended => Err(Refusal::TaskEnded { task: *id, state: ended.to_string() }),
        }
    }

    fn text(&self, domain: &Domain) -> String {
        let Self { task: id, why, .. } = self;
        let kind = domain.tasks.get(id).map_or(String::new(), |task| task.kind.to_string());
        format!("give up task {id}, which has changed nothing ({kind}): {why}")
    }

    fn bound(&self, fence: Fence, _: Evidence) -> Command {
        Command::FailTask(Self { fence, ..self.clone() })
    }

    fn removes(&self) -> bool {
        false
    }
}
