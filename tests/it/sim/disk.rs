//! The agents' disks. Committed data survives a crash of an agent; uncommitted data is lost.

use kaa::raft::backend::{Backend, Error, Loaded, Op};
use kaa::raft::disk::{self, Local, Output};
use kaa::raft::volume::Opener;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One disk. The file of a name contains a number that identifies the stored data, so that files can be renamed.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<BTreeMap<usize, Stored>>>);

#[derive(Clone, Default)]
struct Stored {
    log: BTreeMap<u64, Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
}

struct File {
    disk: Disk,
    number: usize,
    commit: Duration,
}

impl Disk {
    /// Opens storage on which a commit takes this time.
    pub fn opener(&self, commit: Duration) -> Opener {
        let disk = self.clone();
        Box::new(move |_, dir| Ok(Box::new(disk.open(&dir.join("raft.sim"), commit)) as Box<dyn Backend>))
    }

    fn open(&self, path: &Path, commit: Duration) -> File {
        let mut files = self.0.lock().unwrap();
        let number = match std::fs::read_to_string(path) {
            Ok(number) => number.parse().expect("a number of ours"),
            Err(_) => {
                std::fs::write(path, files.len().to_string()).expect("the directory is there");
                files.len()
            }
        };
        files.entry(number).or_default();
        File { disk: self.clone(), number, commit }
    }
}

impl Backend for File {
    fn load(&mut self) -> Result<Loaded, Error> {
        let Stored { log, values } = self.disk.0.lock().unwrap()[&self.number].clone();
        Ok(Loaded { log, values })
    }

    fn commit(&mut self, ops: &[Op]) -> Result<(), Error> {
        let mut files = self.disk.0.lock().unwrap();
        let stored = files.get_mut(&self.number).expect("it was opened");
        for op in ops {
            match op {
                Op::Put(index, bytes) => drop(stored.log.insert(*index, bytes.clone())),
                Op::Truncate(from) => drop(stored.log.split_off(from)),
                Op::Purge(upto) => stored.log = stored.log.split_off(&(upto + 1)),
                Op::Set(name, bytes) => drop(stored.values.insert((*name).to_owned(), bytes.clone())),
                Op::Clear(name) => drop(stored.values.remove(*name)),
            }
        }
        Ok(())
    }

    fn simulated(&self) -> Option<Duration> {
        Some(self.commit)
    }
}

/// The machine's disk for the files other than the log, without syncs: the machine does not lose power in these tests. How
/// much room it really has must not affect a seed: the agent sees either enough room or none.
#[derive(Clone, Debug, Default)]
pub struct Unsynced {
    full: Arc<AtomicBool>,
}

impl Unsynced {
    /// Fills the disk, or makes room.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }
}

impl disk::Disk for Unsynced {
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        Local.create_dirs(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Local.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Local.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Local.remove(path)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn database(&self, redb: &redb::Builder, path: &Path) -> Result<redb::Database, redb::DatabaseError> {
        Local.database(redb, path)
    }

    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(if self.full.load(Ordering::Relaxed) { 0 } else { u64::MAX })
    }
}
