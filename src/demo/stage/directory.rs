//! The directory that all of it is in.

use super::Error;
use std::path::{Path, PathBuf};

/// What marks a directory as one that a demo may clear.
const MARK: &str = ".kaa-demo";

/// The demo's directory; one that `--dir` did not name is deleted at the end.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    temporary: bool,
}

impl Directory {
    /// Takes the directory that was asked for, or makes one. Only an empty one, or one that a demo made, is taken; what an
    /// earlier demo left in it is deleted.
    pub fn take(asked: Option<&Path>) -> Result<Self, Error> {
        let path = match asked {
            Some(path) => std::path::absolute(path).map_err(|source| failed(path, source))?,
            None => std::env::temp_dir().join(format!("kaa-demo-{}", std::process::id())),
        };
        std::fs::create_dir_all(&path).map_err(|source| failed(&path, source))?;
        let mut entries = std::fs::read_dir(&path).map_err(|source| failed(&path, source))?;
        if !path.join(MARK).exists() && entries.next().is_some() {
            return Err(Error::NotOurs(path));
        }
        std::fs::write(path.join(MARK), "made by kaa demo\n").map_err(|source| failed(&path, source))?;
        Ok(Self { path, temporary: asked.is_none() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.temporary {
            // What cannot be deleted stays in the directory for temporary files.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Directory { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::{Directory, Error};

    #[test]
    fn only_an_empty_directory_or_a_demos_own_is_taken() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new");
        drop(Directory::take(Some(&path)).unwrap());
        drop(Directory::take(Some(&path)).unwrap());
        assert!(path.exists(), "what was asked for stays");
        std::fs::write(parent.path().join("mine"), "precious").unwrap();
        assert!(matches!(Directory::take(Some(parent.path())), Err(Error::NotOurs(_))));
    }

    #[test]
    fn a_directory_that_was_not_named_is_deleted() {
        let directory = Directory::take(None).unwrap();
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
