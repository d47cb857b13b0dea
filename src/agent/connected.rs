//! The engines' streams that are up here, and what their engines are told to do.
//!
//! What an operator asks of a process is in the domain, not in a message: any agent takes the request, and the agent that has
//! the stream compares what its engines were told with what the domain asks. So a stream that broke in between, a session
//! that moved and an agent that restarted are all the same case.

use super::{Shared, roles};
use crate::config::BACKOFF;
use crate::pace::Pace;
use crate::proto::engine as wire;
use kaa_core::domain::Domain;
use kaa_core::domain::gate::{Held, Start};
use kaa_core::domain::ids::{SessionNumber, StartId};
use kaa_core::domain::managers::Gates;
use kaa_core::domain::process::Stop;
use kaa_core::replication::{Assignment, Report};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tonic::Status;
use tracing::info;

/// How an engine's stream is answered.
pub type Answers = mpsc::Sender<Result<wire::ToEngine, Status>>;

/// Time enough for SIGTERM to be followed by SIGKILL at once; 0 would mean the time that the wrapper gives by itself.
const KILL_DEADLINE_MS: u64 = 1;

/// How many of its states an engine may report at once: each is an entry in every log.
const STATES_AT_ONCE: u32 = 16;

/// One more follows after this.
const STATE_PERIOD: Duration = Duration::from_secs(1);

/// How often an engine may report its state.
pub fn state_pace() -> Pace {
    Pace::new(STATES_AT_ONCE, STATE_PERIOD, Instant::now().into_std())
}

/// The streams that are up, by the random number that each carries into the domain.
#[derive(Default)]
pub struct Connected {
    streams: Mutex<BTreeMap<u64, Stream>>,
    /// A stream went: the sweep shall look at once.
    pub gone: Notify,
    /// A wrapper said something of its server.
    pub said: Notify,
}

struct Stream {
    heard: Instant,
    line: Option<Line>,
}

/// The way to the engine of a registered process.
struct Line {
    process: StartId,
    session: SessionNumber,
    answers: Answers,
    /// Whether it was told to start.
    started: bool,
    /// Whether it must not be told to start now.
    held_back: bool,
    /// Why it was told that it may not start yet.
    held: Option<Held>,
    told: Option<Stop>,
    /// Whether it was warned of that its volume is a copy.
    warned: bool,
    /// The last entry as of which it was asked whether its engine still runs.
    asked: u64,
    /// What its wrapper said last of its server, if it has a role.
    report: Option<Report>,
    /// What it was told last to do.
    assigned: Option<Assignment>,
}

impl Connected {
    fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago a stream was heard of; `None` if it is not up.
    pub fn heard(&self, connection: u64) -> Option<Duration> {
        self.streams().get(&connection).map(|stream| stream.heard.elapsed())
    }

    /// Whether a stream is up.
    pub fn is_up(&self, connection: u64) -> bool {
        self.streams().contains_key(&connection)
    }

    /// Notes that a stream was heard of.
    pub fn hear(&self, connection: u64) {
        let now = Instant::now();
        let mut streams = self.streams();
        streams.entry(connection).or_insert(Stream { heard: now, line: None }).heard = now;
    }

    /// Notes whose stream it is.
    pub fn registered(&self, connection: u64, process: StartId, session: SessionNumber, answers: Answers) {
        if let Some(stream) = self.streams().get_mut(&connection) {
            let line = Line {
                process,
                session,
                answers,
                started: false,
                held_back: false,
                held: None,
                told: None,
                warned: false,
                asked: 0,
                report: None,
                assigned: None,
            };
            stream.line = Some(line);
        }
    }

    /// Keeps the engine of a stream from being told to start until [`Self::release`]; false if it was told already.
    pub fn hold_back(&self, connection: u64) -> bool {
        let mut streams = self.streams();
        let line = streams.get_mut(&connection).and_then(|stream| stream.line.as_mut());
        line.is_some_and(|line| {
            line.held_back = !line.started;
            line.held_back
        })
    }

    /// Lets the engine of a stream be told to start again.
    pub fn release(&self, connection: u64) {
        if let Some(line) = self.streams().get_mut(&connection).and_then(|stream| stream.line.as_mut()) {
            line.held_back = false;
        }
    }

    /// Notes what a wrapper says of its server.
    pub fn report(&self, connection: u64, report: Report) {
        let mut streams = self.streams();
        if let Some(line) = streams.get_mut(&connection).and_then(|stream| stream.line.as_mut()) {
            let trouble = line.report.as_ref().and_then(|before| before.trouble.as_ref());
            if let Some(new) = report.trouble.as_ref().filter(|new| trouble != Some(new)) {
                tracing::warn!("process {}: its server does not do what it was assigned: {new}", line.process);
            }
            line.report = Some(report);
            self.said.notify_one();
        }
    }

    /// What the wrappers of engines with roles said last, by process.
    pub fn reports(&self) -> Vec<Said> {
        let streams = self.streams();
        let lines = streams.values().filter_map(|stream| stream.line.as_ref());
        lines.filter_map(Line::said).collect()
    }

    /// What the wrapper of a stream said last, if its engine has a role.
    pub fn said(&self, connection: u64) -> Option<Said> {
        self.streams().get(&connection)?.line.as_ref()?.said()
    }

    /// Notes that the engine has ended: there is nothing more to tell it.
    pub fn ended(&self, connection: u64) {
        if let Some(stream) = self.streams().get_mut(&connection) {
            stream.line = None;
        }
    }

    /// Tells an engine to end that must not start.
    pub fn end(&self, connection: u64) {
        if let Some(line) = self.streams().get_mut(&connection).and_then(|stream| stream.line.as_mut()) {
            line.tell_end(Stop::Gracefully);
        }
    }

    /// Whether it is to be said that the volume of an engine that runs is a copy: once for each stream.
    pub fn warns_of_a_copy(&self, connection: u64) -> bool {
        let mut streams = self.streams();
        let line = streams.get_mut(&connection).and_then(|stream| stream.line.as_mut());
        line.is_some_and(|line| !std::mem::replace(&mut line.warned, true))
    }

    /// Notes that a stream is down.
    pub fn remove(&self, connection: u64) {
        self.streams().remove(&connection);
        self.gone.notify_one();
    }

    /// How many engines are connected.
    pub fn count(&self) -> usize {
        self.streams().len()
    }

    /// Tells every engine what the domain asks of it and it was not told yet.
    pub fn tell(&self, domain: &Domain) {
        let gates = domain.gates();
        for stream in self.streams().values_mut() {
            let Some(line) = &mut stream.line else { continue };
            line.tell_start(&gates);
            line.ask(&gates, domain.index);
            line.assign(domain);
            if let Some(how) = wanted(domain, line.process) {
                line.tell_end(how);
            }
        }
    }
}

/// What a wrapper said last of its server.
#[derive(Clone, Debug)]
pub struct Said {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// Its words.
    pub report: Report,
}

impl Line {
    fn said(&self) -> Option<Said> {
        Some(Said { process: self.process, session: self.session, report: self.report.clone()? })
    }

    /// Tells the engine to end, if it was not told yet, or only to end gracefully. One whose queue is full reads nothing at the
    /// moment: it is told the next time.
    fn tell_end(&mut self, how: Stop) {
        if self.told < Some(how) && self.answers.try_send(Ok(exit(how))).is_ok() {
            info!("process {}: told to stop ({how:?})", self.process);
            self.told = Some(how);
        }
    }

    /// Says what the server is to do, if that has changed. One whose wrapper has not said what it does is told nothing; nor is one
    /// whose session this copy of the domain does not know yet: what it knows of the server may be long over.
    fn assign(&mut self, domain: &Domain) {
        let session = domain.processes.get(&self.process).map(|process| process.session.number);
        let Some(report) = self.report.as_ref().filter(|_| session >= Some(self.session)) else { return };
        let wanted = domain.assignment(self.process, Some(report));
        let Some(wanted) = wanted.filter(|wanted| self.assigned.as_ref() != Some(wanted)) else { return };
        let message = wire::to_engine::Message::Assignment(roles::assigned(&wanted));
        if self.answers.try_send(Ok(wire::ToEngine { message: Some(message) })).is_ok() {
            self.assigned = Some(wanted);
        }
    }

    /// Asks whether the engine still runs, if something depends on it. Heartbeats say it too, a while later.
    fn ask(&mut self, gates: &Gates<'_>, applied: u64) {
        let Some(owed) = gates.owed_proof(self.process).filter(|owed| *owed > self.asked) else { return };
        let beat = wire::Heartbeat { sequence: 0, applied, running: false, asks: true, generation: 0 };
        let message = wire::ToEngine { message: Some(wire::to_engine::Message::Heartbeat(beat)) };
        if self.answers.try_send(Ok(message)).is_ok() {
            self.asked = owed;
        }
    }

    /// Says Start when the gate is open, and until then why it is not. A wrapper whose engine runs leaves it alone.
    fn tell_start(&mut self, gates: &Gates<'_>) {
        if self.started || self.held_back {
            return;
        }
        match gates.may_start(self.process) {
            // One whose queue is full is told the next time.
            Ok(how) => self.started = self.answers.try_send(Ok(start(how))).is_ok(),
            Err(Held::Unknown) => {}
            Err(held) if self.held.as_ref() == Some(&held) => {}
            Err(held) => {
                let reason = held.to_string();
                let message = wire::ToEngine { message: Some(wire::to_engine::Message::Held(wire::Held { reason })) };
                if self.answers.try_send(Ok(message)).is_ok() {
                    info!("process {}: blocked: {held}", self.process);
                    self.held = Some(held);
                }
            }
        }
    }
}

fn start(how: Start) -> wire::ToEngine {
    let action = Some(wire::directive::Action::Start(wire::Start { join: how == Start::Join }));
    let directive = wire::Directive { id: 1, deadline_ms: 0, action };
    wire::ToEngine { message: Some(wire::to_engine::Message::Directive(directive)) }
}

/// How the engine of a process has to stop, if it has to: because an operator asked for it, or because the domain no longer
/// has this process.
fn wanted(domain: &Domain, process: StartId) -> Option<Stop> {
    match domain.processes.get(&process) {
        Some(process) => process.stop,
        // Ids are given in order: of one that this agent has not applied yet there is no later one either. Its tombstone may
        // have been dropped to make room.
        None => (process <= domain.last_start).then_some(Stop::Gracefully),
    }
}

/// Ends the wrapper as well, so that the container restarts.
fn exit(how: Stop) -> wire::ToEngine {
    let (id, deadline_ms) = match how {
        Stop::Gracefully => (2, 0),
        Stop::Kill => (3, KILL_DEADLINE_MS),
    };
    let action = Some(wire::directive::Action::Exit(wire::ExitNow {}));
    let directive = wire::Directive { id, deadline_ms, action };
    wire::ToEngine { message: Some(wire::to_engine::Message::Directive(directive)) }
}

/// Tells engines what is asked of them whenever the domain changes. Runs until the agent ends.
pub async fn tell(shared: Arc<Shared>) {
    let mut applied = shared.raft.applied();
    loop {
        applied.mark_unchanged();
        shared.raft.read(|domain| shared.connected.tell(domain));
        tokio::select! {
            changed = applied.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(BACKOFF) => {}
            () = shared.stopping() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fake;
    use kaa_core::domain::change::{self, Command};
    use kaa_core::domain::command::{Actor, Entry, Outcome, Request, Role};
    use kaa_core::domain::ids::Millis;
    use kaa_core::domain::process::DurableState;
    use tokio::sync::mpsc::Receiver;

    fn apply(domain: &mut Domain, command: Command) {
        let request = Request { actor: Actor { role: Role::Operator, name: "loopback".to_owned() }, command };
        let outcome = domain.apply(Entry { index: domain.index + 1, time: Millis(0), request });
        assert_eq!(outcome, Outcome::Changed);
    }

    fn started() -> wire::Directive {
        match start(Start::Join).message {
            Some(wire::to_engine::Message::Directive(directive)) => directive,
            other => panic!("{other:?}"),
        }
    }

    /// What an engine was told of its start: why not, or `start`.
    fn said(engine: &mut Receiver<Result<wire::ToEngine, Status>>) -> Vec<String> {
        let mut said = Vec::new();
        while let Ok(message) = engine.try_recv() {
            said.push(match message.unwrap().message {
                Some(wire::to_engine::Message::Directive(directive)) if directive == started() => "start".to_owned(),
                Some(wire::to_engine::Message::Held(held)) => held.reason,
                other => panic!("{other:?}"),
            });
        }
        said
    }

    #[test]
    fn an_engine_starts_when_the_gate_opens_and_hears_why_not_until_then() {
        let (mut domain, connected) = (fake::domain(), Connected::default());
        let requested = |domain: &mut Domain| {
            let process = domain.processes.get_mut(&StartId(4)).unwrap();
            process.durable = DurableState::Requested;
        };
        for process in [StartId(1), StartId(5)] {
            apply(&mut domain, Command::EvictProcess(change::EvictProcess { process }));
        }
        requested(&mut domain);
        let mut engine = connect(&connected, StartId(4), 4);
        connected.tell(&domain);
        connected.tell(&domain);
        assert_eq!(said(&mut engine), ["waiting for a running storage manager"], "once");
        let mut unknown = connect(&connected, StartId(9), 4);
        connected.tell(&domain);
        assert_eq!(said(&mut unknown), [""; 0], "this agent has not applied its registration yet");
        let mut running = fake::domain();
        running.index = domain.index;
        requested(&mut running);
        connected.tell(&running);
        connected.tell(&running);
        assert_eq!(said(&mut engine), ["start"]);
        connected.remove(4);
        let mut engine = connect(&connected, StartId(4), 4);
        connected.tell(&running);
        assert_eq!(said(&mut engine), ["start"], "on every new stream");
    }

    #[test]
    fn a_storage_manager_is_asked_once_whether_it_still_runs_where_something_depends_on_it() {
        let (domain, connected) = (fake::domain(), Connected::default());
        let asked = |engine: &mut Receiver<Result<wire::ToEngine, Status>>| {
            let mut asked = Vec::new();
            while let Ok(message) = engine.try_recv() {
                if let Some(wire::to_engine::Message::Heartbeat(beat)) = message.unwrap().message {
                    asked.push((beat.asks, beat.applied));
                }
            }
            asked
        };
        assert!(domain.owed_proof(StartId(1)).is_some(), "storage manager 5 has registered since");
        let mut engine = connect(&connected, StartId(1), 4);
        connected.tell(&domain);
        connected.tell(&domain);
        assert_eq!(asked(&mut engine), [(true, domain.index)]);
        let mut alone = domain.clone();
        apply(&mut alone, Command::EvictProcess(change::EvictProcess { process: StartId(5) }));
        let mut engine = connect(&connected, StartId(1), 4);
        connected.tell(&alone);
        assert_eq!(asked(&mut engine), [], "nothing depends on it");
    }

    fn connect(connected: &Connected, process: StartId, queue: usize) -> Receiver<Result<wire::ToEngine, Status>> {
        let (answers, receiver) = mpsc::channel(queue);
        connected.hear(process.0);
        connected.registered(process.0, process, SessionNumber(1), answers);
        receiver
    }

    /// The deadlines of the exits that an engine was told of since it was last asked.
    fn told(engine: &mut Receiver<Result<wire::ToEngine, Status>>) -> Vec<u64> {
        let mut deadlines = Vec::new();
        while let Ok(message) = engine.try_recv() {
            match message.unwrap().message {
                Some(wire::to_engine::Message::Directive(directive)) if directive == started() => {}
                Some(wire::to_engine::Message::Directive(wire::Directive { deadline_ms, action, .. })) => {
                    assert!(matches!(action, Some(wire::directive::Action::Exit(_))), "{action:?}");
                    deadlines.push(deadline_ms);
                }
                Some(wire::to_engine::Message::Heartbeat(beat)) if beat.asks => {}
                other => panic!("{other:?}"),
            }
        }
        deadlines
    }

    #[test]
    fn an_engine_is_told_once_what_is_asked_of_it_and_again_if_more_is_asked_or_its_stream_is_new() {
        let (mut domain, connected, process) = (fake::domain(), Connected::default(), StartId(4));
        let mut engine = connect(&connected, process, 4);
        let mut other = connect(&connected, StartId(1), 4);
        connected.tell(&domain);
        assert!(told(&mut engine).is_empty());
        apply(&mut domain, Command::StopProcess(change::StopProcess { process, how: Stop::Gracefully }));
        connected.tell(&domain);
        connected.tell(&domain);
        assert_eq!(told(&mut engine), [0]);
        apply(&mut domain, Command::StopProcess(change::StopProcess { process, how: Stop::Kill }));
        connected.tell(&domain);
        assert_eq!(told(&mut engine), [KILL_DEADLINE_MS]);
        connected.remove(process.0);
        let mut engine = connect(&connected, process, 4);
        connected.tell(&domain);
        assert_eq!((told(&mut engine), told(&mut other)), (vec![KILL_DEADLINE_MS], vec![]));
    }

    /// It could order what was over before: a later generation was granted meanwhile, say.
    #[test]
    fn nothing_is_assigned_by_a_copy_of_the_domain_that_does_not_know_the_session() {
        let (fake, connected) = (fake::shop().source(), Connected::default());
        let mut domain = fake.domain.lock().unwrap().clone();
        let process = domain.processes.values().find(|process| process.identity.pod == "shop-0").unwrap().id;
        let (answers, mut engine) = mpsc::channel(4);
        connected.hear(1);
        connected.registered(1, process, SessionNumber(7), answers);
        connected.report(1, roles::reported(wire::Replica::default()));
        let mut assigned = |domain: &Domain| {
            connected.tell(domain);
            let messages = std::iter::from_fn(|| engine.try_recv().ok()).filter_map(|message| message.unwrap().message);
            messages.filter(|message| matches!(message, wire::to_engine::Message::Assignment(_))).count()
        };
        assert_eq!(assigned(&domain), 0);
        domain.processes.get_mut(&process).unwrap().session.number = SessionNumber(7);
        assert_eq!(assigned(&domain), 1);
    }

    #[test]
    fn one_that_was_evicted_is_told_to_end_and_one_that_has_ended_is_left_alone() {
        let (mut domain, connected) = (fake::domain(), Connected::default());
        let mut engines = [StartId(1), StartId(4)].map(|process| connect(&connected, process, 4));
        for process in [StartId(1), StartId(4)] {
            apply(&mut domain, Command::EvictProcess(change::EvictProcess { process }));
        }
        connected.ended(4);
        // To make room.
        domain.tombstones.remove(&StartId(1));
        connected.tell(&domain);
        assert_eq!(engines.each_mut().map(told), [vec![0], vec![]]);
    }

    #[test]
    fn one_that_takes_no_message_now_is_told_later() {
        let (mut domain, connected, process) = (fake::domain(), Connected::default(), StartId(4));
        let mut engine = connect(&connected, process, 1);
        connected.tell(&domain);
        assert!(told(&mut engine).is_empty(), "it is told to start");
        apply(&mut domain, Command::StopProcess(change::StopProcess { process, how: Stop::Gracefully }));
        connected.tell(&domain);
        apply(&mut domain, Command::StopProcess(change::StopProcess { process, how: Stop::Kill }));
        connected.tell(&domain);
        assert_eq!(told(&mut engine), [0], "its queue is full");
        connected.tell(&domain);
        assert_eq!(told(&mut engine), [KILL_DEADLINE_MS]);
    }
}
