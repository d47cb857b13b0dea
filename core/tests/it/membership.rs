//! Case by case: the gate, what a running agent concludes from the anchor, and the leader's next change.

use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::change::{Reason, Step};
use kaa_core::membership::leaving::{Ending, Presence};
use kaa_core::membership::{
    Anchor, Change, Gate, LocalLog, Member, Membership, Refusal, Seen, Traces, Waiting, gate, leaving, next_change,
    seen, takes_a_vote,
};
use std::collections::{BTreeMap, BTreeSet};

fn anchor(epoch: u64, founder: u64) -> Anchor {
    Anchor { domain: "D1".into(), epoch: MembershipEpoch(epoch), founder: RaftId(founder), lossy: false }
}

fn empty(id: u64) -> LocalLog {
    LocalLog { domain: None, epoch: MembershipEpoch(0), raft_id: RaftId(id), sealed: false }
}

fn log(domain: &str, epoch: u64, id: u64) -> LocalLog {
    LocalLog { domain: Some(domain.into()), epoch: MembershipEpoch(epoch), raft_id: RaftId(id), sealed: false }
}

fn first() -> Traces {
    Traces { first: true, ..Traces::default() }
}

#[test]
fn without_an_anchor_only_the_first_server_founds_and_only_on_an_empty_log() {
    assert_eq!(gate(None, &empty(7), &first()), Gate::CreateAnchor);
    assert_eq!(gate(None, &empty(8), &Traces::default()), Gate::Wait(Waiting::ForTheFirst));
    let missing = Gate::Wait(Waiting::AnchorMissing("D1".into(), MembershipEpoch(1)));
    assert_eq!(
        gate(None, &log("D1", 1, 7), &first()),
        missing,
        "an anchor that vanished is not a domain that never was"
    );
}

#[test]
fn an_empty_first_server_founds_nothing_where_something_speaks_for_a_domain() {
    let lease = Traces { lease: Some("kaa-default-resync".to_owned()), ..first() };
    let waits = gate(None, &empty(7), &lease);
    assert_eq!(
        waits,
        Gate::Wait(Waiting::Lease("kaa-default-resync".to_owned())),
        "agents of a domain made that lease"
    );
    let answered = Traces { answered: vec![("admin-1".into(), "D1".into())], ..first() };
    assert_eq!(gate(None, &empty(7), &answered), Gate::Wait(Waiting::Answered("admin-1".into(), "D1".into())));
}

#[test]
fn whoever_the_anchor_names_founds_also_after_a_crash_in_between() {
    assert_eq!(gate(Some(&anchor(1, 7)), &empty(7), &first()), Gate::Found(anchor(1, 7)));
    assert_eq!(gate(Some(&anchor(2, 7)), &log("D1", 1, 7), &first()), Gate::Found(anchor(2, 7)));
    let sealed = LocalLog { sealed: true, ..log("D1", 1, 7) };
    assert_eq!(gate(Some(&anchor(2, 7)), &sealed, &first()), Gate::Found(anchor(2, 7)), "counterexample 1");
    assert_eq!(gate(Some(&anchor(1, 7)), &empty(7), &Traces::default()), Gate::Found(anchor(1, 7)), "counterexample 5");
}

#[test]
fn a_log_of_the_anchors_epoch_starts_unless_it_is_sealed() {
    assert_eq!(gate(Some(&anchor(1, 7)), &log("D1", 1, 8), &Traces::default()), Gate::Start);
    let sealed = LocalLog { sealed: true, ..log("D1", 1, 8) };
    let goes_on = gate(Some(&anchor(1, 7)), &sealed, &Traces::default());
    assert_eq!(
        goes_on,
        Gate::Override,
        "counterexample 4: an override that was begun is finished, whatever is wanted now"
    );
}

#[test]
fn a_log_behind_the_anchor_is_retired_and_joins_afresh() {
    let wiped = gate(Some(&anchor(1, 7)), &empty(9), &first());
    assert_eq!(wiped, Gate::Join(anchor(1, 7)), "the first server lost its volume");
    let behind = gate(Some(&anchor(2, 7)), &log("D1", 1, 8), &Traces::default());
    assert_eq!(behind, Gate::Join(anchor(2, 7)), "counterexample 10: never adopt an epoch and keep the log");
    let sealed = LocalLog { sealed: true, ..log("D1", 1, 8) };
    assert_eq!(
        gate(Some(&anchor(2, 7)), &sealed, &Traces::default()),
        Gate::Join(anchor(2, 7)),
        "another one was faster"
    );
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let another = Refusal::AnotherDomain { mine: "D0".into(), anchor: "D1".into() };
    assert_eq!(gate(Some(&anchor(1, 7)), &log("D0", 1, 7), &first()), Gate::Refuse(another));
    let behind = Refusal::AnchorBehind { mine: MembershipEpoch(3), anchor: MembershipEpoch(2) };
    assert_eq!(gate(Some(&anchor(2, 7)), &log("D1", 3, 7), &first()), Gate::Refuse(behind));
}

#[test]
fn a_running_agent_stops_for_a_later_epoch_and_for_nothing_else() {
    let mine = log("D1", 2, 8);
    assert_eq!(seen(Some(&anchor(2, 7)), &mine), Seen::Mine);
    assert_eq!(seen(Some(&anchor(3, 7)), &mine), Seen::Newer);
    assert_eq!(seen(None, &mine), Seen::Missing, "deleted by hand: it goes on and says so");
    let back = Refusal::AnchorBehind { mine: MembershipEpoch(2), anchor: MembershipEpoch(1) };
    assert_eq!(seen(Some(&anchor(1, 7)), &mine), Seen::Contradiction(back), "a restored API server turned it back");
    let another = Refusal::AnotherDomain { mine: "D0".into(), anchor: "D1".into() };
    assert_eq!(seen(Some(&anchor(9, 7)), &log("D0", 1, 8)), Seen::Contradiction(another));
}

/// `halves`: the voter sets; `members`: log id, server, whether it has caught up. The first log leads.
fn membership(halves: &[&[u64]], members: &[(u64, &str, bool)]) -> Membership {
    Membership {
        leader: RaftId(members[0].0),
        halves: halves.iter().map(|half| half.iter().map(|id| RaftId(*id)).collect()).collect(),
        members: members
            .iter()
            .map(|(id, server, caught_up)| (RaftId(*id), Member { server: (*server).into(), caught_up: *caught_up }))
            .collect(),
        settled: true,
    }
}

#[test]
fn a_server_ends_for_good_only_where_others_are_wanted() {
    for (ordinal, wanted, expected) in [
        (2, 0..1, Ending::ForGood),
        (1, 0..1, Ending::ForGood),
        (0, 0..1, Ending::Restart),
        (2, 0..3, Ending::Restart),
        (0, 0..0, Ending::WithAll),
        (2, 0..0, Ending::WithAll),
        // With `spec.ordinals.start`.
        (4, 5..7, Ending::ForGood),
        (5, 5..7, Ending::Restart),
    ] {
        assert_eq!(leaving::ending(ordinal, &wanted), expected, "{ordinal} of {wanted:?}");
    }
}

#[test]
fn of_several_that_end_at_once_so_many_go_first_as_the_others_can_spare() {
    // A letter for each server: T is there, E ends, any other is missing.
    let presence = |moment: &str| -> BTreeMap<RaftId, Presence> {
        let presence = moment.chars().map(|letter| match letter {
            'T' => Presence::There,
            'E' => Presence::Ends,
            _ => Presence::Missing,
        });
        (1..).map(RaftId).zip(presence).collect()
    };
    let members: Vec<_> = (0..5).map(|i| (i + 1, format!("admin-{i}"), true)).collect();
    let members: Vec<_> = members.iter().map(|(id, server, caught_up)| (*id, server.as_str(), *caught_up)).collect();
    let who_may_end = |halves: &[&[u64]], moment: &str| {
        let (membership, presence) = (membership(halves, &members), presence(moment));
        let ends = presence.iter().filter(|(_, presence)| **presence == Presence::Ends);
        let ends = ends.filter(|(me, _)| leaving::may_end(&membership, **me, &presence));
        ends.map(|(me, _)| membership.members[me].server.to_string()).collect::<Vec<_>>().join(" ")
    };
    for (moment, expected) in [
        ("TTE", "admin-2"),
        ("ETT", "admin-0"),
        ("TEE", "admin-2"),
        ("TEm", ""),
        ("TET", "admin-1"),
        ("EEE", "admin-2"),
        ("EEm", ""),
        ("EET", "admin-1"),
        ("EmT", ""),
        ("TTTEE", "admin-3 admin-4"),
        ("TTEEE", "admin-3 admin-4"),
        ("TTEmm", ""),
        ("TTEmT", "admin-2"),
        // Every vote is needed: the group waits for each server, whenever it ends.
        ("TE", "admin-1"),
        ("EE", "admin-0 admin-1"),
        ("E", "admin-0"),
        ("EEEE", "admin-3"),
    ] {
        let voters: Vec<u64> = (1..=moment.len() as u64).collect();
        assert_eq!(who_may_end(&[&voters], moment), expected, "{moment}");
    }
    assert_eq!(who_may_end(&[&[1, 2, 3], &[1, 2, 3, 4, 5]], "TmETT"), "", "one half would be left without a majority");
    assert_eq!(who_may_end(&[&[1, 2, 3], &[1, 2, 3, 4, 5]], "TTETT"), "admin-2");
}

#[test]
fn a_server_is_voted_out_once_that_is_committed() {
    let members = &[(1, "a-0", true), (2, "a-1", true)];
    let out = |halves: &[&[u64]]| leaving::is_voted_out(&membership(halves, members), RaftId(2));
    assert!(out(&[&[1]]));
    assert!(!out(&[&[1, 2]]));
    assert!(!out(&[&[1, 2], &[1]]), "half way its vote is still needed");
    assert!(!out(&[&[1], &[1, 2]]), "it is about to come back");
    assert!(!out(&[]), "nothing is known");
    let told = Membership { settled: false, ..membership(&[&[1]], members) };
    assert!(!leaving::is_voted_out(&told, RaftId(2)), "what is not committed may be taken back");
}

fn current(logs: &[(&str, u64)]) -> BTreeMap<ServerId, RaftId> {
    logs.iter().map(|(server, id)| ((*server).into(), RaftId(*id))).collect()
}

fn ids(ids: &[u64]) -> BTreeSet<RaftId> {
    ids.iter().map(|id| RaftId(*id)).collect()
}

/// The next change of a group of three servers whose logs are 1, 2 and 3.
fn next(membership: &Membership, wanted: &[&str]) -> Change {
    let wanted: BTreeSet<ServerId> = wanted.iter().map(|server| (*server).into()).collect();
    next_change(
        membership,
        &current(&[("admin-0", 1), ("admin-1", 2), ("admin-2", 3)]),
        Some(&wanted),
        &BTreeSet::new(),
    )
}

fn voters(voters: &[u64], why: Reason) -> Change {
    Change::Step(Step::Voters(ids(voters), why))
}

fn wait(why: Reason) -> Change {
    Change::Step(Step::Wait(why))
}

const ALL: &[(u64, &str, bool)] = &[(1, "admin-0", true), (2, "admin-1", true), (3, "admin-2", true)];

#[test]
fn a_learner_votes_once_it_has_caught_up() {
    let behind = membership(&[&[1]], &[(1, "admin-0", true), (2, "admin-1", false)]);
    assert_eq!(next(&behind, &["admin-0", "admin-1"]), wait(Reason::AsWanted));
    let caught_up = membership(&[&[1]], &[(1, "admin-0", true), (2, "admin-1", true)]);
    assert_eq!(next(&caught_up, &["admin-0", "admin-1"]), voters(&[1, 2], Reason::Wanted));
    assert_eq!(next(&caught_up, &["admin-0"]), wait(Reason::AsWanted), "one that is not wanted stays a learner");
}

#[test]
fn those_that_are_not_wanted_any_more_leave_at_once() {
    let three = membership(&[&[1, 2, 3]], ALL);
    assert_eq!(next(&three, &["admin-0", "admin-1"]), voters(&[1, 2], Reason::Wanted));
    assert_eq!(next(&three, &["admin-0"]), voters(&[1], Reason::Wanted), "two in one change");
}

#[test]
fn a_leader_that_leaves_hands_over_first() {
    let led_by_2 = membership(&[&[1, 2, 3]], &[(2, "admin-1", true), (1, "admin-0", true), (3, "admin-2", true)]);
    assert_eq!(next(&led_by_2, &["admin-0"]), Change::Step(Step::HandOver(ids(&[1]))), "counterexample 9");
    let leaving = membership(&[&[1, 2, 3], &[1]], &[(2, "admin-1", true), (1, "admin-0", true), (3, "admin-2", true)]);
    assert_eq!(
        next(&leaving, &["admin-0"]),
        Change::Step(Step::HandOver(ids(&[1]))),
        "also in the middle of the change"
    );
    let alone = membership(&[&[2]], &[(2, "admin-1", true), (1, "admin-0", true)]);
    assert_eq!(next(&alone, &["admin-0"]), voters(&[1, 2], Reason::BesideMe), "nobody who stays votes yet");
}

#[test]
fn with_zero_replicas_the_voters_keep_their_place() {
    assert_eq!(next(&membership(&[&[1, 2, 3]], ALL), &[]), wait(Reason::NoneReady));
    let unknown = next_change(&membership(&[&[1, 2, 3]], ALL), &current(&[("admin-0", 1)]), None, &BTreeSet::new());
    assert_eq!(unknown, wait(Reason::Unknown), "not known is not zero");
}

#[test]
fn nobody_leaves_for_voters_that_do_not_answer() {
    let silent = membership(&[&[1, 2, 3]], &[(2, "admin-1", true), (1, "admin-0", false), (3, "admin-2", true)]);
    assert_eq!(
        next(&silent, &["admin-0"]),
        wait(Reason::Silent),
        "the one that is to stay would be alone, and is away"
    );
    assert_eq!(next(&silent, &["admin-0", "admin-1"]), wait(Reason::Silent), "two of two are needed");
}

#[test]
fn who_is_about_to_end_does_not_become_a_voter_and_does_not_cease_to_be_one() {
    let scaled_up_again = |ending: [&str; 1]| {
        let logs = current(&[("admin-0", 1), ("admin-1", 2), ("admin-2", 3)]);
        let wanted = ["admin-0", "admin-1", "admin-2"].map(ServerId::from).into();
        next_change(&membership(&[&[1, 2]], ALL), &logs, Some(&wanted), &ending.map(ServerId::from).into())
    };
    assert_eq!(scaled_up_again(["admin-2"]), wait(Reason::AsWanted), "until its next pod has come");
    assert_eq!(scaled_up_again(["admin-1"]), voters(&[1, 2, 3], Reason::Wanted));
}

#[test]
fn a_change_under_way_is_finished_forward() {
    let joint = membership(&[&[1], &[1, 2, 3]], ALL);
    let why = "counterexample 8: scaled back to one, yet going back could commit beside a leader that went forward";
    assert_eq!(next(&joint, &["admin-0"]), voters(&[1, 2, 3], Reason::Forward), "{why}");
    assert_eq!(next(&joint, &[]), voters(&[1, 2, 3], Reason::Forward));
}

#[test]
fn nothing_is_begun_before_the_last_change_and_an_entry_of_ones_own_are_committed() {
    let unsettled = Membership { settled: false, ..membership(&[&[1], &[1, 2, 3]], ALL) };
    assert_eq!(next(&unsettled, &["admin-0"]), wait(Reason::Unsettled));
}

#[test]
fn a_log_whose_server_came_back_with_another_one_leaves_first_the_voters_then_the_members() {
    let logs = current(&[("admin-0", 1), ("admin-1", 3), ("admin-2", 4)]);
    let wanted = ["admin-0", "admin-1", "admin-2"].map(ServerId::from).into();
    let members = &[(1, "admin-0", true), (2, "admin-1", false), (3, "admin-1", true), (4, "admin-2", true)];
    let step = |halves: &[&[u64]]| next_change(&membership(halves, members), &logs, Some(&wanted), &BTreeSet::new());
    assert_eq!(step(&[&[1, 2, 4]]), voters(&[1, 3, 4], Reason::Wanted), "wanted servers count by their log of today");
    assert_eq!(step(&[&[1, 3, 4]]), Change::Forget(ids(&[2])));
}

#[test]
fn a_server_that_was_removed_from_the_domain_is_replicated_to_no_more() {
    let members = membership(&[&[1]], &[(1, "admin-0", true), (9, "admin-7", false)]);
    assert_eq!(next(&members, &["admin-0"]), Change::Forget(ids(&[9])));
}

#[test]
fn a_vote_is_taken_only_after_a_fresh_read_and_a_change_that_was_begun_needs_none() {
    let takes = |halves: &[&[u64]], change: Change| takes_a_vote(&membership(halves, ALL), &change);
    let next = |logs: &[u64]| voters(logs, Reason::Wanted);
    assert!(takes(&[&[1, 2, 3]], next(&[1, 2])));
    assert!(takes(&[&[1, 2]], next(&[1, 3])), "one for another");
    assert!(takes(&[&[1, 2]], Change::Step(Step::HandOver(ids(&[2])))), "this leader is to be voted out next");
    assert!(!takes(&[&[1, 2]], next(&[1, 2, 3])), "nobody loses a vote");
    assert!(!takes(&[&[1, 2, 3], &[1]], voters(&[1], Reason::Forward)), "begun, and finished whatever is wanted now");
    assert!(!takes(&[&[1, 2, 3]], wait(Reason::AsWanted)));
    assert!(!takes(&[&[1, 2, 3]], Change::Forget(ids(&[9]))), "it does not vote");
}
