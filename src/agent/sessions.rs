//! The agent's side of the engines' sessions.
//!
//! A stream that is up is one entry in `Connected`; the domain says which sessions are this agent's. Whatever differs is
//! put right by one level-triggered sweep, so that a proposal that got lost, a stream that broke while the group had no
//! leader, and this agent's own restart are all the same case: the domain has a live session here and there is no stream.

mod answers;
mod states;

use super::connected::Answers;
use super::{Door, Shared, roles};
use crate::config::{BACKOFF, ENGINE_QUEUE, ENGINE_SILENCE, IDENTIFY_TIMEOUT, MAX_ENGINES, SESSION_SWEEP};
use crate::kubernetes::Kubernetes;
use crate::kubernetes::evidence::{self, Unidentified, Wrapper};
use crate::proto::engine as wire;
use crate::proto::engine::engine_server::Engine;
use crate::proto::engine::from_engine::Message as From;
use crate::proto::engine::to_engine::Message as To;
use answers::{refused, registered_message};
use futures::{Stream, StreamExt};
use kaa_core::domain::archive::Marker;
use kaa_core::domain::bounds::{self, Bounds};
use kaa_core::domain::change::{self, Command, Lesson};
use kaa_core::domain::command::{Outcome, Refusal, Registered, Role};
use kaa_core::domain::evidence::Fact;
use kaa_core::domain::ids::{ArchiveId, Millis, ProtocolId, SessionNumber, StartId};
use kaa_core::domain::process::{
    About, EngineKind, EngineState, ExitReason, Identity, Process, Registration, SessionState,
};
use kaa_core::resync::plan::Need;
use states::States;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

/// Keeps a stream in `Connected` for as long as it is served.
struct Entry {
    shared: Arc<Shared>,
    connection: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.connected.remove(self.connection);
        self.shared.host.hear_no_more(self.connection);
    }
}

/// Proposes that every session is lost that the domain has here and no stream carries. Runs until the agent ends.
pub async fn sweep(shared: Arc<Shared>) {
    // What the domain says before this agent has caught up may be old news.
    let mut suspected: BTreeMap<(StartId, SessionNumber), Instant> = BTreeMap::new();
    let mut hurry = false;
    loop {
        let orphans = orphans(&shared);
        suspected.retain(|known, _| orphans.contains(known));
        for orphan in orphans {
            let since = *suspected.entry(orphan).or_insert_with(Instant::now);
            if !hurry && since.elapsed() < SESSION_SWEEP {
                continue;
            }
            let (process, session) = orphan;
            let why = "the engine's stream with this agent is down".to_owned();
            match shared.propose(Role::Agent, Command::LoseSession(change::LoseSession { process, session, why })).await
            {
                Ok(_) => info!("process {process}: session {session} lost"),
                Err(why) => warn!("process {process}: could not report that session {session} is lost: {why}"),
            }
        }
        tokio::select! {
            () = shared.connected.gone.notified() => hurry = true,
            () = tokio::time::sleep(BACKOFF) => hurry = false,
            () = shared.stopping() => return,
        }
    }
}

/// The live sessions that the domain has with this agent and no stream carries.
fn orphans(shared: &Shared) -> Vec<(StartId, SessionNumber)> {
    shared.raft.read(|domain| {
        let mine = domain.processes.values().filter(|process| {
            let session = &process.session;
            session.server == shared.config.server
                && session.state == SessionState::Live
                && !shared.connected.is_up(session.connection)
        });
        mine.map(|process| (process.id, process.session.number)).collect()
    })
}

/// Binds the archives of engines here whose pods could not be read when they registered: as soon as they can. Runs until
/// the agent ends.
pub async fn bind(shared: Arc<Shared>) {
    loop {
        let unbound = shared.raft.read(|domain| domain.unbound(&shared.config.server));
        for known in unbound.into_iter().filter(|known| shared.connected.is_up(known.connection)) {
            learn_claim(&shared, known).await;
        }
        tokio::select! {
            () = tokio::time::sleep(SESSION_SWEEP) => {}
            () = shared.stopping() => return,
        }
    }
}

/// Reads the pod of an engine that is connected here, and registers it again with the claim that the pod mounts.
async fn learn_claim(shared: &Arc<Shared>, mut known: Registration) {
    let kubernetes = shared.kubernetes.clone().with_timeout(IDENTIFY_TIMEOUT);
    let identity = &known.identity;
    let wrapper = Wrapper { pod: &identity.pod, uid: &identity.pod_uid, container: &identity.container };
    let Ok(read) = evidence::identify(&kubernetes, wrapper, &shared.config.anchor_name()).await else { return };
    (known.claim, known.evidence) = (read.claim, Some(read.evidence));
    read_doubted(shared, &kubernetes, &mut known).await;
    let learns = shared.raft.read(|domain| domain.learns(&known));
    // An engine that went to another agent meanwhile must not be taken for one that is here.
    if !shared.connected.is_up(known.connection) || shared.cannot_vouch() {
        return;
    }
    let pod = known.identity.pod.clone();
    match learns {
        Lesson::Nothing => {}
        Lesson::Claim => match shared.propose(Role::Agent, Command::RegisterProcess(Box::new(known))).await {
            Ok(Outcome::Registered(_)) => info!("{pod}: its pod was read: its archive's claim is known now"),
            Ok(other) => warn!("{pod}: the claim of its archive was not accepted: {other:?}"),
            Err(why) => warn!("{pod}: could not report the claim of its archive: {why}"),
        },
        Lesson::End(why) => {
            // The wrapper reports its end. The next one in the container registers with what was read now.
            info!("{pod}: its pod was read, and the engine has to stop: {why}");
            shared.connected.end(known.connection);
        }
        Lesson::RunsOnACopy(copy) => {
            if let Some(process) = known.known_as.filter(|_| shared.connected.warns_of_a_copy(known.connection)) {
                warn!(
                    "{pod}: its pod was read, and {copy}. Its engine runs: `kaa process evict {process}` lets the original in"
                );
            }
        }
    }
}

/// The gRPC service on port 48004.
pub struct Service(pub Arc<Door>);

type Outgoing = Pin<Box<dyn Stream<Item = Result<wire::ToEngine, Status>> + Send>>;

#[tonic::async_trait]
impl Engine for Service {
    type AttachStream = Outgoing;

    async fn attach(&self, request: Request<Streaming<wire::FromEngine>>) -> Result<Response<Outgoing>, Status> {
        let Some(shared) = self.0.running() else {
            return Err(Status::unavailable("Raft does not run here: try another agent"));
        };
        if shared.connected.count() >= MAX_ENGINES {
            return Err(Status::resource_exhausted(
                "this agent serves its maximum number of engines: try another agent",
            ));
        }
        if shared.cannot_vouch() {
            return Err(Status::unavailable(
                "this agent has no contact with a quorum, or too little space on its volume: try another agent",
            ));
        }
        let caller = super::identity::caller(&shared, request.metadata(), request.extensions()).await?;
        let mut incoming = request.into_inner();
        let (answers, receiver) = mpsc::channel(ENGINE_QUEUE);
        tokio::spawn(async move {
            let stopping = shared.clone();
            let served = async {
                let register = match next(&mut incoming, &mut Instant::now()).await? {
                    Some(From::Register(register)) => register,
                    _ => return Err(Status::invalid_argument("the first message must be Register")),
                };
                super::identity::matches(&shared, &caller, &register)?;
                serve(&shared, register, &mut incoming, &answers).await
            };
            let ended = tokio::select! {
                ended = served => ended,
                () = stopping.stopping() => Err(Status::unavailable("this agent is stopping: try another agent")),
            };
            if let Err(status) = ended {
                // The engine may be gone already: then the message has no receiver, which is fine.
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// The next message, or `None` at the end; silence since `heard` is an error. What a newer wrapper says and this agent does not know is
/// passed over.
async fn next(incoming: &mut Streaming<wire::FromEngine>, heard: &mut Instant) -> Result<Option<From>, Status> {
    loop {
        let message = match tokio::time::timeout_at(*heard + ENGINE_SILENCE, incoming.next()).await {
            Err(_) => {
                let words = format!("no message from the engine for {ENGINE_SILENCE:?}");
                return Err(Status::deadline_exceeded(words));
            }
            Ok(None) => return Ok(None),
            Ok(Some(message)) => message?.message,
        };
        *heard = Instant::now();
        if message.is_some() {
            return Ok(message);
        }
    }
}

async fn send(answers: &Answers, message: To) -> Result<(), Status> {
    let message = wire::ToEngine { message: Some(message) };
    answers.send(Ok(message)).await.map_err(|_| Status::cancelled("the engine has gone"))
}

/// Serves one stream from its registration on.
async fn serve(
    shared: &Arc<Shared>,
    register: wire::Register,
    incoming: &mut Streaming<wire::FromEngine>,
    answers: &Answers,
) -> Result<(), Status> {
    let pod = register.pod.clone();
    let entry = Entry { shared: shared.clone(), connection: register.connection };
    shared.connected.hear(entry.connection);
    let Some(registered) = register_with(shared, register, answers).await? else { return Ok(()) };
    info!("{pod}: process {}, session {}", registered.process, registered.session);
    send(answers, To::Registered(registered_message(shared, &registered))).await?;
    shared.connected.registered(entry.connection, registered.process, registered.session, answers.clone());
    shared.raft.read(|domain| shared.connected.tell(domain));
    let (mut history, mut states, mut vouching) = (None, States::new(shared, &registered), None);
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            message = next(incoming, &mut heard) => message?,
            done = states.advance() => {
                done?;
                continue;
            }
        };
        let Some(message) = message else { return Ok(()) };
        shared.connected.hear(entry.connection);
        if shared.cannot_vouch() {
            return Err(Status::unavailable(
                "this agent has no contact with a quorum, or too little space on its volume: try another agent",
            ));
        }
        if is_over(shared, &registered) {
            return Err(Status::aborted("the domain has ended this session: register again"));
        }
        match message {
            From::Register(_) => {
                return Err(Status::invalid_argument("Register may be sent only once for each stream"));
            }
            From::Heartbeat(heartbeat) => beat(shared, &registered, heartbeat, answers, &mut vouching).await?,
            From::State(state) => states.say(state),
            From::History(said) => {
                history = Some(said.value);
                if states.may() {
                    report_history(shared, &registered, &entry, said.value).await?;
                }
            }
            From::Vitals(said) => roles::hear_vitals(&shared.host, entry.connection, &registered, said),
            From::Replica(said) => {
                roles::hear_replica(&shared.host, &shared.connected, entry.connection, &registered, said);
                shared.raft.read(|domain| shared.connected.tell(domain));
            }
            From::Result(result) if result.ok => {}
            From::Result(result) => warn!("process {}: directive failed: {}", registered.process, result.message),
            From::Exit(exit) => {
                shared.last_word(entry.connection).await;
                states.finish().await?;
                report_exit(shared, &registered, exit).await?;
                // From here on the session has no process; the entry goes with this function.
                return send(answers, To::ExitNoted(wire::ExitNoted {})).await;
            }
        }
        // The domain forgets it when the database runs, and one whose engine was not started meanwhile is asked no more.
        if let Some(history) = history.filter(|_| is_missed(shared, &registered)) {
            report_history(shared, &registered, &entry, history).await?;
        }
    }
}

/// Answers a heartbeat, with the domain's word if it asks for that, and notes that the engine still runs where that decides something.
async fn beat(
    shared: &Shared,
    registered: &Registered,
    heard: wire::Heartbeat,
    answers: &Answers,
    vouching: &mut Option<JoinHandle<()>>,
) -> Result<(), Status> {
    // One question at a time.
    if heard.generation != 0 && vouching.as_ref().is_none_or(JoinHandle::is_finished) {
        let vouch = roles::vouch(shared.raft.clone(), registered.process, heard, answers.clone());
        *vouching = Some(tokio::spawn(vouch));
    }
    let (process, session, as_of) = (registered.process, registered.session, heard.applied);
    let (applied, owed) = shared.raft.read(|domain| (domain.index, domain.owed_proof(process)));
    send(answers, To::Heartbeat(wire::Heartbeat { applied, running: false, ..heard })).await?;
    if heard.running && owed.is_some_and(|owed| owed <= as_of) {
        let confirm = Command::ConfirmRunning(change::ConfirmRunning { process, session, as_of });
        if let Err(why) = shared.propose(Role::Agent, confirm).await {
            // The next heartbeat says it again.
            warn!("process {process}: could not report that its engine still runs: {why}");
        }
    }
    Ok(())
}

/// Has the domain register an engine; `None` if that is refused, which the engine is told.
async fn register_with(
    shared: &Shared,
    register: wire::Register,
    answers: &Answers,
) -> Result<Option<Registered>, Status> {
    let pod = register.pod.clone();
    let registration = registration(shared, register).await?;
    // The domain would refuse it too, but only once it is in every log.
    let excess = Bounds::DEFAULT.registration(&registration).err().filter(|_| registration.known_as.is_none());
    if let Some(excess) = excess {
        info!("{pod}: registration refused: {excess}");
        send(answers, To::Refused(refused(shared, &Refusal::OutOfBounds(excess)))).await?;
        return Ok(None);
    }
    match shared.propose(Role::Agent, Command::RegisterProcess(Box::new(registration.clone()))).await {
        Ok(Outcome::Registered(registered)) => Ok(Some(registered)),
        Ok(Outcome::Refused(refusal)) => {
            info!("{pod}: registration refused: {refusal}");
            if let Some(ended) = shared.raft.read(|domain| domain.outlived(&registration)) {
                // If this fails, the wrapper's next attempt proves the same.
                shared.propose(Role::Agent, ended).await.map_err(Status::unavailable)?;
            }
            send(answers, To::Refused(refused(shared, &refusal))).await?;
            Ok(None)
        }
        Ok(other) => {
            Err(Status::internal(format!("the state machine gave an unexpected answer to a registration: {other:?}")))
        }
        Err(why) => Err(Status::unavailable(why)),
    }
}

/// What the domain is asked: the engine's words, and what Kubernetes says of its pod.
async fn registration(shared: &Shared, register: wire::Register) -> Result<Registration, Status> {
    let kind = match register.kind() {
        wire::Kind::Sm => EngineKind::Sm,
        wire::Kind::Te => EngineKind::Te,
        wire::Kind::Unspecified => return Err(Status::invalid_argument("kind is not set")),
    };
    let pod_uid = register.pod_uid.as_str().into();
    let as_of = shared.raft.read(|domain| domain.index);
    let kubernetes = shared.kubernetes.clone().with_timeout(IDENTIFY_TIMEOUT);
    let wrapper = Wrapper { pod: &register.pod, uid: &pod_uid, container: &register.container };
    let identified = match evidence::identify(&kubernetes, wrapper, &shared.config.anchor_name()).await {
        Ok(identified) => Some(identified),
        // The pod that the engine says it is in is not there: the engine is not either, soon.
        Err(
            error @ (Unidentified::PodGone(_) | Unidentified::AnotherPod { .. } | Unidentified::NoContainer { .. }),
        ) => {
            return Err(Status::failed_precondition(error.to_string()));
        }
        Err(error @ (Unidentified::Forbidden(_) | Unidentified::Unreachable(_))) => {
            warn!("{}: its pod could not be read, so its archive's claim stays unknown: {error}", register.pod);
            None
        }
    };
    if let Some(label) = identified.as_ref().and_then(|identified| identified.pod.database.as_ref())
        && label.as_str() != register.database
    {
        let words = format!("the pod is labelled database={label}, but the engine says {}", register.database);
        return Err(Status::failed_precondition(words));
    }
    let zone = identified.as_ref().and_then(|identified| identified.pod.zone.clone());
    let (claim, read) = identified.map_or((None, None), |mut identified| {
        if kind == EngineKind::Sm && identified.pod.archive_claim.is_none() {
            identified.evidence.facts.push(Fact::PodWithoutArchive { pod_uid: identified.pod.uid });
        }
        (identified.claim, Some(identified.evidence))
    });
    let mut registration = Registration {
        database: register.database.into(),
        kind,
        cluster: shared.config.cluster.clone(),
        identity: Identity {
            namespace: register.namespace,
            pod: register.pod,
            pod_uid,
            container: register.container,
            nonce: register.nonce,
            started: Millis(register.started_ms),
        },
        known_as: (register.start_id != 0).then_some(StartId(register.start_id)),
        claim: claim.filter(|_| kind == EngineKind::Sm),
        marker: register.marker.map(|m| Marker { domain: m.domain.into(), archive: ArchiveId(m.archive) }),
        path: register.path,
        server: shared.config.server.clone(),
        connection: register.connection,
        about: About {
            address: register.address,
            hostname: register.hostname,
            port: u16::try_from(register.port).unwrap_or_default(),
            pid: 0,
            version: register.version,
            labels: register.labels.into_iter().collect(),
            protocols: register.protocols.into_iter().map(|(id, name)| (ProtocolId(id), name)).collect(),
            zone,
        },
        evidence: read,
        as_of: Some(as_of),
    };
    read_doubted(shared, &kubernetes, &mut registration).await;
    Ok(registration)
}

/// Reads the claim of the archive that a registration may have copied, if there is such a doubt.
async fn read_doubted(shared: &Shared, kubernetes: &Kubernetes, registration: &mut Registration) {
    let doubted = shared.raft.read(|domain| domain.claim_in_doubt(registration).map(|claim| claim.name.clone()));
    let (Some(claim), Some(evidence)) = (doubted, &mut registration.evidence) else { return };
    let need = BTreeSet::from([Need::Claim(claim)]);
    for (_, read) in evidence::gather(kubernetes, &shared.config.anchor_name(), &need).await.answers {
        match read {
            Ok(facts) => evidence.facts.extend(facts),
            // What cannot be read is not known: the domain then refuses, and the wrapper asks again.
            Err(why) => warn!("{}: {why}", registration.identity.pod),
        }
    }
}

/// Whether the domain has given the session up, or has a later one, while its stream is up here: another agent may have
/// said that it is lost, or a registration that came late may have taken its place. The engine would not notice by
/// itself.
fn is_over(shared: &Shared, registered: &Registered) -> bool {
    let over = |process: &Process| process.session.is_over(registered.session);
    shared.raft.read(|domain| domain.processes.get(&registered.process).is_some_and(over))
}

/// Whether the domain does not know how new the data of a storage manager is.
fn is_missed(shared: &Shared, registered: &Registered) -> bool {
    shared.raft.read(|domain| domain.lacks_history(registered.process))
}

async fn report_state(shared: &Shared, registered: &Registered, state: &wire::State) -> Result<(), Status> {
    let engine = match state.engine() {
        wire::EngineState::Unknown => EngineState::Unknown,
        wire::EngineState::Syncing => EngineState::Syncing,
        wire::EngineState::Running => EngineState::Running,
        wire::EngineState::ShuttingDown => EngineState::ShuttingDown,
    };
    let (process, session) = (registered.process, registered.session);
    report(shared, Command::ReportState(change::ReportState { process, session, engine, pid: state.pid })).await
}

/// Reports how new the data is of a storage manager that was not told to start. Nor is it until the report is through: by
/// that the domain learns that its engine has not been started.
async fn report_history(shared: &Shared, registered: &Registered, entry: &Entry, history: u64) -> Result<(), Status> {
    if !shared.connected.hold_back(entry.connection) {
        return Ok(());
    }
    let (process, session) = (registered.process, registered.session);
    let reported = report(shared, Command::ReportHistory(change::ReportHistory { process, session, history })).await;
    shared.connected.release(entry.connection);
    reported
}

async fn report_exit(shared: &Shared, registered: &Registered, mut exit: wire::Exit) -> Result<(), Status> {
    bounds::cut(&mut exit.reason, Bounds::DEFAULT.text);
    let (process, session) = (registered.process, registered.session);
    let reason = if exit.graceful { ExitReason::Graceful } else { ExitReason::Exited(exit.reason) };
    info!("process {process}: {reason}");
    report(shared, Command::ReportExit(change::ReportExit { process, session, exit_code: exit.code, reason })).await
}

/// Proposes what the engine said. If that is not possible the stream ends: the engine says it again on the next one.
async fn report(shared: &Shared, command: Command) -> Result<(), Status> {
    match shared.propose(Role::Agent, command).await {
        Ok(Outcome::Refused(refusal)) => Err(Status::aborted(refusal.to_string())),
        Ok(_) => Ok(()),
        Err(why) => Err(Status::unavailable(why)),
    }
}
