//! The times that this agent's proposals are stamped with: its wall time, unless the domain's time is ahead of it.
//!
//! The domain's time never goes back, so that one stamp by a clock that is an hour ahead makes it stand still for an hour: no pause
//! that the state machine checks would end. So this agent's stamps continue from the domain's time, by a clock that never goes back. They
//! do so a tenth more slowly than that one, so that the wall clocks catch up with the domain's time.

use super::handle::Handle;
use crate::clock;
use kaa_core::domain::ids::Millis;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Stamps run slower than the clock: one part in this many is left out.
const SLOWER_BY: u32 = 10;

/// What the stamps continue from; clones share it.
#[derive(Clone)]
pub(super) struct Stamps(Arc<Mutex<Last>>);

/// The domain's time, and when it became so here.
#[derive(Clone, Copy)]
struct Last {
    time: Millis,
    at: Instant,
}

impl Stamps {
    pub fn new(time: Millis) -> Self {
        Self(Arc::new(Mutex::new(Last { time, at: Instant::now() })))
    }

    /// Notes the domain's time after an entry.
    pub fn applied(&self, time: Millis) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).applied(time, Instant::now());
    }

    fn now(&self) -> Millis {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now(clock::now(), Instant::now())
    }
}

impl Last {
    fn applied(&mut self, time: Millis, at: Instant) {
        // A stamp that is behind changes nothing, so that what is lost by rounding does not add up.
        if time > self.continued(at) {
            *self = Self { time, at };
        }
    }

    fn now(&self, wall: Millis, at: Instant) -> Millis {
        wall.max(self.continued(at))
    }

    fn continued(&self, at: Instant) -> Millis {
        let passed = at.saturating_duration_since(self.at);
        let counted: Duration = passed - passed / SLOWER_BY;
        Millis(self.time.0.saturating_add(u64::try_from(counted.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Handle {
    /// The time that a proposal is stamped with now. Times of the domain are compared with it.
    pub fn now(&self) -> Millis {
        self.0.stamps.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// An agent whose own clock is right: of a time `ms` after its start, the stamp, as milliseconds of that clock.
    struct Agent {
        began: Instant,
        last: Last,
    }

    impl Agent {
        fn new() -> Self {
            let began = Instant::now();
            Self { began, last: Last { time: Millis(0), at: began } }
        }

        fn applies(&mut self, ms: u64, time: u64) {
            self.last.applied(Millis(time), self.began + Duration::from_millis(ms));
        }

        fn stamp(&self, ms: u64) -> u64 {
            self.last.now(Millis(ms), self.began + Duration::from_millis(ms)).0
        }
    }

    #[test]
    fn stamps_are_wall_time_while_the_clocks_are_right() {
        let mut agent = Agent::new();
        for ms in [0, 5, 1_000, HOUR_MS] {
            assert_eq!(agent.stamp(ms), ms);
            agent.applies(ms, ms);
        }
    }

    #[test]
    fn after_a_stamp_by_a_clock_that_is_ahead_time_continues_until_the_clocks_have_caught_up() {
        let mut agent = Agent::new();
        agent.applies(1_000, 1_000 + HOUR_MS);
        assert_eq!(agent.stamp(1_000), 1_000 + HOUR_MS);
        assert_eq!(agent.stamp(3_500), 1_000 + HOUR_MS + 2_250, "2.5 s are not less than 2.25 s");
        assert_eq!(agent.stamp(1_000 + 5 * HOUR_MS), 1_000 + 5 * HOUR_MS + HOUR_MS / 2);
        assert_eq!(agent.stamp(1_000 + 10 * HOUR_MS), 1_000 + 10 * HOUR_MS);
        assert_eq!(agent.stamp(1_000 + 11 * HOUR_MS), 1_000 + 11 * HOUR_MS);
    }

    #[test]
    fn many_entries_lose_nothing_by_rounding() {
        let mut agent = Agent::new();
        agent.applies(0, HOUR_MS);
        for ms in 1..=10_000 {
            agent.applies(ms, agent.stamp(ms));
            // One of an agent that is behind.
            agent.applies(ms, 5);
        }
        assert_eq!(agent.stamp(10_000), HOUR_MS + 9_000);
    }
}
