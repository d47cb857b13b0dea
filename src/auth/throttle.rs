//! How often a caller may fail to authenticate: a failure costs one of a few attempts, which come back slowly.
//!
//! Each address has attempts of its own, so that no caller locks out another. An attempt that succeeds costs nothing.

use crate::pace::Pace;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many attempts may fail one after another: an operator who mistypes, a script that is mended.
const BURST: u32 = 10;

/// How long it takes until one attempt is back: 43,200 guesses a day are few against a password worth the name.
const BACK: Duration = Duration::from_secs(2);

/// How many addresses are told apart; those beyond share their attempts.
const MOST_ADDRESSES: usize = 1024;

/// Attempts of every address.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<BTreeMap<Option<IpAddr>, Pace>>);

impl Throttle {
    /// Spends an attempt, or returns how long there is none. Call it before the credentials are compared, so that attempts
    /// in parallel get no more tries than attempts in sequence.
    pub fn attempt(&self, from: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut from = from.map(network);
        if paces.len() >= MOST_ADDRESSES && !paces.contains_key(&from) {
            paces.retain(|_, pace| !pace.is_whole(now));
            if paces.len() >= MOST_ADDRESSES {
                from = None;
            }
        }
        paces.entry(from).or_insert_with(|| Pace::new(BURST, BACK, now)).take(now)
    }

    /// Gives an attempt back: it succeeded, or its failure was not the caller's.
    pub fn refund(&self, from: Option<IpAddr>) {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = from.map(network);
        // One that is not told apart spent what those share.
        let from = if paces.contains_key(&own) { own } else { None };
        if let Some(pace) = paces.get_mut(&from) {
            pace.give_back();
        }
    }
}

/// A host with one IPv6 address usually has the whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn failures_of_one_address_are_bounded_and_come_back_slowly() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(throttle.attempt(from("10.0.0.9"), now), Ok(()));
        }
        assert_eq!(throttle.attempt(from("10.0.0.9"), now), Err(BACK));
        assert_eq!(throttle.attempt(from("::ffff:10.0.0.9"), now), Err(BACK), "the same by another name");
        assert_eq!(throttle.attempt(from("10.0.0.8"), now), Ok(()), "no other address is locked out");
        let later = now + BACK;
        assert_eq!(throttle.attempt(from("10.0.0.9"), later), Ok(()));
        assert_eq!(throttle.attempt(from("10.0.0.9"), later), Err(BACK), "one is back, no more");
        assert_eq!(throttle.attempt(from("10.0.0.9"), now + BACK * 100), Ok(()));
    }

    #[test]
    fn a_caller_that_succeeds_never_waits() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for _ in 0..BURST * 3 {
            assert_eq!(throttle.attempt(from("10.0.0.9"), now), Ok(()));
            throttle.refund(from("10.0.0.9"));
        }
    }

    #[test]
    fn a_network_of_addresses_has_the_attempts_of_one_and_many_fill_no_memory() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for n in 0..BURST {
            assert_eq!(throttle.attempt(from(&format!("fd00::{n}")), now), Ok(()));
        }
        assert!(throttle.attempt(from("fd00::ffff"), now).is_err());
        for n in 0..5000_u32 {
            let _ = throttle.attempt(Some(IpAddr::from(n.to_be_bytes())), now);
        }
        assert_eq!(throttle.0.lock().unwrap().len(), MOST_ADDRESSES + 1);
    }

    #[test]
    fn a_caller_that_succeeds_does_not_wait_in_a_flood_of_addresses_either() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for n in 0..u32::try_from(MOST_ADDRESSES).unwrap() {
            assert_eq!(throttle.attempt(Some(IpAddr::from(n.to_be_bytes())), now), Ok(()));
        }
        for _ in 0..BURST * 3 {
            assert_eq!(throttle.attempt(from("192.0.2.1"), now), Ok(()));
            throttle.refund(from("192.0.2.1"));
        }
    }
}
