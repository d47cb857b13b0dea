//! The task that keeps a pod's task for each pod of the node, the names of all, and no directory of a claim that is gone.

use super::pod::{Pod, Wish};
use super::{Node, hosts, volumes};
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{name, time, uid};
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// Writes the node's own object. It is ready for as long as the process lives: so no heartbeat is needed.
pub(super) fn register(store: &mut Store, node: &str, address: Ipv4Addr) -> Result<(), Failure> {
    let key = Key::new(Kind::Node, "", node);
    if store.find(&key).is_none() {
        let labels =
            json!({"kubernetes.io/hostname": node, "kubernetes.io/os": "linux", "kubernetes.io/arch": ARCHITECTURE});
        store.create(Kind::Node, json!({"metadata": {"name": node, "labels": labels}, "spec": {}}))?;
    }
    let now = time(store.now());
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string();
    let room = json!({"cpu": cpus, "memory": "8Gi", "pods": "253"});
    store.edit(&key, Part::Status, |object| {
        object["status"] = json!({
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": node}],
            "capacity": room, "allocatable": room,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "kubelet is posting ready status", "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "architecture": ARCHITECTURE, "bootID": "", "containerRuntimeVersion": "embedded://1",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "v1.32.0", "machineID": "",
                "operatingSystem": "linux", "osImage": "processes of this machine", "systemUUID": "",
            },
        });
    })?;
    Ok(())
}

/// The machine's architecture, as Go names it.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The pods of the node.
pub(super) struct Pods {
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
    running: BTreeMap<Key, Running>,
    tasks: JoinSet<Key>,
    /// Up to which version the node has seen the store.
    seen: Option<u64>,
    /// Counts the changes of what volumes and environments are made from.
    contents: u64,
    names: hosts::Names,
}

struct Running {
    uid: String,
    wish: watch::Sender<Wish>,
}

/// What there is to react to.
enum Action {
    Changed,
    Ended(Result<Key, JoinError>),
    Stop,
}

/// Which kinds changed since the node last read the store.
#[derive(Clone, Copy, Default)]
struct Changed {
    pods: bool,
    names: bool,
    contents: bool,
    claims: bool,
}

impl Pods {
    /// Begins without any.
    pub fn new(node: Arc<Node>, stopping: watch::Receiver<bool>) -> Self {
        let (running, tasks, names) = (BTreeMap::new(), JoinSet::new(), hosts::Names::default());
        Self { node, stopping, running, tasks, seen: None, contents: 0, names }
    }

    /// Runs until it is told to stop and all pods have ended.
    pub async fn run(mut self) {
        let mut bell = self.node.instance.bell();
        loop {
            self.look();
            let action = tokio::select! {
                rung = bell.changed() => if rung.is_ok() { Action::Changed } else { Action::Stop },
                Some(ended) = self.tasks.join_next() => Action::Ended(ended),
                _ = self.stopping.wait_for(|stopping| *stopping) => Action::Stop,
            };
            match action {
                Action::Changed => {}
                Action::Ended(ended) => self.ended(ended),
                Action::Stop => break,
            }
        }
        for running in self.running.values() {
            running.wish.send_modify(|wish| wish.stopping = true);
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Result<Key, JoinError>) {
        match ended {
            Ok(key) => {
                self.running.remove(&key);
                // Its successor may have waited for this, or for its address.
                self.seen = None;
            }
            Err(error) => tracing::error!(%error, "the task of a pod has ended before its time"),
        }
    }

    /// Compares all with what is wanted, as far as it can have changed.
    fn look(&mut self) {
        let (node, seen) = (self.node.clone(), self.seen);
        // Before the claims are: a directory is made after its claim.
        let volumes = names_in(&node.config.dir.join("volumes"));
        let (version, changed, found) = node.instance.look(|store| {
            let changed = changed_since(store, seen);
            let pods = changed.pods || changed.contents;
            let pods: Option<Vec<Arc<Value>>> = pods.then(|| store.list(Kind::Pod, None).cloned().collect());
            let names = changed.names.then(|| hosts::names(store));
            let claims: Option<BTreeSet<String>> = changed
                .claims
                .then(|| store.list(Kind::PersistentVolumeClaim, None).map(|claim| uid(claim).to_owned()).collect());
            (store.version(), changed, (pods, names, claims))
        });
        self.seen = Some(version);
        self.contents += u64::from(changed.contents || changed.claims);
        let (pods, names, claims) = found;
        if let Some(names) = names {
            self.name(names);
        }
        if let Some(pods) = pods {
            self.compare(&pods);
        }
        if let Some(claims) = claims {
            forget_claims(&node.config.dir, volumes.difference(&claims));
        }
    }

    fn compare(&mut self, pods: &[Arc<Value>]) {
        let of_node = pods.iter().filter(|pod| pod["spec"]["nodeName"] == self.node.config.node.as_str());
        let mut wanted: BTreeMap<Key, Arc<Value>> = of_node.map(|pod| (Key::of(Kind::Pod, pod), pod.clone())).collect();
        for (key, running) in &self.running {
            let object = wanted.remove(key);
            // A pod of the same name and another UID waits until this one has ended.
            let object = object.filter(|object| uid(object) == running.uid);
            let contents = self.contents;
            running.wish.send_if_modified(|wish| {
                let same = match (&wish.object, &object) {
                    (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                    (before, now) => before.is_none() && now.is_none(),
                };
                let changed = !same || wish.contents != contents;
                (wish.object, wish.contents) = (object, contents);
                changed
            });
        }
        for (key, object) in wanted {
            let Some(address) = self.node.addresses().take() else {
                tracing::error!(pod = name(&object), "no address is free: the pod waits until another ends");
                break;
            };
            let wish = Wish { object: Some(object.clone()), contents: self.contents, stopping: false };
            let (sender, wishes) = watch::channel(wish);
            self.running.insert(key, Running { uid: uid(&object).to_owned(), wish: sender });
            self.tasks.spawn(Pod::new(self.node.clone(), object, address, wishes).run());
        }
    }

    /// Writes the files of names where they changed.
    fn name(&mut self, names: hosts::Names) {
        let directory = self.node.config.dir.join("hosts");
        for (namespace, text) in &names.files {
            if self.names.files.get(namespace) != Some(text)
                && let Err(error) = replace(&directory.join(namespace), text)
            {
                tracing::error!(namespace, %error, "cannot write the names of a namespace");
            }
        }
        for gone in self.names.files.keys().filter(|known| !names.files.contains_key(*known)) {
            if let Err(error) = fs::remove_file(directory.join(gone)) {
                tracing::warn!(namespace = gone, %error, "cannot remove the names of a namespace");
            }
        }
        let known = |one: &(Arc<Value>, String)| {
            self.names.refused.iter().any(|(service, why)| uid(service) == uid(&one.0) && *why == one.1)
        };
        for (service, why) in names.refused.iter().filter(|one| !known(one)) {
            self.node.instance.with(|store| {
                events::record(store, service, Type::Warning, "PortsDiffer", why, "kubelet");
            });
        }
        self.names = names;
    }
}

fn changed_since(store: &Store, seen: Option<u64>) -> Changed {
    let all = Changed { pods: true, names: true, contents: true, claims: true };
    let Some(changes) = seen.and_then(|seen| store.changes_since(seen).ok()) else { return all };
    changes.fold(Changed::default(), |mut changed, change| {
        match change.key.kind {
            Kind::Pod => (changed.pods, changed.names) = (true, true),
            Kind::Service | Kind::Namespace => changed.names = true,
            Kind::ConfigMap | Kind::Secret | Kind::ServiceAccount => changed.contents = true,
            Kind::PersistentVolumeClaim => (changed.contents, changed.claims) = (true, true),
            _ => {}
        }
        changed
    })
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().display().to_string()).collect()
}

/// Removes what was in claims that are gone.
fn forget_claims<'a>(directory: &Path, gone: impl Iterator<Item = &'a String>) {
    for uid in gone {
        let gone = volumes::claim_directory(directory, uid);
        if let Err(error) = fs::remove_dir_all(&gone) {
            tracing::warn!(directory = %gone.display(), %error, "cannot remove the volume of a claim that is gone");
        }
    }
}
