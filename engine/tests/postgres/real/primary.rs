//! How a server becomes the primary of a generation, and what is left of a generation after a crash.

use super::lab::{Lab, Member, kill, signal};
use kaa_engine::postgres::{Data, Error, Follows, Knock, Stop};
use std::time::Duration;
use testkit::{Chance, tier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_takes_the_number_of_its_generation_and_admits_no_client_by_itself() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    member.server.start_fenced().await.unwrap();
    let end = member.server.fence().await.unwrap();
    let begins = member.server.promote(7, &[]).await.unwrap();
    assert_eq!((begins.generation.0, begins.parent.0, begins.at), (7, 1, end));
    assert!(matches!(member.server.promote(8, &[]).await, Err(Error::State(_))), "once");
    assert!(member.client_as("kaa", "", "postgres").await.is_err());
    let first = member.server.establish().await.unwrap();
    assert!(first > end);
    member.server.open().await.unwrap();
    member.server.prepare_roles().await.unwrap();
    member.server.checkpoint().await.unwrap();
    let client = member.client().await.unwrap();
    client.batch_execute("CREATE TABLE mine (x int)").await.unwrap();
    let reading = member.server.read().await.unwrap();
    assert_eq!((reading.in_recovery, reading.timeline, reading.connections), (false, 7, 1), "{reading:?}");
    member.server.close().await.unwrap();
    assert!(client.batch_execute("SELECT 1").await.is_err(), "its session has ended");
    assert!(member.client().await.is_err());
    assert_eq!(member.server.read().await.unwrap().connections, 0);
    member.server.open().await.unwrap();
    member.client().await.unwrap();
    let stopped = member.server.stop(Stop::Fast).await.unwrap().unwrap();
    member.server.start_fenced().await.unwrap();
    assert_eq!(member.server.fence().await.unwrap(), stopped, "a clean stop tells the exact end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_killed_keeps_what_it_acknowledged_and_accepts_no_more() {
    let name = "a_primary_that_is_killed_keeps_what_it_acknowledged_and_accepts_no_more";
    // Each has three ends.
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 500)) {
        let Some(lab) = Lab::new() else { return };
        killed_under_writes(&lab, &mut chance).await;
    }
}

/// Inserts until its session ends, at times by a statement that computes before: its backend does not see the end of the first process.
async fn write(member: &Member, first: i64, rows_to_count: usize) -> JoinHandle<Vec<i64>> {
    let client = member.client().await.unwrap();
    tokio::spawn(async move {
        let mut done = Vec::new();
        for id in first.. {
            let counted = format!("WITH c AS MATERIALIZED (SELECT count(*) FROM generate_series(1, {rows_to_count}))");
            if client.batch_execute(&format!("{counted} INSERT INTO rows SELECT {id}, 0 FROM c")).await.is_err() {
                break;
            }
            done.push(id);
        }
        done
    })
}

async fn killed_under_writes(lab: &Lab, chance: &mut Chance) {
    const COMPUTES: [usize; 5] = [0, 0, 1_000, 300_000, 3_000_000];
    let (mut member, _) = lab.primary(1).await;
    let (mut acknowledged, mut generation, mut ids) = (Vec::new(), 2, (1..).map(|number: i64| number * 1_000_000));
    for _ in 0..3 {
        let (mut writers, mut opened, mut idle) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 + chance.below(4) {
            writers.push(write(&member, ids.next().unwrap(), COMPUTES[chance.below(COMPUTES.len())]).await);
        }
        for _ in 0..chance.below(3) {
            let client = member.client().await.unwrap();
            client
                .batch_execute(&format!("BEGIN; INSERT INTO rows VALUES ({}, 0)", ids.next().unwrap()))
                .await
                .unwrap();
            opened.push(client);
            idle.push(member.client().await.unwrap());
        }
        sleep(Duration::from_millis(chance.below(400) as u64)).await;
        kill(member.postmaster());
        member.server.ended().await;
        let end = member.server.fence().await.unwrap();
        for client in &opened {
            client.batch_execute("COMMIT").await.expect_err("a commit after the end");
        }
        for client in &idle {
            client.batch_execute("INSERT INTO rows VALUES (0, 0)").await.expect_err("a write after the end");
        }
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        assert_eq!(member.server.fence().await.unwrap(), end, "the exact end does not move");
        generation += 1 + u32::try_from(chance.below(3)).unwrap();
        let begins = member.lead(generation, &[]).await;
        assert_eq!((begins.generation.0, begins.at), (generation.into(), end));
    }
    let shown = member.rows().await;
    let lost: Vec<&i64> = acknowledged.iter().filter(|id| shown.binary_search(id).is_err()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_that_was_begun_and_not_done_does_not_disturb_the_next_start() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    let wal = member.settings.directory.join("pgdata/pg_wal");
    for number in 2..6 {
        std::fs::write(wal.join(format!("{number:08X}.history")), "").unwrap();
    }
    member.server.start_fenced().await.unwrap();
    let begins = member.server.promote(6, &[]).await.unwrap();
    assert_eq!((begins.generation.0, begins.parent.0), (6, 1));
    // It ends before its first own commit.
    kill(member.postmaster());
    member.server.ended().await;
    member.server.fence().await.unwrap();
    let begins = member.lead(7, &[]).await;
    assert_eq!((begins.generation.0, begins.parent.0), (7, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_sessions_after_a_crash_is_promoted_all_the_same() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let client = member.client().await.unwrap();
    // So many subtransactions that the log does not name all of them: a standby cannot know what its readers may see.
    client.batch_execute("BEGIN; INSERT INTO rows VALUES (0, 0)").await.unwrap();
    for id in 1..100 {
        client.batch_execute(&format!("SAVEPOINT s{id}; INSERT INTO rows VALUES ({id}, 0)")).await.unwrap();
    }
    member.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1000, 0)").await.unwrap();
    member.server.checkpoint().await.unwrap();
    member.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1001, 0)").await.unwrap();
    kill(member.postmaster());
    member.server.ended().await;
    let error = member.server.fence().await.unwrap_err();
    assert!(matches!(&error, Error::NoSql { .. }), "{error}");
    let begins = member.lead(3, &[]).await;
    assert_eq!((begins.generation.0, begins.parent.0), (3, 2));
    assert_eq!(member.rows().await, [1000, 1001]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_with_many_subtransactions_keeps_no_server_from_being_promoted() {
    let name = "a_crash_with_many_subtransactions_keeps_no_server_from_being_promoted";
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 500)) {
        let Some(lab) = Lab::new() else { return };
        let (mut a, begins) = lab.primary(1).await;
        let mut b = lab.member(2);
        a.server.provide_slots(&[b.archive]).await.unwrap();
        b.join(&a, 2, &[begins]).await;
        a.server.require(&[b.archive], 2).await.unwrap();
        let open = a.client().await.unwrap();
        open.batch_execute("BEGIN; INSERT INTO rows VALUES (0, 0)").await.unwrap();
        // The log names up to 64 of a session.
        for id in 1..=chance.below(200) {
            open.batch_execute(&format!("SAVEPOINT s{id}; INSERT INTO rows VALUES ({id}, 0)")).await.unwrap();
        }
        a.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1000, 0)").await.unwrap();
        a.server.checkpoint().await.unwrap();
        a.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1001, 0)").await.unwrap();
        // A standby begins its replay where its own last checkpoint was.
        if chance.coin() {
            b.server.checkpoint().await.unwrap();
        }
        for member in [&mut a, &mut b] {
            kill(member.postmaster());
            member.server.ended().await;
        }
        let winner = if chance.coin() { &mut a } else { &mut b };
        match winner.server.fence().await {
            Ok(_) => {}
            Err(Error::NoSql { .. }) => eprintln!("the server of archive {} refuses sessions", winner.archive),
            Err(error) => panic!("{error}"),
        }
        winner.lead(3, &[]).await;
        assert_eq!(winner.rows().await, [1000, 1001]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_does_not_stop_is_not_waited_for_without_a_limit() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let client = member.client().await.unwrap();
    let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    signal(backend, nix::sys::signal::Signal::SIGSTOP);
    let stopped = member.server.stand_down(Duration::from_millis(500)).await;
    assert!(matches!(stopped, Err(Error::Stuck(_))), "{stopped:?}");
    member.server.stop(Stop::Immediate).await.unwrap();
    assert_eq!(member.processes(), Vec::<String>::new());
    member.server.start_fenced().await.unwrap();
    member.lead(3, &[]).await;
}

/// Receives, by way of a connection that takes 8 MB a second, under this name.
async fn receives_slowly(lab: &Lab, member: &Member, name: &str) -> std::process::Child {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = listener.local_addr().unwrap();
    let to = member.address();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = tokio::net::TcpStream::connect(&to).await else { continue };
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 80_000];
                while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                    if to_client.write_all(&bytes[..length]).await.is_err() {
                        break;
                    }
                    sleep(Duration::from_millis(10)).await;
                }
            });
        }
    });
    lab.receives_by(way, "pg_receivewal", name, &["--synchronous", "--status-interval=1"])
}

/// Otherwise a planned change of the primary would take as long as the slowest of all receivers.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_the_members_of_the_rule_and_for_no_other_that_is_far_behind() {
    let Some(lab) = Lab::new() else { return };
    let ([mut a, mut b, _c], _) = lab.three().await;
    a.server.require(&[b.archive], 2).await.unwrap();
    let mut slow = receives_slowly(&lab, &a, "slow").await;
    let superuser = a.superuser().await;
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'slow' AND flush_lsn IS NOT NULL";
    testkit::eventually_async("a slow receiver", async || {
        let count: i64 = superuser.query_one(streams, &[]).await.unwrap().get(0);
        testkit::wait::is(count == 1)
    })
    .await;
    // It needs 25 s for these.
    let write = "SELECT pg_logical_emit_message(false, 'test', repeat('x', 10 << 20)) FROM generate_series(1, 20)";
    superuser.batch_execute(write).await.unwrap();
    drop(superuser);
    // As the wrapper does all the time: by this it knows that the receiver answers.
    a.server.read().await.unwrap();
    a.server.close().await.unwrap();
    let stopped = a.server.stand_down(Duration::from_secs(20)).await;
    slow.kill().unwrap();
    slow.wait().unwrap();
    assert_eq!(b.server.fence().await.unwrap(), stopped.unwrap(), "it has all of the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_first_process_hangs_is_read_and_lets_no_session_in() {
    let Some(lab) = Lab::new() else { return };
    let (member, _) = lab.primary(1).await;
    let reader = member.server.reader().unwrap();
    assert!(reader.read().await.is_ok() && reader.knock().await == Knock::Answered);
    signal(member.postmaster(), nix::sys::signal::Signal::SIGSTOP);
    assert!(reader.read().await.is_ok() && reader.knock().await == Knock::Unanswered);
    signal(member.postmaster(), nix::sys::signal::Signal::SIGCONT);
    assert_eq!(reader.knock().await, Knock::Answered);
}

/// As by `pg_ctl stop -m smart`, which waits for the sessions that there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_told_to_shut_down_says_so_to_a_new_session() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let (reader, client) = (member.server.reader().unwrap(), member.client().await.unwrap());
    assert!(reader.read().await.is_ok());
    signal(member.postmaster(), nix::sys::signal::Signal::SIGTERM);
    let began = std::time::Instant::now();
    while reader.knock().await != Knock::ShuttingDown {
        assert!(began.elapsed() < Duration::from_secs(30), "it lets sessions in");
    }
    assert!(reader.read().await.is_ok() && client.batch_execute("SELECT 1").await.is_ok(), "it serves those it has");
    member.server.stop(Stop::Immediate).await.unwrap();
    member.server.start_fenced().await.unwrap();
    member.lead(3, &[]).await;
}

/// A dump of another system that is restored brings the rows by which that one noted its generations.
#[tokio::test(flavor = "multi_thread")]
async fn warnings_and_rows_of_other_systems_say_nothing_of_a_primary() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    let superuser = a.superuser_of("postgres").await;
    superuser.batch_execute("INSERT INTO kaa.generations VALUES (1, 57, 1, now())").await.unwrap();
    // Each login warns from now on.
    let other = "UPDATE pg_database SET datcollversion = '0' WHERE datname = 'postgres'";
    superuser.batch_execute(other).await.unwrap();
    let limit = Duration::from_secs(30);
    timeout(limit, a.server.require(&[b.archive], 2)).await.expect("the rule is in force").unwrap();
    assert!(a.server.committer().unwrap().commit(Duration::from_secs(1)).await.unwrap());
    b.server.admit_readers().await.expect("it holds the first record of generation 2");
    a.server.stop(Stop::Immediate).await.unwrap();
    b.server.fence().await.unwrap();
    let done = timeout(limit, b.lead(3, &[])).await;
    assert_eq!(done.expect("the first record is confirmed").generation.0, 3);
    assert_eq!(b.server.read().await.unwrap().timeline, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_is_no_confirmation() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    a.server.release_nothing().await.unwrap();
    let mut committer = a.server.committer().unwrap();
    let commit = tokio::spawn(async move { committer.commit(Duration::from_secs(1)).await.unwrap() });
    let superuser = a.superuser().await;
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'kaa_engine'";
    testkit::eventually_async("a commit that waits", async || {
        let rows = superuser.query(cancel, &[]).await.map_err(|error| error.to_string())?;
        if rows.is_empty() { Err("none waits".to_owned()) } else { Ok(()) }
    })
    .await;
    assert!(!commit.await.unwrap());
    let counted = async || match a.server.read().await.unwrap().cancelled_waits {
        1 => Ok(()),
        other => Err(format!("{other} are counted")),
    };
    testkit::eventually_async("the cancelled wait in a reading", counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_promoted_from_outside_says_so_and_releases_no_commit() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    b.server.admit_readers().await.unwrap();
    b.superuser().await.query("SELECT pg_promote()", &[]).await.unwrap();
    let reading = b.server.read().await.unwrap();
    assert!(!reading.in_recovery, "{reading:?}");
    let client = b.client().await.unwrap();
    let mut write = tokio::spawn(async move { client.batch_execute("INSERT INTO rows VALUES (1, 0)").await });
    assert!(timeout(Duration::from_millis(500), &mut write).await.is_err(), "nothing is acknowledged");
    // A fenced start would make a standby of it, which hides what it has written. A grant may come before that is known.
    let fenced = b.server.fence_for_promotion(3, &[]).await.unwrap_err();
    assert!(matches!(fenced, Error::Promoted), "{fenced}");
    write.await.unwrap().expect_err("its session has ended");
    assert!(!b.server.read().await.unwrap().in_recovery, "it was not started again");
    b.server.stop(Stop::Immediate).await.unwrap();
    let Data::Initialized { highest, .. } = b.server.inspect().unwrap() else { panic!("data") };
    assert_eq!(highest, 3, "the domain hears of the timeline");
    // Another server gets this number by a grant.
    a.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (2, 0)").await.unwrap();
    a.server.fence().await.unwrap();
    let history = [begins, a.lead(3, &[]).await];
    b.server.start_fenced().await.unwrap();
    let follows = b.server.follow(b.archive, &a.source(), 3, &history).await.unwrap();
    assert!(matches!(&follows, Follows::Outside { why } if why.contains("timeline 3 begins here at")), "{follows:?}");
}
