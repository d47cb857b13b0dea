//! A task begins: the resync leader has found that all its conditions hold.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::TaskEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{ClusterName, DatabaseName, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::protocol::NotReady;
use crate::domain::task::{ProtocolUpgrade, Task, TaskKind};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
        let TaskKind::ProtocolUpgrade(ProtocolUpgrade {
            database,
            deployment,
            uid,
            from,
            to,
            release,
            engine: _,
            query,
        }) = kind;
        bounds.names([("a database", database.as_str()), ("a Deployment", deployment), ("a release", release)])?;
        bounds.name("a UID", uid)?;
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
        let TaskKind::ProtocolUpgrade(upgrade) = &kind;
        let name = upgrade.database.clone();
        let id = domain.last_task.next();
        domain.last_task = id;
        let begun = TaskEvent::Begun { task: id, kind: Box::new(kind.clone()), reason: reason.clone() };
        domain.note(actor, [Subject::Task(id), kind.scope()], begun, Some(evidence));
        let task = Task::new(id, kind, fence.cluster, actor.to_string(), reason, domain.time);
        domain.tasks.insert(id, task);
        // The other clusters look again: what they said may be of long ago.
        if let Some(database) = domain.databases.get_mut(&name) {
            database.judged.clear();
        }
        Ok(Outcome::Changed)
    }
}

impl Planned for BeginTask {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let TaskKind::ProtocolUpgrade(upgrade) = &self.kind;
        vec![domain.workloads_of(&upgrade.database), Need::Anchor]
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
        domain.may_raise(fence, upgrade, evidence)?;
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

/// Refuses what must not happen while an annotation pauses a workload of the database.
pub(super) fn not_paused(evidence: &Evidence, database: &DatabaseName) -> Result<(), Refusal> {
    match evidence.upgrade_paused(database) {
        false => Ok(()),
        true => Err(Refusal::Unproven(format!("no workload of database {database} pauses the resync"))),
    }
}

/// Refuses what must not happen during a rollout; else the pods of the database.
pub(super) fn settled<'a>(
    evidence: &'a Evidence,
    database: &DatabaseName,
) -> Result<&'a BTreeMap<String, Uid>, Refusal> {
    let unproven = || Refusal::Unproven(format!("no workload of database {database} is being rolled out"));
    evidence.settled(database).ok_or_else(unproven)
}

impl Domain {
    /// Refuses to raise a version unless all the conditions hold under which that was planned.
    pub(super) fn may_raise(
        &self,
        fence: &Fence,
        upgrade: &ProtocolUpgrade,
        evidence: &Evidence,
    ) -> Result<(), Refusal> {
        let name = &upgrade.database;
        self.fits_plan(upgrade)?;
        self.settled_elsewhere(&fence.cluster, name)?;
        self.anchored(&fence.cluster, evidence)?;
        if !evidence.facts.contains(&upgrade.asked()) {
            let what = format!("deployment {} asks for the upgrade of database {name} as it did", upgrade.deployment);
            return Err(Refusal::Unproven(what));
        }
        not_paused(evidence, name)?;
        self.all_engines_known(evidence, name)
    }

    /// Refuses while another cluster's resync leader does not say that all engines there are known: no agent of this one sees them.
    pub(super) fn settled_elsewhere(&self, cluster: &ClusterName, name: &DatabaseName) -> Result<(), Refusal> {
        match self.cluster_against(cluster, name, |found| found.settled) {
            Some(other) => Err(Refusal::Unsettled { cluster: other.clone(), database: name.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses during a rollout, or if a pod of the database has no process that serves: its engine may be of any release.
    pub(super) fn all_engines_known(&self, evidence: &Evidence, database: &DatabaseName) -> Result<(), Refusal> {
        match self.unserving(database, settled(evidence, database)?) {
            Some(pod) => Err(Refusal::NotUpgradable { database: database.clone(), why: NotReady::Pod(pod.clone()) }),
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
    use std::collections::BTreeMap;

    #[test]
    fn what_is_too_long_does_not_fit() {
        let told = |change: &dyn Fn(&mut BeginTask, &mut ProtocolUpgrade)| {
            let protocol = |id| Protocol { id: ProtocolId(id), name: id.to_string() };
            let mut upgrade = ProtocolUpgrade {
                database: "demo".into(),
                deployment: "te".to_owned(),
                uid: "D1".into(),
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
        let read = |begin: &mut BeginTask| {
            begin.evidence.facts.push(Fact::Settled { database: long().into(), pods: BTreeMap::new() })
        };
        assert_eq!(told(&|begin, _| read(begin)), Err("a name that was read".to_owned()));
        let asked = |begin: &mut BeginTask, query: usize| {
            let (database, query) = ("demo".into(), Some("x".repeat(query)));
            let asked = Fact::UpgradeAsked { database, deployment: "te".to_owned(), uid: "D1".into(), query };
            begin.evidence.facts.push(asked);
        };
        assert_eq!(told(&|begin, _| asked(begin, 1024)), Ok(()));
        assert_eq!(told(&|begin, _| asked(begin, 1025)), Err("the query".to_owned()));
    }
}
