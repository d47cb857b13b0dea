//! A resync leader has read that the claim of a removed archive is gone: only what is watched counts for the delay of a purge.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::{Evidence, Need};
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
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        self.check(domain)?;
        let Self { fence, archive: id, claim: _, evidence } = self;
        let now = domain.time;
        let Some(archive) = domain.archives.get_mut(&id) else { return Err(Refusal::UnknownArchive(id)) };
        let Some(removal) = archive.removed.as_mut() else { return Err(Refusal::NotRemoved(id)) };
        let later = removal.watch(fence.epoch, evidence.read_at);
        if removal.claim_gone_since().is_some() {
            // The audit trail says it once; that it is still so is no change that anybody has to hear of.
            return Ok(if later { Outcome::Changed } else { Outcome::Unchanged });
        }
        removal.claim_gone = Some(now);
        let claim = archive.claim.as_ref().map(|claim| claim.name.clone()).unwrap_or_default();
        let gone = ArchiveEvent::ClaimGone { archive: id, claim };
        domain.note(actor, [Subject::Archive(id)], gone, Some(evidence));
        Ok(Outcome::Changed)
    }
}

impl Planned for NoteClaimGone {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        domain.reads_of_claim(self.archive)
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, archive: id, claim, evidence } = self;
        domain.fenced(fence)?;
        domain.removed_and_lost(fence, *id, claim, evidence)?;
        // Each read counts for the delay.
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        format!("note that claim {} of archive {} is gone", domain.claim_name(self.archive), self.archive)
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::NoteClaimGone(Self { fence, evidence, ..self.clone() })
    }
}
