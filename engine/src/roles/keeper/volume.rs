//! The room on the volume. A thread of its own reads it: a volume that does not answer must not hold up the wrapper.

use crate::postgres::{self, Space};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is read.
const PERIOD: Duration = Duration::from_secs(1);
/// How long it is taken to be the same.
const VALID: Duration = Duration::from_secs(5);

type Seen = Mutex<Option<(Space, Instant)>>;

/// What was read last.
pub(super) struct Volume(Arc<Seen>);

impl Volume {
    /// That of a directory. It is read for as long as this lives.
    pub fn of(directory: PathBuf) -> Self {
        let seen = Arc::new(Mutex::new(look(&directory)));
        let shared = Arc::downgrade(&seen);
        let begun = thread::Builder::new().name("volume".to_owned()).spawn(move || follow(&directory, &shared));
        if let Err(error) = begun {
            tracing::warn!(%error, "the room on the volume will not be known");
        }
        Self(seen)
    }

    /// The room now; `None` if it is not known.
    pub fn space(&self) -> Option<Space> {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.filter(|(_, at)| at.elapsed() < VALID).map(|(space, _)| space)
    }
}

fn follow(directory: &Path, shared: &Weak<Seen>) {
    loop {
        thread::sleep(PERIOD);
        let found = look(directory);
        let Some(seen) = shared.upgrade() else { return };
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

fn look(directory: &Path) -> Option<(Space, Instant)> {
    match postgres::space(directory) {
        Ok(space) => Some((space, Instant::now())),
        Err(error) => {
            tracing::debug!(%error, "the volume was not looked at");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_cannot_be_read_has_no_known_room() {
        assert!(Volume::of("/".into()).space().is_some());
        assert_eq!(Volume::of("/no/such/directory".into()).space(), None);
        let old = Instant::now().checked_sub(VALID).unwrap();
        let space = Space { free: 1, size: 2 };
        assert_eq!(Volume(Arc::new(Mutex::new(Some((space, old))))).space(), None, "it does not answer any more");
    }
}
