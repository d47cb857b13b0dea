//! An operator purges a removed archive.

use super::Change;
use super::guard::only_a_person;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::ArchiveId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Forgets a removed archive for ever on an operator's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetArchive {
    /// The archive.
    pub archive: ArchiveId,
    /// Why, in the operator's words.
    pub why: String,
    /// The proof that its claim is gone, if its claim is known.
    pub evidence: Evidence,
}

impl Change for ForgetArchive {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { archive: _, why, evidence } = self;
        fits("why", why, bounds.text)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { archive: id, why, evidence } = self;
        only_a_person(actor)?;
        if id <= domain.last_archive && !domain.archives.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let archive = domain.unused_archive(id)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(id));
        }
        if let Some(claim) = &archive.claim {
            domain.anchored(&evidence)?;
            if !domain.lost_its_claim(archive, &evidence) {
                return Err(Refusal::Unproven(format!("claim {} of archive {id} is gone", claim.name)));
            }
        }
        domain.forget(actor, id, ArchiveEvent::Forgotten { archive: id, why }, evidence);
        Ok(Outcome::Changed)
    }
}
