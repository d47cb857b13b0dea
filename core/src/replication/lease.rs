//! The lease of a primary: for how long it may show clients what it has, without a sign that no other one was granted.
//!
//! The lease bounds how stale the reads at an old primary that is cut off can be. No acknowledged commit depends on it.
//!
//! A sign is a commit of the primary's own that all archives of its rule have flushed, or the domain's word that its generation is the
//! current one. It renews the lease from the moment at which the commit was begun, or the domain was asked. The next primary was
//! granted after that moment, and if it is of the rule, it has stopped to follow after that moment. So it lets clients in only
//! once a whole lease has passed since it stopped to follow: then every earlier lease is over.
//!
//! Times are milliseconds of one clock that never goes back.

use super::{Rule, Ruling};
use crate::domain::ids::SetVersion;

/// The lease of a server that was promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    length_ms: u64,
    until: u64,
}

/// An own commit of a primary that was released without a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// When it was begun.
    pub begun: u64,
    /// The version of the rule that was in force then.
    pub version: SetVersion,
}

impl Lease {
    /// That of a server that has given no sign yet.
    pub fn new(length_ms: u64) -> Self {
        Self { length_ms, until: 0 }
    }

    /// Whether the server may let clients in. One that waits for no other archive, and will not, needs no lease: no other archive
    /// is in the sync set, so that no other server is granted.
    pub fn holds(&self, ruling: &Ruling, now: u64) -> bool {
        now < self.until || is_alone(ruling)
    }

    /// When it ends, unless it is renewed.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Takes note of an own commit. While the rule changes a commit may be released by a part of what either rule requires: it renews
    /// nothing.
    pub fn released(&mut self, commit: Released, ruling: &Ruling) {
        if ruling.coming.is_none() && ruling.in_force.version == commit.version {
            self.renew(commit.begun);
        }
    }

    /// Takes note of the domain's word that this generation is the current one. `asked` is when the domain was asked.
    pub fn vouched(&mut self, asked: u64) {
        self.renew(asked);
    }

    /// The rule is about to change, or to be made again. Up to now a server that waits for no other archive was the only one that
    /// could be granted.
    pub fn changes(&mut self, ruling: &Ruling, to: &Rule, now: u64) {
        if is_alone(ruling) && !to.members.is_empty() {
            self.renew(now);
        }
    }

    fn renew(&mut self, from: u64) {
        self.until = self.until.max(from.saturating_add(self.length_ms));
    }
}

fn is_alone(ruling: &Ruling) -> bool {
    ruling.in_force.members.is_empty() && ruling.coming.as_ref().is_none_or(|rule| rule.members.is_empty())
}

/// How long the next primary waits after it has stopped to follow: clocks of two machines may differ by a twentieth.
pub fn wait_ms(length_ms: u64) -> u64 {
    length_ms.saturating_add(length_ms.div_ceil(20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{ArchiveId, Generation};

    fn rule(version: u64, members: &[u64]) -> Rule {
        let members = members.iter().copied().map(ArchiveId).collect();
        Rule { generation: Generation(2), version: SetVersion(version), members }
    }

    fn released(begun: u64, version: u64) -> Released {
        Released { begun, version: SetVersion(version) }
    }

    #[test]
    fn a_commit_renews_the_lease_from_when_it_was_begun() {
        let (mut lease, ruling) = (Lease::new(2500), Ruling::begin(rule(4, &[2]), 100));
        assert!(!lease.holds(&ruling, 0), "no sign yet");
        lease.released(released(1000, 4), &ruling);
        assert!(lease.holds(&ruling, 3499));
        assert!(!lease.holds(&ruling, 3500));
        lease.released(released(900, 4), &ruling);
        assert_eq!(lease.until(), 3500, "an older one renews nothing");
    }

    #[test]
    fn a_commit_of_another_rule_or_of_a_change_renews_nothing() {
        let (mut lease, mut ruling) = (Lease::new(2500), Ruling::begin(rule(4, &[2]), 100));
        lease.released(released(1000, 3), &ruling);
        assert_eq!(lease.until(), 0);
        ruling.take(rule(5, &[2, 3]), 200);
        lease.released(released(1000, 4), &ruling);
        assert_eq!(lease.until(), 0, "archive 3 may already be the one that released it");
        lease.vouched(1000);
        assert_eq!(lease.until(), 3500, "the domain's word holds whatever the rule is");
    }

    #[test]
    fn a_primary_alone_needs_no_lease_until_another_archive_is_to_join() {
        let (mut lease, mut ruling) = (Lease::new(2500), Ruling::begin(rule(4, &[]), 100));
        assert!(lease.holds(&ruling, 9000));
        lease.changes(&ruling, &rule(5, &[2]), 9000);
        ruling.take(rule(5, &[2]), 200);
        assert!(lease.holds(&ruling, 11_499) && !lease.holds(&ruling, 11_500));
        lease.changes(&ruling, &rule(6, &[3]), 20_000);
        assert_eq!(lease.until(), 11_500, "it waits for one already");
    }

    #[test]
    fn the_next_primary_waits_longer_than_a_lease() {
        assert_eq!([0, 1, 2500].map(wait_ms), [0, 2, 2625]);
    }
}
