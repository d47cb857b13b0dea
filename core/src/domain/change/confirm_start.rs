//! The volume of a server remembers its start, durably: only then does the server start. A volume that remembers an earlier start later
//! was set back, by a snapshot that was restored for instance.

use super::Change;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes that the volume of a server remembers its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmStart {
    /// The process, whose id the volume remembers.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
}

impl Change for ConfirmStart {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, _: &Actor) -> Applied {
        let Self { process: id, session } = self;
        let process = domain.of_session(id, session)?;
        let (name, archive) = (process.database.clone(), domain.replica_of(process)?);
        if process.data.is_none() {
            // What the volume remembered before has to be judged first.
            return Err(Refusal::NotServing(archive));
        }
        // Its registration has a record: nothing is added to the audit trail.
        let before = domain.replicated_mut(&name)?.starts.insert(archive, id);
        Ok(if before == Some(id) { Outcome::Unchanged } else { Outcome::Changed })
    }
}
