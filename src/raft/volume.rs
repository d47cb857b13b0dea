//! The volume of an agent: one directory, used by one process at a time.
//!
//! ```text
//! lock                        held while the volume is open
//! log/raft.redb               (or raft.sled) domain, epoch, raft id, vote, log, the pointer to the snapshot
//! log/snapshots/              the snapshot
//! retired-EPOCH-RAFTID/     a log of an earlier epoch: kept within bounds, used again only if an operator founds an epoch from it
//! ```
//!
//! All of one log lies in one directory, so that it is retired by one rename.

mod lock;
mod retired;

pub(super) use lock::Lock;
pub use retired::{Holds, RetiredLog, Stock, measure_retired, named_by_retired, prune_retired, retired_logs};

use super::backend::{self, Backend, Engine, Op};
use super::disk::{Disk, Local};
use super::snapshot::{self, Pointer, Shelf};
use super::types::{Entry, LogId, Node, Proposal, TypeConfig, Vote, first_term};
use super::wire;
use crate::clock;
use crate::failpoints::{self, Point};
use kaa_core::domain::command::Request;
use kaa_core::domain::ids::{DomainId, MembershipEpoch, RaftId};
use kaa_core::membership::quorum_override::Position;
use kaa_core::membership::{Anchor, LocalLog};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a volume cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory failed.
    #[error("volume {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has it.
    #[error("volume {} is in use by another process", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The storage failed or was refused.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// Something on it is not understood.
    #[error(
        "volume {} holds what this agent cannot read; nothing was changed. Run the agent that wrote it, or remove the \
         directory 'log' (or delete the volume's claim), and this server joins as a new member",
        .path.display()
    )]
    Content {
        /// The directory.
        path: PathBuf,
        /// What.
        source: wire::Error,
    },
    /// Its snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// A value could not be encoded.
    #[error(transparent)]
    Encode(wire::Error),
    /// There is a snapshot, and no log that it belongs to.
    #[error("volume {}: there is a snapshot and no log: the log's file was lost; nothing was deleted. Restore the volume, or remove the directory 'log' (or delete the volume's claim) and this server joins as a new member", .snapshot.display())]
    LogLost {
        /// The snapshot.
        snapshot: PathBuf,
    },
    /// The log has a hole, or does not continue where the snapshot ends.
    #[error("volume {}: log entry {missing} is missing; nothing was changed. Remove the directory 'log' (or delete \
             the volume's claim) and this server joins as a new member", .path.display())]
    Hole {
        /// The directory.
        path: PathBuf,
        /// The first entry that is missing.
        missing: u64,
    },
    /// The anchor does not allow this log to found.
    #[error("{anchor:?} does not make this log the founder: it is {local:?}")]
    NotFounder {
        /// The anchor.
        anchor: Anchor,
        /// The log.
        local: LocalLog,
    },
}

/// The names of the values that are stored with the log.
pub(super) mod names {
    pub(in super::super) const DOMAIN: &str = "domain";
    pub(in super::super) const EPOCH: &str = "epoch";
    pub(in super::super) const SEALED: &str = "sealed";
    pub(in super::super) const RAFT_ID: &str = "raft_id";
    pub(in super::super) const GATE_PASSED: &str = "gate_passed";
    pub(in super::super) const VOTE: &str = "vote";
    pub(in super::super) const PURGED: &str = "purged";
    pub(in super::super) const COMMITTED: &str = "committed";
    pub(in super::super) const SNAPSHOT: &str = "snapshot";
}

/// How far a log goes, and who votes by it.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Its last entry.
    pub position: Position,
    /// The voter sets of the last membership in it.
    pub halves: Vec<BTreeSet<RaftId>>,
    /// Everybody that is replicated to by that membership.
    pub nodes: BTreeMap<RaftId, Node>,
}

/// Everything that is known of a log, decoded.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    pub(super) committed: Option<LogId>,
    pub(super) snapshot: Option<Pointer>,
}

impl Log {
    /// The last membership in it.
    fn membership(&self) -> Option<&openraft::Membership<u64, Node>> {
        let stored = self.entries.values().rev().find_map(|entry| match &entry.payload {
            EntryPayload::Membership(membership) => Some(membership),
            EntryPayload::Blank | EntryPayload::Normal(_) => None,
        });
        stored.or_else(|| Some(self.snapshot.as_ref()?.meta.last_membership.membership()))
    }

    /// Who votes by it.
    pub(super) fn voters(&self) -> BTreeSet<u64> {
        self.membership().map(|membership| membership.voter_ids().collect()).unwrap_or_default()
    }

    /// The last entry that it holds or has held.
    pub(super) fn last(&self) -> Option<LogId> {
        let stored = self.entries.values().next_back().map(|entry| entry.log_id);
        stored.max(self.purged).max(self.snapshot.as_ref().and_then(|snapshot| snapshot.meta.last_log_id))
    }
}

/// Whose log it is.
#[derive(Clone, Debug)]
struct Identity {
    domain: Option<DomainId>,
    epoch: MembershipEpoch,
    raft_id: RaftId,
    sealed: bool,
    gate_passed: Option<String>,
}

/// An open volume whose Raft does not run.
pub struct Volume {
    opener: Opener,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    lock: Lock,
    backend: Box<dyn Backend>,
    shelf: Shelf,
    identity: Identity,
    log: Log,
}

/// What a running Raft takes over from a volume.
pub(super) struct Parts {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) lock: Lock,
    pub(super) backend: Box<dyn Backend>,
    pub(super) shelf: Shelf,
    pub(super) local: LocalLog,
    pub(super) log: Log,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("dir", &self.dir).field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Opens the storage of the log in a directory, or makes it.
pub type Opener = Box<dyn FnMut(&dyn Disk, &Path) -> Result<Box<dyn Backend>, backend::Error> + Send>;

impl Volume {
    /// Opens the volume in a directory and makes an empty log if there is none.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::open_in(dir, Engine::Redb)
    }

    /// The same, by the storage engine that is asked for.
    pub fn open_in(dir: &Path, engine: Engine) -> Result<Self, Error> {
        Self::open_with(Arc::new(Local), dir, Box::new(move |disk, dir| engine.open(disk, dir)))
    }

    #[cfg(test)]
    pub(super) fn open_on(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, Error> {
        Self::open_with(disk, dir, Box::new(|disk, dir| Engine::Redb.open(disk, dir)))
    }

    /// The same, on another disk and with storage of another kind: a simulation's.
    pub fn open_with(disk: Arc<dyn Disk>, dir: &Path, mut opener: Opener) -> Result<Self, Error> {
        disk.create_dirs(dir).map_err(|source| Error::File { path: dir.into(), source })?;
        let lock = Lock::take(dir)?;
        let (backend, shelf, identity, log) = open_log(&disk, dir, &mut opener)?;
        Ok(Self { opener, disk, dir: dir.into(), lock, backend, shelf, identity, log })
    }

    /// Whose log it is, as the gate judges it.
    pub fn local_log(&self) -> LocalLog {
        let Identity { domain, epoch, raft_id, sealed, .. } = self.identity.clone();
        LocalLog { domain, epoch, raft_id, sealed }
    }

    /// How far the log goes, and the last membership in it: what counts in an override.
    pub fn extent(&self) -> Extent {
        extent_of(&self.log)
    }

    /// Seals the log: from here on nothing is appended to it and it grants no vote, until it founds or is retired.
    pub fn seal(&mut self) -> Result<(), Error> {
        self.backend.commit(&[set(names::SEALED, &true)?])?;
        failpoints::pass(Point::Sealed);
        self.identity.sealed = true;
        Ok(())
    }

    /// The UID of the pod for which the gate was passed.
    pub fn gate_passed(&self) -> Option<&str> {
        self.identity.gate_passed.as_deref()
    }

    /// Notes that the gate was passed for a pod.
    pub fn set_gate_passed(&mut self, pod_uid: &str) -> Result<(), Error> {
        self.backend.commit(&[set(names::GATE_PASSED, &pod_uid)?])?;
        failpoints::pass(Point::GatePassed);
        self.identity.gate_passed = Some(pod_uid.to_owned());
        Ok(())
    }

    /// Founds the anchor's epoch: this log alone votes from here on. `first` is the epoch's first request, before which nothing
    /// is decided in it. One transaction, and nothing if it is done.
    pub fn found(&mut self, anchor: &Anchor, node: &Node, first: Option<Request>) -> Result<(), Error> {
        let local = self.local_log();
        let same_domain = local.domain.as_ref().is_none_or(|domain| *domain == anchor.domain);
        if anchor.founder != local.raft_id || !same_domain || anchor.epoch < local.epoch {
            return Err(Error::NotFounder { anchor: anchor.clone(), local });
        }
        if anchor.epoch == local.epoch && local.domain.is_some() {
            return Ok(());
        }
        let me = local.raft_id.0;
        let term = first_term(anchor.epoch.0);
        let last = self.log.last();
        let leader = openraft::alias::LeaderIdOf::<TypeConfig>::new(term, me).to_committed();
        let id = LogId::new(leader, last.map_or(0, |last| last.index + 1));
        let nodes = BTreeMap::from([(me, node.clone())]);
        let membership = openraft::Membership::new(vec![BTreeSet::from([me])], nodes).expect("the voter has its node");
        let mut entries = vec![Entry::new_membership(id, membership)];
        entries.extend(first.map(|request| {
            let proposal = Proposal { time: clock::now(), request };
            Entry::new(LogId { index: id.index + 1, ..id }, EntryPayload::Normal(proposal))
        }));
        // openraft derives its next term from its vote alone. A vote for itself at the epoch's first term, not granted
        // by anybody, is what makes it stand for election above every term of the epochs before.
        let vote = Vote::new(term, me);
        let mut ops = self.close_gap()?;
        ops.extend([
            set(names::EPOCH, &anchor.epoch)?,
            set(names::DOMAIN, &anchor.domain)?,
            set(names::SEALED, &false)?,
            set(names::VOTE, &vote)?,
        ]);
        for entry in &entries {
            ops.push(Op::Put(entry.log_id.index, wire::encode(entry).map_err(Error::Encode)?));
        }
        self.backend.commit(&ops)?;
        failpoints::pass(Point::Founded);
        (self.identity.epoch, self.identity.domain) = (anchor.epoch, Some(anchor.domain.clone()));
        self.identity.sealed = false;
        self.log.vote = Some(vote);
        self.log.entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        Ok(())
    }

    /// Purges what a snapshot covers, if the process ended between installing it and purging: the entry to come would
    /// otherwise lie behind a hole.
    fn close_gap(&mut self) -> Result<Vec<Op>, Error> {
        let stored = self.log.entries.values().next_back().map(|entry| entry.log_id).max(self.log.purged);
        let covered = self.log.snapshot.as_ref().and_then(|snapshot| snapshot.meta.last_log_id);
        let Some(covered) = covered.filter(|covered| Some(*covered) > stored) else {
            return Ok(Vec::new());
        };
        self.log.entries.clear();
        self.log.purged = Some(covered);
        Ok(vec![Op::Truncate(0), set(names::PURGED, &covered)?])
    }

    /// Makes this volume one of the anchor's epoch with an empty log. A log that is not empty is retired.
    pub fn retire_log(&mut self, anchor: &Anchor) -> Result<(), Error> {
        if self.identity.epoch != MembershipEpoch(0) || self.log.last().is_some() || self.log.vote.is_some() {
            self.retire()?;
            (self.backend, self.shelf, self.identity, self.log) = open_log(&self.disk, &self.dir, &mut self.opener)?;
        }
        self.backend.commit(&[
            set(names::EPOCH, &anchor.epoch)?,
            set(names::DOMAIN, &anchor.domain)?,
            set(names::SEALED, &false)?,
        ])?;
        failpoints::pass(Point::Joined);
        (self.identity.epoch, self.identity.domain) = (anchor.epoch, Some(anchor.domain.clone()));
        self.identity.sealed = false;
        Ok(())
    }

    pub(super) fn into_parts(self) -> Parts {
        let local = self.local_log();
        Parts {
            disk: self.disk,
            dir: self.dir,
            lock: self.lock,
            backend: self.backend,
            shelf: self.shelf,
            local,
            log: self.log,
        }
    }
}

/// What stands in for the storage while its file moves.
struct Closed;

impl Backend for Closed {
    fn load(&mut self) -> Result<backend::Loaded, backend::Error> {
        Err(backend::Error::Failed(redb::Error::DatabaseClosed.into()))
    }

    fn commit(&mut self, _: &[Op]) -> Result<(), backend::Error> {
        Err(backend::Error::Failed(redb::Error::DatabaseClosed.into()))
    }
}

fn extent_of(log: &Log) -> Extent {
    let position = position(log);
    let Some(membership) = log.membership() else {
        return Extent { position, halves: Vec::new(), nodes: BTreeMap::new() };
    };
    let halves = membership.get_joint_config().iter().map(|half| half.iter().copied().map(RaftId).collect());
    let nodes = membership.nodes().map(|(id, node)| (RaftId(*id), node.clone()));
    Extent { position, halves: halves.collect(), nodes: nodes.collect() }
}

fn position(log: &Log) -> Position {
    log.last()
        .map_or_else(Position::default, |last| Position { term: last.committed_leader_id().term, index: last.index })
}

type OpenLog = (Box<dyn Backend>, Shelf, Identity, Log);

fn open_log(disk: &Arc<dyn Disk>, dir: &Path, opener: &mut Opener) -> Result<OpenLog, Error> {
    let log_dir = dir.join("log");
    let shelf = Shelf::open(disk.clone(), log_dir.join("snapshots"))?;
    let mut backend = opener(&**disk, &log_dir)?;
    for dir in [log_dir.as_path(), dir] {
        // Both: without its own name the whole directory of the log is gone after a loss of power.
        disk.sync_dir(dir).map_err(|source| Error::File { path: dir.into(), source })?;
    }
    let loaded = backend.load()?;
    let (identity, log) = decode(&loaded).map_err(|source| Error::Content { path: dir.into(), source })?;
    if let Some(missing) = hole(&log) {
        return Err(Error::Hole { path: dir.into(), missing });
    }
    let identity = match identity {
        Some(identity) => identity,
        None => {
            // An id is written before anything else is.
            if let Some(snapshot) = shelf.any()? {
                return Err(Error::LogLost { snapshot });
            }
            let raft_id = new_raft_id();
            backend.commit(&[set(names::RAFT_ID, &raft_id)?])?;
            failpoints::pass(Point::Identity);
            Identity { domain: None, epoch: MembershipEpoch(0), raft_id, sealed: false, gate_passed: None }
        }
    };
    if let Some(pointer) = &log.snapshot {
        // Before anything is deleted: an operator may yet make something of the others.
        shelf.open_data(pointer)?;
    }
    shelf.keep_only(log.snapshot.as_ref())?;
    Ok((backend, shelf, identity, log))
}

/// Random, and not 0, which no log has.
fn new_raft_id() -> RaftId {
    loop {
        let id = clock::random_u64();
        if id != 0 {
            return RaftId(id);
        }
    }
}

/// Finds the first entry that is missing between what is purged and the last entry.
fn hole(log: &Log) -> Option<u64> {
    let first = log.purged.map_or(0, |purged| purged.index + 1);
    log.entries.keys().zip(first..).find(|(index, expected)| *index != expected).map(|(_, expected)| expected)
}

fn decode(loaded: &backend::Loaded) -> Result<(Option<Identity>, Log), wire::Error> {
    let mut log = Log {
        vote: value(loaded, names::VOTE)?,
        purged: value(loaded, names::PURGED)?,
        committed: value(loaded, names::COMMITTED)?,
        snapshot: value(loaded, names::SNAPSHOT)?,
        entries: BTreeMap::new(),
    };
    for (index, bytes) in &loaded.log {
        log.entries.insert(*index, wire::decode(bytes, format_args!("log entry {index}"))?);
    }
    let Some(raft_id) = value(loaded, names::RAFT_ID)? else {
        return Ok((None, log));
    };
    let identity = Identity {
        domain: value(loaded, names::DOMAIN)?,
        epoch: value(loaded, names::EPOCH)?.unwrap_or_default(),
        raft_id,
        sealed: value(loaded, names::SEALED)?.unwrap_or_default(),
        gate_passed: value(loaded, names::GATE_PASSED)?,
    };
    Ok((Some(identity), log))
}

fn value<T: DeserializeOwned>(loaded: &backend::Loaded, name: &str) -> Result<Option<T>, wire::Error> {
    loaded.values.get(name).map(|bytes| wire::decode(bytes, format_args!("the value '{name}'"))).transpose()
}

fn set<T: Serialize>(name: &'static str, value: &T) -> Result<Op, Error> {
    Ok(Op::Set(name, wire::encode(value).map_err(Error::Encode)?))
}
