//! The log that every server keeps for the others.

use super::lab::{Lab, Member, kill};
use kaa_engine::postgres::{Follows, Stop};
use std::collections::BTreeMap;
use testkit::eventually_async;

/// No log is kept but for slots, and for them not much.
const PARAMETERS: &str = "shared_buffers = 16MB\nmax_connections = 60\nautovacuum = off\nwal_keep_size = 0\n";

/// The slots at a server, and the file of the log from which on each keeps it; `None` if it has lost it.
async fn slots(member: &Member) -> BTreeMap<String, Option<i64>> {
    let list = "SELECT slot_name::text, ((restart_lsn - '0/0') / 16777216)::bigint FROM pg_replication_slots";
    let rows = member.superuser().await.query(list, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The file of the log that a primary writes.
async fn file(member: &Member) -> i64 {
    let end = "SELECT ((pg_current_wal_lsn() - '0/0') / 16777216)::bigint";
    member.superuser().await.query_one(end, &[]).await.unwrap().get(0)
}

/// Has a primary write a file of the log with a row for each id, and then remove the files that no slot and no restart needs.
async fn write(member: &mut Member, ids: std::ops::Range<i64>) {
    let client = member.superuser().await;
    for id in ids {
        client.batch_execute(&format!("INSERT INTO rows VALUES ({id}, 0)")).await.unwrap();
        client.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    }
    member.server.checkpoint().await.unwrap();
}

async fn tend(member: &Member) {
    member.server.slots(member.archive).unwrap().tend(&[]).await.unwrap();
}

/// Has a standby look after its slots until they are such.
async fn keeps(primary: &Member, standby: &Member, what: &str, are: impl Fn(&BTreeMap<String, Option<i64>>) -> bool) {
    eventually_async(what, async || {
        tend(primary).await;
        tend(standby).await;
        let slots = slots(standby).await;
        if are(&slots) { Ok(()) } else { Err(format!("{slots:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_was_behind_streams_from_the_next_primary() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(PARAMETERS);
    let ([mut a, mut b, mut c], begins) = lab.three().await;
    keeps(&a, &b, "the slots of both others", |slots| slots.keys().eq(["kaa_1", "kaa_3"])).await;
    write(&mut a, 0..4).await;
    let before = file(&a).await;
    keeps(&a, &b, "slots that follow", |slots| slots.values().all(|at| *at >= Some(before))).await;
    c.server.stop(Stop::Fast).await.unwrap();
    write(&mut a, 4..10).await;
    let after = file(&a).await;
    let waits = |slots: &BTreeMap<_, _>| slots["kaa_1"] >= Some(after) && slots["kaa_3"] == Some(before);
    keeps(&a, &b, "the slot of the one that is away stays where that is", waits).await;
    b.server.checkpoint().await.unwrap();
    // A restart forgets nothing.
    b.server.stop(Stop::Immediate).await.unwrap();
    b.server.start_fenced().await.unwrap();
    kill(a.postmaster());
    a.server.ended().await;
    b.server.fence().await.unwrap();
    let history = [begins, b.lead(3, &[]).await];
    b.server.provide_slots(&[a.archive, c.archive]).await.unwrap();
    write(&mut b, 10..14).await;
    let kept = slots(&b).await;
    assert_eq!(kept["kaa_3"], Some(before), "the new primary uses the slot that is there");
    c.server.start_fenced().await.unwrap();
    c.follow(&b, 3, &history).await;
    eventually_async("all rows at the one that was away", async || {
        let rows = c.rows().await;
        if rows == Vec::from_iter(0..14) { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
    tend(&c).await;
    assert_eq!(
        slots(&c).await,
        BTreeMap::new(),
        "what the primary before told does not count, and this one has told nothing"
    );
    keeps(&b, &c, "slots of the next generation", |slots| slots.keys().eq(["kaa_1", "kaa_2"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_at_a_standby_never_fills_its_volume_and_goes_with_its_archive() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(PARAMETERS);
    let ([mut a, mut b, mut c], begins) = lab.three().await;
    keeps(&a, &b, "the slots of both others", |slots| slots.keys().eq(["kaa_1", "kaa_3"])).await;
    c.server.stop(Stop::Fast).await.unwrap();
    // The volume of b is smaller.
    b.server.stop(Stop::Fast).await.unwrap();
    lab.set_parameters(&format!("{PARAMETERS}max_slot_wal_keep_size = 32MB\n"));
    b.server.start_fenced().await.unwrap();
    b.follow(&a, 2, &[begins]).await;
    assert_eq!(slots(&b).await.len(), 2, "they are kept");
    write(&mut a, 0..6).await;
    let end = file(&a).await;
    eventually_async("a slot that has lost its log", async || {
        b.server.checkpoint().await.map_err(|error| error.to_string())?;
        let slots = slots(&b).await;
        if slots["kaa_3"].is_none() { Ok(()) } else { Err(format!("{slots:?}")) }
    })
    .await;
    keeps(&a, &b, "another one in its place", |slots| slots["kaa_3"] >= Some(end - 1)).await;
    a.server.provide_slots(&[b.archive]).await.unwrap();
    keeps(&a, &b, "no slot of an archive that was removed", |slots| slots.keys().eq(["kaa_1"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_dropped_by_hand_is_made_again() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(PARAMETERS);
    let ([a, b, mut c], _) = lab.three().await;
    c.server.stop(Stop::Fast).await.unwrap();
    eventually_async("the slot to be dropped", async || {
        let drop = a.superuser().await.batch_execute("SELECT pg_drop_replication_slot('kaa_3')").await;
        drop.map_err(|error| error.to_string())
    })
    .await;
    tend(&a).await;
    assert!(!slots(&a).await.contains_key("kaa_3"), "nothing is known of it");
    a.server.slots(a.archive).unwrap().tend(&[b.archive, c.archive]).await.unwrap();
    assert!(slots(&a).await.contains_key("kaa_3"));
}

/// What a primary keeps for a member that is away has a limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_whose_slot_was_lost_says_so_and_is_copied() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(&format!("{PARAMETERS}max_slot_wal_keep_size = 32MB\n"));
    let ([mut a, b, mut c], begins) = lab.three().await;
    c.server.stop(Stop::Fast).await.unwrap();
    // Each time when the primary tells how far its members are, and when it is told which ones there are.
    for round in 0..2 {
        write(&mut a, 6 * round..6 * round + 6).await;
        eventually_async("a slot that has lost its log", async || {
            a.server.checkpoint().await.map_err(|error| error.to_string())?;
            let slots = slots(&a).await;
            if slots["kaa_3"].is_none() { Ok(()) } else { Err(format!("{slots:?}")) }
        })
        .await;
        match round {
            0 => tend(&a).await,
            _ => a.server.provide_slots(&[b.archive, c.archive]).await.unwrap(),
        }
        assert!(slots(&a).await["kaa_3"].is_some(), "round {round}");
    }
    c.server.start_fenced().await.unwrap();
    assert_eq!(c.server.follow(c.archive, &a.source(), 2, &[begins]).await.unwrap(), Follows::Streams);
    assert!(c.lacks_log(2).await);
    c.join(&a, 2, &[begins]).await;
    eventually_async("all rows", async || {
        let rows = c.rows().await;
        if rows == Vec::from_iter(0..12) { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
}

/// A standby asks for the history of every number since its own timeline, also for those that are no ancestors.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lacks_log_of_two_generations_says_so_and_is_copied() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(PARAMETERS);
    let ([mut a, mut b, mut c], first) = lab.three().await;
    c.server.stop(Stop::Fast).await.unwrap();
    write(&mut a, 0..3).await;
    a.server.fence().await.unwrap();
    let second = a.lead(4, &[]).await;
    b.join(&a, 4, &[first, second]).await;
    kill(a.postmaster());
    a.server.ended().await;
    b.server.fence().await.unwrap();
    let history = [first, second, b.lead(6, &[]).await];
    b.server.provide_slots(&[a.archive, c.archive]).await.unwrap();
    write(&mut b, 3..6).await;
    c.server.start_fenced().await.unwrap();
    let follows = c.server.follow(c.archive, &b.source(), 6, &history).await.unwrap();
    assert_eq!(follows, Follows::Streams, "its log is a part of the primary's history");
    let mut why = None;
    eventually_async("a standby that lacks log", async || {
        let reading = c.server.read().await.map_err(|error| error.to_string())?;
        if reading.lacks_log {
            why = reading.receiver_failure;
            return Ok(());
        }
        Err(format!("{reading:?}"))
    })
    .await;
    assert!(why.as_ref().is_some_and(|why| why.contains("has already been removed")), "{why:?}");
    c.join(&b, 6, &history).await;
    eventually_async("all rows", async || {
        let rows = c.rows().await;
        if rows == Vec::from_iter(0..6) { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
}
