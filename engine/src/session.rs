//! Keeps one stream open to any agent, for as long as the wrapper lives.
//!
//! What is said to agents is a level, not a sequence of events: the [`Report`] of the moment, told whenever it changes
//! and again after every registration. What agents say is passed on as [`Told`]. Nothing here decides about the engine.

use super::child;
use super::config::Dial;
use super::dial::{self, Target};
use crate::proto::{
    Assignment, Directive, DirectiveResult, EngineState, Exit, FromEngine, Heartbeat, History, Marker, Refused,
    Register, Registered, Replica, State, ToEngine, Vitals, Vouched, from_engine, to_engine,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tonic::Streaming;

/// How often an agent hears that this wrapper lives.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(2);
/// An agent that says nothing for so long, five heartbeats, is taken for lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// The same of an engine with a role: another server is granted the generation if it is a primary that no agent hears.
const ROLE_PERIOD: Duration = Duration::from_millis(500);
/// Three of these heartbeats.
const ROLE_SILENCE: Duration = Duration::from_millis(1_500);
/// How long a connection may take to open, TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// The same of an engine with a role.
const ROLE_CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long the answer to the registration of an engine with a role may take: the agent may read the pod for two seconds, and wait for
/// an election.
const ROLE_ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// So many heartbeats may be unanswered and still count.
const BEATS_KEPT: usize = 8;
/// An agent that does not take note of the engine's end for so long is left for another one: the wrapper waits to end.
const NOTED_WITHIN: Duration = Duration::from_secs(3);
/// The first pause after every agent has failed.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest pause: an engine must not be unknown for longer than its agents need to come back.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// The same of an engine with a role: no generation is granted to a server that is in no session.
const ROLE_BACKOFF_MAX: Duration = Duration::from_millis(500);
/// An agent that fell silent is left out for so long while others are known: to connect with it would only run into a timeout.
const SHUNNED: Duration = Duration::from_secs(2);
/// A session that lasted so long was a good one: its loss is followed by a new round at once.
const LASTING_SESSION: Duration = Duration::from_secs(2);
/// Messages on their way to an agent. It takes them at once or is lost; a few heartbeats and answers are ever in here.
const OUTBOUND_CAPACITY: usize = 32;
/// More different complaints than a domain has agents are not worth remembering.
const COMPLAINTS_MAX: usize = 128;

/// What agents are told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Report {
    /// What the volume says of itself.
    pub marker: Option<Marker>,
    /// How the engine fares; its process id is 0 until it is first started.
    pub state: State,
    /// How new the archive's data is, once it is known which archive it is.
    pub history: Option<History>,
    /// What its server does, if it has a role.
    pub replica: Option<Replica>,
    /// How its server fares, if it has a role.
    pub vitals: Option<Vitals>,
    /// The generation of which its server is the primary, if the domain is to say whether it is the current one; else 0.
    pub asks: u64,
    /// Set once the engine has ended, or never will start.
    pub exit: Option<Exit>,
}

/// What an agent says.
#[derive(Debug)]
pub(super) enum Told {
    Registered(Registered),
    Refused(Refused),
    Directive(Directive, Answers),
    /// Why the engine may not start yet.
    Held(String),
    /// What a server with a role is to do.
    Assignment(Assignment),
    /// The domain was asked at this time, and the generation is the current one.
    Vouched {
        asked: u64,
        generation: u64,
    },
    ExitNoted,
}

/// Takes the answers to the directives of one stream. Those that come after its end are dropped: the agent that asked
/// is no longer there, and the next one asks for itself.
#[derive(Clone, Debug)]
pub(super) struct Answers(mpsc::Sender<FromEngine>);

impl Answers {
    pub fn give(&self, id: u64, result: Result<(), String>) {
        let (ok, message) = (result.is_ok(), result.err().unwrap_or_default());
        let _ = self.0.try_send(say(from_engine::Message::Result(DirectiveResult { id, ok, message })));
    }
}

/// Why there is no session with an agent.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Dial(#[from] dial::Error),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Call(Box<tonic::Status>),
    #[error("no message from it for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it has not acknowledged the engine's exit within {} s", NOTED_WITHIN.as_secs())]
    NotNoted,
    #[error("it has closed the connection")]
    Closed,
    #[error("it does not accept messages")]
    Stuck,
    #[error("it answered the registration with something else")]
    Protocol,
    #[error("refused: {0}")]
    Refused(String),
    #[error("it answers for process {other} of domain {domain}, which this engine is not")]
    Mistaken { other: u64, domain: String },
    #[error("this wrapper is stopping")]
    Ending,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// How often an agent hears of this engine.
    period: Duration,
    /// How long an agent may be silent.
    silence: Duration,
    /// How long a connection may take to open.
    connect: Duration,
    /// How long the answer to the registration may take.
    answer: Duration,
    /// The longest pause between two rounds.
    backoff: Duration,
}

impl Times {
    /// Those of an engine that has one life.
    pub const COMMAND: Self = Self {
        period: HEARTBEAT_PERIOD,
        silence: SILENCE_LIMIT,
        connect: CONNECT_LIMIT,
        answer: SILENCE_LIMIT,
        backoff: BACKOFF_MAX,
    };
    /// Those of an engine with a role: a failover waits for what its wrapper says. They count from its first session on.
    pub const ROLE: Self = Self {
        period: ROLE_PERIOD,
        silence: ROLE_SILENCE,
        connect: ROLE_CONNECT_LIMIT,
        answer: ROLE_ANSWER_LIMIT,
        backoff: ROLE_BACKOFF_MAX,
    };
}

/// The agent with which the last session was.
#[derive(Clone, Copy, Debug)]
struct Left {
    address: SocketAddr,
    /// When it fell silent, if the session was lost for that reason.
    silent: Option<Instant>,
}

impl Left {
    fn is_shunned(&self) -> bool {
        self.silent.is_some_and(|since| since.elapsed() < SHUNNED)
    }
}

/// Everything that keeps a stream open.
pub(super) struct Session {
    dial: Dial,
    times: Times,
    /// What is the same in every registration.
    register: Register,
    report: watch::Receiver<Report>,
    told: mpsc::Sender<Told>,
    /// The last registration that was accepted.
    registered: Option<Registered>,
    /// When the present or last stream was accepted.
    accepted: Option<Instant>,
    /// The addresses that were found last.
    known: Vec<Target>,
    /// What was last logged about each agent that failed, so that it is logged once.
    complaints: BTreeMap<String, String>,
}

impl Session {
    /// Prepares a session; `register` carries what is the same for every stream.
    pub fn new(
        (dial, times): (Dial, Times),
        register: Register,
        report: watch::Receiver<Report>,
        told: mpsc::Sender<Told>,
    ) -> Self {
        Self {
            dial,
            times,
            register,
            report,
            told,
            registered: None,
            accepted: None,
            known: Vec::new(),
            complaints: BTreeMap::new(),
        }
    }

    /// Runs until the receiver of its messages is dropped.
    pub async fn keep(mut self) {
        let mut backoff = BACKOFF_FIRST;
        let mut left = None;
        while !self.told.is_closed() {
            if self.round(&mut left).await {
                backoff = BACKOFF_FIRST;
                continue;
            }
            // Anything between half and the whole: engines that lost the same agent shall not come back as one.
            sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(self.times.backoff);
        }
    }

    /// Tries every agent once, until one was good for a while: then the next round follows at once.
    async fn round(&mut self, left: &mut Option<Left>) -> bool {
        let (found, failed) = self.dial.find().await;
        let targets = or_known(found, &mut self.known, *left);
        for (agent, error) in failed {
            self.complain(agent.to_string(), error.to_string());
        }
        for target in targets {
            self.accepted = None;
            let why = match self.attend(&target).await {
                Ok(never) => match never {},
                Err(Lost::Ending) => return false,
                Err(why) => why,
            };
            let Some(accepted) = self.accepted else {
                self.complain(target.to_string(), why.to_string());
                continue;
            };
            let lasted = accepted.elapsed();
            tracing::warn!(agent = %target, %why, lasted_s = lasted.as_secs(), "session lost, trying the next agent");
            let silent = matches!(why, Lost::Silent(_)).then(Instant::now);
            *left = Some(Left { address: target.address, silent });
            if lasted >= LASTING_SESSION {
                return true;
            }
        }
        false
    }

    fn complain(&mut self, agent: String, why: String) {
        if self.complaints.get(&agent) == Some(&why) {
            return;
        }
        tracing::warn!(agent, why, "no session with this agent, trying the next one");
        if self.complaints.len() >= COMPLAINTS_MAX {
            self.complaints.clear();
        }
        self.complaints.insert(agent, why);
    }

    /// Opens one stream, registers, and stays until it is lost.
    async fn attend(&mut self, target: &Target) -> Result<std::convert::Infallible, Lost> {
        let mut client = self.dial.connect(target, self.times.connect).await?;
        let (outbound, queue) = mpsc::channel(OUTBOUND_CAPACITY);
        let report = self.report.borrow().clone();
        let register = Register {
            connection: crate::clock::random_u64(),
            start_id: self.registered.as_ref().map_or(0, |registered| registered.start_id),
            marker: report.marker.clone(),
            ..self.register.clone()
        };
        outbound.try_send(say(from_engine::Message::Register(register))).map_err(|_| Lost::Stuck)?;
        let request = self.dial.request(queue).await?;
        let answer = async {
            let mut inbound = client.attach(request).await?.into_inner();
            let first = inbound.message().await?;
            Ok::<_, tonic::Status>((first, inbound))
        };
        let limit = if self.report.borrow().exit.is_some() { NOTED_WITHIN } else { self.times.answer };
        let answer = timeout(limit, answer).await.map_err(|_| Lost::Silent(limit))?;
        let (first, inbound) = answer.map_err(|status| Lost::Call(Box::new(status)))?;
        match first.ok_or(Lost::Closed)?.message {
            Some(to_engine::Message::Registered(registered)) => self.accept(target, registered).await?,
            Some(to_engine::Message::Refused(refused)) => return Err(self.refused(refused).await),
            _ => return Err(Lost::Protocol),
        }
        self.converse(inbound, outbound).await
    }

    async fn accept(&mut self, target: &Target, registered: Registered) -> Result<(), Lost> {
        let same = |known: &Registered| {
            (&known.domain, known.start_id, known.archive)
                == (&registered.domain, registered.start_id, registered.archive)
        };
        // A running engine is one process of one domain for all its life.
        if self.has_started() && !self.registered.as_ref().is_some_and(same) {
            return Err(Lost::Mistaken { other: registered.start_id, domain: registered.domain });
        }
        tracing::info!(
            agent = %target, server = registered.server, domain = registered.domain, start_id = registered.start_id,
            archive = registered.archive, session = registered.session, "registered"
        );
        self.complaints.clear();
        self.accepted = Some(Instant::now());
        self.registered = Some(registered.clone());
        self.tell(Told::Registered(registered)).await
    }

    async fn refused(&mut self, refused: Refused) -> Lost {
        // A process that the domain has forgotten before it ran, or that was another domain's: it can only come back as a new one.
        let ours = self.registered.as_ref().is_some_and(|registered| registered.domain == refused.domain);
        let exited = refused.exited.is_some() && ours;
        if !exited && !self.has_started() {
            self.registered = None;
        }
        let why = Lost::Refused(refused.reason.clone());
        self.tell(Told::Refused(refused)).await.err().unwrap_or(why)
    }

    fn has_started(&self) -> bool {
        self.report.borrow().state.pid != 0
    }

    async fn tell(&self, told: Told) -> Result<(), Lost> {
        self.told.send(told).await.map_err(|_| Lost::Ending)
    }

    /// Says what is to be said and hears what is said.
    async fn converse(
        &mut self,
        mut inbound: Streaming<ToEngine>,
        outbound: mpsc::Sender<FromEngine>,
    ) -> Result<std::convert::Infallible, Lost> {
        let Times { period, silence, .. } = self.times;
        let mut beats = interval(period);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent_at = Instant::now() + silence;
        let mut sent = VecDeque::with_capacity(BEATS_KEPT);
        let mut noted_by = None;
        let (mut sequence, mut applied) = (0, 0);
        let mut said: Option<Report> = None;
        self.report.mark_changed();
        loop {
            tokio::select! {
                heard = inbound.message() => {
                    let heard = heard.map_err(|status| Lost::Call(Box::new(status)))?.ok_or(Lost::Closed)?;
                    silent_at = Instant::now() + silence;
                    if let Some(to_engine::Message::Heartbeat(beat)) = &heard.message {
                        applied = applied.max(beat.applied);
                        if beat.asks {
                            sequence += 1;
                            send(&outbound, self.heartbeat(sequence, applied))?;
                        }
                    }
                    self.hear(heard, &outbound, &sent).await?;
                }
                () = sleep_until(silent_at) => return Err(Lost::Silent(silence)),
                () = sleep_until(noted_by.unwrap_or(silent_at)), if noted_by.is_some() => return Err(Lost::NotNoted),
                _ = beats.tick() => {
                    sequence += 1;
                    if sent.len() == BEATS_KEPT {
                        sent.pop_front();
                    }
                    sent.push_back((sequence, crate::clock::monotonic_ms()));
                    send(&outbound, self.heartbeat(sequence, applied))?;
                }
                changed = self.report.changed() => {
                    changed.map_err(|_| Lost::Ending)?;
                    let report = self.report.borrow_and_update().clone();
                    let new = news(said.as_ref(), &report);
                    new.into_iter().try_for_each(|message| send(&outbound, message))?;
                    if report.exit.is_some() {
                        noted_by = noted_by.or_else(|| Some(Instant::now() + NOTED_WITHIN));
                    }
                    said = Some(report);
                }
            }
        }
    }

    /// A sign of life, and whether the engine runs: as it is now, so after entry `applied` was heard of.
    fn heartbeat(&self, sequence: u64, applied: u64) -> from_engine::Message {
        let (state, generation) = {
            let report = self.report.borrow();
            (report.state, report.asks)
        };
        let running = state.engine() == EngineState::Running && child::lives(state.pid);
        from_engine::Message::Heartbeat(Heartbeat { sequence, applied, running, asks: false, generation })
    }

    /// `sent` are the last heartbeats and when they were sent.
    async fn hear(
        &self,
        heard: ToEngine,
        outbound: &mpsc::Sender<FromEngine>,
        sent: &VecDeque<(u64, u64)>,
    ) -> Result<(), Lost> {
        match heard.message {
            Some(to_engine::Message::Directive(directive)) => {
                self.tell(Told::Directive(directive, Answers(outbound.clone()))).await
            }
            Some(to_engine::Message::Held(held)) => self.tell(Told::Held(held.reason)).await,
            Some(to_engine::Message::Assignment(assignment)) => self.tell(Told::Assignment(assignment)).await,
            Some(to_engine::Message::ExitNoted(_)) => self.tell(Told::ExitNoted).await,
            Some(to_engine::Message::Vouched(Vouched { sequence, generation })) => {
                match sent.iter().find(|(number, _)| *number == sequence) {
                    Some((_, asked)) => self.tell(Told::Vouched { asked: *asked, generation }).await,
                    None => Ok(()),
                }
            }
            Some(to_engine::Message::Refused(refused)) => {
                let why = Lost::Refused(refused.reason.clone());
                self.tell(Told::Refused(refused)).await?;
                Err(why)
            }
            Some(to_engine::Message::Registered(_)) => Err(Lost::Protocol),
            // A sign of life, and whatever a newer agent may say that this wrapper does not know.
            Some(to_engine::Message::Heartbeat(_)) | None => Ok(()),
        }
    }
}

/// What was found, or what was found last where nothing is found now: agents can be there while DNS is not, and each proves
/// by its certificate that it is one. The one that was left last comes last, or is left out if it fell silent a moment ago.
fn or_known(found: Vec<Target>, known: &mut Vec<Target>, left: Option<Left>) -> Vec<Target> {
    if !found.is_empty() {
        *known = found;
    }
    let Some(left) = left else { return known.clone() };
    let (last, mut others): (Vec<_>, Vec<_>) = known.iter().cloned().partition(|target| target.address == left.address);
    if others.is_empty() || !left.is_shunned() {
        others.extend(last);
    }
    others
}

/// What an agent that was told `said` has yet to hear; the end always follows the last state.
fn news(said: Option<&Report>, now: &Report) -> Vec<from_engine::Message> {
    let mut new = Vec::new();
    if said.is_none_or(|said| said.state != now.state) {
        new.push(from_engine::Message::State(now.state));
    }
    if said.is_none_or(|said| said.history != now.history) {
        new.extend(now.history.map(from_engine::Message::History));
    }
    if said.is_none_or(|said| said.replica != now.replica) {
        new.extend(now.replica.clone().map(from_engine::Message::Replica));
    }
    if said.is_none_or(|said| said.vitals != now.vitals) {
        new.extend(now.vitals.clone().map(from_engine::Message::Vitals));
    }
    if said.is_none_or(|said| said.exit != now.exit) {
        new.extend(now.exit.clone().map(from_engine::Message::Exit));
    }
    new
}

fn say(message: from_engine::Message) -> FromEngine {
    FromEngine { message: Some(message) }
}

/// Never waits: an agent that does not read is as good as gone.
fn send(outbound: &mpsc::Sender<FromEngine>, message: from_engine::Message) -> Result<(), Lost> {
    outbound.try_send(say(message)).map_err(|_| Lost::Stuck)
}

/// Between half of it and all of it, so that many engines do not come back at one moment.
fn jittered(backoff: Duration) -> Duration {
    backoff.mul_f64(0.5 + (crate::clock::random_u64() % 500) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(said: Option<&Report>, now: &Report) -> String {
        let name = |message: &from_engine::Message| match message {
            from_engine::Message::State(state) => state.engine().as_str_name().to_owned(),
            from_engine::Message::Exit(exit) => format!("exit {:?}", exit.code),
            from_engine::Message::History(history) => format!("history {}", history.value),
            other => format!("{other:?}"),
        };
        news(said, now).iter().map(name).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn an_agent_hears_all_at_first_and_then_what_is_new() {
        let running = Report { state: State { engine: EngineState::Running.into(), pid: 5 }, ..Report::default() };
        let marked = Report { marker: Some(Marker::default()), ..running.clone() };
        let stopping = Report { state: State { engine: EngineState::ShuttingDown.into(), pid: 5 }, ..marked.clone() };
        let ended = Report { exit: Some(Exit { code: Some(0), ..Exit::default() }), ..stopping.clone() };
        assert_eq!("UNKNOWN", kinds(None, &Report::default()));
        let known = Report { history: Some(History { value: 4 }), ..Report::default() };
        assert_eq!("history 4", kinds(Some(&Report::default()), &known));
        assert_eq!("UNKNOWN, history 4", kinds(None, &known), "on every new stream");
        assert_eq!("", kinds(Some(&running), &marked));
        assert_eq!("SHUTTING_DOWN", kinds(Some(&marked), &stopping));
        assert_eq!("exit Some(0)", kinds(Some(&stopping), &ended));
        // However fast it went, the state comes before the end.
        assert_eq!("SHUTTING_DOWN, exit Some(0)", kinds(Some(&running), &ended));
        assert_eq!("SHUTTING_DOWN, exit Some(0)", kinds(None, &ended));
    }

    #[test]
    fn the_agents_found_last_are_tried_while_none_is_found() {
        let target = |port| Target { address: SocketAddr::from(([127, 0, 0, 1], port)), host: "agent".to_owned() };
        let (first, second) = (target(1), target(2));
        let mut known = Vec::new();
        assert_eq!(or_known(Vec::new(), &mut known, None), []);
        let both = vec![first.clone(), second.clone()];
        assert_eq!(or_known(both.clone(), &mut known, None), both);
        let left = |silent| Some(Left { address: first.address, silent });
        assert_eq!(or_known(Vec::new(), &mut known, left(None)), [second.clone(), first.clone()]);
        let one = vec![second];
        assert_eq!(or_known(one.clone(), &mut known, None), one);
        assert_eq!(or_known(Vec::new(), &mut known, None), one, "what is found now replaces what was found before");
    }

    #[test]
    fn an_agent_that_fell_silent_is_left_out_for_a_while() {
        let target = |port| Target { address: SocketAddr::from(([127, 0, 0, 1], port)), host: "agent".to_owned() };
        let (first, second) = (target(1), target(2));
        let tried = |found: &[&Target], silent| {
            let left = Some(Left { address: first.address, silent });
            or_known(found.iter().map(|&it| it.clone()).collect(), &mut Vec::new(), left)
        };
        let now = Instant::now();
        assert_eq!(tried(&[&first, &second], Some(now)), std::slice::from_ref(&second));
        assert_eq!(tried(&[&first], Some(now)), std::slice::from_ref(&first), "there is no other one");
        assert_eq!(tried(&[&first, &second], now.checked_sub(SHUNNED)), [second, first]);
    }
}
