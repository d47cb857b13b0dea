//! The slots for other members are tended apart from the steps: none of them waits for that.

use super::Keeper;
use crate::postgres::Slots;
use crate::roles::decide::Run;
use kaa_core::domain::ids::ArchiveId;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// How often it is done.
const PERIOD: Duration = Duration::from_secs(5);
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What is under way, and when it is done next.
#[derive(Default)]
pub(super) struct Tending {
    under: Option<JoinHandle<()>>,
    next: Option<Instant>,
}

impl Tending {
    /// Ends the work, since a step begins, and puts off the next run: while roles change, clients wait, and a session of this work would be
    /// one more to end.
    pub fn give_up(&mut self, now: Instant) {
        if let Some(under) = self.under.take() {
            under.abort();
        }
        self.next = Some(now + PERIOD);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.under.as_ref().is_none_or(JoinHandle::is_finished) && self.next.is_none_or(|next| next <= now)
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        self.give_up(Instant::now());
    }
}

impl Keeper {
    /// Begins it, if it is due and no step is under way.
    pub(super) fn tend_slots(&mut self) {
        let (serves, members) = match &self.state.run {
            Run::Primary(primary) => (primary.open, primary.slots.clone()),
            Run::Follows { .. } => (true, Vec::new()),
            Run::Down | Run::Fenced => return,
        };
        let now = Instant::now();
        let Some(member) = self.member.as_ref().filter(|_| serves && self.under.is_none() && self.tending.is_due(now))
        else {
            return;
        };
        let Ok(slots) = self.server.try_lock().map_err(drop).and_then(|it| it.slots(member.archive).map_err(drop))
        else {
            return;
        };
        self.tending = Tending { under: Some(tokio::spawn(tend(slots, members))), next: Some(now + PERIOD) };
    }
}

async fn tend(slots: Slots, members: Vec<ArchiveId>) {
    match timeout(LIMIT, slots.tend(&members)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the slots were not looked after: tried again"),
        Err(_) => tracing::warn!("the slots were not looked after within {LIMIT:?}: tried again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_is_under_way_at_a_time_and_a_step_ends_it() {
        let now = Instant::now();
        let begin = || Tending { under: Some(tokio::spawn(std::future::pending())), next: Some(now + PERIOD) };
        let mut tending = begin();
        assert!(!tending.is_due(now + PERIOD * 2), "it takes long");
        tending.give_up(now);
        assert_eq!([now, now + PERIOD].map(|at| tending.is_due(at)), [false, true], "not while roles change");
        let done = Tending { under: None, next: Some(now + PERIOD) };
        assert_eq!([now, now + PERIOD].map(|at| done.is_due(at)), [false, true]);
    }
}
