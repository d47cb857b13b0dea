//! What an operator decides after the domain has lost entries: the recorded sync set may name archives that had left it.

use super::*;
use kaa_core::replication::{Accepted, failover};

fn uncertain() -> Play {
    let mut play = running(WhenAlone::Degrade);
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    database.replicated.as_mut().unwrap().uncertain = Some("entries were lost".to_owned());
    play
}

/// What an operator is told who names this archive, or none.
fn asked(play: &Play, to: Option<u64>, may_run: bool) -> String {
    let accepted = Accepted { may_run, ..Accepted::default() };
    let timing = Timing::default();
    match failover(&play.domain, &SHOP.into(), to.map(ArchiveId), accepted, "restored", &timing) {
        Ok(grant) => format!("archive {}, sync set {:?}", grant.winner, grant.sync_set),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn the_server_that_is_to_continue_has_to_be_named() {
    let play = uncertain();
    for may_run in [false, true] {
        let refusal = asked(&play, None, may_run);
        assert!(refusal.contains("name the one that is to continue, --to POD"), "{refusal}");
    }
    let refusal = asked(&play, Some(1), false);
    assert!(refusal.contains("--old-primary-may-run"), "it is open: {refusal}");
    assert_eq!(asked(&play, Some(1), true), "archive 1, sync set {ArchiveId(1)}", "the other one may lack commits");
}

#[test]
fn an_open_primary_lacks_nothing_and_the_others_follow_it() {
    let mut play = uncertain();
    assert!(play.domain.holds_all(&SHOP.into(), ArchiveId(1)));
    assert_eq!(play.failover(1, true), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 1, sync set 1: "), "{news}");
    assert!(news.contains("archive 2 joins the sync set"), "{news}");
}

#[test]
fn what_another_winner_may_lack_is_not_overwritten() {
    let mut play = uncertain();
    assert!(!play.domain.holds_all(&SHOP.into(), ArchiveId(2)));
    play.exits(0, ExitReason::PodGone);
    assert!(!play.domain.holds_all(&SHOP.into(), ArchiveId(1)), "nothing shows that it is the last primary");
    assert_eq!(play.failover(2, false), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 2, after archive 1, sync set 2: "), "{news}");
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    assert!(replicated.owns(ArchiveId(2)) && !replicated.owns(ArchiveId(1)) && !replicated.owns(ArchiveId(3)));
    assert!(!news.contains("overwritten"), "{news}");
}
