//! The only door to wall time, randomness and threads that may block, so that a simulation can stand in for all three.
//!
//! A simulation takes one thread and puts its own time and chance in place there; all other threads have the system's.

use kaa_core::domain::ids::Millis;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::cell::Cell;
use std::io;
use std::time::{Duration, SystemTime};

/// Time and chance of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// The wall time.
    pub now: Millis,
    /// What the next random number comes from.
    pub random: u64,
}

thread_local! {
    static SIMULATED: Cell<Option<Simulated>> = const { Cell::new(None) };
}

/// Puts a simulation's time and chance in the place of the system's on this thread, or takes them away.
pub fn simulate(simulated: Option<Simulated>) {
    SIMULATED.set(simulated);
}

/// What a simulation has put in place on this thread, and how far its chance has come.
pub fn simulated() -> Option<Simulated> {
    SIMULATED.get()
}

/// The wall time, as files have it.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn system_time() -> SystemTime {
    match SIMULATED.get() {
        Some(simulated) => SystemTime::UNIX_EPOCH + Duration::from_millis(simulated.now.0),
        None => SystemTime::now(),
    }
}

/// The wall time.
pub fn now() -> Millis {
    let since = system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A random number.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn random_u64() -> u64 {
    let Some(simulated) = SIMULATED.get() else { return rand::random() };
    // SplitMix64.
    let random = simulated.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    SIMULATED.set(Some(Simulated { random, ..simulated }));
    let z = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random number from 0 up to, not including, `end`. For the spreads that it is used for, the bias of a remainder is
/// nothing.
pub fn random_below(end: u64) -> u64 {
    random_u64() % end.max(1)
}

/// A source of random numbers, for code that takes one of `rand`'s types.
pub fn rng() -> StdRng {
    StdRng::seed_from_u64(random_u64())
}

/// Runs work that may block on a thread of its own. A simulation runs it in place, since it has one thread only.
/// Fails if the work panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    match SIMULATED.get() {
        Some(_) => Ok(work()),
        None => tokio::task::spawn_blocking(work).await.map_err(io::Error::other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulation_has_its_own_time_and_chance_on_its_own_thread() {
        let begin = Simulated { now: Millis(5), random: 7 };
        simulate(Some(begin));
        let first = (random_u64(), random_u64(), now());
        simulate(Some(begin));
        assert_eq!((random_u64(), random_u64(), now()), first);
        let elsewhere = std::thread::spawn(|| (simulated(), now())).join().unwrap();
        assert!(elsewhere.0.is_none() && elsewhere.1 > Millis(1_000_000_000_000), "{elsewhere:?}");
        simulate(None);
    }
}
