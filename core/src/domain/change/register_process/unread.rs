//! Storage managers whose pod could not be read when they registered: which claim it mounts is learned later.

use super::Found;
use crate::domain::Domain;
use crate::domain::archive::Claim;
use crate::domain::command::Actor;
use crate::domain::ids::{ArchiveId, ServerId, StartId};
use crate::domain::outcome::Refusal;
use crate::domain::process::{EngineKind, Process, Registration, SessionState};

/// What follows when the pod of a storage manager that is connected is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// Nothing that is not known: it is not proposed again and again.
    Nothing,
    /// Its archive's claim is known now: it is registered again.
    Claim,
    /// It has to end, for this reason: it was not told to start, and its volume is not that of its archive.
    End(String),
    /// Its volume is proven to be a copy, and it may run: an operator has to evict it before the original gets in.
    RunsOnACopy(Refusal),
}

impl Domain {
    /// Fills in the claim of a pod that could not be read now, if it was read for the start before this one: a pod mounts the claims
    /// of the same names as long as it lives. The archive is on that claim still if no other process was on it since. A volume
    /// without a marker is not the one that an archive ran on: its claim was recreated under the pod.
    pub(super) fn recall_claim(&self, asked: &mut Registration) {
        if asked.claim.is_some() || asked.kind != EngineKind::Sm {
            return;
        }
        let exited = self.tombstones.values().map(|exited| &exited.process);
        let starts = self.processes.values().chain(exited).filter(|process| process.kind == EngineKind::Sm);
        let in_pod = |process: &&Process| process.identity.pod_uid == asked.identity.pod_uid;
        let before = starts.filter(in_pod).max_by_key(|process| process.id).filter(|process| !process.claim_unread);
        let archive = before.and_then(|process| self.archives.get(&process.archive?));
        let (Some(before), Some(archive)) = (before, archive) else { return };
        let last = self.process_on(archive.id).or_else(|| self.last_exit_on(archive.id).map(|exited| &exited.process));
        let is_last = last.is_some_and(|last| last.id == before.id);
        if is_last && (asked.marker.is_some() || !archive.ever_ran) {
            asked.claim.clone_from(&archive.claim);
        }
    }

    /// How the engines that have a session with a server would register again, unchanged, whose archive has no known claim or
    /// whose pod was not read.
    pub fn unbound(&self, server: &ServerId) -> Vec<Registration> {
        let here =
            |process: &&Process| process.session.server == *server && process.session.state == SessionState::Live;
        let unbound = self.processes.values().filter(here).filter_map(|process| {
            let archive = self.archives.get(&process.archive?)?;
            (archive.claim.is_none() || process.claim_unread).then(|| Registration {
                database: process.database.clone(),
                kind: process.kind,
                cluster: process.cluster.clone(),
                identity: process.identity.clone(),
                known_as: Some(process.id),
                claim: None,
                marker: None,
                path: archive.path.clone(),
                server: server.clone(),
                connection: process.session.connection,
                about: process.about.clone(),
                evidence: None,
                as_of: Some(self.index),
            })
        });
        unbound.collect()
    }

    /// The claim that has to be read before a registration can be decided: the archive that it leads to was on another one. Of
    /// a claim in another namespace or cluster nothing can be read.
    pub fn claim_in_doubt(&self, asked: &Registration) -> Option<&Claim> {
        let known = asked.known_as.and_then(|process| self.processes.get(&process)?.archive);
        let archive = known.or(asked.marker.as_ref().map(|marker| marker.archive))?;
        self.left_claim(self.archives.get(&archive)?, asked)
    }

    /// What follows of a registration with what was read of a pod meanwhile.
    pub fn learns(&self, asked: &Registration) -> Lesson {
        let process = asked.known_as.and_then(|process| self.processes.get(&process));
        let (Some(process), Some(claim)) = (process, &asked.claim) else { return Lesson::Nothing };
        if let Some(known) = self.to_end_for(process, claim) {
            return Lesson::End(format!("claim {} is that of archive {known}, which its next start gets", claim.name));
        }
        match self.learned(process, asked) {
            Err(copy @ Refusal::Copy { .. }) if process.may_have_run() => Lesson::RunsOnACopy(copy),
            Err(copy @ Refusal::Copy { .. }) => Lesson::End(copy.to_string()),
            Ok(Some(_)) if !self.is_left_out(asked, claim) => Lesson::Claim,
            // Nothing read says whether the claim that is known is gone.
            Ok(_) | Err(_) => Lesson::Nothing,
        }
    }

    /// The archive that an engine gets with its next start, if it was not told to start as the one that it has.
    fn to_end_for(&self, process: &Process, claim: &Claim) -> Option<ArchiveId> {
        let archive = self.archives.get(&process.archive.filter(|_| !process.may_have_run())?)?;
        self.known_on(archive, Some(claim))
    }

    /// The archive that is to be bound, of a process whose pod could not be read when it registered; also if a claim of it is
    /// known: the volume may have been restored under another one. Where another process is in the way nothing is done: it
    /// is asked again. Once it was read it stays: a claim that has the name later is not the one that the pod mounts.
    fn learned(&self, process: &Process, asked: &Registration) -> Result<Option<ArchiveId>, Refusal> {
        let archive = process.archive.and_then(|archive| self.archives.get(&archive));
        let (Some(claim), Some(archive)) = (&asked.claim, archive) else { return Ok(None) };
        if archive.claim.is_some() && !process.claim_unread {
            return Ok(None);
        }
        if self.to_end_for(process, claim).is_some() {
            return Ok(None);
        }
        self.moved_to(archive, asked)?;
        let mut others = self.others_on(archive.id, Some(claim));
        others.extend(self.replaced_by(&asked.cluster, claim));
        let in_use = |other: &ArchiveId| *other != archive.id && self.process_on(*other).is_some();
        Ok((!others.iter().any(in_use)).then_some(archive.id))
    }

    /// Takes over what a registration says of the claim of a process that is known.
    pub(super) fn learn_claim(&mut self, actor: &Actor, process: StartId, asked: &Registration) {
        let Some(known) = self.processes.get(&process) else { return };
        let archive = known.archive;
        if let Ok(Some(archive)) = self.learned(known, asked) {
            self.settle_archive(actor, Found::Known(archive), asked);
            if let Some(process) = self.processes.get_mut(&process) {
                process.claim_unread = false;
            }
        } else if let (Some(archive), Some(claim)) = (archive, &asked.claim) {
            self.refresh_owner(actor, archive, claim);
        }
    }
}
