//! How a server follows a primary, changes places with it, and is overwritten if its log is no prefix.

use super::lab::{Lab, Member, hold, kill, signal, titled};
use kaa_core::domain::ids::ArchiveId;
use kaa_engine::postgres::{Begins, Error, Follows, Stop};
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use testkit::{Chance, eventually_async, tier};
use tokio::time::sleep;

/// Waits until this member shows as many rows.
async fn shows(member: &Member, count: usize) {
    eventually_async("all rows at a standby", async || {
        let rows = member.rows().await.len();
        if rows == count { Ok(()) } else { Err(format!("{rows} rows")) }
    })
    .await;
}

async fn insert(member: &Member, ids: std::ops::Range<i64>) {
    let client = member.client().await.unwrap();
    for id in ids {
        client.batch_execute(&format!("INSERT INTO rows VALUES ({id}, 0)")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_change_places_twice_and_lose_nothing() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let (mut b, mut c) = (lab.member(2), lab.member(3));
    let mut history = vec![begins];
    a.server.provide_slots(&[b.archive, c.archive]).await.unwrap();
    b.join(&a, 2, &history).await;
    c.join(&a, 2, &history).await;
    a.server.require(&[b.archive, c.archive], 2).await.unwrap();
    insert(&a, 0..10).await;
    let standbys = a.server.read().await.unwrap().standbys;
    assert_eq!(standbys.iter().map(|it| it.archive).collect::<Vec<_>>(), [b.archive, c.archive]);
    b.server.admit_readers().await.unwrap();
    let reader = b.client().await.unwrap();
    assert!(reader.batch_execute("DELETE FROM rows").await.is_err(), "a standby is read only");
    // To b.
    a.server.checkpoint().await.unwrap();
    a.server.close().await.unwrap();
    let end = a.server.stop(Stop::Fast).await.unwrap().unwrap();
    let exact = b.server.fence().await.unwrap();
    assert_eq!(exact, end, "all of the log was sent before the stop, and the end of both is exact");
    let begins = b.server.promote(3, &[c.archive]).await.unwrap();
    assert_eq!((begins.parent.0, begins.at), (2, end));
    history.push(begins);
    c.follow(&b, 3, &history).await;
    b.server.establish().await.unwrap();
    b.server.open().await.unwrap();
    a.server.start_fenced().await.unwrap();
    b.server.provide_slots(&[a.archive, c.archive]).await.unwrap();
    a.follow(&b, 3, &history).await;
    insert(&b, 10..20).await;
    // To c, which has its last follower one generation behind, and with numbers that were never used between them.
    b.server.stop(Stop::Fast).await.unwrap();
    c.server.fence().await.unwrap();
    history.push(c.server.promote(9, &[]).await.unwrap());
    c.server.establish().await.unwrap();
    c.server.open().await.unwrap();
    c.server.provide_slots(&[a.archive, b.archive]).await.unwrap();
    a.follow(&c, 9, &history).await;
    b.server.start_fenced().await.unwrap();
    b.follow(&c, 9, &history).await;
    c.server.require(&[a.archive, b.archive], 9).await.unwrap();
    insert(&c, 20..30).await;
    for member in [&a, &b, &c] {
        shows(member, 30).await;
    }
}

/// Its client was led there by an address that is out of date, and a pool would keep the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_tries_to_write_at_a_standby_is_ended() {
    let Some(lab) = Lab::new() else { return };
    let ([a, mut b, _c], _) = lab.three().await;
    b.server.admit_readers().await.unwrap();
    let (misled, reader) = (b.client().await.unwrap(), b.client().await.unwrap());
    reader.batch_execute("DELETE FROM rows").await.unwrap_err();
    eventually_async("the end of the session", async || {
        let _ = misled.batch_execute("DELETE FROM rows").await;
        b.server.read().await.map_err(|error| error.to_string())?;
        misled.batch_execute("SELECT 1").await.err().map(drop).ok_or("it goes on".to_owned())
    })
    .await;
    reader.batch_execute("SELECT 1").await.unwrap();
    let client = a.client().await.unwrap();
    client.batch_execute("SET default_transaction_read_only = on").await.unwrap();
    client.batch_execute("DELETE FROM rows").await.unwrap_err();
    client.batch_execute("DELETE FROM rows").await.unwrap_err();
    a.server.read().await.unwrap();
    client.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_makes_the_default_of_transactions_keeps_no_standby_from_taking_over() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(
        "shared_buffers = 16MB\nmax_connections = 60\ndefault_transaction_isolation = serializable\n\
                        default_transaction_deferrable = on\n",
    );
    let ([mut a, mut b, _c], _) = lab.three().await;
    b.server.read().await.unwrap();
    kill(a.postmaster());
    a.server.ended().await;
    b.server.fence().await.unwrap();
    b.lead(3, &[]).await;
    insert(&b, 0..2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_crashed_with_log_of_its_own_is_not_connected_and_rewound() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    insert(&a, 0..5).await;
    shows(&b, 5).await;
    b.server.fence().await.unwrap();
    insert(&a, 5..10).await;
    kill(a.postmaster());
    a.server.ended().await;
    let history = vec![begins, b.lead(3, &[]).await];
    b.server.provide_slots(&[a.archive]).await.unwrap();
    b.server.checkpoint().await.unwrap();
    a.server.fence().await.unwrap();
    assert!(a.settings.directory.join("pgdata/pg_replslot/kaa_2").exists(), "a start forgets no slot");
    for _ in 0..2 {
        let follows = a.server.follow(a.archive, &b.source(), 3, &history).await.unwrap();
        let Follows::NeedsOverwrite { why } = follows else { panic!("it follows with log of its own") };
        assert!(why.contains("timeline 2 ends at"), "{why}");
    }
    assert!(b.server.read().await.unwrap().standbys.is_empty());
    let rewound = a.server.overwrite(&b.source(), true).await.unwrap().data;
    assert!(!a.settings.directory.join("pgdata.old").exists(), "it was rewound, and not copied");
    let slots = std::fs::read_dir(a.settings.directory.join("pgdata/pg_replslot")).unwrap().count();
    assert_eq!(slots, 0, "where its slots were is another history");
    a.server.start_fenced().await.unwrap();
    a.follow(&b, 3, &history).await;
    b.server.require(&[a.archive], 3).await.unwrap();
    insert(&b, 100..105).await;
    shows(&a, 10).await;
    assert_eq!(a.rows().await, b.rows().await);
    // Its control file named the source's last checkpoint, and it recovered from an earlier one.
    kill(a.postmaster());
    a.server.ended().await;
    let [first, last] = [rewound, a.server.inspect().unwrap()].map(|data| data.checkpoint().unwrap());
    assert!(last >= first, "{last} {first}: what a wrapper remembers would condemn the data");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashed_before_its_first_own_record_is_no_prefix_of_its_siblings() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let (mut b, mut c) = (lab.member(2), lab.member(3));
    a.server.provide_slots(&[b.archive, c.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    c.join(&a, 2, &[begins]).await;
    b.server.fence().await.unwrap();
    // c is further than b.
    insert(&a, 0..50).await;
    shows(&c, 50).await;
    a.server.stop(Stop::Immediate).await.unwrap();
    // b has the first record of timeline 3, and no row that says so; its end is before that of c.
    b.server.promote(3, &[ArchiveId(99)]).await.unwrap();
    kill(b.postmaster());
    b.server.ended().await;
    c.server.fence().await.unwrap();
    let history = [begins, c.lead(4, &[]).await];
    c.server.provide_slots(&[b.archive]).await.unwrap();
    let end = b.server.fence().await.unwrap();
    assert!(end < history[1].at, "{end} {:?}", history[1]);
    let follows = b.server.follow(b.archive, &c.source(), 4, &history).await.unwrap();
    let Follows::NeedsOverwrite { why } = follows else { panic!("it follows with a record of timeline 3") };
    assert!(why.contains("timeline 3 is no known ancestor"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_takes_the_place_of_data_and_readers_wait_for_the_first_record() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    insert(&a, 0..5).await;
    let mut b = lab.member(2);
    b.server.initialize().await.unwrap();
    let other = b.server.inspect().unwrap();
    let data = b.server.overwrite(&a.source(), false).await.unwrap().data;
    assert_ne!(super::lab::system(&other), super::lab::system(&data));
    b.server.start_fenced().await.unwrap();
    assert!(matches!(b.server.admit_readers().await, Err(Error::State(_))), "it follows no server");
    let unknown: [Begins; 0] = [];
    let follows = b.server.follow(b.archive, &a.source(), 3, &unknown).await.unwrap();
    assert!(matches!(follows, Follows::NeedsOverwrite { .. }), "{follows:?}");
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.follow(&a, 2, &[begins]).await;
    b.server.admit_readers().await.unwrap();
    let client = b.client().await.unwrap();
    assert_eq!(client.query("SELECT id FROM rows", &[]).await.unwrap().len(), 5);
    // A reader holds up replay, and so would the fence.
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM rows").await.unwrap();
    b.superuser().await.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    a.client().await.unwrap().batch_execute("ALTER TABLE rows ADD COLUMN more int").await.unwrap();
    let end = a.server.read().await.unwrap().end;
    eventually_async("a standby that has flushed all", async || {
        let standbys = a.server.read().await.map_err(|error| error.to_string())?.standbys;
        if standbys.iter().any(|it| it.flushed >= end) { Ok(()) } else { Err(format!("{standbys:?}")) }
    })
    .await;
    b.server.fence().await.unwrap();
    b.superuser().await.batch_execute("SELECT more FROM rows").await.expect("all that was flushed was replayed");
    assert!(client.batch_execute("SELECT 1").await.is_err(), "the reader was ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_disk_is_slow_is_not_begun_again() {
    let Some(lab) = Lab::new() else { return };
    let (a, _) = lab.primary(1).await;
    let (mut b, source) = (lab.member(2), a.source());
    let volume = lab.volume(2).display().to_string();
    let copies = tokio::spawn(async move { b.server.overwrite(&source, false).await });
    // The program, which waits for its receiver of the log before it ends.
    let programs = || {
        let line = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let copies = |line: &str| line.split('\0').next().is_some_and(|it| it.ends_with("/pg_basebackup"));
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| copies(&line(*pid)) && line(*pid).contains(&volume)).collect::<Vec<_>>()
    };
    let mut pair = Vec::new();
    while pair.len() < 2 {
        assert!(!copies.is_finished(), "its processes were not seen");
        tokio::task::yield_now().await;
        pair = programs();
    }
    // The first one is the program, and the other its receiver.
    let parent = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok()).unwrap()
    };
    if parent(pair[0]) == pair[1] {
        pair.swap(0, 1);
    }
    signal(pair[0], Signal::SIGSTOP);
    let superuser = a.superuser().await;
    eventually_async("a copy that receives the log", async || {
        let streams = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'";
        let rows = superuser.query(streams, &[]).await.map_err(|error| error.to_string())?;
        if rows.is_empty() { Err("it does not".to_owned()) } else { Ok(()) }
    })
    .await;
    signal(pair[1], Signal::SIGSTOP);
    // Longer than the primary waits for a standby.
    sleep(Duration::from_secs(8)).await;
    pair.into_iter().for_each(|pid| signal(pid, Signal::SIGCONT));
    copies.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_from_a_primary_that_writes_is_completed_by_following() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    b.server.fence().await.unwrap();
    insert(&a, 0..20).await;
    a.server.stop(Stop::Immediate).await.unwrap();
    let history = vec![begins, b.lead(3, &[]).await];
    b.server.provide_slots(&[a.archive]).await.unwrap();
    b.server.checkpoint().await.unwrap();
    let client = b.client().await.unwrap();
    let writer = tokio::spawn(async move {
        let big = "CREATE TABLE big AS SELECT id, repeat(md5(id::text), 9) FROM generate_series(1, 3000) AS id; DROP TABLE big";
        while client.batch_execute(big).await.is_ok() {}
    });
    a.server.start_fenced().await.unwrap();
    a.server.overwrite(&b.source(), true).await.unwrap();
    assert!(!a.settings.directory.join("pgdata.old").exists(), "it was rewound, and not copied");
    a.server.start_fenced().await.unwrap();
    a.follow(&b, 3, &history).await;
    b.server.require(&[a.archive], 3).await.unwrap();
    b.server.close().await.unwrap();
    writer.await.unwrap();
    b.server.open().await.unwrap();
    insert(&b, 100..103).await;
    shows(&a, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_waits_for_the_first_checkpoint_of_the_new_primary() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    let big = "CREATE TABLE big AS SELECT id, repeat(md5(id::text), 9) FROM generate_series(1, 30000) AS id";
    a.client().await.unwrap().batch_execute(big).await.unwrap();
    b.server.fence().await.unwrap();
    insert(&a, 0..20).await;
    a.server.stop(Stop::Immediate).await.unwrap();
    let history = vec![begins, b.lead(3, &[]).await];
    // Its first checkpoint is spread: a tenth of a second for each of a thousand pages. Before, it was needed for the rule.
    let checkpointer = titled(&b, "checkpointer");
    hold(&checkpointer, Signal::SIGSTOP);
    let timeline = "SELECT timeline_id FROM pg_control_checkpoint()";
    let before: i32 = b.superuser().await.query_one(timeline, &[]).await.unwrap().get(0);
    assert_eq!(before, 2, "the checkpoint was made already: the test needs more to be written");
    b.server.provide_slots(&[a.archive]).await.unwrap();
    a.server.start_fenced().await.unwrap();
    let source = b.source();
    let rewind = tokio::spawn(async move {
        let done = a.server.overwrite(&source, true).await;
        (a, done)
    });
    sleep(Duration::from_millis(2500)).await;
    hold(&checkpointer, Signal::SIGCONT);
    b.server.checkpoint().await.unwrap();
    let (mut a, done) = rewind.await.unwrap();
    assert!(!done.unwrap().copied, "it was rewound");
    a.server.start_fenced().await.unwrap();
    a.follow(&b, 3, &history).await;
    insert(&b, 100..103).await;
    shows(&a, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exact_end_of_a_standby_is_the_same_after_a_restart_and_has_all_it_confirmed() {
    let name = "the_exact_end_of_a_standby_is_the_same_after_a_restart_and_has_all_it_confirmed";
    // Each has six ends.
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 500)) {
        let Some(lab) = Lab::new() else { return };
        ends(&lab, &mut chance).await;
    }
}

/// More bytes than a record of that test takes.
const RECORD: u64 = 64 << 10;

async fn ends(lab: &Lab, chance: &mut Chance) {
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    a.server.require(&[b.archive], 2).await.unwrap();
    let (client, acknowledged) = (a.client().await.unwrap(), Arc::new(AtomicI64::new(0)));
    let last = acknowledged.clone();
    let writer = tokio::spawn(async move {
        for id in 1.. {
            // Records of several pages.
            let big = format!(
                "INSERT INTO rows VALUES ({id}, 0); \
                SELECT pg_logical_emit_message(true, 'test', repeat('x', (random() * 60000)::int)) FROM generate_series(1, 9)"
            );
            if client.batch_execute(&big).await.is_err() {
                return;
            }
            last.store(id, Ordering::SeqCst);
        }
    });
    for _ in 0..6 {
        // It was fenced a moment ago, and so has failed to find more a moment ago.
        b.follow(&a, 2, &[begins]).await;
        if chance.coin() {
            b.superuser().await.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
        }
        sleep(Duration::from_millis(chance.below(300) as u64)).await;
        let confirmed = a.server.read().await.unwrap().standbys.iter().map(|it| it.flushed.0).max();
        if chance.coin() {
            kill(b.postmaster());
            b.server.ended().await;
        }
        // From here on it confirms nothing: the old receiver has ended, or ends.
        let end = b.server.fence().await.unwrap();
        let acknowledged = acknowledged.load(Ordering::SeqCst);
        let held = b.rows().await;
        assert!(
            (1..=acknowledged).all(|id| held.binary_search(&id).is_ok()),
            "of {acknowledged} rows it has {}",
            held.len()
        );
        // Confirmed may be the beginning of a record, which tells of no commit.
        assert!(Some(end.0 + RECORD) > confirmed, "{end} is the end, and it had confirmed {confirmed:?}");
        assert_eq!(b.server.fence().await.unwrap(), end);
        b.server.stop(Stop::Immediate).await.unwrap();
        b.server.start_fenced().await.unwrap();
        assert_eq!(b.server.fence().await.unwrap(), end);
    }
    // Its commit waits for the standby.
    a.server.require(&[], 2).await.unwrap();
    a.server.close().await.unwrap();
    writer.await.unwrap();
}
