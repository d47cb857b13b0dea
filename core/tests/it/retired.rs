//! Founding from a retired log, case by case: what would be given up, when the command is refused, and which agent uses
//! which retired log again.

use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::quorum_override::Position;
use kaa_core::membership::recover::{Answer, Survey};
use kaa_core::membership::retired::{
    Asked, Kept, MAX_KEPT_BYTES, MAX_KEPT_LOGS, Place, Retired, Unusable, brings_back, judge, prunable,
};
use kaa_core::membership::{Anchor, Gate, LocalLog, Traces, gate};
use std::collections::{BTreeMap, BTreeSet};

fn server(ordinal: u32) -> ServerId {
    format!("admin-{ordinal}").into()
}

/// The log of the lost founder is 90, and no server has it.
fn anchor(epoch: u64) -> Anchor {
    Anchor { domain: "d-1".into(), epoch: MembershipEpoch(epoch), founder: RaftId(90), lossy: true }
}

fn kept(epoch: u64, index: u64) -> Kept {
    let last = if index == 0 { Position::default() } else { Position { term: 3, index } };
    Kept { domain: Some("d-1".into()), epoch: MembershipEpoch(epoch), log: RaftId(77), last }
}

/// Two servers are wanted and answer with empty logs, 1 and 2, of the anchor's epoch.
fn survey() -> Survey {
    let answer = |ordinal: u32| {
        let (log, last) = (RaftId(u64::from(ordinal) + 1), Position::default());
        (server(ordinal), Answer { ordinal, wanted: true, log, last, sealed: false, quorum: false })
    };
    Survey {
        halves: Vec::new(),
        holders: BTreeMap::new(),
        answers: [answer(0), answer(1)].into(),
        wanted: [server(0), server(1)].into(),
    }
}

/// The answer to an operator who names this log of admin-1.
fn said(
    kept: Result<Kept, Unusable>,
    epoch: u64,
    founder: Option<ServerId>,
    survey: &Survey,
) -> Result<String, String> {
    let place: Place = "admin-1/retired-1-77".parse().unwrap();
    let judged = judge(&Asked { place: &place, kept, anchor: &anchor(epoch), founder, survey });
    let judged = judged.map_err(|why| why.to_string())?;
    let next = Anchor { founder: RaftId(77), ..anchor(epoch + 1) };
    assert_eq!(judged.next, next, "the next epoch, founded by that log, once nobody commits any more in those before");
    Ok(judged.to_string())
}

#[test]
fn it_is_said_what_is_given_up() {
    let said = |of, anchor| said(Ok(kept(of, 17)), anchor, None, &survey()).unwrap();
    assert_eq!(said(1, 2), "whatever was committed after entry 17 of epoch 1, also in epoch 2");
    assert_eq!(said(1, 4), "whatever was committed after entry 17 of epoch 1, also in epochs 2 to 4");
    assert_eq!(said(2, 2), "whatever was committed after entry 17 of epoch 2");
}

#[test]
fn a_log_that_is_of_no_use_is_refused_by_name() {
    let refused = |kept| said(kept, 2, None, &survey()).unwrap_err();
    let missing = |there: &[&str]| Err(Unusable::Missing(there.iter().map(|name| (*name).to_owned()).collect()));
    assert_eq!(refused(missing(&[])), "admin-1 has no retired log retired-1-77, and no other");
    assert_eq!(
        refused(missing(&["retired-1-5", "retired-1-6"])),
        "admin-1 has no retired log retired-1-77; it has retired-1-5, retired-1-6"
    );
    let damaged = Err(Unusable::Damaged("log entry 5 is missing".to_owned()));
    assert_eq!(refused(damaged), "admin-1/retired-1-77 cannot be read: log entry 5 is missing");
    let elsewhere = |domain: Option<&str>| Ok(Kept { domain: domain.map(Into::into), ..kept(1, 17) });
    assert_eq!(refused(elsewhere(Some("d-2"))), "admin-1/retired-1-77 is a log of another domain, d-2");
    assert_eq!(refused(elsewhere(None)), "admin-1/retired-1-77 is a log of no domain");
    assert_eq!(refused(Ok(kept(1, 0))), "admin-1/retired-1-77 is empty");
    // The terms of this log may be above those of the epoch that would be founded.
    assert!(refused(Ok(kept(3, 17))).contains("of epoch 3, which is later than the anchor's"));
}

#[test]
fn what_is_left_of_the_anchors_epoch_goes_first() {
    let refused = |founder, survey: &Survey| said(Ok(kept(1, 17)), 2, founder, survey).unwrap_err();
    let mut led = survey();
    led.answers.get_mut(&server(0)).unwrap().quorum = true;
    assert_eq!(refused(None, &led), "admin-0 is in contact with a leader: nothing has to be given up");
    let mut elects = survey();
    elects.halves = vec![BTreeSet::from([RaftId(1), RaftId(2), RaftId(3)])];
    assert_eq!(
        refused(None, &elects),
        "a majority of the voters answers and will elect a leader: nothing has to be given up"
    );
    // The founder waits for an old pod, and has not founded the epoch yet.
    assert!(refused(Some(server(0)), &survey()).starts_with("admin-0 answers, with the log that the anchor names"));
    let mut founded = survey();
    founded.answers.get_mut(&server(0)).unwrap().last = Position { term: 4, index: 30 };
    for wanted in [true, false] {
        founded.answers.get_mut(&server(0)).unwrap().wanted = wanted;
        let refused = refused(None, &founded);
        assert!(refused.starts_with("admin-0 has a log of the anchor's epoch, up to entry 30"), "{refused}");
    }
}

#[test]
fn its_server_has_to_be_wanted() {
    let mut scaled_down = survey();
    scaled_down.wanted.remove(&server(1));
    let refused = said(Ok(kept(1, 17)), 2, None, &scaled_down).unwrap_err();
    assert_eq!(refused, "the StatefulSet does not want admin-1, which would found: scale it up first");
}

#[test]
fn a_place_is_a_server_and_a_name() {
    let place = "admin-1/retired-1-77".parse::<Place>().unwrap();
    assert_eq!((place.server.clone(), place.to_string()), (server(1), "admin-1/retired-1-77".to_owned()));
    for wrong in ["", "retired-1-77", "/retired-1-77", "admin-1/", "admin-1/../other", "a/b/c"] {
        let refused = wrong.parse::<Place>().unwrap_err().to_string();
        assert!(refused.starts_with(&format!("'{wrong}' is not SERVER/NAME")), "{refused}");
    }
}

#[test]
fn the_anchor_alone_says_which_log_comes_back() {
    let kept = [(MembershipEpoch(1), RaftId(76)), (MembershipEpoch(1), RaftId(77)), (MembershipEpoch(2), RaftId(78))];
    let names = |log, epoch| Anchor { founder: RaftId(log), ..anchor(epoch) };
    assert_eq!(brings_back(&names(77, 3), &kept), Some(kept[1]));
    assert_eq!(brings_back(&anchor(3), &kept), None, "the founder's log is on no volume: the server joins");
    // This log has founded epoch 2 and was retired after that; now the anchor is of epoch 2 again.
    assert_eq!(brings_back(&names(78, 2), &kept), None);
    assert_eq!(brings_back(&names(78, 3), &kept), Some(kept[2]));
}

/// From each state that a crash can leave on the volume, the agent reaches the founding. Only the anchor records what
/// is to be done.
#[test]
fn a_crash_at_any_step_leads_on() {
    let (anchor, are_retired) = (Anchor { founder: RaftId(77), ..anchor(3) }, [(MembershipEpoch(1), RaftId(77))]);
    let log = |domain: Option<&str>, epoch, raft_id, sealed| LocalLog {
        domain: domain.map(Into::into),
        epoch: MembershipEpoch(epoch),
        raft_id: RaftId(raft_id),
        sealed,
    };
    let gate = |local| gate(Some(&anchor), &local, &Traces::default());
    // The anchor is swapped; the present log, empty or not, sealed or not, is still in its place.
    for sealed in [false, true] {
        assert_eq!(gate(log(Some("d-1"), 2, 2, sealed)), Gate::Join(anchor.clone()));
    }
    // The present log was retired, and an empty one was created in its place at the start.
    assert_eq!(gate(log(None, 0, 5, false)), Gate::Join(anchor.clone()));
    assert_eq!(brings_back(&anchor, &are_retired), Some(are_retired[0]));
    // The retired log is back in its place, and the epoch is not founded yet.
    assert_eq!(gate(log(Some("d-1"), 1, 77, true)), Gate::Found(anchor.clone()));
    // The epoch is founded.
    assert_eq!(gate(log(Some("d-1"), 3, 77, false)), Gate::Start);
}

/// Logs, each as its epoch, id, last index and bytes.
fn retired<const N: usize>(logs: [(u64, u64, u64, u64); N]) -> Vec<Retired> {
    let retired = |(epoch, log, index, bytes)| Retired {
        epoch: MembershipEpoch(epoch),
        log: RaftId(log),
        last: if index == 0 { Position::default() } else { Position { term: 1, index } },
        bytes,
    };
    logs.map(retired).into()
}

fn pruned<const N: usize>(logs: [(u64, u64, u64, u64); N], current: u64) -> Vec<u64> {
    prunable(&retired(logs), MembershipEpoch(current)).into_iter().map(|(_, log)| log.0).collect()
}

#[test]
fn of_the_logs_that_were_retired_the_latest_epochs_are_kept() {
    assert_eq!(MAX_KEPT_LOGS, 3);
    assert_eq!(pruned([(1, 11, 9, 1), (2, 12, 9, 1), (3, 13, 9, 1)], 4), [0_u64; 0], "as many as there may be");
    assert_eq!(pruned([(1, 11, 9, 1), (4, 14, 9, 1), (2, 12, 9, 1), (3, 13, 9, 1)], 5), [11]);
    assert_eq!(
        pruned([(1, 11, 9, 1), (1, 21, 7, 1), (1, 31, 8, 1), (1, 41, 1, 1)], 2),
        [41],
        "of one epoch, the one that goes least far"
    );
    assert_eq!(pruned([(1, 11, 9, 1), (2, 12, 0, 1), (3, 13, 0, 1), (4, 14, 0, 1)], 5), [12], "empty ones go first");
}

#[test]
fn logs_that_take_too_much_room_go_and_the_best_of_the_epoch_before_stays() {
    let half = MAX_KEPT_BYTES / 2;
    assert_eq!(pruned([(1, 11, 9, 1), (2, 12, 9, half), (3, 13, 9, half)], 4), [11]);
    assert_eq!(pruned([(2, 12, 9, 1), (3, 13, 9, 2 * MAX_KEPT_BYTES)], 4), [12], "it stays whatever it takes");
    assert_eq!(pruned([(1, 11, 9, u64::MAX), (2, 12, 9, u64::MAX)], 3), [11]);
}

#[test]
fn a_log_of_the_epoch_of_today_or_of_a_later_one_is_not_pruned() {
    let logs = [(3, 13, 9, MAX_KEPT_BYTES), (4, 14, 9, MAX_KEPT_BYTES), (2, 12, 9, 1), (1, 11, 9, 1)];
    assert_eq!(pruned(logs, 3), [0_u64; 0]);
    assert_eq!(pruned(logs, 4), [12, 11]);
}
