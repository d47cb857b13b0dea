//! `kaa task list|show|cancel`: changes in several steps.

use super::api::{Api, Error};
use super::{Agent, Asking, Reason};
use crate::http::{TaskRow, TaskStepRow, TasksAnswer};
use axum::http::Method;
use clap::{Args, Subcommand};
use kaa_core::domain::ids::TaskId;
use serde_json::json;
use std::fmt::Write as _;

/// `kaa task`.
#[derive(Debug, Subcommand)]
pub(super) enum TaskCommand {
    /// Lists the tasks that run, and the last ones that have ended
    List(List),
    /// Shows a task with its steps; its history is in `kaa explain task/ID`
    Show(Show),
    /// Cancels a task: the steps that are done stay done, and no further one is done. The automatic upgrade to the same protocol
    /// version is not begun again
    Cancel(Cancel),
}

/// `kaa task list`.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    agent: Agent,
}

/// `kaa task show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Its id
    task: TaskId,
    #[command(flatten)]
    agent: Agent,
}

/// `kaa task cancel`.
#[derive(Debug, Args)]
pub(super) struct Cancel {
    /// Its id
    task: TaskId,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

impl TaskCommand {
    /// How the command is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::List(_) => "task list",
            Self::Show(_) => "task show",
            Self::Cancel(_) => "task cancel",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        match self {
            Self::List(List { agent }) => {
                let answer: TasksAnswer = Api::new(&agent)?.get(&["kaa", "tasks"], &[]).await?;
                Ok(agent.print(&answer, list))
            }
            Self::Show(Show { task, agent }) => {
                let answer: TaskRow = Api::new(&agent)?.get(&["kaa", "tasks", &task.to_string()], &[]).await?;
                Ok(agent.print(&answer, show))
            }
            Self::Cancel(Cancel { task, reason, asking }) => {
                let (id, why) = (task.to_string(), json!({"why": reason.why}));
                let path = ["kaa", "tasks", &id, "cancel"];
                let answer: TaskRow = asking.api()?.change(Method::POST, &path, Some(why)).await?;
                Ok(asking.agent.print(&answer, show))
            }
        }
    }
}

/// One line for each task.
fn list(answer: &TasksAnswer) -> String {
    if answer.tasks.is_empty() {
        return "There are no tasks.\n".to_owned();
    }
    answer.tasks.iter().map(|task| format!("{}\n", line(task))).collect()
}

fn line(task: &TaskRow) -> String {
    let done = task.steps.iter().filter(|step| step.ended.is_some()).count();
    let why = task.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
    format!("task/{} [{}] {} of {} steps: {}{why}", task.id, task.state, done, task.of, task.text)
}

/// A task with its steps.
fn show(task: &TaskRow) -> String {
    let mut text = line(task) + "\n";
    let ended = task.ended.map_or(String::new(), |ended| format!(", ended {ended}"));
    let _ = writeln!(text, "  begun {} by {} in cluster {}: {}{ended}", task.began, task.by, task.cluster, task.reason);
    if let Some(engine) = task.start_id {
        let chosen = task.query.as_ref().map_or("chosen at random".to_owned(), |query| format!("chosen by {query}"));
        let _ = writeln!(text, "  restarts process {engine}, {chosen}");
    }
    for TaskStepRow { step, what, began, ended, entry } in &task.steps {
        let _ = match (ended, entry) {
            (Some(ended), Some(entry)) => writeln!(text, "  step {step}, {what}: done {ended} by entry {entry}"),
            _ => writeln!(text, "  step {step}, {what}: next since {began}"),
        };
    }
    text
}
