//! The lease of a primary: own commits and the domain's word renew it, and clients are let in only while it holds.

use super::Keeper;
use crate::clock::monotonic_ms;
use crate::postgres::Committer;
use crate::roles::decide::{Primary, Run};
use kaa_core::domain::ids::{Generation, SetVersion};
use kaa_core::replication::{Assignment, Lease, Released, Rule, Ruling, Wanted};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How often a lease is renewed by an own commit: its length over this.
const COMMITS_IN_A_LEASE: u64 = 5;
/// The longest period: standbys have to hear a primary at which nothing happens.
const PERIOD_MAX_MS: u64 = 500;
/// A primary begins to close so long before its lease is over, in milliseconds: until it is over no client may be left. It takes
/// half a second at most, or the server is stopped at once.
const CLOSING_MS: u64 = 600;
/// So many lengths of a lease without an answer of the server, and it is stopped: an agent hears the wrapper, and nothing else would end
/// a primary whose disk hangs.
const STALLED_AFTER: u64 = 4;
/// The most that counts between two looks at it: there is one in every half second.
const LOOK_MAX_MS: u64 = 1_000;
/// The pause after a commit that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Released commits on their way. More are of no use.
const QUEUE: usize = 4;

/// The lease of the generation that the server has.
pub(super) struct Leased {
    generation: Generation,
    lease: Lease,
    length_ms: u64,
    /// When clients may be let in first.
    opens_at: u64,
    /// When the server last answered.
    answered: Arc<AtomicU64>,
    silence: Silence,
    /// The version of the rule in force; 0 while it changes.
    version: Arc<AtomicU64>,
    commits: mpsc::Receiver<Released>,
    task: JoinHandle<()>,
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// For how long a server has not answered, as far as this process ran meanwhile: one that was paused has not heard anything either.
#[derive(Default)]
struct Silence {
    answered: u64,
    looked: u64,
    lasts_ms: u64,
}

impl Silence {
    /// Takes note of when the server last answered, and gives for how long it has been silent, in milliseconds.
    fn look(&mut self, answered: u64, now: u64) -> u64 {
        let passed = now.saturating_sub(self.looked).min(LOOK_MAX_MS);
        self.lasts_ms = if answered == self.answered { self.lasts_ms.saturating_add(passed) } else { 0 };
        (self.answered, self.looked) = (answered, now);
        self.lasts_ms
    }
}

impl Leased {
    /// Begins to commit at a primary.
    fn begin(primary: &Primary, committer: Committer, lease_ms: u64, wait_ms: u64) -> Self {
        let version = Arc::new(AtomicU64::new(0));
        let (sender, commits) = mpsc::channel(QUEUE);
        let period = Duration::from_millis((lease_ms / COMMITS_IN_A_LEASE).clamp(1, PERIOD_MAX_MS));
        Self {
            generation: primary.begins.generation,
            lease: Lease::new(lease_ms),
            length_ms: lease_ms,
            opens_at: primary.stopped_ms.saturating_add(wait_ms),
            answered: committer.answered(),
            silence: Silence::default(),
            version: version.clone(),
            commits,
            task: tokio::spawn(commit_again(committer, period, version, sender)),
        }
    }

    /// The next own commit that was released.
    pub async fn released(&mut self) -> Option<Released> {
        self.commits.recv().await
    }

    /// The rule is about to change.
    pub fn rule_changes(&mut self, ruling: &Ruling, to: &Rule) {
        self.version.store(0, Ordering::SeqCst);
        self.lease.changes(ruling, to, monotonic_ms());
    }

    /// Whether the server is taken for one that hangs.
    fn is_stalled(&mut self, now: u64) -> bool {
        self.silence.look(self.answered.load(Ordering::SeqCst), now) >= self.length_ms * STALLED_AFTER
    }

    /// Whether the domain is to be asked: no own commit has renewed the lease for a while.
    fn asks(&self, now: u64) -> bool {
        self.lease.until() < now.saturating_add(self.length_ms * 7 / 10)
    }
}

async fn commit_again(
    mut committer: Committer,
    period: Duration,
    version: Arc<AtomicU64>,
    released: mpsc::Sender<Released>,
) {
    loop {
        let next = Instant::now() + period;
        let (begun, version) = (monotonic_ms(), SetVersion(version.load(Ordering::SeqCst)));
        match committer.commit(period).await {
            Ok(true) if released.send(Released { begun, version }).await.is_err() => return,
            Ok(true) => {}
            Ok(false) => tracing::warn!("the wait of an own commit was cancelled: it renews no lease"),
            Err(error) => {
                tracing::debug!(%error, "no own commit");
                sleep(PAUSE).await;
            }
        }
        tokio::time::sleep_until(next).await;
    }
}

impl Keeper {
    /// Begins or ends the lease with the role of the server, and notes what of it decides about the next step.
    pub(super) fn look_at_the_lease(&mut self) {
        let now = monotonic_ms();
        let asks = self.held(now);
        self.report.send_if_modified(|report| std::mem::replace(&mut report.asks, asks) != asks);
    }

    /// Notes what holds, and gives the generation for which the domain is to be asked; 0 for none.
    fn held(&mut self, now: u64) -> u64 {
        let Run::Primary(primary) = &self.state.run else {
            (self.leased, self.state.lease) = (None, Held::default());
            return 0;
        };
        if let Some((0, wait_ms)) = self.granted() {
            // It was granted by an agent that knows no lease: no other one is granted without proof or an operator's word.
            let may_open = now >= primary.stopped_ms.saturating_add(wait_ms);
            (self.leased, self.state.lease) = (None, Held { holds: true, may_open, stalled: false });
            return 0;
        }
        let begins = self.leased.as_ref().is_none_or(|it| it.generation != primary.begins.generation);
        if let (true, Some((lease_ms, wait_ms))) = (begins, self.granted())
            && let Ok(server) = self.server.try_lock()
            && let Ok(committer) = server.committer()
        {
            self.leased = Some(Leased::begin(primary, committer, lease_ms, wait_ms));
        }
        let Some(leased) = &mut self.leased else {
            self.state.lease = Held::default();
            return 0;
        };
        let version = match &primary.ruling.coming {
            None => primary.ruling.in_force.version.0,
            Some(_) => 0,
        };
        leased.version.store(version, Ordering::SeqCst);
        self.state.lease = Held {
            holds: leased.lease.holds(&primary.ruling, now.saturating_add(CLOSING_MS)),
            may_open: now >= leased.opens_at,
            stalled: leased.is_stalled(now),
        };
        if leased.asks(now) { leased.generation.0 } else { 0 }
    }

    /// The lease and the wait that the domain assigns.
    pub(super) fn granted(&self) -> Option<(u64, u64)> {
        match self.wanted.as_ref() {
            Some(Assignment { what: Wanted::Primary { lease_ms, wait_ms, .. }, .. }) => Some((*lease_ms, *wait_ms)),
            _ => None,
        }
    }

    /// The domain may have learned that an earlier primary has ended: it is not waited for any longer.
    pub(super) fn note_wait(&mut self) {
        let granted = self.granted();
        if let (Some(leased), Run::Primary(primary), Some((_, wait_ms))) = (&mut self.leased, &self.state.run, granted)
        {
            leased.opens_at = leased.opens_at.min(primary.stopped_ms.saturating_add(wait_ms));
        }
    }

    /// When the lease has to be looked at next.
    pub(super) fn lease_due(&self) -> Option<Instant> {
        let leased = self.leased.as_ref()?;
        let now = monotonic_ms();
        let ends = Some(leased.lease.until().saturating_sub(CLOSING_MS)).filter(|_| self.state.lease.holds);
        let opens = Some(leased.opens_at).filter(|_| !self.state.lease.may_open);
        let next = [ends, opens].into_iter().flatten().filter(|at| *at >= now).min()?;
        Some(Instant::now() + Duration::from_millis(next - now))
    }

    /// An own commit was released.
    pub(super) fn released(&mut self, commit: Released) {
        if let (Some(leased), Run::Primary(primary)) = (&mut self.leased, &self.state.run) {
            leased.lease.released(commit, &primary.ruling);
        }
    }

    /// The domain's word: when it was asked, and for which generation.
    pub(super) fn vouched(&mut self, asked: u64, generation: Generation) {
        if let Some(leased) = self.leased.as_mut().filter(|leased| leased.generation == generation) {
            leased.lease.vouched(asked);
        }
    }
}

/// What of the lease decides about the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Whether clients may stay.
    pub holds: bool,
    /// Whether every earlier lease is over.
    pub may_open: bool,
    /// Whether the server has not answered for long.
    pub stalled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_silent_for_as_long_as_the_wrapper_ran_meanwhile() {
        let mut silence = Silence::default();
        assert_eq!(
            [(900, 1_000), (900, 1_500), (900, 2_000)].map(|(answered, now)| silence.look(answered, now)),
            [0, 500, 1_000]
        );
        assert_eq!(silence.look(900, 60_000), 2_000, "the wrapper was paused");
        assert_eq!(silence.look(900, 60_500), 2_500);
        assert_eq!(silence.look(60_600, 60_700), 0, "it answers");
        assert_eq!(silence.look(60_600, 61_700), 1_000);
    }
}
