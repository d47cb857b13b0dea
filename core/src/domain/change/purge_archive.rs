use super::Change;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::evidence::Evidence;
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
        let Self { fence, archive: id, claim, evidence } = self;
        domain.fenced(&fence)?;
        if id <= domain.last_archive && !domain.archives.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let archive = domain.idle_archive(&fence, id, &claim)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(id));
        }
        let known = archive.claim.clone().expect("idle_archive compares the claim");
        let lost = domain.lost_its_claim(archive, &evidence);
        domain.anchored(&evidence)?;
        if !lost {
            return Err(Refusal::Unproven(format!("claim {} of archive {id} is gone", known.name)));
        }
        let what = format!("archive {id} purged: its claim {} ({}) was deleted", known.name, known.uid);
        domain.forget(actor, id, what, evidence);
        Ok(Outcome::Changed)
    }
}
