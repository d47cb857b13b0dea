//! A client asks a process to stop.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ProcessEvent;
use crate::domain::ids::StartId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::{DurableState, Stop};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Asks a process to end. Whichever agent has its session passes it on, now or when there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopProcess {
    /// The process.
    pub process: StartId,
    /// How it shall end.
    pub how: Stop,
}

impl Change for StopProcess {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, how: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, how } = self;
        if domain.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let process = domain.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))?;
        // To be killed is more than to stop, and not taken back.
        if process.stop >= Some(how) {
            return Ok(Outcome::Unchanged);
        }
        process.stop = Some(how);
        // One that never ran keeps its state: its database would be taken to run.
        if process.durable == DurableState::Monitored {
            process.durable = DurableState::RequestedShutdown;
        }
        domain.note(actor, [Subject::Process(id)], ProcessEvent::StopAsked { how }, None);
        Ok(Outcome::Changed)
    }
}
