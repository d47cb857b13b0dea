//! What several changes check.

use crate::domain::archive::{Archive, Claim};
use crate::domain::command::{Actor, Fence, Role};
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{ArchiveId, ClusterName, ResyncEpoch, ServerId, Uid};
use crate::domain::outcome::Refusal;
use crate::domain::pause::Pause;
use crate::domain::process::{Process, SessionState};
use crate::domain::{CLAIMS_PREFIX, Domain, Subject};

/// Refuses what only an operator may ask.
pub(super) fn only_an_operator(actor: &Actor) -> Result<(), Refusal> {
    if actor.role == Role::Operator { Ok(()) } else { Err(Refusal::OnlyAnOperator) }
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

    /// The claim of an archive.
    pub(in crate::domain) fn claim_of(&self, id: ArchiveId) -> Option<&Claim> {
        self.archives.get(&id).and_then(|archive| archive.claim.as_ref())
    }

    /// The name of the claim of an archive, for a text.
    pub(super) fn claim_name(&self, id: ArchiveId) -> &str {
        self.claim_of(id).map_or("", |claim| &claim.name)
    }

    /// What has to be read to prove that the claim of an archive is gone.
    pub(super) fn reads_of_claim(&self, id: ArchiveId) -> Vec<Need> {
        let claim = self.claim_of(id).map(|claim| Need::Claim(claim.name.clone()));
        claim.into_iter().chain([Need::Anchor]).collect()
    }

    /// Whether the claim of an archive is gone: its name is free, or the claim that has taken it has it still.
    pub(super) fn lost_its_claim(&self, archive: &Archive, evidence: &Evidence) -> bool {
        let taken_by = self.taken_by(archive).map(|claim| &claim.uid);
        archive.claim.as_ref().is_some_and(|claim| evidence.claim_is_lost(&claim.name, taken_by))
    }

    /// Refuses an archive that is in use or not removed, or of which it is not proven that its claim is gone.
    pub(super) fn removed_and_lost(
        &self,
        fence: &Fence,
        id: ArchiveId,
        claim: &Uid,
        evidence: &Evidence,
    ) -> Result<(), Refusal> {
        let archive = self.idle_archive(fence, id, claim)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(id));
        }
        self.anchored(evidence)?;
        if self.lost_its_claim(archive, evidence) {
            return Ok(());
        }
        Err(Refusal::Unproven(format!("claim {} of archive {id} is gone", self.claim_name(id))))
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

    /// Refuses a proposal of any but the current resync leader, and of that one too while an operator has paused it.
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

    /// Refuses what was read in another cluster than the one that has the object: there it is absent without being gone.
    pub(super) fn read_in(read: Option<&ClusterName>, cluster: &ClusterName) -> Result<(), Refusal> {
        if read.is_some_and(|read| read != cluster) { Err(Refusal::AnotherCluster(cluster.clone())) } else { Ok(()) }
    }

    /// A process that has a session with a server.
    pub fn speaks_with(&self, server: &ServerId) -> Option<&Process> {
        let mut processes = self.processes.values();
        processes.find(|process| process.session.server == *server && process.session.state == SessionState::Live)
    }

    /// Refuses to remove a server that an engine has a session with.
    pub(super) fn unused_server(&self, server: &ServerId) -> Result<(), Refusal> {
        match self.speaks_with(server) {
            Some(process) => Err(Refusal::ServerInUse { server: server.clone(), process: process.id }),
            None => Ok(()),
        }
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
