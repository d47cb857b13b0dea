//! Which of what Kubernetes mounts the server uses.

use super::decide::Step;
use super::perform::Done;
use crate::postgres::{Mounted, Settings};

/// Which of what is mounted the server uses.
pub(super) struct Using {
    settings: Settings,
    /// What was mounted when all of it was used last; `None` before the first start.
    used: Option<Mounted>,
    complaints: Vec<String>,
}

impl Using {
    pub fn new(settings: Settings) -> Self {
        Self { settings, used: None, complaints: Vec::new() }
    }

    /// Whether something has changed since.
    pub fn is_stale(&self) -> bool {
        self.used.as_ref().is_some_and(|used| *used != self.settings.mounted())
    }

    /// Notes what a step has used.
    pub fn note(&mut self, done: &Done) {
        self.complaints.clone_from(&done.complaints);
        let uses_all = matches!(done.step, Step::StartFenced | Step::Overwrite { .. } | Step::Refresh);
        if uses_all && done.result.is_ok() {
            self.used = Some(done.mounted.clone());
        }
    }

    /// What of it is not used, and why; empty if all is.
    pub fn complaints(&self) -> String {
        self.complaints.join("; ")
    }
}
