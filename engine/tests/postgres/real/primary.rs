//! How a server becomes the primary of a generation, and what is left of a generation after a crash.

use super::lab::{Lab, kill, signal};
use kaa_engine::postgres::{Error, Stop};
use std::time::Duration;

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
async fn a_primary_that_is_killed_under_writes_keeps_what_it_acknowledged_and_gets_the_next_number() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let mut acknowledged = Vec::new();
    for generation in [3, 4, 9] {
        let mut writers = Vec::new();
        for writer in 0..4 {
            let client = member.client().await.unwrap();
            writers.push(tokio::spawn(async move {
                let mut done = Vec::new();
                for number in 0.. {
                    let id: i64 = (i64::from(generation) * 4 + writer) * 1_000_000 + number;
                    let sql = format!("INSERT INTO rows VALUES ({id}, {generation})");
                    if client.batch_execute(&sql).await.is_err() {
                        break;
                    }
                    done.push(id);
                }
                done
            }));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        kill(member.postmaster());
        member.server.ended().await;
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        let end = member.server.fence().await.unwrap();
        assert_eq!(member.server.fence().await.unwrap(), end, "the exact end does not move");
        let begins = member.lead(generation, &[]).await;
        assert_eq!((begins.generation.0, begins.at), (generation.into(), end));
    }
    let shown = member.rows().await;
    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
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

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_first_process_hangs_is_read_and_lets_no_session_in() {
    let Some(lab) = Lab::new() else { return };
    let (member, _) = lab.primary(1).await;
    let reader = member.server.reader().unwrap();
    assert!(reader.read().await.is_ok() && reader.lets_in().await);
    signal(member.postmaster(), nix::sys::signal::Signal::SIGSTOP);
    assert!(reader.read().await.is_ok() && !reader.lets_in().await);
    signal(member.postmaster(), nix::sys::signal::Signal::SIGCONT);
    assert!(reader.lets_in().await);
}
