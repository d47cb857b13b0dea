//! Which StatefulSet an archive belongs to, while its storage manager runs.
//!
//! A StatefulSet that is deleted with `--cascade=orphan` and created again adopts its pods: their containers run on, so no
//! engine registers, and the UID that the archive was registered with does not exist any more. The pods name their owner.

use super::{Change, Command, Planned, Work};
use crate::domain::archive::Ordinal;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::{Evidence, Fact, Need};
use crate::domain::ids::{ArchiveId, StartId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes which StatefulSet owns the pod that mounts the claim of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnOwner {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The archive.
    pub archive: ArchiveId,
    /// The UID of its claim.
    pub claim: Uid,
    /// The process whose pod was read.
    pub process: StartId,
    /// The place of that pod in its StatefulSet.
    pub owner: Ordinal,
    /// The pod as it was read.
    pub evidence: Evidence,
}

impl Change for LearnOwner {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, archive: _, claim: _, process: _, owner, evidence } = self;
        bounds.ordinal(owner)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, archive: id, claim: _, process: _, owner, evidence } = self;
        let owned = ArchiveEvent::Owned { archive: id, owner: Some(owner.clone()) };
        if let Some(claim) = domain.archives.get_mut(&id).and_then(|archive| archive.claim.as_mut()) {
            claim.owner = Some(owner);
        }
        domain.note(actor, [Subject::Archive(id)], owned, Some(evidence));
        Ok(Outcome::Changed)
    }
}

impl Planned for LearnOwner {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let process = domain.processes.get(&self.process);
        process.map(|process| Need::Pod(process.identity.pod.clone())).into_iter().chain([Need::Anchor]).collect()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, archive: id, claim, process, owner, evidence } = self;
        domain.led_by(fence)?;
        let process = domain.processes.get(process).ok_or(Refusal::UnknownProcess(*process))?;
        let (pod, pod_uid) = (&process.identity.pod, &process.identity.pod_uid);
        let on_it = process.archive == Some(*id) && !process.claim_unread;
        let archive = domain.archives.get(id).ok_or(Refusal::UnknownArchive(*id))?;
        if archive.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(archive.cluster.clone()));
        }
        let known = archive.claim.as_ref().filter(|known| on_it && known.uid == *claim);
        let known = known.ok_or(Refusal::AnotherClaim { archive: *id })?;
        if known.owner.as_ref() == Some(owner) {
            return Ok(Work::Done);
        }
        domain.anchored(&fence.cluster, evidence)?;
        if *pod != owner.to_string() || !evidence.pod_is_owned_by(pod_uid, owner) {
            return Err(Refusal::Unproven(format!("statefulset {} owns pod {pod}", owner.stateful_set)));
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        let Self { archive, owner, .. } = self;
        let (set, uid) = (&owner.stateful_set, &owner.uid);
        format!("learn that archive {archive} belongs to {owner} of statefulset {set} ({uid})")
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::LearnOwner(Self { fence, evidence, ..self.clone() })
    }

    fn removes(&self) -> bool {
        false
    }

    fn keeps(&self, _: &Fact) -> bool {
        true
    }
}
