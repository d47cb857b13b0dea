//! The storage managers of one database and its archives, side by side: what is decided by comparing them is decided here.
//!
//! A domain may hold hundreds of databases, and agents ask about every engine with every entry. So code that asks about many
//! engines calls [`Domain::gates`], which looks at all processes and archives once.

use super::Domain;
use super::archive::Archive;
use super::gate::{Held, Start};
use super::ids::{ArchiveId, DatabaseName, StartId};
use super::process::{EngineKind, Process};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// The storage managers of one database and its archives.
pub(super) struct Managers<'a> {
    pub(super) domain: &'a Domain,
    /// The living storage managers, by start id.
    pub(super) living: Vec<&'a Process>,
    /// The archives that hold data, as far as is known: removed ones too.
    pub(super) data: Vec<&'a Archive>,
    on: BTreeMap<ArchiveId, &'a Process>,
    order: OnceCell<Order>,
}

/// How the archives of a database compare at a cold start.
pub(super) struct Order {
    /// Archives that no cold start waits for: another one provably holds all that they hold.
    pub(super) surpassed: BTreeSet<ArchiveId>,
    /// The one that starts first among those whose storage managers have said how new their data is.
    pub(super) first: Option<ArchiveId>,
}

impl<'a> Managers<'a> {
    fn new(domain: &'a Domain) -> Self {
        Self { domain, living: Vec::new(), data: Vec::new(), on: BTreeMap::new(), order: OnceCell::new() }
    }

    fn add(&mut self, process: &'a Process) {
        self.living.push(process);
        if let Some(archive) = process.archive {
            self.on.entry(archive).or_insert(process);
        }
    }

    /// The living process on an archive.
    pub(super) fn process_on(&self, archive: ArchiveId) -> Option<&'a Process> {
        self.on.get(&archive).copied()
    }

    /// What the storage manager of an archive said of how new its data is.
    pub(super) fn history(&self, archive: ArchiveId) -> Option<u64> {
        self.process_on(archive).filter(|process| !self.may_be_a_copy(process)).and_then(|process| process.history)
    }

    /// Whether the volume of a storage manager may be a copy of its archive's: which claim its pod mounts is not known, and the
    /// archive has one.
    pub(super) fn may_be_a_copy(&self, process: &Process) -> bool {
        let archive = process.archive.and_then(|archive| self.domain.archives.get(&archive));
        process.claim_unread && archive.is_some_and(|archive| archive.claim.is_some())
    }

    /// Whether one archive provably holds everything that another one holds.
    pub(super) fn holds_all_of(&self, one: &Archive, other: &Archive) -> bool {
        one.holds_all_of(self.process_on(one.id), other, self.process_on(other.id))
    }

    /// How the archives compare. Computed once.
    pub(super) fn order(&self) -> &Order {
        self.order.get_or_init(|| Order { surpassed: self.surpassed(), first: self.first() })
    }

    /// Of several archives that hold the same, one is enough; of two, the one that holds more.
    fn surpassed(&self) -> BTreeSet<ArchiveId> {
        let by = |other: &Archive, archive: &Archive| {
            let (more, less) = (self.holds_all_of(other, archive), self.holds_all_of(archive, other));
            other.id != archive.id && more && (!less || other.place() < archive.place())
        };
        let surpassed = self.data.iter().filter(|archive| self.data.iter().any(|other| by(other, archive)));
        surpassed.map(|archive| archive.id).collect()
    }
}

impl Domain {
    /// The storage managers of one database.
    pub(super) fn managers(&self, database: &DatabaseName) -> Managers<'_> {
        let mut managers = Managers::new(self);
        let living = self.processes.values().filter(|process| process.kind == EngineKind::Sm);
        living.filter(|process| process.database == *database).for_each(|process| managers.add(process));
        let data = self.archives.values().filter(|archive| archive.database == *database && archive.has_data());
        managers.data = data.collect();
        managers
    }

    /// The gates of all engines, as they are now.
    pub fn gates(&self) -> Gates<'_> {
        let mut all = BTreeMap::new();
        for process in self.processes.values().filter(|process| process.kind == EngineKind::Sm) {
            all.entry(&process.database).or_insert_with(|| Managers::new(self)).add(process);
        }
        for archive in self.archives.values().filter(|archive| archive.has_data()) {
            all.entry(&archive.database).or_insert_with(|| Managers::new(self)).data.push(archive);
        }
        Gates { domain: self, all }
    }

    /// How the engine of a process may start, or why not yet.
    ///
    /// # Errors
    ///
    /// Why not yet.
    pub fn may_start(&self, process: StartId) -> Result<Start, Held> {
        let process = self.processes.get(&process).ok_or(Held::Unknown)?;
        self.managers(&process.database).may_start(process)
    }

    /// The entry as of which a storage manager has to prove that it still runs; `None` if nothing depends on it.
    pub fn owed_proof(&self, process: StartId) -> Option<u64> {
        let process = self.processes.get(&process)?;
        self.managers(&process.database).owed_proof(process)
    }
}

/// The gates of all engines of a domain, and the proofs that it is owed.
pub struct Gates<'a> {
    domain: &'a Domain,
    all: BTreeMap<&'a DatabaseName, Managers<'a>>,
}

impl Gates<'_> {
    /// As [`Domain::may_start`].
    ///
    /// # Errors
    ///
    /// Why not yet.
    pub fn may_start(&self, process: StartId) -> Result<Start, Held> {
        let process = self.domain.processes.get(&process).ok_or(Held::Unknown)?;
        match self.all.get(&process.database) {
            Some(managers) => managers.may_start(process),
            None => Managers::new(self.domain).may_start(process),
        }
    }

    /// As [`Domain::owed_proof`].
    pub fn owed_proof(&self, process: StartId) -> Option<u64> {
        let process = self.domain.processes.get(&process)?;
        self.all.get(&process.database)?.owed_proof(process)
    }

    /// The storage managers that are held and may start now. Of those that may start first there is one of each database.
    pub(super) fn opened(&self) -> Vec<(StartId, Start)> {
        let mut opened = Vec::new();
        for managers in self.all.values() {
            let held = managers.living.iter().filter(|process| process.started.is_none());
            let may = held.filter_map(|process| Some((process.id, managers.may_start(process).ok()?)));
            let mut first = false;
            opened.extend(may.filter(|(_, start)| *start == Start::Join || !std::mem::replace(&mut first, true)));
        }
        opened
    }
}
