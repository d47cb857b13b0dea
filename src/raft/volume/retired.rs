//! The retired logs on a volume: what each holds, and how one of them comes back where the anchor names it as
//! the founder.

use super::super::backend::{self, Engine, Op};
use super::super::disk::{Disk, Local};
use super::super::snapshot::{self, Shelf};
use super::super::types::{Node, bare_term};
use super::{Closed, Error, Extent, Identity, Volume, decode, extent_of, hole, names, open_log, set};
use crate::failpoints::{self, Point};
use kaa_core::domain::ids::{DomainId, MembershipEpoch, RaftId};
use kaa_core::membership::Anchor;
use kaa_core::membership::retired::{self, Retired};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;

/// A retired log.
#[derive(Clone, Debug)]
pub struct RetiredLog {
    /// Its directory on the volume.
    pub name: String,
    /// Its epoch.
    pub epoch: MembershipEpoch,
    /// Its id.
    pub raft_id: RaftId,
    /// What it holds, or why that cannot be read.
    pub holds: Result<Holds, String>,
}

/// What a retired log holds.
#[derive(Clone, Debug)]
pub struct Holds {
    /// The domain that it belongs to; `None` if it is empty.
    pub domain: Option<DomainId>,
    /// How far it goes, and its last membership.
    pub extent: Extent,
    /// The term of its last entry, without the epoch.
    pub last_term: u64,
}

/// Held while a file of such a log is open, since a process can open such a file only once.
static LOOKING: Mutex<()> = Mutex::new(());

fn name_of(epoch: MembershipEpoch, log: RaftId) -> String {
    format!("retired-{epoch}-{log}")
}

/// What the names in the directory of a volume say, the latest epoch first.
fn named(dir: &Path) -> std::io::Result<Vec<(MembershipEpoch, RaftId)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let numbers = name.strip_prefix("retired-").and_then(|rest| rest.split_once('-'));
        if let Some((epoch, log)) = numbers.and_then(|(epoch, log)| epoch.parse().ok().zip(log.parse().ok())) {
            found.push((MembershipEpoch(epoch), RaftId(log)));
        }
    }
    found.sort_by_key(|(epoch, log)| (std::cmp::Reverse(*epoch), *log));
    Ok(found)
}

/// The retired logs on a volume, the latest epoch first, each read through.
pub fn retired_logs(dir: &Path, engine: Engine) -> std::io::Result<Vec<RetiredLog>> {
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let look = |(epoch, raft_id)| {
        let name = name_of(epoch, raft_id);
        let holds = held_by(&dir.join(&name), engine, epoch, raft_id);
        RetiredLog { name, epoch, raft_id, holds }
    };
    Ok(named(dir)?.into_iter().map(look).collect())
}

/// What everything of a log says that a founding from it rests on.
fn held_by(dir: &Path, engine: Engine, epoch: MembershipEpoch, raft_id: RaftId) -> Result<Holds, String> {
    if !engine.exists(dir) {
        return Err("it holds no file of this kind of store".to_owned());
    }
    let loaded = engine.open(&Local, dir).and_then(|mut backend| backend.load()).map_err(|error| of_backend(&error))?;
    let (identity, log) = decode(&loaded).map_err(|error| error.to_string())?;
    let Some(Identity { domain, epoch: of, raft_id: id, .. }) = identity else {
        return Err("it does not say whose log it is".to_owned());
    };
    if (of, id) != (epoch, raft_id) {
        return Err(format!("it is log {id} of epoch {of}, and not what its name says"));
    }
    if let Some(missing) = hole(&log) {
        return Err(format!("log entry {missing} is missing"));
    }
    if let Some(pointer) = &log.snapshot {
        let shelf = Shelf::open(Arc::new(Local), dir.join("snapshots"));
        shelf.and_then(|shelf| shelf.read(pointer)).map_err(|error| of_snapshot(&error))?;
    }
    let extent = extent_of(&log);
    let last_term = bare_term(extent.position.term);
    Ok(Holds { domain, extent, last_term })
}

// What these errors advise is for the log that an agent starts on.
fn of_backend(error: &backend::Error) -> String {
    match error {
        backend::Error::Open { path, source } => format!("{}: {source}", path.display()),
        backend::Error::Foreign { .. } | backend::Error::OtherEngine { .. } => error.to_string(),
        backend::Error::Failed(source) => source.to_string(),
    }
}

fn of_snapshot(error: &snapshot::Error) -> String {
    match error {
        snapshot::Error::File { path, source } | snapshot::Error::Missing { path, source } => {
            format!("its snapshot {}: {source}", path.display())
        }
        snapshot::Error::Checksum { path } => format!("its snapshot {} is damaged", path.display()),
        snapshot::Error::Wire(_) | snapshot::Error::TooLarge => format!("its snapshot: {error}"),
    }
}

/// The retired logs of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// How many logs.
    pub logs: usize,
    /// How many bytes their files take.
    pub bytes: u64,
}

/// Measures the retired logs of a volume, by names and sizes.
pub fn measure_retired(dir: &Path) -> std::io::Result<Stock> {
    let listed = named(dir)?;
    let mut stock = Stock { logs: listed.len(), bytes: 0 };
    for (epoch, log) in listed {
        stock.bytes += bytes_below(&dir.join(name_of(epoch, log)))?;
    }
    Ok(stock)
}

fn bytes_below(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { bytes_below(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

/// Deletes retired logs beyond the bounds of [`retired::prunable`]; names those that went. For a volume whose own
/// log has what is committed in the epoch `current`. One that cannot be read stays: nothing is deleted that is not understood.
pub fn prune_retired(dir: &Path, engine: Engine, current: MembershipEpoch) -> std::io::Result<Vec<String>> {
    remove_what_goes(dir)?;
    let Stock { logs, bytes } = measure_retired(dir)?;
    if logs <= retired::MAX_KEPT_LOGS && bytes <= retired::MAX_KEPT_BYTES {
        return Ok(Vec::new());
    }
    let mut retired = Vec::new();
    for log in retired_logs(dir, engine)? {
        if let Ok(Holds { extent, .. }) = log.holds {
            let bytes = bytes_below(&dir.join(&log.name))?;
            retired.push(Retired { epoch: log.epoch, log: log.raft_id, last: extent.position, bytes });
        }
    }
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pruned = Vec::new();
    for (epoch, log) in retired::prunable(&retired, current) {
        let name = name_of(epoch, log);
        // Renamed first: a log that is deleted in part must not be taken for one that is damaged.
        Local.rename(&dir.join(&name), &dir.join(format!("{GOES}{name}")))?;
        pruned.push(name);
    }
    Local.sync_dir(dir)?;
    remove_what_goes(dir)?;
    Ok(pruned)
}

/// Before the name of a log that is being deleted.
const GOES: &str = "pruned-";

/// Deletes what was renamed for that, now or before this process ended.
fn remove_what_goes(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&format!("{GOES}retired-")) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// All members that a retired log of a volume names. A log that cannot be read names none.
pub fn named_by_retired(dir: &Path, engine: Engine) -> std::io::Result<BTreeMap<RaftId, Node>> {
    let holds = retired_logs(dir, engine)?.into_iter().filter_map(|log| match log.holds {
        Ok(holds) => Some(holds.extent.nodes),
        Err(why) => {
            warn!("retired log {} cannot be read, so the founder does not wait for its members: {why}", log.name);
            None
        }
    });
    Ok(holds.flatten().collect())
}

impl Volume {
    /// Puts the log back in its place that the anchor names as founder, if it is retired here; says whether it does.
    /// The log that was there is retired in turn. What is cut off in between is done by doing it again.
    pub fn bring_back(&mut self, anchor: &Anchor) -> Result<bool, Error> {
        let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = named(&self.dir).map_err(|source| Error::File { path: self.dir.clone(), source })?;
        let Some((epoch, log)) = retired::brings_back(anchor, &listed) else { return Ok(false) };
        let kept = self.dir.join(name_of(epoch, log));
        // Before it is in its place: there it would start in its own epoch, if the pod that passed the gate with it then
        // is still the same.
        let mut backend = (self.opener)(&*self.disk, &kept)?;
        backend.commit(&[set(names::SEALED, &true)?, Op::Clear(names::GATE_PASSED)])?;
        drop(backend);
        self.retire()?;
        let back = self.dir.join("log");
        self.disk.rename(&kept, &back).map_err(|source| Error::File { path: kept, source })?;
        self.disk.sync_dir(&self.dir).map_err(|source| Error::File { path: self.dir.clone(), source })?;
        (self.backend, self.shelf, self.identity, self.log) = open_log(&self.disk, &self.dir, &mut self.opener)?;
        Ok(true)
    }

    /// Moves the log out of its place, where none is then.
    pub(super) fn retire(&mut self) -> Result<(), Error> {
        let kept = self.dir.join(name_of(self.identity.epoch, self.identity.raft_id));
        // The engine must have let go of its file before the file moves.
        self.backend = Box::new(Closed);
        let failed = |source| Error::File { path: kept.clone(), source };
        self.disk.rename(&self.dir.join("log"), &kept).map_err(failed)?;
        self.disk.sync_dir(&self.dir).map_err(failed)?;
        failpoints::pass(Point::Retired);
        Ok(())
    }
}
