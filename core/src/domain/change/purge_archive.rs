//! A removed archive whose claim is gone is forgotten for ever.

use super::{Change, Planned, Work};
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{ArchiveId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Forgets a removed archive for ever.
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
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, archive: id, claim: _, evidence } = self;
        let claim = domain.archives.get(&id).and_then(|archive| archive.claim.as_ref());
        let Some(claim) = claim else { return Err(Refusal::UnknownArchive(id)) };
        let purged = ArchiveEvent::Purged { archive: id, claim: claim.into() };
        domain.forget(actor, id, purged, evidence);
        Ok(Outcome::Changed)
    }
}

impl Planned for PurgeArchive {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let claim = domain.archives.get(&self.archive).and_then(|archive| archive.claim.as_ref());
        claim.map(|claim| Need::Claim(claim.name.clone())).into_iter().chain([Need::Anchor]).collect()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, archive: id, claim, evidence } = self;
        domain.fenced(fence)?;
        if *id <= domain.last_archive && !domain.archives.contains_key(id) {
            return Ok(Work::Done);
        }
        let archive = domain.idle_archive(fence, *id, claim)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(*id));
        }
        domain.claim_proven_lost(archive, evidence)?;
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        let claim = domain.archives.get(&self.archive).and_then(|archive| archive.claim.as_ref());
        format!("purge archive {}: its claim {} was deleted", self.archive, claim.map_or("", |claim| &claim.name))
    }

    fn bind(&mut self, fence: Fence, evidence: Evidence) {
        (self.fence, self.evidence) = (fence, evidence);
    }
}
