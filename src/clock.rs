//! The only door to wall time and randomness, so that a simulation can stand in for both.

use kaa_core::domain::ids::Millis;
use std::time::SystemTime;

/// The wall time.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn now() -> Millis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A random number.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn random_u64() -> u64 {
    rand::random()
}
