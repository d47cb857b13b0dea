//! Tasks: changes in several steps, what each waits for, and how an operator cancels one.

use super::domain::{Named, id};
use super::error::Error;
use super::extract::{Asked, Body};
use super::pause::{Reason, checked};
use super::writer::Writer;
use super::{Answer, Face, own};
use axum::extract::State;
use kaa_core::domain::audit::Subject;
use kaa_core::domain::change::{CancelTask, Command};
use kaa_core::domain::command::Refusal;
use kaa_core::domain::ids::{Millis, TaskId};
use kaa_core::domain::task::{ProtocolUpgrade, Step, Task, TaskKind, TaskState};
use kaa_core::resync::plan::Waiting;
use serde::{Deserialize, Serialize};

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskRow {
    /// Its id.
    pub id: u64,
    /// What kind of task it is.
    pub kind: String,
    /// What it is about, as `kaa explain` takes it.
    pub scope: String,
    /// What it does.
    pub text: String,
    /// The cluster whose resync leader carries it out.
    pub cluster: String,
    /// Who began it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// RUNNING, BLOCKED, DONE, FAILED or CANCELLED.
    pub state: String,
    /// Why it is blocked, failed or was cancelled.
    pub why: Option<String>,
    /// When it began.
    pub began: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
    /// How many steps it has.
    pub of: u64,
    /// The steps so far; the last one of a task that has not ended is the next one.
    pub steps: Vec<TaskStepRow>,
    /// The transaction engine that is shut down.
    pub start_id: Option<u64>,
    /// The query that chose it; null if it was chosen at random.
    pub query: Option<String>,
}

/// A step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskStepRow {
    /// Its number.
    pub step: u64,
    /// What is done.
    pub what: String,
    /// When it became the next one.
    pub began: Millis,
    /// When it was done.
    pub ended: Option<Millis>,
    /// The log entry that did it.
    pub entry: Option<u64>,
}

/// The tasks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TasksAnswer {
    /// Oldest first.
    pub tasks: Vec<TaskRow>,
}

impl TaskRow {
    /// A task, with what a plan says that it waits for.
    pub fn new(task: &Task, waiting: &[Waiting]) -> Self {
        let TaskKind::ProtocolUpgrade(ProtocolUpgrade { engine, query, .. }) = &task.kind;
        let (scope, own) = (task.kind.scope(), Subject::Task(task.id));
        let blocked = waiting.iter().find(|it| task.runs() && (it.subject == own || it.subject == scope));
        let (state, why) = match (&task.state, blocked) {
            (TaskState::Running, Some(waiting)) => ("BLOCKED".to_owned(), Some(waiting.reason.to_string())),
            (TaskState::Running | TaskState::Done, _) => (task.state.to_string(), None),
            (TaskState::Failed { why }, _) => (task.state.to_string(), Some(why.clone())),
            (TaskState::Cancelled { by, why }, _) => (task.state.to_string(), Some(format!("by {by}: {why}"))),
        };
        let step = |(number, step): (u64, &Step)| TaskStepRow {
            step: number,
            what: step.what.name().to_owned(),
            began: step.began,
            ended: step.ended,
            entry: step.entry,
        };
        Self {
            id: task.id.0,
            kind: task.kind.name().to_owned(),
            scope: scope.to_string(),
            text: task.kind.to_string(),
            cluster: task.cluster.to_string(),
            by: task.by.clone(),
            reason: task.reason.clone(),
            state,
            why,
            began: task.began,
            ended: task.ended,
            of: task.kind.steps().len() as u64,
            steps: (1..).zip(&task.steps).map(step).collect(),
            start_id: Some(engine.0),
            query: query.clone(),
        }
    }
}

pub(super) async fn list(State(face): State<Face>, Asked(asked): Asked) -> Result<Answer<TasksAnswer>, Error> {
    own::consistent(&face, &asked).await?;
    let waiting = face.source.plan().plan.waiting;
    let (index, tasks) = face
        .source
        .read(|domain| (domain.index, domain.tasks.values().map(|task| TaskRow::new(task, &waiting)).collect()));
    Ok(Answer { index, body: TasksAnswer { tasks } })
}

pub(super) async fn shown(
    State(face): State<Face>,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<TaskRow>, Error> {
    let task: TaskId = id(named, "task id")?;
    own::consistent(&face, &asked).await?;
    answer(&face, task)
}

fn answer(face: &Face, id: TaskId) -> Result<Answer<TaskRow>, Error> {
    let waiting = face.source.plan().plan.waiting;
    let (index, row) =
        face.source.read(|domain| (domain.index, domain.tasks.get(&id).map(|task| TaskRow::new(task, &waiting))));
    let body = row.ok_or_else(|| Error::NotFound(Refusal::UnknownTask(id).to_string()))?;
    Ok(Answer { index, body })
}

/// Cancels a task: what it has done stays, and nothing more is done.
pub(super) async fn cancel(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(Reason { why }): Body<Reason>,
) -> Result<Answer<TaskRow>, Error> {
    let task: TaskId = id(named, "task id")?;
    let command = Command::CancelTask(CancelTask { task, why: checked(why)? });
    face.source.write(actor, command).await?.accepted()?;
    answer(&face, task)
}
