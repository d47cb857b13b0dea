//! One real agent, alone in its own runtime, whose clock moves when the host is stepped. A host can be killed (the
//! runtime is dropped with everything in it), paused (it is not stepped, and then its clock jumps), and started again.
//! The kubelet decides in which pod it runs, and on the volume of which claim (`admins`).

use crate::sim::disk::{Disk, Unsynced};
use crate::sim::kubernetes::Kubernetes;
use crate::sim::network::{Network, serve};
use crate::sim::trace::Trace;
use kaa::agent::{self, Door, Guards, Shared, Storage, Surroundings};
use kaa::certificates;
use kaa::config::{AgentArgs, Config, Deletion};
use kaa::net::Tls;
use kaa::raft::backend::Engine;
use kaa::raft::{self, Volume};
use kaa_core::observed::objects::ANNOTATION_PREFIX;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::Instant;

/// The room that an agent needs, in bytes: there is always more, or none.
const MIN_FREE: u64 = 1 << 20;

/// Not used for a connection: the simulated network has no sockets to secure.
static TLS: LazyLock<Tls> = LazyLock::new(|| {
    let made = certificates::make(&["kaa-admin".to_owned()], 1).expect("certificates");
    Tls::from_pem(made.ca_certificate, made.certificate, made.key).expect("they fit")
});

/// What an agent needs of the world.
#[derive(Clone)]
pub struct Ground {
    pub network: Network,
    pub kubernetes: Kubernetes,
    pub trace: Trace,
}

/// One admin server.
pub struct Host {
    pub name: String,
    ordinal: usize,
    dir: PathBuf,
    disk: Disk,
    /// The files other than the log, and the free space.
    pub room: Unsynced,
    /// The UID of its pod; empty before the first.
    pub pod_uid: String,
    /// The claim of its volume; empty before the first.
    claim_uid: String,
    /// Whether its container restarts only by an action of the schedule, and not by the kubelet.
    pub held: bool,
    seed: u64,
    starts: u64,
    /// The retired logs on volumes that are gone.
    retired_before: usize,
    running: Option<Running>,
}

struct Running {
    /// Where the agent's first task runs; must be dropped before the runtime.
    local: LocalSet,
    runtime: Runtime,
    begin: Instant,
    elapsed: Duration,
    /// How long the agent has been paused.
    paused: Option<Duration>,
    door: Arc<Mutex<Option<Arc<Door>>>>,
    stopper: watch::Sender<bool>,
    /// Turns true when the agent has ended by itself.
    ended: Arc<AtomicBool>,
    network: Network,
}

/// How long a tick of virtual time may take in real time.
const TICK_TAKES_AT_MOST: Duration = Duration::from_secs(60);

/// When the current tick began, and the channel on which it learns that it takes too long.
type Watched = Arc<Mutex<Option<(std::time::Instant, oneshot::Sender<()>)>>>;

thread_local! {
    static WATCHED: Watched = {
        let watched = Watched::default();
        let weak = Arc::downgrade(&watched);
        std::thread::spawn(move || {
            while let Some(watched) = weak.upgrade() {
                let mut watched = watched.lock().unwrap();
                if let Some((_, slow)) = watched.take_if(|(since, _)| since.elapsed() > TICK_TAKES_AT_MOST) {
                    // The tick may have ended this moment.
                    let _ = slow.send(());
                }
                drop(watched);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        watched
    };
}

/// Completes when a tick takes too long: virtual time advances only while every task waits.
async fn stands_still() {
    let (sender, slow) = oneshot::channel();
    WATCHED.with(|watched| *watched.lock().unwrap() = Some((std::time::Instant::now(), sender)));
    if slow.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A runtime with controlled time and random numbers.
pub fn runtime(seed: &str) -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(seed.as_bytes()));
    builder.enable_time().start_paused(true).build().expect("a runtime without sockets")
}

impl Host {
    pub fn new(ordinal: usize, dir: PathBuf, seed: u64) -> Self {
        Self {
            name: format!("kaa-admin-{ordinal}"),
            ordinal,
            dir,
            disk: Disk::default(),
            room: Unsynced::default(),
            pod_uid: String::new(),
            claim_uid: String::new(),
            held: false,
            seed,
            starts: 0,
            retired_before: 0,
            running: None,
        }
    }

    fn config(&self) -> Config {
        let any = "127.0.0.1:0".parse().expect("an address");
        let args = AgentArgs {
            server: self.name.clone(),
            pod_uid: self.pod_uid.clone(),
            domain: "kaa".to_owned(),
            cluster: "default".to_owned(),
            entrypoint_cluster: None,
            entrypoint: Vec::new(),
            namespace: Some("default".to_owned()),
            service: None,
            address_suffix: None,
            data_dir: self.dir.clone(),
            store: Engine::Redb,
            min_free: MIN_FREE,
            tls_dir: self.dir.clone(),
            listen_peers: "127.0.0.1:48005".parse().expect("an address"),
            listen_engines: any,
            listen_http: any,
            hosts_file: None,
            credentials_file: None,
            pod_token_file: None,
            loopback_may_write: false,
            purge_delay: Duration::ZERO,
            database_deletion: Deletion::Auto,
            annotation_prefix: ANNOTATION_PREFIX.to_owned(),
            token_audience: None,
            primary_lease: Duration::from_millis(2_500),
            primary_silence: Duration::from_millis(1_500),
            failover_pause: Duration::from_secs(60),
        };
        Config::new(args).expect("a name with an ordinal")
    }

    /// Starts the agent, unless it runs.
    pub fn start(&mut self, ground: &Ground) {
        if self.running.is_some() {
            return;
        }
        self.starts += 1;
        let runtime = runtime(&format!("{} {} {}", self.seed, self.name, self.starts));
        let door = Arc::new(Mutex::new(None));
        let (stopper, stop) = watch::channel(false);
        let disk = (self.disk.clone(), self.room.clone());
        let life = live(self.config(), ground.clone(), disk, door.clone(), stop, self.ordinal);
        let (trace, name) = (ground.trace.clone(), self.name.clone());
        let local = LocalSet::new();
        let ended = Arc::new(AtomicBool::new(false));
        let (end, network) = (ended.clone(), ground.network.clone());
        let begin = local.block_on(&runtime, async move {
            tokio::task::spawn_local(async move {
                if let Err(error) = life.await {
                    trace.wrong(&format!("agent {name} ended by itself: {error:#}"));
                }
                end.store(true, Ordering::Relaxed);
            });
            Instant::now()
        });
        self.running = Some(Running {
            local,
            runtime,
            begin,
            elapsed: Duration::ZERO,
            paused: None,
            door,
            stopper,
            ended,
            network,
        });
    }

    /// Advances the agent's clock by `tick`, and runs everything that is due.
    pub fn step(&mut self, tick: Duration) {
        let Some(running) = &mut self.running else { return };
        match &mut running.paused {
            Some(paused) => *paused += tick,
            None => {
                running.elapsed += tick;
                let until = running.begin + running.elapsed;
                let (name, seed) = (&self.name, self.seed);
                running.local.block_on(&running.runtime, async move {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(until) => {}
                        () = stands_still() => panic!("{name}: its time stands still, something goes round without waiting: KAA_SIM_SEED={seed}"),
                    }
                });
            }
        }
        if running.ended.load(Ordering::Relaxed) {
            self.kill();
        }
    }

    /// Tells the agent to end, but only once: an agent that ends watches this signal all the time.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.as_ref().filter(|running| !*running.stopper.borrow()) {
            running.stopper.send_replace(true);
        }
    }

    /// Kills the agent.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.network.break_off(&self.name);
        }
    }

    /// Moves the agent into another pod. The volume of another claim is empty.
    pub fn settle(&mut self, pod_uid: &str, claim_uid: &str) {
        self.pod_uid = pod_uid.to_owned();
        self.held = false;
        if self.claim_uid == claim_uid {
            return;
        }
        if !self.claim_uid.is_empty() {
            self.retired_before = self.retired();
            self.disk = Disk::default();
            self.room = Unsynced::default();
            std::fs::remove_dir_all(&self.dir).expect("its directory is there");
        }
        self.claim_uid = claim_uid.to_owned();
    }

    /// How many logs were retired here so far.
    pub fn retired(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return self.retired_before };
        let retired = |name: std::ffi::OsString| name.to_string_lossy().starts_with("retired-");
        self.retired_before + entries.filter(|entry| retired(entry.as_ref().expect("an entry").file_name())).count()
    }

    /// Whether the agent's process exists: it may be paused or ending.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the agent was told to end.
    pub fn is_stopping(&self) -> bool {
        self.running.as_ref().is_some_and(|running| *running.stopper.borrow())
    }

    pub fn pause(&mut self) {
        if let Some(running) = &mut self.running {
            running.paused.get_or_insert(Duration::ZERO);
        }
    }

    pub fn resume(&mut self) {
        let Some(running) = &mut self.running else { return };
        if let Some(paused) = running.paused.take() {
            running.elapsed += paused;
            running.local.block_on(&running.runtime, async move { tokio::time::advance(paused).await });
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.paused.is_none() && !*running.stopper.borrow())
    }

    /// Reads the agent's state, once its Raft runs, by its own clock: outside its runtime the machine's clock would
    /// count.
    pub fn look<T>(&self, look: impl FnOnce(&Shared) -> T) -> Option<T> {
        let _entered = self.running.as_ref()?.runtime.enter();
        self.shared().map(|shared| look(&shared))
    }

    /// The shared state of the agent, once its Raft runs.
    fn shared(&self) -> Option<Arc<Shared>> {
        self.running.as_ref()?.door.lock().unwrap().as_ref()?.running()
    }

    /// Runs something in the agent's runtime, if its Raft runs.
    pub fn spawn<F>(&self, work: impl FnOnce(Arc<Shared>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let (Some(running), Some(shared)) = (&self.running, self.shared()) {
            running.runtime.spawn(work(shared));
        }
    }
}

/// The agent from its start to its end.
async fn live(
    config: Config,
    ground: Ground,
    (disk, room): (Disk, Unsynced),
    slot: Arc<Mutex<Option<Arc<Door>>>>,
    stop: watch::Receiver<bool>,
    ordinal: usize,
) -> anyhow::Result<()> {
    let Ground { network, kubernetes, .. } = ground;
    let server = config.server.to_string();
    let kubernetes = kaa::kubernetes::Kubernetes::new(kubernetes.client(&server), "default");
    let dir = config.data_dir.clone();
    let storage: Storage = Box::new(move || {
        Volume::open_with(Arc::new(room.clone()), &dir, disk.opener(Duration::from_millis(1 + ordinal as u64)))
    });
    let address = config.peer_address("default", config.ordinal);
    let host = raft::Host::new(config.server.clone(), address.clone(), config.cluster.clone(), "0.0.0".to_owned());
    host.set_local_log(storage()?.local_log());
    tokio::spawn(serve(raft::Service::serve(host.clone(), raft::Admission::Anybody), network.listen(&address)));
    let links = raft::Peers::dialled(network.dial(&server));
    let door = Arc::new(Door::new(&config, TLS.clone(), kubernetes.permissions.clone()));
    let guards = Guards::new(TLS.clone());
    tokio::spawn(serve(agent::engine_service(door.clone()), network.listen(&format!("{server}:48004"))));
    *slot.lock().unwrap() = Some(door.clone());
    agent::live(Surroundings { config, kubernetes, storage, host, links, guards, door, stop }).await
}
