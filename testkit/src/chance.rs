//! Random numbers that can be replayed: every random test prints its seed, and `KAA_SEED` replays it.

use std::hash::{BuildHasher, Hasher, RandomState};

/// SplitMix64: a seed gives the same numbers with every version of the libraries.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Uses the seed in `KAA_SEED`, or a new one. Prints it, so that the output of a failing test has it.
    pub fn new(test: &str) -> Self {
        let seed = number("KAA_SEED").unwrap_or_else(fresh);
        eprintln!("{test}: KAA_SEED={seed}");
        Self(seed)
    }

    /// So many runs, each with a seed of its own that is printed when it begins. With `KAA_SEED` that run alone.
    pub fn runs(test: &str, runs: usize) -> impl Iterator<Item = Self> {
        let runs = if number("KAA_SEED").is_some() { 1 } else { runs };
        (0..runs).map(move |_| Self::new(test))
    }

    /// Uses this seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end - 1`; `end` must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// True or false.
    pub fn coin(&mut self) -> bool {
        self.number() & 1 == 1
    }
}

/// A new seed.
pub fn fresh() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A number in an environment variable; `None` where it is not set.
///
/// # Panics
/// Where it is set to something else.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}
