//! What several changes check.

use crate::domain::archive::{Archive, Claim};
use crate::domain::command::{Actor, Fence, Role};
use crate::domain::database::Judged;
use crate::domain::event::{ArchiveEvent, ServerEvent};
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{ArchiveId, ClusterName, DatabaseName, ResyncEpoch, ServerId, Uid};
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
        self.clusters().find(|known| *known != cluster)
    }

    /// The clusters that take part in the domain; one of them more than once.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        let servers = self.servers.values().map(|server| &server.cluster);
        let archives = self.archives.values().map(|archive| &archive.cluster);
        let processes = self.processes.values().map(|process| &process.cluster);
        servers.chain(archives).chain(processes)
    }

    /// Another cluster whose resync leader has not found what is asked for, and does not lead still.
    pub fn cluster_against(
        &self,
        cluster: &ClusterName,
        name: &DatabaseName,
        asked: impl Fn(&Judged) -> bool,
    ) -> Option<&ClusterName> {
        let judged = self.databases.get(name).map(|database| &database.judged);
        let agrees = |other: &ClusterName| {
            let leads = self.resync.get(other).map(|leader| leader.epoch);
            let found = judged.and_then(|judged| judged.get(other));
            found.is_some_and(|found| Some(found.epoch) == leads && asked(found))
        };
        self.clusters().find(|other| *other != cluster && !agrees(other))
    }

    /// The key under which clients find the archive of a claim.
    pub(super) fn claim_key(&self, cluster: &ClusterName, claim: &str) -> String {
        match &self.founded_in {
            Some(founded_in) if founded_in != cluster => format!("{CLAIMS_PREFIX}{cluster}/{claim}"),
            _ => format!("{CLAIMS_PREFIX}{claim}"),
        }
    }

    /// Drops all that the domain knows of an archive.
    pub(super) fn forget(&mut self, actor: &Actor, id: ArchiveId, event: ArchiveEvent, evidence: Evidence) {
        let Some(archive) = self.archives.remove(&id) else { return };
        if let Ok(replicated) = self.replicated_mut(&archive.database) {
            replicated.forget(id);
        }
        if let Some(claim) = &archive.claim {
            let key = self.claim_key(&archive.cluster, &claim.name);
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
        self.anchored(&fence.cluster, evidence)?;
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

    /// The UID of the Lease that anchors the domain in a cluster: a read that shows it was made there.
    pub fn anchor_in(&self, cluster: &ClusterName) -> Option<&Uid> {
        match &self.founded_in {
            Some(founded_in) if founded_in != cluster => self.anchors.get(cluster),
            _ => self.anchor.as_ref(),
        }
    }

    /// Refuses evidence that was not read in that cluster.
    pub(super) fn anchored(&self, cluster: &ClusterName, evidence: &Evidence) -> Result<(), Refusal> {
        match self.anchor_in(cluster) {
            Some(anchor) if evidence.anchored_by(anchor) => Ok(()),
            _ if self.founded_in.is_some() => {
                Err(Refusal::Unproven(format!("this is cluster {cluster} of the domain")))
            }
            _ => Err(Refusal::Unproven("this is the Kubernetes that the domain was founded in".to_owned())),
        }
    }

    /// Whether servers of several clusters are in the domain: then no agent sees all that is wanted.
    pub fn is_spread(&self) -> bool {
        let mut clusters = self.servers.values().map(|server| &server.cluster);
        let first = clusters.next();
        clusters.any(|cluster| Some(cluster) != first)
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

    /// Drops a server. A cluster of which nothing else is left takes part no more.
    pub(super) fn drop_server(&mut self, actor: &Actor, id: ServerId, evidence: Evidence) {
        let Some(server) = self.servers.remove(&id) else { return };
        let removed = ServerEvent::Removed { server: id.clone() };
        self.note(actor, [Subject::Server(id)], removed, Some(evidence));
        if !self.clusters().any(|cluster| *cluster == server.cluster) {
            self.anchors.remove(&server.cluster);
        }
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
