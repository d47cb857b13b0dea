//! The one task that decides about a server with a role. A step is under way at most once; words of agents, signals and the end of
//! the server are heard meanwhile, and a step that is not wanted any more is dropped.
//!
//! Agents that are away, refuse or contradict each other never stop a server that serves. These do: a later grant, an order to stand
//! down, the end of the pod, a lease that is over while the server does not close or does not answer, a promotion or a shutdown by hand,
//! and a domain that has recorded this process as exited.

mod door;
mod ending;
mod hearing;
mod lease;
mod noting;
mod reading;
mod said;
mod slots;
mod vitals;
mod volume;

pub use hearing::{Ear, Hearing};

use super::decide::{self, Choice, Run, State, Step};
use super::declines::Tries;
use super::kept::{Kept, Notes};
use super::noted;
use super::outside::Outside;
use super::perform::{self, Done};
use super::standbys::Standbys;
use super::using::Using;
use super::words;
use crate::config::Config;
use crate::marker::Locked;
use crate::postgres::{Knock, Position, Reading, Server};
use crate::proto::{self as wire, Refused, Registered, directive};
use crate::session::{Answers, Told};
use crate::signals::Signals;
use crate::{Error, Out};
use kaa_core::domain::archive::Marker;
use kaa_core::domain::ids::{ArchiveId, DomainId, Generation, StartId};
use kaa_core::domain::replicated::Ended;
use kaa_core::replication::{Assignment, Released};
use nix::sys::signal::Signal;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

/// How often a server is read.
const READ_PERIOD: Duration = Duration::from_millis(500);
/// How often while its primary may be silent.
const READ_DOUBTFUL: Duration = Duration::from_millis(100);
/// When it is read first after a step: what the step began shows soon. The pauses after that double.
const READ_FIRST: Duration = Duration::from_millis(20);
/// How long the end of the server is offered to agents.
const EXIT_REPORT_LIMIT: Duration = Duration::from_secs(10);
/// What of the grace period is kept for the stop of the server.
const FOR_THE_STOP: Duration = Duration::from_secs(5);
/// An order to stop within less time is one to kill.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The first pause after a step that failed.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// The longest one.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

type Under = Pin<Box<dyn Future<Output = Done> + Send>>;

/// Who this engine is in the domain.
struct Member {
    domain: String,
    start_id: u64,
    archive: ArchiveId,
}

/// What there is to react to.
enum Action {
    Signal(Signal),
    Told(Told),
    Done(Box<Done>),
    /// A note was written to the volume, or not.
    Noted(Kept, Result<(), Error>),
    /// The server has ended by itself: how.
    Ended(String),
    Read,
    WasRead(Box<Result<Reading, reading::Unread>>),
    /// What came of a new session.
    Knocked(Knock),
    /// An own commit of a primary was released.
    Released(Released),
    /// A deadline has passed: of the wait for the domain, of the exit report, of the pause after a failure, or of a lease.
    Due,
}

/// The one task that decides about a server.
pub(crate) struct Keeper {
    config: Config,
    notes: Notes,
    out: Out,
    told: mpsc::Receiver<Told>,
    signals: Signals,
    server: Arc<Mutex<Server>>,
    using: Using,
    member: Option<Member>,
    state: State,
    /// The last start that the volume remembered when this wrapper came up.
    start_before: StartId,
    /// The one that it remembers now.
    start: StartId,
    /// The last checkpoint of the data when the wrapper came up, until that is overwritten.
    checkpoint: Option<Position>,
    /// Whether the volume remembers that the server was promoted by other means than a grant.
    outside: bool,
    wanted: Option<Assignment>,
    /// What is under way, and for what; `None` while the volume takes the note that it needs.
    under: Option<(Step, Option<Under>)>,
    noting: noting::Noting,
    /// After a failure: until when no step is repeated, and the length of that pause. A success or a new assignment clears it.
    pause: Option<(Instant, Duration)>,
    tries: Tries,
    trouble: String,
    /// Whether the last assignment is one that this wrapper does not understand.
    is_too_old: bool,
    /// The last generation in which the server was the primary and has ended.
    ended: Option<(Generation, Ended)>,
    standbys: Standbys,
    hearing: hearing::Hearing,
    leased: Option<lease::Leased>,
    reading: Option<Reading>,
    /// Whether a standby streams, and has caught up since it follows its primary.
    caught_up: bool,
    /// A reading that is under way.
    reads: Option<reading::Reads>,
    door: door::Door,
    vitals: vitals::Watch,
    tending: slots::Tending,
    /// When the server is read next, and the pause after that.
    read_next: (Instant, Duration),
    /// Set once the pod is to end: until when the wrapper waits for the domain.
    stopping: Option<Instant>,
    /// Whether it is to end without a clean stop.
    at_once: bool,
    /// Set once the server has stopped for good: until when that is offered to agents.
    over: Option<Instant>,
    awaiting_stop: Vec<(u64, Answers)>,
}

impl Keeper {
    pub fn new(
        config: Config,
        archive: Locked,
        out: Out,
        told: mpsc::Receiver<Told>,
        signals: Signals,
    ) -> Result<Self, Error> {
        let settings = config.postgres()?;
        let vitals = vitals::Watch::new(settings.clone());
        let server = Server::new(settings.clone());
        let data = server.inspect().map_err(|source| Error::Server(Box::new(source)))?;
        let notes = Notes::of(archive);
        let kept = notes.read()?;
        let checkpoint = data.checkpoint();
        let is_set_back = kept.is_newer_than(checkpoint);
        if is_set_back {
            tracing::error!(?data, noted = ?kept.checkpoint, "the data is an earlier state than the volume remembers");
        }
        Ok(Self {
            config,
            notes,
            out,
            told,
            signals,
            server: Arc::new(Mutex::new(server)),
            using: Using::new(settings),
            member: None,
            state: State::down(data, kept.memory, Outside::remembered(kept.outside)),
            // The domain judges a volume that is behind its last known start.
            start_before: if is_set_back { StartId(0) } else { kept.start },
            start: kept.start,
            checkpoint,
            outside: kept.outside,
            wanted: None,
            under: None,
            noting: noting::Noting::default(),
            pause: None,
            tries: Tries::default(),
            trouble: String::new(),
            is_too_old: false,
            ended: None,
            standbys: Standbys::default(),
            hearing: hearing::Hearing::default(),
            leased: None,
            reading: None,
            caught_up: false,
            reads: None,
            door: door::Door::new(),
            vitals,
            tending: slots::Tending::default(),
            read_next: (Instant::now() + READ_PERIOD, READ_PERIOD),
            stopping: None,
            at_once: false,
            over: None,
            awaiting_stop: Vec::new(),
        })
    }

    /// Runs until the wrapper may end, and gives its exit code.
    pub async fn run(mut self) -> Result<i32, Error> {
        loop {
            self.begin();
            self.say();
            self.show_health();
            let action = self.next().await;
            if let Some(code) = self.apply(action).await? {
                return Ok(code);
            }
        }
    }

    /// Begins the next step, unless one is under way. A step that waits for others is dropped if another one is wanted instead.
    fn begin(&mut self) {
        self.look_at_the_lease();
        if self.member.is_none() || self.over.is_some() {
            return;
        }
        // Until the domain has said what it wants, it has not judged what the volume remembers.
        let Some(wanted) = &self.wanted else { return };
        self.tries.look(&mut self.state, wanted, Instant::now());
        if !self.note() {
            return;
        }
        let Some(wanted) = &self.wanted else { return };
        let (under, pauses) = (self.under.as_ref().map(|(step, _)| step), self.pauses());
        let Choice::Instead(step) = decide::choose(&self.state, wanted, under, pauses) else { return };
        if decide::hangs(&self.state, wanted) {
            tracing::error!("the primary has not answered for long: it is stopped, so that another one can take over");
        }
        if let Some((dropped, _)) = self.under.take() {
            tracing::info!(step = dropped.name(), "given up: something else is wanted");
            noted::note_dropped(&mut self.state, &dropped);
        }
        let step = step.unwrap_or_else(|why| {
            self.trouble = why;
            None
        });
        let Some(step) = step else { return };
        if let Err(why) = perform::may_begin(&step, self.using.settings()) {
            return self.failed(why);
        }
        if let (Step::Require(rule), Run::Primary(primary), Some(leased)) = (&step, &self.state.run, &mut self.leased) {
            leased.rule_changes(&primary.ruling, rule);
        }
        let end = self.reading.as_ref().map_or(0, |reading| reading.end.0);
        if !noted::note_begin(&mut self.state, &step, end) {
            return;
        }
        self.begin_step(step);
    }

    /// Whether a step has failed a moment ago.
    fn pauses(&self) -> bool {
        self.pause.is_some_and(|(until, _)| Instant::now() < until)
    }

    /// Takes note of what the domain wants.
    fn assigned(&mut self, wanted: Assignment) {
        self.state.may_start = wanted.may_start;
        self.is_too_old = false;
        if self.wanted.as_ref() != Some(&wanted) {
            (self.wanted, self.pause) = (Some(wanted), None);
            self.trouble.clear();
        }
        self.note_wait();
    }

    async fn next(&mut self) -> Action {
        let pause = self.pause.map(|(until, _)| until).filter(|until| *until > Instant::now());
        let stopping = self.stopping.filter(|_| self.over.is_none());
        let due = [stopping, self.over, pause, self.lease_due()].into_iter().flatten().min();
        let idle = self.under.is_none() && self.over.is_none();
        let reads = !matches!(self.state.run, Run::Down) && self.over.is_none();
        let server = self.server.clone();
        // The server is held only while nothing else wants it.
        let ended = async { server.lock().await.ended().await };
        tokio::select! {
            biased;
            signal = self.signals.next() => Action::Signal(signal),
            Some(told) = self.told.recv() => Action::Told(told),
            done = async { match &mut self.under { Some((_, Some(work))) => work.await, _ => std::future::pending().await } } => {
                Action::Done(Box::new(done))
            }
            noted = self.noting.written() => noted,
            Some(commit) = async { match &mut self.leased { Some(leased) => leased.released().await, None => None } } => {
                Action::Released(commit)
            }
            read = async { match &mut self.reads { Some(reads) => reads.await, None => std::future::pending().await } } => {
                Action::WasRead(Box::new(read))
            }
            knock = self.door.answer() => Action::Knocked(knock),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Action::Due,
            // While it does not run, operators are told of its volume.
            () = sleep_until(self.read_next.0), if self.over.is_none() => Action::Read,
            how = ended, if idle && reads => Action::Ended(how),
        }
    }

    async fn apply(&mut self, action: Action) -> Result<Option<i32>, Error> {
        match action {
            Action::Signal(Signal::SIGTERM | Signal::SIGINT) => self.stop(self.config.grace),
            Action::Signal(_) => {}
            Action::Told(Told::Registered(registered)) => self.registered(registered)?,
            Action::Told(Told::Refused(refused)) => return self.refused(refused).await,
            Action::Told(Told::Held(_)) => {}
            Action::Told(Told::Assignment(said)) => match words::assigned(said) {
                Some(wanted) => self.assigned(wanted),
                None => self.is_too_old = true,
            },
            Action::Told(Told::Directive(directive, answers)) => self.directed(directive, answers),
            Action::Told(Told::Vouched { asked, generation }) => self.vouched(asked, Generation(generation)),
            Action::Told(Told::ExitNoted) if self.over.is_some() => return Ok(Some(0)),
            Action::Told(Told::ExitNoted) => {}
            Action::Done(done) => {
                self.done(*done);
                if matches!(self.state.run, Run::Primary(_)) {
                    self.begin_to_read();
                }
            }
            Action::Noted(kept, written) => self.noted(kept, written),
            Action::WasRead(reading) => self.was_read(*reading),
            Action::Knocked(knock) => self.knocked(knock),
            Action::Released(commit) => self.released(commit),
            Action::Ended(how) => self.server_ended(&how).await,
            Action::Read => {
                let (_, pause) = self.read_next;
                self.read_next = (Instant::now() + pause, (pause * 2).min(READ_PERIOD));
                self.state.stale = self.using.is_stale();
                self.begin_to_read();
                if self.hearing.is_doubtful() {
                    self.read_next = (Instant::now() + READ_DOUBTFUL, READ_PERIOD);
                }
                self.tend_slots();
            }
            Action::Due => {}
        }
        let now = Instant::now();
        if self.over.is_some_and(|until| now >= until) {
            tracing::warn!("no agent has acknowledged the engine's exit");
            return Ok(Some(0));
        }
        if self.over.is_none() && self.may_end(now) {
            self.end().await;
            if self.member.is_none() {
                return Ok(Some(0));
            }
        }
        Ok(None)
    }

    fn directed(&mut self, directive: wire::Directive, answers: Answers) {
        let wire::Directive { id, deadline_ms, action } = directive;
        let grace = if deadline_ms == 0 { self.config.grace } else { Duration::from_millis(deadline_ms) };
        match action {
            // A server with a role always starts fenced, so this message changes nothing: the assignment says whether it may start.
            Some(directive::Action::Start(_)) => answers.give(id, Ok(())),
            Some(directive::Action::Stop(_) | directive::Action::Exit(_)) => {
                self.awaiting_stop.push((id, answers));
                self.stop(grace);
            }
            None => answers.give(id, Err("unknown directive: this wrapper does not support it".to_owned())),
        }
    }

    fn registered(&mut self, registered: Registered) -> Result<(), Error> {
        let (domain, archive) = (registered.domain.clone(), ArchiveId(registered.archive));
        let marker = wire::Marker { domain: domain.clone(), archive: archive.0 };
        if self.out.report.borrow().marker.as_ref() != Some(&marker) {
            self.notes.mark(&Marker { domain: DomainId::new(domain.clone()), archive })?;
            self.out.report.send_modify(|report| report.marker = Some(marker));
        }
        self.member = Some(Member { domain, start_id: registered.start_id, archive });
        Ok(())
    }

    async fn refused(&mut self, refused: Refused) -> Result<Option<i32>, Error> {
        let gone = refused.exited.as_ref().is_some_and(|tombstone| {
            self.member.as_ref().is_none_or(|me| (&me.domain, me.start_id) == (&refused.domain, tombstone.start_id))
        });
        if self.over.is_some() {
            return Ok(gone.then_some(0));
        }
        match &self.member {
            Some(_) if gone => {
                tracing::error!(reason = refused.reason, "the domain has recorded this process as exited: stopping");
                self.end().await;
                Err(Error::Refused { reason: refused.reason })
            }
            None if gone || refused.lasting => Err(Error::Refused { reason: refused.reason }),
            _ => Ok(None),
        }
    }

    /// Takes note of what a step has done.
    fn done(&mut self, done: Done) {
        self.under = None;
        self.using.note(&done);
        self.state.stale = self.using.is_stale();
        let Done { step, result, pause, run, data, copied, keeps_out, .. } = done;
        if let Some(data) = data {
            self.state.data = data;
        }
        self.state.keeps_out = keeps_out;
        if copied {
            noted::note_copied(&mut self.state, &step);
        }
        let was = self.state.run.clone();
        let over = noted::note_done(&mut self.state, &step, &result, run);
        match result {
            Ok(_) => (self.pause, self.trouble) = (None, String::new()),
            Err(why) => {
                tracing::warn!(step = step.name(), why, "failed");
                // No other step waits for what is mounted.
                if !matches!(step, Step::Refresh) {
                    self.failed_for(pause, format!("{}: {why}", step.name()));
                }
            }
        }
        if was != self.state.run || matches!(step, Step::Overwrite { .. }) {
            // What is being read is of the server before.
            (self.reads, self.caught_up) = (None, false);
            self.door.forget();
            if !matches!(self.state.run, Run::Primary(_)) {
                self.standbys.forget_reader();
            }
        }
        if over.is_some() {
            self.ended = over;
            self.standbys.clear();
        }
        self.reading = None;
        if self.state.run == Run::Down {
            self.vitals.clear();
        }
        self.read_next = (Instant::now() + READ_FIRST, READ_FIRST);
    }

    fn failed(&mut self, why: String) {
        self.failed_for(Duration::ZERO, why);
    }

    /// A step has failed, and is not tried again for at least so long.
    fn failed_for(&mut self, least: Duration, why: String) {
        let pause = self.pause.map_or(BACKOFF_FIRST, |(_, last)| (last * 2).min(BACKOFF_MAX));
        self.pause = Some((Instant::now() + pause.max(least), pause));
        if let Some(wanted) = &self.wanted {
            self.tries.failed(&mut self.state, wanted, Instant::now());
        }
        self.trouble = why;
    }
}
