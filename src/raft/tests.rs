//! Tests of Raft as a whole: real files, real sockets on the loopback, short timeouts.

mod admission;
mod cluster;
mod events;
mod founding;
mod full;
mod golden;
mod joint;
mod killed;
mod power;
mod recorder;
mod storage;
mod volumes;

use super::{Admission, Agents, Handle, Node, Options, Peers, Volume};
use crate::metrics::Metrics;
use crate::net::refusals::{Port, Refusals};
use crate::net::{self, Entrance, Tls};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Expected, Outcome, Request, Role};
use kaa_core::domain::ids::{DomainId, MembershipEpoch, RaftId};
use kaa_core::membership::Anchor;
use recorder::Recorder;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Once};
use testkit::eventually_async;
use testkit::wait::is;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// An agent without the rest: a volume, a Raft, a port.
struct Agent {
    handle: Handle,
    address: String,
    serving: JoinHandle<()>,
    /// Closes the connections too, as the end of a process does.
    stop: oneshot::Sender<()>,
}

fn options(server: &str, address: &str) -> Options {
    let mut options = Options::new(server.into(), address.to_owned(), "c1".into(), crate::VERSION.to_owned());
    (options.heartbeat_ms, options.election_min_ms, options.election_max_ms) = (60, 300, 600);
    options
}

fn anchor(epoch: u64, founder: RaftId) -> Anchor {
    Anchor { domain: DomainId::from("d1"), epoch: MembershipEpoch(epoch), founder, lossy: false }
}

fn node(server: &str, address: &str) -> Node {
    Node { server: server.to_owned(), address: address.to_owned() }
}

/// With certificates agents have names, as in Kubernetes: `SERVER.kaa.test`.
fn address(server: &str, tls: Option<&Tls>) -> String {
    let address = free_address();
    if tls.is_none() {
        return address;
    }
    // Once, for the file is read at every look-up.
    static HOSTS: Once = Once::new();
    HOSTS
        .call_once(|| kaa_engine::names::use_file(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/raft.hosts")));
    address.replace("127.0.0.1", &format!("{server}.kaa.test"))
}

fn entrance(tls: &Tls) -> Entrance {
    let refusals = Refusals::new(Arc::new(Metrics::new()));
    Entrance { tls: tls.clone(), port: Port::Peers, refusals }
}

/// Founds on the volume in `dir` and starts.
async fn found(dir: &Path, server: &str, tls: Option<&Tls>) -> Agent {
    let address = address(server, tls);
    let mut volume = Volume::open(dir).unwrap();
    let epoch = volume.local_log().epoch.0 + 1;
    let anchor = anchor(epoch, volume.local_log().raft_id);
    volume.found(&anchor, &node(server, &address), None).unwrap();
    let agent = start(volume, server, &address, tls).await;
    found_domain(&agent).await;
    agent
}

/// The same on another disk.
async fn found_on(disk: &Recorder, dir: &Path, options: Options) -> Agent {
    let mut volume = Volume::open_on(Arc::new(disk.clone()), dir).unwrap();
    let anchor = anchor(1, volume.local_log().raft_id);
    volume.found(&anchor, &node(options.server.as_str(), &options.address), None).unwrap();
    let agent = start_with(volume, options, None).await;
    found_domain(&agent).await;
    agent
}

/// Proposes the domain's first entry.
async fn found_domain(agent: &Agent) {
    let founding = Command::FoundDomain(change::FoundDomain {
        domain: "d1".into(),
        name: "test".to_owned(),
        anchor: "lease".into(),
    });
    let outcome = agent.handle.propose(request(founding)).await.unwrap();
    assert!(matches!(outcome, Outcome::Changed | Outcome::Unchanged), "{outcome:?}");
}

/// Starts on an empty log of epoch `epoch`, to which no leader replicates yet.
async fn blank(dir: &Path, server: &str, epoch: u64, tls: Option<&Tls>) -> Agent {
    let mut volume = Volume::open(dir).unwrap();
    volume.retire_log(&anchor(epoch, RaftId(0))).unwrap();
    start(volume, server, &address(server, tls), tls).await
}

/// The same on another disk, in the first epoch.
async fn blank_on(disk: &Recorder, dir: &Path, options: Options) -> Agent {
    let mut volume = Volume::open_on(Arc::new(disk.clone()), dir).unwrap();
    volume.retire_log(&anchor(1, RaftId(0))).unwrap();
    start_with(volume, options, None).await
}

async fn start(volume: Volume, server: &str, address: &str, tls: Option<&Tls>) -> Agent {
    start_with(volume, options(server, address), tls).await
}

async fn start_with(volume: Volume, options: Options, tls: Option<&Tls>) -> Agent {
    start_among(volume, options, Peers::new(tls.cloned()), tls).await
}

/// The same, with other ways to the others.
async fn start_among(volume: Volume, options: Options, peers: Peers, tls: Option<&Tls>) -> Agent {
    let address = options.address.clone();
    let handle = super::start_among(volume, options, peers).await.unwrap();
    let port: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let socket = SocketAddr::from(([127, 0, 0, 1], port));
    let entrance = tls.map(entrance);
    let admission = match &entrance {
        Some(Entrance { tls, refusals, .. }) => Admission::Agents(Agents {
            tls: tls.clone(),
            domain: "test".to_owned(),
            stateful_set: "admin".to_owned(),
            refusals: refusals.clone(),
        }),
        None => Admission::Anybody,
    };
    let incoming = net::incoming(
        tokio::net::TcpListener::bind(socket).await.unwrap(),
        crate::net::places::Limits::new(64, 64),
        entrance,
    );
    let router = net::server().add_service(handle.grpc(admission));
    let (stop, stopped) = oneshot::channel();
    let stopped = async { drop(stopped.await) };
    let serving = tokio::spawn(async move { router.serve_with_incoming_shutdown(incoming, stopped).await.unwrap() });
    Agent { handle, address, serving, stop }
}

impl Agent {
    fn id(&self) -> RaftId {
        self.handle.local().raft_id
    }

    /// Ends the agent as a process that is told to end would, but without handing over.
    async fn stop(self) {
        drop(self.stop);
        self.handle.shutdown().await;
        self.serving.await.unwrap();
    }

    async fn set(&self, key: &str) -> Outcome {
        self.handle.propose(value(key, "v")).await.unwrap()
    }

    fn has(&self, key: &str) -> bool {
        self.handle.read(|domain| domain.values.contains_key(key))
    }
}

fn request(command: Command) -> Request {
    Request { actor: Actor { role: Role::Operator, name: "test".to_owned() }, command }
}

fn value(key: &str, value: &str) -> Request {
    let (key, value) = (key.to_owned(), Some(value.to_owned()));
    request(Command::SetValue(change::SetValue { key, value, expected: Expected::Anything }))
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Waits until something is so, and panics if that takes too long.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually_async(what, async || is(is_so())).await;
}
