//! The gate and the leader's next change, case by case.

use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::{Anchor, Change, Gate, LocalLog, Member, Membership, Refusal, Waiting, gate, next_change};
use std::collections::{BTreeMap, BTreeSet};

fn anchor(epoch: u64, founder: u64) -> Anchor {
    Anchor { domain: "D1".into(), epoch: MembershipEpoch(epoch), founder: RaftId(founder) }
}

fn empty(id: u64) -> LocalLog {
    LocalLog { domain: None, epoch: MembershipEpoch(0), raft_id: RaftId(id) }
}

fn log(domain: &str, epoch: u64, id: u64) -> LocalLog {
    LocalLog { domain: Some(domain.into()), epoch: MembershipEpoch(epoch), raft_id: RaftId(id) }
}

#[test]
fn without_an_anchor_only_the_first_server_founds_and_only_on_an_empty_log() {
    assert_eq!(gate(None, &empty(7), true), Gate::CreateAnchor);
    assert_eq!(gate(None, &empty(8), false), Gate::Wait(Waiting::ForTheFirst));
    let missing = Gate::Wait(Waiting::AnchorMissing("D1".into()));
    assert_eq!(gate(None, &log("D1", 1, 7), true), missing, "an anchor that vanished is not a domain that never was");
}

#[test]
fn whoever_the_anchor_names_founds_also_after_a_crash_in_between() {
    assert_eq!(gate(Some(&anchor(1, 7)), &empty(7), true), Gate::Found(anchor(1, 7)));
    assert_eq!(gate(Some(&anchor(2, 7)), &log("D1", 1, 7), true), Gate::Found(anchor(2, 7)));
}

#[test]
fn a_log_of_the_anchors_epoch_starts() {
    assert_eq!(gate(Some(&anchor(1, 7)), &log("D1", 1, 8), false), Gate::Start);
}

#[test]
fn a_log_behind_the_anchor_is_set_aside_and_joins_afresh() {
    assert_eq!(
        gate(Some(&anchor(1, 7)), &empty(9), true),
        Gate::Join(anchor(1, 7)),
        "the first server lost its volume"
    );
    assert_eq!(gate(Some(&anchor(2, 7)), &log("D1", 1, 8), false), Gate::Join(anchor(2, 7)));
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let another = Refusal::AnotherDomain { mine: "D0".into(), anchor: "D1".into() };
    assert_eq!(gate(Some(&anchor(1, 7)), &log("D0", 1, 7), true), Gate::Refuse(another));
    let behind = Refusal::AnchorBehind { mine: MembershipEpoch(3), anchor: MembershipEpoch(2) };
    assert_eq!(gate(Some(&anchor(2, 7)), &log("D1", 3, 7), true), Gate::Refuse(behind));
}

/// `halves`: voter sets; `members`: raft id, server, caught up.
fn membership(halves: &[&[u64]], members: &[(u64, &str, bool)]) -> Membership {
    Membership {
        halves: halves.iter().map(|half| half.iter().map(|id| RaftId(*id)).collect()).collect(),
        members: members
            .iter()
            .map(|(id, server, caught_up)| (RaftId(*id), Member { server: (*server).into(), caught_up: *caught_up }))
            .collect(),
    }
}

fn current(logs: &[(&str, u64)]) -> BTreeMap<ServerId, RaftId> {
    logs.iter().map(|(server, id)| ((*server).into(), RaftId(*id))).collect()
}

fn wanted(servers: &[&str]) -> BTreeSet<ServerId> {
    servers.iter().map(|server| (*server).into()).collect()
}

fn ids(ids: &[u64]) -> BTreeSet<RaftId> {
    ids.iter().map(|id| RaftId(*id)).collect()
}

#[test]
fn a_learner_votes_once_it_has_caught_up() {
    let logs = current(&[("admin-0", 1), ("admin-1", 2)]);
    let wanted = wanted(&["admin-0", "admin-1"]);
    let behind = membership(&[&[1]], &[(1, "admin-0", true), (2, "admin-1", false)]);
    assert_eq!(next_change(&behind, &logs, &wanted), Change::None);
    let caught_up = membership(&[&[1]], &[(1, "admin-0", true), (2, "admin-1", true)]);
    assert_eq!(next_change(&caught_up, &logs, &wanted), Change::Voters(ids(&[1, 2])));
}

#[test]
fn a_server_that_is_not_wanted_stays_a_learner() {
    let logs = current(&[("admin-0", 1), ("admin-1", 2)]);
    let members = membership(&[&[1]], &[(1, "admin-0", true), (2, "admin-1", true)]);
    assert_eq!(next_change(&members, &logs, &wanted(&["admin-0"])), Change::None);
}

#[test]
fn a_change_under_way_is_finished_forward() {
    let logs = current(&[("admin-0", 1), ("admin-1", 2)]);
    let joint = membership(&[&[1], &[1, 2]], &[(1, "admin-0", true), (2, "admin-1", true)]);
    assert_eq!(next_change(&joint, &logs, &wanted(&["admin-0"])), Change::Voters(ids(&[1, 2])));
}

#[test]
fn a_log_whose_server_came_back_with_another_one_leaves_first_the_voters_then_the_members() {
    let logs = current(&[("admin-0", 1), ("admin-1", 3), ("admin-2", 4)]);
    let wanted = wanted(&["admin-0", "admin-1", "admin-2"]);
    let members = &[(1, "admin-0", true), (2, "admin-1", false), (3, "admin-1", true), (4, "admin-2", true)];
    assert_eq!(next_change(&membership(&[&[1, 2, 4]], members), &logs, &wanted), Change::Voters(ids(&[1, 3, 4])));
    assert_eq!(next_change(&membership(&[&[1, 3, 4]], members), &logs, &wanted), Change::Forget(ids(&[2])));
}
