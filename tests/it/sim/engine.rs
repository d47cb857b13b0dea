//! Stand-in engines: they send to agents what a wrapper sends, without a wrapper or a database.
//!
//! Each is one run of one container. It opens a stream to any agent, registers, starts its engine process when an agent
//! tells it to, sends heartbeats, and tries the next agent when a stream is lost. The real state is kept outside the
//! domain, for comparison.

use crate::sim::databases::Databases;
use crate::sim::network::Network;
use crate::sim::trace::Trace;
use embedded_kubernetes::tokens::{Bound, Tokens};
use jiff::Timestamp;
use kaa::clock;
use kaa::proto::engine::engine_client::EngineClient;
use kaa::proto::engine::{
    EngineState, Exit, FromEngine, Heartbeat, History, Kind, Marker, Refused, Register, State, ToEngine, directive,
    from_engine, to_engine,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

/// The same as in the wrapper.
const BEAT: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(10);
/// How long an engine that was told to end tries to report its end.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long an engine waits for permission to start before its container restarts.
const HELD: Duration = Duration::from_secs(15);

/// The real state of an engine, independent of the domain.
#[derive(Clone, Debug)]
pub struct Facts {
    pub pod: String,
    pub pod_uid: String,
    pub claim_uid: Option<String>,
    /// The engine process runs.
    pub running: bool,
    /// The container has ended.
    pub ended: bool,
    /// The start id from the domain; 0 before it has one.
    pub start_id: u64,
    /// When it last heard from an agent.
    pub heard_ms: u64,
    /// How new its data was when the engine process started.
    pub started_with: u64,
}

/// The real state of all engines so far, by their nonce, and the markers on the volumes, by the UIDs of their claims.
#[derive(Default)]
pub struct Truth {
    pub engines: BTreeMap<u64, Facts>,
    pub markers: BTreeMap<String, Marker>,
    /// How new the data on each volume is, by the UID of its claim.
    pub data: BTreeMap<String, u64>,
}

impl Truth {
    /// New data on each volume on which the database runs.
    pub fn move_on(&mut self) {
        let newest = self.data.values().max().copied().unwrap_or(0) + 1;
        for facts in self.engines.values().filter(|facts| facts.running) {
            if let Some(claim) = &facts.claim_uid {
                self.data.insert(claim.clone(), newest);
            }
        }
    }
}

/// What engines share.
#[derive(Clone)]
pub struct Ground {
    pub network: Network,
    pub tokens: Arc<Tokens>,
    pub truth: Arc<Mutex<Truth>>,
    pub agents: Vec<String>,
    pub trace: Trace,
    /// The servers of a database with roles, if there is one.
    pub databases: Option<Databases>,
}

/// One run of a container.
pub struct Engine {
    pub ground: Ground,
    pub nonce: u64,
    pub facts: Facts,
    pub started_ms: u64,
    /// Turns true when the container is told to end.
    pub stop: watch::Receiver<bool>,
    /// Until when the engine tries to report its end, once it is to end.
    pub farewell: Option<Instant>,
    /// The engine process was started.
    pub ran: bool,
    /// The last log entry of which an agent told it on this stream.
    pub applied: u64,
    /// By when it must have been told to start, after an agent told it to wait.
    pub held: Option<Instant>,
}

/// How a stream ended.
enum Ended {
    /// Try another agent.
    Lost,
    /// The container ends.
    Over,
}

impl Engine {
    fn is_sm(&self) -> bool {
        self.facts.claim_uid.is_some()
    }

    fn fact<T>(&self, act: impl FnOnce(&mut Facts) -> T) -> T {
        let mut truth = self.ground.truth.lock().unwrap();
        act(truth.engines.get_mut(&self.nonce).expect("it was entered when it was made"))
    }

    /// Runs until the container ends.
    pub async fn run(mut self) {
        let mut turn = usize::try_from(clock::random_below(64)).unwrap();
        loop {
            let agent = self.ground.agents[turn % self.ground.agents.len()].clone();
            turn += 1;
            let by = self.farewell.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            let mut stop = self.stop.clone();
            let ended = tokio::select! {
                biased;
                ended = timeout_at(by, self.attend(&agent)) => ended.unwrap_or(Ended::Over),
                _ = stop.wait_for(|stop| *stop), if by > Instant::now() + FAREWELL => Ended::Lost,
            };
            if matches!(ended, Ended::Over) {
                break;
            }
            if *self.stop.borrow() && self.farewell.is_none() {
                self.farewell = Some(Instant::now() + FAREWELL);
                self.fact(|facts| facts.running = false);
                if self.facts.start_id == 0 {
                    break;
                }
                continue;
            }
            sleep(Duration::from_millis(100 + clock::random_below(400))).await;
        }
        self.fact(|facts| (facts.running, facts.ended) = (false, true));
    }

    fn register(&self) -> Register {
        let Facts { pod, pod_uid, claim_uid, start_id, .. } = self.facts.clone();
        let truth = self.ground.truth.lock().unwrap();
        Register {
            kind: if self.is_sm() { Kind::Sm } else { Kind::Te }.into(),
            database: "demo".to_owned(),
            namespace: "default".to_owned(),
            marker: claim_uid.and_then(|claim| truth.markers.get(&claim).cloned()),
            path: if self.is_sm() { "/data".to_owned() } else { String::new() },
            hostname: pod.clone(),
            pod,
            pod_uid,
            container: "engine".to_owned(),
            nonce: self.nonce,
            started_ms: self.started_ms,
            connection: clock::random_u64(),
            start_id,
            port: 48006,
            ..Register::default()
        }
    }

    /// Opens one stream, registers, and stays until it is lost.
    async fn attend(&mut self, agent: &str) -> Ended {
        let (said, queue) = mpsc::channel(32);
        let say = |message| drop(said.try_send(FromEngine { message: Some(message) }));
        say(from_engine::Message::Register(self.register()));
        let now = Timestamp::from_millisecond(i64::try_from(clock::now().0).unwrap()).unwrap();
        let opened = open(&self.ground, (&self.facts.pod, &self.facts.pod_uid), agent, queue, now);
        let Ok(Some(mut heard)) = tokio::time::timeout(SILENCE, opened).await else { return Ended::Lost };
        let mut beats = interval(BEAT);
        let mut sequence = 0;
        self.applied = 0;
        let mut silent_at = Instant::now() + SILENCE;
        loop {
            tokio::select! {
                biased;
                message = next(&mut heard) => {
                    let Some(message) = message else { return Ended::Lost };
                    // Nothing arrives over a cut link.
                    if self.ground.network.is_cut(&self.facts.pod, agent) {
                        continue;
                    }
                    silent_at = Instant::now() + SILENCE;
                    let now_ms = self.ground.trace.now_ms();
                    self.fact(|facts| facts.heard_ms = now_ms);
                    if let Some(ended) = self.hear(message, &say) {
                        return ended;
                    }
                }
                () = tokio::time::sleep_until(silent_at) => return Ended::Lost,
                () = tokio::time::sleep_until(self.held.unwrap_or(silent_at)), if self.held.is_some() => {
                    self.held = None;
                    self.farewell = Some(Instant::now() + FAREWELL);
                    say(exit(false));
                }
                _ = beats.tick(), if self.facts.start_id != 0 => {
                    sequence += 1;
                    if !self.ground.network.is_cut(&self.facts.pod, agent) {
                        say(self.heartbeat(sequence));
                    }
                }
            }
        }
    }

    fn hear(&mut self, message: to_engine::Message, say: &impl Fn(from_engine::Message)) -> Option<Ended> {
        let running = self.fact(|facts| facts.running);
        match message {
            to_engine::Message::Registered(registered) => {
                if running && registered.start_id != self.facts.start_id {
                    self.ground.trace.line(&format!("{} is taken for another process", self.facts.pod));
                    return Some(Ended::Lost);
                }
                self.facts.start_id = registered.start_id;
                self.fact(|facts| facts.start_id = registered.start_id);
                if let Some(claim) = &self.facts.claim_uid {
                    let marker = Marker { domain: registered.domain, archive: registered.archive };
                    let markers = &mut self.ground.truth.lock().unwrap().markers;
                    if markers.iter().any(|(other, known)| other != claim && known.archive == marker.archive) {
                        let words =
                            format!("{} is told that its new volume is archive {}", self.facts.pod, marker.archive);
                        self.ground.trace.wrong(&words);
                    }
                    markers.insert(claim.clone(), marker);
                }
                self.report(running, say);
            }
            to_engine::Message::Held(_) => {
                if !running && self.farewell.is_none() {
                    self.held.get_or_insert(Instant::now() + HELD);
                }
            }
            to_engine::Message::Directive(asked) => match asked.action {
                Some(directive::Action::Start(how)) if self.farewell.is_none() => {
                    self.held = None;
                    if how.join && !running && self.is_sm() && !self.finds_another() {
                        // The storage manager that it was to join has ended meanwhile.
                        self.farewell = Some(Instant::now() + FAREWELL);
                        say(exit(false));
                        return None;
                    }
                    self.start(running);
                    self.ran = true;
                    say(from_engine::Message::State(State { engine: EngineState::Running.into(), pid: 7 }));
                }
                Some(directive::Action::Start(_)) | None => {}
                Some(directive::Action::Stop(_) | directive::Action::Exit(_)) => {
                    self.fact(|facts| facts.running = false);
                    self.farewell = Some(Instant::now() + FAREWELL);
                    say(exit(true));
                }
            },
            to_engine::Message::Refused(refused) => return Some(self.refused(&refused, running)),
            // Its engines have no roles.
            to_engine::Message::Assignment(_) | to_engine::Message::Vouched(_) => {}
            to_engine::Message::ExitNoted(_) => return Some(Ended::Over),
            to_engine::Message::Heartbeat(beat) => {
                self.applied = self.applied.max(beat.applied);
                if beat.asks {
                    say(self.heartbeat(0));
                }
            }
        }
        None
    }

    fn heartbeat(&self, sequence: u64) -> from_engine::Message {
        let running = self.fact(|facts| facts.running);
        from_engine::Message::Heartbeat(Heartbeat {
            sequence,
            applied: self.applied,
            running,
            asks: false,
            generation: 0,
        })
    }

    /// Whether another storage manager runs.
    fn finds_another(&self) -> bool {
        let truth = self.ground.truth.lock().unwrap();
        truth.engines.iter().any(|(nonce, other)| *nonce != self.nonce && other.running && other.claim_uid.is_some())
    }

    /// Sends the reports that follow each registration.
    fn report(&self, running: bool, say: &impl Fn(from_engine::Message)) {
        if running {
            say(from_engine::Message::State(State { engine: EngineState::Running.into(), pid: 7 }));
        }
        // As a wrapper does: the report about its data is true until the engine process starts.
        if let Some(claim) = self.facts.claim_uid.as_ref().filter(|_| !running) {
            let value = self.ground.truth.lock().unwrap().data.get(claim).copied().unwrap_or(0);
            say(from_engine::Message::History(History { value }));
        }
        if self.farewell.is_some() {
            if self.ran {
                say(from_engine::Message::State(State { engine: EngineState::ShuttingDown.into(), pid: 7 }));
            }
            say(exit(true));
        }
    }

    fn refused(&mut self, refused: &Refused, running: bool) -> Ended {
        let known = self.facts.start_id;
        let mine = refused.exited.as_ref().is_some_and(|exited| known == 0 || exited.start_id == known);
        if mine || refused.lasting && !running {
            return Ended::Over;
        }
        if refused.exited.is_none() && !running {
            // The domain does not know the process, which never ran: it can only register as a new process.
            self.facts.start_id = 0;
        }
        Ended::Lost
    }

    /// Starts the engine process. Another one that runs on the same volume and is still connected to an agent is a
    /// violation.
    fn start(&self, running: bool) {
        let now_ms = self.ground.trace.now_ms();
        let (pod, claim) = (&self.facts.pod, &self.facts.claim_uid);
        if !running {
            self.ground.trace.line(&format!("engine of {pod} runs as process {}", self.facts.start_id));
        }
        let truth = self.ground.truth.lock().unwrap();
        for (nonce, other) in truth.engines.iter().filter(|(_, other)| claim.is_some() && other.claim_uid == *claim) {
            if *nonce != self.nonce && other.running && now_ms < other.heard_ms + 2 * BEAT.as_millis() as u64 {
                let words = format!("{pod} starts on an archive on which process {} runs", other.start_id);
                self.ground.trace.wrong(&words);
            }
        }
        let data = claim.as_ref().and_then(|claim| truth.data.get(claim)).copied().unwrap_or(0);
        drop(truth);
        self.fact(|facts| {
            if !running {
                facts.started_with = data;
            }
            facts.running = true;
        });
    }
}

/// Opens a stream from a pod to an agent.
pub async fn open(
    ground: &Ground,
    (pod, pod_uid): (&str, &str),
    agent: &str,
    queue: mpsc::Receiver<FromEngine>,
    now: Timestamp,
) -> Option<Streaming<ToEngine>> {
    let channel = ground.network.channel(pod, &format!("{agent}:48004"));
    let bound = Bound {
        namespace: "default".to_owned(),
        service_account: "default".to_owned(),
        service_account_uid: "any".to_owned(),
        pod: Some((pod.to_owned(), pod_uid.to_owned())),
        node: None,
    };
    let token = ground.tokens.issue(&bound, &["kaa".to_owned()], 3600, now);
    let mut request = Request::new(ReceiverStream::new(queue));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("ASCII"));
    EngineClient::new(channel).attach(request).await.ok().map(tonic::Response::into_inner)
}

fn exit(graceful: bool) -> from_engine::Message {
    from_engine::Message::Exit(Exit { code: Some(0), graceful, reason: String::new() })
}

async fn next(heard: &mut Streaming<ToEngine>) -> Option<to_engine::Message> {
    heard.message().await.ok().flatten()?.message
}
