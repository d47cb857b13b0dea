//! Which archives may hold the newest data of a database.
//!
//! An archive that is present does not therefore hold the data: it may be new and empty, or its storage manager may have
//! ended while another kept running. Entries of the log are the only order that all servers share, so two of them bound what an
//! archive holds:
//!
//! - `holds_to`: an engine on it is proven to have run, with all data of its database, at some time after this entry. The
//!   domain let the engine start with that entry and the engine then reported that it runs; or the engine was asked after
//!   that entry whether it still runs, and said so ([`Domain::owed_proof`]).
//! - `written_to`: no engine has written to it after this entry, since the last one was known by then to have ended.
//!
//! One archive holds all that another holds if it holds everything up to the last entry at which the other was written to.
//! Where neither is so, either may be the newest.
//!
//! Storage managers that stop together hold the same: an engine that was told to stop acknowledges no further commit. From
//! the entry on with which the last of them said that it stops (`Database::stopping_since`) nothing is written, and one
//! that ended gracefully holds everything up to there.

use super::Domain;
use super::archive::Archive;
use super::gate::Start;
use super::ids::{ArchiveId, DatabaseName, StartId};
use super::managers::Managers;
use super::process::{DurableState, EngineKind, EngineState, ExitReason, Process, SessionState};
use super::replicated::Data;
use std::cmp::Reverse;

impl Domain {
    /// The archives of a database that hold data, as far as is known: removed ones too, but none whose claim is gone and
    /// none that an operator gave up.
    pub fn with_data<'a>(&'a self, database: &'a DatabaseName) -> impl Iterator<Item = &'a Archive> {
        self.archives.values().filter(move |archive| archive.database == *database && archive.has_data())
    }

    /// Whether one archive provably holds everything that another of its database holds.
    pub fn holds_all_of(&self, one: &Archive, other: &Archive) -> bool {
        if let Some(replicated) = self.replicated(&one.database) {
            // The archives of the sync set hold all that counts.
            let holds = replicated.record.as_ref().is_some_and(|record| record.sync_set.contains(&one.id));
            return holds && !replicated.counts(other.id);
        }
        one.holds_all_of(self.process_on(one.id), other, self.process_on(other.id))
    }

    /// Notes for which storage managers the gate has opened: from here on their engines may write.
    pub(super) fn open_gates(&mut self) {
        let held = |process: &Process| process.kind == EngineKind::Sm && process.started.is_none();
        if !self.processes.values().any(held) {
            return;
        }
        for (id, start) in self.gates().opened() {
            let Some(process) = self.processes.get_mut(&id) else { continue };
            process.started = Some(self.index);
            if start == Start::Join {
                process.history = None;
                // Joining replaces the data; one that dies meanwhile holds neither the old nor the new.
                let archive = process.archive.and_then(|archive| self.archives.get_mut(&archive));
                archive.into_iter().for_each(|archive| archive.holds_to = 0);
            }
            let database = process.database.clone();
            self.databases.entry(database).and_modify(|database| database.stopping_since = None);
        }
    }

    /// Whether a storage manager has to say how new its data is: its engine may not start, and that is not known; or the engine
    /// was let start for a moment, and whether it was is not known.
    pub fn lacks_history(&self, process: StartId) -> bool {
        let unknown = self.processes.get(&process).is_some_and(|process| {
            let requested = process.kind == EngineKind::Sm && process.durable == DurableState::Requested;
            requested && (process.history.is_none() || process.started.is_some())
        });
        unknown && self.may_start(process).is_err()
    }

    /// Notes that an engine has been seen to run at some time after an entry, with all data of its database.
    pub(super) fn prove(&mut self, process: StartId, entry: u64) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        process.interrupted = process.interrupted.filter(|since| entry < *since);
        let archive = process.archive;
        if let Some(archive) = archive.and_then(|archive| self.archives.get_mut(&archive)) {
            archive.holds_to = archive.holds_to.max(entry);
        }
    }

    /// Notes up to where an archive was written to by a process that is gone.
    pub(super) fn note_end_of_writing(&mut self, process: &Process, reason: &ExitReason) {
        let Some(archive) = process.archive.filter(|_| process.may_have_run() && !self.has_yet_to_start(process))
        else {
            return;
        };
        let stopping = self.databases.get(&process.database).and_then(|database| database.stopping_since);
        let stopping = stopping.filter(|_| process.engine == EngineState::ShuttingDown);
        let index = self.index;
        let Some(archive) = self.archives.get_mut(&archive) else { return };
        // What its agent reported says in which state it ended. The last state of one that was found gone is unknown.
        let reported = matches!(reason, ExitReason::Graceful | ExitReason::Exited(_) | ExitReason::Killed);
        archive.ever_ran |= !reported || process.engine == EngineState::ShuttingDown;
        // An eviction removes a process from the domain. It does not prove that the engine has ended.
        archive.written_to = (*reason != ExitReason::Evicted).then(|| stopping.unwrap_or(index));
        // One that was told to stop before it ran may have had no data yet. One that was out of reach may have ended long before
        // it says so, while others kept running.
        let heard = process.durable == DurableState::RequestedShutdown && process.interrupted.is_none();
        // What ran may have been a copy of the archive: then nothing that it proved is true of the volume itself.
        let unread = process.claim_unread && archive.claim.is_some();
        if unread {
            archive.holds_to = 0;
        }
        if *reason == ExitReason::Graceful && heard && !unread {
            archive.holds_to = archive.holds_to.max(stopping.unwrap_or_default());
        }
    }

    /// Whether no server of a process can have run: one with a role starts on data that the domain knows, or makes the first data once it was
    /// chosen for that.
    fn has_yet_to_start(&self, process: &Process) -> bool {
        let Some(without_data) = self.replicated(&process.database).filter(|it| it.record.is_none()) else {
            return false;
        };
        let chosen = without_data.initializes.is_some() && without_data.initializes == process.archive;
        !chosen && !matches!(process.data, Some(Data::Initialized { .. }))
    }

    /// Notes since when all storage managers of a database that run are stopping. Only what an engine says begins it: that
    /// one has ended says nothing of when the others began to stop.
    pub(super) fn note_stopping(&mut self, name: &DatabaseName, said: bool) {
        let of_it =
            |process: &&Process| process.database == *name && process.kind == EngineKind::Sm && process.may_have_run();
        let mut running = self.processes.values().filter(of_it).peekable();
        if running.peek().is_none() {
            return;
        }
        let all = running.all(|process| process.engine == EngineState::ShuttingDown);
        let index = self.index;
        let Some(database) = self.databases.get_mut(name) else { return };
        database.stopping_since = match database.stopping_since {
            Some(since) if all => Some(since),
            None if all && said => Some(index),
            _ => None,
        };
    }
}

impl Managers<'_> {
    /// The archive that starts first among those whose storage managers have said how new their data is: none of them has
    /// a higher history, and none with the same history provably holds more. Of those that are left, the one that was proven
    /// last to hold everything.
    pub(super) fn first(&self) -> Option<ArchiveId> {
        let more = |one: &Archive, than: &Archive| self.holds_all_of(one, than) && !self.holds_all_of(than, one);
        let newer = |(one, history): &(&Archive, u64), (than, least): &(&Archive, u64)| {
            history > least || (history == least && more(one, than))
        };
        let reported = self.data.iter().filter_map(|archive| Some((*archive, self.history(archive.id)?)));
        let reported: Vec<(&Archive, u64)> = reported.collect();
        let newest = reported.iter().filter(|known| !reported.iter().any(|other| newer(other, known)));
        let first = newest.min_by_key(|(archive, _)| (Reverse(archive.holds_to), archive.place()));
        first.map(|(archive, _)| archive.id)
    }

    /// The entry as of which a storage manager has to prove that it still runs: for it to be known that its archive holds all
    /// that others hold that have ended or are silent, for it to be known that it ran on after it was out of reach itself, or
    /// for one that has registered since to start. `None` if nothing depends on it.
    pub(super) fn owed_proof(&self, process: &Process) -> Option<u64> {
        if self.domain.replicated(&process.database).is_some() {
            // Which archives hold what counts is recorded.
            return None;
        }
        let archive = self.domain.archives.get(&process.archive.filter(|_| is_running(process))?)?;
        let others = self.data.iter().filter(|other| other.id != archive.id);
        // One that is silent may have ended. The others may have continued without it since its session was lost.
        let left = others.filter_map(|other| match self.process_on(other.id).filter(|on_it| on_it.may_have_run()) {
            Some(on_it) => on_it.interrupted,
            None => other.written_to,
        });
        let held = self.living.iter().filter(|other| !other.may_have_run());
        let since = left.chain(held.map(|other| other.entry)).chain(process.interrupted).max();
        since.filter(|since| *since > archive.holds_to)
    }
}

/// Whether the process is known to run its engine, as of what its own session last said.
pub(super) fn is_running(process: &Process) -> bool {
    process.kind == EngineKind::Sm
        && process.session.state == SessionState::Live
        && (process.durable, process.engine) == (DurableState::Monitored, EngineState::Running)
}

impl Archive {
    /// Whether it provably holds everything that another one of its database holds, with the living processes on both.
    pub(super) fn holds_all_of(&self, own: Option<&Process>, other: &Self, on_other: Option<&Process>) -> bool {
        if !other.has_data() {
            return true;
        }
        let written = on_other.is_some_and(Process::may_have_run);
        // Until an agent has read which claim the pod mounts, the volume may be a copy of the archive.
        let unread = self.claim.is_some() && own.is_some_and(|process| process.claim_unread);
        !written && !unread && other.written_to.is_some_and(|last| last <= self.holds_to)
    }

    /// Whether there may be data on it that is still needed: an engine ran on it, its claim is not known to be gone, and no
    /// operator gave it up.
    pub fn has_data(&self) -> bool {
        let lost = self.removed.as_ref().is_some_and(|removal| {
            removal.because == super::archive::RemovalReason::GivenUp || removal.claim_gone_since().is_some()
        });
        self.ever_ran && !lost
    }

    /// Its place in an order of preference: the lowest ordinal, then the lowest id. An archive whose ordinal is not known
    /// comes last.
    pub fn place(&self) -> (u32, super::ids::ArchiveId) {
        let owner = self.claim.as_ref().and_then(|claim| claim.owner.as_ref());
        (owner.map_or(u32::MAX, |owner| owner.ordinal), self.id)
    }
}
