//! `kaa show database`, `kaa switchover`, `kaa failover` and `kaa database adopt`.

use super::*;
use crate::http::fake::Shop;
use crate::http::source::Awaits;
use crate::metrics::group_waits;
use kaa_core::domain::change::{GrantReason, Progress};
use kaa_core::domain::ids::{Millis, SessionNumber};
use kaa_core::domain::replicated::Ended;
use kaa_core::replication::vitals::Volume;
use std::time::Duration;

#[tokio::test]
async fn show_database() {
    check("show-database", fake::shop().source(), "show database shop").await;
    check("show-database-primary-lost", fake::shop().lose(0).source(), "show database shop").await;
    check("show-database-unwell", unwell(), "show database shop").await;
    check("show-database-primary-closed", closed(), "show database shop").await;
    check("show-database-not-adopted", fake::stranger(), "show database shop").await;
    check("show-database-without-roles", fake::shop().source(), "show database demo").await;
    let json = run_on(fake::shop().source(), "show database shop -o json").await.unwrap();
    let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&shown["primary"]["state"]["code"], &shown["kind"]["code"]), (&"open".into(), &"one_primary".into()));
    let none = run_on(fake::source(), "show database none").await.unwrap_err();
    assert_eq!(none.to_string(), "there is no database none");
}

/// A database whose servers need an operator, and an agent that does not answer.
fn unwell() -> Fake {
    let mut fake = fake::shop().source();
    Shop::fares(&mut fake, "shop-0", |heard| {
        let vitals = heard.vitals.as_mut().unwrap();
        vitals.volume = Some(Volume { free: 7 << 30, size: 100 << 30 });
        vitals.retained_log_bytes = 30 << 30;
        vitals.oldest_xid_age = 1_600_000_000;
        vitals.restart_pending = vec!["max_connections".to_owned(), "shared_buffers".to_owned()];
        // shop-2 is not connected.
        vitals.connections.truncate(1);
        vitals.connections[0].replayed.0 -= 5 << 20;
    });
    Shop::fares(&mut fake, "shop-1", |heard| {
        let vitals = heard.vitals.as_mut().unwrap();
        vitals.replay_lag_ms = Some(12_500);
        vitals.overridden = vec!["primary_conninfo".to_owned()];
        vitals.expiry.certificate = Some(Millis(978_307_200_000));
    });
    Shop::fares(&mut fake, "shop-2", |heard| heard.trouble = Some("follow: connection refused".to_owned()));
    fake
}

/// A primary whose lease is over: its clients are gone until its standbys or the domain renew it.
fn closed() -> Fake {
    let mut fake = fake::shop().source();
    Shop::fares(&mut fake, "shop-0", |heard| heard.vitals.as_mut().unwrap().closed = true);
    fake
}

/// What another agent hears is not made up while that one is silent, or has not heard by this session.
#[tokio::test]
async fn what_is_not_heard_is_said_to_be_unknown() {
    let mut silent = fake::shop().source();
    silent.peers.iter_mut().for_each(|peer| peer.connected = false);
    let mut earlier = fake::shop().source();
    Shop::fares(&mut earlier, "shop-0", |heard| heard.session = SessionNumber(0));
    for (fake, primary, why) in [
        (silent, "open ? - z1 ?", "? shop-0: admin-1 has its stream, and does not answer this agent"),
        (earlier, "open ? - z1 ?", "? shop-0: admin-1 has its stream, and has not heard how it fares yet"),
    ] {
        let text = run_on(fake, "show database shop").await.unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("shop-0 4 primary {primary}")), "{text}");
        assert!(words.contains("shop-1 5 standby assigned"), "whether it streams, the primary says: {text}");
        assert!(text.contains(why), "{text}");
    }
}

/// Without a quorum no session is found to be lost: what the loss of a pod would mean now is not known.
#[tokio::test]
async fn an_agent_that_learns_of_no_change_promises_nothing() {
    let mut fake = fake::shop().source();
    let words = "no quorum of servers admin-0, admin-1 and admin-2".to_owned();
    fake.membership.waiting = vec![Awaits { code: group_waits::NO_LEADER, server: None, words }];
    let text = run_on(fake, "show database shop").await.unwrap();
    assert!(!text.contains("survives by itself"), "{text}");
    let warning = "[!] this agent learns of no change, so all of this may be old: no quorum of servers admin-0, admin-1 and admin-2\n    bring \
                   them back: `kubectl scale`";
    assert!(text.contains(warning), "{text}");
}

#[tokio::test]
async fn what_would_be_done_is_shown_and_what_is_refused() {
    let answers = async |fake: fn() -> Fake, lines: &[&str]| {
        let mut text = String::new();
        for line in lines {
            let answer = run_on(fake(), line).await.unwrap_or_else(|error| format!("refused: {error}\n"));
            text += &format!("$ kaa {line}\n{answer}");
        }
        text
    };
    let shop = || fake::shop().source();
    let mut text = answers(
        shop,
        &[
            "switchover shop --reason x --dry-run",
            "switchover shop --to shop-2 --reason x --dry-run",
            "switchover shop --to shop-1 --reason x",
            "switchover shop --cancel --reason x",
            "switchover demo --reason x",
            "failover shop --reason x",
            "database adopt shop --archive 4 --reason x",
            "database discard shop --archive 6 --reason x --dry-run",
            "database discard shop --archive 5 --reason x",
        ],
    )
    .await;
    text += "# the primary is silent\n";
    let silent = || fake::shop().lose(0).source();
    let flagged = "failover shop --old-primary-may-run --reason x --dry-run";
    text += &answers(silent, &["failover shop --reason x", flagged]).await;
    text += "# its process has ended\n";
    text += &answers(|| fake::shop().exit(0).source(), &["failover shop --reason x"]).await;
    text += "# and the other member of the sync set is silent\n";
    text += &answers(|| fake::shop().exit(0).lose(1).source(), &["failover shop --reason x"]).await;
    let time = regex::Regex::new("20[0-9-]+T[0-9:.]+Z").unwrap();
    golden("primary", &time.replace_all(&text, "TIME"));
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    for wrong in [
        "switchover shop",
        "switchover shop --to shop-1 --cancel --reason x",
        "switchover shop --wait --dry-run --reason x",
        "switchover shop --timeout 5 --reason x",
        "failover shop --wait --dry-run --reason x",
        "database adopt shop --reason x",
    ] {
        let words = ["kaa"].into_iter().chain(wrong.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
    }
}

/// Runs a command that waits, and `change` once what it asked for is in the domain.
async fn while_it_waits(line: &str, change: impl FnOnce(&mut Shop)) -> Result<String, api::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, source) = (listener.local_addr().unwrap().to_string(), Arc::new(fake::shop().source()));
    let face = Face::new(source.clone(), Arc::new(Metrics::new()));
    let server = tokio::spawn(serve(listener, router(face), None, std::future::pending()));
    let asked = || {
        let domain = source.domain.lock().unwrap();
        domain.replicated(&"shop".into()).unwrap().switchover.is_some()
    };
    let leader = async {
        while !asked() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Shop::change(&source, change);
    };
    let (answer, ()) = tokio::join!(run(line, &address), leader);
    server.abort();
    answer
}

#[tokio::test]
async fn a_switchover_can_be_awaited() {
    let line = "switchover shop --wait --reason x";
    let done = while_it_waits(line, |shop| {
        shop.progress(0, Progress::Ended(Ended::StoodDown));
        shop.grant(1, GrantReason::Switchover("x".to_owned()), &[1]);
        shop.opens(1);
    });
    let text = done.await.unwrap();
    assert!(text.starts_with("shop: shop-1 is the primary since generation 3 (after "), "{text}");
    let given_up = while_it_waits(line, Shop::gives_up).await.unwrap_err().to_string();
    let why = "the switchover was cancelled: its target is away; shop-0 is the primary of generation 2, open";
    assert!(given_up.starts_with(why), "{given_up}");
    let late = while_it_waits("switchover shop --wait --timeout 1 --reason x", |_| {}).await.unwrap_err().to_string();
    let why =
        "no new primary is open after 1 s: shop-0 is the primary of generation 2, open; a switchover was requested";
    assert!(late.starts_with(why), "{late}");
    assert!(
        late.trim_end().ends_with("The request stays: `kaa switchover shop --cancel --reason WHY` takes it back"),
        "{late}"
    );
}
