//! An engine with one primary says what is on its volume. The first one that does makes its database one with a single primary.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{DatabaseName, SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::EngineKind;
use crate::domain::replicated::Data;
use crate::domain::{Applied, Domain};
use crate::replication::Replication;
use serde::{Deserialize, Serialize};

/// Notes what is on the volume of an engine whose database has one primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportData {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// What is there.
    pub data: Data,
    /// The last start that the volume remembered when the wrapper came up; 0 if none.
    pub start: StartId,
}

impl Change for ReportData {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, data: _, start: _ } = self;
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, data, start } = self;
        let process = domain.of_session(id, session)?;
        let (known, name) = (process.data, process.database.clone());
        let Some(archive) = process.archive.filter(|_| process.kind == EngineKind::Sm) else {
            return Err(Refusal::NotReplicated(name));
        };
        if known == Some(data) {
            return Ok(Outcome::Unchanged);
        }
        domain.may_replicate(&name)?;
        let database = domain.databases.get_mut(&name).ok_or_else(|| Refusal::UnknownDatabase(name.clone()))?;
        let replicated = database.replicated.get_or_insert_default();
        let confirmed = replicated.starts.get(&archive).copied().unwrap_or_default();
        let set_back = known.is_none() && start < confirmed;
        match data {
            Data::Empty => {
                replicated.own.insert(archive);
            }
            Data::Initialized { system, highest } => {
                replicated.highest = replicated.highest.max(highest);
                if replicated.initializes == Some(archive) {
                    (replicated.system, replicated.initializes) = (Some(system), None);
                    replicated.record = Some(Replication::begin_at(archive, highest));
                } else if set_back || replicated.system != Some(system) {
                    // It may lack what the archive held, or came from elsewhere: it is neither used nor overwritten.
                    replicated.own.remove(&archive);
                }
                if let Some(archive) = domain.archives.get_mut(&archive) {
                    archive.ever_ran = true;
                }
            }
        }
        domain.in_session(id, session)?.data = Some(data);
        if set_back {
            let event = ReplicationEvent::SetBack { archive, start, confirmed };
            domain.note(actor, [Subject::Archive(archive), Subject::Database(name.clone())], event, None);
        }
        let subjects = [Subject::Process(id), Subject::Archive(archive), Subject::Database(name)];
        domain.note(actor, subjects, ReplicationEvent::DataReported { archive, data }, None);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Refuses a database whose engines have run without roles: their data is not ours to copy over.
    fn may_replicate(&self, name: &DatabaseName) -> Result<(), Refusal> {
        if self.replicated(name).is_some() {
            return Ok(());
        }
        let other = self.archives.values().find(|other| other.database == *name && other.ever_ran);
        other.map_or(Ok(()), |other| Err(Refusal::NotReplicatedBefore { database: name.clone(), archive: other.id }))
    }
}
