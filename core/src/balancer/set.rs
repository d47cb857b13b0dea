//! A set of candidates: one bit for each, so that filters are combined word by word.

const BITS: usize = u64::BITS as usize;

/// Which of the candidates, by their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set(Vec<u64>);

impl Set {
    /// None of so many candidates.
    pub fn empty(candidates: usize) -> Self {
        Self(vec![0; candidates.div_ceil(BITS)])
    }

    pub fn insert(&mut self, place: usize) {
        self.0[place / BITS] |= 1 << (place % BITS);
    }

    pub fn has(&self, place: usize) -> bool {
        self.0[place / BITS] >> (place % BITS) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The places, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(n, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < BITS).then_some(n * BITS + bit)
            })
        })
    }

    pub fn keep(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word &= other);
    }

    pub fn remove(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word &= !other);
    }

    pub fn add(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word |= other);
    }
}

#[cfg(test)]
mod tests {
    use super::Set;

    fn set(places: &[usize]) -> Set {
        let mut set = Set::empty(130);
        places.iter().for_each(|place| set.insert(*place));
        set
    }

    #[test]
    fn it_holds_places_on_both_sides_of_a_word() {
        let places = [0, 1, 63, 64, 127, 128, 129];
        let all = set(&places);
        assert_eq!(all.iter().collect::<Vec<_>>(), places);
        assert_eq!((all.len(), all.is_empty(), all.has(63), all.has(62)), (7, false, true, false));
        assert!(Set::empty(0).is_empty() && Set::empty(0).iter().next().is_none());
    }

    #[test]
    fn sets_are_combined() {
        let (one, other) = (set(&[1, 63, 128]), set(&[63, 64]));
        let with = |change: fn(&mut Set, &Set)| {
            let mut changed = one.clone();
            change(&mut changed, &other);
            changed
        };
        assert_eq!(
            [with(Set::keep), with(Set::remove), with(Set::add)],
            [set(&[63]), set(&[1, 128]), set(&[1, 63, 64, 128])]
        );
    }
}
