//! An operator cancels a task. What it has done stays; nothing more is done.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::TaskEvent;
use crate::domain::ids::{DatabaseName, TaskId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::task::{TaskKind, TaskState};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Cancels a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelTask {
    /// The task.
    pub task: TaskId,
    /// Why, in the words of the operator who asks.
    pub why: String,
}

impl Domain {
    /// Ends the task of a database that is deleted: nothing is left that it could do.
    pub(super) fn end_task_of(&mut self, actor: &Actor, database: &DatabaseName) {
        let scope = Subject::Database(database.clone());
        let Some(id) = self.task_on(&scope).map(|task| task.id) else { return };
        let now = self.time;
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (done, why) = (task.done(), format!("database {database} was deleted"));
        task.end(TaskState::Cancelled { by: actor.to_string(), why: why.clone() }, now);
        self.note(actor, [Subject::Task(id), scope], TaskEvent::Cancelled { task: id, done, why }, None);
        self.drop_old_tasks();
    }
}

impl Change for CancelTask {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { task: _, why } = self;
        fits("the reason", why, bounds.text)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { task: id, why } = self;
        only_an_operator(actor)?;
        let now = domain.time;
        let task = domain.tasks.get_mut(&id).ok_or(Refusal::UnknownTask(id))?;
        match &task.state {
            TaskState::Running => {}
            TaskState::Cancelled { .. } => return Ok(Outcome::Unchanged),
            ended => return Err(Refusal::TaskEnded { task: id, state: ended.to_string() }),
        }
        let done = task.done();
        task.end(TaskState::Cancelled { by: actor.to_string(), why: why.clone() }, now);
        let scope = task.kind.scope();
        let TaskKind::ProtocolUpgrade(upgrade) = task.kind.clone();
        if done == 0
            && let Some(database) = domain.databases.get_mut(&upgrade.database)
            && let Some(known) = &mut database.protocol
        {
            // Else the next pass would begin the same again.
            known.declined = Some(upgrade.to.id);
        }
        domain.note(actor, [Subject::Task(id), scope], TaskEvent::Cancelled { task: id, done, why }, None);
        domain.drop_old_tasks();
        Ok(Outcome::Changed)
    }
}
