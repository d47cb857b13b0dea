//! What takes something away. Each arm checks, in this order: who proposes, what it expects to find, what was read.

use super::archive::{Archive, Claim, Ordinal, Removal, RemovalReason};
use super::command::{Actor, Fence, Outcome, Refusal, Role};
use super::database::DatabaseState;
use super::evidence::Evidence;
use super::ids::{ArchiveId, ClusterName, DatabaseName, RaftId, ResyncEpoch, ServerId, SessionNumber, StartId, Uid};
use super::pause::Pause;
use super::process::{ExitReason, Process, SessionState};
use super::server::raft_log_claim;
use super::{Applied, CLAIMS_PREFIX, Domain, Subject};

impl Domain {
    pub(super) fn remove_process(
        &mut self,
        actor: &Actor,
        fence: &Fence,
        id: StartId,
        session: SessionNumber,
        reason: ExitReason,
        evidence: Evidence,
    ) -> Applied {
        self.fenced(fence)?;
        if self.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let process = self.in_session(id, session)?.clone();
        if process.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(process.cluster));
        }
        if process.session.state == SessionState::Live {
            return Err(Refusal::SessionLive(id));
        }
        self.anchored(&evidence)?;
        let (pod, identity) = (&process.identity.pod_uid, &process.identity);
        let mut exit_code = None;
        // It was taken for the container before it, whose start was close to its own.
        let mistaken = process
            .container_id
            .as_ref()
            .is_some_and(|known| evidence.is_in_another(pod, &identity.container, known, identity.started));
        let proven = match (&reason, &process.container_id) {
            (ExitReason::PodGone, _) => evidence.pod_is_gone(&identity.pod, pod),
            (ExitReason::ContainerEnded, Some(container)) => {
                let ended = evidence.container_ended(pod, container);
                exit_code = ended.flatten();
                ended.is_some() && !mistaken
            }
            (ExitReason::ContainerReplaced, Some(container)) => {
                evidence.container_replaced(pod, &identity.container, container) && !mistaken
            }
            (ExitReason::ContainerEnded | ExitReason::ContainerReplaced, None)
            | (
                ExitReason::Graceful
                | ExitReason::Exited(_)
                | ExitReason::Restarted(_)
                | ExitReason::Killed
                | ExitReason::Evicted,
                _,
            ) => false,
        };
        if !proven {
            return Err(Refusal::Unproven(format!("process {id} is gone")));
        }
        self.bury(actor, id, reason, exit_code, Some(evidence));
        Ok(Outcome::Changed)
    }

    pub(super) fn remove_archive(
        &mut self,
        actor: &Actor,
        fence: &Fence,
        id: ArchiveId,
        claim: &Uid,
        reason: RemovalReason,
        evidence: Evidence,
    ) -> Applied {
        self.fenced(fence)?;
        let archive = self.idle_archive(fence, id, claim)?;
        if archive.removed.is_some() {
            return Ok(Outcome::Unchanged);
        }
        let known = archive.claim.as_ref().expect("idle_archive compares the claim");
        let proven = match reason {
            RemovalReason::ScaledDown => known.owner.as_ref().is_some_and(|owner| evidence.ordinal_unwanted(owner)),
            RemovalReason::ClaimDeleted => self.lost_its_claim(archive, &evidence),
            RemovalReason::GivenUp => false,
        };
        self.anchored(&evidence)?;
        if !proven {
            return Err(Refusal::Unproven(format!("{reason}, which would remove archive {id}")));
        }
        if reason == RemovalReason::ScaledDown {
            let mut others = self.active_archives(&archive.database).filter(|other| other.id != id).peekable();
            if others.peek().is_none() {
                return Err(Refusal::LastArchive(id));
            }
            if !others.any(|other| self.holds_all_of(other, archive)) {
                return Err(Refusal::MayBeNewest(id));
            }
        }
        let database = archive.database.clone();
        let at = self.time;
        if let Some(archive) = self.archives.get_mut(&id) {
            let mut removal = Removal { at, because: reason, claim_gone: None, watched: None };
            if reason == RemovalReason::ClaimDeleted {
                removal.watch(fence.epoch, evidence.read_at);
            }
            archive.removed = Some(removal);
        }
        let subjects = [Subject::Archive(id), Subject::Database(database)];
        self.note(actor, subjects, format!("archive {id} removed: {reason}"), Some(evidence));
        Ok(Outcome::Changed)
    }

    pub(super) fn note_claim_gone(
        &mut self,
        actor: &Actor,
        fence: &Fence,
        id: ArchiveId,
        claim: &Uid,
        evidence: Evidence,
    ) -> Applied {
        self.fenced(fence)?;
        let archive = self.idle_archive(fence, id, claim)?;
        let removal = archive.removed.as_ref().ok_or(Refusal::NotRemoved(id))?;
        let known = removal.claim_gone_since().is_some();
        let lost = self.lost_its_claim(archive, &evidence);
        let name = archive.claim.as_ref().map(|claim| claim.name.clone()).unwrap_or_default();
        self.anchored(&evidence)?;
        if !lost {
            return Err(Refusal::Unproven(format!("claim {name} of archive {id} is gone")));
        }
        let now = self.time;
        let Some(removal) = self.archives.get_mut(&id).and_then(|archive| archive.removed.as_mut()) else {
            return Err(Refusal::NotRemoved(id));
        };
        let later = removal.watch(fence.epoch, evidence.read_at);
        if known {
            // The audit trail says it once; that it is still so is no change that anybody has to hear of.
            return Ok(if later { Outcome::Changed } else { Outcome::Unchanged });
        }
        removal.claim_gone = Some(now);
        self.note(actor, [Subject::Archive(id)], format!("claim {name} of archive {id} is gone"), Some(evidence));
        Ok(Outcome::Changed)
    }

    pub(super) fn delete_database(
        &mut self,
        actor: &Actor,
        fence: &Fence,
        name: &DatabaseName,
        evidence: Evidence,
    ) -> Applied {
        self.fenced(fence)?;
        let Some(database) = self.databases.get(name) else { return Err(Refusal::NoDatabase(name.clone())) };
        if database.state == DatabaseState::Tombstone {
            return Ok(Outcome::Unchanged);
        }
        if let Some(archive) = self.archives.values().find(|archive| archive.database == *name) {
            return Err(Refusal::HasArchive { database: name.clone(), archive: archive.id });
        }
        if let Some(process) = self.processes.values().find(|process| process.database == *name) {
            return Err(Refusal::HasProcess { database: name.clone(), process: process.id });
        }
        if let Some(other) = self.other_cluster(&fence.cluster) {
            return Err(Refusal::AnotherCluster(other.clone()));
        }
        self.anchored(&evidence)?;
        if !evidence.database_unwanted(name) {
            return Err(Refusal::Unproven(format!("nothing wants database {name}")));
        }
        if let Some(database) = self.databases.get_mut(name) {
            database.state = DatabaseState::Tombstone;
        }
        let what = format!("database {name} deleted: no archive of it is left, and nothing wants it");
        self.note(actor, [Subject::Database(name.clone())], what, Some(evidence));
        Ok(Outcome::Changed)
    }

    pub(super) fn remove_server(
        &mut self,
        actor: &Actor,
        fence: &Fence,
        id: &ServerId,
        raft_id: RaftId,
        owner: &Ordinal,
        evidence: Evidence,
    ) -> Applied {
        self.fenced(fence)?;
        let server = self.servers.get(id).ok_or_else(|| Refusal::UnknownServer(id.clone()))?;
        if server.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(server.cluster.clone()));
        }
        if server.raft_id != raft_id {
            return Err(Refusal::AnotherLog { server: id.clone(), raft_id: server.raft_id });
        }
        let speaks = |process: &&Process| process.session.server == *id && process.session.state == SessionState::Live;
        if let Some(process) = self.processes.values().find(speaks) {
            return Err(Refusal::ServerInUse { server: id.clone(), process: process.id });
        }
        self.anchored(&evidence)?;
        let claim = raft_log_claim(id);
        let is_its_place = format!("{}-{}", owner.stateful_set, owner.ordinal) == id.as_str();
        let gone = evidence.ordinal_unwanted(owner) && evidence.no_pod(id.as_str()) && evidence.claim_is_gone(&claim);
        if !is_its_place || !gone {
            return Err(Refusal::Unproven(format!(
                "server {id} is not wanted, and its pod and claim {claim} are gone"
            )));
        }
        self.servers.remove(id);
        let what = format!("server {id} removed: it is not wanted, and its claim {claim} was deleted");
        self.note(actor, [Subject::Server(id.clone())], what, Some(evidence));
        Ok(Outcome::Changed)
    }

    /// Another cluster that takes part in the domain, where something may want what nothing wants here.
    pub fn other_cluster(&self, cluster: &ClusterName) -> Option<&ClusterName> {
        let servers = self.servers.values().map(|server| &server.cluster);
        let archives = self.archives.values().map(|archive| &archive.cluster);
        let processes = self.processes.values().map(|process| &process.cluster);
        self.resync.keys().chain(servers).chain(archives).chain(processes).find(|known| *known != cluster)
    }

    pub(super) fn purge_archive(
        &mut self,
        actor: &Actor,
        fence: &Fence,
        id: ArchiveId,
        claim: &Uid,
        evidence: Evidence,
    ) -> Applied {
        self.fenced(fence)?;
        if id <= self.last_archive && !self.archives.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let archive = self.idle_archive(fence, id, claim)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(id));
        }
        let known = archive.claim.clone().expect("idle_archive compares the claim");
        let lost = self.lost_its_claim(archive, &evidence);
        self.anchored(&evidence)?;
        if !lost {
            return Err(Refusal::Unproven(format!("claim {} of archive {id} is gone", known.name)));
        }
        let what = format!("archive {id} purged: its claim {} ({}) was deleted", known.name, known.uid);
        self.forget(actor, id, what, evidence);
        Ok(Outcome::Changed)
    }

    /// Drops all that the domain knows of an archive.
    fn forget(&mut self, actor: &Actor, id: ArchiveId, what: String, evidence: Evidence) {
        let Some(archive) = self.archives.remove(&id) else { return };
        if let Some(claim) = &archive.claim {
            let key = format!("{CLAIMS_PREFIX}{}", claim.name);
            if self.values.get(&key) == Some(&id.to_string()) {
                self.values.remove(&key);
            }
        }
        self.note(actor, [Subject::Archive(id), Subject::Database(archive.database)], what, Some(evidence));
    }

    /// What an operator asks for where the domain cannot prove that nothing is lost by it.
    pub(super) fn give_up_archive(&mut self, actor: &Actor, id: ArchiveId, why: &str) -> Applied {
        if actor.role != Role::Person {
            return Err(Refusal::OnlyAPerson);
        }
        let archive = self.unused_archive(id)?;
        let reason = RemovalReason::GivenUp;
        let (was, database) = (archive.removed.clone(), archive.database.clone());
        if was.as_ref().is_some_and(|removal| removal.because == reason) {
            return Ok(Outcome::Unchanged);
        }
        // With the last one the database itself would be given up: its claim has to be deleted for that.
        if was.is_none() && self.active_archives(&database).count() == 1 {
            return Err(Refusal::LastArchive(id));
        }
        let claim_gone = was.as_ref().and_then(Removal::claim_gone_since);
        if let Some(archive) = self.archives.get_mut(&id) {
            archive.removed = Some(Removal { at: self.time, because: reason, claim_gone, watched: None });
        }
        let subjects = [Subject::Archive(id), Subject::Database(database)];
        self.note(actor, subjects, format!("archive {id} removed: {reason}: {why}"), None);
        Ok(Outcome::Changed)
    }

    pub(super) fn forget_archive(&mut self, actor: &Actor, id: ArchiveId, why: &str, evidence: Evidence) -> Applied {
        if actor.role != Role::Person {
            return Err(Refusal::OnlyAPerson);
        }
        if id <= self.last_archive && !self.archives.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let archive = self.unused_archive(id)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(id));
        }
        if let Some(claim) = &archive.claim {
            self.anchored(&evidence)?;
            if !self.lost_its_claim(archive, &evidence) {
                return Err(Refusal::Unproven(format!("claim {} of archive {id} is gone", claim.name)));
            }
        }
        self.forget(actor, id, format!("archive {id} purged: {why}"), evidence);
        Ok(Outcome::Changed)
    }

    /// Whether the claim of an archive is gone: its name is free, or the claim that has taken it has it still.
    fn lost_its_claim(&self, archive: &Archive, evidence: &Evidence) -> bool {
        let taken_by = self.taken_by(archive).map(|claim| &claim.uid);
        archive.claim.as_ref().is_some_and(|claim| evidence.claim_is_lost(&claim.name, taken_by))
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
    fn fenced(&self, fence: &Fence) -> Result<(), Refusal> {
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
    fn idle_archive(&self, fence: &Fence, id: ArchiveId, claim: &Uid) -> Result<&Archive, Refusal> {
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
    fn unused_archive(&self, id: ArchiveId) -> Result<&Archive, Refusal> {
        let archive = self.archives.get(&id).ok_or(Refusal::UnknownArchive(id))?;
        match self.process_on(id) {
            Some(process) => Err(Refusal::ArchiveInUse { archive: id, process: process.id }),
            None => Ok(archive),
        }
    }
}
