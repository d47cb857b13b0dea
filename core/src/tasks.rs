//! Tasks: what the resync leader does next for each of them, and which ones it begins.
//!
//! A planner derives the next step from the domain, from what Kubernetes shows and from what the task remembers. It keeps
//! nothing itself, so every leader continues where the one before it stopped. What a step does, and that it happens once, is the
//! business of `domain::change::advance_task`.

pub mod preference;
mod protocol_upgrade;
pub mod waits;
pub mod workloads;

use crate::domain::Domain;
use crate::domain::change::Command;
use crate::domain::ids::TaskId;
use crate::domain::task::{ProtocolUpgrade, StepKind, TaskKind};
use crate::resync::View;
use crate::resync::plan::Plan;

/// The subreconciler of all tasks.
pub(crate) fn plan(view: &View, plan: &mut Plan) {
    protocol_upgrade::plan(view, plan);
}

/// Whether a command begins a task or carries it on.
pub fn is_of_a_task(command: &Command) -> bool {
    matches!(command, Command::BeginTask(_) | Command::AdvanceTask(_) | Command::FailTask(_))
}

/// What is told before something that cannot be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The task that will do it.
    pub task: TaskId,
    /// The Deployment that it is told of.
    pub deployment: String,
    /// What will happen.
    pub message: String,
}

/// What is to be announced before the reads for a command: nothing may come between them and its proposal.
pub fn announcement(domain: &Domain, command: &Command) -> Option<Announcement> {
    let Command::AdvanceTask(change) = command else { return None };
    let task = domain.tasks.get(&change.task).filter(|_| change.what == StepKind::RaiseVersion)?;
    let TaskKind::ProtocolUpgrade(ProtocolUpgrade { deployment, database, from, to, engine, .. }) = &task.kind;
    let id = task.id;
    let message = format!(
        "task {id} raises the protocol version of database {database} from {from} to {to}, which is irreversible, and shuts \
         down process {engine} then"
    );
    Some(Announcement { task: id, deployment: deployment.clone(), message })
}
