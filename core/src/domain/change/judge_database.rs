//! The resync leader of a cluster says what it finds of a database there, where several clusters share the domain: no agent of another
//! cluster sees it. A database is deleted, and its protocol version raised, only if every other cluster agrees.

use super::{Change, Command, Planned, Work};
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::database::Judged;
use crate::domain::evidence::{Evidence, Fact, Need};
use crate::domain::ids::DatabaseName;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes what a cluster's resync leader finds of a database there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeDatabase {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The database.
    pub database: DatabaseName,
    /// Whether anything there wants the database.
    pub wanted: bool,
    /// Whether no workload of it is being rolled out there, and every pod of it has a process that serves.
    pub settled: bool,
    /// The proof that nothing wants it, or that it is settled.
    pub evidence: Evidence,
}

impl Change for JudgeDatabase {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, database: _, wanted: _, settled: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, _: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        // It says nothing new of the database itself; a change that rests on it keeps a record.
        let judged = self.judged();
        if let Some(database) = domain.databases.get_mut(&self.database) {
            database.judged.insert(self.fence.cluster, judged);
        }
        Ok(Outcome::Changed)
    }
}

impl JudgeDatabase {
    fn judged(&self) -> Judged {
        Judged { wanted: self.wanted, settled: self.settled, epoch: self.fence.epoch }
    }
}

impl Planned for JudgeDatabase {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let wanted = (!self.wanted).then(|| Need::WantersOf(self.database.clone()));
        let settled = self.settled.then(|| domain.workloads_of(&self.database));
        wanted.into_iter().chain(settled).chain([Need::Anchor]).collect()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, database: name, wanted, settled, evidence } = self;
        domain.led_by(fence)?;
        let Some(database) = domain.databases.get(name) else { return Err(Refusal::NoDatabase(name.clone())) };
        if database.judged.get(&fence.cluster) == Some(&self.judged()) {
            return Ok(Work::Done);
        }
        domain.anchored(&fence.cluster, evidence)?;
        if !wanted && (domain.serves_in(&fence.cluster, name) || !evidence.database_unwanted(name)) {
            return Err(Refusal::Unproven(format!("nothing wants database {name}")));
        }
        if *settled {
            domain.all_engines_known(evidence, name)?;
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        let Self { fence: _, database, wanted, settled, evidence: _ } = self;
        let wanted = if *wanted { "wants it" } else { "does not want it" };
        let settled = if *settled { "all its engines there are known" } else { "not all its engines there are known" };
        format!("tell the other clusters of database {database}: this one {wanted}, and {settled}")
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::JudgeDatabase(Self { fence, evidence, ..self.clone() })
    }

    fn removes(&self) -> bool {
        false
    }

    fn keeps(&self, _: &Fact) -> bool {
        true
    }
}
