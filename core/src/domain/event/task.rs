//! What becomes of a task.

use crate::domain::ids::TaskId;
use crate::domain::task::{StepKind, TaskKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum TaskEvent {
    /// It began.
    Begun {
        /// The task.
        task: TaskId,
        /// What it does.
        kind: Box<TaskKind>,
        /// Why.
        reason: String,
    },
    /// A step was done.
    Advanced {
        /// The task.
        task: TaskId,
        /// The number of the step.
        step: u32,
        /// What was done.
        what: StepKind,
        /// Whether it was the last step.
        last: bool,
    },
    /// It was given up before it had changed anything.
    Failed {
        /// The task.
        task: TaskId,
        /// Why.
        why: String,
    },
    /// It was cancelled: by an operator, or since its database was deleted.
    Cancelled {
        /// The task.
        task: TaskId,
        /// How many of its steps were done.
        done: u32,
        /// Why.
        why: String,
    },
}

impl TaskEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Begun { task: _, kind, reason } => kind.bytes() + reason.len(),
            Self::Advanced { task: _, step: _, what: _, last: _ } => 0,
            Self::Failed { task: _, why } | Self::Cancelled { task: _, done: _, why } => why.len(),
        }
    }
}

impl fmt::Display for TaskEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun { task, kind, reason } => write!(f, "task {task} begun: {kind}, since {reason}"),
            Self::Advanced { task, step, what, last } => {
                write!(f, "task {task}: step {step}, {}, is done", what.name())?;
                if *last { f.write_str(", and the task with it") } else { Ok(()) }
            }
            Self::Failed { task, why } => write!(f, "task {task} was given up before it changed anything: {why}"),
            Self::Cancelled { task, done, why } => {
                write!(f, "task {task} cancelled with {done} of its steps done: {why}")
            }
        }
    }
}
