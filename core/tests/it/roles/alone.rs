//! A primary that is alone and declared to block.

use super::*;
use kaa_core::replication::{Accepted, failover};

/// The only primary, whose server was started again.
fn restarted() -> Play {
    let mut play = running(WhenAlone::Block);
    play.exits(1, ExitReason::PodGone);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    play.exits(0, ExitReason::Graceful);
    play.starts(0);
    play.settle();
    play
}

#[test]
fn one_that_started_again_says_that_it_waits_for_a_standby_and_how_to_do_without() {
    let mut play = restarted();
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    let waits = waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time);
    let said: Vec<_> = waits.iter().map(ToString::to_string).collect();
    let blocked = "the server on archive 1 is to be the primary, and does not let clients in before a standby joins \
                   (kaa.dev/when-alone: block)";
    assert_eq!(said, [blocked]);
    assert!(
        waits[0]
            .ends()
            .unwrap()
            .contains("`kubectl annotate --overwrite statefulset {set} kaa.dev/when-alone=degrade`")
    );
    let refusal =
        failover(&play.domain, &SHOP.into(), None, Accepted::default(), "closed", &Timing::default()).unwrap_err();
    let refusal = refusal.to_string();
    assert!(
        refusal.starts_with("the primary is up, and does not let clients in yet: archive 1, pod shop-0"),
        "{refusal}"
    );
    assert!(!refusal.contains("--accept-data-loss"), "no loss would help: {refusal}");
    play.settings().when_alone = WhenAlone::Degrade;
    play.settle();
    assert!(play.news().contains("the server of archive 1 is open"));
}

#[test]
fn one_that_started_again_opens_once_a_standby_joins() {
    let mut play = restarted();
    play.news();
    play.starts(2);
    play.settle();
    let expected = "\
archive 3 holds data of system 77, up to generation 2
archive 3 joins the sync set, version 6
generation 3: the server of archive 1 is open
archive 3 is in the sync set: version 6 is in force
";
    assert_eq!(play.news(), expected);
}
