//! The node: runs the containers of its pods as processes of this machine.
//!
//! There are no images, namespaces or cgroups. A container is a session of processes with an environment of its own; an
//! image is the name of a command; a volume is a directory, and mount paths are rewritten ([`Config`] tells what is put
//! in). A pod has a loopback address, which its programs have to be told. Security contexts, resources and ports mean
//! nothing.
//!
//! One task compares the pods that are wanted with those that there are whenever the bell rings; each pod has a task of
//! its own (`pod.rs`). What to do next is decided by `lifecycle.rs` and told by `status.rs`, which are pure.

mod access;
mod addresses;
mod environment;
mod exec;
mod hosts;
mod lifecycle;
mod logs;
mod node;
mod paths;
mod pod;
mod probes;
mod process;
mod requests;
mod run;
mod session;
mod shim;
mod start;
mod status;
mod volumes;

pub use shim::shim;

use crate::failure::Failure;
use crate::instance::Instance;
use crate::store::Key;
use crate::tokens::Tokens;
use addresses::Addresses;
use nix::sys::signal::Signal;
use process::Spawner;
use run::Run;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What an image stands for.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// What runs where a container has no `command`. `args` are put behind it.
    pub entrypoint: Vec<String>,
}

/// How the node runs containers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where volumes and logs are.
    pub dir: PathBuf,
    /// The first three numbers of the pods' addresses.
    pub subnet: [u8; 3],
    /// The node's name.
    pub node: String,
    /// The images that there are, by name.
    pub images: BTreeMap<String, Image>,
    /// The environment of every container, which its own goes before. `$(POD_IP)`, `$(POD_NAME)`, `$(POD_NAMESPACE)`,
    /// `$(POD_UID)`, `$(POD_DIR)` and `$(HOSTS_FILE)` are known: so programs learn which address is theirs, and where
    /// the names of their namespace are.
    pub env: Vec<(String, String)>,
    /// The command that calls [`shim`]: it is put before every container's.
    pub shim: Vec<String>,
    /// The API for pods: `https://127.77.0.1:6443`.
    pub api_server: String,
    /// Who signed its certificate.
    pub api_ca_pem: String,
    /// The delay before the second restart; it doubles with each. Kubernetes: 10 s.
    pub backoff: Duration,
    /// How long containers may take to end when the node stops; SIGKILL follows.
    pub stop_grace: Duration,
}

/// The node cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its directory cannot be used.
    #[error("cannot use the directory {}: {source}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no thread to start processes.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The node's own object is refused.
    #[error("cannot register the node: {0}")]
    Node(#[from] Failure),
}

/// The runs of a container that can still be asked for.
#[derive(Debug, Default)]
struct Runs {
    current: Option<Arc<Run>>,
    previous: Option<Arc<Run>>,
}

/// What all tasks share.
#[derive(Debug)]
struct Node {
    instance: Arc<Instance>,
    tokens: Arc<Tokens>,
    config: Config,
    host: Ipv4Addr,
    spawner: Spawner,
    addresses: Mutex<Addresses>,
    /// The containers of each pod.
    pods: Mutex<BTreeMap<Key, BTreeMap<String, Runs>>>,
}

impl Node {
    fn pods_directory(&self) -> PathBuf {
        self.config.dir.join("pods")
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<Key, BTreeMap<String, Runs>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a run be asked for. Of those before it, only the last can still be.
    fn show(&self, pod: &Key, container: &str, run: Arc<Run>) {
        let mut pods = self.pods();
        let runs = pods.entry(pod.clone()).or_default().entry(container.to_owned()).or_default();
        if let Some(old) = std::mem::replace(&mut runs.previous, runs.current.replace(run)) {
            old.log.remove();
        }
    }

    fn forget(&self, pod: &Key, address: Ipv4Addr) {
        self.pods().remove(pod);
        self.addresses().free(address);
    }
}

/// A node that runs.
#[derive(Debug)]
pub struct Kubelet {
    node: Arc<Node>,
    runtime: Handle,
    stopping: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Kubelet {
    /// Starts the node, within a Tokio runtime. What a former one under the same directory left running is ended, and
    /// what its pods left there is removed.
    pub fn start(instance: Arc<Instance>, tokens: Arc<Tokens>, mut config: Config) -> Result<Self, Error> {
        config.dir = prepare(config.dir)?;
        session::end(None, Some(&session::mark(&config.dir, "")));
        let addresses = Addresses::new(config.subnet);
        let host = addresses.host();
        instance.with(|store| node::register(store, &config.node, host))?;
        let spawner = Spawner::start(config.shim.clone()).map_err(Error::Thread)?;
        let (addresses, pods) = (Mutex::new(addresses), Mutex::new(BTreeMap::new()));
        let node = Arc::new(Node { instance, tokens, config, host, spawner, addresses, pods });
        let stopping = watch::Sender::new(false);
        let task = tokio::spawn(node::Pods::new(node.clone(), stopping.subscribe()).run());
        Ok(Self { node, runtime: Handle::current(), stopping, task: Mutex::new(Some(task)) })
    }

    /// SIGKILL to the first process of a container, as by an operator on the node. Tells whether it ran.
    pub fn kill(&self, pod: &Key, container: &str) -> bool {
        let run = self.node.pods().get(pod).and_then(|runs| runs.get(container)?.current.clone());
        let first = run.and_then(|run| session::leader(&session::mark(&self.node.config.dir, &run.id)));
        first.inspect(|pid| session::signal(*pid, Signal::SIGKILL)).is_some()
    }

    /// Ends all containers, with SIGTERM and, after the grace that the node has, SIGKILL, and waits until they are gone. The pods'
    /// objects are left as they are.
    pub async fn stop(&self) {
        self.stopping.send_replace(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = match task {
            Some(task) => Some(task.await),
            None => None,
        } {
            tracing::error!(%error, "the node ended before it was told to");
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The tasks of the pods end with it, and each takes its processes with it.
        task.inspect(JoinHandle::abort);
    }
}

/// Makes the directory; gives its whole path, which names it in the marks of processes.
fn prepare(path: PathBuf) -> Result<PathBuf, Error> {
    let failed = |source| Error::Directory { path: path.clone(), source };
    let fresh = path.join("pods");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(failed)?;
    }
    for directory in ["pods", "volumes", "hosts"] {
        fs::create_dir_all(path.join(directory)).map_err(failed)?;
    }
    path.canonicalize().map_err(failed)
}
