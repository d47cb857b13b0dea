//! What an agent says to others: Raft's messages, and what is handed on to the leader.
//!
//! Every message names domain, epoch and the log that is meant. A refusal of these makes the other one unreachable for
//! Raft and nothing else: what it means is decided where the anchor is read.

use super::recovering::RECOVER_TIMEOUT;
use super::snapshot::SnapshotData;
use super::types::{LogId, Node, Snapshot, TypeConfig, Vote};
use super::wire::{self, SnapshotHead};
use crate::clock;
use crate::net::{self, Channel, Dial, Tls};
use crate::proto::raft::raft_client::RaftClient;
use crate::proto::raft::{
    JoinReply, JoinRequest, Message, RecoverRequest, Reply, SealReply, SealRequest, SnapshotPart, StatusReply,
    StatusRequest, reply, snapshot_part,
};
use futures::{Stream, StreamExt, stream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, v2::RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The greatest message. Snapshots go in parts.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The greatest part of a snapshot.
pub const MAX_PART_BYTES: usize = 1 << 20;
/// Appends that are greater are cut; well below the limit, for no proposal is greater than half of it.
const MAX_APPEND_BYTES: usize = 8 << 20;
/// How long an append with entries may take at least: openraft allows a heartbeat's time, which one slow fsync exceeds.
const APPEND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an agent may take to say what it knows of itself, or to take up a log.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an agent may take to seal its log: a little more than it gives itself.
const SEAL_TIMEOUT: Duration = Duration::from_secs(4);
/// How many agents are asked in one attempt to join.
const MAX_JOIN_HOPS: usize = 16;

/// Why an agent did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// The call failed.
    #[error("no answer from {address}: {}", .source.message())]
    Call {
        /// Whom it was for.
        address: String,
        /// Why.
        source: Box<tonic::Status>,
    },
    /// The call took too long.
    #[error("no answer from {address} within {} ms", .after.as_millis())]
    Timeout {
        /// Whom it was for.
        address: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The other one is of another domain or epoch, or has another log.
    #[error("{address} has domain '{domain}', epoch {epoch}, log {raft_id}, which the message was not addressed to")]
    Fenced {
        /// Whom it was for.
        address: String,
        /// Its domain.
        domain: String,
        /// Its epoch.
        epoch: u64,
        /// Its log.
        raft_id: u64,
    },
    /// The other one could not serve it.
    #[error("{address} answered: {why}")]
    Refused {
        /// Whom it was for.
        address: String,
        /// What it said.
        why: String,
    },
    /// The message cannot be encoded, or the answer decoded.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// The snapshot's file cannot be read.
    #[error("the snapshot cannot be read")]
    Snapshot(#[source] std::io::Error),
    /// The list of servers is empty.
    #[error("there is no server to ask")]
    NoServer,
}

impl Error {
    /// Whether the message has certainly not been carried out.
    pub(super) fn is_certain(&self) -> bool {
        match self {
            Self::Net(_) | Self::Fenced { .. } | Self::Snapshot(_) | Self::NoServer => true,
            Self::Call { source, .. } => never_connected(source) || source.code() == tonic::Code::FailedPrecondition,
            Self::Timeout { .. } | Self::Refused { .. } | Self::Wire(_) => false,
        }
    }
}

fn never_connected(status: &tonic::Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The channels to other agents; clones share them.
#[derive(Clone)]
pub struct Peers(Arc<Shared>);

struct Shared {
    channels: Mutex<Channels>,
    fenced: AtomicU64,
}

struct Channels {
    dial: Dial,
    tls: Option<Tls>,
    /// Under which of our certificates they were made.
    generation: u64,
    by_address: BTreeMap<String, Channel>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peers({} fenced)", self.fenced())
    }
}

impl Peers {
    /// Makes it; nothing is connected yet.
    pub fn new(tls: Option<Tls>) -> Self {
        let dialled_with = tls.clone();
        Self::made(Arc::new(move |address| net::channel(address, dialled_with.as_ref())), tls)
    }

    /// The same, with channels made in another way.
    pub fn dialled(dial: Dial) -> Self {
        Self::made(dial, None)
    }

    fn made(dial: Dial, tls: Option<Tls>) -> Self {
        let channels = Mutex::new(Channels { dial, tls, generation: 0, by_address: BTreeMap::new() });
        Self(Arc::new(Shared { channels, fenced: AtomicU64::new(0) }))
    }

    /// How many of our messages were refused as of another domain, epoch or log.
    pub fn fenced(&self) -> u64 {
        self.0.fenced.load(Ordering::Relaxed)
    }

    /// Asks an agent what it knows of itself.
    pub async fn status(&self, address: &str) -> Result<StatusReply, Error> {
        let mut client = self.client(address)?;
        within(address, ASK_TIMEOUT, client.status(StatusRequest {})).await
    }

    /// Asks an agent to seal its log, and what it holds.
    pub async fn seal(&self, address: &str, request: &SealRequest) -> Result<SealReply, Error> {
        let mut client = self.client(address)?;
        within(address, SEAL_TIMEOUT, client.seal(request.clone())).await
    }

    /// Passes an operator's question on to an agent whose log goes further: the answer in JSON, or why there is none.
    pub async fn recover(&self, address: &str, request: RecoverRequest) -> Result<String, String> {
        let mut client = self.client(address).map_err(|error| error.to_string())?;
        let reply = within(address, RECOVER_TIMEOUT, client.recover(request)).await;
        let reply = reply.map_err(|error| error.to_string())?;
        if reply.refusal.is_empty() { Ok(reply.answer) } else { Err(reply.refusal) }
    }

    /// Asks to be replicated to, beginning with the given agents and following their hints.
    pub async fn join(&self, addresses: &[String], request: &JoinRequest) -> Result<JoinReply, Error> {
        let mut ahead: VecDeque<String> = addresses.iter().cloned().collect();
        let mut asked = Vec::new();
        let mut last = Err(Error::NoServer);
        while let Some(address) = ahead.pop_front() {
            if asked.len() == MAX_JOIN_HOPS || asked.contains(&address) {
                continue;
            }
            // One address that cannot be dialled says nothing of the others.
            let reply = match self.client(&address) {
                Ok(mut client) => within(&address, ASK_TIMEOUT, client.join(request.clone())).await,
                Err(error) => Err(error),
            };
            asked.push(address);
            match reply {
                Ok(reply) if reply.accepted => return Ok(reply),
                Ok(reply) => {
                    if !reply.leader_address.is_empty() {
                        ahead.push_front(reply.leader_address.clone());
                    }
                    last = Ok(reply);
                }
                // What an agent that answers says is worth more than that another is silent.
                Err(error) if last.is_err() => last = Err(error),
                Err(_) => {}
            }
        }
        last
    }

    fn client(&self, address: &str) -> Result<RaftClient<Channel>, Error> {
        let mut channels = self.0.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = channels.tls.as_ref().map_or(0, |tls| tls.current().generation);
        if channels.generation != generation {
            // What is under way ends on its old channel; what begins now shows, and demands, the new certificate.
            channels.by_address.clear();
            channels.generation = generation;
        }
        let channel = match channels.by_address.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let channel = (channels.dial)(address)?;
                channels.by_address.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        let client = RaftClient::new(channel);
        Ok(client.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES))
    }

    fn open(&self, address: &str, reply: Reply) -> Result<Vec<u8>, Error> {
        let address = address.to_owned();
        match reply.result {
            Some(reply::Result::Payload(payload)) => Ok(payload),
            Some(reply::Result::Fenced(fenced)) => {
                self.0.fenced.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%address, epoch = fenced.epoch, receiver = fenced.receiver, "a message was refused by its fence");
                let (domain, epoch, raft_id) = (fenced.domain, fenced.epoch, fenced.receiver);
                Err(Error::Fenced { address, domain, epoch, raft_id })
            }
            Some(reply::Result::Error(why)) => Err(Error::Refused { address, why: wire::decode(&why, "the answer")? }),
            None => Err(Error::Refused { address, why: "nothing".to_owned() }),
        }
    }
}

async fn within<T>(
    address: &str,
    after: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    let address = || address.to_owned();
    match tokio::time::timeout(after, call).await {
        Err(_) => Err(Error::Timeout { address: address(), after }),
        Ok(Err(source)) => Err(Error::Call { address: address(), source: Box::new(source) }),
        Ok(Ok(response)) => Ok(response.into_inner()),
    }
}

/// Which call a message goes by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    Append,
    Vote,
    PreVote,
    TransferLeader,
    Propose,
    ReadIndex,
}

/// Makes the connections of one log with others of its domain and epoch.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) peers: Peers,
    pub(super) domain: String,
    pub(super) epoch: u64,
    addresses: Arc<Mutex<BTreeMap<u64, String>>>,
}

impl Connector {
    pub(super) fn new(peers: Peers, domain: String, epoch: u64) -> Self {
        Self { peers, domain, epoch, addresses: Arc::default() }
    }

    pub(super) fn connect(&self, receiver: u64, node: &Node) -> Connection {
        self.learn(receiver, &node.address);
        Connection { connector: self.clone(), receiver }
    }

    /// Dials another address for a log from now on. openraft would keep to the old one until another server leads.
    pub(super) fn learn(&self, receiver: u64, address: &str) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.insert(receiver, address.to_owned());
    }

    fn address(&self, receiver: u64) -> String {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(&receiver).cloned().unwrap_or_default()
    }
}

impl RaftNetworkFactory<TypeConfig> for Connector {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, node: &Node) -> Connection {
        self.connect(target, node)
    }
}

/// The way to one other log.
#[derive(Debug)]
pub struct Connection {
    connector: Connector,
    receiver: u64,
}

impl Connection {
    pub(super) async fn call<Q: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        request: &Q,
        timeout: Duration,
    ) -> Result<R, Error> {
        self.send(method, wire::encode(request)?, timeout).await
    }

    async fn send<R: DeserializeOwned>(&self, method: Method, payload: Vec<u8>, timeout: Duration) -> Result<R, Error> {
        let address = self.connector.address(self.receiver);
        let mut client = self.connector.peers.client(&address)?;
        let message = self.message(payload);
        let call = async {
            match method {
                Method::Append => client.append(message).await,
                Method::Vote => client.vote(message).await,
                Method::PreVote => client.pre_vote(message).await,
                Method::TransferLeader => client.transfer_leader(message).await,
                Method::Propose => client.propose(message).await,
                Method::ReadIndex => client.read_index(message).await,
            }
        };
        let reply = within(&address, timeout, call).await?;
        let payload = self.connector.peers.open(&address, reply)?;
        Ok(wire::decode(&payload, "the answer")?)
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: &Snapshot,
        timeout: Duration,
    ) -> Result<SnapshotResponse<TypeConfig>, Error> {
        let data = &snapshot.snapshot;
        let head =
            SnapshotHead { vote, meta: snapshot.meta.clone(), bytes: data.bytes, checksum: data.checksum.clone() };
        let head = snapshot_part::Part::Head(self.message(wire::encode(&head)?));
        let head = stream::iter([SnapshotPart { part: Some(head) }]);
        let file = data.file.try_clone().map_err(Error::Snapshot)?;
        let address = self.connector.address(self.receiver);
        let mut client = self.connector.peers.client(&address)?;
        let reply = within(&address, timeout, client.snapshot(head.chain(parts(file)))).await?;
        let payload = self.connector.peers.open(&address, reply)?;
        Ok(wire::decode(&payload, "the answer")?)
    }

    fn message(&self, payload: Vec<u8>) -> Message {
        let Connector { domain, epoch, .. } = &self.connector;
        Message { domain: domain.clone(), epoch: *epoch, receiver: self.receiver, payload }
    }
}

/// The content of a file in parts. It ends early where reading fails: the receiver counts.
fn parts(file: std::fs::File) -> impl Stream<Item = SnapshotPart> {
    stream::unfold(Arc::new(file), |file| async {
        let reading = file.clone();
        let read = clock::blocking(move || {
            let mut part = Vec::new();
            (&*reading).take(MAX_PART_BYTES as u64).read_to_end(&mut part).map(|_| part)
        });
        match read.await.flatten() {
            Ok(part) if part.is_empty() => None,
            Ok(part) => Some((SnapshotPart { part: Some(snapshot_part::Part::Data(part)) }, file)),
            Err(error) => {
                tracing::warn!(%error, "the snapshot cannot be read");
                None
            }
        }
    })
}

/// Encodes an append and cuts off entries until it is small enough. Names the last entry that is left, if any were cut.
fn fit(mut append: AppendEntriesRequest<TypeConfig>) -> Result<(Vec<u8>, Option<LogId>), wire::Error> {
    let mut cut = false;
    loop {
        let payload = wire::encode(&append)?;
        if payload.len() <= MAX_APPEND_BYTES || append.entries.len() <= 1 {
            let last = append.entries.last().map(|entry| entry.log_id).filter(|_| cut);
            return Ok((payload, last));
        }
        append.entries.truncate(append.entries.len() / 2);
        cut = true;
    }
}

/// For Raft, one that is slow may be asked again at once; one that cannot be reached or refuses is left alone a while.
fn rpc_error(error: Error) -> RPCError<TypeConfig> {
    match error {
        Error::Timeout { .. } => RPCError::Network(NetworkError::new(&error)),
        error => RPCError::Unreachable(Unreachable::new(&error)),
    }
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        append: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let heartbeat = append.entries.is_empty();
        let timeout = if heartbeat { option.hard_ttl() } else { option.hard_ttl().max(APPEND_TIMEOUT) };
        let (payload, cut) = fit(append).map_err(|error| rpc_error(error.into()))?;
        let response = self.send(Method::Append, payload, timeout).await.map_err(rpc_error)?;
        Ok(match (response, cut) {
            (AppendEntriesResponse::Success, Some(last)) => AppendEntriesResponse::PartialSuccess(Some(last)),
            (response, _) => response,
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Method::Vote, &request, option.hard_ttl()).await.map_err(rpc_error)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Method::PreVote, &request, option.hard_ttl()).await.map_err(rpc_error)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, &snapshot, option.hard_ttl()) => {
                sent.map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Method::TransferLeader, &request, option.hard_ttl()).await.map_err(rpc_error)
    }
}
