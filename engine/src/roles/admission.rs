//! When a primary may let clients in: by its lease, and by the wait for earlier ones. No clock, and no side effect: times are arguments, in
//! milliseconds of one clock that never goes back.

use super::decide::Primary;
use kaa_core::domain::ids::{Generation, SetVersion};
use kaa_core::replication::{Assignment, Lease, Released, Rule, Ruling, Wanted};

/// How often a lease is renewed by an own commit: its length over this.
const COMMITS_IN_A_LEASE: u64 = 5;
/// The longest period: standbys have to hear a primary at which nothing happens.
const PERIOD_MAX_MS: u64 = 500;
/// A primary begins to close so long before its lease is over: until it is over no client may be left. It takes half a second at most,
/// or the server is stopped at once.
const CLOSING_MS: u64 = 600;
/// After this many lease lengths without an answer the server is stopped, if another one can take over: agents still hear its wrapper, and
/// nothing else would end a primary whose disk hangs.
const STALLED_AFTER: u64 = 4;
/// The most that counts between two looks at it: there is one in every half second.
const LOOK_MAX_MS: u64 = 1_000;

/// What of it decides about the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Whether clients may stay.
    pub holds: bool,
    /// Whether every earlier lease is over.
    pub may_open: bool,
    /// Whether the server has not answered for long.
    pub stalled: bool,
}

/// The lease and the wait that the domain assigns to a primary.
pub fn granted(wanted: Option<&Assignment>) -> Option<(u64, u64)> {
    match wanted.map(|wanted| &wanted.what) {
        Some(Wanted::Primary { lease_ms, wait_ms, .. }) => Some((*lease_ms, *wait_ms)),
        _ => None,
    }
}

/// When the server may let clients in, in the generation that it has.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    generation: Generation,
    lease: Lease,
    length_ms: u64,
    /// When clients may be let in first.
    opens_at: u64,
    silence: Silence,
}

impl Admission {
    /// Begins at a server that was promoted.
    pub fn begin(primary: &Primary, lease_ms: u64, wait_ms: u64) -> Self {
        Self {
            generation: primary.begins.generation,
            lease: Lease::new(lease_ms),
            length_ms: lease_ms,
            opens_at: opens_at(primary, wait_ms),
            silence: Silence::default(),
        }
    }

    /// Whether it is that of this primary.
    pub fn is_of(&self, primary: &Primary) -> bool {
        self.generation == primary.begins.generation
    }

    /// How often the primary commits, in milliseconds.
    pub fn period_ms(&self) -> u64 {
        (self.length_ms / COMMITS_IN_A_LEASE).clamp(1, PERIOD_MAX_MS)
    }

    /// What holds now. `answered` is when the server last answered.
    pub fn held(&mut self, ruling: &Ruling, answered: u64, now: u64) -> Held {
        Held {
            holds: self.lease.holds(ruling, now.saturating_add(CLOSING_MS)),
            may_open: now >= self.opens_at,
            stalled: self.silence.look(answered, now) >= self.length_ms.saturating_mul(STALLED_AFTER),
        }
    }

    /// The generation for which the domain is to be asked, since no own commit has renewed the lease for a while; 0 for none.
    pub fn asks(&self, now: u64) -> u64 {
        if self.lease.until() < now.saturating_add(self.length_ms * 7 / 10) { self.generation.0 } else { 0 }
    }

    /// When [`Self::held`] has to be called next, after this result: as the lease nears its end, or once earlier leases are over.
    pub fn due(&self, held: Held, now: u64) -> Option<u64> {
        let ends = Some(self.lease.until().saturating_sub(CLOSING_MS)).filter(|_| held.holds);
        let opens = Some(self.opens_at).filter(|_| !held.may_open);
        [ends, opens].into_iter().flatten().filter(|at| *at >= now).min()
    }

    /// The rule is about to change.
    pub fn rule_changes(&mut self, ruling: &Ruling, to: &Rule, now: u64) {
        self.lease.changes(ruling, to, now);
    }

    /// An own commit was released.
    pub fn released(&mut self, commit: Released, ruling: &Ruling) {
        self.lease.released(commit, ruling);
    }

    /// The domain's word: when it was asked, and for which generation.
    pub fn vouched(&mut self, asked: u64, generation: Generation) {
        if self.generation == generation {
            self.lease.vouched(asked);
        }
    }

    /// The domain may have learned that an earlier primary has ended: it is not waited for any longer.
    pub fn waits(&mut self, primary: &Primary, wait_ms: u64) {
        self.opens_at = self.opens_at.min(opens_at(primary, wait_ms));
    }
}

/// When a primary may let clients in first.
pub fn opens_at(primary: &Primary, wait_ms: u64) -> u64 {
    primary.stopped_ms.saturating_add(wait_ms)
}

/// The version of the rule in force, under which an own commit is begun; 0 while it changes.
pub fn version(ruling: &Ruling) -> SetVersion {
    match ruling.coming {
        None => ruling.in_force.version,
        Some(_) => SetVersion(0),
    }
}

/// For how long a server has not answered, as far as this process ran meanwhile: one that was paused has not heard anything either.
#[derive(Clone, Copy, Debug, Default)]
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
