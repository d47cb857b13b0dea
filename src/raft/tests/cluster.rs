//! Several servers in one process, over gRPC on the loopback.

use super::{Agent, anchor, blank, found, node, options, start, until, value};
use crate::net::Tls;
use crate::proto::raft::JoinRequest;
use crate::raft::backend::{Backend, Op, Redb};
use crate::raft::disk::Local;
use crate::raft::transport::{Connector, Method};
use crate::raft::volume::Parts;
use crate::raft::{
    Admission, ChangeError, Handle, Host, MAX_PROPOSAL_BYTES, Peers, ProposeError, ReadError, Role, Service, Volume,
};
use kaa_core::domain::change::Command;
use kaa_core::domain::command::{Actor, Outcome, Request, Role as Duty};
use kaa_core::domain::ids::{ArchiveId, Millis, RaftId, ServerId, StartId};
use kaa_core::domain::snapshot::{FORMAT, Restore, Snapshot};
use kaa_core::membership::change::Step;
use kaa_core::membership::{Change, next_change};
use openraft::raft::VoteRequest;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, sleep};

fn certificates() -> Tls {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["*.kaa.test".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    Tls::from_pem(ca.pem(), cert.pem(), key.serialize_pem()).unwrap()
}

pub(super) fn join_request(agent: &Agent) -> JoinRequest {
    let local = agent.handle.local();
    JoinRequest {
        domain: "d1".to_owned(),
        epoch: local.epoch.0,
        raft_id: local.raft_id.0,
        server: agent.handle.status().server.to_string(),
        address: agent.address.clone(),
        cluster: "c1".to_owned(),
        version: crate::VERSION.to_owned(),
        anchor: String::new(),
    }
}

/// Lets one server join by way of another.
pub(super) async fn join(by: &Agent, agent: &Agent) {
    let reply = agent.handle.peers().join(std::slice::from_ref(&by.address), &join_request(agent)).await.unwrap();
    assert!(reply.accepted, "{}", reply.reason);
}

/// Changes the membership as a leader's agent does, until these vote.
pub(super) async fn settle(leader: &Handle, voters: &BTreeSet<RaftId>) {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        let membership = leader.membership();
        if membership.halves == [voters.clone()] {
            return;
        }
        let wanted: BTreeMap<RaftId, ServerId> =
            membership.members.iter().map(|(id, member)| (*id, member.server.clone())).collect();
        let current = wanted.iter().map(|(id, server)| (server.clone(), *id)).collect();
        match next_change(&membership, &current, Some(&wanted.into_values().collect()), &BTreeSet::new()) {
            // One step at a time: while one is not committed, the next is refused.
            Change::Step(Step::Voters(goal, _)) => match leader.change_voters(goal).await {
                Ok(()) | Err(ChangeError::Refused(_)) => sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            },
            Change::Step(_) | Change::Forget(_) => sleep(Duration::from_millis(20)).await,
        }
        assert!(Instant::now() < deadline, "{membership:?}");
    }
}

async fn three(tls: Option<&Tls>) -> ([TempDir; 3], Vec<Agent>) {
    let dirs = [tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", tls).await;
    let second = blank(dirs[1].path(), "admin-1", 1, tls).await;
    let third = blank(dirs[2].path(), "admin-2", 1, tls).await;
    join(&first, &second).await;
    // By way of a learner, which names the leader.
    until("the learner knows the leader", || second.handle.status().leader.is_some()).await;
    join(&second, &third).await;
    let all = BTreeSet::from([first.id(), second.id(), third.id()]);
    settle(&first.handle, &all).await;
    (dirs, vec![first, second, third])
}

async fn stop(agents: Vec<Agent>) {
    for agent in agents {
        agent.stop().await;
    }
}

async fn a_cluster_lives(tls: Option<&Tls>) {
    let (dirs, mut agents) = three(tls).await;
    for i in 0..10 {
        assert_eq!(agents[i % 3].set(&format!("k{i}")).await, Outcome::Changed);
        assert!(agents[i % 3].has(&format!("k{i}")), "a server sees its own write");
    }
    for agent in &agents {
        agent.handle.linearize().await.unwrap();
        assert!(agent.has("k9"));
        assert!(agent.handle.status().quorum);
    }

    let leader = agents.remove(0);
    let (address, id) = (leader.address.clone(), leader.id());
    leader.stop().await;
    let leads = |agent: &Agent| agent.handle.status().role == Role::Leader;
    until("another leads", || agents.iter().any(leads)).await;
    assert_eq!(agents[0].set("after").await, Outcome::Changed);
    agents[1].handle.linearize().await.unwrap();
    assert!(agents[1].has("after") && (0..10).all(|i| agents[1].has(&format!("k{i}"))));

    let back = start(Volume::open(dirs[0].path()).unwrap(), "admin-0", &address, tls).await;
    assert_eq!(back.id(), id);
    until("it has caught up", || back.has("after") && back.handle.status().quorum).await;
    back.handle.linearize().await.unwrap();
    agents.push(back);

    // Leadership may move by itself meanwhile, and a busy machine may take longer than a hand-over waits: it is asked again.
    let asked = agents.iter().position(leads).unwrap();
    let another_leads = || agents.iter().enumerate().any(|(index, agent)| index != asked && leads(agent));
    let deadline = Instant::now() + testkit::wait::PATIENCE;
    while !another_leads() {
        assert!(Instant::now() < deadline, "{} keeps the lead", agents[asked].id());
        agents[asked].handle.hand_over(None).await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(agents[0].set("handed over").await, Outcome::Changed);
    stop(agents).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lives_in_clear() {
    a_cluster_lives(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lives_over_mutual_tls() {
    let tls = certificates();
    a_cluster_lives(Some(&tls)).await;

    let dir = tempdir().unwrap();
    let agent = found(dir.path(), "admin-0", Some(&tls)).await;
    assert_eq!(agent.handle.peers().status(&agent.address).await.unwrap().server, "admin-0");
    assert!(Peers::new(Some(certificates())).status(&agent.address).await.is_err(), "of another authority");
    assert!(Peers::new(None).status(&agent.address).await.is_err(), "in clear");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_said_to_be_done() {
    let (_dirs, mut agents) = three(None).await;
    let last = agents.pop().unwrap();
    stop(agents).await;
    until("the leader is missed", || !last.handle.status().quorum).await;
    let proposed = last.handle.propose(value("k", "v")).await;
    // Unknown, where a busy machine lets an attempt run out of time.
    assert!(matches!(proposed, Err(ProposeError::NoLeader | ProposeError::Unknown { .. })), "{proposed:?}");
    let read = last.handle.linearize().await;
    assert!(matches!(read, Err(ReadError::NoLeader | ReadError::NoQuorum(_))), "{read:?}");
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_another_epoch_or_for_another_log_is_fenced_off() {
    let dir = tempdir().unwrap();
    let agent = found(dir.path(), "admin-0", None).await;
    let before = agent.handle.metrics().vote;
    let vote = VoteRequest::<crate::raft::types::TypeConfig>::new(openraft::Vote::new(99 << 32, 7), None);
    let peers = Peers::new(None);
    let mut fenced = 0;
    for (domain, epoch, receiver) in
        [("d1", 2, agent.id().0), ("d1", 0, agent.id().0), ("d1", 1, 7), ("d2", 1, agent.id().0)]
    {
        let connector = Connector::new(peers.clone(), domain.to_owned(), epoch);
        let connection = connector.connect(receiver, &node("admin-0", &agent.address));
        for method in [Method::Append, Method::Vote, Method::PreVote, Method::TransferLeader, Method::Propose] {
            let answer = connection.call::<_, ()>(method, &vote, Duration::from_secs(2)).await;
            assert!(matches!(answer, Err(crate::raft::transport::Error::Fenced { epoch: 1, .. })), "{answer:?}");
            fenced += 1;
        }
    }
    assert_eq!(peers.fenced(), fenced);
    assert_eq!(agent.handle.metrics().vote, before);

    let mut request = join_request(&agent);
    request.epoch = 2;
    let reply = peers.join(std::slice::from_ref(&agent.address), &request).await.unwrap();
    assert!(!reply.accepted && reply.reason.contains("epoch 1"), "{}", reply.reason);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_joiner_gets_a_snapshot() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", None).await;
    let large = "x".repeat(64 * 1024);
    for i in 0..50 {
        first.handle.propose(value(&format!("k{i}"), &large)).await.unwrap();
    }
    let raft = first.handle.raft();
    raft.trigger().snapshot().await.unwrap();
    until("there is a snapshot", || first.handle.metrics().snapshot.is_some()).await;
    raft.trigger().purge_log(40).await.unwrap();
    until("the log is purged", || first.handle.metrics().purged.is_some_and(|purged| purged.index >= 40)).await;

    let second = blank(dirs[1].path(), "admin-1", 1, None).await;
    join(&first, &second).await;
    until("the joiner has it all", || (0..50).all(|i| second.has(&format!("k{i}")))).await;
    until("it came as a snapshot", || second.handle.metrics().snapshot.is_some()).await;
    settle(&first.handle, &BTreeSet::from([first.id(), second.id()])).await;
    second.set("k").await;

    let (address, domain) = (second.address.clone(), second.handle.read(Clone::clone));
    second.stop().await;
    let second = start(Volume::open(dirs[1].path()).unwrap(), "admin-1", &address, None).await;
    second.handle.linearize().await.unwrap();
    assert_eq!(second.handle.read(Clone::clone), domain);
    stop(vec![second, first]).await;
}

/// With as many bytes of values as there may be, by way of files, checksums and gRPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_domain_with_all_values_that_fit_reaches_a_new_member() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", None).await;
    let large = "x".repeat(64 * 1024);
    for i in 0..250 {
        first.handle.propose(value(&format!("k{i}"), &large)).await.unwrap();
    }
    first.handle.raft().trigger().snapshot().await.unwrap();
    until("there is a snapshot", || first.handle.metrics().snapshot.is_some()).await;
    let upto = first.handle.status().applied_index;
    first.handle.raft().trigger().purge_log(upto).await.unwrap();
    until("the log is purged", || first.handle.metrics().purged.is_some_and(|purged| purged.index == upto)).await;

    let second = blank(dirs[1].path(), "admin-1", 1, None).await;
    join(&first, &second).await;
    until("the joiner has it all", || second.has("k249")).await;
    let domain = first.handle.read(Clone::clone);
    assert!(domain.values.values().map(String::len).sum::<usize>() > 16_000_000);
    let as_snapshot = || second.handle.metrics().snapshot.is_some_and(|snapshot| snapshot.index >= upto);
    until("it came as a snapshot", as_snapshot).await;
    settle(&first.handle, &BTreeSet::from([first.id(), second.id()])).await;
    second.set("k").await;
    assert_eq!(second.handle.read(|domain| domain.values.clone()), first.handle.read(|domain| domain.values.clone()));
    stop(vec![second, first]).await;
}

/// As a domain that is restored may be, asked of a follower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_greatest_proposal_reaches_every_member() {
    let (_dirs, agents) = three(None).await;
    let asked = &agents[2].handle;
    let refused = asked.propose(restored(MAX_PROPOSAL_BYTES)).await.unwrap_err();
    assert!(matches!(refused, ProposeError::TooLarge { .. }), "{refused:?}");
    let outcome = asked.propose(restored(MAX_PROPOSAL_BYTES - 64 * 1024)).await.unwrap();
    assert_eq!(outcome, Outcome::Changed);
    for agent in &agents {
        until("all have it", || agent.has("k0")).await;
    }
    stop(agents).await;
}

/// The greatest command that there is: a domain is restored whose values have about so many bytes.
fn restored(bytes: usize) -> Request {
    let value = "x".repeat(32 * 1024);
    let values = (0..bytes / value.len()).map(|number| (format!("k{number}"), value.clone())).collect();
    let snapshot = Snapshot {
        load_balancer: Default::default(),
        domain: "d0".into(),
        name: "nuo".to_owned(),
        index: 7,
        time: Millis(0),
        databases: Vec::new(),
        archives: Vec::new(),
        values,
        last_archive: ArchiveId(0),
        last_start: StartId(0),
        origins: BTreeMap::new(),
    };
    let (checksum, cluster) = ("c0ffee".to_owned(), "c1".into());
    let restore = Restore { format: FORMAT, checksum, cluster, without: BTreeSet::new(), snapshot };
    let actor = Actor { role: Duty::Operator, name: "loopback".to_owned() };
    Request { actor, command: Command::RestoreDomain(Box::new(restore)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_newer_is_proposed_while_an_older_member_lives() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", None).await;
    let second = blank(dirs[1].path(), "admin-1", 1, None).await;
    let mut request = join_request(&second);
    request.version = "0.0.9".to_owned();
    // An address that cannot be dialled is no reason to leave the others out.
    let to = ["no host:48005".to_owned(), first.address.clone()];
    assert!(second.handle.peers().join(&to, &request).await.unwrap().accepted);
    until("it is replicated to", || second.handle.read(|domain| !domain.servers.is_empty())).await;
    let before = first.handle.status().last_log_index;
    for agent in [&first, &second] {
        let refused = agent.handle.propose(value("k", "v")).await.unwrap_err();
        assert!(matches!(refused, ProposeError::TooNew(_)), "{refused:?}");
        assert!(refused.to_string().starts_with("server admin-1 runs version '0.0.9'"), "{refused}");
    }
    assert_eq!(first.handle.status().last_log_index, before);

    // It was upgraded and says so.
    join(&first, &second).await;
    assert_eq!(first.set("k").await, Outcome::Changed);
    stop(vec![second, first]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_replaced_is_forgotten() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", None).await;
    let lost = blank(dirs[1].path(), "admin-1", 1, None).await;
    join(&first, &lost).await;
    let lost_id = lost.id();
    lost.stop().await;
    let second = blank(dirs[2].path(), "admin-1", 1, None).await;
    join(&first, &second).await;
    settle_on(&first.handle, &second).await;
    let current = BTreeMap::from([("admin-0".into(), first.id()), ("admin-1".into(), second.id())]);
    let wanted = BTreeSet::from(["admin-0".into(), "admin-1".into()]);
    let change = || next_change(&first.handle.membership(), &current, Some(&wanted), &BTreeSet::new());
    until("it forgets the old log next", || change() == Change::Forget(BTreeSet::from([lost_id]))).await;
    first.handle.forget(BTreeSet::from([lost_id])).await.unwrap();
    until("it is forgotten", || first.handle.status().learners.is_empty()).await;
    // Back elsewhere, while the leader has no quorum without it.
    second.stop().await;
    let volume = Volume::open(dirs[2].path()).unwrap();
    let second = start(volume, "admin-1", &super::free_address(), None).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !second
        .handle
        .peers()
        .join(std::slice::from_ref(&first.address), &join_request(&second))
        .await
        .unwrap()
        .accepted
    {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(50)).await;
    }
    let leader = if first.handle.status().role == Role::Leader { &first } else { &second };
    until("its address is the new one", || leader.handle.status().voters[&second.id()].address == second.address).await;
    first.set("k").await;
    until("it is replicated to", || second.has("k")).await;
    stop(vec![first, second]).await;
}

async fn settle_on(leader: &Handle, agent: &Agent) {
    until("it has caught up", || leader.membership().members.get(&agent.id()).is_some_and(|it| it.caught_up)).await;
    let voters = BTreeSet::from([leader.local().raft_id, agent.id()]);
    leader.change_voters(voters).await.unwrap();
}

#[tokio::test]
async fn status_is_told_before_raft_runs() {
    let address = super::free_address();
    let host = Host::new("admin-0".into(), address.clone(), "c1".into(), "test".to_owned());
    let router = crate::net::server().add_service(Service::serve(host.clone(), Admission::Anybody));
    let socket = address.parse().unwrap();
    let serving = tokio::spawn(async move { router.serve(socket).await.unwrap() });
    let peers = Peers::new(None);
    let deadline = Instant::now() + Duration::from_secs(5);
    let status = loop {
        match peers.status(&address).await {
            Ok(status) => break status,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((status.role.as_str(), status.lifecycle.as_str()), ("", "INITIALIZING"));

    let dir = tempdir().unwrap();
    let mut volume = Volume::open(dir.path()).unwrap();
    volume.found(&anchor(1, volume.local_log().raft_id), &node("admin-0", &address), None).unwrap();
    host.set_local_log(volume.local_log());
    host.set_resync_leader("admin-3");
    let status = peers.status(&address).await.unwrap();
    assert_eq!((status.domain.as_str(), status.epoch, status.resync_leader.as_str()), ("d1", 1, "admin-3"));
    let join = JoinRequest { domain: "d1".to_owned(), epoch: 1, raft_id: 9, ..JoinRequest::default() };
    assert!(peers.join(std::slice::from_ref(&address), &join).await.is_err());

    let handle = crate::raft::start(volume, options("admin-0", &address), None).await.unwrap();
    host.set_handle(Some(handle.clone()));
    until("it leads", || host.status().role == "LEADER").await;
    assert_eq!(peers.status(&address).await.unwrap().leader, "admin-0");
    serving.abort();
    handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_newer_leader_sends_stops_the_agent() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", None).await;
    let second = blank(dirs[1].path(), "admin-1", 1, None).await;
    join(&first, &second).await;
    until("it is replicated to", || second.handle.status().leader.is_some()).await;
    let connector = Connector::new(Peers::new(None), "d1".to_owned(), 1);
    let connection = connector.connect(second.id().0, &node("admin-1", &second.address));
    let future = BTreeMap::from([("an append", "that no version knows yet")]);
    let answer = connection.call::<_, ()>(Method::Append, &future, Duration::from_secs(2)).await;
    assert!(matches!(answer, Err(crate::raft::transport::Error::Refused { .. })), "{answer:?}");
    let why = second.handle.failed().await;
    assert!(why.starts_with("what the leader sends was written by a newer agent"), "{why}");
    stop(vec![second, first]).await;
}

/// A leader died after it had appended the first step of {0,1,2} -> {0,1}, as seen by who holds that entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_begun_is_finished_forward() {
    let (dirs, mut agents) = three(None).await;
    let ids: Vec<_> = agents.iter().map(Agent::id).collect();
    let addresses: Vec<_> = agents.iter().map(|agent| agent.address.clone()).collect();
    let members = agents[0].handle.metrics().membership_config.membership().clone();
    agents[0].set("k").await;
    agents.rotate_left(1);
    stop(agents).await;

    let goal = BTreeSet::from([ids[0], ids[1]]);
    let file = dirs[0].path().join("log/raft.redb");
    let Parts { lock, backend, log, .. } = Volume::open(dirs[0].path()).unwrap().into_parts();
    let mut last = log.entries.values().next_back().unwrap().clone();
    drop((lock, backend));
    last.log_id.index += 1;
    let halves = [&ids[..], &ids[..2]].map(|half| half.iter().map(|id| id.0).collect()).to_vec();
    let nodes = members.nodes().map(|(id, node)| (*id, node.clone())).collect::<BTreeMap<_, _>>();
    last.payload = openraft::EntryPayload::Membership(openraft::Membership::new(halves, nodes).unwrap());
    let put = Op::Put(last.log_id.index, crate::raft::wire::encode(&last).unwrap());
    Redb::open(&Local, &file).unwrap().commit(&[put]).unwrap();

    let first = start(Volume::open(dirs[0].path()).unwrap(), "admin-0", &addresses[0], None).await;
    let second = start(Volume::open(dirs[1].path()).unwrap(), "admin-1", &addresses[1], None).await;
    until("it leads", || first.handle.status().role == Role::Leader).await;
    assert_eq!(first.handle.membership().halves.len(), 2);
    settle(&first.handle, &goal).await;
    assert_eq!(first.handle.status().learners.keys().copied().collect::<Vec<_>>(), ids[2..]);
    first.set("after").await;
    stop(vec![first, second]).await;
}
