use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ArchiveId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes since when the claim of a removed archive is gone, where its removal had another reason: it is not purged at
/// once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteClaimGone {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The archive.
    pub archive: ArchiveId,
    /// The UID of its claim.
    pub claim: Uid,
    /// The proof that the claim is gone.
    pub evidence: Evidence,
}

impl Change for NoteClaimGone {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { fence, archive: id, claim, evidence } = self;
        domain.fenced(&fence)?;
        let archive = domain.idle_archive(&fence, id, &claim)?;
        let removal = archive.removed.as_ref().ok_or(Refusal::NotRemoved(id))?;
        let known = removal.claim_gone_since().is_some();
        let lost = domain.lost_its_claim(archive, &evidence);
        let name = archive.claim.as_ref().map(|claim| claim.name.clone()).unwrap_or_default();
        domain.anchored(&evidence)?;
        if !lost {
            return Err(Refusal::Unproven(format!("claim {name} of archive {id} is gone")));
        }
        let now = domain.time;
        let Some(removal) = domain.archives.get_mut(&id).and_then(|archive| archive.removed.as_mut()) else {
            return Err(Refusal::NotRemoved(id));
        };
        let later = removal.watch(fence.epoch, evidence.read_at);
        if known {
            // The audit trail says it once; that it is still so is no change that anybody has to hear of.
            return Ok(if later { Outcome::Changed } else { Outcome::Unchanged });
        }
        removal.claim_gone = Some(now);
        domain.note(actor, [Subject::Archive(id)], format!("claim {name} of archive {id} is gone"), Some(evidence));
        Ok(Outcome::Changed)
    }
}
