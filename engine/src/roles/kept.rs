//! The file on a volume with what its server must not forget: which generation it took up, which permission it returned. It is no
//! part of the data, so neither a copy nor a rewind replaces it.

use crate::Error;
use crate::marker::Locked;
use kaa_core::domain::ids::StartId;
use kaa_core::replication::Memory;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Its name in the archive's directory.
const NAME: &str = ".kaa-replica.json";

/// What the volume remembers; the default if it is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The last start of a wrapper on it that was written down; 0 if none.
    pub start: StartId,
    /// What its server must not forget.
    pub memory: Memory,
    /// Whether its data is that of a server that was promoted by other means than a grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
}

/// What the volume remembers.
pub(super) fn read(archive: &Locked) -> Result<Kept, Error> {
    let path: PathBuf = archive.path(NAME);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|source| Error::Kept { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(source) => Err(Error::Archive { path, source }),
    }
}

/// Writes it durably: after this returns it is there, or what was there before, whatever happens to the machine.
pub(super) fn write(archive: &Locked, kept: &Kept) -> Result<(), Error> {
    let path = archive.path(NAME);
    let mut text = serde_json::to_vec(kept).map_err(|source| Error::Kept { path: path.clone(), source })?;
    text.push(b'\n');
    archive.replace(&path, &text).map_err(|source| Error::Archive { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::Archive;
    use kaa_core::domain::ids::{Generation, Permission};

    #[test]
    fn what_was_written_last_is_read_back_and_what_is_damaged_is_not_guessed() {
        let root = tempfile::tempdir().unwrap();
        let archive = Archive::open(root.path()).unwrap().lock().unwrap().unwrap();
        assert_eq!(read(&archive).unwrap(), Kept::default());
        let memory = Memory { taken_up: Generation(3), returned: Permission(2), ..Memory::default() };
        let kept = Kept { start: StartId(7), memory, outside: false };
        write(&archive, &kept).unwrap();
        assert_eq!(read(&archive).unwrap(), kept);
        assert!(
            !std::fs::read_to_string(root.path().join(NAME)).unwrap().contains("outside"),
            "as an earlier wrapper knows it"
        );
        write(&archive, &Kept { outside: true, ..kept }).unwrap();
        assert!(read(&archive).unwrap().outside);
        std::fs::write(root.path().join(NAME), "{").unwrap();
        assert!(matches!(read(&archive), Err(Error::Kept { .. })));
    }
}
