//! `kaa demo --postgres`: a database of PostgreSQL servers instead of the stand-ins.

use super::domain::Domain;
use super::door::{Behind, Door};
use super::{Demo, Error, NAMESPACE, say};
use crate::demo::postgres::{self, DATABASE, Installed, Roles, SERVERS};
use crate::demo::stage::Stage;
use crate::http::{PlaceRow, ReplicationAnswer};
use embedded_kubernetes::instance::Instance;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

/// The file with the URL that leads to the primary.
const URL: &str = "postgres-url";
/// The Services, the files with their URLs, and the ports at which this machine finds them: that of the demo's own address is the
/// primary's.
const SERVICES: [(&str, &str, u16); 2] = [("shop-rw", "postgres-rw-url", 5432), ("shop-ro", "postgres-ro-url", 5433)];
/// The file with a pod and its URL for each server.
const EACH: &str = "postgres-servers";

/// The database and its clients' side.
pub(super) struct Shop {
    installed: Installed,
    roles: Arc<Roles>,
}

impl Shop {
    /// Prepares the demo's directory for the servers of this directory, or of the newest package.
    pub(super) fn prepare(bin: Option<&Path>, dir: &Path) -> Result<Self, Error> {
        let installed = Installed::find(bin)?;
        installed.prepare(dir)?;
        // Those of an earlier demo lead nowhere.
        let services = SERVICES.map(|(_, file, _)| file);
        for name in [URL, EACH].into_iter().chain(services) {
            let _ = fs::remove_file(dir.join(name));
        }
        Ok(Self { installed, roles: Arc::new(Roles::new()?) })
    }

    /// What is to be applied.
    pub(super) fn objects(&self) -> Result<Vec<Value>, Error> {
        Ok(self.installed.objects(NAMESPACE, &self.roles)?)
    }

    /// Waits until the database is open and its standbys follow, and tells what comes when.
    pub(super) async fn play(&self, demo: &Demo, stage: &Stage, invitation: &str, began: Instant) -> Result<(), Error> {
        let step = |what: &str| demo.step(what, began);
        let domain = Domain::new(stage, NAMESPACE);
        domain.servers(demo.admins()).await?;
        step(&format!("{} admin servers: StatefulSet kaa-admin", demo.admins()))?;
        domain.registered("SM", SERVERS).await?;
        step(&format!("{SERVERS} servers: StatefulSet {DATABASE}"))?;
        let open = |shown: &ReplicationAnswer| {
            let primary = shown.primary.as_ref().filter(|primary| primary.open)?;
            Some((primary.pod.clone(), shown.generation?))
        };
        let (pod, generation) = domain.shown(DATABASE, "an open primary", open).await?;
        step(&format!("Database {DATABASE} is open: primary {pod}, generation {generation}"))?;
        domain.running("SM", SERVERS).await?;
        let confirms = |shown: &ReplicationAnswer| {
            let set = shown.sync_set.as_ref()?;
            let is_standby = |row: &&PlaceRow| row.role.code != "primary";
            let stream = shown.archives.iter().filter(is_standby).all(|row| row.state.code == "streaming");
            (set.in_force && set.archives.len() > 1 && stream).then_some(())
        };
        domain.shown(DATABASE, "a standby that confirms each commit", confirms).await?;
        step(&format!("{} standbys follow it, one of them confirms each commit", SERVERS - 1))?;
        let line = format!("show database {DATABASE}");
        say(&format!("\n$ kaa {line}\n{}", domain.kaa(&line).await?))?;
        let placed = stage.instance().look(|store| postgres::servers(store, NAMESPACE));
        say(&format!("{}\n\n{invitation}", url(&self.roles, &placed)))?;
        Ok(())
    }

    /// Opens the Services to this machine, and writes their URLs.
    pub(super) async fn open(&self, stage: &Stage, dir: &Path) -> Result<Vec<Door>, Error> {
        let mut doors = Vec::new();
        for (service, file, port) in SERVICES {
            let door = Door::open_at(stage, port, Behind::Slice(NAMESPACE, service)).await?;
            replace(&dir.join(file), &format!("{}\n", self.roles.url_at(&door.address().to_string())))?;
            doors.push(door);
        }
        Ok(doors)
    }

    /// Writes where clients find the servers, from now on: a new pod has a new address.
    pub(super) fn publish(&self, stage: &Stage, dir: &Path) -> JoinSet<()> {
        let (instance, roles, dir) = (stage.instance().clone(), self.roles.clone(), dir.to_owned());
        let mut publishing = JoinSet::new();
        publishing.spawn(publish(instance, roles, dir));
        publishing
    }
}

/// Runs until it is dropped.
async fn publish(instance: Arc<Instance>, roles: Arc<Roles>, dir: PathBuf) {
    let mut bell = instance.bell();
    let mut written = Vec::new();
    loop {
        bell.mark_unchanged();
        let placed = instance.look(|store| postgres::servers(store, NAMESPACE));
        if !placed.is_empty() && placed != written {
            match write(&dir, &roles, &placed) {
                Ok(()) => written = placed,
                Err(error) => tracing::error!(dir = %dir.display(), %error, "cannot write where the servers are"),
            }
        }
        if bell.changed().await.is_err() {
            return;
        }
    }
}

fn url(roles: &Roles, placed: &[(String, String)]) -> String {
    roles.url(&placed.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>())
}

/// Writes both files.
fn write(dir: &Path, roles: &Roles, placed: &[(String, String)]) -> io::Result<()> {
    replace(&dir.join(URL), &format!("{}\n", url(roles, placed)))?;
    let lines = placed.iter().map(|(pod, address)| format!("{pod} {}\n", roles.url(&[address])));
    replace(&dir.join(EACH), &lines.collect::<String>())
}

/// Replaces a file that only its owner may read, so that it is there in whole or as before.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_added_extension("new");
    // One that is there may be open to others.
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&draft, path)
}

/// What to type next.
pub(super) fn invitation(dir: &Path, executable: &Path, address: &str) -> String {
    let bin = executable.parent().unwrap_or(executable).display();
    let dir = dir.display();
    let [(_, rw, _), (_, ro, _)] = SERVICES;
    format!(
        "This URL leads to the primary, whichever server it is. {dir}/{URL} has it too, {dir}/{EACH} has one for\n\
         each server. Both follow the addresses, which change with the pods. {dir}/{rw} and {dir}/{ro} have the\n\
         addresses of the Services shop-rw and shop-ro, which stay.\n\n\
         To try it, in another terminal (kubectl 1.31 to 1.33):\n\n  \
         export KUBECONFIG={dir}/kubeconfig KAA_API_SERVER={address} PATH={bin}:$PATH\n  \
         psql \"$(cat {dir}/{URL})\"\n  \
         kaa switchover {DATABASE} --reason try             # another server becomes the primary\n  \
         kubectl delete pod {DATABASE}-0                    # the primary hands over before it ends\n  \
         kaa explain database/{DATABASE}                    # who was the primary, when, and why\n\n\
         Ctrl-C stops everything and leaves nothing running."
    )
}

#[cfg(test)]
mod tests {
    use super::{EACH, URL, write};
    use crate::demo::postgres::Roles;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_files_are_for_their_owner_alone_and_name_each_server() {
        let dir = tempfile::tempdir().unwrap();
        let placed =
            [("shop-0", "127.1.1.2"), ("shop-1", "127.1.1.3")].map(|(pod, at)| (pod.to_owned(), at.to_owned()));
        for _ in 0..2 {
            write(dir.path(), &Roles::new().unwrap(), &placed).unwrap();
        }
        for (name, lines) in [(URL, 1), (EACH, 2)] {
            let path = dir.path().join(name);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), lines);
        }
    }
}
