//! The composition root of one admin pod's agent: what runs, in which order it starts, and how it ends.
//!
//! The agent serves probes and agent-to-agent status from the first moment, so that an operator can see what it waits for.
//! Raft starts once the volume has passed the gate; engines and the resync follow. When the membership epoch moves on,
//! everything that rests on Raft stops and starts again within the same process: the ports stay open.

mod announce;
mod certificates;
mod connected;
mod face;
mod guards;
mod identity;
mod membership;
mod others;
mod peers;
mod ports;
pub mod resync;
mod roles;
mod routing;
pub mod sessions;

use crate::auth::TokenVerifier;
use crate::config::{ALONE, Config, IDENTIFY_TIMEOUT, SHUTDOWN, VOUCH_WHILE_IT_HANGS, VOUCH_WITHOUT_QUORUM};
use crate::kubernetes::lease::{self, Candidacy, Leadership};
use crate::kubernetes::watch::Watching;
use crate::kubernetes::{self, Kubernetes, watch as watches};
use crate::net::Tls;
use crate::net::refusals::Port;
use crate::raft::{self, Handle, Host, Volume, recovering};
use announce::Begun;
use anyhow::Context;
use connected::Connected;
pub use face::Door;
pub use guards::Guards;
use kaa_core::domain::ids::ServerId;
use kaa_core::observed::Observed;
use kaa_core::resync::Policy;
use kaa_core::resync::leadership::Settings;
use membership::Pass;
use peers::Peers;
pub use ports::engine_service;
use resync::LastPass;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tracing::{error, info, warn};

/// What the agent's loops share once Raft runs.
pub struct Shared {
    /// What the agent was told.
    pub config: Config,
    policy: Policy,
    kubernetes: Kubernetes,
    /// The replicated domain.
    pub raft: Handle,
    /// The channels to the other agents.
    pub links: raft::Peers,
    host: Host,
    observed: watches::Shared,
    watching: Watching,
    slices: routing::Slices,
    /// This agent's candidacy for the lead of the resync.
    pub candidacy: Candidacy,
    /// What is known of the other agents.
    pub peers: Peers,
    connected: Connected,
    tokens: TokenVerifier,
    guards: Guards,
    /// What the last pass of the resync did and waits for.
    pub last_pass: Mutex<Option<LastPass>>,
    /// Why this server is no member yet.
    waits: Mutex<Option<String>>,
    /// Why there is no leader, and what would help.
    stranded: Mutex<Option<String>>,
    /// What is wrong with the anchor. This agent keeps running in spite of it.
    anchor_alarm: Mutex<Option<String>>,
    /// Why a server keeps its vote that the watches show as unwanted.
    eviction_held: Mutex<Option<String>>,
    /// What the anchor says of several clusters, as far as this agent has written it.
    anchor_shared: membership::several::Marked,
    without_quorum: Mutex<Option<Instant>>,
    begun: Begun,
    over: watch::Sender<Option<Over>>,
    /// When Raft started.
    began: Instant,
    /// When this server began to wait until it is voted out.
    leaving: Mutex<Option<Instant>>,
    stop: watch::Receiver<bool>,
}

/// Why all that rests on a Raft ends, though the agent does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A later epoch was founded.
    Newer,
    /// The log is to be sealed for an override.
    Seal,
}

/// Whether Raft is about to start for the first time in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// It is.
    Begins,
    /// It ran before.
    GoesOn,
}

impl Shared {
    /// Returns when the agent is to end.
    pub async fn stopping(&self) {
        let mut stop = self.stop.clone();
        // An error means that the sender was dropped: nothing can stop this agent any more, so it stops now.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    fn own_address(&self) -> String {
        self.config.peer_address(self.kubernetes.namespace(), self.config.ordinal)
    }

    /// Who leads the resync, if it is another one.
    pub fn other_resync_leader(&self) -> Option<ServerId> {
        let leader = leader_of(&self.candidacy.leadership.borrow(), &self.config.server);
        leader.filter(|leader| *leader != self.config.server)
    }

    fn set_waits(&self, why: Option<String>) {
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn set_stranded(&self, why: Option<String>) {
        note(&self.stranded, why, "there is no leader");
    }

    fn set_anchor_alarm(&self, why: Option<String>) {
        note(&self.anchor_alarm, why, "the anchor");
    }

    fn set_over(&self, over: Over) {
        self.over.send_replace(Some(over));
    }

    /// Waits until all that rests on this Raft is over.
    async fn over(&self) -> Over {
        let mut over = self.over.subscribe();
        match over.wait_for(Option::is_some).await.map(|over| *over) {
            Ok(Some(over)) => over,
            // The sender lives in `self`.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits, after a founding, until what was committed is on more disks than the founder's: until another wanted server
    /// votes, or for `ALONE` at most. Later it is a finding that one server votes alone, and no reason to wait.
    async fn on_a_second_disk(&self) {
        let alone = || {
            let several = self.admin_ordinals().is_none_or(|wanted| wanted.len() > 1);
            several && self.raft.status().voters.len() == 1
        };
        while self.began.elapsed() < ALONE && alone() {
            tokio::time::sleep(ALONE_LOOK).await;
        }
    }

    /// How long there has been no quorum; `None` if there is one.
    fn without_quorum_for(&self) -> Option<Duration> {
        let since = self.without_quorum.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| since.elapsed())
    }

    /// Notes whether there is a quorum; to be called every second.
    fn note_quorum(&self) {
        let mut since = self.without_quorum.lock().unwrap_or_else(PoisonError::into_inner);
        *since = if self.raft.status().quorum { None } else { Some(since.unwrap_or_else(Instant::now)) };
    }

    /// Whether no quorum was heard of for so long that this agent cannot say of any engine that it is in the domain.
    fn cannot_vouch(&self) -> bool {
        let limit = if self.raft.hangs().is_some() { VOUCH_WHILE_IT_HANGS } else { VOUCH_WITHOUT_QUORUM };
        let lacks_quorum = self.without_quorum_for().is_some_and(|lacking| lacking > limit);
        lacks_quorum || self.raft.no_room().is_some()
    }
}

/// Keeps why something is amiss, and logs it when that changes.
fn note(kept: &Mutex<Option<String>>, why: Option<String>, what: &str) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = why.as_ref().filter(|why| kept.as_ref() != Some(*why)) {
        warn!("{what}: {why}");
    }
    *kept = why;
}

/// Runs the agent until SIGTERM or SIGINT, or until Raft ends.
pub async fn run(config: Config) -> anyhow::Result<()> {
    info!("kaa {} as server {} of domain {}", crate::VERSION, config.server, config.domain);
    let (stopper, stop) = watch::channel(false);
    let ended = tokio::spawn(wait_for_signal(stopper));
    let guards = Guards::new(Tls::load(&config.tls_dir)?);
    let connected = kubernetes::connect(config.namespace.clone(), guards.metrics.clone()).await;
    let kubernetes =
        connected.context("cannot connect to Kubernetes")?.with_annotation_prefix(config.annotation_prefix.clone());
    let storage = storage(&config);
    let address = config.peer_address(kubernetes.namespace(), config.ordinal);
    let host = Host::new(config.server.clone(), address, config.cluster.clone(), crate::VERSION.to_owned());
    // Before anything listens: whatever is wrong with the volume ends the process with a sentence.
    host.set_local_log(storage()?.local_log());
    let door = Arc::new(Door::new(&config, guards.tls.clone(), kubernetes.permissions.clone()));
    guards.watch(&config, &kubernetes);
    let mut servers = JoinSet::new();
    let face = guards.face(&config, door.clone()).await?;
    ports::serve_http(&mut servers, &config, face, guards.entrance(Port::Http), stop.clone()).await?;
    ports::serve_peers(&mut servers, &config, &host, &guards).await?;
    ports::serve_engines(&mut servers, &config, &door, &guards).await?;
    let links = raft::Peers::new(Some(guards.tls.clone()));
    let living = live(Surroundings { config, kubernetes, storage, host, links, guards, door, stop });
    tokio::select! {
        lived = living => lived?,
        Some(failed) = servers.join_next() => anyhow::bail!("a listener stopped: {failed:?}"),
    }
    // Every open request has its answer by now; the ports close with the process.
    drop(ended);
    Ok(())
}

/// Opens the volume; more than once, since a Raft that ends lets go of it.
pub type Storage = Box<dyn Fn() -> Result<Volume, raft::volume::Error> + Send + Sync>;

/// What an agent lives on. A simulation brings its own.
pub struct Surroundings {
    /// What the agent is told.
    pub config: Config,
    /// The API server.
    pub kubernetes: Kubernetes,
    /// Its volume.
    pub storage: Storage,
    /// What it is to others, also before its Raft runs.
    pub host: Host,
    /// The ways to the other agents.
    pub links: raft::Peers,
    /// Who is let in, and what is counted.
    pub guards: Guards,
    /// What the REST API is fed from.
    pub door: Arc<Door>,
    /// Turns true when the agent is to end.
    pub stop: watch::Receiver<bool>,
}

/// An agent whose Raft runs.
struct Agent {
    shared: Arc<Shared>,
    /// Turns true when all that is not Raft's is to end.
    ending: watch::Sender<bool>,
    released: JoinHandle<()>,
    loops: [JoinHandle<()>; 14],
}

/// Lives until it is stopped, or Raft fails: passes the gate, starts Raft and all that rests on it, and does so again
/// whenever the epoch moves on.
pub async fn live(surroundings: Surroundings) -> anyhow::Result<()> {
    let (questions, asked) = recovering::questions();
    surroundings.door.set_questions(questions.clone());
    surroundings.host.set_questions(questions);
    tokio::select! {
        lived = lives(&surroundings) => lived,
        () = membership::answer(&surroundings, asked) => anyhow::bail!("the task that answers `kaa recover` stopped"),
    }
}

async fn lives(surroundings: &Surroundings) -> anyhow::Result<()> {
    let mut stop = surroundings.stop.clone();
    let mut stay = Stay::Begins;
    loop {
        let agent = tokio::select! {
            begun = begin(surroundings, stay) => begun?,
            // Nothing runs yet that would have to be handed over.
            () = told(&mut stop) => return Ok(()),
        };
        let over = tokio::select! {
            over = agent.shared.over() => over,
            failure = agent.shared.raft.failed() => anyhow::bail!("raft has stopped: {failure}"),
            () = told(&mut stop) => {
                agent.end().await;
                return Ok(());
            }
        };
        agent.cease(surroundings, over).await?;
        stay = Stay::GoesOn;
    }
}

/// Waits until the agent is told to stop. Drops the borrow of the watch at once, since the sender would block on it.
async fn told(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Passes the gate, starts Raft and all that rests on it.
async fn begin(surroundings: &Surroundings, stay: Stay) -> anyhow::Result<Agent> {
    let Surroundings { config, kubernetes, host, links, guards, door, .. } = surroundings;
    let observed: watches::Shared = Arc::new(RwLock::new(Observed::default()));
    let watching = watches::start(kubernetes, observed.clone());
    let (raft, begun) = start_raft(surroundings, stay).await?;
    let (ending, stop) = watch::channel(false);
    let settings = Settings::default();
    let judged = raft.clone();
    let judge = Box::new(move || judged.status().ability(judged.no_room().is_none()));
    let (candidacy, released) =
        lease::run(kubernetes, config.resync_name(), &config.server, settings, judge, stop.clone());
    let shared = Arc::new(Shared {
        policy: config.policy(kubernetes.namespace()),
        tokens: TokenVerifier::new(kubernetes.clone().with_timeout(IDENTIFY_TIMEOUT), config.token_audience.clone()),
        config: config.clone(),
        kubernetes: kubernetes.clone(),
        raft,
        links: links.clone(),
        host: host.clone(),
        observed,
        watching,
        slices: routing::Slices::default(),
        candidacy,
        peers: Peers::default(),
        connected: Connected::default(),
        guards: guards.clone(),
        last_pass: Mutex::default(),
        waits: Mutex::default(),
        stranded: Mutex::default(),
        anchor_alarm: Mutex::default(),
        eviction_held: Mutex::default(),
        anchor_shared: Mutex::default(),
        without_quorum: Mutex::default(),
        begun,
        over: watch::Sender::default(),
        began: Instant::now(),
        leaving: Mutex::default(),
        stop,
    });
    door.open(shared.clone());
    let loops = start_loops(&shared);
    Ok(Agent { shared, ending, released, loops })
}

/// Starts the loops that run until the agent stops. The first four belong to Raft, and keep running while a server that
/// leaves is evicted.
fn start_loops(shared: &Arc<Shared>) -> [JoinHandle<()>; 14] {
    [
        tokio::spawn(membership::join(shared.clone())),
        tokio::spawn(membership::lead(shared.clone())),
        tokio::spawn(membership::follow(shared.clone())),
        tokio::spawn(peers::exchange(shared.clone())),
        tokio::spawn(sessions::sweep(shared.clone())),
        tokio::spawn(sessions::bind(shared.clone())),
        tokio::spawn(connected::tell(shared.clone())),
        tokio::spawn(shared.clone().report_roles()),
        tokio::spawn(shared.clone().grant_roles()),
        tokio::spawn(shared.clone().lose_silent_primaries()),
        tokio::spawn(shared.clone().publish_routes()),
        tokio::spawn(resync::run(shared.clone())),
        tokio::spawn(announce::announce(shared.clone())),
        tokio::spawn(announce::tell(shared.clone())),
    ]
}

fn storage(config: &Config) -> Storage {
    if let Some(warning) = config.store.warning() {
        warn!("{warning}");
    }
    let (dir, store) = (config.data_dir.clone(), config.store);
    Box::new(move || Volume::open_in(&dir, store))
}

impl Agent {
    /// Hands over what others can take, within bounds: engines to other agents, the Lease, its vote, Raft's leadership.
    async fn end(self) {
        info!("shutting down: moving engines, releasing the lease, transferring leadership");
        self.ending.send_replace(true);
        membership::drain(&self.shared).await;
        self.shared.host.set_leaving();
        let handed_over = async {
            let _ = self.released.await;
            self.shared.raft.hand_over(None).await;
            for running in self.loops {
                running.abort();
            }
            self.shared.raft.shutdown().await;
        };
        if tokio::time::timeout(SHUTDOWN, handed_over).await.is_err() {
            error!("the shutdown did not complete within {SHUTDOWN:?}");
        }
    }

    /// Ends all that rests on this Raft, which is over, and seals its log if that is why.
    async fn cease(self, surroundings: &Surroundings, over: Over) -> anyhow::Result<()> {
        let Surroundings { host, door, storage, .. } = surroundings;
        info!("this membership epoch is over: moving engines to other servers and stopping Raft");
        door.close(match over {
            Over::Newer => "a later epoch was founded: this server joins it",
            Over::Seal => "this log is sealed: the surviving servers continue in a new epoch",
        });
        self.ending.send_replace(true);
        for running in self.loops {
            running.abort();
        }
        host.set_handle(None);
        self.shared.raft.shutdown().await;
        if over == Over::Seal {
            let mut volume = membership::open(storage).await?;
            volume.seal()?;
            host.set_extent(volume.extent());
            host.set_sealed(Some(volume.extent()));
        }
        // The API server may be out of reach: then the Lease runs out by itself.
        if tokio::time::timeout(RELEASE, self.released).await.is_err() {
            warn!("the resync Lease was not released within {RELEASE:?}");
        }
        Ok(())
    }
}

/// How often the agent checks for a second voter.
const ALONE_LOOK: Duration = Duration::from_millis(50);

/// How long the agent waits for the release of the resync Lease when an epoch is over.
const RELEASE: Duration = Duration::from_secs(1);

async fn wait_for_signal(stopper: watch::Sender<bool>) -> anyhow::Result<()> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
    }
    stopper.send_replace(true);
    // Kept until the process ends: a dropped sender would look like another signal.
    stopper.closed().await;
    Ok(())
}

/// Passes the gate and starts Raft.
async fn start_raft(surroundings: &Surroundings, stay: Stay) -> anyhow::Result<(Handle, Begun)> {
    let Surroundings { config, kubernetes, storage, host, links, door, .. } = surroundings;
    let mut volume = membership::open(storage).await?;
    let waits = |why| door.waits(why);
    let pass = Pass { config, kubernetes, links, host, waits: &waits };
    let before = volume.local_log();
    membership::pass_gate(&pass, &mut volume, stay).await?;
    let after = volume.local_log();
    let votes = volume.extent().halves.iter().any(|half| half.contains(&after.raft_id));
    let begun = Begun::new(&before, &after, votes, &config.server);
    let address = config.peer_address(kubernetes.namespace(), config.ordinal);
    let mut options =
        raft::Options::new(config.server.clone(), address, config.cluster.clone(), crate::VERSION.to_owned());
    options.min_free = config.min_free;
    let raft = raft::start_among(volume, options, links.clone()).await?;
    host.set_handle(Some(raft.clone()));
    Ok((raft, begun))
}

/// The server in a Lease's holder identity, which is `SERVER_RUN`.
fn leader_of(leadership: &Leadership, own: &ServerId) -> Option<ServerId> {
    match leadership {
        Leadership::Leader(_) => Some(own.clone()),
        Leadership::Follower { holder: Some(holder) } => {
            Some(holder.rsplit_once('_').map_or(holder.as_str(), |(server, _)| server).into())
        }
        Leadership::Follower { holder: None } | Leadership::Unknown { .. } => None,
    }
}

/// How long a change that was committed may take until it is applied here.
const APPLY_LIMIT: Duration = Duration::from_secs(5);
