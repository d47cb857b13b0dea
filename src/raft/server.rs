//! What an agent answers to others on its agent-to-agent port, also while its Raft does not run.

use super::admission::{Admission, Speaker};
use super::handle::{Handle, sentence};
use super::recovering::{Accepting, Questions};
use super::said::Said;
use super::sealing::Sealing;
use super::snapshot::{self, Incoming};
use super::status::{Role, Status};
use super::transport::{MAX_MESSAGE_BYTES, MAX_PART_BYTES};
use super::types::{Append, Node, Proposal, Snapshot, Transfer, Vote, VoteRequest, bare_term};
use super::volume::Extent;
use super::wire::{self, SnapshotHead};
use crate::clock;
use crate::proto::raft::raft_server::{Raft, RaftServer};
use crate::proto::raft::{
    Fenced, JoinReply, JoinRequest, Message, RecoverReply, RecoverRequest, Reply, SealReply, SealRequest, SnapshotPart,
    StatusReply, StatusRequest, reply, snapshot_part,
};
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Outcome, Request as Propose, Role as ActorRole};
use kaa_core::domain::ids::{ClusterName, Millis, RaftId, ServerId, Uid};
use kaa_core::domain::server::Server;
use kaa_core::membership::LocalLog;
use openraft::EntryPayload;
use openraft::raft::AppendEntriesResponse;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::watch;
use tonic::{Extensions, Request, Response, Status as Refusal, Streaming};

/// What an agent is, whatever its Raft does; clones share it.
#[derive(Clone, Debug)]
pub struct Host(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: ServerId,
    address: String,
    cluster: ClusterName,
    version: String,
    incarnation: String,
    local: RwLock<Option<LocalLog>>,
    extent: RwLock<Option<Extent>>,
    handle: RwLock<Option<Handle>>,
    said: RwLock<Said>,
    sealing: watch::Sender<Sealing>,
    leaving: AtomicBool,
    questions: Mutex<Option<Questions>>,
    accepting: watch::Sender<Accepting>,
}

impl Host {
    /// Makes it, with no Raft running.
    pub fn new(server: ServerId, address: String, cluster: ClusterName, version: String) -> Self {
        Self(Arc::new(Shared {
            server,
            address,
            cluster,
            version,
            incarnation: format!("{:016x}", clock::random_u64()),
            local: RwLock::default(),
            extent: RwLock::default(),
            handle: RwLock::default(),
            said: RwLock::default(),
            sealing: watch::Sender::default(),
            leaving: AtomicBool::default(),
            questions: Mutex::default(),
            accepting: watch::Sender::default(),
        }))
    }

    pub(super) fn server(&self) -> &ServerId {
        &self.0.server
    }

    pub(super) fn sealing(&self) -> &watch::Sender<Sealing> {
        &self.0.sealing
    }

    pub(super) fn questions(&self) -> &Mutex<Option<Questions>> {
        &self.0.questions
    }

    pub(super) fn accepting(&self) -> &watch::Sender<Accepting> {
        &self.0.accepting
    }

    /// How far the log on the volume went when it was shown last.
    pub(super) fn shown_extent(&self) -> Option<Extent> {
        self.0.extent.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows how far the log on the volume goes while Raft does not run.
    pub fn set_extent(&self, extent: Extent) {
        *self.0.extent.write().unwrap_or_else(PoisonError::into_inner) = Some(extent);
    }

    /// Whose log lies on the volume, as it was shown last.
    pub fn local_log(&self) -> Option<LocalLog> {
        self.0.local.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows whose log lies on the volume while Raft does not run.
    pub fn set_local_log(&self, local: LocalLog) {
        *self.0.local.write().unwrap_or_else(PoisonError::into_inner) = Some(local);
    }

    /// Serves a running Raft from now on, or none.
    pub fn set_handle(&self, handle: Option<Handle>) {
        *self.0.handle.write().unwrap_or_else(PoisonError::into_inner) = handle;
    }

    /// Notes that this agent stops without further waiting: from now on the others must not count on it.
    pub fn set_leaving(&self) {
        self.0.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether that was told.
    pub fn is_leaving(&self) -> bool {
        self.0.leaving.load(Ordering::Relaxed)
    }

    pub(super) fn said(&self) -> &RwLock<Said> {
        &self.0.said
    }

    /// The running Raft.
    pub fn handle(&self) -> Option<Handle> {
        self.0.handle.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What this agent tells of itself.
    pub fn status(&self) -> StatusReply {
        let Shared { server, address, cluster, version, incarnation, .. } = &*self.0;
        let mut reply = StatusReply {
            server: server.to_string(),
            address: address.clone(),
            cluster: cluster.to_string(),
            version: version.clone(),
            incarnation: incarnation.clone(),
            leaving: self.is_leaving(),
            lifecycle: if self.is_sealed() { "SEALED" } else { "INITIALIZING" }.to_owned(),
            ..StatusReply::default()
        };
        self.tell_said(&mut reply);
        match self.handle() {
            Some(handle) => tell(handle.status(), &mut reply),
            None => {
                if let Some(local) = self.local_log() {
                    reply.domain = local.domain.as_ref().map(ToString::to_string).unwrap_or_default();
                    (reply.epoch, reply.raft_id) = (local.epoch.0, local.raft_id.0);
                }
                if let Some(extent) = self.shown_extent() {
                    (reply.position_term, reply.last_log_index) = (extent.position.term, extent.position.index);
                    reply.last_log_term = bare_term(extent.position.term);
                }
            }
        }
        reply
    }
}

fn tell(status: Status, reply: &mut StatusReply) {
    reply.domain = status.domain.to_string();
    reply.epoch = status.epoch.0;
    reply.raft_id = status.raft_id.0;
    reply.role = status.role.to_string();
    reply.lifecycle = status.lifecycle.to_string();
    reply.leader = status.leader.map(|leader| leader.to_string()).unwrap_or_default();
    reply.term = status.term;
    reply.last_log_term = status.last_log_term;
    reply.last_log_index = status.last_log_index;
    reply.position_term = status.position.term;
    reply.commit_index = status.commit_index;
    reply.applied_index = status.applied_index;
    reply.quorum = status.quorum;
}

/// The gRPC service.
#[derive(Debug)]
pub struct Service {
    host: Host,
    admission: Admission,
}

impl Service {
    /// Makes it ready to be added to a server.
    pub fn serve(host: Host, admission: Admission) -> RaftServer<Self> {
        let server = RaftServer::new(Self { host, admission });
        server.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn running(&self) -> Result<Handle, Refusal> {
        // Not `unavailable`, which is also said of a connection that breaks: this is certainly not carried out.
        self.host.handle().ok_or_else(|| Refusal::failed_precondition("Raft does not run here yet"))
    }

    /// Judges who calls.
    fn admit<'a>(&'a self, extensions: &'a Extensions) -> Result<Speaker<'a>, Refusal> {
        let known = || {
            let known = |domain: &Domain| domain.servers.values().map(|server| server.address.clone()).collect();
            self.host.handle().map(|handle| handle.read(known)).unwrap_or_default()
        };
        self.admission.admit(extensions, &self.host.0.address, known)
    }

    /// The audit trail says who changed what, so only a server itself may propose in its name. For an operator, the agent that
    /// took the request vouches.
    fn own_name(&self, speaker: &Speaker<'_>, handle: &Handle, actor: &Actor) -> Result<(), Refusal> {
        if actor.role == ActorRole::Operator {
            return Ok(());
        }
        let server = ServerId::from(actor.name.as_str());
        let known = handle.read(|domain| domain.servers.get(&server).map(|server| server.address.clone()));
        // Of a server that is not known yet, the address is what ours would be under its name.
        let place = self.host.0.address.split_once('.').map_or("", |(_, place)| place);
        speaker.at(&actor.name, &known.unwrap_or_else(|| format!("{server}.{place}")))
    }

    /// Finds the log that a message is meant for.
    fn meant(&self, message: &Message) -> Result<Handle, Unserved> {
        let handle = self.running()?;
        let local = handle.local();
        let domain = local.domain.as_ref().map_or("", |domain| domain.as_str());
        if message.domain == domain && message.epoch == local.epoch.0 && message.receiver == local.raft_id.0 {
            return Ok(handle);
        }
        let (domain, epoch, receiver) = (domain.to_owned(), local.epoch.0, local.raft_id.0);
        Err(Unserved::Answer(Reply { result: Some(reply::Result::Fenced(Fenced { domain, epoch, receiver })) }))
    }

    /// Opens a message that is meant for the log that runs here.
    fn open<T: DeserializeOwned>(&self, message: &Message, what: &str) -> Result<(Handle, T), Unserved> {
        let handle = self.meant(message)?;
        let payload = wire::decode(&message.payload, what).map_err(|error| Unserved::answer(&error))?;
        Ok((handle, payload))
    }
}

/// Why a message was not served: told as an answer, or as the failure of the call.
enum Unserved {
    Answer(Reply),
    Call(Refusal),
}

impl From<Refusal> for Unserved {
    fn from(refusal: Refusal) -> Self {
        Self::Call(refusal)
    }
}

impl Unserved {
    fn answer(error: &dyn std::error::Error) -> Self {
        match wire::encode(&sentence(error)) {
            Ok(bytes) => Self::Answer(Reply { result: Some(reply::Result::Error(bytes)) }),
            Err(error) => Self::Call(Refusal::internal(error.to_string())),
        }
    }
}

type Served = Result<Response<Reply>, Refusal>;

fn answer<T: Serialize>(result: Result<T, Unserved>) -> Served {
    let encoded = result.and_then(|value| wire::encode(&value).map_err(|error| Unserved::answer(&error)));
    match encoded {
        Ok(payload) => Ok(Response::new(Reply { result: Some(reply::Result::Payload(payload)) })),
        Err(Unserved::Answer(reply)) => Ok(Response::new(reply)),
        Err(Unserved::Call(refusal)) => Err(refusal),
    }
}

impl Service {
    async fn append_entries(&self, request: &Request<Message>) -> Result<impl Serialize + use<>, Unserved> {
        let (speaker, message) = (self.admit(request.extensions())?, request.get_ref());
        let handle = self.meant(message)?;
        let append: Append = wire::decode(&message.payload, "what the leader sends").map_err(|error| {
            if error.is_newer() {
                // Continuing without it would leave this server behind forever, silently.
                handle.fail(&error);
            }
            Unserved::answer(&error)
        })?;
        holds(&speaker, &handle, &append.vote)?;
        // Raft's own entries are few and small, and a change of the membership may be what helps.
        if append.entries.iter().any(|entry| matches!(entry.payload, EntryPayload::Normal(_))) {
            handle.space().check(message.payload.len() as u64).map_err(|full| Unserved::answer(&full))?;
        }
        let response = handle.raft().append_entries(append).await.map_err(|error| Unserved::answer(&error))?;
        if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
            handle.heard();
        }
        Ok(response)
    }

    async fn receive(&self, request: Request<Streaming<SnapshotPart>>) -> Result<impl Serialize + use<>, Unserved> {
        let (_, extensions, mut parts) = request.into_parts();
        let speaker = self.admit(&extensions)?;
        let first = parts.message().await?.and_then(|part| part.part);
        let Some(snapshot_part::Part::Head(head)) = first else {
            return Err(Refusal::invalid_argument("a snapshot begins with its head").into());
        };
        let (handle, head) = self.open::<SnapshotHead>(&head, "a snapshot's head")?;
        holds(&speaker, &handle, &head.vote)?;
        handle.space().check(head.bytes).map_err(|full| Unserved::answer(&full))?;
        let failed = |error: snapshot::Error| Unserved::answer(&error);
        let mut incoming = handle.shelf().receive().map_err(failed)?;
        let mut bytes = 0;
        while let Some(part) = parts.message().await? {
            let Some(snapshot_part::Part::Data(data)) = part.part else {
                return Err(Refusal::invalid_argument("a snapshot has one head").into());
            };
            if data.len() > MAX_PART_BYTES {
                return Err(Refusal::invalid_argument("a part of a snapshot is too large").into());
            }
            bytes += data.len() as u64;
            incoming = write(incoming, data).await?.map_err(failed)?;
            handle.heard();
        }
        if bytes != head.bytes {
            return Err(Refusal::data_loss("the snapshot broke off").into());
        }
        let snapshot = Snapshot { meta: head.meta, snapshot: incoming.finish(head.checksum).map_err(failed)? };
        let installed = handle.raft().install_full_snapshot(head.vote, snapshot).await;
        installed.map_err(|error| Unserved::answer(&error))
    }

    async fn take_in(&self, request: JoinRequest) -> Result<JoinReply, Refusal> {
        let handle = self.running()?;
        let refused = |leader_address: String, reason: String| JoinReply { accepted: false, leader_address, reason };
        let local = handle.local();
        let domain = local.domain.as_ref().map_or("", |domain| domain.as_str());
        if request.domain != domain || request.epoch != local.epoch.0 || request.raft_id == 0 {
            let reason = format!("this is domain {domain}, epoch {}", local.epoch);
            return Ok(refused(String::new(), reason));
        }
        let status = handle.status();
        if status.role != Role::Leader {
            let leader = status.leader_address().unwrap_or_default();
            return Ok(refused(leader, "this server does not lead".to_owned()));
        }
        // It may be a voter that the quorum misses, back at another address: then nothing can be proposed before.
        handle.learn_address(RaftId(request.raft_id), &request.address);
        // The domain learns of the new log first: otherwise a reader of the membership would take the log for a stale one.
        if let Err(why) = make_known(&handle, &request).await {
            return Ok(refused(String::new(), why));
        }
        let node = Node { server: request.server, address: request.address };
        Ok(match handle.add_learner(RaftId(request.raft_id), node).await {
            Ok(()) => JoinReply { accepted: true, leader_address: String::new(), reason: String::new() },
            Err(error) => refused(error.leader_address().unwrap_or_default().to_owned(), error.to_string()),
        })
    }
}

/// Has the domain know the anchor of another cluster before it knows a server there: what the agents there read proves nothing
/// before. The leader that does it first is where the domain was founded.
async fn anchored(handle: &Handle, request: &JoinRequest, cluster: &ClusterName) -> Result<(), String> {
    let (server, raft_id) = (ServerId::from(request.server.as_str()), RaftId(request.raft_id));
    // What would be refused is not proposed: the agent asks again every second.
    handle.read(|domain| domain.is_named_apart(&server, cluster)).map_err(|why| why.to_string())?;
    let (anchor, founded_in): (Uid, _) = (request.anchor.as_str().into(), handle.cluster().clone());
    if handle.read(|domain| domain.anchors.get(cluster) == Some(&anchor)) {
        return Ok(());
    }
    let known = Command::AnchorCluster(change::AnchorCluster { cluster: cluster.clone(), anchor, founded_in });
    let refused = noted(handle, known).await;
    // A member whose anchor was created again still says where it is. Its cluster waits for `kaa adopt`.
    let is_member = |domain: &Domain| domain.servers.get(&server).is_some_and(|known| known.raft_id == raft_id);
    if handle.read(is_member) { Ok(()) } else { refused }
}

/// Has the domain note which log the server holds now.
async fn make_known(handle: &Handle, request: &JoinRequest) -> Result<(), String> {
    let cluster = ClusterName::from(request.cluster.as_str());
    if !request.anchor.is_empty() {
        anchored(handle, request, &cluster).await?;
    } else if handle.read(|domain| domain.anchors.contains_key(&cluster)) {
        return Err(format!(
            "cluster {cluster} is not the entry point of this domain: --entrypoint-cluster has to name it"
        ));
    }
    let server = Server {
        id: request.server.as_str().into(),
        cluster: request.cluster.as_str().into(),
        address: request.address.clone(),
        raft_id: RaftId(request.raft_id),
        version: request.version.clone(),
        labels: BTreeMap::new(),
        joined: Millis::default(),
    };
    noted(handle, Command::AdmitServer(change::AdmitServer { server })).await
}

async fn noted(handle: &Handle, command: Command) -> Result<(), String> {
    let actor = Actor { role: ActorRole::RaftLeader, name: handle.status().server.to_string() };
    match handle.propose(Propose { actor, command }).await {
        Ok(Outcome::Refused(why)) => Err(why.to_string()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes a part of a snapshot on a thread that may block.
async fn write(mut incoming: Incoming, data: Vec<u8>) -> Result<Result<Incoming, snapshot::Error>, Refusal> {
    let writing = clock::blocking(move || incoming.write(&data).map(|()| incoming));
    writing.await.map_err(|error| Refusal::internal(error.to_string()))
}

/// Whether the speaker may vote as it does, or lead as it says.
fn holds(speaker: &Speaker<'_>, handle: &Handle, vote: &Vote) -> Result<(), Refusal> {
    let raft_id = vote.leader_id.node_id;
    speaker.holds(raft_id, || handle.place(RaftId(raft_id)))
}

#[tonic::async_trait]
impl Raft for Service {
    async fn append(&self, request: Request<Message>) -> Served {
        answer(self.append_entries(&request).await)
    }

    async fn vote(&self, request: Request<Message>) -> Served {
        let voted = async {
            let speaker = self.admit(request.extensions())?;
            let (handle, vote) = self.open::<VoteRequest>(request.get_ref(), "a request for a vote")?;
            holds(&speaker, &handle, &vote.vote)?;
            handle.raft().vote(vote).await.map_err(|error| Unserved::answer(&error))
        };
        answer(voted.await)
    }

    async fn pre_vote(&self, request: Request<Message>) -> Served {
        let voted = async {
            let speaker = self.admit(request.extensions())?;
            let (handle, vote) = self.open::<VoteRequest>(request.get_ref(), "a request for a vote")?;
            holds(&speaker, &handle, &vote.vote)?;
            handle.raft().pre_vote(vote).await.map_err(|error| Unserved::answer(&error))
        };
        answer(voted.await)
    }

    async fn transfer_leader(&self, request: Request<Message>) -> Served {
        let transferred = async {
            let speaker = self.admit(request.extensions())?;
            let (handle, transfer) = self.open::<Transfer>(request.get_ref(), "a transfer of leadership")?;
            holds(&speaker, &handle, transfer.from_leader())?;
            handle.raft().handle_transfer_leader(transfer).await.map_err(|error| Unserved::answer(&error))
        };
        answer(transferred.await)
    }

    async fn snapshot(&self, request: Request<Streaming<SnapshotPart>>) -> Served {
        answer(self.receive(request).await)
    }

    async fn propose(&self, request: Request<Message>) -> Served {
        let proposed = async {
            let speaker = self.admit(request.extensions())?;
            let (handle, proposal) = self.open::<Proposal>(request.get_ref(), "a proposal")?;
            self.own_name(&speaker, &handle, &proposal.request.actor)?;
            Ok(handle.serve_proposal(proposal).await)
        };
        answer(proposed.await)
    }

    async fn read_index(&self, request: Request<Message>) -> Served {
        let read = async {
            self.admit(request.extensions())?;
            let (handle, ()) = self.open(request.get_ref(), "a question for the read index")?;
            Ok(handle.serve_read_index().await)
        };
        answer(read.await)
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Refusal> {
        let speaker = self.admit(request.extensions())?;
        speaker.claims(&request.get_ref().server, &request.get_ref().address)?;
        Ok(Response::new(self.take_in(request.into_inner()).await?))
    }

    async fn seal(&self, request: Request<SealRequest>) -> Result<Response<SealReply>, Refusal> {
        self.admit(request.extensions())?;
        Ok(Response::new(self.host.seal_for(request.into_inner()).await))
    }

    async fn recover(&self, request: Request<RecoverRequest>) -> Result<Response<RecoverReply>, Refusal> {
        self.admit(request.extensions())?;
        Ok(Response::new(self.host.recover_for(request.into_inner()).await))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusReply>, Refusal> {
        self.admit(request.extensions())?;
        Ok(Response::new(self.host.status()))
    }
}
