//! Carries out the steps of a wrapper at the model of its server, each within some time: what `engine/src/roles/perform.rs`
//! and `engine/src/postgres` do.

use super::postgres::{Admits, Obeys, Postgres, Role};
use super::wrapper::Wrapper;
use crate::sim::databases::postgres::Entry;
use kaa_core::domain::ids::{ArchiveId, Generation};
use kaa_core::domain::replicated::{Begins, Position};
use kaa_core::replication::{Rule, Source};
use kaa_engine::roles::decisions::{Place, Primary, Readers, Run, State, Step, differs};
use std::collections::BTreeSet;

/// The same as in the wrapper.
const STAND_DOWN_LIMIT_MS: u64 = 20_000;
const CLOSE_LIMIT_MS: u64 = 500;

/// What a step has done: that the data cannot follow, or why it failed; and what the server does now.
pub struct Outcome {
    pub result: Result<Option<String>, String>,
    pub run: Run,
    /// Whether the data is a whole copy, made by this step.
    pub copied: bool,
}

/// A step that is under way.
pub struct Under {
    pub step: Step,
    begun_ms: u64,
    /// When it may be done.
    due_ms: u64,
    /// The own commit that it waits for.
    commit: Option<usize>,
    /// Whether a change of the rule has come to the rule itself.
    second: bool,
    /// When the server was found to take no log any more.
    stopped_ms: u64,
}

type Done = Option<Outcome>;

impl Under {
    /// Begins a step: what must not happen later happens now.
    pub fn begin(
        step: Step,
        (container, claim): (u64, &str),
        state: &mut State,
        postgres: &mut Postgres,
        now_ms: u64,
    ) -> Self {
        let takes = match step {
            Step::Overwrite { .. } => Wrapper::takes(200, 1_500),
            Step::StartFenced | Step::Retire => Wrapper::takes(80, 300),
            _ => Wrapper::takes(10, 80),
        };
        match &step {
            Step::Promote(_) | Step::Follow { .. } => postgres.fence(container),
            Step::Stop | Step::StartFenced | Step::Overwrite { .. } => postgres.crash(container),
            Step::HoldCommits => {
                if let Some((server, _)) = postgres.both(container) {
                    server.obey(&None, now_ms, true);
                }
            }
            Step::Require(rule) => {
                if let Some((server, _)) = postgres.both(container) {
                    server.slots.extend(rule.members.iter().copied());
                    // By way of a rule under which nothing is released, unless the own disk is enough from now on.
                    let obeys = (rule.members.is_empty()).then(BTreeSet::new);
                    server.obey(&obeys, now_ms, false);
                }
            }
            _ => {}
        }
        if let Step::Overwrite { source, generation, rewind, .. } = &step {
            let primary = postgres.primary_at(&source.address, generation.0).filter(|_| *rewind);
            postgres.discard(claim, primary);
        }
        if matches!(step, Step::Stop | Step::Overwrite { .. }) {
            state.run = Run::Down;
        }
        Self { step, begun_ms: now_ms, due_ms: now_ms + takes, commit: None, second: false, stopped_ms: now_ms }
    }

    /// Carries it on; `Some` once it is done.
    pub fn advance(&mut self, wrapper: &Wrapper, postgres: &mut Postgres, now_ms: u64) -> Done {
        let container = wrapper.nonce;
        let run = wrapper.state.run.clone();
        let limit_ms = if matches!(self.step, Step::Close) { CLOSE_LIMIT_MS } else { u64::MAX };
        let server = postgres.servers.get(&container);
        if server.is_some_and(|server| server.paused) {
            // A server that does not close is stopped.
            return (now_ms >= self.begun_ms.saturating_add(limit_ms)).then(|| {
                postgres.crash(container);
                failed("it does not close")
            });
        }
        if server.is_none() && needs_server(&self.step) {
            return Some(failed("the server has ended"));
        }
        if now_ms < self.due_ms {
            return None;
        }
        match self.step.clone() {
            Step::Initialize => {
                postgres.initialize(&wrapper.claim);
                Some(done(run))
            }
            Step::Stop => Some(done(Run::Down)),
            Step::StartFenced => {
                start(wrapper, postgres);
                Some(done(Run::Fenced))
            }
            Step::Promote(rule) => Some(self.promote(wrapper, &rule, postgres, now_ms)),
            Step::Follow { generation, source, history } => {
                Some(follow(container, generation, &source, &history, postgres))
            }
            Step::Overwrite { generation, source, history, rewind, .. } => {
                let outcome = overwrite(wrapper, (generation, &source, &history), postgres);
                Some(Outcome { copied: outcome.copied && !rewind, ..outcome })
            }
            Step::AdmitReaders => Some(done(match run {
                Run::Follows { generation, source, .. } => {
                    Run::Follows { generation, source, readers: Readers::Admitted }
                }
                other => other,
            })),
            Step::Return(_) | Step::Refresh => Some(done(run)),
            step => match run {
                Run::Primary(primary) => self.at_primary(&step, container, primary, postgres, now_ms),
                other => Some(done(other)),
            },
        }
    }

    fn promote(&self, wrapper: &Wrapper, rule: &Rule, postgres: &mut Postgres, now_ms: u64) -> Outcome {
        let Some(begins) = postgres.promote(wrapper.nonce, rule.generation.0, &rule.members, now_ms) else {
            return failed("it was not promoted");
        };
        postgres.trace.line(&format!(
            "{} is promoted in generation {}, continues {} from {}",
            wrapper.pod, begins.generation, begins.parent, begins.at.0
        ));
        let (_, mut ancestors) = postgres.volume(&wrapper.claim).timelines();
        ancestors.retain(|it| it.generation != begins.generation);
        let primary = Primary::promoted(begins, rule.clone(), self.stopped_ms, ancestors);
        done(Run::Primary(Box::new(primary)))
    }

    fn at_primary(
        &mut self,
        step: &Step,
        container: u64,
        mut primary: Box<Primary>,
        postgres: &mut Postgres,
        now_ms: u64,
    ) -> Done {
        match step {
            Step::Establish => {
                let end = self.committed(container, postgres)?;
                primary.establish(Position(end));
            }
            Step::Open => {
                postgres.both(container)?.0.admits = Admits::All;
                primary.open = true;
            }
            Step::Prepare => primary.prepared = true,
            Step::KeepLog(archives) => {
                postgres.both(container)?.0.slots = archives.iter().copied().collect();
                primary.slots.clone_from(archives);
            }
            Step::Require(rule) => {
                let end = self.required(rule, container, postgres, now_ms)?;
                primary.ruling.settle(rule.version, end);
            }
            Step::HoldCommits => primary.ruling.doubt(),
            Step::Close | Step::Retire => {
                postgres.end_sessions(container);
                primary.close();
            }
            Step::StandDown => {
                let is_late = now_ms >= self.begun_ms + STAND_DOWN_LIMIT_MS;
                if !postgres.has_sent_all(container) && !is_late {
                    return None;
                }
                if let Some((_, volume)) = postgres.both(container) {
                    volume.flushed = volume.log.len();
                }
                postgres.crash(container);
                return Some(if is_late { failed("it does not stand down") } else { done(Run::Down) });
            }
            _ => {}
        }
        Some(done(Run::Primary(primary)))
    }

    /// Writes an own commit, and gives the end of the log once it is released.
    fn committed(&mut self, container: u64, postgres: &mut Postgres) -> Option<u64> {
        if self.commit.is_none() {
            self.commit = postgres.write(container, 0);
        }
        let position = self.commit?;
        let (server, volume) = postgres.both(container)?;
        (server.released > position).then_some(volume.flushed as u64)
    }

    /// The end of the log, once a commit was released after every part of the server obeyed the rule.
    fn required(&mut self, rule: &Rule, container: u64, postgres: &mut Postgres, now_ms: u64) -> Option<u64> {
        let obeys: Obeys = Some(rule.members.clone());
        let (server, volume) = postgres.both(container)?;
        if rule.members.is_empty() {
            return server.all_obey(&obeys).then_some(volume.flushed as u64);
        }
        if !self.second {
            if server.all_obey(&None) {
                self.second = true;
                server.obey(&obeys, now_ms, false);
            }
            return None;
        }
        if !server.all_obey(&obeys) {
            return None;
        }
        self.committed(container, postgres)
    }
}

fn done(run: Run) -> Outcome {
    Outcome { result: Ok(None), run, copied: false }
}

/// It is fenced when it starts next.
fn failed(why: &str) -> Outcome {
    Outcome { result: Err(why.to_owned()), run: Run::Down, copied: false }
}

fn needs_server(step: &Step) -> bool {
    !matches!(step, Step::Initialize | Step::Stop | Step::StartFenced | Step::Overwrite { .. } | Step::Return(_))
}

fn start(wrapper: &Wrapper, postgres: &mut Postgres) {
    let archive = wrapper.member.as_ref().map_or(ArchiveId(0), |(_, _, archive)| *archive);
    postgres.start(wrapper.nonce, &wrapper.pod, &wrapper.pod_uid, &wrapper.claim, archive);
}

/// Lets a fenced server follow, if its log is a prefix of the primary's as far as the history tells.
fn follow(
    container: u64,
    generation: Generation,
    source: &Source,
    history: &[Begins],
    postgres: &mut Postgres,
) -> Outcome {
    let Some((server, volume)) = postgres.both(container) else { return failed("the server has ended") };
    let place = Place { timeline: volume.timelines().0, end: Position(volume.log.len() as u64) };
    if let Some(why) = differs(place, generation, history) {
        return Outcome { result: Ok(Some(why)), run: Run::Fenced, copied: false };
    }
    (server.role, server.source) = (Role::Follows { generation: generation.0 }, source.address.clone());
    done(Run::Follows { generation, source: source.clone(), readers: Readers::No })
}

/// Replaces the data by the primary's, and follows with it.
fn overwrite(
    wrapper: &Wrapper,
    (generation, source, history): (Generation, &Source, &[Begins]),
    postgres: &mut Postgres,
) -> Outcome {
    let from = postgres.primary_at(&source.address, generation.0).map(|primary| &postgres.servers[&primary]);
    let there = from.filter(|from| !from.paused && from.admits != Admits::NoClient);
    let Some(from) = there.filter(|from| !postgres.network.is_cut(&wrapper.pod, &from.host)) else {
        return failed("the primary does not answer");
    };
    let from = from.claim.clone();
    let copied = postgres.volume(&from);
    let (system, log): (u64, Vec<Entry>) = (copied.system, copied.log[..copied.flushed].to_vec());
    let volume = postgres.volume(&wrapper.claim);
    (volume.system, volume.flushed, volume.log) = (system, log.len(), log);
    volume.highest = volume.highest.max(generation.0);
    postgres.trace.line(&format!("{}: its data was overwritten", wrapper.pod));
    start(wrapper, postgres);
    let outcome = follow(wrapper.nonce, generation, source, history, postgres);
    let outcome = match outcome.result {
        Ok(Some(why)) => failed(&why),
        _ => outcome,
    };
    Outcome { copied: true, ..outcome }
}
