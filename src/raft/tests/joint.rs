//! Two leaders that finish the same joint membership, each in its own way.
//!
//! openraft lets a leader go back from [C, X] to [C], at once and before it has committed anything in its own term. If an
//! earlier leader has moved to [X], both get committed: C and X need share no majority with each other. The rule that
//! forbids it is ours ([`next_change`]); the first test shows what it is for, the second that it suffices.
//!
//! The servers are whole, with files and sockets. The test decides what gets through between them, and who stands for
//! election when.

use super::cluster::join;
use super::{Agent, anchor, found_domain, free_address, node, options, start_among, until};
use crate::net::{self, CallError, Dial};
use crate::proto::raft::Message;
use crate::raft::types::Append;
use crate::raft::{ChangeError, Handle, Peers, Role, Volume, wire};
use axum::body::{Body, to_bytes};
use kaa_core::domain::command::Outcome;
use kaa_core::domain::ids::{RaftId, ServerId};
use kaa_core::membership::change::Step;
use kaa_core::membership::{Change, Membership, next_change};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, sleep, timeout};
use tonic::codegen::http;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// What gets through from one server to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Open,
    /// Heartbeats and requests for votes, but no entry: the leader keeps its lease and replicates nothing.
    NoEntries,
    Cut,
}

/// The links, by the addresses of sender and receiver; what is not named is open.
#[derive(Clone, Default)]
struct Links(Arc<Mutex<BTreeMap<(String, String), Link>>>);

impl Links {
    fn lets_through(&self, from: &str, to: &str, path: &str, body: &[u8]) -> bool {
        let link = self.0.lock().unwrap().get(&(from.to_owned(), to.to_owned())).copied();
        match link.unwrap_or(Link::Open) {
            Link::Open => true,
            Link::NoEntries => !path.ends_with("/Append") || is_heartbeat(body),
            Link::Cut => false,
        }
    }

    /// The ways of one server to the others.
    fn peers(&self, from: &str) -> Peers {
        let (links, from) = (self.clone(), from.to_owned());
        let dial: Dial = Arc::new(move |to| {
            let (links, from, to) = (links.clone(), from.clone(), to.to_owned());
            let channel = net::channel(&to, None)?;
            Ok(BoxCloneSyncService::new(tower::service_fn(move |request: http::Request<tonic::body::Body>| {
                let (links, from, to, channel) = (links.clone(), from.clone(), to.clone(), channel.clone());
                async move {
                    let (head, body) = request.into_parts();
                    let body = to_bytes(Body::new(body), usize::MAX).await.map_err(|error| CallError(error.into()))?;
                    if !links.lets_through(&from, &to, head.uri.path(), &body) {
                        return Err(CallError(Box::new(tonic::ConnectError("the link is cut".into()))));
                    }
                    let body = tonic::body::Body::new(Body::from(body));
                    channel.oneshot(http::Request::from_parts(head, body)).await
                }
            })))
        });
        Peers::dialled(dial)
    }
}

fn is_heartbeat(body: &[u8]) -> bool {
    // Before the message: whether it is compressed, and its length.
    let message = Message::decode(&body[5..]).unwrap();
    wire::decode::<Append>(&message.payload, "an append").unwrap().entries.is_empty()
}

/// Servers 0, 1 and 2.
struct Group {
    links: Links,
    agents: Vec<Agent>,
    _dirs: [TempDir; 3],
}

impl Group {
    /// Founded by server 0; the others are learners that have caught up. No server starts an election by itself.
    async fn start() -> Self {
        let links = Links::default();
        let dirs = [tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap()];
        let mut agents = Vec::new();
        for (i, dir) in dirs.iter().enumerate() {
            let (server, address) = (format!("admin-{i}"), free_address());
            let mut volume = Volume::open(dir.path()).unwrap();
            match i {
                0 => volume.found(&anchor(1, volume.local_log().raft_id), &node(&server, &address), None).unwrap(),
                _ => volume.retire_log(&anchor(1, RaftId(0))).unwrap(),
            }
            agents.push(start_among(volume, options(&server, &address), links.peers(&address), None).await);
        }
        let group = Self { links, agents, _dirs: dirs };
        found_domain(&group.agents[0]).await;
        group.agents.iter().for_each(|agent| agent.handle.raft().runtime_config().elect(false));
        for i in [1, 2] {
            join(&group.agents[0], &group.agents[i]).await;
            let caught_up = |membership: &Membership| membership.members[&group.id(i)].caught_up;
            until("the learner has caught up", || caught_up(&group.agents[0].handle.membership())).await;
        }
        group
    }

    /// With {0}+{0,1,2} committed everywhere, and nothing after it: the leader that began the change did not finish it.
    async fn joint() -> Self {
        let group = Self::start().await;
        let leader = group.agents[0].handle.clone();
        group.set_links(0, [1, 2], Link::NoEntries);
        let all = group.ids([0, 1, 2]);
        let begun = tokio::spawn(async move { leader.change_voters(all).await });
        until("the change is begun", || group.halves(0).len() == 2).await;
        begun.abort();
        assert!(begun.await.unwrap_err().is_cancelled());
        group.set_links(0, [1, 2], Link::Open);
        let index = group.agents[0].handle.status().last_log_index;
        let applied = |agent: &Agent| agent.handle.status().applied_index == index;
        until("it is committed everywhere", || group.agents.iter().all(applied)).await;
        for i in 0..3 {
            assert_eq!(group.halves(i), [group.ids([0]), group.ids([0, 1, 2])]);
        }
        group
    }

    fn id(&self, i: usize) -> RaftId {
        self.agents[i].id()
    }

    fn ids<const N: usize>(&self, servers: [usize; N]) -> BTreeSet<RaftId> {
        servers.into_iter().map(|i| self.id(i)).collect()
    }

    /// The last membership in a server's log, committed or not.
    fn halves(&self, i: usize) -> Vec<BTreeSet<RaftId>> {
        self.agents[i].handle.membership().halves
    }

    fn set_links<const N: usize>(&self, from: usize, to: [usize; N], link: Link) {
        let address = |i: usize| self.agents[i].address.clone();
        self.links.0.lock().unwrap().extend(to.map(|to| ((address(from), address(to)), link)));
    }

    /// Lets a server stand until it leads. What the others owe to the leader before has run out by then.
    async fn elect(&self, i: usize) {
        let handle = &self.agents[i].handle;
        sleep(Duration::from_millis(2 * options("", "").election_max_ms)).await;
        assert_ne!(handle.status().role, Role::Leader);
        let deadline = Instant::now() + Duration::from_secs(10);
        while handle.status().role != Role::Leader {
            assert!(Instant::now() < deadline, "{:?}", handle.status());
            handle.raft().trigger().elect(false).await.unwrap();
            sleep(Duration::from_millis(200)).await;
        }
        until("it has its lease", || handle.status().quorum).await;
    }

    /// Server 1 leads and moves to {0,1,2}, which no other server hears of. Then it is cut off, and server 0 leads by the
    /// vote of 2, which gets no entry from it.
    async fn two_leaders(&self) {
        self.set_links(0, [1, 2], Link::Cut);
        self.set_links(1, [0, 2], Link::NoEntries);
        self.elect(1).await;
        let forward = timeout(Duration::from_millis(500), change(&self.agents[1].handle, self.ids([0, 1, 2])));
        assert!(forward.await.is_err(), "no other server can have confirmed it");
        assert_eq!(self.halves(1), [self.ids([0, 1, 2])]);

        self.set_links(1, [0, 2], Link::Cut);
        self.set_links(0, [2], Link::NoEntries);
        self.elect(0).await;
        let status = self.agents[0].handle.status();
        assert!(status.commit_index < status.last_log_index, "nothing of its own term is committed");
    }

    /// Server 0 is cut off, and server 1 leads again, by the vote of 2.
    async fn the_first_again(&self) {
        self.set_links(0, [1, 2], Link::Cut);
        self.set_links(1, [2], Link::Open);
        until("it hears of the later leader", || self.agents[1].handle.status().role != Role::Leader).await;
        self.elect(1).await;
        assert_eq!(self.agents[1].set("kept").await, Outcome::Changed);
        assert_eq!(self.halves(1), [self.ids([0, 1, 2])]);
    }
}

/// Lets a leader change who votes, also if its lease has run out for a moment.
async fn change(leader: &Handle, voters: BTreeSet<RaftId>) -> Result<(), ChangeError> {
    loop {
        match leader.change_voters(voters.clone()).await {
            Err(ChangeError::NotLeader { .. }) if leader.status().role == Role::Leader => {
                sleep(Duration::from_millis(20)).await;
            }
            changed => return changed,
        }
    }
}

/// What the agent of a leader does when `replicas` is 1 again.
fn step(membership: &Membership) -> BTreeSet<RaftId> {
    let server = |id: &RaftId| membership.members[id].server.clone();
    let current: BTreeMap<ServerId, RaftId> = membership.members.keys().map(|id| (server(id), *id)).collect();
    // A leader waits for an entry of its own term as well: a second line, left out here to show what the first one does.
    let membership = Membership { settled: true, ..membership.clone() };
    match next_change(&membership, &current, Some(&BTreeSet::from(["admin-0".into()])), &BTreeSet::new()) {
        Change::Step(Step::Voters(goal, _)) => goal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_goes_back_from_a_joint_membership_and_loses_what_was_acknowledged() {
    let group = Group::joint().await;
    group.two_leaders().await;
    let zero = &group.agents[0];
    let before = zero.handle.status().last_log_index;
    change(&zero.handle, group.ids([0])).await.unwrap();
    // Its membership and its status are published one after the other.
    let shown = || zero.handle.status().applied_index > before && group.halves(0) == [group.ids([0])];
    until("its status shows it", shown).await;
    assert_eq!(zero.handle.status().applied_index, before + 1, "in one step");
    assert_eq!(zero.set("lost").await, Outcome::Changed);

    group.the_first_again().await;
    let one = &group.agents[1];
    assert!(zero.has("lost") && !zero.has("kept"));
    assert!(one.has("kept") && !one.has("lost"));
    // Two histories, both committed. Where they meet, openraft's debug assertions end the one that has to give way.
    group.set_links(1, [0, 2], Link::Open);
    let failed = timeout(Duration::from_secs(10), zero.handle.failed()).await.unwrap();
    assert_eq!(failed, "panicked");
    for agent in group.agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joint_membership_that_is_left_forward_only_is_left_once() {
    let group = Group::joint().await;
    group.two_leaders().await;
    let zero = &group.agents[0];
    let goal = step(&zero.handle.membership());
    assert_eq!(goal, group.ids([0, 1, 2]));
    let committed = zero.handle.status().commit_index;
    // It is begun, and waits for one of the others.
    let changed = timeout(Duration::from_secs(1), change(&zero.handle, goal)).await;
    assert!(changed.is_err(), "{changed:?}");
    assert_eq!(group.halves(0), [group.ids([0, 1, 2])]);
    let written = timeout(Duration::from_secs(1), zero.handle.propose(super::value("lost", "v"))).await;
    assert!(!matches!(written, Ok(Ok(_))), "{written:?}");
    assert_eq!(zero.handle.status().commit_index, committed);

    group.the_first_again().await;
    group.set_links(0, [1, 2], Link::Open);
    group.set_links(1, [0, 2], Link::Open);
    until("all have what was acknowledged", || group.agents.iter().all(|agent| agent.has("kept"))).await;
    let domain = group.agents[1].handle.read(Clone::clone);
    for (i, agent) in group.agents.iter().enumerate() {
        assert_eq!(group.halves(i), [group.ids([0, 1, 2])]);
        assert!(!agent.has("lost"));
        until("it has the same domain", || agent.handle.read(|own| *own == domain)).await;
    }
    for agent in group.agents {
        agent.stop().await;
    }
}
