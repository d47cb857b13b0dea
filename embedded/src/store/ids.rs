//! Identifiers from a seed: the same seed gives the same ones in the same order.

/// A stream of identifiers.
#[derive(Clone, Debug)]
pub struct Ids {
    state: u64,
}

/// What generated names end in: no vowels, so that no words come about, and nothing that looks like something else.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Ids {
    /// Begins a stream.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number (SplitMix64).
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A UID, in the form of a random UUID.
    pub fn uid(&mut self) -> String {
        let (high, low) = (self.number(), self.number());
        let high = (high & !0xf000) | 0x4000;
        let low = (low & !(0b11 << 62)) | (0b10 << 62);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// What a generated name ends in.
    pub fn suffix(&mut self, letters: usize) -> String {
        (0..letters).map(|_| char::from(LETTERS[(self.number() % 27) as usize])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Ids;

    #[test]
    fn the_same_seed_gives_the_same_identifiers() {
        let (mut one, mut other) = (Ids::new(7), Ids::new(7));
        let (uid, again) = (one.uid(), other.uid());
        assert_eq!(uid, again);
        assert_ne!(one.uid(), uid);
        assert_eq!(uid.len(), 36);
        assert_eq!(uid.as_bytes()[14], b'4', "{uid} is a random UUID");
        assert_eq!(one.suffix(5).len(), 5);
    }
}
