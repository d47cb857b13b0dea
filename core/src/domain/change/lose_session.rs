//! The session of a process is down: lost is not dead.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ProcessEvent;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::Outcome;
use crate::domain::process::SessionState;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes that a session is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoseSession {
    /// The process.
    pub process: StartId,
    /// The session that is meant.
    pub session: SessionNumber,
    /// How it is known.
    pub why: String,
}

impl Change for LoseSession {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, why } = self;
        cut(why, bounds.text);
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, why } = self;
        let (now, index) = (domain.time, domain.index);
        let process = domain.in_session(id, session)?;
        if let SessionState::Lost(_) = process.session.state {
            return Ok(Outcome::Unchanged);
        }
        process.session.state = SessionState::Lost(now);
        process.interrupted = Some(index);
        let server = process.session.server.clone();
        domain.note(actor, [Subject::Process(id)], ProcessEvent::SessionLost { session, server, why }, None);
        Ok(Outcome::Changed)
    }
}
