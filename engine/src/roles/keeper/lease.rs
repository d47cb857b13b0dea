//! The lease of a primary at work: own commits renew it, and what holds is noted before each decision.

use super::Keeper;
use crate::clock::monotonic_ms;
use crate::postgres::Committer;
use crate::roles::admission::{self, Admission, Held};
use crate::roles::decide::{Primary, Run};
use kaa_core::domain::ids::{Generation, SetVersion};
use kaa_core::replication::{Released, Rule, Ruling};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The pause after a commit that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Released commits on their way. More are of no use.
const QUEUE: usize = 4;

/// When the server may let clients in, and the task that commits for that.
pub(super) struct Leased {
    admission: Admission,
    /// When the server last answered.
    answered: Arc<AtomicU64>,
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

impl Leased {
    /// Begins to commit at a primary.
    fn begin(primary: &Primary, committer: Committer, lease_ms: u64, wait_ms: u64) -> Self {
        let version = Arc::new(AtomicU64::new(0));
        let (sender, commits) = mpsc::channel(QUEUE);
        let admission = Admission::begin(primary, lease_ms, wait_ms);
        let (answered, period) = (committer.answered(), Duration::from_millis(admission.period_ms()));
        let task = tokio::spawn(commit_again(committer, period, version.clone(), sender));
        Self { admission, answered, version, commits, task }
    }

    /// The next own commit that was released.
    pub async fn released(&mut self) -> Option<Released> {
        self.commits.recv().await
    }

    /// The rule is about to change.
    pub fn rule_changes(&mut self, ruling: &Ruling, to: &Rule) {
        self.version.store(0, Ordering::SeqCst);
        self.admission.rule_changes(ruling, to, monotonic_ms());
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
        match signed(&version, committer.commit(period)).await {
            Ok(Some(sign)) if released.send(sign).await.is_err() => return,
            Ok(Some(_)) => {}
            Ok(None) => tracing::warn!("the wait of an own commit was cancelled: it renews no lease"),
            Err(error) => {
                tracing::debug!(%error, "no own commit");
                sleep(PAUSE).await;
            }
        }
        tokio::time::sleep_until(next).await;
    }
}

/// The sign that an own commit is, once it was released; `None` if it was not. It counts from before the commit began, under the rule of that
/// moment: what came later proves nothing for the time between.
async fn signed<E>(version: &AtomicU64, commit: impl Future<Output = Result<bool, E>>) -> Result<Option<Released>, E> {
    let (begun, version) = (monotonic_ms(), SetVersion(version.load(Ordering::SeqCst)));
    commit.await.map(|is_released| is_released.then_some(Released { begun, version }))
}

impl Keeper {
    /// Begins or ends the lease with the role of the server, and notes what of it decides about the next step.
    pub(super) fn look_at_the_lease(&mut self) {
        let asks = self.held(monotonic_ms());
        self.out.report.send_if_modified(|report| std::mem::replace(&mut report.asks, asks) != asks);
    }

    /// Notes what holds, and gives the generation for which the domain is to be asked; 0 for none.
    fn held(&mut self, now: u64) -> u64 {
        let Run::Primary(primary) = &self.state.run else {
            (self.leased, self.state.lease) = (None, Held::default());
            return 0;
        };
        let granted = admission::granted(self.wanted.as_ref());
        if let Some((0, wait_ms)) = granted {
            // It was granted by an agent that knows no lease: no other one is granted without proof or an operator's word.
            let may_open = now >= admission::opens_at(primary, wait_ms);
            (self.leased, self.state.lease) = (None, Held { holds: true, may_open, stalled: false });
            return 0;
        }
        let begins = self.leased.as_ref().is_none_or(|leased| !leased.admission.is_of(primary));
        if let (true, Some((lease_ms, wait_ms))) = (begins, granted)
            && let Ok(server) = self.server.try_lock()
            && let Ok(committer) = server.committer()
        {
            self.leased = Some(Leased::begin(primary, committer, lease_ms, wait_ms));
        }
        let Some(leased) = &mut self.leased else {
            self.state.lease = Held::default();
            return 0;
        };
        leased.version.store(admission::version(&primary.ruling).0, Ordering::SeqCst);
        self.state.lease = leased.admission.held(&primary.ruling, leased.answered.load(Ordering::SeqCst), now);
        self.state.lease.stalled |= self.door.is_shut();
        leased.admission.asks(now)
    }

    /// Takes note of how long the domain has the primary wait now.
    pub(super) fn note_wait(&mut self) {
        let granted = admission::granted(self.wanted.as_ref());
        if let (Some(leased), Run::Primary(primary), Some((_, wait_ms))) = (&mut self.leased, &self.state.run, granted)
        {
            leased.admission.waits(primary, wait_ms);
        }
    }

    /// When the lease has to be looked at next.
    pub(super) fn lease_due(&self) -> Option<Instant> {
        let now = monotonic_ms();
        let next = self.leased.as_ref()?.admission.due(self.state.lease, now)?;
        Some(Instant::now() + Duration::from_millis(next - now))
    }

    /// An own commit was released.
    pub(super) fn released(&mut self, commit: Released) {
        if let (Some(leased), Run::Primary(primary)) = (&mut self.leased, &self.state.run) {
            leased.admission.released(commit, &primary.ruling);
        }
    }

    /// The domain's word: when it was asked, and for which generation.
    pub(super) fn vouched(&mut self, asked: u64, generation: Generation) {
        if let Some(leased) = &mut self.leased {
            leased.admission.vouched(asked, generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sign_counts_from_before_its_commit_and_under_the_rule_of_that_moment() {
        let version = AtomicU64::new(7);
        let began = std::cell::Cell::new(0);
        let commit = async {
            sleep(Duration::from_millis(20)).await;
            began.set(monotonic_ms());
            // The rule changes meanwhile.
            version.store(0, Ordering::SeqCst);
            Ok::<bool, ()>(true)
        };
        let sign = signed(&version, commit).await.unwrap().unwrap();
        assert!(sign.begun + 10 <= began.get(), "{} {}", sign.begun, began.get());
        assert_eq!(sign.version, SetVersion(7));
        assert!(signed(&version, async { Ok::<bool, ()>(false) }).await.unwrap().is_none(), "its wait was cancelled");
    }
}
