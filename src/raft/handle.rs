//! The running Raft, as the other modules see it: propose, read, change who votes.

use super::admission::Admission;
use super::refused::{ChangeError, ProposeError, ReadError};
use super::snapshot::Shelf;
use super::space::Space;
use super::stamps::Stamps;
use super::state_machine::SharedDomain;
use super::status::{self, Metrics, Status, Surroundings};
use super::store::Store;
use super::transport::{Connector, Method, Peers};
use super::types::{Applied, Node, Proposal, Raft, TypeConfig};
use super::wire::{self, Leader, ProposeReply, ReadReply};
use super::{Options, server};
use crate::clock;
use crate::proto::raft::raft_server::RaftServer;
use kaa_core::domain::Domain;
use kaa_core::domain::change::Command;
use kaa_core::domain::command::{Outcome, Request};
use kaa_core::domain::ids::{ClusterName, RaftId};
use kaa_core::domain::version::{self, TooNew};
use kaa_core::domain::voters::Voters;
use kaa_core::membership::{LocalLog, Membership};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{ChangeMembers, ReadPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a proposal or a linearizable read may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leader works for another agent, so that its answer comes before the other gives up.
const SERVE_TIMEOUT: Duration = Duration::from_secs(4);
/// The time between two attempts to find a leader.
const LEADER_RETRY: Duration = Duration::from_millis(50);
/// How long a follower that handed on a proposal waits until it has applied it itself, so that its own reads show it.
const OWN_APPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a change of the membership may take. After that the next leader finishes it.
pub(super) const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a leader waits until another server leads.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The greatest proposal, which is a domain that is restored: an append of one must fit into a message with room to spare.
pub const MAX_PROPOSAL_BYTES: usize = 4 << 20;

/// A running Raft; clones share it.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) raft: Raft,
    pub(super) store: Store,
    pub(super) shelf: Shelf,
    pub(super) space: Space,
    pub(super) domain: SharedDomain,
    pub(super) applied: watch::Receiver<u64>,
    pub(super) stamps: Stamps,
    pub(super) connector: Connector,
    pub(super) local: LocalLog,
    pub(super) options: Options,
    /// When the leader was heard of last.
    pub(super) heard: Mutex<Option<Instant>>,
    pub(super) failure: watch::Sender<Option<String>>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({:?})", self.0.local)
    }
}

/// How one attempt ended.
enum Attempt<T> {
    Done(T),
    /// Certainly nothing happened; perhaps this one leads.
    NotLeader(Leader),
}

impl Handle {
    pub(super) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// Proposes a request, here or by way of the leader. Tries again only what has certainly not been proposed.
    pub async fn propose(&self, request: Request) -> Result<Outcome, ProposeError> {
        Ok(self.propose_at(request).await?.1)
    }

    /// The same, and at which index of the log it was done.
    pub async fn propose_at(&self, request: Request) -> Result<(u64, Outcome), ProposeError> {
        let proposal = Proposal { time: self.now(), request };
        let bytes = wire::encode(&proposal)?.len();
        if bytes > MAX_PROPOSAL_BYTES {
            return Err(ProposeError::TooLarge { bytes: bytes as u64 });
        }
        // The leader looks again; it may be the one that would not understand.
        self.understood(&proposal.request.command)?;
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let mut leader: Leader = None;
        loop {
            let attempt = match &leader {
                Some((id, node)) => self.propose_there(*id, node, &proposal, deadline).await,
                None => self.propose_here(proposal.clone(), deadline).await,
            };
            match attempt {
                Attempt::Done(result) => return result,
                Attempt::NotLeader(hint) => leader = self.follow(leader, hint).await,
            }
            // A proposal that is sent with no time left for an answer would have an unknown outcome.
            if Instant::now() + LEADER_RETRY >= deadline {
                return Err(ProposeError::NoLeader);
            }
        }
    }

    /// Waits a moment, unless there is a first hint, and decides whom to ask next: `None` is oneself.
    async fn follow(&self, asked: Leader, hint: Leader) -> Leader {
        let hint = hint.filter(|(id, _)| *id != self.0.local.raft_id.0);
        if asked.is_some() || hint.is_none() {
            sleep(LEADER_RETRY).await;
        }
        hint
    }

    async fn propose_here(
        &self,
        proposal: Proposal,
        deadline: Instant,
    ) -> Attempt<Result<(u64, Outcome), ProposeError>> {
        if self.metrics().state.is_leader()
            && let Err(refused) = self.take(&proposal)
        {
            return Attempt::Done(Err(refused));
        }
        let written = match timeout_at(deadline, self.0.raft.client_write(proposal)).await {
            Ok(written) => written,
            Err(_) => return Attempt::Done(Err(ProposeError::Unknown { why: "no quorum in time".to_owned() })),
        };
        Attempt::Done(match written {
            Ok(written) => match written.data {
                Applied(Some(outcome)) => Ok((written.log_id.index, outcome)),
                Applied(None) => Err(ProposeError::Unknown { why: "it has no outcome".to_owned() }),
            },
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                return Attempt::NotLeader(leader(forward));
            }
            Err(RaftError::APIError(error)) => Err(ProposeError::Unknown { why: error.to_string() }),
            Err(RaftError::Fatal(error)) => Err(ProposeError::Fatal(sentence(&error))),
        })
    }

    /// Says whether this leader takes a proposal.
    fn take(&self, proposal: &Proposal) -> Result<(), ProposeError> {
        self.0.space.check(0).map_err(|why| {
            let server = self.0.options.server.clone();
            ProposeError::NoRoom { server, why: why.to_string() }
        })?;
        Ok(self.understood(&proposal.request.command)?)
    }

    /// Whether every member that is known here understands a command.
    fn understood(&self, command: &Command) -> Result<(), TooNew> {
        let metrics = self.metrics();
        let members = metrics.membership_config.membership().nodes().map(|(id, _)| RaftId(*id)).collect();
        self.read(|domain| version::check(domain, &members, command))
    }

    async fn propose_there(
        &self,
        id: u64,
        node: &Node,
        proposal: &Proposal,
        deadline: Instant,
    ) -> Attempt<Result<(u64, Outcome), ProposeError>> {
        let connection = self.0.connector.connect(id, node);
        let left = deadline.saturating_duration_since(Instant::now());
        let called = tokio::select! {
            called = connection.call(Method::Propose, proposal, left) => called,
            // One that hangs answers late, or not at all.
            () = self.until_another_leads(id) => {
                return Attempt::Done(Err(ProposeError::Unknown { why: format!("{} leads no more", node.server) }));
            }
        };
        match called {
            Ok(ProposeReply::Applied { index, outcome }) => {
                // If it does not come in time, only this server's own reads are behind.
                let _ = self.wait_applied(index, Instant::now() + OWN_APPLY_TIMEOUT).await;
                Attempt::Done(Ok((index, outcome)))
            }
            Ok(ProposeReply::NotLeader { leader }) => Attempt::NotLeader(leader),
            Ok(ProposeReply::Unknown { why }) => Attempt::Done(Err(ProposeError::Unknown { why })),
            Ok(ProposeReply::TooLarge { bytes }) => Attempt::Done(Err(ProposeError::TooLarge { bytes })),
            Ok(ProposeReply::NoRoom { server, why }) => Attempt::Done(Err(ProposeError::NoRoom { server, why })),
            Ok(ProposeReply::TooNew(why)) => Attempt::Done(Err(ProposeError::TooNew(why))),
            Err(error) if error.is_certain() => Attempt::NotLeader(None),
            Err(error) => Attempt::Done(Err(ProposeError::Unknown { why: sentence(&error) })),
        }
    }

    /// Proposes for another agent.
    pub(super) async fn serve_proposal(&self, proposal: Proposal) -> ProposeReply {
        match wire::encode(&proposal) {
            Ok(bytes) if bytes.len() > MAX_PROPOSAL_BYTES => {
                return ProposeReply::TooLarge { bytes: bytes.len() as u64 };
            }
            Ok(_) => {}
            Err(error) => return ProposeReply::Unknown { why: sentence(&error) },
        }
        match self.propose_here(proposal, Instant::now() + SERVE_TIMEOUT).await {
            Attempt::Done(Ok((index, outcome))) => ProposeReply::Applied { index, outcome },
            Attempt::Done(Err(ProposeError::NoRoom { server, why })) => ProposeReply::NoRoom { server, why },
            Attempt::Done(Err(ProposeError::TooNew(why))) => ProposeReply::TooNew(why),
            Attempt::Done(Err(error)) => ProposeReply::Unknown { why: sentence(&error) },
            Attempt::NotLeader(leader) => ProposeReply::NotLeader { leader },
        }
    }

    /// Waits until everything that was acknowledged anywhere before this call can be read here.
    pub async fn linearize(&self) -> Result<(), ReadError> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let mut leader: Leader = None;
        loop {
            let attempt = match &leader {
                Some((id, node)) => self.read_index_there(*id, node, deadline).await,
                None => self.read_index_here(deadline).await,
            };
            match attempt {
                Attempt::Done(index) => return self.wait_applied(index?, deadline).await,
                Attempt::NotLeader(hint) => leader = self.follow(leader, hint).await,
            }
            if Instant::now() >= deadline {
                return Err(ReadError::NoLeader);
            }
        }
    }

    async fn read_index_here(&self, deadline: Instant) -> Attempt<Result<u64, ReadError>> {
        let asked = self.0.raft.get_read_linearizer(ReadPolicy::ReadIndex);
        let Ok(read) = timeout_at(deadline, asked).await else {
            return Attempt::Done(Err(ReadError::NoQuorum("no answer in time".to_owned())));
        };
        match read {
            Ok(read) => Attempt::Done(Ok(read.read_log_id().index())),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Attempt::NotLeader(leader(forward))
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(error))) => {
                Attempt::Done(Err(ReadError::NoQuorum(error.to_string())))
            }
            Err(RaftError::Fatal(error)) => Attempt::Done(Err(ReadError::Fatal(sentence(&error)))),
        }
    }

    async fn read_index_there(&self, id: u64, node: &Node, deadline: Instant) -> Attempt<Result<u64, ReadError>> {
        let connection = self.0.connector.connect(id, node);
        let left = deadline.saturating_duration_since(Instant::now());
        let called = tokio::select! {
            called = connection.call(Method::ReadIndex, &(), left) => called,
            () = self.until_another_leads(id) => return Attempt::NotLeader(None),
        };
        match called {
            Ok(ReadReply::Index(index)) => Attempt::Done(Ok(index)),
            Ok(ReadReply::NotLeader { leader }) => Attempt::NotLeader(leader),
            Ok(ReadReply::NoQuorum { why }) => Attempt::Done(Err(ReadError::NoQuorum(why))),
            // A read can be asked for again, whatever happened to it.
            Err(_) => Attempt::NotLeader(None),
        }
    }

    /// Answers how far another agent must have applied.
    pub(super) async fn serve_read_index(&self) -> ReadReply {
        match self.read_index_here(Instant::now() + SERVE_TIMEOUT).await {
            Attempt::Done(Ok(index)) => ReadReply::Index(index),
            Attempt::Done(Err(error)) => ReadReply::NoQuorum { why: sentence(&error) },
            Attempt::NotLeader(leader) => ReadReply::NotLeader { leader },
        }
    }

    async fn wait_applied(&self, index: u64, deadline: Instant) -> Result<(), ReadError> {
        let mut applied = self.0.applied.clone();
        match timeout_at(deadline, applied.wait_for(|applied| *applied >= index)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ReadError::Fatal("the state machine is gone".to_owned())),
            Err(_) => Err(ReadError::Behind(index)),
        }
    }

    /// Reads the domain as it is here.
    pub fn read<T>(&self, read: impl FnOnce(&Domain) -> T) -> T {
        read(&self.0.domain.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The index of the last applied entry.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.0.applied.clone()
    }

    /// What is known of this log and of the group.
    pub fn status(&self) -> Status {
        let inner = &*self.0;
        let heard = *inner.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let around = Surroundings {
            server: &inner.options.server,
            address: &inner.options.address,
            local: &inner.local,
            last_log: inner.raft.data_metrics().borrow_watched().last_log,
            applied: *inner.applied.borrow(),
            heard: heard.map(|heard| heard.elapsed()),
            election_timeout: self.election_timeout(),
        };
        Status::new(&self.metrics(), &around)
    }

    /// The membership as it is seen here; who has caught up is known to the leader alone.
    pub fn membership(&self) -> Membership {
        // Three heartbeats: one that has just ended is not counted on.
        status::membership(&self.metrics(), Duration::from_millis(3 * self.0.options.heartbeat_ms))
    }

    /// Whether the domain is as new as the last membership in the log.
    pub fn has_applied_membership(&self) -> bool {
        let metrics = self.metrics();
        metrics.last_applied >= *metrics.membership_config.log_id()
    }

    /// The cluster that this server is in.
    pub fn cluster(&self) -> &ClusterName {
        &self.0.options.cluster
    }

    /// Who votes, where this server leads and nothing is under way.
    pub fn settled_voters(&self) -> Option<Voters> {
        status::voters(&self.metrics(), self.0.local.epoch)
    }

    /// The server that holds a log, and its address: as the domain has it, else as the membership does.
    pub(super) fn place(&self, id: RaftId) -> Option<(String, String)> {
        let known = self.read(|domain| {
            let server = domain.servers.values().find(|server| server.raft_id == id)?;
            Some((server.id.to_string(), server.address.clone()))
        });
        known.or_else(|| {
            let metrics = self.metrics();
            let node = metrics.membership_config.membership().get_node(&id.0)?;
            Some((node.server.clone(), node.address.clone()))
        })
    }

    /// The channels to the other agents.
    pub fn peers(&self) -> Peers {
        self.0.connector.peers.clone()
    }

    /// Whose log this is.
    pub fn local(&self) -> &LocalLog {
        &self.0.local
    }

    /// Dials another address for a log from now on, before the group has agreed that it moved: a raft id names one log,
    /// and certificates tell who answers.
    pub(super) fn learn_address(&self, id: RaftId, address: &str) {
        self.0.connector.learn(id.0, address);
    }

    /// Replicates to a log that does not vote. Nothing, if that is so already.
    pub async fn add_learner(&self, id: RaftId, node: Node) -> Result<(), ChangeError> {
        let metrics = self.metrics();
        self.learn_address(id, &node.address);
        let known = metrics.membership_config.membership().get_node(&id.0).cloned();
        match known {
            Some(known) if known == node && metrics.state.is_leader() => Ok(()),
            // A raft id names one log forever, so a new address of it cannot send messages to another log.
            Some(known) if known != node => self.change(ChangeMembers::SetNodes(BTreeMap::from([(id.0, node)]))).await,
            _ => self.change(ChangeMembers::AddNodes(BTreeMap::from([(id.0, node)]))).await,
        }
    }

    /// Makes exactly these the voters. Those that leave stay learners.
    pub async fn change_voters(&self, voters: BTreeSet<RaftId>) -> Result<(), ChangeError> {
        self.change(ChangeMembers::ReplaceAllVoters(voters.into_iter().map(|id| id.0).collect())).await
    }

    /// Ends the replication to logs that do not vote.
    pub async fn forget(&self, ids: BTreeSet<RaftId>) -> Result<(), ChangeError> {
        self.change(ChangeMembers::RemoveNodes(ids.into_iter().map(|id| id.0).collect())).await
    }

    async fn change(&self, change: ChangeMembers<u64, Node>) -> Result<(), ChangeError> {
        let changed = timeout(CHANGE_TIMEOUT, self.0.raft.change_membership(change, true)).await;
        match changed.map_err(|_| ChangeError::Timeout)? {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(
                ClientWriteError::ForwardToLeader(forward) | ClientWriteError::LogEntryDiscarded(forward),
            )) => Err(ChangeError::NotLeader { leader: forward.leader_node }),
            Err(RaftError::APIError(error)) => Err(ChangeError::Refused(error.to_string())),
            Err(RaftError::Fatal(error)) => Err(ChangeError::Fatal(sentence(&error))),
        }
    }

    /// Lets the voter that has come farthest lead, if this one leads, and waits a moment until it does. `heirs` says
    /// which may; `None`: any.
    pub async fn hand_over(&self, heirs: Option<&BTreeSet<RaftId>>) {
        let metrics = self.metrics();
        let me = metrics.id;
        if !metrics.state.is_leader() {
            return;
        }
        let matched = |id: &u64| metrics.replication.as_ref().and_then(|logs| logs.get(id).copied().flatten());
        let voters = metrics.membership_config.membership().voter_ids();
        let may = |id: &u64| *id != me && heirs.is_none_or(|heirs| heirs.contains(&RaftId(*id)));
        let Some(next) = voters.filter(may).max_by_key(matched) else {
            return;
        };
        if self.0.raft.trigger().transfer_leader(next).await.is_err() {
            return;
        }
        let another = |metrics: &Metrics| metrics.current_leader.is_some_and(|leader| leader != me);
        let wait = self.0.raft.wait(Some(HAND_OVER_TIMEOUT));
        if wait.metrics(another, "another leads").await.is_err() {
            tracing::warn!(to = next, "leadership was not taken over in time");
        }
    }

    /// Stops Raft and lets go of the volume.
    pub async fn shutdown(&self) {
        // It fails only if Raft has panicked, which `failed` reports.
        let _ = self.0.raft.shutdown().await;
        let store = self.0.store.clone();
        let _ = clock::blocking(move || store.close()).await;
    }

    /// Waits until Raft has stopped by itself and says why: the process must then end, with a status that is not 0.
    pub async fn failed(&self) -> String {
        let mut failure = self.0.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(failure) => failure.clone().unwrap_or_default(),
            // The sender lives in `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// The gRPC service that runs this Raft alone. An agent that answers also before its Raft runs uses
    /// [`server::Host`].
    pub fn grpc(&self, admission: Admission) -> RaftServer<server::Service> {
        let Options { server, address, cluster, version, .. } = &self.0.options;
        let host = server::Host::new(server.clone(), address.clone(), cluster.clone(), version.clone());
        host.set_handle(Some(self.clone()));
        server::Service::serve(host, admission)
    }

    pub(super) fn raft(&self) -> &Raft {
        &self.0.raft
    }

    pub(super) fn shelf(&self) -> &Shelf {
        &self.0.shelf
    }

    pub(super) fn space(&self) -> &Space {
        &self.0.space
    }

    /// Notes that the leader was heard of.
    pub(super) fn heard(&self) {
        *self.0.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Notes that this Raft must not continue. The first reason counts.
    pub(super) fn fail(&self, error: &dyn StdError) {
        let why = sentence(error);
        tracing::error!(%why, "raft cannot continue");
        self.0.failure.send_if_modified(|failure| failure.is_none().then(|| *failure = Some(why)).is_some());
    }

    pub(super) fn metrics(&self) -> Metrics {
        self.0.raft.metrics().borrow_watched().clone()
    }

    fn election_timeout(&self) -> Duration {
        Duration::from_millis(self.0.options.election_max_ms)
    }
}

fn leader(forward: ForwardToLeader<TypeConfig>) -> Leader {
    forward.leader_id.zip(forward.leader_node)
}

/// An error and what is behind it, in one line.
pub(super) fn sentence(error: &dyn StdError) -> String {
    let mut sentence = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        sentence = format!("{sentence}: {error}");
        source = error.source();
    }
    sentence
}
