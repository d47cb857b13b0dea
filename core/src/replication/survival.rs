//! Which pods of a database can be lost, with their volumes, and what that would mean: from the record and from which servers are
//! up, nothing else.

use super::Replication;
use crate::domain::ids::ArchiveId;
use std::collections::{BTreeMap, BTreeSet};
use strum::IntoStaticStr;

/// Of a database with more archives, only the loss of single pods is listed: nothing reads a list of all pairs.
const PAIRS_UP_TO: usize = 4;

/// What the loss of some pods would mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Loss {
    /// The primary continues, or another server does by itself, and nothing is lost.
    Continues,
    /// Nothing is lost, and another server can continue once an operator grants it: the primary's is among them.
    NeedsFailover,
    /// Nothing is lost, and nothing is written until another server is up.
    Waits,
    /// Commits that count are lost.
    Loses,
}

/// What the losses of one pod or two would mean: each of these sets is one loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survival {
    /// After these the primary continues, or another server does by itself.
    pub continues: Vec<BTreeSet<ArchiveId>>,
    /// After these an operator has to fail over.
    pub needs_failover: Vec<BTreeSet<ArchiveId>>,
    /// After these nothing is written until another server is up.
    pub waits: Vec<BTreeSet<ArchiveId>>,
    /// The smallest loss that loses commits that count: that of the whole sync set.
    pub loses: BTreeSet<ArchiveId>,
    /// What the loss of all pods in a zone would mean, of each zone with several, if there is another zone.
    pub zones: BTreeMap<String, Loss>,
}

/// What the loss of these archives would mean. `up` are the archives whose servers can take part, `blocks` is whether a primary
/// that no standby can confirm has its commits wait, `automatic` whether the agents begin a failover.
pub fn loss_of(
    lost: &BTreeSet<ArchiveId>,
    record: &Replication,
    up: &BTreeSet<ArchiveId>,
    blocks: bool,
    automatic: bool,
) -> Loss {
    if record.sync_set.is_subset(lost) {
        return Loss::Loses;
    }
    let left: BTreeSet<ArchiveId> = up.difference(lost).copied().collect();
    if left.contains(&record.primary) {
        // A standby outside the set joins it, so any other server is enough.
        return if blocks && left.len() < 2 { Loss::Waits } else { Loss::Continues };
    }
    // The set has at least two members then. With `block` its only one opens when a second server has joined.
    match left.iter().any(|archive| record.sync_set.contains(archive)) {
        true if blocks && left.len() < 2 => Loss::Waits,
        true if automatic && up.contains(&record.primary) => Loss::Continues,
        true => Loss::NeedsFailover,
        false => Loss::Waits,
    }
}

/// What the losses of one pod or two of `archives` would mean, in that order; `archives` has those of the sync set.
pub fn survival(
    archives: &[ArchiveId],
    record: &Replication,
    up: &BTreeSet<ArchiveId>,
    blocks: bool,
    automatic: bool,
) -> Survival {
    let mut found = Survival { loses: record.sync_set.clone(), ..Survival::default() };
    let single = archives.iter().map(|archive| BTreeSet::from([*archive]));
    let pairs = archives.iter().enumerate().flat_map(|(at, one)| {
        let others = archives[at + 1..].iter().filter(|_| archives.len() <= PAIRS_UP_TO);
        others.map(|other| BTreeSet::from([*one, *other]))
    });
    for lost in single.chain(pairs).filter(|lost| lost.len() < archives.len()) {
        match loss_of(&lost, record, up, blocks, automatic) {
            Loss::Continues => found.continues.push(lost),
            Loss::NeedsFailover => found.needs_failover.push(lost),
            Loss::Waits => found.waits.push(lost),
            Loss::Loses => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Generation;

    fn set(archives: &[u64]) -> BTreeSet<ArchiveId> {
        archives.iter().copied().map(ArchiveId).collect()
    }

    /// Archive 1 is the primary's.
    fn record(sync_set: &[u64]) -> Replication {
        Replication { sync_set: set(sync_set), ..Replication::begin_at(ArchiveId(1), Generation(2)) }
    }

    /// As `kaa show database` has it, with numbers for pods.
    fn shown(archives: &[u64], sync_set: &[u64], up: &[u64], blocks: bool) -> String {
        with(archives, sync_set, up, blocks, false)
    }

    fn with(archives: &[u64], sync_set: &[u64], up: &[u64], blocks: bool, automatic: bool) -> String {
        let archives: Vec<ArchiveId> = archives.iter().copied().map(ArchiveId).collect();
        let found = survival(&archives, &record(sync_set), &set(up), blocks, automatic);
        let one = |lost: &BTreeSet<ArchiveId>| lost.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        let all = |losses: &[BTreeSet<ArchiveId>]| losses.iter().map(one).collect::<Vec<_>>().join(" ");
        let Survival { continues, needs_failover, waits, loses, zones: _ } = &found;
        format!(
            "continues {}; failover {}; waits {}; loses {}",
            all(continues),
            all(needs_failover),
            all(waits),
            one(loses)
        )
    }

    #[test]
    fn three_pods_and_a_set_of_two_lose_nothing_while_one_of_the_set_is_left() {
        let text = "continues 2 3 2+3; failover 1 1+3; waits ; loses 1+2";
        assert_eq!(shown(&[1, 2, 3], &[1, 2], &[1, 2, 3], false), text);
    }

    #[test]
    fn with_automatic_failover_the_loss_of_the_primary_needs_no_operator() {
        let text = "continues 1 2 3 1+3 2+3; failover ; waits ; loses 1+2";
        assert_eq!(with(&[1, 2, 3], &[1, 2], &[1, 2, 3], false, true), text);
        let away = "continues ; failover 1 3 1+3; waits 2 2+3; loses 1+2";
        assert_eq!(
            with(&[1, 2, 3], &[1, 2], &[2, 3], false, true),
            away,
            "it is away already: something holds a failover up"
        );
    }

    #[test]
    fn a_set_of_three_outlives_any_two() {
        let text = "continues 2 3 2+3; failover 1 1+2 1+3; waits ; loses 1+2+3";
        assert_eq!(shown(&[1, 2, 3], &[1, 2, 3], &[1, 2, 3], false), text);
    }

    #[test]
    fn a_primary_alone_in_its_set_must_not_be_lost() {
        assert_eq!(shown(&[1, 2, 3], &[1], &[1, 2, 3], false), "continues 2 3 2+3; failover ; waits ; loses 1");
        assert_eq!(shown(&[1], &[1], &[1], false), "continues ; failover ; waits ; loses 1");
    }

    #[test]
    fn with_block_a_server_alone_has_its_commits_wait() {
        let text = "continues 2 3; failover 1; waits 1+3 2+3; loses 1+2";
        assert_eq!(shown(&[1, 2, 3], &[1, 2], &[1, 2, 3], true), text);
        assert_eq!(shown(&[1, 2], &[1, 2], &[1, 2], true), "continues ; failover ; waits 1 2; loses 1+2");
    }

    /// What is recorded of a server that is away is on its volume still.
    #[test]
    fn a_member_that_is_away_keeps_the_data_and_cannot_continue() {
        let text = "continues 2 3 2+3; failover ; waits 1 1+3; loses 1+2";
        assert_eq!(shown(&[1, 2, 3], &[1, 2], &[1, 3], false), text);
    }

    #[test]
    fn while_the_primary_is_away_every_loss_needs_an_operator() {
        let text = "continues ; failover 1 3 1+3; waits 2 2+3; loses 1+2";
        assert_eq!(shown(&[1, 2, 3], &[1, 2], &[2, 3], false), text);
    }

    #[test]
    fn of_many_pods_only_single_ones_are_listed() {
        let text = "continues 2 3 4 5; failover 1; waits ; loses 1+2";
        assert_eq!(shown(&[1, 2, 3, 4, 5], &[1, 2], &[1, 2, 3, 4, 5], false), text);
    }
}
