//! The data of an archive outside the sync set may be replaced, and then is whole again.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{Generation, Permission, SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::Data;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Permits an engine to replace the data of its archive, or notes that it makes no more use of the permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverwriteArchive {
    /// The process on the archive.
    pub process: StartId,
    /// The session by which it asked.
    pub session: SessionNumber,
    /// What is asked.
    pub what: Overwrite,
}

/// What is asked of the data of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Overwrite {
    /// It may be replaced by the data of the current primary.
    Permit {
        /// The generation of that primary.
        generation: Generation,
        /// Why it cannot be kept, in the words of its wrapper.
        why: String,
    },
    /// It is whole, and the permission is not used any more.
    Return(Permission),
}

impl Change for OverwriteArchive {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, what } = self;
        if let Overwrite::Permit { generation: _, why } = what {
            cut(why, bounds.text);
        }
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, what } = self;
        let process = domain.of_session(id, session)?;
        let (name, archive, data) = (process.database.clone(), domain.replica_of(process)?, process.data);
        let replicated = domain.replicated_mut(&name)?;
        // A server that was promoted has replayed all of its log: it is known to be able to use its data.
        let promoted = replicated.is_promoted();
        let ours =
            data == Some(Data::Empty) || replicated.own.contains(&archive) || replicated.discarded.contains(&archive);
        if let (Some(why), Overwrite::Permit { .. }) = (&replicated.uncertain, &what) {
            return Err(Refusal::Uncertain { database: name, why: why.clone() });
        }
        let record = replicated.record_mut(&name)?;
        let event = match what {
            Overwrite::Permit { generation, why } => {
                if record.overwriting.contains_key(&archive) {
                    return Ok(Outcome::Unchanged);
                }
                if !promoted {
                    return Err(Refusal::NotPromoted(name));
                }
                if !ours {
                    return Err(Refusal::DataNotAdopted(archive));
                }
                let permission = record.permit_overwrite(generation, archive)?;
                ReplicationEvent::MayBeOverwritten { archive, permission, why }
            }
            Overwrite::Return(permission) => {
                record.end_overwrite(archive, permission)?;
                // Not if a loss was accepted meanwhile: it may hold what was lost.
                if replicated.discarded.remove(&archive) {
                    replicated.own.insert(archive);
                }
                ReplicationEvent::Whole { archive, permission }
            }
        };
        domain.note(actor, [Subject::Archive(archive), Subject::Database(name), Subject::Process(id)], event, None);
        Ok(Outcome::Changed)
    }
}
