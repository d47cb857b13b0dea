//! What must hold at every step, and what must hold of the domain after the faults have ended.

use crate::sim::engine::Truth;
use crate::sim::host::Host;
use crate::sim::trace::Trace;
use crate::sim::world::EPOCH_MS;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object::{number, text, uid};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::Key;
use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Archive, Claim, RemovalReason};
use kaa_core::domain::audit::Subject;
use kaa_core::domain::command::Role;
use kaa_core::domain::database::DatabaseState;
use kaa_core::domain::ids::{ArchiveId, DatabaseName, Millis, StartId};
use kaa_core::domain::invariants::{step_violations, violations};
use kaa_core::domain::process::{DurableState, ExitReason, SessionState};
use kaa_core::resync::plan::Waiting;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// How long before the date of its evidence a fact may have been read: a read waits up to a second for its answer, and
/// watches may not replace it.
const UNWANTED_WITHIN_MS: u64 = 1_500;

/// What the checks have seen so far.
pub struct Checks {
    pub trace: Trace,
    pub instance: Arc<Instance>,
    pub truth: Arc<Mutex<Truth>>,
    /// Every domain that any agent showed, by its index.
    history: BTreeMap<u64, Domain>,
    /// The index of the last domain that each agent showed.
    last: BTreeMap<String, u64>,
    /// When the storage managers were scaled, and to how many.
    replicas: Vec<(u64, u32)>,
    /// For each database that does not run: since when, by the domain's time.
    cold: BTreeMap<DatabaseName, Millis>,
    /// How many archives and processes were removed.
    pub taken_away: u64,
}

impl Checks {
    pub fn new(trace: Trace, instance: Arc<Instance>, truth: Arc<Mutex<Truth>>) -> Self {
        let (history, last) = (BTreeMap::new(), BTreeMap::new());
        Self { trace, instance, truth, history, last, replicas: vec![(0, 2)], cold: BTreeMap::new(), taken_away: 0 }
    }

    /// Notes that the storage managers are scaled.
    pub fn scaled(&mut self, now_ms: u64, replicas: u32) {
        self.replicas.push((now_ms, replicas));
    }

    /// Checks the domain of an agent.
    pub fn look(&mut self, host: &Host, now_ms: u64) {
        let Some(index) = host.look(|shared| shared.raft.read(|domain| domain.index)) else { return };
        if index == 0 || self.last.get(&host.name) == Some(&index) {
            return;
        }
        let Some(domain) = host.look(|shared| shared.raft.read(Domain::clone)) else { return };
        self.last.insert(host.name.clone(), index);
        match self.history.get(&index) {
            Some(seen) if *seen != domain => {
                self.trace.wrong(&format!("{} has another domain at entry {index} than somebody had", host.name));
            }
            Some(_) => {}
            None => self.note(domain, now_ms),
        }
    }

    /// Judges a domain with an index that no agent has shown before.
    fn note(&mut self, domain: Domain, now_ms: u64) {
        let index = domain.index;
        for what in violations(&domain) {
            self.trace.wrong(&format!("entry {index}: {what}"));
        }
        let earlier = self.history.range(..index).next_back().map(|(at, earlier)| (*at, earlier.clone()));
        if let Some((at, earlier)) = earlier {
            if at + 1 == index {
                for what in step_violations(&earlier, &domain) {
                    self.trace.wrong(&format!("entry {index}: {what}"));
                }
            }
            self.compare(&earlier, &domain, now_ms);
            self.cold_started(&earlier, &domain);
            self.fenced(&earlier, &domain);
            for (cluster, leader) in &earlier.resync {
                if domain.resync.get(cluster).is_none_or(|later| later.epoch < leader.epoch) {
                    self.trace.wrong(&format!("entry {index}: the resync epoch of {cluster} went back"));
                }
            }
        }
        let Domain { time, last_archive, last_start, values, .. } = &domain;
        self.trace.mix(&format!("entry {index}: {time} {last_archive} {last_start} {}", values.len()));
        self.history.insert(index, domain);
    }

    /// Whether the archive never ran, and the marker on its claim's volume names another archive, which exists.
    fn gives_way(&self, archive: &Archive, after: &Domain) -> bool {
        if archive.ever_ran {
            return false;
        }
        let truth = self.truth.lock().unwrap();
        let marker = archive.claim.as_ref().and_then(|claim| truth.markers.get(claim.uid.as_str()));
        marker.is_some_and(|marker| {
            let held = ArchiveId(marker.archive);
            held != archive.id && after.archives.contains_key(&held)
        })
    }

    fn claim_lives(&self, archive: &Archive) -> bool {
        let Some(claim) = &archive.claim else { return false };
        let key = Key::new(Kind::PersistentVolumeClaim, "default", &claim.name);
        self.instance.look(|store| store.find(&key).is_some_and(|found| uid(found) == claim.uid.as_str()))
    }

    /// Checks that each removal by a resync leader was made by the server that led then.
    fn fenced(&self, before: &Domain, after: &Domain) {
        let new = after.audit.records().rev().take_while(|record| record.index > before.index);
        for record in new.filter(|it| it.actor.role == Role::ResyncLeader && it.evidence.is_some()) {
            for (cluster, now) in &after.resync {
                let leader = if record.index >= now.epoch.0 { Some(now) } else { before.resync.get(cluster) };
                if leader.is_none_or(|leader| leader.holder.as_str() != record.actor.name) {
                    let words =
                        format!("entry {}: {} did not lead: {}", record.index, record.actor.name, record.text());
                    self.trace.wrong(&words);
                }
            }
        }
    }

    fn compare(&mut self, before: &Domain, after: &Domain, now_ms: u64) {
        for (id, archive) in &before.archives {
            let later = after.archives.get(id);
            if later.is_none() {
                self.taken_away += 1;
                let subject = Subject::Archive(*id);
                let record = after.audit.of(&subject).next_back().map(kaa_core::domain::audit::Record::text);
                self.trace.line(&record.unwrap_or_else(|| format!("archive {id} is purged")));
                if self.claim_lives(archive) && !self.gives_way(archive, after) {
                    self.trace.wrong(&format!("archive {id} is purged and its claim lives"));
                }
            }
            let removal = later.and_then(|later| later.removed.as_ref()).filter(|_| archive.removed.is_none());
            if let Some(removal) = removal {
                self.taken_away += 1;
                self.trace.line(&format!("archive {id} is removed: {}", removal.because));
                let subject = Subject::Archive(*id);
                let record = after.audit.of(&subject).rev().find_map(|it| it.evidence.as_ref());
                let read_ms = record.map_or(now_ms, |evidence| evidence.read_at.0.saturating_sub(EPOCH_MS));
                self.removed(*id, archive, removal.because, read_ms);
            }
        }
        for (id, archive) in after.archives.iter().filter(|(id, _)| !before.archives.contains_key(id)) {
            let claim = archive.claim.as_ref().map_or("no claim", |claim| claim.name.as_str());
            self.trace.line(&format!("archive {id} is new, on {claim}"));
        }
        for (id, tombstone) in after.tombstones.iter().filter(|(id, _)| !before.tombstones.contains_key(id)) {
            self.trace.line(&format!("process {id} of {}: {}", tombstone.process.identity.pod, tombstone.reason));
            self.buried(*id, &tombstone.reason, tombstone.process.identity.pod_uid.as_str());
        }
    }

    /// Checks the cold start of a database: the storage manager that started first must have the newest data.
    fn cold_started(&mut self, before: &Domain, after: &Domain) {
        let runs =
            |domain: &Domain, name| domain.databases.get(name).is_some_and(|it| it.state == DatabaseState::Running);
        for name in before.databases.keys().filter(|name| runs(before, *name) && !runs(after, *name)) {
            self.cold.insert(name.clone(), after.time);
        }
        let first = after.processes.values().find(|process| {
            let sm = process.archive.is_some() && process.durable != DurableState::Requested;
            sm && !runs(before, &process.database) && runs(after, &process.database)
        });
        let Some(first) = first else { return };
        // A storage manager that registered while the database still counted as running may have been allowed to start
        // then.
        if self.cold.get(&first.database).is_some_and(|since| first.registered <= *since) {
            return;
        }
        let truth = self.truth.lock().unwrap();
        let others_run = |nonce: u64| {
            truth.engines.iter().any(|(other, facts)| *other != nonce && facts.running && facts.claim_uid.is_some())
        };
        let Some(facts) = truth.engines.get(&first.identity.nonce).filter(|_| !others_run(first.identity.nonce)) else {
            return;
        };
        let others = before.archives.values().filter(|other| other.database == first.database);
        for other in others.filter(|other| Some(other.id) != first.archive) {
            let data = other.claim.as_ref().and_then(|claim| truth.data.get(claim.uid.as_str()));
            if other.ever_ran && self.claim_lives(other) && data.is_some_and(|data| *data > facts.started_with) {
                let words = format!("{} was started first, and archive {} has newer data", facts.pod, other.id);
                self.trace.wrong(&words);
            }
        }
    }

    fn removed(&self, id: ArchiveId, archive: &Archive, because: RemovalReason, read_ms: u64) {
        let ordinal = archive.claim.as_ref().and_then(|claim| claim.owner.as_ref()).map(|owner| owner.ordinal);
        match because {
            RemovalReason::ClaimDeleted if self.claim_lives(archive) => {
                self.trace.wrong(&format!("archive {id} is removed and its claim lives"));
            }
            RemovalReason::ScaledDown if !self.was_unwanted(ordinal.unwrap_or(0), read_ms) => {
                self.trace.wrong(&format!("archive {id} is removed and its ordinal was wanted"));
            }
            RemovalReason::ClaimDeleted | RemovalReason::ScaledDown | RemovalReason::GivenUp => {}
        }
    }

    fn was_unwanted(&self, ordinal: u32, now_ms: u64) -> bool {
        let mut until = now_ms;
        for (since, replicas) in self.replicas.iter().rev() {
            if ordinal >= *replicas && until + UNWANTED_WITHIN_MS >= now_ms {
                return true;
            }
            until = *since;
        }
        false
    }

    fn buried(&mut self, id: StartId, reason: &ExitReason, pod_uid: &str) {
        let pods =
            |pod_uid: &str| self.instance.look(|store| store.list(Kind::Pod, None).any(|pod| uid(pod) == pod_uid));
        let truth = self.truth.lock().unwrap();
        let runs = truth.engines.values().any(|facts| facts.start_id == id.0 && facts.running);
        match reason {
            ExitReason::PodGone if pods(pod_uid) => {
                self.trace.wrong(&format!("process {id} is removed and its pod is there"));
            }
            ExitReason::ContainerEnded | ExitReason::ContainerReplaced if runs => {
                self.trace.wrong(&format!("process {id} is removed and it runs"));
            }
            ExitReason::PodGone | ExitReason::ContainerEnded | ExitReason::ContainerReplaced => self.taken_away += 1,
            _ => {}
        }
    }

    /// Adds the whole last domain to the hash.
    pub fn close(&self) {
        self.trace.mix(&format!("{:?}", self.history.last_key_value()));
    }

    /// The differences between the domain and the real state; empty once the domain has converged.
    pub fn differences(&self, hosts: &[Host], acknowledged: &BTreeSet<String>) -> Vec<String> {
        let mut differences = Vec::new();
        let mut domains = Vec::new();
        for host in hosts {
            let Some(domain) = host.look(|shared| shared.raft.read(Domain::clone)).filter(|_| host.is_up()) else {
                return vec![format!("{} does not run", host.name)];
            };
            domains.push(domain);
        }
        if domains.iter().any(|domain| *domain != domains[0]) {
            let indexes: Vec<u64> = domains.iter().map(|domain| domain.index).collect();
            differences.push(format!("the agents are at entries {indexes:?}"));
        }
        let domain = &domains[0];
        let lost = acknowledged.iter().filter(|key| !domain.values.contains_key(*key)).count();
        if lost > 0 {
            differences.push(format!("{lost} acknowledged writes are lost"));
        }
        self.compare_processes(domain, &mut differences);
        self.compare_archives(domain, &mut differences);
        if !differences.is_empty() {
            differences.extend(hosts.iter().flat_map(waits));
        }
        differences
    }

    fn compare_processes(&self, domain: &Domain, differences: &mut Vec<String>) {
        let live: BTreeSet<u64> = (domain.processes.values())
            .filter(|process| process.session.state == SessionState::Live)
            .map(|process| process.identity.nonce)
            .collect();
        for process in domain.processes.values().filter(|process| !live.contains(&process.identity.nonce)) {
            let (pod, session) = (&process.identity.pod, &process.session);
            let (server, number) = (&session.server, session.number);
            differences.push(format!("process {} of {pod} is lost: session {number} with {server}", process.id));
        }
        let truth = self.truth.lock().unwrap();
        for (nonce, facts) in &truth.engines {
            if !facts.ended && !live.contains(nonce) {
                differences.push(format!("the engine of {} is not in the domain", facts.pod));
            }
            if facts.ended && live.contains(nonce) {
                differences.push(format!("process {} of {} has ended", facts.start_id, facts.pod));
            }
            // Without a storage manager a transaction engine has to wait.
            let waits = facts.claim_uid.is_none() && self.replicas() == 0;
            if !facts.ended && !facts.running && !waits {
                differences.push(format!("the engine of {} was not told to start", facts.pod));
            }
        }
        let wanted = self.instance.look(|store| {
            let pods = store.list(Kind::Pod, None);
            pods.filter(|pod| !text(pod, "/metadata/labels/component").is_empty()).count()
        });
        if wanted != live.len() {
            differences.push(format!("{wanted} pods of engines, {} live processes", live.len()));
        }
    }

    fn compare_archives(&self, domain: &Domain, differences: &mut Vec<String>) {
        let replicas = self.replicas();
        for (id, archive) in &domain.archives {
            let Some(claim) = &archive.claim else {
                // Once no engine uses the archive, nothing can tell which claim it was on: an operator must decide.
                if domain.processes.values().any(|process| process.archive == Some(*id)) {
                    differences.push(format!("archive {id} is on no claim that is known, and its engine runs"));
                }
                continue;
            };
            let wanted = claim.owner.as_ref().is_some_and(|owner| i64::from(owner.ordinal) < replicas);
            if !self.claim_lives(archive) && (wanted || !self.is_replaced(claim)) {
                differences.push(format!("archive {id} is there without its claim"));
            }
            let removed = archive.removed.is_some();
            // An archive that is not wanted stays while no storage manager runs that is proven to have the same data.
            let runs = self.truth.lock().unwrap().engines.values().any(|it| it.running && it.claim_uid.is_some());
            let kept = !wanted && !removed && !runs;
            if wanted == removed && !kept {
                differences.push(format!("archive {id} is wanted: {wanted}, removed: {removed}"));
            }
        }
    }

    /// How many storage managers the StatefulSet wants.
    pub fn replicas(&self) -> i64 {
        let set = Key::new(Kind::StatefulSet, "default", "sm-demo");
        self.instance.look(|store| store.find(&set).and_then(|set| number(set, "/spec/replicas")).unwrap_or_default())
    }

    /// Whether another claim has the name of this one. The domain learns what is on it once an engine starts on it,
    /// which does not happen if its ordinal is not wanted.
    fn is_replaced(&self, claim: &Claim) -> bool {
        let key = Key::new(Kind::PersistentVolumeClaim, "default", &claim.name);
        self.instance.look(|store| store.find(&key).is_some_and(|found| uid(found) != claim.uid.as_str()))
    }
}

/// The reasons of the changes that wait, according to an agent's resync.
fn waits(host: &Host) -> Vec<String> {
    let waiting = host.look(|shared| {
        let last = shared.last_pass.lock().unwrap();
        last.as_ref().map(|last| last.waiting.clone()).unwrap_or_default()
    });
    let line = |waiting: Waiting| format!("({} waits: {}: {})", host.name, waiting.subject, waiting.reason);
    waiting.unwrap_or_default().into_iter().map(line).collect()
}
