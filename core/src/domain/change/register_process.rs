//! How an engine becomes a process: which archive it gets, and whether it may have it.
//!
//! An archive is found by the marker on the volume, then by the claim's UID; where neither is known it is made. Two
//! engines on one archive are never admitted: the second waits until the first is known to be gone.

mod archives;
mod unread;

pub use unread::Lesson;

use super::{Change, Command, ReportExit};
use crate::domain::archive::{Archive, Claim};
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::database::{Database, DatabaseState, Incarnation};
use crate::domain::event::{ArchiveEvent, DatabaseEvent, ProcessEvent};
use crate::domain::ids::{ArchiveId, ClusterName, DatabaseName, NodeId, SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal, Registered};
use crate::domain::process::{
    DurableState, EngineKind, EngineState, ExitReason, Handicap, Identity, Process, Registration, Session, SessionState,
};
use crate::domain::{Applied, Domain, Subject};
use std::collections::BTreeMap;

/// Which archive a registration leads to.
enum Found {
    Known(ArchiveId),
    /// The archive that the claim is known to be of, and not the one that the marker names: that was made for this volume while
    /// nothing could be read, and never ran.
    Instead {
        known: ArchiveId,
        unused: ArchiveId,
    },
    /// None; the archives named are those whose claim was replaced by an empty one of the same name.
    New {
        superseded: Vec<ArchiveId>,
    },
}

impl Change for Registration {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        // Those that are known register again whatever they said once: `has_room_for` looks at what a first one brings.
        bounds.registering_again(self)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        domain.register(actor, self)
    }
}

impl Domain {
    fn register(&mut self, actor: &Actor, mut asked: Registration) -> Applied {
        let read = asked.evidence.as_ref().filter(|_| asked.kind == EngineKind::Sm);
        let mounts_nothing = read.is_some_and(|read| read.pod_has_no_archive(&asked.identity.pod_uid));
        if let Some(known) = self.recognized(&mut asked)? {
            return self.take_up(actor, known, &asked);
        }
        let there = |database: &Database| database.state != DatabaseState::Tombstone;
        if asked.kind == EngineKind::Te && !self.databases.get(&asked.database).is_some_and(there) {
            return Err(Refusal::NoDatabase(asked.database));
        }
        self.takes_part(&asked.cluster)?;
        if mounts_nothing {
            return Err(Refusal::NoClaim(asked.identity.pod));
        }
        // A later start of the same container: the one before it has ended, even if no report of that has come yet.
        let before = self.processes.values().find(|process| same_container(&process.identity, &asked.identity));
        if let Some(before) = before {
            self.is_later(before, &asked)?;
        }
        let before = before.map(|process| process.id);
        let found = match asked.kind {
            EngineKind::Sm => Some(self.find_archive(&asked, before)?),
            EngineKind::Te => None,
        };
        self.has_room_for(&asked, before, found.as_ref())?;
        // From here on nothing is refused any more, so nothing is half done.
        let id = self.last_start.next();
        self.last_start = id;
        if let Some(before) = before {
            let (reason, exit_code) = self.how_it_ended(before, &asked).unwrap_or((ExitReason::Restarted(id), None));
            self.bury(actor, before, reason, exit_code, asked.evidence.clone());
        }
        let node = self.next_node(actor, &asked);
        if let Some(database) = self.databases.get_mut(&asked.database) {
            // Its resync leader looks again.
            database.judged.remove(&asked.cluster);
        }
        let archive = found.map(|found| self.settle_archive(actor, found, &asked));
        let (number, state) = (SessionNumber(1), SessionState::Live);
        let process = Process {
            id,
            node,
            database: asked.database,
            kind: asked.kind,
            archive,
            cluster: asked.cluster,
            identity: asked.identity,
            container_id: None,
            session: Session { server: asked.server, number, connection: asked.connection, state },
            durable: DurableState::Requested,
            engine: EngineState::Unknown,
            about: asked.about,
            registered: self.time,
            entry: self.index,
            stop: None,
            started: None,
            history: None,
            claim_unread: asked.kind == EngineKind::Sm && asked.claim.is_none(),
            interrupted: None,
            data: None,
            handicap: Handicap::default(),
        };
        self.note_registered(actor, &process);
        self.processes.insert(id, process);
        Ok(Outcome::Registered(self.registered(id, node, archive, number)))
    }

    /// Refuses an engine of a cluster that an operator has removed: it has to join again first.
    fn takes_part(&self, cluster: &ClusterName) -> Result<(), Refusal> {
        match self.founded_in.is_none() || self.anchor_in(cluster).is_some() {
            true => Ok(()),
            false => Err(Refusal::UnknownCluster(cluster.clone())),
        }
    }

    /// The living process that asks, if it asks again. Leaves of the claim that was read what may be relied on.
    fn recognized(&self, asked: &mut Registration) -> Result<Option<StartId>, Refusal> {
        self.recall_claim(asked);
        let known = self.known(asked)?;
        if known.is_none() {
            // Before its claim may be left out below: that it was read proves a copy in any Kubernetes.
            self.marked(asked)?;
        }
        self.leave_unbound(asked);
        self.is_current(asked)?;
        Ok(known)
    }

    fn note_registered(&mut self, actor: &Actor, process: &Process) {
        let (id, kind, archive) = (process.id, process.kind, process.archive);
        let mut subjects = vec![Subject::Process(id), Subject::Database(process.database.clone())];
        subjects.extend(archive.map(Subject::Archive));
        let pod = process.identity.pod.clone();
        self.note(actor, subjects, ProcessEvent::Registered { process: id, kind, pod, archive }, None);
    }

    /// Whether a first registration fits.
    fn has_room_for(
        &self,
        asked: &Registration,
        before: Option<StartId>,
        found: Option<&Found>,
    ) -> Result<(), Refusal> {
        self.bounds.registration(asked)?;
        if before.is_none() {
            self.may_add("processes", self.processes.len(), self.bounds.processes)?;
        }
        if let Some(Found::New { superseded }) = found {
            self.may_add("archives", self.archives.len() - superseded.len(), self.bounds.archives)?;
        }
        if !self.databases.contains_key(&asked.database) && self.oldest_deleted().is_none() {
            self.may_add("databases", self.databases.len(), self.bounds.databases)?;
        }
        Ok(())
    }

    /// Makes room for a database that is not known, if there is none.
    pub(super) fn forget_oldest_deleted(&mut self, actor: &Actor) {
        if self.databases.len() >= self.bounds.databases
            && let Some(oldest) = self.oldest_deleted().cloned()
        {
            self.databases.remove(&oldest);
            let forgotten = DatabaseEvent::Forgotten { database: oldest.clone() };
            self.note(actor, [Subject::Database(oldest)], forgotten, None);
        }
    }

    /// The database that was created first, of those that are deleted.
    pub(super) fn oldest_deleted(&self) -> Option<&DatabaseName> {
        let deleted = self.databases.values().filter(|database| database.state == DatabaseState::Tombstone);
        deleted.min_by_key(|database| (database.created, &database.name)).map(|database| &database.name)
    }

    /// The living process that asks, if it asks again. One that has exited is told so.
    fn known(&self, asked: &Registration) -> Result<Option<StartId>, Refusal> {
        let is_it =
            |identity: &Identity| same_container(identity, &asked.identity) && identity.nonce == asked.identity.nonce;
        if let Some(process) = self.processes.values().find(|process| is_it(&process.identity)) {
            // What an agent of another cluster could read proves nothing of it.
            return if process.cluster == asked.cluster || self.founded_in.is_none() {
                Ok(Some(process.id))
            } else {
                Err(Refusal::AnotherCluster(process.cluster.clone()))
            };
        }
        if let Some(exited) = self.tombstones.values().find(|exited| is_it(&exited.process.identity)) {
            let (process, at, reason) = (exited.process.id, exited.at, exited.reason.clone());
            return Err(Refusal::Exited { process, at, reason });
        }
        match asked.known_as {
            Some(process) if self.processes.contains_key(&process) => Err(Refusal::AnotherIdentity(process)),
            // Its tombstone was dropped to make room.
            Some(process) if process <= self.last_start && !self.tombstones.contains_key(&process) => {
                Err(Refusal::Forgotten(process))
            }
            Some(process) => Err(Refusal::UnknownProcess(process)),
            None => Ok(None),
        }
    }

    /// Leaves out the claim where [`Self::is_left_out`]. It is read again later.
    fn leave_unbound(&self, asked: &mut Registration) {
        if asked.claim.as_ref().is_some_and(|claim| self.is_left_out(asked, claim)) {
            asked.claim = None;
        }
    }

    /// Whether the claim would have archives removed, or bound, that are on other claims of its name, and nothing proves that
    /// this is the domain's Kubernetes: in another one all claims are others.
    fn is_left_out(&self, asked: &Registration, claim: &Claim) -> bool {
        let anchored = self.anchor_in(&asked.cluster).zip(asked.evidence.as_ref());
        anchored.is_none_or(|(anchor, evidence)| !evidence.anchored_by(anchor))
            && !self.replaced_by(&asked.cluster, claim).is_empty()
    }

    /// Whether a start of a container is later than the one that the process is. One that is not arrives late, or comes from
    /// another container that calls itself by the same name. The clock of both is their node's.
    fn is_later(&self, before: &Process, asked: &Registration) -> Result<(), Refusal> {
        if self.how_it_ended(before.id, asked).is_some() {
            return Ok(());
        }
        if asked.identity.started < before.identity.started {
            return Err(Refusal::EarlierStart { process: before.id });
        }
        let (pod, name) = (&before.identity.pod_uid, &before.identity.container);
        let runs = |container| asked.evidence.as_ref().is_some_and(|read| read.container_runs(pod, name, container));
        match &before.container_id {
            Some(container) if before.session.state == SessionState::Live && runs(container) => {
                Err(Refusal::ContainerInUse { process: before.id, container: name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The end of the start before this one, which a registration that is refused proves too, if that one's session is lost: of
    /// a pod's containers of one name, one runs at a time. A refusal changes nothing, so the agent proposes this after it.
    /// Otherwise the earlier start would stay on the archive, and the archive's own storage manager would wait for an operator.
    pub fn outlived(&self, refused: &Registration) -> Option<Command> {
        let before = self.processes.values().find(|process| same_container(&process.identity, &refused.identity))?;
        let another = before.identity.nonce != refused.identity.nonce && before.cluster == refused.cluster;
        let lost = before.session.state != SessionState::Live;
        if !another || !lost || self.is_later(before, refused).is_err() {
            return None;
        }
        let (reason, exit_code) =
            self.how_it_ended(before.id, refused).unwrap_or((ExitReason::ContainerReplaced, None));
        let (process, session) = (before.id, before.session.number);
        Some(Command::ReportExit(ReportExit { process, session, exit_code, reason }))
    }

    /// How the start before this one ended, if what was read of the pod tells.
    fn how_it_ended(&self, before: StartId, asked: &Registration) -> Option<(ExitReason, Option<i32>)> {
        let before = self.processes.get(&before)?;
        let evidence = asked.evidence.as_ref()?;
        let exit_code = evidence.container_ended(&before.identity.pod_uid, before.container_id.as_ref()?)?;
        Some((ExitReason::ContainerEnded, exit_code))
    }

    /// Opens the next session of a process that has one, wherever it was.
    fn take_up(&mut self, actor: &Actor, id: StartId, asked: &Registration) -> Applied {
        self.learn_claim(actor, id, asked);
        self.learn_zone(actor, id, asked);
        let index = self.index;
        let process = self.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))?;
        let (node, archive) = (process.node, process.archive);
        let session = &mut process.session;
        let repeated = session.connection == asked.connection && session.server == asked.server;
        if !(repeated && session.state == SessionState::Live) {
            let from = std::mem::replace(&mut session.server, asked.server.clone());
            session.number = session.number.next();
            session.connection = asked.connection;
            session.state = SessionState::Live;
            process.interrupted = process.interrupted.or(Some(index));
            let number = session.number;
            let server = asked.server.clone();
            self.note_alive(id);
            let from = (from != server).then_some(from);
            self.note(
                actor,
                [Subject::Process(id)],
                ProcessEvent::SessionOpened { session: number, server, from },
                None,
            );
        }
        let session = self.processes[&id].session.number;
        Ok(Outcome::Registered(self.registered(id, node, archive, session)))
    }

    /// Notes the zone of the pod, if it could be read and is another one than is known.
    fn learn_zone(&mut self, actor: &Actor, id: StartId, asked: &Registration) {
        let Some(zone) = &asked.about.zone else { return };
        let process = self.processes.get_mut(&id).filter(|process| process.about.zone.as_ref() != Some(zone));
        let Some(process) = process else { return };
        process.about.zone = Some(zone.clone());
        self.note(actor, [Subject::Process(id)], ProcessEvent::ZoneLearned { zone: zone.clone() }, None);
    }

    /// Notes that another StatefulSet, or another one of the same name, owns the pod that mounts an archive's claim.
    fn refresh_owner(&mut self, actor: &Actor, id: ArchiveId, claim: &Claim) {
        let known = self.archives.get_mut(&id).and_then(|archive| archive.claim.as_mut());
        let Some(known) = known.filter(|known| known.uid == claim.uid && known.owner != claim.owner) else { return };
        known.owner.clone_from(&claim.owner);
        let owned = ArchiveEvent::Owned { archive: id, owner: claim.owner.clone() };
        self.note(actor, [Subject::Archive(id)], owned, None);
    }

    fn registered(
        &self,
        process: StartId,
        node: NodeId,
        archive: Option<ArchiveId>,
        session: SessionNumber,
    ) -> Registered {
        let domain = self.id.clone().expect("only a founded domain applies anything but its founding");
        Registered { domain, process, node, archive, session }
    }

    /// Whether the claim was read after the domain learned of another one of its name. A registration that was under way for
    /// long would else replace an archive by one whose claim is gone.
    fn is_current(&self, asked: &Registration) -> Result<(), Refusal> {
        let (Some(claim), Some(as_of)) = (&asked.claim, asked.as_of) else { return Ok(()) };
        let replaced = self.replaced_by(&asked.cluster, claim);
        match replaced.iter().any(|archive| self.archives[archive].bound > as_of) {
            true => Err(Refusal::Unproven(format!("claim {} is still the one with uid {}", claim.name, claim.uid))),
            false => Ok(()),
        }
    }

    /// The archive that the marker on the volume names, if it may be that. None if it was purged, and yet its data is back: it
    /// becomes a new archive.
    fn marked(&self, asked: &Registration) -> Result<Option<&Archive>, Refusal> {
        let Some(marker) = &asked.marker else { return Ok(None) };
        if Some(&marker.domain) != self.id.as_ref() && !self.came_from(&marker.domain, marker.archive) {
            return Err(Refusal::ForeignVolume(marker.domain.clone()));
        }
        let Some(archive) = self.archives.get(&marker.archive) else { return Ok(None) };
        if archive.database != asked.database {
            return Err(Refusal::AnotherDatabase(archive.id));
        }
        self.moved_to(archive, asked)?;
        Ok(Some(archive))
    }

    fn find_archive(&self, asked: &Registration, before: Option<StartId>) -> Result<Found, Refusal> {
        if let Some(archive) = self.marked(asked)? {
            for other in self.others_on(archive.id, asked.claim.as_ref()) {
                self.free(other, before)?;
            }
            if let (None, Some(claim)) = (&archive.claim, &asked.claim) {
                for other in self.replaced_by(&asked.cluster, claim) {
                    self.free(other, before)?;
                }
            }
            let unused = self.free(archive.id, before)?;
            return Ok(match self.known_on(archive, asked.claim.as_ref()) {
                Some(known) => Found::Instead { known, unused },
                None => Found::Known(unused),
            });
        }
        let Some(claim) = &asked.claim else { return Ok(Found::New { superseded: Vec::new() }) };
        let on_claim = |archive: &&Archive| archive.claim.as_ref().is_some_and(|known| known.uid == claim.uid);
        if let Some(archive) = self.archives.values().find(on_claim) {
            if archive.database != asked.database {
                return Err(Refusal::AnotherDatabase(archive.id));
            }
            return self.free(archive.id, before).map(Found::Known);
        }
        // The volume has no marker: the data of the archives on claims of this name before is gone.
        let superseded = self.replaced_by(&asked.cluster, claim).into_iter();
        let superseded = superseded.map(|archive| self.free(archive, before)).collect::<Result<_, _>>()?;
        Ok(Found::New { superseded })
    }

    /// The claim that an archive was on, if it is another one than the pod mounts.
    fn left_claim<'a>(&self, archive: &'a Archive, asked: &Registration) -> Option<&'a Claim> {
        let (known, claim) = (archive.claim.as_ref()?, asked.claim.as_ref()?);
        let elsewhere = archive.cluster != asked.cluster || known.namespace != claim.namespace;
        // A name is one claim's at a time.
        (!elsewhere && known.uid != claim.uid && known.name != claim.name).then_some(known)
    }

    /// Whether an archive whose marker is on another claim than it was has moved there, and was not copied: its claim is
    /// gone.
    fn moved_to(&self, archive: &Archive, asked: &Registration) -> Result<(), Refusal> {
        let (Some(known), Some(claim)) = (self.left_claim(archive, asked), &asked.claim) else { return Ok(()) };
        let read = asked.evidence.as_ref();
        if read.is_some_and(|read| read.claim_with_uid_is_gone(&known.name, &known.uid)) {
            return Ok(());
        }
        Err(if read.is_some_and(|read| read.claim_exists(&known.name, &known.uid)) {
            Refusal::Copy { archive: archive.id, claim: known.name.clone() }
        } else {
            let (id, was, now) = (archive.id, &known.name, &claim.name);
            Refusal::Unproven(format!("archive {id} has moved from claim {was} to {now} and was not copied"))
        })
    }

    /// The archives on claims that had the name of this one and another UID, and so are gone.
    fn replaced_by(&self, cluster: &ClusterName, claim: &Claim) -> Vec<ArchiveId> {
        let replaced = |known: &Claim| {
            (&known.namespace, &known.name) == (&claim.namespace, &claim.name) && known.uid != claim.uid
        };
        let replaced = |archive: &&Archive| archive.cluster == *cluster && archive.claim.as_ref().is_some_and(replaced);
        self.archives.values().filter(replaced).map(|archive| archive.id).collect()
    }

    /// The archives besides this one that are taken to be on the claim.
    fn others_on(&self, id: ArchiveId, claim: Option<&Claim>) -> Vec<ArchiveId> {
        let on_it = |archive: &&Archive| {
            let uid = archive.claim.as_ref().map(|known| &known.uid);
            archive.id != id && uid.is_some() && uid == claim.map(|claim| &claim.uid)
        };
        self.archives.values().filter(on_it).map(|archive| archive.id).collect()
    }

    /// The archive that ran on the claim, where another one was made for the volume while the claim could not be read, and never
    /// ran: the volume had lost its marker.
    fn known_on(&self, archive: &Archive, claim: Option<&Claim>) -> Option<ArchiveId> {
        if archive.claim.is_some() || archive.ever_ran {
            return None;
        }
        let ran = |other: &ArchiveId| {
            self.archives.get(other).is_some_and(|other| other.ever_ran && other.database == archive.database)
        };
        self.others_on(archive.id, claim).into_iter().find(ran)
    }

    /// The archive, if no process but `before` is on it.
    fn free(&self, archive: ArchiveId, before: Option<StartId>) -> Result<ArchiveId, Refusal> {
        match self.process_on(archive) {
            Some(process) if Some(process.id) != before => Err(Refusal::ArchiveInUse { archive, process: process.id }),
            _ => Ok(archive),
        }
    }

    fn next_node(&mut self, actor: &Actor, asked: &Registration) -> NodeId {
        let (name, created) = (asked.database.clone(), self.time);
        if !self.databases.contains_key(&name) {
            self.forget_oldest_deleted(actor);
            let created = DatabaseEvent::Created { database: name.clone(), again: false };
            self.note(actor, [Subject::Database(name.clone())], created, None);
        }
        let database = self.databases.entry(name.clone()).or_insert(Database {
            name,
            state: DatabaseState::NotRunning,
            incarnation: Incarnation::default(),
            next_node: NodeId(1),
            created,
            stopping_since: None,
            protocol: None,
            options: BTreeMap::new(),
            by_hand: false,
            judged: BTreeMap::new(),
            replicated: None,
        });
        database.by_hand = false;
        let node = database.next_node;
        database.next_node = node.next();
        if database.state == DatabaseState::Tombstone {
            database.state = DatabaseState::NotRunning;
            database.protocol = None;
            let created = DatabaseEvent::Created { database: asked.database.clone(), again: true };
            self.note(actor, [Subject::Database(asked.database.clone())], created, None);
        }
        node
    }
}

fn same_container(one: &Identity, other: &Identity) -> bool {
    one.pod_uid == other.pod_uid && one.container == other.container
}
