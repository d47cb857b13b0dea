//! A storage manager, asked after an entry, still ran: the proof that its archive holds everything up to there.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ProcessEvent;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::SessionState;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes that a storage manager's engine, asked after an entry of the log, still ran with all data of its database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRunning {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// The entry.
    pub as_of: u64,
}

impl Change for ConfirmRunning {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, as_of: _ } = self;
        Ok(())
    }

    /// Notes that an engine still ran after entry `as_of`, if whether it did decides anything.
    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, as_of } = self;
        let process = domain.in_session(id, session)?;
        if process.session.state != SessionState::Live {
            return Err(Refusal::SessionLost { process: id, session });
        }
        let entry = as_of.min(domain.index);
        if domain.owed_proof(id).is_none_or(|owed| entry < owed) {
            return Ok(Outcome::Unchanged);
        }
        domain.prove(id, entry);
        let archive = domain.processes.get(&id).and_then(|process| process.archive).map(Subject::Archive);
        let subjects = [Subject::Process(id)].into_iter().chain(archive);
        domain.note(actor, subjects, ProcessEvent::RanAfter { entry }, None);
        Ok(Outcome::Changed)
    }
}
