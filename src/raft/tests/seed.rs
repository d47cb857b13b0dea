//! Chance that can be had again: every random test prints its seed, and `KAA_SEED` replays it.

/// SplitMix64: the same numbers for ever, whatever becomes of the libraries.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// Chance by `KAA_SEED`, or by a new seed; printed, and so shown with whatever fails.
    pub(super) fn new(test: &str) -> Self {
        let seed = number("KAA_SEED").unwrap_or_else(crate::clock::random_u64);
        eprintln!("{test}: KAA_SEED={seed}");
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

/// A number in an environment variable.
pub(super) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}
