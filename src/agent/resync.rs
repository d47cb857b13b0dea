//! The resync leader's loop: woken by an event or the clock, it compares everything, reads what it needs, and proposes.
//!
//! Criteria are in `kaa_core::resync`; this loop only performs them. It retries nothing within a pass: the next pass is
//! the retry.

use super::{Shared, announce};
use crate::config::{BACKOFF, FIRST_PASS, IDLE_SHARE, PASS_SPACING, RESYNC_PERIOD};
use crate::failpoints::{self, Point};
use crate::kubernetes::evidence;
use crate::kubernetes::lease::{Leadership, Term};
use crate::metrics::Reading;
use crate::raft::ProposeError;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::Refusal;
use kaa_core::domain::command::{Actor, Fence, Outcome, Request, Role};
use kaa_core::domain::ids::{Millis, ResyncEpoch, TaskId};
use kaa_core::resync::held::{HeldFindings, Parted};
use kaa_core::resync::plan::{Finding, Waiting};
use kaa_core::resync::{Moment, Objection, Readings, confirm, plan};
use kaa_core::tasks::{announcement, is_of_a_task};
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// What the last pass did, and the last one before it that had something to do.
#[derive(Clone, Debug, Default)]
pub struct LastPass {
    /// When the one ended that had something to do, by this agent's clock.
    pub at: Millis,
    /// One line for each finding: what became of it.
    pub lines: Vec<String>,
    /// Under which resync epoch the last pass planned.
    pub epoch: ResyncEpoch,
    /// How much it found to propose.
    pub findings: usize,
    /// What it waited for; if the pass was not given up, with what the fresh reads added.
    pub waiting: Vec<Waiting>,
}

/// Runs until the agent ends.
pub async fn run(shared: Arc<Shared>) {
    let mut observed = shared.watching.changed.clone();
    let mut applied = shared.raft.applied();
    let mut leadership = shared.candidacy.leadership.clone();
    info!("domain resync with an initial delay of {FIRST_PASS:?}, then every {RESYNC_PERIOD:?} and on every change");
    tokio::time::sleep(FIRST_PASS).await;
    let (mut reported, mut held) = (Vec::new(), Pending::default());
    loop {
        let began = Instant::now();
        observed.mark_unchanged();
        applied.mark_unchanged();
        leadership.mark_unchanged();
        let leads = leadership.borrow().clone();
        let (mut again, mut proposed) = (RESYNC_PERIOD, false);
        if let Leadership::Leader(term) = leads
            && shared.candidacy.still_leads(&term)
        {
            let mut last = LastPass::default();
            let ended = pass(&shared, &term, held.of(&term), &mut last).await;
            proposed = !last.lines.is_empty();
            // Also one that was given up has planned, unless the domain gave it no epoch.
            if last.epoch != ResyncEpoch::default() {
                report(&mut reported, last, &shared);
            }
            match ended {
                Ok(()) => {
                    shared.candidacy.pass_ended(true);
                    again = held.next().unwrap_or(RESYNC_PERIOD);
                }
                Err(why) => {
                    warn!("resync pass aborted: {why}");
                    if why.is_of_this_agent() {
                        shared.candidacy.pass_ended(false);
                    }
                    again = BACKOFF;
                }
            }
            shared.guards.metrics.pass(began.elapsed());
        }
        let cost = began.elapsed();
        tokio::select! {
            _ = observed.changed() => {}
            _ = applied.changed() => {}
            _ = leadership.changed() => {}
            () = tokio::time::sleep(again) => {}
            () = shared.stopping() => return,
        }
        // The first pass after a quiet while starts at once. In a burst those that propose something are this far apart;
        // one that found nothing (a claim that is being deleted, say) holds up the next only in proportion to its cost.
        let spacing = if proposed { PASS_SPACING } else { PASS_SPACING.min(cost * IDLE_SHARE) };
        let rest = spacing.saturating_sub(began.elapsed());
        // Even the shortest sleep lasts until the timer's next tick.
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
    }
}

/// Why a pass was given up.
#[derive(Debug, thiserror::Error)]
enum GivenUp {
    /// Another agent may lead by now.
    #[error("the lease was lost during the pass")]
    LeaseLost,
    /// The lock of what the watches show is poisoned.
    #[error("the watches have failed")]
    Watches,
    /// The domain takes this agent for no resync leader.
    #[error("the domain refused this resync leader: {0}")]
    Refused(Refusal),
    /// The domain did not answer a resync leader with an epoch.
    #[error("the state machine gave an unexpected answer: {0:?}")]
    Answer(Outcome),
    /// A command could not be committed, or that is not known.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl GivenUp {
    /// Whether another agent might have done it: one that hears of a quorum, say. Where Raft's leader has no room, or takes a
    /// command for too new or too large, it would tell anybody so.
    fn is_of_this_agent(&self) -> bool {
        match self {
            Self::LeaseLost => false,
            Self::Watches | Self::Refused(_) | Self::Answer(_) => true,
            Self::Propose(error) => match error {
                ProposeError::NoLeader
                | ProposeError::Unknown { .. }
                | ProposeError::Wire(_)
                | ProposeError::Fatal(_) => true,
                ProposeError::NoRoom { .. } | ProposeError::TooLarge { .. } | ProposeError::TooNew(_) => false,
            },
        }
    }
}

/// What is remembered of one term.
#[derive(Default)]
struct Pending(Option<(Term, Held)>);

struct Held {
    /// The findings that were held, by this agent's clock.
    findings: HeldFindings,
    /// The tasks that were announced.
    announced: BTreeSet<TaskId>,
}

impl Pending {
    /// Those of a term; a new one begins with none.
    fn of(&mut self, term: &Term) -> &mut Held {
        if self.0.as_ref().is_none_or(|(before, _)| before != term) {
            self.0 = None;
        }
        let period_ms = u64::try_from(RESYNC_PERIOD.as_millis()).unwrap_or(u64::MAX);
        let held = || Held { findings: HeldFindings::new(period_ms), announced: BTreeSet::new() };
        &mut self.0.get_or_insert_with(|| (term.clone(), held())).1
    }

    /// How long until the first of them is to be read again.
    fn next(&self) -> Option<Duration> {
        let (term, held) = self.0.as_ref()?;
        Some(Duration::from_millis(held.findings.next_ms()?.saturating_sub(now_ms(term))).min(RESYNC_PERIOD))
    }
}

/// The moment, by a monotonic clock that starts with the term.
fn now_ms(term: &Term) -> u64 {
    u64::try_from(term.since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// One pass: epoch, plan, reads, proposals. Notes in `last` what it did; if it is given up, until then.
async fn pass(shared: &Shared, term: &Term, held: &mut Held, last: &mut LastPass) -> Result<(), GivenUp> {
    let epoch = epoch(shared, term).await?;
    let fence = Fence { cluster: shared.config.cluster.clone(), epoch };
    let due = {
        let observed = shared.observed.read().map_err(|_| GivenUp::Watches)?;
        let moment = shared.moment();
        let (plan, anchor) = shared.raft.read(|domain| {
            let anchor = domain.anchor_in(&shared.policy.cluster).cloned();
            (plan(domain, &observed, &shared.policy, &moment), anchor)
        });
        (last.epoch, last.findings, last.waiting) = (epoch, plan.findings.len(), plan.waiting);
        let Parted { due, waiting } = held.findings.part(plan.findings, &observed, anchor.as_ref(), now_ms(term));
        last.waiting.extend(waiting);
        due
    };
    if !due.is_empty() {
        let together = due.iter().map(|due| &due.finding).filter(|finding| !is_of_a_task(&finding.command));
        let readings = shared.gather(together).await;
        for due in due {
            let (text, subject) = (due.finding.text.clone(), due.finding.subject.clone());
            // What a task does cannot be undone: its reads are made once all before it is done.
            let readings = match is_of_a_task(&due.finding.command) {
                true => {
                    shared.announce(term, held, &due.finding).await?;
                    &shared.gather([&due.finding]).await
                }
                false => &readings,
            };
            let confirmed = shared.raft.read(|domain| confirm(&due.finding, readings, &fence, domain));
            last.lines.push(match confirmed {
                Ok(_) if !shared.candidacy.still_leads(term) => return Err(GivenUp::LeaseLost),
                Ok(command) => match stepped(is_of_a_task(&command), propose(shared, command).await?) {
                    Outcome::Refused(why) => {
                        held.findings.note(due, None, now_ms(term));
                        format!("{text}: refused, {why}")
                    }
                    Outcome::Unchanged => format!("{text}: done already"),
                    Outcome::Changed
                    | Outcome::Registered(_)
                    | Outcome::ResyncBegun(_)
                    | Outcome::ArchiveCreated(_) => format!("{text}: done"),
                },
                Err(Objection::Refused(why)) => {
                    held.findings.note(due, None, now_ms(term));
                    format!("{text}: refused, {why}")
                }
                Err(Objection::Waits(reason)) => {
                    held.findings.note(due, Some(reason.clone()), now_ms(term));
                    let line = format!("{text}: blocked, {reason}");
                    last.waiting.push(Waiting { subject, reason });
                    line
                }
            });
        }
    }
    Ok(())
}

/// The epoch that the domain gave this acquisition of the Lease; asks for one if there is none yet.
async fn epoch(shared: &Shared, term: &Term) -> Result<ResyncEpoch, GivenUp> {
    let cluster = &shared.config.cluster;
    let mine = shared.raft.read(|domain| {
        let current = domain.resync.get(cluster)?;
        let same = (&current.lease, current.transitions, &current.holder)
            == (&term.uid, term.transitions, &shared.config.server);
        same.then_some(current.epoch)
    });
    if let Some(epoch) = mine {
        return Ok(epoch);
    }
    let command = Command::BeginResync(change::BeginResync {
        cluster: cluster.clone(),
        lease: term.uid.clone(),
        transitions: term.transitions,
        holder: shared.config.server.clone(),
        evidence: term.evidence(),
    });
    match propose(shared, command).await? {
        Outcome::ResyncBegun(epoch) => {
            info!("this agent leads the resync of cluster {cluster} now, resync epoch {epoch}");
            Ok(epoch)
        }
        Outcome::Refused(why) => Err(GivenUp::Refused(why)),
        other => Err(GivenUp::Answer(other)),
    }
}

/// Passes the fail point of a task.
fn stepped(of_a_task: bool, outcome: Outcome) -> Outcome {
    if of_a_task && outcome == Outcome::Changed {
        failpoints::pass(Point::TaskStep);
    }
    outcome
}

async fn propose(shared: &Shared, command: Command) -> Result<Outcome, ProposeError> {
    let actor = Actor { role: Role::ResyncLeader, name: shared.config.server.to_string() };
    Ok(shared.propose_as(actor, command).await?.1)
}

/// Logs what a pass did, and what it waits for whenever that changes. Keeps the report with its time.
fn report(reported: &mut Vec<Waiting>, last: LastPass, shared: &Shared) {
    for line in &last.lines {
        info!("resync: {line}");
    }
    if *reported != last.waiting {
        for waiting in last.waiting.iter().filter(|waiting| !reported.contains(waiting)) {
            info!("resync waits: {}: {}", waiting.subject, waiting.reason);
        }
        reported.clone_from(&last.waiting);
    }
    // What the last pass that did something did stays to be seen.
    let mut shown = shared.last_pass.lock().unwrap_or_else(PoisonError::into_inner);
    let before = shown.take().unwrap_or_default();
    *shown = Some(match last.lines.is_empty() {
        true => LastPass { lines: before.lines, at: before.at, ..last },
        false => LastPass { at: crate::clock::now(), ..last },
    });
}

impl Shared {
    /// The fresh reads for some findings, all at once.
    async fn gather(&self, findings: impl IntoIterator<Item = &Finding>) -> Readings {
        let needs: BTreeSet<_> = findings.into_iter().flat_map(|finding| finding.needs.iter().cloned()).collect();
        let began = Instant::now();
        let readings = evidence::gather(&self.kubernetes, &self.config.anchor_name(), &needs).await;
        debug!(reads = needs.len(), took = ?began.elapsed(), "evidence gathered");
        for answer in readings.answers.values() {
            self.guards.metrics.evidence_read(if answer.is_ok() { Reading::Answered } else { Reading::Unknown });
        }
        readings
    }

    /// Announces what a finding will do, unless that was done in this term.
    async fn announce(&self, term: &Term, held: &mut Held, finding: &Finding) -> Result<(), GivenUp> {
        let what = self.raft.read(|domain| announcement(domain, &finding.command));
        let Some(what) = what.filter(|what| held.announced.insert(what.task)) else { return Ok(()) };
        if !self.candidacy.still_leads(term) {
            return Err(GivenUp::LeaseLost);
        }
        announce::before(&self.kubernetes, &self.config.server, &self.observed, &what).await;
        Ok(())
    }

    /// What a plan depends on that is made now.
    pub fn moment(&self) -> Moment {
        Moment { now: crate::clock::now(), voters: self.raft.status().voters.into_keys().collect() }
    }

    /// Proposes in a duty of this agent; an error is a sentence.
    pub async fn propose(&self, role: Role, command: Command) -> Result<Outcome, String> {
        let actor = Actor { role, name: self.config.server.to_string() };
        let done = self.propose_as(actor, command).await;
        done.map(|(_, outcome)| outcome).map_err(|error| error.to_string())
    }

    /// Proposes for anybody, and counts it. Tells at which index of the log it was done.
    pub async fn propose_as(&self, actor: Actor, command: Command) -> Result<(u64, Outcome), ProposeError> {
        let request = Request { actor, command };
        let began = Instant::now();
        let done = self.raft.propose_at(request.clone()).await;
        debug!(took = ?began.elapsed(), command = request.command.name(), "proposed");
        match &done {
            Ok((_, outcome)) => self.guards.metrics.proposed(&request.command, outcome),
            Err(_) => self.guards.metrics.not_proposed(&request.command),
        }
        done
    }
}
