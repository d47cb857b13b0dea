//! A removed archive whose claim is gone is purged.

use super::{Change, Command, Planned, Work};
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{ArchiveId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Purges a removed archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PurgeArchive {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The archive.
    pub archive: ArchiveId,
    /// The UID of its claim.
    pub claim: Uid,
    /// The proof that the claim is gone.
    pub evidence: Evidence,
}

impl Change for PurgeArchive {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, archive: id, claim: _, evidence } = self;
        let Some(claim) = domain.claim_of(id) else { return Err(Refusal::UnknownArchive(id)) };
        let purged = ArchiveEvent::Purged { archive: id, claim: claim.into() };
        domain.forget(actor, id, purged, evidence);
        Ok(Outcome::Changed)
    }
}

impl Planned for PurgeArchive {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        domain.reads_of_claim(self.archive)
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, archive: id, claim, evidence } = self;
        domain.fenced(fence)?;
        if *id <= domain.last_archive && !domain.archives.contains_key(id) {
            return Ok(Work::Done);
        }
        domain.removed_and_lost(fence, *id, claim, evidence)?;
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        format!("purge archive {}: its claim {} was deleted", self.archive, domain.claim_name(self.archive))
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::PurgeArchive(Self { fence, evidence, ..self.clone() })
    }
}
