//! What the domain wants of one server now. It follows from the record: nothing is kept of what a server was told before, so a
//! stream that broke, a session that moved and an agent that restarted are the same case.

use super::lease::wait_ms;
use super::{Report, Rule, sync_set};
use crate::domain::Domain;
use crate::domain::ids::{ArchiveId, Generation, Permission, StartId};
use crate::domain::process::{DurableState, EngineState, Process, SessionState};
use crate::domain::replicated::{Begins, Replicated};

/// What the domain wants of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// What it is to do.
    pub what: Wanted,
    /// Whether the server may start: its volume remembers the start, and holds data that counts or that is replaced first.
    pub may_start: bool,
    /// Whether another server takes over by itself if this one, the primary's, ends.
    pub replaceable: bool,
    /// Whether the pod may end, if it was told to: its end costs no commit and no primary.
    pub may_stop: bool,
}

/// What a server is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Stay as it is. The primary of an earlier generation than this one stops, and so does a standby of one whose data no longer counts.
    /// A server that starts follows no other.
    Hold(Generation),
    /// Make the first data.
    Initialize,
    /// Be the primary.
    Primary {
        /// What it has to require.
        rule: Rule,
        /// Whether commits wait while the rule has no members.
        blocks: bool,
        /// Whether it is to stop, so that another one can take over.
        stand_down: bool,
        /// The other archives, whose servers may follow it: it keeps its log for them.
        standbys: Vec<ArchiveId>,
        /// The length of its lease, in milliseconds. It lets clients in only while that lasts.
        lease_ms: u64,
        /// For how long it lets no client in after it has stopped to follow, in milliseconds: the lease of an earlier primary may last.
        wait_ms: u64,
    },
    /// Follow the primary.
    Follow {
        /// The generation.
        generation: Generation,
        /// Where its server is.
        source: Source,
        /// Where the logs of the generations begin, the last one last.
        history: Vec<Begins>,
        /// Set if the data may be overwritten.
        permission: Option<Permission>,
        /// Whether it has to be: an operator gave up what is there.
        discard: bool,
    },
}

/// Where a primary's server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its archive.
    pub archive: ArchiveId,
    /// The host's name, which a certificate would name.
    pub host: String,
    /// Its IP address, or empty: then the name is resolved.
    pub address: String,
    /// Its TCP port.
    pub port: u16,
}

impl Domain {
    /// What is wanted of the server of a process; `None` if its database has no roles. `report` is what its wrapper said last.
    pub fn assignment(&self, process: StartId, report: Option<&Report>) -> Option<Assignment> {
        let process = self.processes.get(&process)?;
        let replicated = self.replicated(&process.database)?;
        let archive = process.archive?;
        // What a volume remembers is judged before it is overwritten: a wrapper notes its own start once it is assigned anything.
        process.data?;
        let what = self.wanted(process, replicated, archive, report);
        // Data that was given up is not used, but replaced.
        let replaces = matches!(what, Wanted::Follow { permission: Some(_), discard: true, .. });
        let counts = replicated.own.contains(&archive) || replaces;
        let may_start = counts && replicated.starts.get(&archive) == Some(&process.id);
        let may_stop = is_stopping(process) && self.may_stop(process, replicated, archive, report);
        let is_primary = replicated.record.as_ref().is_some_and(|record| record.primary == archive);
        let moves = replicated.moves_by_itself() && replicated.uncertain.is_none();
        let replaceable = is_primary && moves && !self.any_successors(replicated).is_empty();
        Some(Assignment { what, may_start, may_stop, replaceable })
    }

    fn wanted(
        &self,
        process: &Process,
        replicated: &Replicated,
        archive: ArchiveId,
        report: Option<&Report>,
    ) -> Wanted {
        if replicated.initializes == Some(archive) {
            return Wanted::Initialize;
        }
        let Some((record, primary)) = replicated.record.as_ref().zip(replicated.primary.as_ref()) else {
            return Wanted::Hold(Generation(0));
        };
        let hold = Wanted::Hold(record.generation);
        if record.primary == archive {
            if primary.process != process.id || primary.ended.is_some() {
                return hold;
            }
            let stand_down = self.stands_down(process, replicated, report);
            let others =
                self.active_archives(&process.database).map(|other| other.id).filter(|other| *other != archive);
            return Wanted::Primary {
                rule: record.rule(),
                blocks: replicated.blocks(),
                stand_down,
                standbys: others.collect(),
                lease_ms: primary.lease_ms,
                wait_ms: self.earlier(primary).map_or(0, |earlier| wait_ms(earlier.lease_ms)),
            };
        }
        let Some(source) = self.processes.get(&primary.process).filter(|_| primary.ended.is_none()) else {
            return hold;
        };
        let discard = replicated.discarded.contains(&archive);
        // Other data is not connected to the primary: equal numbers of its log may mean other bytes.
        let ours = replicated.own.contains(&archive) || discard;
        if primary.begins.is_none() || !ours {
            return hold;
        }
        Wanted::Follow {
            generation: record.generation,
            source: Source {
                archive: record.primary,
                host: source.about.hostname.clone(),
                address: source.about.address.clone(),
                port: source.about.port,
            },
            history: replicated.history.clone(),
            permission: record.overwriting.get(&archive).copied(),
            discard,
        }
    }

    /// The archives of the sync set that could take over from the primary, by preference: of those that a requested switchover is about.
    pub fn successors(&self, replicated: &Replicated) -> Vec<ArchiveId> {
        let mut found = self.any_successors(replicated);
        if let Some(to) = replicated.switchover.as_ref().and_then(|switchover| switchover.to) {
            found.retain(|archive| *archive == to);
        }
        found
    }

    /// The same, whatever was requested: a switchover to an archive that is away must not be in the way of one that is there.
    pub fn any_successors(&self, replicated: &Replicated) -> Vec<ArchiveId> {
        let Some(record) = &replicated.record else { return Vec::new() };
        let others = record.sync_set.iter().filter(|archive| **archive != record.primary);
        let mut others: Vec<_> = others.filter_map(|id| self.archives.get(id)).collect();
        others.retain(|archive| archive.removed.is_none() && self.has_data_of(replicated, archive.id));
        // Two servers that both give up what they are granted would hand it to and fro, and never to a third one.
        let before = replicated.primary.as_ref().filter(|primary| primary.begins.is_none()).and_then(|it| it.from);
        others.sort_by_key(|archive| {
            let preference = self.preference(replicated, archive.id);
            (before == Some(archive.id), self.handicap(archive.id), preference)
        });
        others.into_iter().map(|archive| archive.id).collect()
    }

    /// Whether the primary is to stop for another one.
    fn stands_down(&self, process: &Process, replicated: &Replicated, report: Option<&Report>) -> bool {
        let asked = replicated.switchover.is_some() || is_stopping(process);
        let may = asked && self.is_open_with_successor(replicated);
        let Some(record) = replicated.record.as_ref().filter(|_| may) else { return false };
        // The successor does not begin alone if a third server can join before.
        let spare = report.is_some_and(|report| sync_set::spare_for_successor(self, replicated, report).is_some());
        record.joining.is_none() && !spare
    }

    /// Whether a primary that is open and connected has a successor that is ready. Another server may have to join before it is told to stop.
    pub(super) fn can_hand_over(&self, replicated: &Replicated) -> bool {
        let is_there = replicated.primary.as_ref().is_some_and(|primary| self.is_live(primary.process));
        is_there && self.is_open_with_successor(replicated)
    }

    fn is_open_with_successor(&self, replicated: &Replicated) -> bool {
        self.is_open(replicated) && replicated.uncertain.is_none() && !self.successors(replicated).is_empty()
    }

    /// Whether a pod may end: nothing is handed over any more.
    fn may_stop(
        &self,
        process: &Process,
        replicated: &Replicated,
        archive: ArchiveId,
        report: Option<&Report>,
    ) -> bool {
        let Some((record, primary)) = replicated.record.as_ref().zip(replicated.primary.as_ref()) else { return true };
        if record.primary == archive {
            let leads = primary.process == process.id && self.is_open(replicated);
            // All others of the set may stop as well, as in a scale-down: then a server that joins takes over.
            let joins = record.joining.is_some_and(|joining| self.serving(joining).is_some());
            let spare = report.is_some_and(|report| sync_set::spare_for_successor(self, replicated, report).is_some());
            let follows = !self.successors(replicated).is_empty() || joins || spare;
            return !leads || replicated.uncertain.is_some() || !follows;
        }
        // It leaves the set before it ends. If the primary ends as well, it stays until that one has handed over: another server that
        // joins before needs its word, too. If none can take over, it is a part of what has to come back.
        let lives = |on_it: &&Process| on_it.id == primary.process && on_it.session.state == SessionState::Live;
        let takes_over = |other: ArchiveId| other != record.primary && self.has_data_of(replicated, other);
        let hands_over = || self.active_archives(&process.database).any(|other| takes_over(other.id));
        let led = self.process_on(record.primary).filter(lives).is_some_and(|it| !is_stopping(it) || hands_over());
        !led || !self.is_open(replicated) || !replicated.counts(archive)
    }
}

/// Whether a process was told to stop.
pub(crate) fn is_stopping(process: &Process) -> bool {
    let says = process.durable == DurableState::RequestedShutdown || process.engine == EngineState::ShuttingDown;
    says || process.stop.is_some()
}
