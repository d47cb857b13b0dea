//! Tasks: changes in several steps that a resync leader carries out, and that another one continues.
//!
//! A task is part of the domain. Each of its steps is one entry of the log that names the task and the number of the step, so
//! a step happens once, however often it is proposed, and by which leader. There is one task at a time for each scope.

use super::Domain;
use super::evidence::Fact;
use super::ids::{ClusterName, DatabaseName, Millis, ProtocolId, StartId, TaskId, Uid};
use super::outcome::Refusal;
use super::protocol::{Protocol, serves};
use crate::domain::audit::Subject;
use crate::domain::process::EngineKind;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::IntoStaticStr;

/// A task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What it does, and what it has to remember for that.
    pub kind: TaskKind,
    /// The cluster whose resync leader carries it out.
    pub cluster: ClusterName,
    /// Who began it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The steps so far: all but the last have ended.
    pub steps: Vec<Step>,
    /// Whether it runs, or how it has ended.
    pub state: TaskState,
    /// When it began.
    pub began: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(deny_unknown_fields)]
#[strum(serialize_all = "kebab-case")]
pub enum TaskKind {
    /// Raises the effective protocol version of a database, and restarts one transaction engine.
    ProtocolUpgrade(ProtocolUpgrade),
}

/// An upgrade, as it was planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtocolUpgrade {
    /// The database.
    pub database: DatabaseName,
    /// The Deployment that asks for it.
    pub deployment: String,
    /// Its UID.
    pub uid: Uid,
    /// The version in effect before.
    pub from: Protocol,
    /// The version in effect after it.
    pub to: Protocol,
    /// The release of all its processes.
    pub release: String,
    /// The transaction engine that is shut down, once the version is in effect.
    pub engine: StartId,
    /// The query that chose it; `None` if it was chosen at random.
    pub query: Option<String>,
}

/// One step of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is done.
    pub what: StepKind,
    /// When it became the next one.
    pub began: Millis,
    /// When it was done.
    pub ended: Option<Millis>,
    /// The log entry that did it.
    pub entry: Option<u64>,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum StepKind {
    /// Raises the effective protocol version.
    RaiseVersion,
    /// Asks the transaction engine that was chosen to end.
    StopEngine,
    /// Waits until a transaction engine runs that started after the upgrade.
    AwaitEngine,
}

impl StepKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Whether a task runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// It does.
    Running,
    /// All its steps are done.
    Done,
    /// It was given up before it had changed anything.
    Failed {
        /// Why.
        why: String,
    },
    /// It was cancelled: by an operator, or since its database was deleted.
    Cancelled {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("RUNNING"),
            Self::Done => f.write_str("DONE"),
            Self::Failed { .. } => f.write_str("FAILED"),
            Self::Cancelled { .. } => f.write_str("CANCELLED"),
        }
    }
}

impl TaskKind {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// What no two tasks that run share.
    pub fn scope(&self) -> Subject {
        match self {
            Self::ProtocolUpgrade(upgrade) => Subject::Database(upgrade.database.clone()),
        }
    }

    /// Its steps, in order.
    pub fn steps(&self) -> &'static [StepKind] {
        match self {
            Self::ProtocolUpgrade(_) => &[StepKind::RaiseVersion, StepKind::StopEngine, StepKind::AwaitEngine],
        }
    }

    /// How many bytes its strings have, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::ProtocolUpgrade(ProtocolUpgrade {
                database,
                deployment,
                uid,
                from,
                to,
                release,
                engine: _,
                query,
            }) => {
                let query = query.as_ref().map_or(0, String::len);
                let names = [database.as_str(), deployment, uid.as_str(), &from.name, &to.name, release];
                names.into_iter().map(str::len).sum::<usize>() + query
            }
        }
    }
}

impl ProtocolUpgrade {
    /// What a fresh read shows while the Deployment still asks for it as it did.
    pub(super) fn asked(&self) -> Fact {
        let Self { database, deployment, uid, query, .. } = self.clone();
        Fact::UpgradeAsked { database, deployment, uid, query }
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtocolUpgrade(ProtocolUpgrade { database, from, to, .. }) => {
                write!(f, "upgrade database {database} from protocol version {from} to {to}")
            }
        }
    }
}

impl Task {
    /// A task that is at its first step.
    pub(super) fn new(
        id: TaskId,
        kind: TaskKind,
        cluster: ClusterName,
        by: String,
        reason: String,
        now: Millis,
    ) -> Self {
        let first = kind.steps().first().map(|what| Step { what: *what, began: now, ended: None, entry: None });
        let steps = first.into_iter().collect();
        Self { id, kind, cluster, by, reason, steps, state: TaskState::Running, began: now, ended: None }
    }

    /// Whether it has not ended.
    pub fn runs(&self) -> bool {
        self.state == TaskState::Running
    }

    /// The step that comes next, with its number, which counts from 1; `None` once it has ended.
    pub fn step(&self) -> Option<(u32, StepKind)> {
        let last = self.steps.last().filter(|step| step.ended.is_none() && self.runs())?;
        Some((u32::try_from(self.steps.len()).unwrap_or(u32::MAX), last.what))
    }

    /// How many of its steps are done.
    pub fn done(&self) -> u32 {
        let done = self.steps.iter().filter(|step| step.ended.is_some()).count();
        u32::try_from(done).unwrap_or(u32::MAX)
    }

    /// The log entry that did a step.
    pub fn entry_of(&self, what: StepKind) -> Option<u64> {
        self.steps.iter().find(|step| step.what == what)?.entry
    }

    /// Notes that its step is done, and turns to the next one.
    pub(super) fn advance(&mut self, entry: u64, now: Millis) {
        if let Some(step) = self.steps.last_mut() {
            (step.ended, step.entry) = (Some(now), Some(entry));
        }
        match self.kind.steps().get(self.steps.len()) {
            Some(what) => self.steps.push(Step { what: *what, began: now, ended: None, entry: None }),
            None => self.end(TaskState::Done, now),
        }
    }

    pub(super) fn end(&mut self, state: TaskState, now: Millis) {
        (self.state, self.ended) = (state, Some(now));
    }

    pub(super) fn bytes(&self) -> usize {
        let state = match &self.state {
            TaskState::Running | TaskState::Done => 0,
            TaskState::Failed { why } => why.len(),
            TaskState::Cancelled { by, why } => by.len() + why.len(),
        };
        let strings = self.cluster.as_str().len() + self.by.len() + self.reason.len() + state;
        strings + self.kind.bytes() + 64 * self.steps.len()
    }
}

impl Domain {
    /// The task that runs in a scope.
    pub fn task_on(&self, scope: &Subject) -> Option<&Task> {
        self.tasks.values().find(|task| task.runs() && task.kind.scope() == *scope)
    }

    /// The task, if its next step is this one; `None` if that step is done.
    pub(super) fn at_step(&self, id: TaskId, step: u32, what: StepKind) -> Result<Option<&Task>, Refusal> {
        let task = self.tasks.get(&id).ok_or(Refusal::UnknownTask(id))?;
        if step <= task.done() {
            return Ok(None);
        }
        match task.step() {
            None => Err(Refusal::TaskEnded { task: id, state: task.state.to_string() }),
            Some(next) if next == (step, what) => Ok(Some(task)),
            Some((next, _)) => Err(Refusal::AnotherStep { task: id, proposed: step, next }),
        }
    }

    /// Keeps the task that has ended, and so many of those that ended before.
    pub(super) fn drop_old_tasks(&mut self) {
        let ended = self.tasks.values().filter(|task| !task.runs()).map(|task| (task.ended, task.id));
        let mut ended: Vec<_> = ended.collect();
        ended.sort();
        let surplus = ended.len().saturating_sub(self.bounds.tasks);
        for (_, id) in ended.into_iter().take(surplus) {
            self.tasks.remove(&id);
        }
    }

    /// Whether the version of an upgrade can be raised as it was planned: every condition holds, nothing that was planned has
    /// changed since, and the engine that is to be restarted serves.
    pub(super) fn fits_plan(&self, planned: &ProtocolUpgrade) -> Result<(), Refusal> {
        let ProtocolUpgrade { database, deployment: _, uid: _, from, to, release, engine, query: _ } = planned;
        let now =
            self.upgradable(database).map_err(|why| Refusal::NotUpgradable { database: database.clone(), why })?;
        if (&now.from, &now.max, &now.release) != (from, to, release) {
            return Err(Refusal::AnotherVersion { database: database.clone(), from: now.from.id, to: now.max.id });
        }
        let chosen = self.processes.get(engine).filter(|process| process.database == *database);
        match chosen.filter(|process| process.kind == EngineKind::Te && serves(process)) {
            Some(_) => Ok(()),
            None => Err(Refusal::EngineUnfit(*engine)),
        }
    }

    /// The transaction engine that serves a database after its upgrade: it started after that entry of the log, and supports the
    /// version in effect.
    pub fn engine_since(&self, upgrade: &ProtocolUpgrade, entry: u64) -> Option<StartId> {
        let engines = self.processes_of(&upgrade.database);
        let engines = engines.filter(|process| process.kind == EngineKind::Te && serves(process));
        let mut engines = engines.filter(|process| process.about.protocols.contains_key(&upgrade.to.id));
        engines.find(|process| process.entry > entry).map(|process| process.id)
    }

    /// The version to which an operator cancelled the upgrade of a database.
    pub fn declined(&self, database: &DatabaseName) -> Option<ProtocolId> {
        self.databases.get(database)?.protocol.as_ref()?.declined
    }
}
