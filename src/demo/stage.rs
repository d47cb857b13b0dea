//! The Kubernetes in this process: what the demo and the end-to-end tests play on.

mod directory;

pub use directory::Directory;

use super::manifests;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::kubelet::{self, Image, Kubelet};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::server::{self, Injector, Server};
use embedded_kubernetes::store::{Key, Store};
use embedded_kubernetes::tokens::{NoRandomness, Tokens};
use jiff::Timestamp;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a container that ended waits before it restarts for the second time. A real kubelet waits ten seconds, too long
/// for a demo.
const BACKOFF: Duration = Duration::from_secs(1);

/// How long agents and engines may take to end when the stage closes. Nothing outlives it that they could be careful with.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// The name of its one node.
const NODE: &str = "embedded";

/// Why there is no stage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory that no demo made.
    #[error("{} is not empty and was not made by a demo: give another --dir, or empty it", .0.display())]
    NotOurs(PathBuf),
    /// A directory that cannot be used.
    #[error("cannot use {}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No keys for tokens.
    #[error("cannot make the keys that tokens are signed with")]
    Keys(#[from] NoRandomness),
    /// No API server.
    #[error("the Kubernetes in this process does not start")]
    Server(#[from] server::Error),
    /// No node.
    #[error("the node of the Kubernetes in this process does not start")]
    Kubelet(#[from] kubelet::Error),
    /// Our own manifests.
    #[error(transparent)]
    Manifests(#[from] manifests::Error),
    /// Our own kubeconfig.
    #[error("cannot use the kubeconfig in the directory")]
    Kubeconfig(#[from] KubeconfigError),
    /// Our own API server.
    #[error("cannot make a client")]
    Client(#[source] kube::Error),
}

/// How its node runs pods.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a container that ended waits before it restarts for the second time.
    pub backoff: Duration,
    /// The first three numbers of the pods' addresses: `None` if they are in the loopback network of the API server. This
    /// machine must accept connections to all addresses of another network.
    pub pods: Option<[u8; 3]>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { backoff: BACKOFF, pods: None }
    }
}

/// A Kubernetes in this process.
pub struct Stage {
    instance: Arc<Instance>,
    server: Server,
    kubelet: Arc<Kubelet>,
    client: Client,
}

impl Stage {
    /// Starts one, with all of its files in a directory. The image of the manifests is the executable `kaa`.
    pub async fn open(dir: &Path, kaa: &Path) -> Result<Self, Error> {
        Self::open_with(dir, kaa, Settings::default()).await
    }

    /// The same with other settings.
    pub async fn open_with(dir: &Path, kaa: &Path, settings: Settings) -> Result<Self, Error> {
        std::fs::create_dir_all(dir).map_err(|source| Error::Directory { path: dir.to_owned(), source })?;
        let store = Store::new(crate::clock::random_u64(), Timestamp::now());
        let instance = Arc::new(Instance::new(store, Timestamp::now));
        let tokens = Arc::new(Tokens::new()?);
        let server = Server::start(instance.clone(), tokens.clone(), dir).await?;
        let kubelet = Arc::new(Kubelet::start(instance.clone(), tokens, config(dir, kaa, &server, &settings)?)?);
        server.set_runtime(kubelet.clone());
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig())?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config).map_err(Error::Client)?;
        Ok(Self { instance, server, kubelet, client })
    }

    /// Its objects.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// A client with all permissions.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The address that no pod has: the API server uses one port of it, the others are free.
    pub fn host(&self) -> Ipv4Addr {
        let [a, b, c] = self.server.subnet();
        Ipv4Addr::new(a, b, c, 1)
    }

    /// What goes wrong between its API and everybody but its node.
    pub fn injector(&self) -> &Injector {
        self.server.door().injector()
    }

    /// Where its API is served.
    pub fn api_server(&self) -> String {
        self.server.url()
    }

    /// SIGKILL to the first process of a container, as by an operator on the node. Tells whether it ran.
    pub fn kill(&self, namespace: &str, pod: &str, container: &str) -> bool {
        self.kubelet.kill(&Key::new(Kind::Pod, namespace, pod), container)
    }

    /// Stops everything; afterwards no process of it is left.
    pub async fn close(self) {
        self.kubelet.stop().await;
        self.server.stop().await;
    }
}

/// The times of automatic failover: the agents get them from the environment of the demo.
const TIMING: [&str; 3] = ["KAA_PRIMARY_LEASE", "KAA_PRIMARY_SILENCE", "KAA_FAILOVER_PAUSE"];

fn config(dir: &Path, kaa: &Path, server: &Server, settings: &Settings) -> Result<kubelet::Config, Error> {
    // In an image `kaa` is on the path.
    let directory = kaa.parent().map(|directory| directory.display().to_string());
    let path: Vec<String> = directory.into_iter().chain(std::env::var("PATH").ok()).collect();
    let path = path.join(":");
    // All pods share this machine's addresses and have no DNS: each is told which address is its own, and where the names
    // of the others are.
    let env = [
        ("PATH", path.as_str()),
        ("KAA_API_SERVER", "http://$(POD_IP):8888"),
        ("KAA_LISTEN_HTTP", "$(POD_IP):8888"),
        ("KAA_LISTEN_ENGINES", "$(POD_IP):48004"),
        ("KAA_LISTEN_PEERS", "$(POD_IP):48005"),
        ("KAA_HOSTS_FILE", "$(HOSTS_FILE)"),
        // There is no pod network: every client that reaches these addresses is on this machine, as `kubectl exec` is.
        ("KAA_LOOPBACK_MAY_WRITE", "true"),
    ];
    let timing = TIMING.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    let kaa = kaa.display().to_string();
    Ok(kubelet::Config {
        dir: dir.to_owned(),
        subnet: settings.pods.unwrap_or_else(|| server.subnet()),
        node: NODE.to_owned(),
        images: BTreeMap::from([(manifests::image()?, Image { entrypoint: vec![kaa.clone()] })]),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().chain(timing).collect(),
        shim: vec![kaa, "container-shim".to_owned()],
        api_server: server.url(),
        api_ca_pem: server.ca_pem().to_owned(),
        backoff: settings.backoff,
        stop_grace: STOP_GRACE,
    })
}
