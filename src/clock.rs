//! The only door to wall time and randomness, so that a simulation can stand in for both.

use kaa_core::domain::ids::Millis;
use std::time::SystemTime;

/// The wall time, as files have it.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn system_time() -> SystemTime {
    SystemTime::now()
}

/// The wall time.
pub fn now() -> Millis {
    let since = system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A random number.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn random_u64() -> u64 {
    rand::random()
}

/// A random number from 0 up to, not including, `end`.
pub fn random_below(end: u64) -> u64 {
    rand::random_range(0..end)
}
