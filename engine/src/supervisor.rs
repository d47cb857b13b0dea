//! Decides about the engine: when it starts, when it is told to stop, when the wrapper ends.
//!
//! One task waits for the next [`Action`] and applies it. Nothing but SIGTERM, a directive, or the domain's word that
//! this process is gone ever stops a running engine: agents that are away, refuse or contradict do not.

use super::child::{self, Child, Ended};
use super::config::Config;
use super::marker::Locked;
use super::running;
use super::session::{Answers, Told};
use super::signals::Signals;
use super::{Error, Out};
use crate::probe::Health;
use crate::proto::{self as engine, Directive, EngineState, Exit, Refused, Registered, directive};
use kaa_core::domain::archive::Marker;
use kaa_core::domain::ids::{ArchiveId, DomainId};
use nix::sys::signal::Signal;
use std::io;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How long the end of the engine is offered to agents: three of them one after another may take their time to say nothing.
/// A pod must be able to end when none is reachable.
const EXIT_REPORT_LIMIT: Duration = Duration::from_secs(10);

/// The exit code of a wrapper whose engine was not let start in time.
const HELD_TOO_LONG: i32 = 76;

/// Where the engine is in its one life.
#[derive(Debug)]
enum Phase {
    /// Not started: the domain has not said Start.
    Waiting,
    Running {
        child: Child,
        since: SystemTime,
        /// When to look next whether it serves; `None` once it does.
        look_at: Option<Instant>,
    },
    /// Told to stop.
    Stopping {
        child: Child,
        /// When SIGKILL follows; `None` once it has.
        kill_at: Option<Instant>,
    },
    /// The wrapper ends with this code once the end is noted, at the latest at that moment.
    Ended { code: i32, until: Instant },
}

/// What there is to react to.
enum Action {
    Signal(Signal),
    Told(Told),
    /// A moment that the phase waits for has come.
    Due,
    Serves,
}

/// Who this engine is in the domain.
struct Member {
    domain: String,
    start_id: u64,
}

/// The one task that decides about the engine.
pub(super) struct Supervisor {
    config: Config,
    /// Held until the wrapper ends.
    archive: Option<Locked>,
    out: Out,
    told: mpsc::Receiver<Told>,
    signals: Signals,
    member: Option<Member>,
    phase: Phase,
    /// Why the engine may not start yet, and until when the wrapper waits for it.
    held: Option<(String, Instant)>,
    /// Those who wait for the engine to have stopped.
    awaiting_stop: Vec<(u64, Answers)>,
}

impl Supervisor {
    pub fn new(
        config: Config,
        archive: Option<Locked>,
        out: Out,
        told: mpsc::Receiver<Told>,
        signals: Signals,
    ) -> Self {
        let (member, phase, awaiting_stop) = (None, Phase::Waiting, Vec::new());
        Self { config, archive, out, told, signals, member, phase, held: None, awaiting_stop }
    }

    /// Runs until the wrapper may end, and gives its exit code.
    pub async fn run(mut self) -> Result<i32, Error> {
        loop {
            let action = self.next().await;
            if let Some(code) = self.apply(action)? {
                return Ok(code);
            }
        }
    }

    async fn next(&mut self) -> Action {
        let (due, look) = match &self.phase {
            Phase::Waiting => (self.held.as_ref().map(|(_, until)| *until), None),
            Phase::Running { since, look_at, .. } => (None, look_at.map(|at| (at, *since))),
            Phase::Stopping { kill_at, .. } => (*kill_at, None),
            Phase::Ended { until, .. } => (Some(*until), None),
        };
        let serves = async {
            let Some((at, since)) = look else { return std::future::pending().await };
            sleep_until(at).await;
            while !running::serves(&self.config.ready_when, since).await {
                tokio::time::sleep(running::LOOK_PERIOD).await;
            }
        };
        tokio::select! {
            signal = self.signals.next() => Action::Signal(signal),
            Some(told) = self.told.recv() => Action::Told(told),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Action::Due,
            () = serves => Action::Serves,
        }
    }

    fn apply(&mut self, action: Action) -> Result<Option<i32>, Error> {
        match action {
            Action::Signal(signal) => self.signalled(signal),
            Action::Told(Told::Registered(registered)) => self.registered(registered)?,
            Action::Told(Told::Refused(refused)) => return self.refused(refused),
            Action::Told(Told::Held(why)) => self.held(why),
            // An engine without a role has said nothing that could be answered by one.
            Action::Told(Told::Assignment(_) | Told::Vouched { .. }) => {}
            Action::Told(Told::Directive(directive, answers)) => self.directed(directive, answers),
            Action::Told(Told::ExitNoted) => {
                if let Phase::Ended { code, .. } = self.phase {
                    return Ok(Some(code));
                }
            }
            Action::Due => return Ok(self.due()),
            Action::Serves => self.serves(),
        }
        // No agent knows of this engine, so there is no acknowledgement to wait for.
        Ok(match self.phase {
            Phase::Ended { code, .. } if self.member.is_none() => Some(code),
            _ => None,
        })
    }

    fn signalled(&mut self, signal: Signal) {
        match (signal, self.child()) {
            (Signal::SIGCHLD, child) => {
                if let Some(ended) = child::reap(child) {
                    self.child_ended(ended);
                }
            }
            (Signal::SIGTERM | Signal::SIGINT, _) => {
                tracing::info!(%signal, "told to stop");
                self.stop(self.config.grace);
            }
            (_, Some(child)) => child.signal(signal),
            (_, None) => {}
        }
    }

    /// The child, while it runs.
    fn child(&self) -> Option<Child> {
        match self.phase {
            Phase::Running { child, .. } | Phase::Stopping { child, .. } => Some(child),
            Phase::Waiting | Phase::Ended { .. } => None,
        }
    }

    fn registered(&mut self, registered: Registered) -> Result<(), Error> {
        let (domain, start_id) = (registered.domain.clone(), registered.start_id);
        self.member = Some(Member { domain, start_id });
        match self.mark(&registered) {
            // An engine that runs already has its marker, or runs on without: the next start makes it.
            Err(error) if self.child().is_some() => tracing::error!(%error, "cannot write the archive's marker"),
            result => return result,
        }
        Ok(())
    }

    /// Notes why Start does not come. The time counts from the first word of it, whatever the reasons become.
    fn held(&mut self, why: String) {
        tracing::info!(why, "the engine is not started yet");
        self.show(Err(format!("the domain does not let the engine start yet: {why}")));
        let until = self.held.take().map_or_else(|| Instant::now() + self.config.start_timeout, |(_, until)| until);
        self.held = Some((why, until));
    }

    /// Makes the volume say whose it is, before Start can come.
    fn mark(&self, registered: &Registered) -> Result<(), Error> {
        let Some(archive) = &self.archive else { return Ok(()) };
        // The same for every engine until an engine can be asked: then the lowest ordinal goes first.
        if self.child().is_none() {
            self.out.report.send_modify(|report| report.history = Some(engine::History { value: 0 }));
        }
        let marker = engine::Marker { domain: registered.domain.clone(), archive: registered.archive };
        let before = self.out.report.borrow().marker.clone();
        if before.as_ref() == Some(&marker) {
            return Ok(());
        }
        if let Some(before) = before {
            tracing::warn!(
                before = format!("archive {} of domain {}", before.archive, before.domain),
                now = format!("archive {} of domain {}", marker.archive, marker.domain),
                "the domain has assigned another archive to this volume"
            );
        }
        archive.mark(&Marker { domain: DomainId::new(marker.domain.clone()), archive: ArchiveId(marker.archive) })?;
        self.out.report.send_modify(|report| report.marker = Some(marker));
        Ok(())
    }

    fn refused(&mut self, refused: Refused) -> Result<Option<i32>, Error> {
        let gone = refused.exited.as_ref().is_some_and(|tombstone| {
            self.member.as_ref().is_none_or(|me| (&me.domain, me.start_id) == (&refused.domain, tombstone.start_id))
        });
        match self.phase {
            Phase::Waiting if gone || refused.lasting => Err(Error::Refused { reason: refused.reason }),
            Phase::Running { .. } if gone && self.member.is_some() => {
                tracing::error!(
                    reason = refused.reason,
                    "the domain has recorded this process as exited: stopping the engine"
                );
                self.stop(self.config.grace);
                Ok(None)
            }
            Phase::Ended { code, .. } if gone => Ok(Some(code)),
            Phase::Waiting | Phase::Running { .. } | Phase::Stopping { .. } | Phase::Ended { .. } => Ok(None),
        }
    }

    fn directed(&mut self, directive: Directive, answers: Answers) {
        let Directive { id, deadline_ms, action } = directive;
        let grace = if deadline_ms == 0 { self.config.grace } else { Duration::from_millis(deadline_ms) };
        match action {
            Some(directive::Action::Start(start)) => self.start(start, id, &answers),
            Some(directive::Action::Stop(_)) => {
                if self.child().is_none() {
                    return answers.give(id, Ok(()));
                }
                self.awaiting_stop.push((id, answers));
                self.stop(grace);
            }
            Some(directive::Action::Exit(_)) => {
                if self.child().is_none() {
                    answers.give(id, Ok(()));
                } else {
                    self.awaiting_stop.push((id, answers));
                }
                self.stop(grace);
            }
            None => answers.give(id, Err("unknown directive: this wrapper does not support it".to_owned())),
        }
    }

    /// Starts the engine, unless it runs already. The answer is given first, so that it comes before any end.
    fn start(&mut self, how: engine::Start, id: u64, answers: &Answers) {
        match self.phase {
            Phase::Waiting => {}
            Phase::Running { .. } => return answers.give(id, Ok(())),
            Phase::Stopping { .. } => return answers.give(id, Err("the engine is stopping".to_owned())),
            Phase::Ended { .. } => return answers.give(id, Err("the engine has ended".to_owned())),
        }
        let since = crate::clock::system_time();
        let how = if how.join { "join" } else { "first" };
        let child = match Child::start(&self.config.command, how) {
            Ok(child) => child,
            Err(error) => return self.cannot_start(&error, id, answers),
        };
        answers.give(id, Ok(()));
        // What was said of its data is true no longer.
        self.out.report.send_modify(|report| report.history = None);
        tracing::info!(pid = child.pid(), how, command = ?self.config.command, "engine started");
        self.phase = Phase::Running { child, since, look_at: Some(Instant::now()) };
        let starting = match self.archive {
            Some(_) => EngineState::Syncing,
            None => EngineState::Unknown,
        };
        self.say(starting);
    }

    fn cannot_start(&mut self, error: &io::Error, id: u64, answers: &Answers) {
        let program = self.config.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let reason = format!("Cannot start {program}: {error}");
        tracing::error!(reason, "the engine has not started");
        answers.give(id, Err(reason.clone()));
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        self.end(code, Exit { code: None, graceful: false, reason });
    }

    fn serves(&mut self) {
        if let Phase::Running { look_at, .. } = &mut self.phase {
            *look_at = None;
            tracing::info!("engine is RUNNING");
            self.say(EngineState::Running);
        }
    }

    /// Reports a state of the running child.
    fn say(&self, state: EngineState) {
        let pid = self.child().map_or(0, Child::pid);
        self.show(if state == EngineState::Running {
            Ok(())
        } else {
            Err(format!("the engine is {}", state.as_str_name()))
        });
        self.out.report.send_modify(|report| report.state = engine::State { engine: state.into(), pid });
    }

    /// Says to probes whether the engine serves, or why not.
    fn show(&self, ready: Result<(), String>) {
        self.out.health.send_replace(Health { beat: None, ready });
    }

    /// Tells the engine to stop; one that has not been started never will be.
    fn stop(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace;
        match &mut self.phase {
            Phase::Waiting => self.end(0, Exit { code: None, graceful: true, reason: String::new() }),
            Phase::Running { child, .. } => {
                let child = *child;
                // The domain takes an engine that stops for one that was told to: it acknowledges no further commit.
                child.signal(Signal::SIGTERM);
                self.say(EngineState::ShuttingDown);
                self.phase = Phase::Stopping { child, kill_at: Some(kill_at) };
            }
            // Told again: the earlier of the two deadlines counts.
            Phase::Stopping { kill_at: known, .. } => *known = known.map(|known| known.min(kill_at)),
            Phase::Ended { .. } => {}
        }
    }

    /// A moment that was waited for has come.
    fn due(&mut self) -> Option<i32> {
        match &mut self.phase {
            Phase::Stopping { child, kill_at } => {
                tracing::warn!(pid = child.pid(), "the engine has not stopped in time: killing it");
                *kill_at = None;
                child.signal(Signal::SIGKILL);
                None
            }
            Phase::Ended { code, .. } => {
                tracing::warn!("no agent has acknowledged the engine's exit");
                Some(*code)
            }
            Phase::Waiting => {
                let (why, within) =
                    (self.held.take().map(|(why, _)| why).unwrap_or_default(), self.config.start_timeout);
                let reason = format!("Not started within {} s: {why}", within.as_secs());
                tracing::error!(reason, "the wrapper ends, so that its container restarts");
                self.end(HELD_TOO_LONG, Exit { code: None, graceful: false, reason });
                None
            }
            Phase::Running { .. } => None,
        }
    }

    fn child_ended(&mut self, ended: Ended) {
        let graceful = match self.phase {
            Phase::Stopping { .. } => true,
            Phase::Waiting | Phase::Running { .. } | Phase::Ended { .. } => false,
        };
        if let Some(child) = self.child() {
            // Whatever it has left behind must not touch the archive after its end is reported.
            child.signal(Signal::SIGKILL);
        }
        tracing::info!(how = ended.how, graceful, "engine ended");
        for (id, answers) in self.awaiting_stop.drain(..) {
            answers.give(id, Ok(()));
        }
        let reason = if graceful { String::new() } else { format!("Engine {}", ended.how) };
        self.end(ended.code, Exit { code: Some(ended.code), graceful, reason });
    }

    fn end(&mut self, code: i32, exit: Exit) {
        self.phase = Phase::Ended { code, until: Instant::now() + EXIT_REPORT_LIMIT };
        self.show(Err("the engine has ended".to_owned()));
        self.out.report.send_modify(|report| report.exit = Some(exit));
    }
}
