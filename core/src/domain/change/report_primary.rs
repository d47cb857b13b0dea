//! The server of a primary says how far it has come: promoted, open, ended.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{Generation, SessionNumber, StartId};
use crate::domain::is_default;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::{Begins, Ended, HISTORY};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes how far the server of a primary has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportPrimary {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// The generation.
    pub generation: Generation,
    /// What became of its server.
    pub what: Progress,
}

/// How far the server of a primary has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Progress {
    /// It was promoted.
    Promoted {
        /// Where its log begins.
        begins: Begins,
        /// Where the logs before it begin, as its volume has them, the last one last.
        before: Vec<Begins>,
        /// Whether its wrapper keeps the lease that it was granted under.
        #[serde(default, skip_serializing_if = "is_default")]
        keeps_lease: bool,
    },
    /// It lets clients in: its first record is on all archives that its rule requires.
    Opened,
    /// It has ended.
    Ended(Ended),
}

impl Change for ReportPrimary {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, generation: _, what } = self;
        if let Progress::Promoted { begins: _, before, keeps_lease: _ } = what {
            let surplus = before.len().saturating_sub(HISTORY);
            before.drain(..surplus);
        }
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, generation, what } = self;
        let name = domain.of_session(id, session)?.database.clone();
        let at = domain.time;
        let replicated = domain.replicated_mut(&name)?;
        let (archive, current) = {
            let record = replicated.record_mut(&name)?;
            (record.primary, record.generation)
        };
        let Some(primary) = replicated.primary.as_mut().filter(|it| it.process == id && current == generation) else {
            return Err(Refusal::NotThePrimary { process: id, generation });
        };
        // A server that has ended is neither promoted nor open, whatever a late message says.
        let is_new = match &what {
            Progress::Promoted { begins, before: _, keeps_lease } => {
                if begins.generation != generation {
                    return Err(Refusal::NotThePrimary { process: id, generation: begins.generation });
                }
                let keeps = *keeps_lease && !primary.keeps_lease;
                (primary.begins.is_none() || keeps) && primary.ended.is_none()
            }
            Progress::Opened => primary.opened.is_none() && primary.ended.is_none() && primary.begins.is_some(),
            Progress::Ended(_) => primary.ended.is_none(),
        };
        if !is_new {
            return Ok(Outcome::Unchanged);
        }
        match &what {
            Progress::Promoted { begins, before, keeps_lease } => {
                (primary.begins, primary.keeps_lease) = (Some(*begins), *keeps_lease);
                // What was granted before and never heard of to be promoted is in the files of the volume.
                let grows = before.is_sorted_by(|one, next| one.generation < next.generation);
                let earlier = before.iter().filter(|it| grows && it.generation < begins.generation);
                replicated.history = earlier.chain([begins]).copied().collect();
                let surplus = replicated.history.len().saturating_sub(HISTORY);
                replicated.history.drain(..surplus);
            }
            Progress::Opened => primary.opened = Some(at),
            Progress::Ended(ended) => primary.ended = Some(*ended),
        }
        let subjects = [Subject::Database(name), Subject::Archive(archive), Subject::Process(id)];
        domain.note(actor, subjects, ReplicationEvent::Progressed { generation, archive, what }, None);
        Ok(Outcome::Changed)
    }
}
