//! The stream of a wrapper to any agent: what `engine/src/session.rs` does for an engine with a role.

use crate::sim::engine::{Ground, open};
use jiff::Timestamp;
use kaa::clock;
use kaa::proto::engine::{
    Assignment, Directive, EngineState, Exit, FromEngine, Heartbeat, Kind, Marker, Refused, Register, Registered,
    Replica, State, ToEngine, from_engine, to_engine,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep};
use tonic::Streaming;

/// The same as in the wrapper.
const PERIOD: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_millis(1_500);
const OPENS_WITHIN: Duration = Duration::from_secs(10);
const NOTED_WITHIN: Duration = Duration::from_secs(3);
const BEATS_KEPT: usize = 8;
/// How often the stream looks for something new to say.
const LOOK: Duration = Duration::from_millis(20);

/// What an agent says.
pub enum Told {
    Registered(Registered),
    Refused(Refused),
    Directive(Directive),
    Assignment(Assignment),
    Vouched { asked_ms: u64, generation: u64 },
    ExitNoted,
}

/// What agents are told: a level, not a sequence of events.
#[derive(Clone, Default, PartialEq)]
pub struct Said {
    pub marker: Option<Marker>,
    pub state: State,
    pub replica: Replica,
    /// The generation for which the domain is to be asked.
    pub asks: u64,
    pub exit: Option<Exit>,
}

/// What the wrapper and its stream share.
#[derive(Default)]
pub struct Line {
    pub said: Said,
    pub told: VecDeque<Told>,
    /// Whether the volume is locked, so that the wrapper registers.
    pub ready: bool,
    /// Whether its machine is stopped.
    pub paused: bool,
    pub over: bool,
}

pub struct Stream {
    pub ground: Ground,
    pub line: Arc<Mutex<Line>>,
    pub pod: String,
    pub pod_uid: String,
    pub nonce: u64,
    pub started_ms: u64,
    /// The start id from the domain; 0 before it has one.
    pub start_id: u64,
}

impl Stream {
    fn line<T>(&self, act: impl FnOnce(&mut Line) -> T) -> T {
        act(&mut self.line.lock().unwrap())
    }

    fn tell(&self, told: Told) {
        self.line(|line| line.told.push_back(told));
    }

    /// Runs until the wrapper ends.
    pub async fn run(mut self) {
        while !self.line(|line| line.ready) {
            sleep(LOOK).await;
        }
        let mut turn = usize::try_from(clock::random_below(64)).unwrap();
        while !self.line(|line| line.over) {
            let agent = self.ground.agents[turn % self.ground.agents.len()].clone();
            turn += 1;
            self.attend(&agent).await;
            sleep(Duration::from_millis(50 + clock::random_below(100))).await;
        }
    }

    fn register(&self) -> Register {
        Register {
            kind: Kind::Sm.into(),
            database: "shop".to_owned(),
            namespace: "default".to_owned(),
            marker: self.line(|line| line.said.marker.clone()),
            path: "/data".to_owned(),
            hostname: self.pod.clone(),
            address: self.pod_uid.clone(),
            pod: self.pod.clone(),
            pod_uid: self.pod_uid.clone(),
            container: "engine".to_owned(),
            nonce: self.nonce,
            started_ms: self.started_ms,
            connection: clock::random_u64(),
            start_id: self.start_id,
            port: 5432,
            labels: [("zone".to_owned(), super::zone(&self.pod).to_owned())].into(),
            ..Register::default()
        }
    }

    /// Opens one stream, registers, and stays until it is lost.
    async fn attend(&mut self, agent: &str) {
        let (said, queue) = mpsc::channel(64);
        let say = |message| drop(said.try_send(FromEngine { message: Some(message) }));
        say(from_engine::Message::Register(self.register()));
        let now = Timestamp::from_millisecond(i64::try_from(clock::now().0).unwrap()).unwrap();
        let opened = open(&self.ground, (&self.pod, &self.pod_uid), agent, queue, now);
        let Ok(Some(mut heard)) = tokio::time::timeout(OPENS_WITHIN, opened).await else { return };
        let Ok(first) = tokio::time::timeout(OPENS_WITHIN, next(&mut heard)).await else { return };
        match first {
            Some(to_engine::Message::Registered(registered)) if self.accepts(&registered) => {
                self.start_id = registered.start_id;
                self.tell(Told::Registered(registered));
            }
            Some(to_engine::Message::Refused(refused)) => return self.tell(Told::Refused(refused)),
            _ => return,
        }
        self.converse(agent, heard, &say).await;
    }

    /// A wrapper is one process of one domain for all its life.
    fn accepts(&self, registered: &Registered) -> bool {
        self.start_id == 0 || self.start_id == registered.start_id
    }

    async fn converse(&self, agent: &str, mut heard: Streaming<ToEngine>, say: &impl Fn(from_engine::Message)) {
        let (mut beats, mut looks) = (interval(PERIOD), interval(LOOK));
        let mut silent_at = Instant::now() + SILENCE;
        let (mut sequence, mut applied, mut noted_by) = (0, 0, None);
        let mut sent: VecDeque<(u64, u64)> = VecDeque::new();
        let mut last: Option<Said> = None;
        let mut is_cut = false;
        loop {
            while self.line(|line| line.paused) {
                sleep(LOOK).await;
            }
            // Nothing gets through a cut link, and what comes later shows that something is missing.
            is_cut |= self.ground.network.is_cut(&self.pod, agent);
            tokio::select! {
                biased;
                message = next(&mut heard) => {
                    let Some(message) = message else { return };
                    if is_cut {
                        continue;
                    }
                    silent_at = Instant::now() + SILENCE;
                    if let to_engine::Message::Heartbeat(beat) = &message {
                        applied = applied.max(beat.applied);
                        if beat.asks {
                            say(self.heartbeat(0, applied));
                        }
                    }
                    if !self.hear(message, &sent) {
                        return;
                    }
                }
                () = tokio::time::sleep_until(silent_at) => return,
                () = tokio::time::sleep_until(noted_by.unwrap_or(silent_at)), if noted_by.is_some() => return,
                _ = beats.tick() => {
                    sequence += 1;
                    sent.push_back((sequence, self.ground.trace.now_ms()));
                    if sent.len() > BEATS_KEPT {
                        sent.pop_front();
                    }
                    if !is_cut {
                        say(self.heartbeat(sequence, applied));
                    }
                }
                _ = looks.tick() => {
                    let now = self.line(|line| line.said.clone());
                    if last.as_ref() != Some(&now) && !is_cut {
                        say_news(last.as_ref(), &now, say);
                        if now.exit.is_some() {
                            noted_by = noted_by.or_else(|| Some(Instant::now() + NOTED_WITHIN));
                        }
                        last = Some(now);
                    }
                    if self.line(|line| line.over) {
                        return;
                    }
                }
            }
        }
    }

    /// Passes on what an agent says. False if the stream is over. `sent` are the last heartbeats and when they were sent.
    fn hear(&self, message: to_engine::Message, sent: &VecDeque<(u64, u64)>) -> bool {
        match message {
            to_engine::Message::Refused(refused) => {
                self.tell(Told::Refused(refused));
                return false;
            }
            to_engine::Message::Directive(directive) => self.tell(Told::Directive(directive)),
            to_engine::Message::Assignment(assignment) => self.tell(Told::Assignment(assignment)),
            to_engine::Message::ExitNoted(_) => self.tell(Told::ExitNoted),
            to_engine::Message::Vouched(it) => {
                if let Some((_, asked_ms)) = sent.iter().find(|(number, _)| *number == it.sequence) {
                    self.tell(Told::Vouched { asked_ms: *asked_ms, generation: it.generation });
                }
            }
            to_engine::Message::Registered(_) => return false,
            to_engine::Message::Held(_) | to_engine::Message::Heartbeat(_) => {}
        }
        true
    }

    fn heartbeat(&self, sequence: u64, applied: u64) -> from_engine::Message {
        let (running, generation) =
            self.line(|line| (line.said.state.engine() == EngineState::Running, line.said.asks));
        from_engine::Message::Heartbeat(Heartbeat { sequence, applied, running, asks: false, generation })
    }
}

/// Says what has changed; the end follows the last state.
fn say_news(last: Option<&Said>, now: &Said, say: &impl Fn(from_engine::Message)) {
    if last.is_none_or(|last| last.state != now.state) {
        say(from_engine::Message::State(now.state));
    }
    if last.is_none_or(|last| last.replica != now.replica) {
        say(from_engine::Message::Replica(now.replica.clone()));
    }
    if let Some(exit) = now.exit.clone().filter(|_| last.is_none_or(|last| last.exit != now.exit)) {
        say(from_engine::Message::Exit(exit));
    }
}

async fn next(heard: &mut Streaming<ToEngine>) -> Option<to_engine::Message> {
    heard.message().await.ok().flatten()?.message
}
