//! When containers are started, and started again.

use super::{Member, Next, Policy, State, next};
use jiff::{SignedDuration, Timestamp};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(inits: usize, mains: usize) -> Vec<Member> {
    let member = |init| Member::new("c", "i", init, SignedDuration::from_secs(10));
    (0..inits).map(|_| member(true)).chain((0..mains).map(|_| member(false))).collect()
}

/// Lets a pod of one container run for some time again and again; gives when it was started.
fn starts(policy: Policy, runs: &[(i64, i32)]) -> Vec<i64> {
    let mut members = pod(0, 1);
    let (mut now, mut starts) = (0, Vec::new());
    for (seconds, code) in runs {
        match next(&members, policy, at(now)) {
            Next::Start(0) => {}
            Next::Wait(Some(due)) => {
                now = due.as_second();
                assert_eq!(next(&members, policy, at(now)), Next::Start(0));
            }
            Next::Finished => break,
            other => panic!("{other:?}"),
        }
        starts.push(now);
        members[0].start("id".to_owned(), at(now));
        assert_eq!(next(&members, policy, at(now)), Next::Wait(None), "it runs");
        now += seconds;
        members[0].end(*code, String::new(), at(now));
    }
    starts
}

#[test]
fn a_container_that_crashes_is_held_back_longer_each_time() {
    let crashes = [(1, 1); 9];
    assert_eq!(starts(Policy::Always, &crashes), [0, 1, 12, 33, 74, 155, 316, 617, 918]);
}

#[test]
fn one_that_ran_long_is_started_at_once() {
    assert_eq!(starts(Policy::Always, &[(1, 1), (1, 1), (1, 1), (601, 1), (1, 1), (1, 1)]), [0, 1, 12, 33, 634, 645]);
}

#[test]
fn the_policy_says_what_is_started_again() {
    let runs = [(1, 0), (1, 0)];
    assert_eq!(starts(Policy::Always, &runs), [0, 1]);
    assert_eq!(starts(Policy::OnFailure, &runs), [0]);
    assert_eq!(starts(Policy::OnFailure, &[(1, 1), (1, 0), (1, 0)]), [0, 1]);
    assert_eq!(starts(Policy::Never, &[(1, 1), (1, 1)]), [0]);
}

#[test]
fn init_containers_run_one_after_another_and_before_all_others() {
    let mut members = pod(2, 2);
    assert_eq!(next(&members, Policy::Always, at(0)), Next::Start(0));
    members[0].start("a".to_owned(), at(0));
    assert_eq!(next(&members, Policy::Always, at(0)), Next::Wait(None));
    members[0].end(0, String::new(), at(1));
    assert_eq!(next(&members, Policy::Always, at(1)), Next::Start(1));
    members[1].start("b".to_owned(), at(1));
    members[1].end(1, String::new(), at(2));
    assert_eq!(next(&members, Policy::Always, at(2)), Next::Start(1), "it failed, so it is repeated");
    assert_eq!(next(&members, Policy::Never, at(2)), Next::Finished, "it failed, and that is that");
    members[1].start("b".to_owned(), at(2));
    members[1].end(0, String::new(), at(3));
    assert_eq!(next(&members, Policy::Always, at(3)), Next::Start(2));
    members[2].start("c".to_owned(), at(3));
    assert_eq!(next(&members, Policy::Always, at(3)), Next::Start(3), "all others run at once");
}

#[test]
fn what_cannot_be_started_is_tried_again_without_counting_as_a_restart() {
    let mut members = pod(0, 1);
    members[0].block("ErrImagePull", "no such image".to_owned(), at(0));
    assert_eq!(next(&members, Policy::Never, at(9)), Next::Wait(Some(at(10))));
    assert_eq!(next(&members, Policy::Never, at(10)), Next::Start(0));
    members[0].block("ErrImagePull", "no such image".to_owned(), at(10));
    assert_eq!(next(&members, Policy::Never, at(10)), Next::Wait(Some(at(30))));
    members[0].start("id".to_owned(), at(30));
    members[0].end(1, String::new(), at(31));
    assert_eq!(members[0].restarts, 0);
    assert_eq!(members[0].restarts_at(Policy::Always), Some(at(31)), "it is held back for crashes only");
}

#[test]
fn a_run_that_was_blocked_between_two_is_one_restart() {
    let mut members = pod(0, 1);
    members[0].start("one".to_owned(), at(0));
    members[0].end(3, String::new(), at(1));
    members[0].block("CreateContainerConfigError", "no such map".to_owned(), at(1));
    members[0].start("two".to_owned(), at(20));
    assert_eq!(members[0].restarts, 1);
    assert_eq!(members[0].last.as_ref().map(|last| (last.id.as_str(), last.code)), Some(("one", 3)));
    assert_eq!(members[0].state, State::Running { id: "two".to_owned(), since: at(20) });
}
