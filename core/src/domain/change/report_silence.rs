//! The server of a standby does not hear its primary any more, or hears it again.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{Generation, SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::{Position, Silent};
use crate::domain::{Applied, Domain};
use crate::replication::Refused;
use serde::{Deserialize, Serialize};

/// Notes that a standby of the sync set does not hear its primary, or does again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportSilence {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// The generation of the primary.
    pub generation: Generation,
    /// The end of the log that its server has, if it does not hear the primary.
    pub silent: Option<Position>,
}

impl Change for ReportSilence {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, generation: _, silent: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, generation, silent } = self;
        let process = domain.of_session(id, session)?;
        let (name, archive) = (process.database.clone(), domain.replica_of(process)?);
        let since = domain.time;
        // Its word would be of the time before, and stay.
        let heard =
            domain.replicated(&name).and_then(|it| it.primary.as_ref()).is_some_and(|it| domain.is_live(it.process));
        let replicated = domain.replicated_mut(&name)?;
        let record = replicated.record_mut(&name)?;
        let current = record.generation;
        if record.primary == archive || !record.sync_set.contains(&archive) {
            return Err(Refused::NotInSyncSet(archive).into());
        }
        let Some(primary) = replicated.primary.as_mut().filter(|_| current == generation) else {
            return Err(Refusal::NotThePrimary { process: id, generation });
        };
        if heard && silent.is_some() {
            return Ok(Outcome::Unchanged);
        }
        let before = primary.silent.get(&archive).copied();
        let same = before.is_some_and(|before| (before.process, before.session) == (id, session));
        if same == silent.is_some() && before.is_some() == silent.is_some() {
            return Ok(Outcome::Unchanged);
        }
        match silent {
            Some(end) => primary.silent.insert(archive, Silent { process: id, session, since, end }),
            None => primary.silent.remove(&archive),
        };
        let subjects = [Subject::Database(name), Subject::Archive(archive), Subject::Process(id)];
        domain.note(actor, subjects, ReplicationEvent::Heard { generation, archive, silent }, None);
        Ok(Outcome::Changed)
    }
}
