//! The resync leader's loop: woken by an event or the clock, it compares everything, reads what it needs, and proposes.
//!
//! Criteria are in `kaa_core::resync`; this loop only performs them. It retries nothing within a pass: the next pass is
//! the retry.

use super::Shared;
use crate::config::{BACKOFF, FIRST_PASS, IDLE_SHARE, PASS_SPACING, RESYNC_PERIOD};
use crate::kubernetes::evidence;
use crate::kubernetes::lease::{Leadership, Term};
use crate::metrics::Reading;
use crate::raft::ProposeError;
use kaa_core::domain::command::{Actor, Command, Fence, Outcome, Request, Role};
use kaa_core::domain::ids::{Millis, ResyncEpoch};
use kaa_core::resync::plan::{Plan, Waiting};
use kaa_core::resync::{confirm, plan};
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// What the last pass did, for whoever asks.
#[derive(Clone, Debug, Default)]
pub struct LastPass {
    /// When it began, by this agent's clock.
    pub at: Millis,
    /// One line for each finding: what became of it.
    pub lines: Vec<String>,
    /// What it waited for, with what the fresh reads added.
    pub waiting: Vec<Waiting>,
}

/// Runs until the agent ends.
pub async fn run(shared: Arc<Shared>) {
    let mut observed = shared.watching.changed.clone();
    let mut applied = shared.raft.applied();
    let mut leadership = shared.candidacy.leadership.clone();
    info!("domain resync with an initial delay of {FIRST_PASS:?}, then every {RESYNC_PERIOD:?} and on every change");
    tokio::time::sleep(FIRST_PASS).await;
    let mut reported = Vec::new();
    loop {
        let began = Instant::now();
        observed.mark_unchanged();
        applied.mark_unchanged();
        leadership.mark_unchanged();
        let held = leadership.borrow().clone();
        let (mut again, mut proposed) = (RESYNC_PERIOD, false);
        if let Leadership::Leader(term) = held
            && shared.candidacy.still_leads(&term)
        {
            match pass(&shared, &term).await {
                Ok(last) => {
                    proposed = !last.lines.is_empty();
                    report(&mut reported, last, &shared);
                }
                Err(why) => {
                    warn!("resync pass given up: {why}");
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

/// One pass: epoch, plan, reads, proposals.
async fn pass(shared: &Shared, term: &Term) -> Result<LastPass, String> {
    let at = crate::clock::now();
    let epoch = epoch(shared, term).await?;
    let fence = Fence { cluster: shared.config.cluster.clone(), epoch };
    let (Plan { findings, mut waiting }, anchor) = {
        let observed = shared.observed.read().map_err(|_| "the watches have failed")?;
        shared.raft.read(|domain| (plan(domain, &observed, &shared.policy, at), domain.anchor.clone()))
    };
    let mut lines = Vec::new();
    if !findings.is_empty() {
        let needs: BTreeSet<_> = findings.iter().flat_map(|finding| finding.needs.iter().cloned()).collect();
        let planned = Instant::now();
        let readings = evidence::gather(&shared.kubernetes, &shared.config.anchor_name(), &needs).await;
        debug!(reads = needs.len(), took = ?planned.elapsed(), "evidence gathered");
        for answer in readings.answers.values() {
            shared.guards.metrics.evidence_read(if answer.is_ok() { Reading::Answered } else { Reading::Unknown });
        }
        for finding in findings {
            let line = match confirm(&finding, &readings, &fence, anchor.as_ref()) {
                Ok(_) if !shared.candidacy.still_leads(term) => {
                    return Err("the lease was lost during the pass".to_owned());
                }
                Ok(command) => format!("{}: {}", finding.proposal, propose(shared, command).await?),
                Err(reason) => {
                    let line = format!("{}: held, {reason}", finding.proposal);
                    waiting.push(Waiting { subject: finding.subject, reason });
                    line
                }
            };
            lines.push(line);
        }
    }
    Ok(LastPass { at, lines, waiting })
}

/// The epoch that the domain gave this acquisition of the Lease; asks for one if there is none yet.
async fn epoch(shared: &Shared, term: &Term) -> Result<ResyncEpoch, String> {
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
    let command = Command::BeginResync {
        cluster: cluster.clone(),
        lease: term.uid.clone(),
        transitions: term.transitions,
        holder: shared.config.server.clone(),
        evidence: term.evidence(),
    };
    match shared.propose(Role::ResyncLeader, command).await? {
        Outcome::ResyncBegun(epoch) => {
            info!("this agent leads the resync of cluster {cluster} from epoch {epoch} on");
            Ok(epoch)
        }
        Outcome::Refused(why) => Err(format!("the domain refused this resync leader: {why}")),
        other => Err(format!("the domain answered {other:?} to a resync leader")),
    }
}

async fn propose(shared: &Shared, command: Command) -> Result<String, String> {
    Ok(match shared.propose(Role::ResyncLeader, command).await? {
        Outcome::Refused(why) => format!("refused, {why}"),
        Outcome::Unchanged => "done already".to_owned(),
        Outcome::Changed | Outcome::Registered(_) | Outcome::ResyncBegun(_) => "done".to_owned(),
    })
}

/// Logs what was done, and what is waited for whenever that changes.
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
    *shown = Some(if last.lines.is_empty() { LastPass { lines: before.lines, at: before.at, ..last } } else { last });
}

/// Tells the others who holds the resync Lease.
pub async fn announce(shared: Arc<Shared>) {
    let mut leadership = shared.candidacy.leadership.clone();
    let mut said = None;
    loop {
        let holder = super::leader_of(&leadership.borrow_and_update(), &shared.config.server);
        if said != holder {
            info!("resync leader: {}", holder.as_ref().map_or("nobody", |holder| holder.as_str()));
            shared.host.set_resync_leader(holder.as_ref().map_or("", |holder| holder.as_str()));
            said = holder;
        }
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { return },
            () = shared.stopping() => return,
        }
    }
}

impl Shared {
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
        debug!(took = ?began.elapsed(), command = crate::metrics::command_name(&request.command), "proposed");
        match &done {
            Ok((_, outcome)) => self.guards.metrics.proposed(&request.command, outcome),
            Err(_) => self.guards.metrics.not_proposed(&request.command),
        }
        done
    }
}
