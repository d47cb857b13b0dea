//! What several changes check.

use crate::domain::archive::{Archive, Claim};
use crate::domain::command::{Actor, Fence, Role};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ArchiveId, ClusterName, ResyncEpoch, Uid};
use crate::domain::outcome::Refusal;
use crate::domain::pause::Pause;
use crate::domain::{CLAIMS_PREFIX, Domain, Subject};

/// Refuses what only an operator may ask.
pub(super) fn only_a_person(actor: &Actor) -> Result<(), Refusal> {
    if actor.role == Role::Person { Ok(()) } else { Err(Refusal::OnlyAPerson) }
}

impl Domain {
    /// Another cluster that takes part in the domain, where something may want what nothing wants here.
    pub fn other_cluster(&self, cluster: &ClusterName) -> Option<&ClusterName> {
        let servers = self.servers.values().map(|server| &server.cluster);
        let archives = self.archives.values().map(|archive| &archive.cluster);
        let processes = self.processes.values().map(|process| &process.cluster);
        self.resync.keys().chain(servers).chain(archives).chain(processes).find(|known| *known != cluster)
    }

    /// Drops all that the domain knows of an archive.
    pub(super) fn forget(&mut self, actor: &Actor, id: ArchiveId, event: ArchiveEvent, evidence: Evidence) {
        let Some(archive) = self.archives.remove(&id) else { return };
        if let Some(claim) = &archive.claim {
            let key = format!("{CLAIMS_PREFIX}{}", claim.name);
            if self.values.get(&key) == Some(&id.to_string()) {
                self.values.remove(&key);
            }
        }
        self.note(actor, [Subject::Archive(id), Subject::Database(archive.database)], event, Some(evidence));
    }

    /// Whether the claim of an archive is gone: its name is free, or the claim that has taken it has it still.
    pub(super) fn lost_its_claim(&self, archive: &Archive, evidence: &Evidence) -> bool {
        let taken_by = self.taken_by(archive).map(|claim| &claim.uid);
        archive.claim.as_ref().is_some_and(|claim| evidence.claim_is_lost(&claim.name, taken_by))
    }

    /// Refuses what does not prove that the claim of an archive is gone.
    pub(super) fn claim_proven_lost(&self, archive: &Archive, evidence: &Evidence) -> Result<(), Refusal> {
        self.anchored(evidence)?;
        if self.lost_its_claim(archive, evidence) {
            return Ok(());
        }
        let name = archive.claim.as_ref().map_or("", |claim| &claim.name);
        Err(Refusal::Unproven(format!("claim {name} of archive {} is gone", archive.id)))
    }

    /// The claim that has taken the name of an archive's: another archive was bound to it later. Only one claim has a name, so
    /// the archive's was deleted; and the volume of the other has said which archive it holds.
    pub fn taken_by(&self, archive: &Archive) -> Option<&Claim> {
        let lost = archive.claim.as_ref()?;
        let later = |it: &&Archive| it.cluster == archive.cluster && it.bound > archive.bound;
        let bound = self.archives.values().filter(later).filter_map(|it| Some((it.bound, it.claim.as_ref()?)));
        let same_name = |it: &Claim| (&it.namespace, &it.name) == (&lost.namespace, &lost.name) && it.uid != lost.uid;
        bound.filter(|(_, claim)| same_name(claim)).max_by_key(|(bound, _)| *bound).map(|(_, claim)| claim)
    }

    /// Refuses a proposal of any but the current resync leader, and of that one too while a person has paused it.
    pub(super) fn fenced(&self, fence: &Fence) -> Result<(), Refusal> {
        self.led_by(fence)?;
        // A pass that was planned before the pause is not let through either.
        match &self.paused {
            Some(Pause { by, why, .. }) => Err(Refusal::Paused { by: by.clone(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a proposal of any but the current resync leader.
    pub(super) fn led_by(&self, fence: &Fence) -> Result<(), Refusal> {
        let current = self.resync.get(&fence.cluster).map_or(ResyncEpoch(0), |leader| leader.epoch);
        if fence.epoch == current && current != ResyncEpoch(0) {
            return Ok(());
        }
        Err(Refusal::StaleResync { cluster: fence.cluster.clone(), proposed: fence.epoch, current })
    }

    /// Refuses evidence from a Kubernetes that is not the one this domain was founded in.
    pub(super) fn anchored(&self, evidence: &Evidence) -> Result<(), Refusal> {
        match &self.anchor {
            Some(anchor) if evidence.anchored_by(anchor) => Ok(()),
            _ => Err(Refusal::Unproven("this is the Kubernetes that the domain was founded in".to_owned())),
        }
    }

    /// The archive, if it is this cluster's, on that claim, and no process is on it.
    pub(super) fn idle_archive(&self, fence: &Fence, id: ArchiveId, claim: &Uid) -> Result<&Archive, Refusal> {
        let archive = self.archives.get(&id).ok_or(Refusal::UnknownArchive(id))?;
        if archive.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(archive.cluster.clone()));
        }
        if archive.claim.as_ref().is_none_or(|known| known.uid != *claim) {
            return Err(Refusal::AnotherClaim { archive: id });
        }
        self.unused_archive(id)
    }

    /// The archive, if no process is on it.
    pub(super) fn unused_archive(&self, id: ArchiveId) -> Result<&Archive, Refusal> {
        let archive = self.archives.get(&id).ok_or(Refusal::UnknownArchive(id))?;
        match self.process_on(id) {
            Some(process) => Err(Refusal::ArchiveInUse { archive: id, process: process.id }),
            None => Ok(archive),
        }
    }
}
