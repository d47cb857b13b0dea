//! When a new epoch begins without a majority of the old one, and which server founds it, case by case.

use kaa_core::domain::ids::{RaftId, ServerId};
use kaa_core::membership::logs::{block, commit};
use kaa_core::membership::quorum_override::{Call, Position, Sealed, Stranded, Verdict};
use kaa_core::membership::quorum_override::{called_for, may_found, outlook};
use std::collections::BTreeSet;

fn ids(ids: &[u64]) -> BTreeSet<RaftId> {
    ids.iter().map(|id| RaftId(*id)).collect()
}

fn halves(halves: &[&[u64]]) -> Vec<BTreeSet<RaftId>> {
    halves.iter().map(|half| ids(half)).collect()
}

#[test]
fn half_of_an_even_number_blocks_and_cannot_commit() {
    for (voters, left, commits, blocks) in [
        (&[1, 2][..], &[1][..], false, true),
        (&[1, 2, 3, 4], &[1, 2], false, true),
        (&[1, 2, 3, 4, 5, 6], &[1, 2, 3], false, true),
        (&[1, 2, 3], &[1], false, false),
        (&[1, 2, 3, 4, 5], &[1, 2], false, false),
        (&[1, 2, 3, 4], &[1], false, false),
        (&[1, 2, 3], &[1, 2], true, true),
        (&[1], &[1], true, true),
        (&[1], &[2], false, false),
    ] {
        let (half, left) = (halves(&[voters]), ids(left));
        assert_eq!((commit(&half, &left), block(&half, &left)), (commits, blocks), "{left:?} of {voters:?}");
    }
    assert!(!commit(&halves(&[]), &ids(&[1])) && !block(&halves(&[]), &ids(&[1])), "nobody votes");
}

#[test]
fn each_half_counts_by_itself() {
    let growing = halves(&[&[1], &[1, 2, 3]]);
    assert_eq!(
        called_for(&growing, &ids(&[1])),
        Call::Operator,
        "counterexample 6: 2 and 3 may have gone on without it"
    );
    assert_eq!(called_for(&growing, &ids(&[1, 2])), Call::Majority);
    let shrinking = halves(&[&[1, 2, 3, 4], &[1, 2]]);
    assert_eq!(
        called_for(&shrinking, &ids(&[1, 2])),
        Call::Override,
        "a majority of the new half, half of the old one"
    );
    assert_eq!(called_for(&halves(&[&[1, 2, 3], &[1]]), &ids(&[1])), Call::Operator);
}

#[test]
fn a_majority_waits_and_too_few_ask_a_person() {
    let call = |voters: &[u64], wanted: &[u64]| called_for(&halves(&[voters]), &ids(wanted));
    assert_eq!(call(&[1, 2], &[1]), Call::Override, "2 to 1");
    assert_eq!(call(&[1, 2, 3, 4], &[1, 2]), Call::Override, "4 to 2");
    assert_eq!(call(&[1, 2, 3], &[1, 2]), Call::Majority, "3 to 2");
    assert_eq!(call(&[1, 2, 3], &[1]), Call::Operator, "3 to 1");
    assert_eq!(call(&[1, 2, 3, 4, 5], &[1, 2, 3]), Call::Majority, "5 to 3 with two of the three away: they come back");
    assert_eq!(call(&[1, 2, 3, 4, 5], &[1, 2]), Call::Operator, "5 to 2");
    assert_eq!(call(&[1, 2], &[1, 9]), Call::Override, "counterexample 2: the log of the second server was lost");
}

/// A sealed log: id, term, index, voters, wanted.
fn sealed(id: u64, term: u64, index: u64, voters: &[&[u64]], wanted: bool) -> Sealed<BTreeSet<RaftId>> {
    Sealed { id: ids(&[id]), last: Position { term, index }, halves: halves(voters), wanted }
}

#[test]
fn a_lone_half_founds_by_itself() {
    assert_eq!(may_found(&sealed(1, 1, 5, &[&[1, 2]], true), &[]), Verdict::Found);
    assert_eq!(
        may_found(&sealed(1, 1, 5, &[&[1, 2]], false), &[]),
        Verdict::Unwanted,
        "nobody made it the one that stays"
    );
}

#[test]
fn enough_have_to_seal_and_the_best_log_founds() {
    let four: &[&[u64]] = &[&[1, 2, 3, 4]];
    let (one, two) = (sealed(1, 1, 5, four, true), sealed(2, 1, 6, four, true));
    assert_eq!(may_found(&one, &[]), Verdict::TooFew);
    assert_eq!(may_found(&one, std::slice::from_ref(&two)), Verdict::Yield, "the other has more");
    assert_eq!(may_found(&two, std::slice::from_ref(&one)), Verdict::Found);
    let later = sealed(1, 2, 4, four, true);
    assert_eq!(may_found(&later, &[two]), Verdict::Found, "a later term outweighs a longer log");
    assert_eq!(may_found(&one, &[sealed(2, 1, 5, four, true)]), Verdict::Found, "as good: the swap decides who");
}

#[test]
fn a_better_log_that_is_not_wanted_counts_for_nothing() {
    let four: &[&[u64]] = &[&[1, 2, 3, 4]];
    let (one, leaver) = (sealed(1, 1, 5, four, true), sealed(3, 1, 9, four, false));
    assert_eq!(may_found(&one, std::slice::from_ref(&leaver)), Verdict::TooFew, "what it has may be committed");
    let two = sealed(2, 1, 5, four, true);
    assert_eq!(may_found(&one, &[two, leaver]), Verdict::Found, "these two block: it is not");
}

#[test]
fn a_learner_may_found_but_does_not_block() {
    let voters: &[&[u64]] = &[&[1, 2]];
    let learner = sealed(3, 1, 9, voters, true);
    assert_eq!(may_found(&learner, &[]), Verdict::TooFew);
    assert_eq!(
        may_found(&learner, &[sealed(1, 1, 5, voters, true)]),
        Verdict::Found,
        "the newest log, of one just voted out"
    );
}

/// The message of an agent without a leader. `known`, `answered`: server and log.
fn told(voters: &[&[u64]], known: &[(&str, u64)], answered: &[(&str, u64)], wanted: &[&str]) -> String {
    let pairs =
        |list: &[(&str, u64)]| list.iter().map(|(server, log)| (ServerId::from(*server), RaftId(*log))).collect();
    let wanted = wanted.iter().map(|server| ServerId::from(*server)).collect();
    outlook(&Stranded { halves: halves(voters), known: pairs(known), answered: pairs(answered), wanted }).to_string()
}

const FOUR: &[(&str, u64)] = &[("admin-0", 1), ("admin-1", 2), ("admin-2", 3), ("admin-3", 4)];

#[test]
fn an_agent_without_a_leader_says_what_it_waits_for() {
    let zero = &[("admin-0", 1)];
    assert_eq!(
        told(&[&[1, 2, 3]], &FOUR[..3], zero, &["admin-0", "admin-1", "admin-2"]),
        "there is no leader until more of the voters answer: admin-1, admin-2"
    );
    assert_eq!(
        told(&[&[1, 2]], &FOUR[..2], zero, &["admin-0"]),
        "half of the voters are left and continue in a new epoch"
    );
    assert_eq!(
        told(&[&[1, 2, 3, 4]], FOUR, zero, &["admin-0", "admin-1"]),
        "half of the voters are wanted and could continue if these answered: admin-1"
    );
    assert_eq!(
        told(&[&[1, 2, 3]], &FOUR[..3], zero, &["admin-0"]),
        "too few of the voters are wanted to know what was committed: scale the StatefulSet up so that admin-1, admin-2 come \
         back, or give up what only the others have with kaa recover --accept-data-loss"
    );
}

#[test]
fn an_empty_log_knows_no_voters_that_could_be_too_few() {
    for voters in [&[][..], &[&[][..]]] {
        let words = told(voters, &[], &[("admin-1", 2)], &["admin-0", "admin-1"]);
        assert!(words.starts_with("this server's log is empty, and waits for a leader of its epoch"), "{words}");
        assert!(words.contains("kaa recover --dry-run lists the logs of earlier epochs"), "{words}");
    }
}

#[test]
fn a_server_counts_by_the_log_that_it_says_it_holds() {
    let lost = &[("admin-0", 1), ("admin-1", 9)];
    let both = &["admin-0", "admin-1"];
    let words = told(&[&[1, 2]], &FOUR[..2], lost, both);
    assert_eq!(words, "half of the voters are left and continue in a new epoch", "counterexample 2");
    let third = &[("admin-0", 1), ("admin-1", 8), ("admin-2", 9)];
    assert_eq!(
        told(&[&[1, 2, 3]], &FOUR[..3], third, &["admin-0", "admin-1", "admin-2"]),
        "too few of the voters are wanted to know what was committed: give up what only the others have with kaa recover \
         --accept-data-loss (2 volumes are lost)"
    );
}
