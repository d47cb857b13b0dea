//! A task begins: the resync leader has found that all its conditions hold.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::TaskEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::DatabaseName;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::task::{ProtocolUpgrade, Task, TaskKind};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Begins a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginTask {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// What it does.
    pub kind: TaskKind,
    /// Why.
    pub reason: String,
    /// The proof that its conditions hold.
    pub evidence: Evidence,
}

impl Change for BeginTask {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, kind, reason, evidence } = self;
        let TaskKind::ProtocolUpgrade(ProtocolUpgrade { database, deployment, from, to, release, engine: _, query }) =
            kind;
        bounds.names([("a database", database.as_str()), ("a Deployment", deployment), ("a release", release)])?;
        bounds.names([("a protocol version", &from.name), ("a protocol version", &to.name)])?;
        query.iter().try_for_each(|query| fits("the query", query, bounds.text))?;
        fits("the reason", reason, bounds.text)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence, kind, reason, evidence } = self;
        let id = domain.last_task.next();
        domain.last_task = id;
        let begun = TaskEvent::Begun { task: id, kind: Box::new(kind.clone()), reason: reason.clone() };
        domain.note(actor, [Subject::Task(id), kind.scope()], begun, Some(evidence));
        let task = Task::new(id, kind, fence.cluster, actor.to_string(), reason, domain.time);
        domain.tasks.insert(id, task);
        Ok(Outcome::Changed)
    }
}

impl Planned for BeginTask {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        let TaskKind::ProtocolUpgrade(upgrade) = &self.kind;
        vec![Need::WorkloadsOf(upgrade.database.clone()), Need::Anchor]
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, kind, reason: _, evidence } = self;
        domain.fenced(fence)?;
        if let Some(running) = domain.task_on(&kind.scope()) {
            return if running.kind == *kind { Ok(Work::Done) } else { Err(Refusal::TaskRuns(running.id)) };
        }
        let TaskKind::ProtocolUpgrade(upgrade) = kind;
        let name = &upgrade.database;
        if domain.declined(name) == Some(upgrade.to.id) {
            return Err(Refusal::UpgradeDeclined(name.clone()));
        }
        domain.fits_plan(upgrade)?;
        domain.alone_on(fence, name)?;
        domain.anchored(evidence)?;
        asked_for(evidence, name)?;
        settled(evidence, name)?;
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        let TaskKind::ProtocolUpgrade(upgrade) = &self.kind;
        let pod = domain.processes.get(&upgrade.engine).map_or("", |process| &process.identity.pod);
        let chosen = if upgrade.query.is_some() { "chosen by the query" } else { "chosen at random" };
        let engine = upgrade.engine;
        format!("begin a task: {}, which is irreversible, then shut down process {engine} ({pod}), {chosen}", self.kind)
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::BeginTask(Box::new(Self { fence, evidence, ..self.clone() }))
    }
}

/// Refuses an upgrade that no annotation asks for.
pub(super) fn asked_for(evidence: &Evidence, database: &DatabaseName) -> Result<(), Refusal> {
    match evidence.upgrade_asked(database) {
        true => Ok(()),
        false => Err(Refusal::Unproven(format!("a Deployment asks for the upgrade of database {database}"))),
    }
}

/// Refuses what must not happen during a rollout.
pub(super) fn settled(evidence: &Evidence, database: &DatabaseName) -> Result<(), Refusal> {
    match evidence.settled(database) {
        true => Ok(()),
        false => Err(Refusal::Unproven(format!("no workload of database {database} is being rolled out"))),
    }
}

impl Domain {
    /// Refuses what a leader cannot judge alone: a process of the database in another cluster, whose workloads it does not see.
    pub(super) fn alone_on(&self, fence: &Fence, database: &DatabaseName) -> Result<(), Refusal> {
        match self.processes_of(database).find(|process| process.cluster != fence.cluster) {
            Some(process) => Err(Refusal::AnotherCluster(process.cluster.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BeginTask;
    use crate::domain::bounds::Bounds;
    use crate::domain::change::Change;
    use crate::domain::command::Fence;
    use crate::domain::evidence::{Evidence, Fact};
    use crate::domain::ids::{ProtocolId, StartId};
    use crate::domain::protocol::Protocol;
    use crate::domain::task::{ProtocolUpgrade, TaskKind};

    #[test]
    fn what_is_too_long_does_not_fit() {
        let told = |change: &dyn Fn(&mut BeginTask, &mut ProtocolUpgrade)| {
            let protocol = |id| Protocol { id: ProtocolId(id), name: id.to_string() };
            let mut upgrade = ProtocolUpgrade {
                database: "demo".into(),
                deployment: "te".to_owned(),
                from: protocol(1),
                to: protocol(2),
                release: "2".to_owned(),
                engine: StartId(1),
                query: None,
            };
            let mut begin = BeginTask {
                fence: Fence::default(),
                kind: TaskKind::ProtocolUpgrade(upgrade.clone()),
                reason: "why".to_owned(),
                evidence: Evidence::default(),
            };
            change(&mut begin, &mut upgrade);
            begin.kind = TaskKind::ProtocolUpgrade(upgrade);
            begin
                .fit(&Bounds::DEFAULT)
                .map_err(|excess| excess.to_string().split(':').next().unwrap_or_default().to_owned())
        };
        let long = || "x".repeat(2000);
        assert_eq!(told(&|_, _| {}), Ok(()));
        assert_eq!(told(&|begin, _| begin.reason = long()), Err("the reason".to_owned()));
        assert_eq!(told(&|_, upgrade| upgrade.query = Some(long())), Err("the query".to_owned()));
        assert_eq!(told(&|_, upgrade| upgrade.to.name = long()), Err("a protocol version".to_owned()));
        assert_eq!(told(&|_, upgrade| upgrade.release = long()), Err("a release".to_owned()));
        assert_eq!(told(&|_, upgrade| upgrade.deployment = long()), Err("a Deployment".to_owned()));
        let read = |begin: &mut BeginTask| begin.evidence.facts.push(Fact::Settled { database: long().into() });
        assert_eq!(told(&|begin, _| read(begin)), Err("a name that was read".to_owned()));
    }
}
