//! The primary is to move to another archive, by an operator's request; the request can be taken back until its server has ended.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::{Actor, Role};
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName, Generation};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::Switchover;
use crate::domain::{Applied, Domain};
use crate::replication::Refused;
use serde::{Deserialize, Serialize};

/// Requests a switchover, or takes back the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestSwitchover {
    /// The database.
    pub database: DatabaseName,
    /// The generation of the primary that is to stand down.
    pub generation: Generation,
    /// What is asked.
    pub what: Asked,
    /// Why.
    pub why: String,
}

/// What is asked of a switchover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Asked {
    /// The primary moves to this archive, or to any other.
    Move(Option<ArchiveId>),
    /// It stays.
    Cancel,
}

impl Change for RequestSwitchover {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, generation: _, what: _, why } = self;
        cut(why, bounds.text);
        bounds.name("the name of a database", database)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, generation, what, why } = self;
        match (actor.role, &what) {
            (Role::Operator, _) | (Role::RaftLeader, Asked::Cancel) => {}
            _ => return Err(Refusal::OnlyAnOperator),
        }
        if let Asked::Move(to) = what {
            domain.may_switch_over(&name, generation, to)?;
        }
        let at = domain.time;
        let replicated = domain.replicated_mut(&name)?;
        let current = replicated.record_mut(&name)?.generation;
        let event = match what {
            Asked::Move(to) => {
                let by = actor.name.clone();
                replicated.switchover = Some(Switchover { to, why: why.clone(), at, by });
                ReplicationEvent::SwitchoverRequested { to, why }
            }
            Asked::Cancel => {
                if replicated.switchover.take_if(|_| current == generation).is_none() {
                    return Ok(Outcome::Unchanged);
                }
                ReplicationEvent::SwitchoverCancelled { why }
            }
        };
        domain.note(actor, [Subject::Database(name)], event, None);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Whether a switchover can be asked for.
    pub fn may_switch_over(
        &self,
        name: &DatabaseName,
        generation: Generation,
        to: Option<ArchiveId>,
    ) -> Result<(), Refusal> {
        let replicated = self.replicated(name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        let record = replicated.record.as_ref().ok_or_else(|| Refusal::NoPrimaryYet(name.clone()))?;
        if record.generation != generation {
            return Err(Refused::Generation { named: generation, current: record.generation }.into());
        }
        if replicated.switchover.is_some() {
            return Err(Refusal::SwitchoverUnderWay(name.clone()));
        }
        if let Some(why) = &replicated.uncertain {
            return Err(Refusal::Uncertain { database: name.clone(), why: why.clone() });
        }
        if !self.is_open(replicated) {
            return Err(Refusal::NotOpen(name.clone()));
        }
        let serves = |id: ArchiveId| {
            let of_it = self.archives.get(&id).is_some_and(|archive| archive.database == *name);
            of_it && self.serving(id).is_some()
        };
        let may_follow = |id: ArchiveId| self.is_empty(id) || self.has_data_of(replicated, id);
        match to {
            Some(to) if to == record.primary => Err(Refusal::IsThePrimary(to)),
            Some(to) if serves(to) && record.overwriting.contains_key(&to) => Err(Refused::Overwriting(to).into()),
            // With other data it could not join the sync set. Onto an empty volume it is copied.
            Some(to) if !serves(to) || !may_follow(to) => Err(Refusal::NotServing(to)),
            Some(_) => Ok(()),
            None => {
                let mut others = self.active_archives(name).filter(|archive| archive.id != record.primary);
                match others.any(|archive| serves(archive.id) && !record.overwriting.contains_key(&archive.id)) {
                    true => Ok(()),
                    false => Err(Refusal::NoCandidate(name.clone())),
                }
            }
        }
    }
}
