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
fn nothing_is_promised_of_the_others_meanwhile() {
    let mut play = uncertain();
    play.exits(0, ExitReason::PodGone);
    let waits = play.said_waits();
    assert!(waits.iter().any(|wait| wait.contains("; archive 2 may lack commits")), "{waits:?}");
    assert!(!waits.iter().any(|wait| wait.contains("nothing would be lost")), "{waits:?}");
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    assert!(play.domain.survival(&SHOP.into(), replicated).is_none());
}

/// A member of a set that may be too large may lack commits.
#[test]
fn nothing_moves_by_itself() {
    let automatic = || {
        let mut play = uncertain();
        play.settings().failover = FailoverMode::Automatic;
        play
    };
    let mut lost = automatic();
    lost.lose(0);
    lost.hears(1, false);
    let mut ended = automatic();
    ended.ends_here(0, 2);
    let mut stops = automatic();
    stops.servers.get_mut(&0).unwrap().ended = Some((Generation(2), Ended::StoodDown));
    for (mut play, reasons) in [
        (lost, vec![GrantReason::Silent { by: [ArchiveId(2)].into(), held_back_ms: 0 }]),
        (ended, vec![GrantReason::Ended, GrantReason::Returned, GrantReason::Switchover("asked".to_owned())]),
        (stops, vec![GrantReason::HandedOver]),
    ] {
        play.settle();
        assert!(!play.news().contains("granted"), "{reasons:?}");
        for reason in reasons {
            let winner = if reason == GrantReason::Returned { ArchiveId(1) } else { ArchiveId(2) };
            let replicated = play.domain.replicated(&SHOP.into()).unwrap();
            let grant = grants::propose(&play.domain, &SHOP.into(), replicated, winner, reason, &Timing::default());
            let outcome = play.does(Role::RaftLeader, Command::GrantPrimary(grant.unwrap()));
            assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        }
    }
}

#[test]
fn an_open_primary_lacks_nothing_and_the_others_follow_it() {
    let mut play = uncertain();
    assert_eq!(play.failover(1, true), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 1, sync set 1: "), "{news}");
    assert!(news.contains("archive 2 joins the sync set"), "{news}");
}

#[test]
fn another_server_may_lack_commits_so_that_a_loss_has_to_be_accepted() {
    let mut play = uncertain();
    let refusal = asked(&play, Some(2), true);
    assert!(refusal.contains("acknowledged commits may be missing there: archive 2"), "{refusal}");
    assert!(refusal.ends_with("--accept-data-loss shop"), "{refusal}");
    assert_eq!(play.failover(2, true), "what is recorded of database shop may be wrong: entries were lost");
    assert!(play.gives_up(2, &[1, 2], false).contains("may still run"));
    assert!(play.gives_up(2, &[1, 2], true).contains("archive 1"), "it is open, and has everything");
    play.exits(0, ExitReason::PodGone);
    assert!(asked(&play, Some(2), false).ends_with("--accept-data-loss shop"));
    assert!(play.gives_up(2, &[1, 2], false).contains("may still run"), "its node may be cut off");
    play.exits(2, ExitReason::PodGone);
    play.servers.get_mut(&2).unwrap().data = Data::Empty;
    play.starts(2);
    for command in play.domain.duties(play.servers[&2].process, SessionNumber(1), &play.report(2)) {
        play.changes(Role::Agent, command);
    }
    assert_eq!(play.gives_up(2, &[1, 2], true), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 2, after archive 1, sync set 2: "), "{news}");
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    assert!(replicated.owns(ArchiveId(2)) && !replicated.owns(ArchiveId(1)), "what it has may be all that is left");
    assert!(replicated.owns(ArchiveId(3)), "nothing is on it: it is copied");
}

#[test]
fn a_primary_that_a_volume_knows_a_successor_of_may_lack_commits() {
    let mut play = uncertain();
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    database.replicated.as_mut().unwrap().highest = Generation(5);
    let refusal = asked(&play, Some(1), true);
    assert!(refusal.contains("acknowledged commits may be missing there: archive 1"), "{refusal}");
}

#[test]
fn a_server_that_is_away_may_have_led() {
    let mut play = uncertain();
    play.lose(2);
    let refusal = asked(&play, Some(1), true);
    assert!(refusal.contains("acknowledged commits may be missing there: archive 1"), "{refusal}");
    assert_eq!(
        play.gives_up(1, &[1, 2], false),
        "Changed",
        "its own word is not needed for what runs on its own volume"
    );
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    assert!(!replicated.owns(ArchiveId(3)));
}
