//! A wrapper of a server with a role: what `engine/src/roles/keeper.rs` does, in virtual time and with a model of
//! PostgreSQL. The wrapper's own functions decide what is next, what the volume has to remember and what is heard.

use super::performs::{Outcome, Under};
use super::postgres::Postgres;
use super::stream::{Line, Told};
use crate::sim::engine::Truth;
use kaa::clock;
use kaa::proto::engine::{self as wire, Exit, Marker, Refused, directive};
use kaa_core::domain::ids::{ArchiveId, Generation, StartId};
use kaa_core::domain::replicated::Ended;
use kaa_core::replication::{Assignment, Memory, Released};
use kaa_engine::postgres::{Data, Reading};
use kaa_engine::roles::decisions::{self, Admission, Choice, Hearing, Outside, Run, Standbys, State, Step, Tries};
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The same as in the wrapper.
const READ_PERIOD_MS: u64 = 500;
const READ_DOUBTFUL_MS: u64 = 100;
const READ_FIRST_MS: u64 = 20;
const EXIT_REPORT_LIMIT_MS: u64 = 10_000;
const BACKOFF_FIRST_MS: u64 = 200;
const BACKOFF_MAX_MS: u64 = 5_000;
const FOR_THE_STOP_MS: u64 = 5_000;
/// The grace period of the pods: the kubelet kills the container then.
const GRACE_MS: u64 = 8_000;

/// A moment for the functions that compare times: nothing but differences counts.
pub fn instant(now_ms: u64) -> Instant {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGIN + Duration::from_millis(now_ms)
}

/// When the server may let clients in, and what is committed for that.
pub struct Leased {
    pub admission: Admission,
    /// The own commit that waits: what renews the lease once it is released, its position, and how often sessions had been ended.
    pub commit: Option<(Released, usize)>,
    pub commits_at: u64,
    /// When the server last answered.
    pub answered: u64,
}

pub struct Wrapper {
    pub nonce: u64,
    pub pod: String,
    pub pod_uid: String,
    pub claim: String,
    pub line: Arc<Mutex<Line>>,
    pub truth: Arc<Mutex<Truth>>,
    pub member: Option<(String, StartId, ArchiveId)>,
    pub state: State,
    pub start_before: StartId,
    pub start: StartId,
    pub wanted: Option<Assignment>,
    pub under: Option<Under>,
    pause: Option<(u64, u64)>,
    tries: Tries,
    pub trouble: String,
    pub ended: Option<(Generation, Ended)>,
    pub standbys: Standbys,
    pub hearing: Hearing,
    pub leased: Option<Leased>,
    pub reading: Option<Reading>,
    read_next: (u64, u64),
    stopping: Option<u64>,
    pub over: Option<u64>,
    pub paused: bool,
    /// Whether the volume is its own.
    locked: bool,
}

impl Wrapper {
    pub fn new(nonce: u64, (pod, pod_uid): (&str, &str), claim: &str, truth: Arc<Mutex<Truth>>) -> Self {
        let state = State::down(Data::Empty, Memory::default(), Outside::No);
        Self {
            nonce,
            pod: pod.to_owned(),
            pod_uid: pod_uid.to_owned(),
            claim: claim.to_owned(),
            line: Arc::default(),
            truth,
            member: None,
            state,
            start_before: StartId(0),
            start: StartId(0),
            wanted: None,
            under: None,
            pause: None,
            tries: Tries::default(),
            trouble: String::new(),
            ended: None,
            standbys: Standbys::default(),
            hearing: Hearing::default(),
            leased: None,
            reading: None,
            read_next: (0, READ_PERIOD_MS),
            stopping: None,
            over: None,
            paused: false,
            locked: false,
        }
    }

    /// Does what is due. False once it has ended.
    pub fn step(&mut self, postgres: &mut Postgres, now_ms: u64) -> bool {
        if !self.locked && !self.lock(postgres) {
            return true;
        }
        let told: VecDeque<Told> = std::mem::take(&mut self.line.lock().unwrap().told);
        for told in told {
            if !self.hear(told, postgres, now_ms) {
                return false;
            }
        }
        self.advance(postgres, now_ms);
        if self.over.is_none() {
            self.look(postgres, now_ms);
            self.begin(postgres, now_ms);
        }
        if self.over.is_none() && self.may_end(now_ms) {
            self.end(postgres, now_ms);
            if self.member.is_none() {
                return false;
            }
        }
        self.say();
        self.over.is_none_or(|until_ms| now_ms < until_ms)
    }

    /// Takes the volume, as soon as no other container has it.
    fn lock(&mut self, postgres: &mut Postgres) -> bool {
        let volume = postgres.volume(&self.claim);
        if volume.holder.is_some() {
            return false;
        }
        volume.note_start(self.nonce);
        (self.locked, self.state.data, self.state.memory) = (true, volume.data(), volume.memory);
        (self.start_before, self.start) = (volume.start, volume.start);
        let marker = self.truth.lock().unwrap().markers.get(&self.claim).cloned();
        let mut line = self.line.lock().unwrap();
        (line.ready, line.said.marker) = (true, marker);
        true
    }

    fn hear(&mut self, told: Told, postgres: &mut Postgres, now_ms: u64) -> bool {
        match told {
            Told::Registered(registered) => self.registered(&registered),
            Told::Refused(refused) => return self.refused(&refused, postgres, now_ms),
            Told::Assignment(said) => {
                if let Some(wanted) = decisions::assigned(said) {
                    self.assigned(wanted, postgres);
                }
            }
            Told::Directive(wire::Directive { action, .. }) => match action {
                Some(directive::Action::Stop(_) | directive::Action::Exit(_)) => self.stop(now_ms),
                Some(directive::Action::Start(_)) | None => {}
            },
            Told::Vouched { asked_ms, generation } => {
                if let Some(leased) = &mut self.leased {
                    leased.admission.vouched(asked_ms, Generation(generation));
                }
            }
            Told::ExitNoted => return self.over.is_none(),
        }
        true
    }

    fn registered(&mut self, registered: &wire::Registered) {
        let marker = Marker { domain: registered.domain.clone(), archive: registered.archive };
        self.truth.lock().unwrap().markers.insert(self.claim.clone(), marker.clone());
        self.line.lock().unwrap().said.marker = Some(marker);
        let (start, archive) = (StartId(registered.start_id), ArchiveId(registered.archive));
        self.member = Some((registered.domain.clone(), start, archive));
        if let Some(facts) = self.truth.lock().unwrap().engines.get_mut(&self.nonce) {
            (facts.start_id, facts.running) = (registered.start_id, true);
        }
    }

    /// False if the wrapper ends by that.
    fn refused(&mut self, refused: &Refused, postgres: &mut Postgres, now_ms: u64) -> bool {
        let mine = |tombstone: &wire::Tombstone| {
            self.member.as_ref().is_none_or(|me| (&me.0, me.1.0) == (&refused.domain, tombstone.start_id))
        };
        let gone = refused.exited.as_ref().is_some_and(mine);
        if self.over.is_some() {
            return !gone;
        }
        match &self.member {
            Some(_) if gone => {
                self.end(postgres, now_ms);
                false
            }
            None if gone || refused.lasting => false,
            _ => true,
        }
    }

    /// An agent says what is wanted.
    pub fn assigned(&mut self, wanted: Assignment, postgres: &mut Postgres) {
        if let Some((_, start, _)) = self.member.as_ref().filter(|(_, start, _)| *start != self.start) {
            self.start = *start;
            postgres.volume(&self.claim).start = self.start;
        }
        self.state.may_start = wanted.may_start;
        if self.wanted.as_ref() != Some(&wanted) {
            (self.wanted, self.pause) = (Some(wanted), None);
            self.trouble.clear();
        }
        self.note_wait();
    }

    /// Begins the next step, unless one is under way. A step that waits for others is dropped if another one is wanted.
    fn begin(&mut self, postgres: &mut Postgres, now_ms: u64) {
        self.look_at_the_lease(now_ms);
        if self.member.is_none() {
            return;
        }
        let Some(wanted) = &self.wanted else { return };
        self.tries.look(&mut self.state, wanted, instant(now_ms));
        let pauses = self.pause.is_some_and(|(until_ms, _)| now_ms < until_ms);
        let under = self.under.as_ref().map(|under| &under.step);
        let Choice::Instead(step) = decisions::choose(&self.state, wanted, under, pauses) else { return };
        if let Some(dropped) = self.under.take() {
            decisions::note_dropped(&mut self.state, &dropped.step);
        }
        let step = step.unwrap_or_else(|why| {
            self.trouble = why;
            None
        });
        let Some(step) = step else { return };
        if let (Step::Require(rule), Run::Primary(primary), Some(leased)) = (&step, &self.state.run, &mut self.leased) {
            leased.admission.rule_changes(&primary.ruling, rule, now_ms);
        }
        let end = self.reading.as_ref().map_or(0, |reading| reading.end.0);
        if !decisions::note_begin(&mut self.state, &step, end) {
            return;
        }
        if let Some(memory) = decisions::remembers(&step, self.state.memory) {
            match memory {
                Ok(memory) => self.remember(memory, postgres),
                Err(why) => return self.failed(why, now_ms),
            }
        }
        postgres.trace.mix(&format!("{} {step:?}", self.pod));
        self.under = Some(Under::begin(step, (self.nonce, &self.claim), &mut self.state, postgres, now_ms));
    }

    pub fn remember(&mut self, memory: Memory, postgres: &mut Postgres) {
        postgres.volume(&self.claim).memory = memory;
        self.state.memory = memory;
    }

    /// Carries on the step that is under way, and notes the end of the server.
    fn advance(&mut self, postgres: &mut Postgres, now_ms: u64) {
        if let Some(mut under) = self.under.take() {
            match under.advance(self, postgres, now_ms) {
                Some(outcome) => self.done(under.step, outcome, postgres, now_ms),
                None => self.under = Some(under),
            }
        } else if self.state.run != Run::Down && !postgres.servers.contains_key(&self.nonce) {
            postgres.trace.line(&format!("the server of {} has ended", self.pod));
            if let Run::Primary(primary) = &self.state.run {
                self.ended = Some((primary.begins.generation, Ended::Failed));
            }
            self.standbys.clear();
            (self.state.run, self.reading) = (Run::Down, None);
            self.failed("the server has ended".to_owned(), now_ms);
        }
    }

    fn done(&mut self, step: Step, outcome: Outcome, postgres: &mut Postgres, now_ms: u64) {
        let Outcome { result, run, copied } = outcome;
        if copied {
            decisions::note_copied(&mut self.state, &step);
        }
        self.state.data = postgres.volume(&self.claim).data();
        let was = self.state.run.clone();
        let result = result.map(|needs_overwrite| decisions::Outcome { needs_overwrite, outside: false });
        let over = decisions::note_done(&mut self.state, &step, &result, run);
        match result {
            Ok(_) => (self.pause, self.trouble) = (None, String::new()),
            Err(why) => self.failed(why, now_ms),
        }
        if over.is_some() {
            self.ended = over;
            self.standbys.clear();
        }
        let is_open = |run: &Run| matches!(run, Run::Primary(primary) if primary.open);
        match &self.state.run {
            Run::Primary(primary) if primary.open != is_open(&was) => {
                let (generation, what) = (primary.begins.generation, if primary.open { "open" } else { "closed" });
                postgres.trace.line(&format!("{}: {what} in generation {generation}", self.pod));
            }
            Run::Primary(_) => {}
            _ if is_open(&was) => postgres.trace.line(&format!("{}: open no more", self.pod)),
            _ => {}
        }
        self.reading = None;
        self.read_next = (now_ms + READ_FIRST_MS, READ_FIRST_MS);
    }

    fn failed(&mut self, why: String, now_ms: u64) {
        let pause = self.pause.map_or(BACKOFF_FIRST_MS, |(_, last)| (last * 2).min(BACKOFF_MAX_MS));
        self.pause = Some((now_ms + pause, pause));
        if let Some(wanted) = &self.wanted {
            self.tries.failed(&mut self.state, wanted, instant(now_ms));
        }
        self.trouble = why;
    }

    /// Reads the server, if that is due.
    fn look(&mut self, postgres: &mut Postgres, now_ms: u64) {
        let (next_ms, pause) = self.read_next;
        if now_ms < next_ms {
            return;
        }
        self.read_next = (now_ms + pause, (pause * 2).min(READ_PERIOD_MS));
        self.read(postgres, now_ms);
        if self.hearing.is_doubtful() {
            self.read_next = (now_ms + READ_DOUBTFUL_MS, READ_PERIOD_MS);
        }
    }

    /// The pod is to end: the domain is asked first.
    pub fn stop(&mut self, now_ms: u64) {
        let patience = GRACE_MS.saturating_sub(FOR_THE_STOP_MS).max(GRACE_MS / 4);
        let until_ms = now_ms + patience;
        self.stopping = Some(self.stopping.map_or(until_ms, |known| known.min(until_ms)));
        self.state.stopping = true;
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn may_end(&self, now_ms: u64) -> bool {
        let Some(until_ms) = self.stopping else { return false };
        now_ms >= until_ms || self.wanted.as_ref().is_none_or(|wanted| wanted.may_stop)
    }

    /// Stops the server for good.
    fn end(&mut self, postgres: &mut Postgres, now_ms: u64) {
        self.under = None;
        if let Run::Primary(primary) = &self.state.run {
            // A fast stop has sent all of the log, unless a standby is away.
            let how = if postgres.has_sent_all(self.nonce) { Ended::StoodDown } else { Ended::Failed };
            self.ended = Some((primary.begins.generation, how));
        }
        if let Some((_, volume)) = postgres.both(self.nonce) {
            volume.flushed = volume.log.len();
        }
        postgres.crash(self.nonce);
        self.state.run = Run::Down;
        self.over = Some(now_ms + EXIT_REPORT_LIMIT_MS);
        self.say();
        let exit = Exit { code: Some(0), graceful: true, reason: String::new() };
        self.line.lock().unwrap().said.exit = Some(exit);
    }

    /// A pause between two and some more milliseconds.
    pub fn takes(least_ms: u64, more_ms: u64) -> u64 {
        least_ms + clock::random_below(more_ms)
    }
}
