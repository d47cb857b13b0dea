//! An engine says what it does.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ProcessEvent;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::{DurableState, EngineState, SessionState};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes what an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportState {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// The state.
    pub engine: EngineState,
    /// The engine's process id; 0 if it has none.
    pub pid: u32,
}

impl Change for ReportState {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, engine: _, pid: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, engine, pid } = self;
        let process = domain.in_session(id, session)?;
        if process.session.state != SessionState::Live {
            return Err(Refusal::SessionLost { process: id, session });
        }
        let durable = match (process.durable, engine) {
            (DurableState::Requested, EngineState::Running) => DurableState::Monitored,
            (DurableState::Monitored, EngineState::ShuttingDown) => DurableState::RequestedShutdown,
            // One that never ran keeps its state whatever it says: its database would be taken to run.
            (durable, _) => durable,
        };
        if (process.durable, process.engine, process.about.pid) == (durable, engine, pid) {
            return Ok(Outcome::Unchanged);
        }
        (process.durable, process.engine, process.about.pid) = (durable, engine, pid);
        let (database, archive) = (process.database.clone(), process.archive);
        let is_new = !domain.archives.values().any(|archive| archive.database == database && archive.ever_ran);
        let mut subjects = vec![Subject::Process(id)];
        if engine == EngineState::Running
            && let Some(archive) = archive.and_then(|archive| domain.archives.get_mut(&archive))
            && !archive.ever_ran
        {
            archive.ever_ran = true;
            subjects.push(Subject::Archive(archive.id));
        }
        domain.note(actor, subjects, ProcessEvent::StateChanged { durable, engine }, None);
        if let (EngineState::Running, Some(entry)) = (engine, domain.processes.get(&id).and_then(|it| it.started)) {
            domain.prove(id, entry);
        }
        if engine == EngineState::Running {
            domain.learn_protocol(actor, id, is_new);
        }
        domain.note_stopping(&database, true);
        domain.refresh_database(actor, &database);
        Ok(Outcome::Changed)
    }
}
