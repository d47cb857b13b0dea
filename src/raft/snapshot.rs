//! Snapshots: files next to the log, each written whole before the log points to it.
//!
//! Write, fsync, rename, fsync the directory; then name and checksum go into the log's storage. A file that nothing
//! points to is left over from a crash and is deleted at the next start.

use super::disk::{Disk, Output};
use super::types::SnapshotMeta;
use super::wire;
use crate::clock;
use kaa_core::domain::Domain;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The greatest snapshot that is accepted from another agent.
pub const MAX_SNAPSHOT_BYTES: u64 = 1 << 30;

/// Why a snapshot failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("snapshot file {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The snapshot that the log continues from is missing, or cannot be read.
    #[error(
        "snapshot file {} cannot be read, and the log starts after it; nothing was changed. Make it readable again, or \
         remove the directory 'log' (or delete the volume's claim) and this server joins as a new member",
        .path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The content is not what was written.
    #[error(
        "snapshot file {} is damaged: its size or checksum is not the one noted in the log; nothing was changed. Remove the directory 'log' (or delete the volume's claim) and this server joins as a new member",
        .path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// The content is not understood.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// A sender sends more than is accepted.
    #[error("the snapshot is larger than {MAX_SNAPSHOT_BYTES} bytes")]
    TooLarge,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}

/// What the log's storage knows of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pointer {
    pub(super) file: String,
    pub(super) bytes: u64,
    pub(super) checksum: String,
    pub(super) meta: SnapshotMeta,
}

/// A snapshot's content, on its way to or from another agent.
#[derive(Debug)]
pub struct SnapshotData {
    /// Open for reading, so that it outlives its name.
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) checksum: String,
    /// Whether it goes away with this value.
    temporary: bool,
}

impl Drop for SnapshotData {
    fn drop(&mut self) {
        if self.temporary {
            // If it stays, the next start deletes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[derive(Serialize)]
struct ContentRef<'a> {
    meta: &'a SnapshotMeta,
    domain: &'a Domain,
}

#[derive(Deserialize)]
struct Content {
    domain: Domain,
}

/// The directory that snapshots lie in.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Shelf {
    pub(super) fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> Result<Self, Error> {
        disk.create_dirs(&dir).map_err(|source| Error::File { path: dir.clone(), source })?;
        Ok(Self { disk, dir })
    }

    /// Writes a snapshot; nothing points to it yet.
    pub(super) fn write(&self, meta: &SnapshotMeta, domain: &Domain) -> Result<Pointer, Error> {
        let name = format!("{}-{:016x}", meta.last_log_id.as_ref().map_or(0, |id| id.index), clock::random_u64());
        let part = self.dir.join(format!("{name}.part"));
        let failed = |source| Error::File { path: part.clone(), source };
        let mut out = Hashing::new(BufWriter::new(self.disk.create(&part).map_err(failed)?));
        out.write_all(&[wire::VERSION]).map_err(failed)?;
        rmp_serde::encode::write_named(&mut out, &ContentRef { meta, domain }).map_err(wire::Error::from)?;
        let (out, bytes, checksum) = out.finish();
        let mut file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync().map_err(failed)?;
        let name = format!("{name}.snapshot");
        self.disk.rename(&part, &self.dir.join(&name)).map_err(failed)?;
        self.disk.sync_dir(&self.dir).map_err(|source| Error::File { path: self.dir.clone(), source })?;
        Ok(Pointer { file: name, bytes, checksum, meta: meta.clone() })
    }

    /// Reads the domain that a pointer points to.
    pub(super) fn read(&self, pointer: &Pointer) -> Result<Domain, Error> {
        self.open_data(pointer)?.read()
    }

    /// Opens the content that a pointer points to.
    pub(super) fn open_data(&self, pointer: &Pointer) -> Result<SnapshotData, Error> {
        let path = self.dir.join(&pointer.file);
        let file = File::open(&path).map_err(|source| Error::Missing { path: path.clone(), source })?;
        let size = file.metadata().map_err(|source| Error::Missing { path: path.clone(), source })?.len();
        if size != pointer.bytes {
            return Err(Error::Checksum { path });
        }
        Ok(SnapshotData { file, path, bytes: pointer.bytes, checksum: pointer.checksum.clone(), temporary: false })
    }

    /// Begins to receive a snapshot.
    pub(super) fn receive(&self) -> Result<Incoming, Error> {
        let path = self.dir.join(format!("incoming-{:016x}.part", clock::random_u64()));
        let file = self.disk.create(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        let out = Hashing::new(file);
        Ok(Incoming { out, guard: Temporary(Some(path)) })
    }

    /// A complete snapshot in this directory, even if nothing points to it.
    pub(super) fn any(&self) -> Result<Option<PathBuf>, Error> {
        let failed = |source| Error::File { path: self.dir.clone(), source };
        for file in std::fs::read_dir(&self.dir).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            if path.extension().is_some_and(|kind| kind == "snapshot") {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Deletes every snapshot but the one that is pointed to.
    pub(super) fn keep_only(&self, keep: Option<&Pointer>) -> Result<(), Error> {
        let failed = |source| Error::File { path: self.dir.clone(), source };
        for file in std::fs::read_dir(&self.dir).map_err(failed)? {
            let file = file.map_err(failed)?;
            let name = file.file_name();
            let ours = Path::new(&name).extension().is_some_and(|kind| kind == "part" || kind == "snapshot");
            if ours && keep.is_none_or(|keep| name != *keep.file) {
                self.disk.remove(&file.path()).map_err(|source| Error::File { path: file.path(), source })?;
            }
        }
        Ok(())
    }

    /// Deletes the file of a pointer that was replaced.
    pub(super) fn discard(&self, pointer: &Pointer) {
        // If it stays, the next start deletes it.
        let _ = self.disk.remove(&self.dir.join(&pointer.file));
    }
}

impl SnapshotData {
    /// Reads the domain, from the beginning.
    pub(super) fn read(&self) -> Result<Domain, Error> {
        let failed = |source| Error::File { path: self.path.clone(), source };
        let mut bytes = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        let mut file = self.file.try_clone().map_err(failed)?;
        io::Seek::rewind(&mut file).map_err(failed)?;
        file.read_to_end(&mut bytes).map_err(failed)?;
        if hex(ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref()) != self.checksum {
            return Err(Error::Checksum { path: self.path.clone() });
        }
        Ok(wire::decode::<Content>(&bytes, "the snapshot")?.domain)
    }
}

/// A snapshot that is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    out: Hashing<Box<dyn Output>>,
    guard: Temporary,
}

impl Incoming {
    pub(super) fn write(&mut self, part: &[u8]) -> Result<(), Error> {
        if self.out.bytes + part.len() as u64 > MAX_SNAPSHOT_BYTES {
            return Err(Error::TooLarge);
        }
        self.out.write_all(part).map_err(|source| Error::File { path: self.guard.path(), source })
    }

    /// Ends the reception. The content is judged when it is read.
    pub(super) fn finish(mut self, checksum: String) -> Result<SnapshotData, Error> {
        let path = self.guard.path();
        let file = File::open(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        self.guard.0 = None;
        Ok(SnapshotData { file, path, bytes: self.out.bytes, checksum, temporary: true })
    }
}

/// Deletes its file when it is dropped.
#[derive(Debug)]
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn path(&self) -> PathBuf {
        self.0.clone().unwrap_or_default()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Counts and hashes what goes through it.
struct Hashing<W> {
    out: W,
    bytes: u64,
    digest: ring::digest::Context,
}

impl<W> std::fmt::Debug for Hashing<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hashing({} bytes)", self.bytes)
    }
}

impl<W: Write> Hashing<W> {
    fn new(out: W) -> Self {
        Self { out, bytes: 0, digest: ring::digest::Context::new(&ring::digest::SHA256) }
    }

    fn finish(self) -> (W, u64, String) {
        (self.out, self.bytes, hex(self.digest.finish().as_ref()))
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.digest.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
