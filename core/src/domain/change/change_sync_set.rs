//! The sync set of a database changes: an archive is asked to join it, counts, or leaves it.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName, Generation, SetVersion};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::Replicated;
use crate::domain::{Applied, Domain};
use crate::replication::InForce;
use serde::{Deserialize, Serialize};

/// Changes the sync set of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSyncSet {
    /// The database.
    pub database: DatabaseName,
    /// The generation that the proposer knows.
    pub generation: Generation,
    /// The version of the sync set that it knows.
    pub version: SetVersion,
    /// What changes.
    pub what: SetChange,
}

/// What changes of a sync set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum SetChange {
    /// The primary has to wait for this archive too, which does not count yet.
    Join(ArchiveId),
    /// The primary's word that its rule of this version is in force: the archive that joins counts from now on.
    InForce,
    /// The archive does not count any more.
    Leave {
        /// The archive.
        archive: ArchiveId,
        /// Why.
        why: String,
    },
}

impl Change for ChangeSyncSet {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, generation: _, version: _, what } = self;
        if let SetChange::Leave { archive: _, why } = what {
            cut(why, bounds.text);
        }
        bounds.name("the name of a database", database)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, generation, version, what } = self;
        if let SetChange::Join(archive) = what {
            let joins = domain.replicated(&name).is_some_and(|replicated| domain.may_join_set(replicated, archive));
            let of_it = domain.archives.get(&archive).is_some_and(|archive| archive.database == name);
            if !joins || !of_it {
                return Err(Refusal::NotServing(archive));
            }
        }
        let replicated = domain.replicated_mut(&name)?;
        if let Some(why) = &replicated.uncertain {
            return Err(Refusal::Uncertain { database: name, why: why.clone() });
        }
        // A set that shrinks to the archive of a dead primary helps no other server.
        if matches!(what, SetChange::Leave { .. }) && !replicated.is_promoted() {
            return Err(Refusal::NotPromoted(name));
        }
        let record = replicated.record_mut(&name)?;
        let mut subjects = vec![Subject::Database(name.clone())];
        // What its server said of the primary is of the time before.
        let mut unheard = None;
        let event = match what {
            SetChange::Join(archive) => {
                record.ask_to_join(generation, version, archive)?;
                unheard = Some(archive);
                subjects.push(Subject::Archive(archive));
                Some(ReplicationEvent::Joins { archive, version: record.version })
            }
            SetChange::InForce => {
                let joined = record.note_in_force(InForce { generation, version })?;
                if joined.is_none() && replicated.in_force == version {
                    return Ok(Outcome::Unchanged);
                }
                replicated.in_force = version;
                subjects.extend(joined.map(Subject::Archive));
                // That a smaller rule is in force says nothing new of what is safe.
                joined.map(|archive| ReplicationEvent::Joined { archive, version })
            }
            SetChange::Leave { archive, why } => {
                record.leave(generation, version, archive)?;
                unheard = Some(archive);
                subjects.push(Subject::Archive(archive));
                Some(ReplicationEvent::Left { archive, version: record.version, why })
            }
        };
        if let Some((primary, archive)) = replicated.primary.as_mut().zip(unheard) {
            primary.silent.remove(&archive);
        }
        if let Some(event) = event {
            domain.note(actor, subjects, event, None);
        }
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Whether an archive has a server that could be in the sync set: with data of the record, and not removed.
    pub(crate) fn may_join_set(&self, replicated: &Replicated, id: ArchiveId) -> bool {
        let is_kept = self.archives.get(&id).is_some_and(|archive| archive.removed.is_none());
        is_kept && self.has_data_of(replicated, id)
    }
}
