//! Which StatefulSet an archive belongs to, while its storage manager runs.
//!
//! A StatefulSet that is deleted with `--cascade=orphan` and created again adopts its pods: their containers run on, so no
//! engine registers, and the UID that the archive was registered with is nobody's. The pods say whose they are now.

use super::archive::Ordinal;
use super::command::{Actor, Fence, Outcome, Refusal};
use super::evidence::Evidence;
use super::ids::{ArchiveId, StartId, Uid};
use super::{Applied, Domain, Subject};

/// What [`super::command::Command::LearnOwner`] asks for.
pub(super) struct Learned {
    pub archive: ArchiveId,
    pub claim: Uid,
    pub process: StartId,
    pub owner: Ordinal,
    pub evidence: Evidence,
}

impl Domain {
    pub(super) fn learn_owner(&mut self, actor: &Actor, fence: &Fence, learned: Learned) -> Applied {
        let Learned { archive: id, claim, process, owner, evidence } = learned;
        self.led_by(fence)?;
        let process = self.processes.get(&process).ok_or(Refusal::UnknownProcess(process))?;
        let (pod, pod_uid) = (process.identity.pod.clone(), process.identity.pod_uid.clone());
        let on_it = process.archive == Some(id) && !process.claim_unread;
        let archive = self.archives.get(&id).ok_or(Refusal::UnknownArchive(id))?;
        if archive.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(archive.cluster.clone()));
        }
        let known = archive.claim.as_ref().filter(|known| on_it && known.uid == claim);
        let known = known.ok_or(Refusal::AnotherClaim { archive: id })?;
        if known.owner.as_ref() == Some(&owner) {
            return Ok(Outcome::Unchanged);
        }
        self.anchored(&evidence)?;
        if pod != owner.to_string() || !evidence.pod_is_owned_by(&pod_uid, &owner) {
            return Err(Refusal::Unproven(format!("statefulset {} owns pod {pod}", owner.stateful_set)));
        }
        let what = format!("archive {id} belongs to {owner} of statefulset {} ({}) now", owner.stateful_set, owner.uid);
        if let Some(claim) = self.archives.get_mut(&id).and_then(|archive| archive.claim.as_mut()) {
            claim.owner = Some(owner);
        }
        self.note(actor, [Subject::Archive(id)], what, Some(evidence));
        Ok(Outcome::Changed)
    }
}
