//! The only door to time that is not a timer's, and to randomness.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// The wall time, as files have it.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}

/// The wall time, in milliseconds since 1970-01-01 UTC.
pub(crate) fn now_ms() -> u64 {
    let since = system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds of a clock that never goes back, also while the machine sleeps. If it cannot be read, every lease is over.
pub(crate) fn monotonic_ms() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    time.ok().and_then(|time| u64::try_from(time.as_millis()).ok()).unwrap_or(u64::MAX)
}

/// A random number.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) fn random_u64() -> u64 {
    rand::random()
}
