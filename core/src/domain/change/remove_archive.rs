use super::Change;
use crate::domain::archive::{Removal, RemovalReason};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ArchiveId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes an archive; it can be resurrected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveArchive {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The archive.
    pub archive: ArchiveId,
    /// The UID of its claim.
    pub claim: Uid,
    /// Why.
    pub reason: RemovalReason,
    /// The proof.
    pub evidence: Evidence,
}

impl Change for RemoveArchive {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, reason: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { fence, archive: id, claim, reason, evidence } = self;
        domain.fenced(&fence)?;
        let archive = domain.idle_archive(&fence, id, &claim)?;
        if archive.removed.is_some() {
            return Ok(Outcome::Unchanged);
        }
        let known = archive.claim.as_ref().expect("idle_archive compares the claim");
        let proven = match reason {
            RemovalReason::ScaledDown => known.owner.as_ref().is_some_and(|owner| evidence.ordinal_unwanted(owner)),
            RemovalReason::ClaimDeleted => domain.lost_its_claim(archive, &evidence),
            RemovalReason::GivenUp => false,
        };
        domain.anchored(&evidence)?;
        if !proven {
            return Err(Refusal::Unproven(format!("{reason}, which would remove archive {id}")));
        }
        if reason == RemovalReason::ScaledDown {
            let mut others = domain.active_archives(&archive.database).filter(|other| other.id != id).peekable();
            if others.peek().is_none() {
                return Err(Refusal::LastArchive(id));
            }
            if !others.any(|other| domain.holds_all_of(other, archive)) {
                return Err(Refusal::MayBeNewest(id));
            }
        }
        let database = archive.database.clone();
        let at = domain.time;
        if let Some(archive) = domain.archives.get_mut(&id) {
            let mut removal = Removal { at, because: reason, claim_gone: None, watched: None };
            if reason == RemovalReason::ClaimDeleted {
                removal.watch(fence.epoch, evidence.read_at);
            }
            archive.removed = Some(removal);
        }
        let subjects = [Subject::Archive(id), Subject::Database(database)];
        domain.note(actor, subjects, format!("archive {id} removed: {reason}"), Some(evidence));
        Ok(Outcome::Changed)
    }
}
