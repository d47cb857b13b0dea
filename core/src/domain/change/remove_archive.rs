//! An archive is removed: kept, but not counted, and resurrected by the next registration.

use super::{Change, Command, Planned, Work};
use crate::domain::archive::{Removal, RemovalReason};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::{Evidence, Need};
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
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, reason: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence, archive: id, claim: _, reason, evidence } = self;
        let at = domain.time;
        let Some(archive) = domain.archives.get_mut(&id) else { return Err(Refusal::UnknownArchive(id)) };
        let mut removal = Removal { at, because: reason, claim_gone: None, watched: None };
        if reason == RemovalReason::ClaimDeleted {
            removal.watch(fence.epoch, evidence.read_at);
        }
        archive.removed = Some(removal);
        let subjects = [Subject::Archive(id), Subject::Database(archive.database.clone())];
        domain.note(actor, subjects, ArchiveEvent::Removed { archive: id, reason, why: None }, Some(evidence));
        Ok(Outcome::Changed)
    }
}

impl Planned for RemoveArchive {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let proof = domain.claim_of(self.archive).and_then(|claim| match self.reason {
            RemovalReason::ScaledDown => Some(Need::StatefulSet(claim.owner.as_ref()?.stateful_set.clone())),
            RemovalReason::ClaimDeleted => Some(Need::Claim(claim.name.clone())),
            RemovalReason::GivenUp => None,
        });
        proof.into_iter().chain([Need::Anchor]).collect()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, archive: id, claim, reason, evidence } = self;
        domain.fenced(fence)?;
        let archive = domain.idle_archive(fence, *id, claim)?;
        if archive.removed.is_some() {
            return Ok(Work::Done);
        }
        let owner = archive.claim.as_ref().and_then(|claim| claim.owner.as_ref());
        let proven = match reason {
            RemovalReason::ScaledDown => owner.is_some_and(|owner| evidence.ordinal_unwanted(owner)),
            RemovalReason::ClaimDeleted => domain.lost_its_claim(archive, evidence),
            RemovalReason::GivenUp => false,
        };
        domain.anchored(&fence.cluster, evidence)?;
        if !proven {
            return Err(Refusal::Unproven(format!("{reason}, which would remove archive {id}")));
        }
        if *reason == RemovalReason::ScaledDown {
            // Of one that was created by hand no volume is known: it does not take the place of the last one.
            let others = domain.active_archives(&archive.database).filter(|other| other.id != *id && !other.by_hand);
            let mut others = others.peekable();
            if others.peek().is_none() {
                return Err(Refusal::LastArchive(*id));
            }
            if !others.any(|other| domain.holds_all_of(other, archive)) {
                return Err(Refusal::MayBeNewest(*id));
            }
        }
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        let Self { archive, reason, .. } = self;
        let owner = domain.claim_of(*archive).and_then(|claim| claim.owner.as_ref());
        let owner = owner.filter(|_| *reason == RemovalReason::ScaledDown);
        let owner = owner.map_or(String::new(), |owner| format!(" of {owner}"));
        format!("remove archive {archive}{owner} on claim {}: {reason}", domain.claim_name(*archive))
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::RemoveArchive(Self { fence, evidence, ..self.clone() })
    }
}
