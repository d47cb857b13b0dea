//! An operator gives up the data of an archive where the domain cannot prove that nothing is lost by it.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::archive::{Removal, RemovalReason};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::ArchiveEvent;
use crate::domain::ids::ArchiveId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes an archive by an operator's command: no cold start waits for its data any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GiveUpArchive {
    /// The archive.
    pub archive: ArchiveId,
    /// Why, in the operator's words.
    pub why: String,
}

impl Change for GiveUpArchive {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { archive: _, why } = self;
        fits("why", why, bounds.text)
    }

    /// What an operator asks for where the domain cannot prove that nothing is lost by it.
    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { archive: id, why } = self;
        only_an_operator(actor)?;
        let archive = domain.unused_archive(id)?;
        if domain.replicated(&archive.database).is_some_and(|replicated| replicated.counts(id)) {
            return Err(Refusal::StillCounts(id));
        }
        let reason = RemovalReason::GivenUp;
        let (was, database, by_hand) = (archive.removed.clone(), archive.database.clone(), archive.by_hand);
        if was.as_ref().is_some_and(|removal| removal.because == reason) {
            return Ok(Outcome::Unchanged);
        }
        // With the last one the database itself would be given up: its claim has to be deleted for that. Of one that was created
        // by hand no volume is known: it neither is the last one nor takes its place.
        let is_last = !domain.active_archives(&database).any(|other| other.id != id && !other.by_hand);
        if was.is_none() && !by_hand && is_last {
            return Err(Refusal::LastArchive(id));
        }
        let claim_gone = was.as_ref().and_then(Removal::claim_gone_since);
        if let Some(archive) = domain.archives.get_mut(&id) {
            archive.removed = Some(Removal { at: domain.time, because: reason, claim_gone, watched: None });
        }
        let subjects = [Subject::Archive(id), Subject::Database(database)];
        domain.note(actor, subjects, ArchiveEvent::Removed { archive: id, reason, why: Some(why) }, None);
        Ok(Outcome::Changed)
    }
}
