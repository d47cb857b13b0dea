//! What the domain keeps of a database with one primary. Safety rests on one part of it, the record ([`Replication`]).

use super::ids::{ArchiveId, DatabaseName, Generation, Millis, SessionNumber, SetVersion, StartId, SystemId, Uid};
use super::outcome::Refusal;
use super::process::{ExitReason, Handicap, Process, SessionState};
use super::{Domain, is_default};
use crate::replication::{Replication, is_stopping};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// How many grants the history of a database keeps: a standby that is further behind is copied.
pub const HISTORY: usize = 64;

/// A database with one primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicated {
    /// What its StatefulSet asks for; `None` until the resync leader has noted it.
    pub settings: Option<Settings>,
    /// The system identifier of its data; `None` until an archive holds some that counts.
    pub system: Option<SystemId>,
    /// The archive that makes the first data, until it has done so.
    pub initializes: Option<ArchiveId>,
    /// Which archive is the primary's, and which ones hold every commit that counts.
    pub record: Option<Replication>,
    /// What became of the current generation.
    pub primary: Option<Primary>,
    /// The version of the sync set that the primary reported to be in force.
    pub in_force: SetVersion,
    /// The grants that came into being, the last ones.
    pub history: Vec<Begins>,
    /// Set while an operator wants the primary elsewhere.
    pub switchover: Option<Switchover>,
    /// Set if the record may be wrong: why.
    pub uncertain: Option<String>,
    /// The highest generation that was granted, or that any volume named.
    pub highest: Generation,
    /// The archives whose data is of this record: made, adopted or copied under it, or empty when they were first seen. Other data is
    /// neither overwritten nor followed with.
    pub own: BTreeSet<ArchiveId>,
    /// The archives whose other data an operator gave up: it is overwritten before it is used.
    pub discarded: BTreeSet<ArchiveId>,
    /// The last start that each archive's volume has confirmed. A volume that remembers an earlier one was set back.
    pub starts: BTreeMap<ArchiveId, StartId>,
    /// The failovers whose old primary turned out to run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub alarms: Alarms,
}

/// What became of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Primary {
    /// The process that it was granted to.
    pub process: StartId,
    /// When.
    pub granted: Millis,
    /// Where its log begins; `None` until its server was promoted.
    pub begins: Option<Begins>,
    /// When it let clients in; `None` until then.
    pub opened: Option<Millis>,
    /// Set once its server has ended.
    pub ended: Option<Ended>,
    /// How many grants before this one followed a server that had ended soon after it was granted.
    pub returns: u32,
    /// The length of the lease that it was granted under, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease_ms: u64,
    /// Whether its wrapper keeps that lease, by its own word: it lets no client in once the lease is over.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keeps_lease: bool,
    /// The archive of the primary before it, if that is another one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub from: Option<ArchiveId>,
    /// The lease of an earlier primary that may not be over yet.
    #[serde(default, skip_serializing_if = "is_default")]
    pub earlier: Option<Earlier>,
    /// The archives of the sync set whose servers follow it, and do not hear it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub silent: BTreeMap<ArchiveId, Silent>,
}

/// An earlier primary whose lease may not be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    /// Its process, whose end makes the lease void; `None` if there are several.
    pub process: Option<StartId>,
    /// The length of the lease, in milliseconds.
    pub lease_ms: u64,
}

/// The word of a standby's wrapper that its server does not hear the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The process.
    pub process: StartId,
    /// The session by which it was said. In a later one it has to come again.
    pub session: SessionNumber,
    /// When.
    pub since: Millis,
    /// The end of the log that its server has.
    pub end: Position,
}

/// The failovers whose old primary turned out to run: they were for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarms {
    /// How many there were, without a quiet hour between two.
    pub count: u32,
    /// The first pause after one, as the last failover was granted, in milliseconds.
    pub base_ms: u64,
    /// When the last one was found.
    pub last: Option<Millis>,
    /// The process of the primary that was given up last because nothing heard it. If it is there again, it ran.
    pub suspect: Option<StartId>,
}

/// How the server of a primary ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ended {
    /// It stopped as it was told, after its standbys had all of its log.
    StoodDown,
    /// Otherwise.
    Failed,
}

/// A position in the log of an engine, in bytes. PostgreSQL calls it LSN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub u64);

impl fmt::Display for Position {
    /// As PostgreSQL shows it: `7/3A0148B8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not a position in the log, such as 7/3A0148B8");
        let (high, low) = text.split_once('/').ok_or_else(wrong)?;
        let read = |half: &str| u32::from_str_radix(half, 16).map_err(|_| wrong());
        Ok(Self(u64::from(read(high)?) << 32 | u64::from(read(low)?)))
    }
}

/// Where the log of a generation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begins {
    /// The generation.
    pub generation: Generation,
    /// The generation that it continues.
    pub parent: Generation,
    /// The end of that one's log that it continues.
    pub at: Position,
}

/// What is on an archive's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Data {
    /// Nothing.
    Empty,
    /// Data of a database.
    Initialized {
        /// Its system identifier.
        system: SystemId,
        /// The highest generation that is known on the volume.
        highest: Generation,
    },
}

/// What the StatefulSet of a database asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its name.
    pub stateful_set: String,
    /// Its UID.
    pub uid: Uid,
    /// How many pods it wants.
    pub replicas: u32,
    /// How many standbys confirm each commit.
    pub synchronous: u32,
    /// What a primary does that no standby can confirm.
    pub when_alone: WhenAlone,
    /// Who begins a failover.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failover: FailoverMode,
    /// The zone that is preferred for the primary, where nothing else decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_zone: Option<String>,
}

impl Settings {
    /// `3 pods, synchronous: 1, when-alone: degrade, failover: automatic, preferred-zone: a`; without a zone if none is preferred.
    pub fn asked(&self) -> String {
        let Self { stateful_set: _, uid: _, replicas, synchronous, when_alone, failover, preferred_zone } = self;
        let zone = preferred_zone.as_ref().map_or(String::new(), |zone| format!(", preferred-zone: {zone}"));
        format!("{replicas} pods, synchronous: {synchronous}, when-alone: {when_alone}, failover: {failover}{zone}")
    }
}

/// Who begins a failover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailoverMode {
    /// The agents, if the primary has ended or is lost.
    Automatic,
    /// An operator. A primary whose server has ended returns by itself.
    #[default]
    Manual,
    /// An operator, and no primary that has ended returns by itself.
    Paused,
}

impl fmt::Display for FailoverMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "automatic",
            Self::Manual => "manual",
            Self::Paused => "paused",
        })
    }
}

/// What a primary does that no standby can confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WhenAlone {
    /// It continues alone. Until a standby is back, no other server can continue without it.
    Degrade,
    /// Its commits wait.
    Block,
}

impl fmt::Display for WhenAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Degrade => "degrade",
            Self::Block => "block",
        })
    }
}

/// An operator wants the primary elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switchover {
    /// The archive; `None`: any other one.
    pub to: Option<ArchiveId>,
    /// Why, in the operator's words.
    pub why: String,
    /// When it was asked for.
    pub at: Millis,
    /// Who asked.
    pub by: String,
}

/// Why another grant may follow without an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// None was granted yet.
    NeverGranted,
    /// The server of the primary has ended, by its wrapper's word.
    Ended(Ended),
    /// The wrapper or the kubelet of its node has seen the process end that it was granted to.
    Gone,
    /// A later start of the same archive is here: the one that had the generation has ended.
    StartedAgain,
    /// The process that it was granted to is gone, and its server was never heard to be promoted.
    NotTakenUp,
}

impl Primary {
    /// One of which nothing is known yet.
    pub fn new(process: StartId, granted: Millis) -> Self {
        Self {
            process,
            granted,
            begins: None,
            opened: None,
            ended: None,
            returns: 0,
            lease_ms: 0,
            keeps_lease: false,
            from: None,
            earlier: None,
            silent: BTreeMap::new(),
        }
    }
}

impl Replicated {
    /// The record, or why there is none.
    pub(super) fn record_mut(&mut self, name: &DatabaseName) -> Result<&mut Replication, Refusal> {
        self.record.as_mut().ok_or_else(|| Refusal::NoPrimaryYet(name.clone()))
    }

    /// Whether the server of the primary of the current generation was promoted, and has not ended as far as the domain has heard.
    pub fn is_promoted(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.begins.is_some() && primary.ended.is_none())
    }

    /// Whether the data of an archive is of this record.
    pub fn owns(&self, archive: ArchiveId) -> bool {
        self.own.contains(&archive) && !self.discarded.contains(&archive)
    }

    /// Nothing more is known of an archive that was purged.
    pub(super) fn forget(&mut self, archive: ArchiveId) {
        self.own.remove(&archive);
        self.discarded.remove(&archive);
        self.starts.remove(&archive);
        if let Some(record) = &mut self.record {
            record.forget(archive);
        }
    }

    /// How many standbys are to confirm each commit.
    pub fn synchronous(&self) -> usize {
        self.settings.as_ref().map_or(1, |settings| settings.synchronous as usize)
    }

    /// Whether commits wait at a primary that no standby can confirm.
    pub fn blocks(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.when_alone == WhenAlone::Block)
    }

    /// Whether its primary is alone and commits wait for a standby: it does not obey a rule without members, and reports none.
    pub fn waits_alone(&self) -> bool {
        self.blocks() && self.record.as_ref().is_some_and(|record| record.rule().members.is_empty())
    }

    /// Whether another server takes over without an operator's word once the primary's has ended.
    pub fn moves_by_itself(&self) -> bool {
        match self.failover() {
            FailoverMode::Automatic => true,
            FailoverMode::Manual => self.has_moved(),
            FailoverMode::Paused => false,
        }
    }

    /// Who begins a failover.
    pub fn failover(&self) -> FailoverMode {
        self.settings.as_ref().map_or(FailoverMode::Manual, |settings| settings.failover)
    }

    /// Whether the current generation was granted to another archive than the one before, and has not come into being.
    pub fn has_moved(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.begins.is_none() && primary.from.is_some())
    }

    /// The generation that the next grant gives, after this one.
    pub fn next_generation(&self, current: Generation) -> Generation {
        self.highest.max(current).next()
    }

    /// Whether an archive is in the sync set, or is joining it.
    pub fn counts(&self, archive: ArchiveId) -> bool {
        self.record.as_ref().is_some_and(|record| record.sync_set.contains(&archive) || record.joining == Some(archive))
    }
}

impl Domain {
    /// What is kept of a database, if it has one primary.
    pub fn replicated(&self, name: &DatabaseName) -> Option<&Replicated> {
        self.databases.get(name)?.replicated.as_deref()
    }

    /// The same, to change it.
    pub(super) fn replicated_mut(&mut self, name: &DatabaseName) -> Result<&mut Replicated, Refusal> {
        let database = self.databases.get_mut(name).ok_or_else(|| Refusal::UnknownDatabase(name.clone()))?;
        database.replicated.as_deref_mut().ok_or_else(|| Refusal::NotReplicated(name.clone()))
    }

    /// The archive of a process whose database has one primary.
    pub(super) fn replica_of(&self, process: &Process) -> Result<ArchiveId, Refusal> {
        let archive = process.archive.filter(|_| self.replicated(&process.database).is_some());
        archive.ok_or_else(|| Refusal::NotReplicated(process.database.clone()))
    }

    /// The process on an archive, if an agent has its stream and it was not told to stop.
    pub fn serving(&self, archive: ArchiveId) -> Option<&Process> {
        let on_it = self.process_on(archive)?;
        (on_it.session.state == SessionState::Live && !is_stopping(on_it)).then_some(on_it)
    }

    /// Whether the server of an archive is there, with data of this record.
    pub fn has_data_of(&self, replicated: &Replicated, archive: ArchiveId) -> bool {
        self.has_system_of(replicated, archive) && replicated.owns(archive)
    }

    /// Whether the engine on an archive is there, and has found nothing.
    pub fn is_empty(&self, archive: ArchiveId) -> bool {
        self.serving(archive).is_some_and(|process| process.data == Some(Data::Empty))
    }

    /// Whether the server of an archive is there, with data that was the database's at some time.
    pub fn has_system_of(&self, replicated: &Replicated, archive: ArchiveId) -> bool {
        let there = self.serving(archive).and_then(|process| process.data);
        let system = match there {
            Some(Data::Initialized { system, highest: _ }) => Some(system),
            Some(Data::Empty) | None => None,
        };
        system.is_some() && system == replicated.system
    }

    /// What speaks against the server of an archive as the next primary, as far as its wrapper has said.
    pub fn handicap(&self, archive: ArchiveId) -> Handicap {
        self.serving(archive).map_or_else(Handicap::default, |process| process.handicap)
    }

    /// Why another grant may follow without an operator's word; `None` if the primary may still run.
    pub fn primary_is_over(&self, replicated: &Replicated) -> Option<Over> {
        let record = replicated.record.as_ref()?;
        let Some(primary) = &replicated.primary else { return Some(Over::NeverGranted) };
        if let Some(ended) = primary.ended {
            return Some(Over::Ended(ended));
        }
        // Two engines on one archive are never admitted. Ids are given in order.
        if self.process_on(record.primary).is_some_and(|on_it| on_it.id > primary.process) {
            return Some(Over::StartedAgain);
        }
        if primary.begins.is_none() && self.is_proven_gone(primary.process) {
            return Some(Over::NotTakenUp);
        }
        self.was_seen_to_end(primary.process).then_some(Over::Gone)
    }

    /// Whether the primary of the current generation lets clients in, as far as the domain has heard.
    pub fn is_open(&self, replicated: &Replicated) -> bool {
        replicated.primary.as_ref().is_some_and(|primary| {
            primary.opened.is_some() && primary.ended.is_none() && self.processes.contains_key(&primary.process)
        })
    }

    /// Whether a process is known to have ended: an eviction does not prove that.
    fn is_proven_gone(&self, process: StartId) -> bool {
        let tombstone = self.tombstones.get(&process).filter(|_| !self.processes.contains_key(&process));
        tombstone.is_some_and(|tombstone| tombstone.reason != ExitReason::Evicted)
    }

    /// Whether the end of the process that has the current generation was seen, by its wrapper or the kubelet of its node. That its pod
    /// was deleted does not show it: that is done by force where a node is cut off.
    pub fn primary_was_seen_to_end(&self, replicated: &Replicated) -> bool {
        let primary = replicated.primary.as_ref();
        primary.is_none_or(|primary| primary.ended.is_some() || self.was_seen_to_end(primary.process))
    }

    /// Whether the end of a process was seen, by its wrapper or the kubelet of its node.
    fn was_seen_to_end(&self, process: StartId) -> bool {
        let tombstone = self.tombstones.get(&process).filter(|_| !self.processes.contains_key(&process));
        tombstone.is_some_and(|it| !matches!(it.reason, ExitReason::Evicted | ExitReason::PodGone))
    }

    /// The primary before this one, if its lease may not be over.
    pub fn earlier(&self, primary: &Primary) -> Option<Earlier> {
        primary.earlier.filter(|earlier| earlier.process.is_none_or(|process| !self.was_seen_to_end(process)))
    }

    /// A process is in a session again. Its server may be a primary that nothing heard for a while.
    pub(super) fn note_alive(&mut self, process: StartId) {
        let now = self.time;
        let Some(name) = self.processes.get(&process).map(|process| process.database.clone()) else { return };
        let Ok(replicated) = self.replicated_mut(&name) else { return };
        if replicated.alarms.suspect == Some(process) {
            replicated.alarms.was_alive(now);
        }
        if let Some(primary) = replicated.primary.as_mut().filter(|primary| primary.process == process) {
            primary.silent.clear();
        }
    }

    /// Whether the process that has the current generation is known to have ended.
    pub fn primary_has_ended(&self, replicated: &Replicated) -> bool {
        let primary = replicated.primary.as_ref();
        primary.is_none_or(|primary| primary.ended.is_some() || self.is_proven_gone(primary.process))
    }
}

#[cfg(test)]
mod tests {
    use super::Position;

    #[test]
    fn a_position_is_shown_and_read_as_postgresql_does() {
        for (position, text) in [(0, "0/0"), (0x7_3A01_48B8, "7/3A0148B8"), (u64::MAX, "FFFFFFFF/FFFFFFFF")] {
            assert_eq!(Position(position).to_string(), text);
            assert_eq!(text.parse(), Ok(Position(position)));
        }
        for text in ["", "7", "7/", "/1", "1/123456789", "1/G"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
