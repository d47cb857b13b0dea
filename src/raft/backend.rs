//! Where a log lies on disk: a log and a few named values, changed together and in order.
//!
//! The trait is all that another storage engine has to fulfil.

#[cfg(feature = "sled")]
mod sled;

use super::disk::Disk;
use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why the storage failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened, or is not one of ours.
    #[error(
        "{} cannot be read as the log of an agent; nothing was changed. Remove the directory 'log' (or delete the \
         volume's claim) and this server joins as a new member", .path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Fault,
    },
    /// The file is a database, but of something else.
    #[error(
        "{} is a database of another program (it has a table '{table}'); nothing was changed. Give the agent a \
         directory of its own", .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// A table that is not ours.
        table: String,
    },
    /// The log is in another engine's file.
    #[error(
        "{} holds the log of an agent that was started with another --store; nothing was changed. Start it with the one \
         that it had, or give it an empty volume and it joins as a new member", .path.display()
    )]
    OtherEngine {
        /// That file.
        path: PathBuf,
    },
    /// Reading or writing failed.
    #[error("the log's storage failed")]
    Failed(#[source] Fault),
}

/// What a storage engine says of what failed.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes the log entry at an index.
    Put(u64, Vec<u8>),
    /// Deletes the log from an index on.
    Truncate(u64),
    /// Deletes the log up to an index, inclusive.
    Purge(u64),
    /// Sets a named value.
    Set(&'static str, Vec<u8>),
    /// Deletes a named value.
    Clear(&'static str),
}

/// Everything that is stored.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The log.
    pub log: BTreeMap<u64, Vec<u8>>,
    /// The named values.
    pub values: BTreeMap<String, Vec<u8>>,
}

/// A storage engine.
pub trait Backend: Send {
    /// Reads everything.
    fn load(&mut self) -> Result<Loaded, Error>;
    /// Makes the changes, all or none, and durable when it returns.
    fn commit(&mut self, ops: &[Op]) -> Result<(), Error>;
    /// How long a commit takes, for a simulated backend: the store waits for it in virtual time, and not in a thread.
    fn simulated(&self) -> Option<Duration> {
        None
    }
}

/// The storage engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// One file, checksums, every commit synced
    #[default]
    Redb,
    /// May lose what was acknowledged when the power is lost
    #[cfg(feature = "sled")]
    Sled,
}

/// What the engines call their files; also those that this build is without, lest it begins an empty log beside one.
const FILES: [&str; 2] = ["raft.redb", "raft.sled"];

impl Engine {
    fn file(self) -> &'static str {
        match self {
            Self::Redb => FILES[0],
            #[cfg(feature = "sled")]
            Self::Sled => FILES[1],
        }
    }

    /// Whether there is a log in a directory.
    pub(super) fn exists(self, dir: &Path) -> bool {
        dir.join(self.file()).exists()
    }

    /// Opens the log in a directory, or creates it.
    pub(super) fn open(self, disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Backend>, Error> {
        let own = self.file();
        let other = FILES.iter().filter(|file| **file != own).map(|file| dir.join(file));
        if let Some(path) = other.into_iter().find(|path| path.try_exists().unwrap_or(true)) {
            return Err(Error::OtherEngine { path });
        }
        Ok(match self {
            Self::Redb => Box::new(Redb::open(disk, &dir.join(own))?),
            #[cfg(feature = "sled")]
            Self::Sled => Box::new(sled::Sled::open(&dir.join(own))?),
        })
    }

    /// What has to be said at each start.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Redb => None,
            #[cfg(feature = "sled")]
            Self::Sled => Some(sled::WARNING),
        }
    }
}

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");

/// The log itself is held in memory, so that redb's cache only serves writing.
const CACHE_BYTES: usize = 16 << 20;

/// A redb file.
pub struct Redb(redb::Database);

impl Redb {
    /// Opens the file, or creates it under another name first: a crash would otherwise leave half a file, which no later
    /// start could tell from a damaged one.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, Error> {
        let failed = |source: std::io::Error| Error::Open { path: path.into(), source: source.into() };
        // An error to look is an error to open, which then says so.
        if !path.try_exists().unwrap_or(true) {
            let new = path.with_extension("new");
            if new.try_exists().map_err(failed)? {
                // Of a start that did not come far enough to acknowledge anything.
                disk.remove(&new).map_err(failed)?;
            }
            drop(Self::at(disk, &new)?);
            disk.rename(&new, path).map_err(failed)?;
        }
        Self::at(disk, path)
    }

    /// Every page is checked against its checksum: all of it is read anyway, and a page
    /// that the disk altered would otherwise be trusted.
    fn at(disk: &dyn Disk, path: &Path) -> Result<Self, Error> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let opened = disk.database(&builder, path);
        let database = opened.map_err(|source| Error::Open { path: path.into(), source: source.into() })?;
        if let Some(table) =
            foreign_table(&database).map_err(|source| Error::Open { path: path.into(), source: source.into() })?
        {
            return Err(Error::Foreign { path: path.into(), table });
        }
        let redb = Self(database);
        redb.write(&[]).map_err(|source| Error::Open { path: path.into(), source: source.into() })?;
        Ok(redb)
    }

    fn write(&self, ops: &[Op]) -> Result<(), redb::Error> {
        let transaction = self.0.begin_write()?;
        {
            let mut log = transaction.open_table(LOG)?;
            let mut values = transaction.open_table(VALUES)?;
            for op in ops {
                match op {
                    Op::Put(index, bytes) => drop(log.insert(index, bytes.as_slice())?),
                    Op::Truncate(from) => log.retain_in(*from.., |_, _| false)?,
                    Op::Purge(upto) => log.retain_in(..=*upto, |_, _| false)?,
                    Op::Set(name, bytes) => drop(values.insert(name, bytes.as_slice())?),
                    Op::Clear(name) => drop(values.remove(name)?),
                }
            }
        }
        Ok(transaction.commit()?)
    }

    fn read(&self) -> Result<Loaded, redb::Error> {
        let transaction = self.0.begin_read()?;
        let mut loaded = Loaded::default();
        for row in transaction.open_table(LOG)?.iter()? {
            let (index, bytes) = row?;
            loaded.log.insert(index.value(), bytes.value().to_vec());
        }
        for row in transaction.open_table(VALUES)?.iter()? {
            let (name, bytes) = row?;
            loaded.values.insert(name.value().to_owned(), bytes.value().to_vec());
        }
        Ok(loaded)
    }
}

fn foreign_table(database: &redb::Database) -> Result<Option<String>, redb::Error> {
    let transaction = database.begin_read()?;
    let mut names = transaction.list_tables()?.map(|table| table.name().to_owned());
    Ok(names.find(|name| name != LOG.name() && name != VALUES.name()))
}

impl Backend for Redb {
    fn load(&mut self) -> Result<Loaded, Error> {
        self.read().map_err(|error| Error::Failed(error.into()))
    }

    fn commit(&mut self, ops: &[Op]) -> Result<(), Error> {
        self.write(ops).map_err(|error| Error::Failed(error.into()))
    }
}
