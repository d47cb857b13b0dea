//! What operators are told about the voters: warnings about their placement, and what each server waits for.

use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::scaling::{Scaling, scaled};
use kaa_core::membership::standing::{self, Standing, Wanted, awaited};
use kaa_core::membership::warnings::{self, Electorate, warnings};
use std::collections::{BTreeMap, BTreeSet};

/// The warnings about these voters' zones; `?` is an unknown zone.
fn found(zones: &[&str], wanted: Option<u32>) -> Vec<String> {
    let voter = |(ordinal, zone): (usize, &&str)| {
        (ServerId::new(format!("admin-{ordinal}")), (*zone != "?").then(|| (*zone).to_owned()))
    };
    let electorate = Electorate { voters: zones.iter().enumerate().map(voter).collect(), wanted };
    warnings(&electorate).iter().map(|finding| format!("{}: {finding}", finding.code())).collect()
}

#[test]
fn an_odd_number_in_several_zones_is_no_news() {
    for (zones, wanted) in [
        (&["a", "b", "c"][..], Some(3)),
        (&["a", "a", "b", "b", "c"], Some(5)),
        (&["?", "?", "?"], None),
        (&["a"], Some(1)),
        (&["a"], Some(0)),
        (&[], Some(3)),
    ] {
        assert_eq!(found(zones, wanted), Vec::<String>::new(), "{zones:?}");
    }
}

#[test]
fn an_even_number_is_said_with_what_it_costs() {
    assert_eq!(
        found(&["a", "b"], Some(2)),
        [
            "even_voters: 2 voters are an even number: when one is lost nothing is committed until it is back, or the StatefulSet is \
         scaled down to the other"
        ]
    );
    assert_eq!(
        found(&["a", "b", "c", "d"], Some(4)),
        ["even_voters: 4 voters are an even number: 1 of them can be lost, as of 3"]
    );
    assert_eq!(found(&["?"; 6], Some(6)), ["even_voters: 6 voters are an even number: 2 of them can be lost, as of 5"]);
}

#[test]
fn a_zone_with_a_majority_is_named() {
    let words = "zone_majority: zone a holds 2 of the 3 voters: without it nothing is committed";
    assert_eq!(found(&["a", "b", "a"], Some(3)), [words]);
    assert_eq!(found(&["a", "?", "a"], Some(3)), [words], "two known ones are enough");
    assert_eq!(found(&["a", "?", "?"], Some(3)), Vec::<String>::new(), "of what is not known nothing is said");
    let two = found(&["a", "a"], Some(2));
    assert!(two.iter().any(|line| line.starts_with("zone_majority: zone a holds 2 of the 2")), "{two:?}");
}

#[test]
fn a_voter_alone_is_said_where_more_are_wanted() {
    assert_eq!(
        found(&["a"], Some(3)),
        [
            "single_voter: admin-0 votes alone, though the StatefulSet wants 3 servers: what is committed is on one disk only"
        ]
    );
}

/// An ordinary voter that is wanted and answers.
fn voter() -> Standing {
    Standing {
        unscheduled: false,
        votes: true,
        wanted: Some(Wanted { replicas: 3, this: true }),
        answers: true,
        behind: None,
        led: true,
        epoch: MembershipEpoch(2),
        says: Some((MembershipEpoch(2), RaftId(7))),
        known: RaftId(7),
    }
}

#[test]
fn a_server_that_is_as_it_should_be_waits_for_nothing() {
    assert_eq!(awaited(&voter()), None);
    assert_eq!(awaited(&Standing { wanted: None, ..voter() }), None, "a voter, and it is not known who is wanted");
    assert_eq!(awaited(&Standing { says: None, ..voter() }), None);
    assert_eq!(awaited(&Standing { led: false, ..voter() }), None, "that there is no leader is said of the group");
}

#[test]
fn the_reason_is_the_first_one_that_applies() {
    let (three, unwanted) = (Some(Wanted { replicas: 3, this: true }), Some(Wanted { replicas: 2, this: false }));
    let (none, one) = (Some(Wanted { replicas: 0, this: false }), Some(Wanted { replicas: 1, this: false }));
    let learner = || Standing { votes: false, ..voter() };
    let older = Some((MembershipEpoch(1), RaftId(7)));
    let other = Some((MembershipEpoch(2), RaftId(8)));
    for (standing, words) in [
        (Standing { answers: false, ..voter() }, "voter_silent: it votes, but does not answer"),
        (
            Standing { wanted: unwanted, ..voter() },
            "voter_leaves: it still votes, and will be evicted: the StatefulSet wants 2 servers",
        ),
        (
            Standing { wanted: one, led: false, answers: false, ..voter() },
            "voter_leaves: it still votes, and will be evicted, once there is a leader: the StatefulSet wants 1 server",
        ),
        (
            Standing { wanted: none, ..voter() },
            "scaled_to_zero: the StatefulSet wants no server: the voters keep their votes",
        ),
        (
            Standing { wanted: unwanted, answers: false, ..learner() },
            "evicted: it does not vote, since the StatefulSet wants 2 servers; after a scale-up it votes again with its \
             volume",
        ),
        (
            Standing { wanted: three, answers: false, behind: Some(500), ..learner() },
            "learner_silent: it does not vote, since it does not answer",
        ),
        (
            Standing { behind: Some(500), ..learner() },
            "not_caught_up: it does not vote before it has caught up: it lacks 500 entries",
        ),
        (learner(), "will_vote: it has caught up, and will vote"),
        (Standing { led: false, ..learner() }, "will_vote: it has caught up, and will vote, once there is a leader"),
        (
            Standing { wanted: None, ..learner() },
            "wanted_unknown: it does not vote, and it is not known whether the StatefulSet wants it",
        ),
        (
            Standing { says: older, ..learner() },
            "behind_epoch: its log is of epoch 1, and epoch 2 was founded: it retires that log and joins with an empty one",
        ),
        (
            Standing { says: other, ..voter() },
            "another_log: it holds log 8, but the domain knows log 7: it joins with the log that it holds, and the other \
             one never votes again",
        ),
        (Standing { says: older, answers: false, ..voter() }, "voter_silent: it votes, but does not answer"),
    ] {
        let said = awaited(&standing).map(|awaited| format!("{}: {awaited}", awaited.code()));
        assert_eq!(said.as_deref(), Some(words), "{standing:?}");
    }
}

#[test]
fn every_word_is_listed_once() {
    let words: BTreeSet<&str> = warnings::CODES.into_iter().chain(standing::WAITS.map(|wait| wait.code)).collect();
    assert_eq!(words.len(), warnings::CODES.len() + standing::WAITS.len());
}

/// The effect of scaling `admin` to `replicas`, with these voters and these servers that do not vote.
fn comes(replicas: u32, halves: &[&[u64]], learners: &[u64]) -> Vec<String> {
    let halves: Vec<BTreeSet<RaftId>> = halves.iter().map(|half| half.iter().map(|id| RaftId(*id)).collect()).collect();
    let logs = halves.iter().flatten().map(|log| log.0).chain(learners.iter().copied());
    let servers: BTreeMap<ServerId, RaftId> =
        logs.map(|log| (ServerId::new(format!("admin-{log}")), RaftId(log))).collect();
    let scaling = Scaling { stateful_set: "admin".to_owned(), first_ordinal: 0, replicas };
    scaled(&scaling, &halves, &servers, false).iter().map(ToString::to_string).collect()
}

#[test]
fn who_would_leave_and_what_their_loss_would_mean_is_told_before() {
    let lost = "if those that leave were lost all at once before they are evicted";
    let even = "then 2 voters are an even number: when one is lost nothing is committed until it is back, or the \
                StatefulSet is scaled down to the other";
    let evicted =
        |n: u32| format!("admin-{n} is evicted: it does not vote any more, and its engines move to other servers");
    assert_eq!(
        comes(1, &[&[0, 1]], &[]),
        [
            evicted(1),
            format!(
                "{lost}, 1 of 2 voters would be left, half of them, and would continue in a new epoch by themselves, if all of these \
                 answer"
            )
        ]
    );
    assert_eq!(
        comes(2, &[&[0, 1, 2]], &[]),
        [evicted(2), format!("{lost}, 2 of 3 voters would be left, a majority, and would continue"), even.to_owned()]
    );
    assert_eq!(
        comes(1, &[&[0, 1, 2]], &[]),
        [
            evicted(1),
            evicted(2),
            format!(
                "{lost}, 1 of 3 voters would be left, too few to know what was committed: an operator would have to bring some \
                 back, or to give up what only they have"
            )
        ]
    );
}

#[test]
fn who_would_come_back_and_who_would_join_is_told_before() {
    assert_eq!(
        comes(3, &[&[0]], &[1]),
        [
            "admin-1 votes again once it has caught up, with the volume it has",
            "admin-2 joins with an empty log, and votes once it has caught up"
        ]
    );
    assert_eq!(comes(3, &[&[0, 1, 2]], &[]), Vec::<String>::new(), "as it is");
    assert_eq!(
        comes(0, &[&[0, 1, 2]], &[]),
        ["no admin server would be left; none is evicted: the voters keep their votes until they are back"]
    );
}
