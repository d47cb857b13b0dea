//! How often something may be done: some times at once, then once in a period.

use std::time::{Duration, Instant};

/// What may be done now, and when one more may be.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    at_once: u32,
    period: Duration,
    /// How many are taken and not back yet.
    taken: u32,
    /// Since when one more has been coming back.
    since: Instant,
}

impl Pace {
    /// All that there may be at once.
    pub fn new(at_once: u32, period: Duration, now: Instant) -> Self {
        Self { at_once, period, taken: 0, since: now }
    }

    /// Takes one, if there is one.
    ///
    /// # Errors
    ///
    /// How long there is none.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.catch_up(now);
        if self.taken >= self.at_once {
            return Err(self.period.saturating_sub(now.duration_since(self.since)));
        }
        self.taken += 1;
        Ok(())
    }

    /// Gives one back that was taken.
    pub fn give_back(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }

    /// When one may be taken.
    pub fn next(&self) -> Instant {
        if self.taken < self.at_once { self.since } else { self.since + self.period }
    }

    /// Whether all are back.
    pub fn is_whole(mut self, now: Instant) -> bool {
        self.catch_up(now);
        self.taken == 0
    }

    fn catch_up(&mut self, now: Instant) {
        let back = now.duration_since(self.since).as_nanos() / self.period.as_nanos();
        let back = u32::try_from(back).unwrap_or(u32::MAX);
        self.taken = self.taken.saturating_sub(back);
        self.since = if self.taken == 0 { now } else { self.since + self.period * back };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(4);

    /// How many of `tries` are taken, one `every` after another from `begin` on.
    fn taken(pace: &mut Pace, tries: u32, begin: Instant, every: Duration) -> usize {
        (1..=tries).filter(|n| pace.take(begin + every * *n).is_ok()).count()
    }

    #[test]
    fn there_are_some_at_once_and_then_one_in_each_period() {
        let begin = Instant::now();
        let mut pace = Pace::new(7, PERIOD, begin);
        assert_eq!(taken(&mut pace, 100, begin, Duration::ZERO), 7);
        assert_eq!((pace.take(begin), pace.next()), (Err(PERIOD), begin + PERIOD));
        assert_eq!(taken(&mut pace, 40, begin, PERIOD / 4), 10);
        assert!(!pace.is_whole(begin + 10 * PERIOD));
        let much_later = begin + 1000 * PERIOD;
        assert!(pace.is_whole(much_later));
        assert_eq!(taken(&mut pace, 100, much_later, Duration::ZERO), 7);
    }

    #[test]
    fn what_is_given_back_may_be_taken_again() {
        let begin = Instant::now();
        let mut pace = Pace::new(1, PERIOD, begin);
        for _ in 0..9 {
            assert_eq!(pace.take(begin), Ok(()));
            pace.give_back();
        }
        assert_eq!(pace.next(), begin);
    }
}
