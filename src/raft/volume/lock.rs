//! The lock of a volume: one process at a time uses it.

use super::Error;
use std::fs::File;
use std::path::Path;

/// Held while a volume is open.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock of the volume in a directory.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process, or another part of this one, holds it.
    pub(super) fn take(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("lock");
        let failed = |source| Error::File { path: path.clone(), source };
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(std::fs::TryLockError::WouldBlock) => Err(Error::InUse { path: dir.into() }),
            Err(std::fs::TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

impl Drop for Lock {
    /// Releases it although a process that is being started still has a copy of the file: it has one until it executes its program,
    /// and closing the file here would release nothing until then.
    fn drop(&mut self) {
        // If this fails, the lock ends with the last copy of the file.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_free_once_it_is_dropped_even_if_a_child_has_a_copy_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert!(matches!(Lock::take(dir.path()), Err(Error::InUse { .. })));
        drop(lock);
        Lock::take(dir.path()).unwrap();
        drop(copy);
    }
}
