//! The volume of a server has too little room for a primary, or enough again.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::Outcome;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes whether the volume of a server has room for a primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportRoom {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// Whether it has too little.
    pub short: bool,
}

impl Change for ReportRoom {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, short: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, short } = self;
        let process = domain.of_session(id, session)?;
        let (known, name, archive) = (process.short_of_room, process.database.clone(), domain.replica_of(process)?);
        if known == short {
            return Ok(Outcome::Unchanged);
        }
        domain.in_session(id, session)?.short_of_room = short;
        let subjects = [Subject::Process(id), Subject::Archive(archive), Subject::Database(name)];
        domain.note(actor, subjects, ReplicationEvent::Room { archive, short }, None);
        Ok(Outcome::Changed)
    }
}
