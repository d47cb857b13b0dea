//! The addresses of pods: `127.X.Y.2` to `127.X.Y.254` in rotation, so that one that was let go is not met again soon.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// The first and the last number for pods; `.1` is the machine itself and the API server.
const FIRST: u8 = 2;
const LAST: u8 = 254;

/// Which addresses are taken.
#[derive(Debug)]
pub(super) struct Addresses {
    subnet: [u8; 3],
    next: u8,
    taken: BTreeSet<u8>,
}

impl Addresses {
    /// Makes those of a subnet.
    pub fn new(subnet: [u8; 3]) -> Self {
        Self { subnet, next: FIRST, taken: BTreeSet::new() }
    }

    /// The machine's own.
    pub fn host(&self) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, 1)
    }

    /// Takes the one that was free for longest; `None` if all are taken.
    pub fn take(&mut self) -> Option<Ipv4Addr> {
        let number = (self.next..=LAST).chain(FIRST..self.next).find(|number| !self.taken.contains(number))?;
        self.taken.insert(number);
        self.next = if number == LAST { FIRST } else { number + 1 };
        let [a, b, c] = self.subnet;
        Some(Ipv4Addr::new(a, b, c, number))
    }

    /// Lets one go.
    pub fn free(&mut self, address: Ipv4Addr) {
        self.taken.remove(&address.octets()[3]);
    }
}

#[cfg(test)]
mod tests {
    use super::Addresses;

    #[test]
    fn an_address_comes_back_only_after_all_others() {
        let mut addresses = Addresses::new([127, 77, 0]);
        let first = addresses.take().unwrap();
        assert_eq!((first.to_string(), addresses.host().to_string()), ("127.77.0.2".into(), "127.77.0.1".into()));
        addresses.free(first);
        for _ in 0..252 {
            let next = addresses.take().unwrap();
            assert_ne!(next, first);
            addresses.free(next);
        }
        assert_eq!(addresses.take(), Some(first));
        assert!((0..252).all(|_| addresses.take().is_some()));
        assert_eq!(addresses.take(), None, "all are taken");
    }
}
