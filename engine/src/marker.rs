//! The archive's directory: its lock, and the marker that says whose it is.
//!
//! The lock keeps a second wrapper away from the same directory. The marker lets an archive be recognised wherever its
//! volume appears again; it is durable before the engine first runs.

use super::Error;
use kaa_core::domain::archive::Marker;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The marker's name in the archive's directory.
pub const MARKER: &str = ".kaa-archive.json";
/// What is added to the name of a file while it is written.
const DRAFT: &str = "tmp";
/// The lock's name in the archive's directory.
pub const LOCK: &str = ".kaa-archive.lock";

/// An archive's directory, not locked yet.
#[derive(Debug)]
pub struct Archive {
    directory: PathBuf,
    lock: File,
}

/// An archive's directory that this wrapper alone may use, until this is dropped.
#[derive(Debug)]
pub struct Locked {
    directory: PathBuf,
    _lock: File,
}

impl Archive {
    /// Makes the directory if it is missing, and sees that it can be written to.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let unusable = |source| Error::Archive { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(unusable)?;
        // Not truncated: the file is only there to be locked, maybe by another at this moment.
        let lock = OpenOptions::new().create(true).write(true).truncate(false).open(directory.join(LOCK));
        Ok(Self { directory: directory.to_owned(), lock: lock.map_err(unusable)? })
    }

    /// Takes the lock, or gives the directory back if another wrapper holds it.
    pub fn lock(self) -> Result<Result<Locked, Self>, Error> {
        match self.lock.try_lock() {
            Ok(()) => Ok(Ok(Locked { directory: self.directory, _lock: self.lock })),
            Err(TryLockError::WouldBlock) => Ok(Err(self)),
            Err(TryLockError::Error(source)) => Err(Error::Archive { path: self.lock_path(), source }),
        }
    }

    /// The file that is locked.
    pub fn lock_path(&self) -> PathBuf {
        self.directory.join(LOCK)
    }
}

impl Locked {
    /// A file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What the volume says of itself; `None` if it says nothing.
    pub fn marker(&self) -> Result<Option<Marker>, Error> {
        let path = self.directory.join(MARKER);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Archive { path, source }),
        };
        serde_json::from_slice(&text).map(Some).map_err(|source| Error::Marker { path, source })
    }

    /// Makes the volume say whose it is, durably: after this returns, the marker is there or the old one is, whatever
    /// happens to the machine.
    pub fn mark(&self, marker: &Marker) -> Result<(), Error> {
        let path = self.directory.join(MARKER);
        let mut text = serde_json::to_vec(marker).map_err(|source| Error::Marker { path: path.clone(), source })?;
        text.push(b'\n');
        self.replace(&path, &text).map_err(|source| Error::Archive { path, source })
    }

    /// Replaces a file durably.
    pub(crate) fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let draft = path.with_added_extension(DRAFT);
        let mut file = File::create(&draft)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(&draft, path)?;
        // The rename itself is durable only once the directory is.
        File::open(&self.directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaa_core::domain::ids::{ArchiveId, DomainId};

    fn locked(directory: &Path) -> Locked {
        Archive::open(directory).unwrap().lock().unwrap().expect("no other engine holds it")
    }

    #[test]
    fn a_missing_directory_is_made_and_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(None, locked(&root.path().join("a/b")).marker().unwrap());
    }

    #[test]
    fn the_last_marker_written_is_read_back_and_no_draft_stays() {
        let root = tempfile::tempdir().unwrap();
        let archive = locked(root.path());
        for number in [1, 7] {
            let marker = Marker { domain: DomainId::new("d-1"), archive: ArchiveId(number) };
            archive.mark(&marker).unwrap();
            assert_eq!(Some(marker), archive.marker().unwrap());
        }
        let text = std::fs::read_to_string(root.path().join(MARKER)).unwrap();
        assert_eq!("{\"domain\":\"d-1\",\"archive\":7}\n", text);
        assert!(!root.path().join(MARKER).with_added_extension(DRAFT).exists());
    }

    #[test]
    fn a_second_holder_is_held_off_until_the_first_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let first = locked(root.path());
        let second = Archive::open(root.path()).unwrap().lock().unwrap().expect_err("it is taken");
        drop(first);
        second.lock().unwrap().expect("it is free");
    }

    #[test]
    fn a_damaged_marker_is_not_taken_for_none() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(MARKER), "{").unwrap();
        assert!(matches!(locked(root.path()).marker(), Err(Error::Marker { .. })));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Archive::open(&file.join("archive")).unwrap_err().to_string();
        assert!(error.contains("file/archive"), "{error}");
    }
}
