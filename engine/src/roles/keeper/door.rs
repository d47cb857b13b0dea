//! Whether a server lets new sessions in. One is tried every few seconds: a server whose first process hangs, or was told to shut down,
//! serves the sessions that it has.

use super::Keeper;
use crate::postgres::{Knock, Reader};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// How often a new session is tried.
const PERIOD: Duration = Duration::from_secs(5);
/// So long without an answer to any, and a primary is stopped, so that another one can take over: new clients are not let in.
const SHUT_AFTER: Duration = Duration::from_secs(30);
/// The most that counts between two tries: this process may have been paused meanwhile.
const PASSED_MAX: Duration = Duration::from_secs(6);

/// A new session that is being tried.
type Knocking = Pin<Box<dyn Future<Output = Knock> + Send>>;

/// The new sessions of a server.
pub(super) struct Door {
    under: Option<Knocking>,
    /// When one is tried next.
    next: Instant,
    /// When the last one ended.
    ended: Instant,
    /// For how long none had an answer.
    silent: Duration,
}

impl Door {
    /// Nothing was tried yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { under: None, next: now, ended: now, silent: Duration::ZERO }
    }

    /// Tries a new session, unless that is under way or was done a moment ago.
    pub fn knock(&mut self, reader: &Reader) {
        if self.under.is_none() && self.next <= Instant::now() {
            let reader = reader.clone();
            self.next = Instant::now() + PERIOD;
            self.under = Some(Box::pin(async move { reader.knock().await }));
        }
    }

    /// What came of the one that is under way.
    pub async fn answer(&mut self) -> Knock {
        match &mut self.under {
            Some(knocking) => knocking.await,
            None => std::future::pending().await,
        }
    }

    /// Takes note of what came of one.
    fn note(&mut self, knock: Knock, now: Instant) {
        self.under = None;
        let passed = now.saturating_duration_since(self.ended).min(PASSED_MAX);
        self.ended = now;
        match knock {
            Knock::Answered => self.silent = Duration::ZERO,
            Knock::Unanswered => self.silent += passed,
            Knock::ShuttingDown => {}
        }
        if knock != Knock::Answered {
            // A server that starts lets sessions in soon.
            self.next = now;
        }
    }

    /// The server is another one now, or has another role.
    pub fn forget(&mut self) {
        (self.under, self.silent) = (None, Duration::ZERO);
    }

    /// Whether no new session was let in for long.
    pub fn is_shut(&self) -> bool {
        self.silent >= SHUT_AFTER
    }
}

impl Keeper {
    /// Takes note of whether the server lets a new session in.
    pub(super) fn knocked(&mut self, knock: Knock) {
        self.door.note(knock, Instant::now());
        self.vitals.knocked(knock == Knock::Answered);
        // A step that is under way may be what stops it.
        let by_itself = self.under.as_ref().is_none_or(|(step, _)| step.waits());
        match knock {
            Knock::Answered => {}
            Knock::Unanswered => tracing::warn!("the server lets no new session in"),
            Knock::ShuttingDown if by_itself => {
                tracing::error!("the server was told to shut down, and not by Kaa: it is stopped");
                self.state.shuts_down = true;
            }
            Knock::ShuttingDown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_shut_once_none_was_let_in_for_half_a_minute() {
        let (mut door, began) = (Door::new(), Instant::now());
        // In half seconds: some fail at once, others after a while.
        let mut at = |knock: Knock, halves: u64| {
            door.note(knock, began + Duration::from_millis(500 * halves));
            door.is_shut()
        };
        assert!(!at(Knock::Answered, 0));
        assert!((1..=10).chain([20, 30, 40, 50, 59]).all(|halves| !at(Knock::Unanswered, halves)));
        assert!(at(Knock::Unanswered, 60));
        assert!(!at(Knock::Answered, 61));
        assert!(!at(Knock::Unanswered, 71) && !at(Knock::Unanswered, 500), "the wrapper was paused");
        assert!([510, 520, 530].iter().all(|halves| !at(Knock::Unanswered, *halves)) && at(Knock::Unanswered, 540));
        door.forget();
        assert!(!door.is_shut(), "it is another server");
    }
}
