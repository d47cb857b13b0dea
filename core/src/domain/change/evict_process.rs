//! An operator takes a process out of the domain, whether it has ended or not.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::ids::StartId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::ExitReason;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Evicts a process by an operator's command, whether it has ended or not. If it still speaks, it is told to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictProcess {
    /// The process.
    pub process: StartId,
}

impl Change for EvictProcess {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id } = self;
        only_an_operator(actor)?;
        if domain.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        if !domain.processes.contains_key(&id) {
            return Err(Refusal::UnknownProcess(id));
        }
        domain.bury(actor, id, ExitReason::Evicted, None, None);
        Ok(Outcome::Changed)
    }
}
