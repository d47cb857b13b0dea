//! A storage manager says how new its data is.

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

/// Notes how new a storage manager's data is: the higher, the newer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportHistory {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// A number that grows with the database.
    pub history: u64,
}

impl Change for ReportHistory {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, history: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, history } = self;
        let process = domain.in_session(id, session)?;
        if process.session.state != SessionState::Live {
            return Err(Refusal::SessionLost { process: id, session });
        }
        let (same, held) = (process.history == Some(history), process.started.is_none());
        // Once its engine may start, what is said may be outdated at once. If the gate has closed again meanwhile, its agent
        // says by this that the engine was not told to start.
        if !domain.lacks_history(id) && (same || !held) {
            return Ok(Outcome::Unchanged);
        }
        let process = domain.in_session(id, session)?;
        process.started = None;
        process.history = Some(history);
        let (archive, unread) = (process.archive, process.claim_unread);
        if let Some(archive) = archive.and_then(|archive| domain.archives.get_mut(&archive)) {
            // The volume of a new archive may have been restored without its marker. What a copy holds is not the archive's.
            archive.ever_ran |= history > 0 && !(unread && archive.claim.is_some());
        }
        domain.note(actor, [Subject::Process(id)], ProcessEvent::HistoryReported { history }, None);
        Ok(Outcome::Changed)
    }
}
