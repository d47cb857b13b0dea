//! The volumes of a pod, as directories.
//!
//! A claim's directory is named for its UID, so that a claim that is recreated is empty. What comes from other objects
//! follows them, and tokens are renewed when a fifth of their life is left. Sizes, access modes, owners and read-only
//! flags mean nothing here.

use super::environment::{self, Place};
use super::paths::Mounts;
use super::{Config, access};
use crate::object::{is_deleting, list, name, namespace, number, text, uid};
use crate::resource::Kind;
use crate::store::{Key, Store};
use crate::tokens::{Bound, Tokens};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

/// The mode of files where nothing is said.
const MODE: u32 = 0o644;
/// The audience of a token where nothing is said: the API.
const AUDIENCE: &str = crate::tokens::ISSUER;

/// A volume cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// What it is to hold is not there or not understood.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
    Source { volume: String, why: String },
    /// The disk refuses.
    #[error("MountVolume.SetUp failed for volume {volume:?} : cannot write {}: {source}", path.display())]
    Write { volume: String, path: PathBuf, source: io::Error },
    /// A container mounts what is no volume of the pod.
    #[error("container mounts {volume:?}, which is no volume of its pod")]
    Unknown { volume: String },
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub path: String,
    pub mode: u32,
    pub content: Vec<u8>,
}

/// What a volume is.
#[derive(Debug)]
pub(super) struct Volume {
    pub name: String,
    pub directory: PathBuf,
    /// `None`: whatever the containers put there.
    pub files: Option<Vec<File>>,
}

/// A token that was issued.
#[derive(Debug)]
struct Issued {
    text: String,
    renew_at: Timestamp,
}

/// The volumes of one pod.
#[derive(Debug)]
pub(super) struct Volumes {
    directory: PathBuf,
    issued: BTreeMap<(String, String), Issued>,
}

/// What the volumes of a pod are made from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub store: &'a Store,
    pub tokens: &'a Tokens,
    pub config: &'a Config,
    pub pod: &'a Value,
    pub place: &'a Place,
}

impl Volumes {
    /// Those of a pod whose directory this is.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.join("volumes"), issued: BTreeMap::new() }
    }

    /// When a token has to be renewed.
    pub fn due(&self) -> Option<Timestamp> {
        self.issued.values().map(|issued| issued.renew_at).min()
    }

    /// Looks up what the volumes are now. It only reads, so that the store is not held while files are written.
    pub fn gather(&mut self, from: Sources<'_>) -> Result<Vec<Volume>, Error> {
        let own = access::volume(from.store, from.pod);
        let declared = list(from.pod, "/spec/volumes").iter().chain(own.as_ref());
        let mut volumes = Vec::new();
        for volume in declared {
            let found = self.source(from, volume);
            let (directory, files) = found.map_err(|why| Error::Source { volume: name_of(volume).to_owned(), why })?;
            volumes.push(Volume { name: name_of(volume).to_owned(), directory, files });
        }
        Ok(volumes)
    }

    fn source(&mut self, from: Sources<'_>, volume: &Value) -> Result<(PathBuf, Option<Vec<File>>), String> {
        let own = self.directory.join(name_of(volume));
        if volume.get("emptyDir").is_some() {
            return Ok((own, None));
        }
        if let Some(claim) = volume.get("persistentVolumeClaim") {
            let named = text(claim, "/claimName");
            let key = Key::new(Kind::PersistentVolumeClaim, namespace(from.pod), named);
            let claim = from.store.find(&key).ok_or_else(|| format!("persistentvolumeclaim {named:?} not found"))?;
            return Ok((claim_directory(&from.config.dir, uid(claim)), None));
        }
        if volume.pointer("/projected/sources").is_some() {
            let mode = mode(&volume["projected"], "/defaultMode", MODE);
            let mut files = Vec::new();
            for source in list(volume, "/projected/sources") {
                files.extend(self.files(from, name_of(volume), source, mode)?);
            }
            return Ok((own, Some(files)));
        }
        let kinds = ["configMap", "secret", "downwardAPI"];
        let Some(kind) = kinds.iter().find(|kind| volume.get(**kind).is_some()) else {
            return Err(format!("only emptyDir, claims, projected and {kinds:?} are known here"));
        };
        let mode = mode(&volume[*kind], "/defaultMode", MODE);
        Ok((own, Some(self.files(from, name_of(volume), volume, mode)?)))
    }

    /// The files of one source, which is what stands in a projected volume or a volume itself.
    fn files(&mut self, from: Sources<'_>, volume: &str, source: &Value, mode: u32) -> Result<Vec<File>, String> {
        if let Some(token) = source.get("serviceAccountToken") {
            let content = self.token(from, volume, token)?.into_bytes();
            return Ok(vec![File { path: text(token, "/path").to_owned(), mode, content }]);
        }
        if let Some(downward) = source.get("downwardAPI") {
            return list(downward, "/items").iter().map(|item| downward_file(from, item, mode)).collect();
        }
        if source.get("kubeconfig").is_some() {
            return Ok(access::files(from.config, namespace(from.pod), &self.directory.join(volume)));
        }
        let (kind, reference) = match (source.get("configMap"), source.get("secret")) {
            (Some(reference), _) => (Kind::ConfigMap, reference),
            (None, Some(reference)) => (Kind::Secret, reference),
            (None, None) => return Err(format!("this source is not known here: {source}")),
        };
        let data = environment::data(from.store, kind, namespace(from.pod), reference)?;
        let data = data.unwrap_or_default();
        if reference.get("items").is_none() {
            return Ok(data.into_iter().map(|(path, content)| File { path, mode, content }).collect());
        }
        let mut files = Vec::new();
        for item in list(reference, "/items") {
            let key = text(item, "/key");
            match data.get(key) {
                Some(content) => files.push(File {
                    path: text(item, "/path").to_owned(),
                    mode: self::mode(item, "/mode", mode),
                    content: content.clone(),
                }),
                None if reference["optional"] == true => {}
                None => {
                    return Err(format!("{} references non-existent config key: {key}", kind.resource().singular()));
                }
            }
        }
        Ok(files)
    }

    fn token(&mut self, from: Sources<'_>, volume: &str, source: &Value) -> Result<String, String> {
        let key = (volume.to_owned(), text(source, "/path").to_owned());
        let now = from.store.now();
        if let Some(issued) = self.issued.get(&key).filter(|issued| now < issued.renew_at) {
            return Ok(issued.text.clone());
        }
        let account = access::service_account(from.pod);
        let known = from.store.find(&Key::new(Kind::ServiceAccount, namespace(from.pod), account));
        let known = known.filter(|known| !is_deleting(known));
        let known = known.ok_or_else(|| format!("failed to fetch token: serviceaccounts {account:?} not found"))?;
        let seconds = number(source, "/expirationSeconds").unwrap_or(3600);
        let audience = match text(source, "/audience") {
            "" => AUDIENCE,
            audience => audience,
        };
        let bound = Bound {
            namespace: namespace(from.pod).to_owned(),
            service_account: account.to_owned(),
            service_account_uid: uid(known).to_owned(),
            pod: Some((name(from.pod).to_owned(), uid(from.pod).to_owned())),
            node: Some(from.config.node.clone()),
        };
        let text = from.tokens.issue(&bound, &[audience.to_owned()], seconds, now);
        let renew_at = now.checked_add(SignedDuration::from_secs(seconds) * 4 / 5).unwrap_or(Timestamp::MAX);
        self.issued.insert(key, Issued { text: text.clone(), renew_at });
        Ok(text)
    }
}

fn downward_file(from: Sources<'_>, item: &Value, mode: u32) -> Result<File, String> {
    let content = match item.get("resourceFieldRef") {
        Some(reference) => environment::resource(from.pod, &Value::Null, reference)?,
        None => environment::field(from.pod, from.place, text(item, "/fieldRef/fieldPath"))?,
    };
    let (path, mode) = (text(item, "/path").to_owned(), self::mode(item, "/mode", mode));
    Ok(File { path, mode, content: content.into_bytes() })
}

/// Where the directory of a claim is.
pub(super) fn claim_directory(directory: &Path, uid: &str) -> PathBuf {
    directory.join("volumes").join(uid)
}

fn name_of(volume: &Value) -> &str {
    text(volume, "/name")
}

fn mode(of: &Value, pointer: &str, otherwise: u32) -> u32 {
    number(of, pointer).and_then(|mode| u32::try_from(mode).ok()).unwrap_or(otherwise)
}

/// Makes the volumes what they are to be. What is right already is not touched.
pub(super) fn put(volumes: &[Volume]) -> Result<(), Error> {
    for Volume { name, directory, files } in volumes {
        let failed = |path: &Path| {
            let (volume, path) = (name.clone(), path.to_owned());
            move |source| Error::Write { volume, path, source }
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let Some(files) = files else { continue };
        for file in files {
            let path = directory.join(&file.path);
            let inside = Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_)));
            if !inside || file.path.is_empty() {
                let why = format!("{:?} leads out of it", file.path);
                return Err(Error::Source { volume: name.clone(), why });
            }
            write(&path, file).map_err(failed(&path))?;
        }
        let wanted: BTreeSet<_> = files.iter().filter_map(|file| Path::new(&file.path).components().next()).collect();
        let stale = |entry: &fs::DirEntry| !wanted.contains(&Component::Normal(&entry.file_name()));
        for entry in fs::read_dir(directory).map_err(failed(directory))?.flatten().filter(stale) {
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Writes a file whole or not at all, so that no program reads half of it.
fn write(path: &Path, file: &File) -> io::Result<()> {
    if fs::read(path).is_ok_and(|content| content == file.content) {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent)?;
    let draft = parent.join(format!(".{}.draft", path.file_name().unwrap_or_default().display()));
    if draft.exists() {
        fs::remove_file(&draft)?;
    }
    let mut draft_file = fs::OpenOptions::new().write(true).create_new(true).mode(file.mode).open(&draft)?;
    io::Write::write_all(&mut draft_file, &file.content)?;
    fs::rename(&draft, path)
}

/// Where the volumes of a container are.
pub(super) fn mounts(volumes: &[Volume], container: &Value) -> Result<Mounts, Error> {
    let mut pairs = Vec::new();
    for mount in list(container, "/volumeMounts") {
        let volume = text(mount, "/name");
        let found = volumes.iter().find(|known| known.name == volume);
        let found = found.ok_or_else(|| Error::Unknown { volume: volume.to_owned() })?;
        let directory = match text(mount, "/subPath") {
            "" => found.directory.clone(),
            path => found.directory.join(path),
        };
        if found.files.is_none() && !directory.exists() {
            let failed = |source| Error::Write { volume: volume.to_owned(), path: directory.clone(), source };
            fs::create_dir_all(&directory).map_err(failed)?;
        }
        pairs.push((text(mount, "/mountPath").to_owned(), directory));
    }
    if let Some(access) = volumes.iter().find(|volume| volume.name == access::VOLUME) {
        pairs.push((access::MOUNT.to_owned(), access.directory.clone()));
    }
    Ok(Mounts::new(pairs))
}
