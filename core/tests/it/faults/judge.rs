//! The violations of a run: of the domain's own invariants, removals for which there was no real cause, and an end that
//! differs from the end without faults.

use super::engines::Engine;
use super::kubernetes::SETS;
use super::leader::{Sent, Truth};
use super::run::Run;
use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Archive, Claim, RemovalReason, WATCH_MOST_MS};
use kaa_core::domain::audit::Subject;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Fence, Outcome};
use kaa_core::domain::database::DatabaseState;
use kaa_core::domain::ids::{ArchiveId, DatabaseName, StartId, Uid};
use kaa_core::domain::invariants::{step_violations, violations};
use kaa_core::domain::process::{ExitReason, Process, SessionState};
use kaa_core::domain::task::StepKind;
use std::collections::{BTreeMap, BTreeSet};

impl Truth {
    fn has_claim(&self, uid: &Uid) -> bool {
        self.objects.claims.values().any(|claim| claim.uid == *uid)
    }

    fn holds(&self, claim: &Claim, purge: bool) -> bool {
        let set = claim.owner.as_ref().and_then(|owner| self.objects.sets.get(&owner.stateful_set));
        set.is_some_and(|set| set.paused || (purge && set.holds_purge))
    }

    /// Whether the StatefulSet of the archive exists and does not want it.
    fn unwanted(&self, claim: &Claim) -> bool {
        claim.owner.as_ref().is_some_and(|owner| {
            let set = self.objects.sets.get(&owner.stateful_set).filter(|set| set.uid == owner.uid);
            let wanted = |first: u32, replicas: u32| (first..first + replicas).contains(&owner.ordinal);
            set.is_some_and(|set| !wanted(set.first_ordinal, set.replicas))
        })
    }

    pub fn wants_database(&self, name: &DatabaseName) -> bool {
        let ours = |database: &Option<DatabaseName>| database.as_ref() == Some(name);
        let is = &self.objects;
        is.sets.values().any(|set| ours(&set.database))
            || is.deployments.values().any(|deployment| ours(&deployment.database))
            || is.claims.values().any(|claim| ours(&claim.database))
            || is.pods.values().any(|pod| ours(&pod.database))
    }
}

fn fence(command: &Command) -> Option<&Fence> {
    match command {
        Command::RemoveProcess(change::RemoveProcess { fence, .. })
        | Command::RemoveArchive(change::RemoveArchive { fence, .. })
        | Command::PurgeArchive(change::PurgeArchive { fence, .. })
        | Command::NoteClaimGone(change::NoteClaimGone { fence, .. })
        | Command::DeleteDatabase(change::DeleteDatabase { fence, .. })
        | Command::RemoveServer(change::RemoveServer { fence, .. }) => Some(fence),
        Command::BeginTask(change) => Some(&change.fence),
        Command::AdvanceTask(change) if change.what != StepKind::AwaitEngine => Some(&change.fence),
        _ => None,
    }
}

impl Run {
    /// Judges a command that was applied.
    pub fn judge(&mut self, before: &Domain, command: &Command, outcome: &Outcome, sent: Option<&Sent>) {
        let mut wrong = [step_violations(before, &self.domain), violations(&self.domain)].concat();
        if matches!(outcome, Outcome::Refused(_) | Outcome::Unchanged) {
            let Domain { index, time, needs, .. } = *before;
            if *before != (Domain { index, time, needs, ..self.domain.clone() }) {
                wrong.push(format!("a command that was {outcome:?} changed something"));
            }
        }
        if self.domain.index <= before.index {
            wrong.push("the domain's version did not grow".to_owned());
        }
        wrong.extend(self.wrongly_lost(before, sent));
        wrong.extend(self.wrong_ids(before));
        wrong.extend(self.unexplained(before));
        if let Some(sent) = sent
            && *outcome == Outcome::Changed
        {
            wrong.extend(self.wrong_proposal(before, command, &sent.truth));
            wrong.extend(self.wrong_upgrade(before, command, &sent.truth));
        }
        for what in wrong {
            self.violated(format!("{what}, after {command:?}"));
        }
    }

    /// Checks all losses, whatever the command: nothing may be lost that exists, lives, or belongs to another cluster.
    fn wrongly_lost(&self, before: &Domain, sent: Option<&Sent>) -> Vec<String> {
        let mut wrong = Vec::new();
        for (id, archive) in before.archives.iter().filter(|(id, _)| !self.domain.archives.contains_key(id)) {
            let Some(claim) = &archive.claim else { continue };
            let there = match sent {
                Some(sent) => sent.truth.has_claim(&claim.uid),
                // After a registration: an archive that never ran is replaced by the archive that the marker on the
                // volume names.
                None => archive.ever_ran && self.kubernetes.claim_uids().contains(&claim.uid),
            };
            if there || archive.cluster.as_str() != "c1" {
                wrong.push(format!("archive {id} is lost and its claim {} is there", claim.uid));
            }
        }
        for (id, archive) in before.archives.iter().filter(|(_, archive)| archive.cluster.as_str() == "c1") {
            let now = self.domain.archives.get(id).and_then(|archive| archive.claim.as_ref());
            let Some((was, now)) = archive.claim.as_ref().zip(now) else { continue };
            if was.name != now.name && self.kubernetes.claim_uids().contains(&was.uid) {
                wrong.push(format!("archive {id} went to a copy on {}, and its claim {} is there", now.name, was.name));
            }
        }
        for (id, process) in before.processes.iter().filter(|(id, _)| !self.domain.processes.contains_key(id)) {
            let live = process.session.state == SessionState::Live && sent.is_some();
            if live || process.cluster.as_str() != "c1" {
                wrong.push(format!("process {id} of cluster {} was removed while it is there", process.cluster));
            }
        }
        wrong
    }

    /// Changes of an archive, a process or a database without a record. The audit trail has only the records of this
    /// command.
    fn unexplained(&self, before: &Domain) -> Vec<String> {
        let after = &self.domain;
        let archive = |domain: &Domain, id| {
            domain.archives.get(id).map(|it| (it.removed.as_ref().map(|removal| removal.because), it.claim.clone()))
        };
        let process = |domain: &Domain, id| {
            domain.processes.get(id).map(|it| (it.session.number, it.session.state, it.durable, it.stop.is_some()))
        };
        let database = |domain: &Domain, name| domain.databases.get(name).map(|it| it.state);
        let archives = before.archives.keys().chain(after.archives.keys());
        let archives = archives.filter(|id| archive(before, id) != archive(after, id)).map(|id| Subject::Archive(*id));
        let processes = before.processes.keys().chain(after.processes.keys());
        let processes =
            processes.filter(|id| process(before, id) != process(after, id)).map(|id| Subject::Process(*id));
        let databases = before.databases.keys().chain(after.databases.keys());
        let databases = databases.filter(|name| database(before, name) != database(after, name));
        let changed = archives.chain(processes).chain(databases.map(|name| Subject::Database(name.clone())));
        let unexplained = changed.filter(|subject| after.audit.of(subject).next().is_none());
        unexplained.map(|subject| format!("nothing tells what became of {subject}")).collect()
    }

    /// An archive id is given only once.
    fn wrong_ids(&mut self, before: &Domain) -> Vec<String> {
        let mut wrong = Vec::new();
        for id in self.domain.archives.keys().filter(|id| !before.archives.contains_key(id)) {
            if !self.archives.insert(*id) {
                wrong.push(format!("archive id {id} was given twice"));
            }
        }
        wrong
    }

    /// A start id belongs to one wrapper.
    pub fn judge_id(&mut self, process: StartId, engine: &Engine) {
        let nonce = *self.starts.entry(process).or_insert(engine.nonce);
        if nonce != engine.nonce {
            self.violated(format!("start id {process} was given twice"));
        }
    }

    /// Checks a leader's command that changed something, by the real state at the time when its evidence was read.
    fn wrong_proposal(&self, before: &Domain, command: &Command, truth: &Truth) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |holds: bool, what: &str| {
            if !holds {
                wrong.push(what.to_owned());
            }
        };
        if let Some(fence) = fence(command) {
            check(Some(fence.epoch) == before.resync.get(&fence.cluster).map(|l| l.epoch), "a stale leader was obeyed");
            check(before.paused.is_none(), "something was removed during a pause");
            check(truth.anchor == before.anchor, "something was removed on the word of another Kubernetes");
        }
        let archive_of = |id: &ArchiveId| before.archives[id].clone();
        let claim_of = |id: &ArchiveId| archive_of(id).claim.unwrap_or_else(|| panic!("archive {id} has no claim"));
        match command {
            Command::RemoveArchive(change::RemoveArchive { archive, reason, .. }) => {
                let claim = claim_of(archive);
                let due = match reason {
                    RemovalReason::ScaledDown => truth.unwanted(&claim),
                    RemovalReason::ClaimDeleted => !truth.has_claim(&claim.uid),
                    RemovalReason::GivenUp => false,
                };
                check(due, "an archive was removed that is wanted");
                check(!truth.holds(&claim, false), "an archive of a paused workload was removed");
            }
            Command::NoteClaimGone(change::NoteClaimGone { archive, .. }) => {
                check(!truth.has_claim(&claim_of(archive).uid), "a claim was noted as gone that is there");
            }
            Command::PurgeArchive(change::PurgeArchive { archive, .. }) => {
                let (archive, claim) = (archive_of(archive), claim_of(archive));
                check(!truth.has_claim(&claim.uid), "an archive was purged whose claim is there");
                check(!truth.holds(&claim, true), "an archive was purged that is held");
                let gone = archive.removed.as_ref().and_then(|removal| removal.claim_gone_since());
                // A clock that is set forward while its agent leads shortens the delay by no more than this.
                let slack = self.clocks_set * WATCH_MOST_MS;
                let long = gone.is_some_and(|gone| self.now().since(gone) + slack >= self.purge_delay_ms);
                check(long || self.purge_delay_ms == 0, "an archive was purged before its delay was over");
                check(!self.all_vanished(before, &archive, truth), "all claims are gone at once and it was purged");
            }
            Command::RemoveProcess(change::RemoveProcess { process, reason, .. }) => {
                let identity = &before.processes[process].identity;
                let gone = match reason {
                    ExitReason::PodGone => !truth.objects.pods.values().any(|pod| pod.uid == identity.pod_uid),
                    _ => !truth.alive.contains(&identity.nonce),
                };
                check(gone, "a process was removed that runs");
            }
            Command::DeleteDatabase(change::DeleteDatabase { database, .. }) => {
                check(!truth.wants_database(database), "a database was deleted that is wanted");
                let others = before.processes.values().any(|process| process.cluster.as_str() != "c1");
                check(!others, "a database was deleted that another cluster may want");
            }
            _ => {}
        }
        wrong
    }

    /// Whether every archive of the database lacked its claim although at least one of them was wanted.
    fn all_vanished(&self, before: &Domain, archive: &Archive, truth: &Truth) -> bool {
        let of_it = |other: &&Archive| other.database == archive.database && other.cluster == archive.cluster;
        let named = |claim: &Claim| truth.objects.claims.contains_key(&claim.name);
        let mut all = before.archives.values().filter(of_it);
        let wanted = |claim: &Claim| {
            let owner = claim.owner.as_ref();
            let set = owner.and_then(|owner| truth.objects.sets.get(&owner.stateful_set));
            owner.zip(set).is_some_and(|(owner, set)| set.uid == owner.uid && set.wants(owner.ordinal))
        };
        let wants = before.archives.values().filter(of_it).filter_map(|archive| archive.claim.as_ref()).any(wanted);
        wants && all.all(|archive| archive.claim.as_ref().is_some_and(|claim| !named(claim)))
    }

    /// Checks the start of an engine. A database must never start on data that is older than data with which it last
    /// ran, while an archive with the newer data is known, its claim exists, and no operator gave it up.
    pub fn judge_start(&mut self, engine: &Engine, process: StartId) {
        let process = &self.domain.processes[&process];
        let database = process.database.clone();
        if !self.running_on(&database).is_empty() || engine.zombie {
            return;
        }
        let Some(own) = &engine.claim else { return };
        let own = self.volumes.get(&own.uid).map_or(0, |volume| volume.history);
        let claims = self.kubernetes.claim_uids();
        let data = self.domain.archives.values().filter_map(|archive| {
            let claim = archive.claim.as_ref().filter(|claim| claims.contains(&claim.uid))?;
            let given_up = archive.removed.as_ref().is_some_and(|removal| removal.because == RemovalReason::GivenUp);
            let history = self.volumes.get(&claim.uid).map_or(0, |volume| volume.history);
            (archive.database == database && !given_up).then_some((history, archive.id))
        });
        // If engines cannot report how new their data is, those that are present and blocked cannot be distinguished
        // from each other.
        let held = |archive: ArchiveId| {
            let mut on_it = self.domain.processes.values().filter(|process| process.archive == Some(archive));
            !self.tells_history && on_it.any(|process| process.history.is_some())
        };
        let data: Vec<(u64, ArchiveId)> = data.collect();
        let of_held = data.iter().filter(|(_, archive)| held(*archive)).map(|(history, _)| *history).max();
        let own = own.max(of_held.unwrap_or(0));
        let newer = data.into_iter().filter(|(history, _)| *history > own);
        if let Some((history, archive)) = newer.max() {
            let pod = &engine.pod;
            self.violated(format!(
                "the engine of {pod} started at {own}, and archive {archive} holds newer data, of {history}"
            ));
        }
    }
}

/// The final state of the archive on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fate {
    claim: Uid,
    removed: bool,
}

impl Run {
    fn fates(&self) -> BTreeMap<String, Fate> {
        let ours = self.domain.archives.values().filter(|archive| archive.cluster.as_str() == "c1");
        let fates = ours.filter_map(|archive| {
            let claim = archive.claim.as_ref()?;
            Some((claim.name.clone(), Fate { claim: claim.uid.clone(), removed: archive.removed.is_some() }))
        });
        fates.collect()
    }

    /// The names of the claims about which the two runs told the domain different things: an engine that had to wait in
    /// one of the runs was gone before it could register, or never ran.
    fn shown_otherwise(&self, other: &Self) -> BTreeSet<String> {
        let registered: BTreeSet<Uid> =
            self.registered.symmetric_difference(&other.registered).map(|(pod, _)| pod.clone()).collect();
        let ran = self.ran.symmetric_difference(&other.ran).cloned().collect();
        let pods: BTreeSet<Uid> = registered.union(&ran).cloned().collect();
        let claims = self.claim_of_pod.iter().filter(|(pod, _)| pods.contains(*pod));
        let claims = claims.map(|(_, claim)| claim.name.clone());
        // An archive whose claim was replaced waits until the engine on the new claim reports what is on it.
        let untold = self.kubernetes.is.claims.values().filter(|claim| !self.told_of(claim) || !other.told_of(claim));
        claims.chain(untold.map(|claim| claim.name.clone())).collect()
    }

    /// Whether an engine on the claim has registered with a proven read of its claim.
    fn told_of(&self, claim: &kaa_core::observed::objects::Claim) -> bool {
        self.registered
            .iter()
            .any(|(pod, unread)| !unread && self.claim_of_pod.get(pod).is_some_and(|known| known.uid == claim.uid))
    }

    /// Checks a domain at rest, without a comparison.
    pub fn judge_rest(&mut self) {
        let mut wrong = Vec::new();
        for archive in self.domain.archives.values().filter(|archive| archive.cluster.as_str() == "c1") {
            let Some(claim) = &archive.claim else { continue };
            let bears_it = self.kubernetes.is.claims.get(&claim.name).map(|there| &there.uid);
            let taken = || bears_it != Some(&claim.uid) && self.is_bound_to(bears_it);
            if bears_it.is_none() || (taken() && self.domain.process_on(archive.id).is_none()) {
                wrong.push(format!("archive {} is left without its claim", archive.id));
            }
        }
        for engine in self.engines.values().filter(|engine| engine.claim.is_some()) {
            let live = |p: &Process| p.session.state == SessionState::Live;
            let kept_out = || self.marked(engine).is_some_and(|archive| self.is_on_a_copy(archive));
            if !self.process_of(engine).is_some_and(live) && !self.has_a_copy(engine) && !kept_out() {
                wrong.push(format!("the engine of {} is not known", engine.pod));
            }
        }
        wrong.extend(self.wrongly_kept());
        wrong.extend(self.wrongly_held());
        let alive = self.alive();
        for process in self.domain.processes.values().filter(|process| process.cluster.as_str() == "c1") {
            // A process whose container was never learned ends when the next start in its pod registers. A copy never
            // registers.
            let refused = self.engines.get(&process.identity.pod_uid).is_some_and(|engine| self.has_a_copy(engine));
            if !alive.contains(&process.identity.nonce) && !refused {
                wrong.push(format!("process {} is left and dead", process.id));
            }
        }
        wrong.into_iter().for_each(|what| self.violated(what));
    }

    /// Whether an archive is bound to the claim with this UID.
    fn is_bound_to(&self, uid: Option<&Uid>) -> bool {
        let mut claims = self.domain.archives.values().filter_map(|archive| archive.claim.as_ref());
        claims.any(|claim| Some(&claim.uid) == uid)
    }

    /// Whether the volume of an engine is a copy, so that its engine is refused: its marker names an archive whose
    /// other claim exists, or an archive of another database.
    fn has_a_copy(&self, engine: &Engine) -> bool {
        let Some(own) = &engine.claim else { return false };
        self.marked(engine).is_some_and(|archive| {
            let others = archive.claim.as_ref().filter(|claim| claim.uid != own.uid);
            others.is_some_and(|claim| self.kubernetes.claim_uids().contains(&claim.uid))
                || self.database_of(&own.name) != archive.database.as_str()
        })
    }

    /// The archive that the marker on an engine's volume names.
    fn marked(&self, engine: &Engine) -> Option<&Archive> {
        let volume = self.volumes.get(&engine.claim.as_ref()?.uid)?;
        self.domain.archives.get(&volume.marker?)
    }

    /// Whether a copy runs as this archive: it joined a running database before any agent could read which claim its
    /// pod mounts. The original is refused until an operator evicts the copy.
    fn is_on_a_copy(&self, archive: &Archive) -> bool {
        let process = self.domain.process_on(archive.id).filter(|it| it.claim_unread && it.may_have_run());
        let engine = process.and_then(|process| self.engines.get(&process.identity.pod_uid));
        engine.is_some_and(|engine| self.has_a_copy(engine))
    }

    fn runs_a_copy(&self, database: &DatabaseName) -> bool {
        let mut archives = self.domain.archives.values().filter(|archive| archive.database == *database);
        archives.any(|archive| self.is_on_a_copy(archive))
    }

    /// While a storage manager runs, its archive has the data of those that have ended: of these, the unwanted archives
    /// must be removed.
    fn wrongly_kept(&self) -> Vec<String> {
        let kept = self.domain.archives.values().filter(|archive| {
            let claim = archive.claim.as_ref().filter(|_| archive.removed.is_none());
            let idle = self.domain.process_on(archive.id).is_none();
            // The data of a copy proves nothing about the archive's data.
            let runs = !self.running_on(&archive.database).is_empty() && !self.runs_a_copy(&archive.database);
            claim.is_some_and(|claim| idle && runs && !self.was_evicted(archive) && self.is_unwanted(claim))
        });
        kept.map(|archive| format!("archive {} is kept, unwanted, while its database runs", archive.id)).collect()
    }

    /// If an operator evicted the last process on an archive, that does not prove that its engine has ended.
    fn was_evicted(&self, archive: &Archive) -> bool {
        self.domain.last_exit_on(archive.id).is_some_and(|exited| exited.reason == ExitReason::Evicted)
    }

    /// A database must start once all its archives are present.
    fn wrongly_held(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (_, name) in SETS {
            let name = DatabaseName::from(name);
            let there = |archive: &Archive| self.domain.process_on(archive.id).is_some();
            let data = |archive: &&Archive| archive.database == name && archive.ever_ran;
            let held = self.engines.values().any(|engine| {
                let process = self.process_of(engine).filter(|process| process.database == name);
                engine.alive && engine.claim.is_some() && process.is_some()
            });
            if held && self.running_on(&name).is_empty() && self.domain.archives.values().filter(data).all(there) {
                wrong.push(format!("database {name} does not start, and all its archives are there"));
            }
        }
        wrong
    }

    /// Whether the StatefulSet of an archive exists and does not want it.
    fn is_unwanted(&self, claim: &Claim) -> bool {
        let set = claim.owner.as_ref().and_then(|owner| {
            let set = self.kubernetes.is.sets.get(&owner.stateful_set).filter(|set| set.uid == owner.uid)?;
            Some(set.wants(owner.ordinal))
        });
        set == Some(false)
    }

    /// Compares the end with that of a run without faults. Returns whether everything could be compared.
    pub fn judge_end(&mut self, reference: &Self) -> bool {
        let otherwise = self.shown_otherwise(reference);
        let (ours, theirs) = (self.fates(), reference.fates());
        let mut wrong = Vec::new();
        // An archive that was never bound is never judged, so a cold start may wait for it.
        let unbound = |run: &Self| run.domain.archives.values().any(|archive| archive.claim.is_none());
        let mut all = otherwise.is_empty() && !unbound(self) && !unbound(reference);
        for (_, database) in SETS {
            let on_a_copy = |run: &Self| run.runs_a_copy(&database.into());
            let kept = self.waits(database)
                || reference.waits(database)
                || on_a_copy(self)
                || on_a_copy(reference)
                || otherwise.iter().any(|name| self.database_of(name) == database);
            all &= !kept;
            let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
            let of_it = |name: &&String| self.database_of(name) == database;
            for name in names.into_iter().filter(of_it).filter(|name| !otherwise.contains(*name)) {
                let (one, other) = (ours.get(name), theirs.get(name));
                // The order of events decides which of several unwanted archives a database keeps, and what was judged
                // before its StatefulSet was deleted.
                let loosely = kept || !self.judged_by_its_set(name) || !reference.judged_by_its_set(name);
                all &= !loosely;
                let same =
                    if loosely { one.map(|fate| &fate.claim) == other.map(|fate| &fate.claim) } else { one == other };
                if !same {
                    wrong.push(format!("the archive on {name} ends as {one:?}, and without faults as {other:?}"));
                }
            }
        }
        if all {
            wrong.extend(self.other_differences(reference));
        }
        wrong.into_iter().for_each(|what| self.violated(what));
        all
    }

    fn other_differences(&self, reference: &Self) -> Vec<String> {
        let processes = |run: &Self| -> BTreeSet<String> {
            let line = |process: &Process| {
                // A transaction engine without a storage manager runs if it started before the storage manager ended.
                let judged = run.domain.active_archives(&process.database).next().is_some();
                let state = if judged { process.durable.to_string() } else { String::new() };
                format!("{} {} {} {state}", process.kind, process.identity.pod, process.identity.pod_uid)
            };
            run.domain.processes.values().map(line).collect()
        };
        // Whether a database was deleted before an operator created it again, or could be deleted by hand, depends on
        // when each leader saw which change.
        let by_hand = |name: &DatabaseName| {
            [self, reference].iter().any(|run| run.domain.databases.get(name).is_some_and(|it| it.by_hand))
        };
        let databases = |run: &Self| -> BTreeMap<DatabaseName, DatabaseState> {
            let there =
                run.domain.databases.iter().filter(|(name, it)| it.state != DatabaseState::Tombstone && !by_hand(name));
            there.map(|(name, database)| (name.clone(), database.state)).collect()
        };
        let mut wrong = Vec::new();
        if processes(self) != processes(reference) {
            wrong.push(format!("other processes: {:?}, without faults {:?}", processes(self), processes(reference)));
        }
        if databases(self) != databases(reference) {
            wrong.push(format!("other databases: {:?}, without faults {:?}", databases(self), databases(reference)));
        }
        wrong
    }

    pub fn database_of(&self, claim: &str) -> &'static str {
        let of_it = |name: &str| claim.starts_with(&format!("archive-volume-{name}-"));
        SETS.iter().rev().find(|(name, _)| of_it(name)).map_or("", |(_, database)| database)
    }

    /// Whether a database has archives and does not run: which of them it keeps, and what it waits for, depends on which of
    /// its storage managers was heard last.
    fn waits(&self, database: &str) -> bool {
        let name = database.into();
        let mut archives = self.domain.archives.values().filter(|archive| archive.database == name).peekable();
        archives.peek().is_some() && (self.running_on(&name).is_empty() || archives.any(|it| self.was_evicted(it)))
    }

    /// Whether the StatefulSet of an archive exists, so that it can be judged.
    fn judged_by_its_set(&self, claim: &str) -> bool {
        let on_it = |archive: &&Archive| archive.claim.as_ref().is_some_and(|known| known.name == claim);
        let archive = self.domain.archives.values().find(on_it);
        let owner = archive.and_then(|archive| archive.claim.as_ref()).and_then(|claim| claim.owner.as_ref());
        owner.is_none_or(|owner| {
            self.kubernetes.is.sets.get(&owner.stateful_set).is_some_and(|set| set.uid == owner.uid)
        })
    }
}
