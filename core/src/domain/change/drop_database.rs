//! An operator deletes a database: `delete database` of the published client. The resync does the same by itself where it may, and
//! leaves alone what an operator created.
//!
//! No data is lost by it: a database whose archives have claims that exist, or may exist, is refused. What remains of an
//! archive that is removed and whose claim is proven to be gone goes with it, and an archive that was created by hand and on which
//! no engine ever registered.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::archive::Archive;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::database::DatabaseState;
use crate::domain::event::{ArchiveEvent, ClaimName, DatabaseEvent};
use crate::domain::evidence::{Evidence, Fact, Need};
use crate::domain::ids::{ArchiveId, ClusterName, DatabaseName};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Deletes a database by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropDatabase {
    /// The database.
    pub database: DatabaseName,
    /// Whether the record of the deleted database, and those of its processes, go too.
    pub purge: bool,
    /// The cluster in which its evidence was read.
    pub cluster: ClusterName,
    /// The proof that nothing wants it, and that the claims of its archives are gone.
    pub evidence: Evidence,
}

impl Change for DropDatabase {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database: _, purge: _, cluster, evidence } = self;
        bounds.name("the cluster", cluster)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let gone = self.check(domain, actor)?;
        let Self { database: name, purge, cluster: _, evidence } = self;
        let subject = || [Subject::Database(name.clone())];
        let was_deleted = domain.is_deleted(&name);
        for (archive, event) in gone {
            domain.forget(actor, archive, event, evidence.clone());
        }
        if !was_deleted {
            if let Some(database) = domain.databases.get_mut(&name) {
                database.delete();
                database.by_hand = false;
                database.options.clear();
            }
            domain.balancing.drop_database(&name, domain.index);
            domain.end_task_of(actor, &name);
            let deleted = DatabaseEvent::Deleted { database: name.clone() };
            domain.note(actor, subject(), deleted, Some(evidence));
        }
        if purge {
            domain.databases.remove(&name);
            domain.tombstones.retain(|_, tombstone| tombstone.process.database != name);
            domain.note(actor, subject(), DatabaseEvent::Purged { database: name.clone() }, None);
        }
        Ok(if was_deleted && !purge { Outcome::Unchanged } else { Outcome::Changed })
    }
}

impl DropDatabase {
    /// What has to be read afresh for it.
    pub fn reads(domain: &Domain, name: &DatabaseName) -> Vec<Need> {
        let of_it = domain.archives.values().filter(|archive| archive.database == *name);
        let claims = of_it.filter_map(|archive| Some(Need::Claim(archive.claim.as_ref()?.name.clone())));
        claims.chain([Need::WantersOf(name.clone()), Need::Anchor]).collect()
    }

    /// What of its archives goes with it, or why it is not deleted.
    fn check(&self, domain: &Domain, actor: &Actor) -> Result<Vec<(ArchiveId, ArchiveEvent)>, Refusal> {
        let Self { database: name, purge: _, cluster: _, evidence } = self;
        only_an_operator(actor)?;
        if !domain.databases.contains_key(name) {
            return Err(Refusal::UnknownDatabase(name.clone()));
        }
        if domain.is_deleted(name) {
            return Ok(Vec::new());
        }
        if let Some(process) = domain.processes.values().find(|process| process.database == *name) {
            return Err(Refusal::HasProcess { database: name.clone(), process: process.id });
        }
        domain.anchored(&self.cluster, evidence)?;
        let of_it = domain.archives.values().filter(|archive| archive.database == *name);
        let gone = of_it.map(|archive| {
            let gone = self.goes_with(domain, archive);
            gone.ok_or_else(|| Refusal::HasArchive { database: name.clone(), archive: archive.id })
        });
        let gone = gone.collect::<Result<Vec<_>, _>>()?;
        // The archives of another cluster are refused above. What else may want it there cannot be read here.
        if evidence.database_unwanted(name) {
            return Ok(gone);
        }
        let wanted = evidence.facts.iter().find_map(|fact| match fact {
            Fact::DatabaseWanted { database, by } if database == name => Some(by.clone()),
            _ => None,
        });
        Err(match wanted {
            Some(by) => Refusal::DatabaseWanted { database: name.clone(), by },
            None => Refusal::Unproven(format!("nothing wants database {name}")),
        })
    }

    /// What becomes of an archive of the database, if no data is lost with it.
    fn goes_with(&self, domain: &Domain, archive: &Archive) -> Option<(ArchiveId, ArchiveEvent)> {
        if archive.by_hand && !archive.ever_ran {
            let why = format!("database {} was deleted, and no engine ever registered on it", self.database);
            return Some((archive.id, ArchiveEvent::Forgotten { archive: archive.id, why }));
        }
        let claim = archive.claim.as_ref().filter(|_| archive.removed.is_some())?;
        let is_gone = archive.cluster == self.cluster && domain.lost_its_claim(archive, &self.evidence);
        let purged = || ArchiveEvent::Purged { archive: archive.id, claim: ClaimName::from(claim) };
        is_gone.then(|| (archive.id, purged()))
    }
}

impl Domain {
    fn is_deleted(&self, name: &DatabaseName) -> bool {
        self.databases.get(name).is_some_and(|database| database.state == DatabaseState::Tombstone)
    }
}
