//! The files that Kubernetes mounts for the server, and changes while it runs.

use super::{Server, Settings, certificates};
use std::path::PathBuf;

/// What is in the mounted files. It is compared, and never shown: passwords are among it.
#[derive(Clone, PartialEq, Eq)]
pub struct Mounted(Vec<Option<Vec<u8>>>);

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").finish_non_exhaustive()
    }
}

impl Settings {
    /// What is mounted now. A file that cannot be read is as one that is not there: what uses it says why.
    pub fn mounted(&self) -> Mounted {
        let of = |directory: &PathBuf, names: &[&str]| names.iter().map(|name| directory.join(name)).collect();
        let mut paths: Vec<PathBuf> = of(&self.replication, &["username", "password"]);
        paths.extend(self.parameters.clone());
        paths.extend(self.hba.clone());
        paths.extend(self.application.iter().flat_map(|it| of(it, &["username", "password", "dbname"])));
        paths.extend(self.tls.iter().flat_map(|it| of(it, &certificates::FILES)));
        Mounted(paths.iter().map(|path| std::fs::read(path).ok()).collect())
    }
}

impl Server {
    /// What is mounted for it now.
    pub fn mounted(&self) -> Mounted {
        self.settings.mounted()
    }
}
