//! Which of what Kubernetes mounts the server uses.

use super::decide::Step;
use super::perform::Done;
use crate::postgres::{Mounted, Settings};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after something mounted could not be used. Other steps do not wait for it.
const PAUSE: Duration = Duration::from_secs(5);

/// The pause before what the server has refused is tried again.
const REFUSED: Duration = Duration::from_secs(10);

/// Which of what is mounted the server uses.
pub(super) struct Using {
    settings: Settings,
    /// What was mounted when all of it was used last; `None` if that is not known.
    used: Option<Mounted>,
    /// When it is tried again.
    again: Option<Instant>,
    complaints: Vec<String>,
}

impl Using {
    pub fn new(settings: Settings) -> Self {
        Self { settings, used: None, again: None, complaints: Vec::new() }
    }

    /// How the server runs.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether something else is mounted now, and it is time to use it.
    pub fn is_stale(&self) -> bool {
        self.again.is_none_or(|again| again <= Instant::now()) && self.used.as_ref() != Some(&self.settings.mounted())
    }

    /// Notes that a step begins: one that is dropped may have done a part.
    pub fn begins(&mut self, step: &Step) {
        if let Step::Refresh = step {
            self.used = None;
        }
    }

    /// Notes what a step has used.
    pub fn note(&mut self, done: &Done) {
        self.complaints.clone_from(&done.complaints);
        if let Some(mounted) = &done.mounted {
            self.used = done.result.is_ok().then(|| mounted.clone());
        }
        if let Step::Refresh = done.step {
            self.again = done.result.is_err().then(|| Instant::now() + PAUSE);
            self.complaints.extend(done.result.as_ref().err().cloned());
        }
        if done.uses_again {
            (self.used, self.again) = (None, Some(Instant::now() + REFUSED));
        }
    }

    /// What of it is not used, and why; empty if all is.
    pub fn complaints(&self) -> String {
        self.complaints.join("; ")
    }
}
