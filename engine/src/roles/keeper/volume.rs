//! The room on the volume, when the certificates on it expire, and what the application's Secret names. A thread of its own reads it: a
//! volume that does not answer must not hold up the wrapper.

use crate::postgres::{self, Expiry, Settings, Space};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is read.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a reading of the free space stays valid.
const VALID: Duration = Duration::from_secs(5);

type Seen = Mutex<Found>;

/// What was found on the volume.
#[derive(Debug, Default)]
struct Found {
    space: Option<(Space, Instant)>,
    /// It is the same until it is read again.
    expiry: Expiry,
    /// The application's role and database.
    application: Option<(String, String)>,
}

/// What was read last.
pub(super) struct Volume(Arc<Seen>);

impl Volume {
    /// That of a server. It is read for as long as this lives.
    pub fn of(settings: Settings) -> Self {
        let (expiry, application) = (postgres::expiry(&settings), postgres::application_of(&settings));
        let seen = Arc::new(Mutex::new(Found { space: space(&settings), expiry, application }));
        let shared = Arc::downgrade(&seen);
        let begun = thread::Builder::new().name("volume".to_owned()).spawn(move || follow(&settings, &shared));
        if let Err(error) = begun {
            tracing::warn!(%error, "the room on the volume will not be known");
        }
        Self(seen)
    }

    /// The room now; `None` if it is not known.
    pub fn space(&self) -> Option<Space> {
        self.found().space.filter(|(_, at)| at.elapsed() < VALID).map(|(space, _)| space)
    }

    /// When the certificates expire.
    pub fn expiry(&self) -> Expiry {
        self.found().expiry
    }

    /// The application's role and database, by its Secret.
    pub fn application(&self) -> Option<(String, String)> {
        self.found().application.clone()
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn follow(settings: &Settings, shared: &Weak<Seen>) {
    let note = |change: &dyn Fn(&mut Found)| {
        let seen = shared.upgrade()?;
        change(&mut seen.lock().unwrap_or_else(PoisonError::into_inner));
        Some(())
    };
    loop {
        thread::sleep(PERIOD);
        // First the room: files of a volume that is full or damaged may not answer.
        let space = space(settings);
        let Some(()) = note(&|found| found.space = space) else { return };
        let expiry = postgres::expiry(settings);
        let Some(()) = note(&|found| found.expiry = expiry) else { return };
        let application = postgres::application_of(settings);
        let Some(()) = note(&|found| found.application.clone_from(&application)) else { return };
    }
}

fn space(settings: &Settings) -> Option<(Space, Instant)> {
    match postgres::space(&settings.directory) {
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
    use std::path::Path;

    #[test]
    fn a_volume_that_cannot_be_read_has_no_known_room() {
        let of = |directory: &str| Volume::of(Settings::of_test(Path::new(directory))).space();
        assert!(of("/").is_some());
        assert_eq!(of("/no/such/directory"), None);
        let old = Instant::now().checked_sub(VALID).unwrap();
        let found = Found { space: Some((Space { free: 1, size: 2 }, old)), ..Found::default() };
        assert_eq!(Volume(Arc::new(Mutex::new(found))).space(), None, "it does not answer any more");
    }
}
