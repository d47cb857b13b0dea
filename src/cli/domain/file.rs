//! The file of a snapshot: there whole, or not at all.

use crate::http::{Document, Unreadable};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The greatest file that is read: far more than any domain.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Why there is no file, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    #[error("{} is there already: say --force to replace it", .0.display())]
    Exists(PathBuf),
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has more than {MAX_FILE_BYTES} bytes", .0.display())]
    TooLong(PathBuf),
    #[error("{} cannot be used: {source}", path.display())]
    Unusable { path: PathBuf, source: Unreadable },
}

impl Error {
    pub(super) fn unusable(path: &Path, source: Unreadable) -> Self {
        Self::Unusable { path: named(path), source }
    }
}

/// What an error calls a path.
fn named(path: &Path) -> PathBuf {
    if path.as_os_str() == "-" { PathBuf::from("what was read") } else { path.to_owned() }
}

/// Reads a snapshot; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<Document, Error> {
    let failed = |source| Error::Read { path: named(path), source };
    let mut text = Vec::new();
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut text)
    } else {
        File::open(path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)
    };
    if read.map_err(failed)? as u64 > MAX_FILE_BYTES {
        return Err(Error::TooLong(named(path)));
    }
    Document::parse(&text).map_err(|source| Error::unusable(path, source))
}

/// Where a snapshot goes.
pub(super) enum Target {
    Standard,
    File(Draft),
}

/// A file that has its name only once it is written.
pub(super) struct Draft {
    path: PathBuf,
    draft: PathBuf,
    force: bool,
}

impl Target {
    /// Looks whether it can be written, before anybody is asked.
    pub(super) fn new(path: &Path, force: bool) -> Result<Self, Error> {
        if path.as_os_str() == "-" {
            return Ok(Self::Standard);
        }
        if !force && path.symlink_metadata().is_ok() {
            return Err(Error::Exists(path.to_owned()));
        }
        let mut draft = path.file_name().unwrap_or_default().to_owned();
        draft.push(format!(".{}.tmp", std::process::id()));
        Ok(Self::File(Draft { path: path.to_owned(), draft: path.with_file_name(draft), force }))
    }
}

impl Draft {
    /// Writes the file durably; afterwards it is there whole, or what was there before is.
    pub(super) fn write(&self, text: &[u8]) -> Result<(), Error> {
        let failed = |source| Error::Write { path: self.path.clone(), source };
        // Only for its owner: values may be secret.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.draft).map_err(failed)?;
        let written = file.write_all(text).and_then(|()| file.sync_all()).map_err(failed);
        let done = written.and_then(|()| {
            self.publish().map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => Error::Exists(self.path.clone()),
                _ => failed(source),
            })
        });
        if done.is_err() {
            // It may be gone already, and what is told is why the file is not there.
            let _ = std::fs::remove_file(&self.draft);
        }
        done
    }

    /// A link is refused where a file is, which a rename replaces.
    fn publish(&self) -> io::Result<()> {
        if self.force {
            std::fs::rename(&self.draft, &self.path)?;
        } else {
            std::fs::hard_link(&self.draft, &self.path)?;
            std::fs::remove_file(&self.draft)?;
        }
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn draft(path: &Path, force: bool) -> Result<Draft, Error> {
        match Target::new(path, force)? {
            Target::File(draft) => Ok(draft),
            Target::Standard => panic!("{} is a file", path.display()),
        }
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_never_replaced_unasked() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kaa.json");
        let (first, late) = (draft(&path, false).unwrap(), draft(&path, false).unwrap());
        first.write(b"first").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(draft(&path, false), Err(Error::Exists(_))));
        assert!(matches!(late.write(b"second"), Err(Error::Exists(_))), "it was created after the check");
        assert_eq!((std::fs::read(&path).unwrap(), files(root.path())), (b"first".to_vec(), vec!["kaa.json".into()]));
        draft(&path, true).unwrap().write(b"third").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), files(root.path())), (b"third".to_vec(), vec!["kaa.json".into()]));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("nowhere/kaa.json");
        let error = draft(&path, false).unwrap().write(b"text").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} cannot be written: ", path.display())), "{error}");
        let error = read(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} cannot be read: ", path.display())), "{error}");
    }

    #[test]
    fn a_file_that_is_no_snapshot_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kaa.json");
        for (text, wrong) in
            [("{\"kind\":", "it is truncated"), ("{}", "it is not a snapshot"), ("x", "it is not JSON")]
        {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{} cannot be used: {wrong}", path.display())), "{error}");
        }
    }
}
