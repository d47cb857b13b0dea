//! The only door to the disk for what must survive: each step that has an order, as a call of its own.
//!
//! Behind it a test loses power between two steps, keeps, tears or drops what was not synced, and fills the disk.
//! Reading needs no door: what was written is where it was written.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A disk.
pub trait Disk: Debug + Send + Sync {
    /// Makes a directory and those above it. Names are durable once the directory above them is synced.
    fn create_dirs(&self, dir: &Path) -> io::Result<()>;
    /// Makes a file, or empties it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// Renames a file or directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes what happened to the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Opens or makes a redb file.
    fn database(&self, redb: &redb::Builder, path: &Path) -> Result<redb::Database, redb::DatabaseError>;
    /// How many bytes an ordinary process can still write below a directory.
    fn free(&self, dir: &Path) -> io::Result<u64>;
}

/// A file that is being written.
pub trait Output: Write + Debug + Send {
    /// Makes its content durable.
    fn sync(&mut self) -> io::Result<()>;
}

impl Output for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The disk of this machine.
#[derive(Debug)]
pub struct Local;

impl Disk for Local {
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(File::create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn database(&self, redb: &redb::Builder, path: &Path) -> Result<redb::Database, redb::DatabaseError> {
        redb.create(path)
    }

    fn free(&self, dir: &Path) -> io::Result<u64> {
        let volume = nix::sys::statvfs::statvfs(dir)?;
        Ok(volume.blocks_available().saturating_mul(volume.fragment_size()))
    }
}
