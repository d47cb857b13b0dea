//! What a container is started with: its command, environment, directories, or the reason why it cannot be started.

use super::environment::{self, Place};
use super::process::Launch;
use super::volumes::{self, Volume};
use super::{Config, access, session};
use crate::object::{list, name, namespace, text, uid};
use crate::store::Store;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The search path for programs if this machine sets none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A container cannot be started now.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The image is not one of those that are known.
    #[error("image {image:?} is not known here: known are {known:?}")]
    Image { image: String, known: Vec<String> },
    /// Its environment refers to what is not there.
    #[error("{0}")]
    Environment(String),
    /// Its volumes are not those of its pod.
    #[error(transparent)]
    Volumes(#[from] volumes::Error),
}

/// A pod on this machine.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub config: &'a Config,
    pub object: &'a Value,
    pub place: &'a Place,
    pub directory: &'a Path,
    pub volumes: &'a [Volume],
}

impl Pod<'_> {
    /// Prepares the start of a container; gives its command as well.
    pub fn prepare(&self, store: &Store, container: &Value, id: &str) -> Result<(Launch, Vec<String>), Error> {
        let image = text(container, "/image");
        let known = &self.config.images;
        let entry = known
            .get(image)
            .ok_or_else(|| Error::Image { image: image.to_owned(), known: known.keys().cloned().collect() })?;
        let mounts = volumes::mounts(self.volumes, container)?;
        let home = self.directory.join("containers").join(text(container, "/name"));
        let base = self.base(&home);
        let mut variables = base.clone();
        environment::add(&mut variables, store, self.object, self.place, container).map_err(Error::Environment)?;
        for (name, value) in &mut variables {
            if base.get(name) != Some(value) {
                *value = mounts.rewrite(value);
            }
        }
        let directory = match text(container, "/workingDir") {
            "" => home,
            directory => mounts.rewrite(directory).into(),
        };
        let mark = session::mark(&self.config.dir, id);
        let launch = Launch { environment: variables, directory, mounts, mark };
        let words = |field: &str| launch.words(list(container, field).iter().filter_map(Value::as_str));
        let command = words("/command");
        let mut command = if command.is_empty() { entry.entrypoint.clone() } else { command };
        command.extend(words("/args"));
        let command = command.iter().map(|word| environment::expand(word, &launch.environment)).collect();
        Ok((launch, command))
    }

    /// What every container has, as if its image said so.
    fn base(&self, home: &Path) -> BTreeMap<String, String> {
        let here = &self.config.dir;
        let hosts = here.join("hosts").join(namespace(self.object));
        let known = BTreeMap::from([
            ("POD_IP".to_owned(), self.place.address.clone()),
            ("POD_NAME".to_owned(), name(self.object).to_owned()),
            ("POD_NAMESPACE".to_owned(), namespace(self.object).to_owned()),
            ("POD_UID".to_owned(), uid(self.object).to_owned()),
            ("POD_DIR".to_owned(), self.directory.display().to_string()),
            ("HOSTS_FILE".to_owned(), hosts.display().to_string()),
        ]);
        let hostname = match text(self.object, "/spec/hostname") {
            "" => name(self.object),
            hostname => hostname,
        };
        let mut base = BTreeMap::from([
            ("PATH".to_owned(), std::env::var("PATH").unwrap_or_else(|_| PATH.to_owned())),
            ("HOME".to_owned(), home.display().to_string()),
            ("HOSTNAME".to_owned(), hostname.to_owned()),
        ]);
        if let Some(access) = self.volumes.iter().find(|volume| volume.name == access::VOLUME) {
            base.insert("KUBECONFIG".to_owned(), access.directory.join("kubeconfig").display().to_string());
        }
        base.extend(self.config.env.iter().map(|(name, value)| (name.clone(), environment::expand(value, &known))));
        base
    }
}
