//! The file on a volume with what its server must not forget: which generation it took up, which permission it returned. It is no
//! part of the data, so neither a copy nor a rewind replaces it.

use crate::Error;
use crate::marker::Locked;
use crate::postgres::Position;
use kaa_core::domain::archive::Marker;
use kaa_core::domain::ids::StartId;
use kaa_core::replication::Memory;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Its name in the archive's directory.
const NAME: &str = ".kaa-replica.json";
/// How long a volume may take to take a note.
const LIMIT: Duration = Duration::from_secs(5);

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
    /// The last checkpoint of the data at that start; `None` if there was no data, or if it was overwritten since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Position>,
}

impl Kept {
    /// Whether data with this checkpoint is an earlier state than the one of which this was written: then it was set back, and the rest
    /// of the volume was not.
    pub fn is_newer_than(&self, checkpoint: Option<Position>) -> bool {
        self.checkpoint.zip(checkpoint).is_some_and(|(noted, checkpoint)| checkpoint < noted)
    }
}

/// The notes on an archive's volume, and its lock.
pub(super) struct Notes {
    archive: Arc<Locked>,
    /// Held while one is written.
    turn: Arc<Mutex<()>>,
    limit: Duration,
}

impl Notes {
    /// Those of an archive.
    pub fn of(archive: Locked) -> Self {
        Self { archive: Arc::new(archive), turn: Arc::default(), limit: LIMIT }
    }

    /// What the volume remembers.
    pub fn read(&self) -> Result<Kept, Error> {
        read(&self.archive)
    }

    /// Makes the volume say whose it is, durably.
    pub fn mark(&self, marker: &Marker) -> Result<(), Error> {
        self.archive.mark(marker)
    }

    /// Writes a note durably, by a thread. One that takes too long is an error, may still be written, and then before the next one.
    pub fn write(&self, kept: Kept) -> impl Future<Output = Result<(), Error>> + use<> {
        let (archive, turn, path) = (self.archive.clone(), self.turn.clone(), self.archive.path(NAME));
        let limit = self.limit;
        let failed = move |source| Error::Archive { path, source };
        async move {
            let writes = async {
                let turn = turn.lock_owned().await;
                spawn_blocking(move || {
                    let _turn = turn;
                    write(&archive, &kept)
                })
                .await
            };
            match timeout(limit, writes).await {
                Ok(Ok(written)) => written,
                Ok(Err(error)) => Err(failed(io::Error::other(error))),
                Err(_) => {
                    let why = format!("its disk has not taken a note for {limit:?}");
                    Err(failed(io::Error::new(io::ErrorKind::TimedOut, why)))
                }
            }
        }
    }
}

/// What the volume remembers.
fn read(archive: &Locked) -> Result<Kept, Error> {
    let path: PathBuf = archive.path(NAME);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|source| Error::Kept { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(source) => Err(Error::Archive { path, source }),
    }
}

/// Writes it durably: after this returns it is there, or what was there before, whatever happens to the machine.
fn write(archive: &Locked, kept: &Kept) -> Result<(), Error> {
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
        let kept = Kept { start: StartId(7), memory, outside: false, checkpoint: Some(Position(3)) };
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

    #[test]
    fn data_of_before_the_last_start_is_told_from_what_the_volume_remembers() {
        let is_newer = |noted: Option<u64>, found: Option<u64>| {
            let kept = Kept { checkpoint: noted.map(Position), ..Kept::default() };
            kept.is_newer_than(found.map(Position))
        };
        assert!(is_newer(Some(30), Some(29)));
        assert!(!is_newer(Some(30), Some(30)) && !is_newer(Some(30), Some(31)));
        assert!(!is_newer(Some(30), None), "it is no earlier state: the domain is told that nothing is there");
        assert!(!is_newer(None, Some(1)), "it was made, or overwritten");
    }

    #[tokio::test]
    async fn a_volume_that_takes_no_notes_is_told_and_takes_the_next_one_later() {
        let root = tempfile::tempdir().unwrap();
        let mut notes = Notes::of(Archive::open(root.path()).unwrap().lock().unwrap().unwrap());
        notes.limit = Duration::from_millis(1);
        let kept = Kept { start: StartId(7), ..Kept::default() };
        let before = notes.turn.clone().lock_owned().await;
        let error = timeout(Duration::from_secs(30), notes.write(kept)).await.expect("it waits").unwrap_err();
        assert!(error.to_string().contains("has not taken a note for 1ms"), "{error}");
        notes.limit = LIMIT;
        assert_eq!(notes.read().unwrap(), Kept::default());
        drop(before);
        notes.write(kept).await.unwrap();
        assert_eq!(notes.read().unwrap(), kept);
    }
}
