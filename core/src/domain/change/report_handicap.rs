//! What speaks against a server as the next primary, by its wrapper's word.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::Outcome;
use crate::domain::process::Handicap;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes what speaks against a server as the next primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportHandicap {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// All of it.
    pub handicap: Handicap,
}

impl Change for ReportHandicap {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, handicap: Handicap { short_of_room: _, replays_late: _ } } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, handicap } = self;
        let process = domain.of_session(id, session)?;
        let (known, name, archive) = (process.handicap, process.database.clone(), domain.replica_of(process)?);
        if known == handicap {
            return Ok(Outcome::Unchanged);
        }
        domain.in_session(id, session)?.handicap = handicap;
        let subjects = [Subject::Process(id), Subject::Archive(archive), Subject::Database(name)];
        domain.note(actor, subjects, ReplicationEvent::Handicap { archive, handicap }, None);
        Ok(Outcome::Changed)
    }
}
