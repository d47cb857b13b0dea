//! Parameters that a standby must not have lower than its primary, made lower.

use super::lab::{Lab, Member};
use kaa_core::domain::ids::ArchiveId;
use kaa_engine::postgres::Stop;
use testkit::eventually_async;

async fn shown(member: &Member, name: &str) -> String {
    member.superuser().await.query_one(&format!("SHOW {name}"), &[]).await.unwrap().get(0)
}

async fn pending(member: &Member) -> Vec<String> {
    member.server.read().await.unwrap().restart_pending
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_limit_takes_effect_at_the_next_change_of_the_primary() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters("shared_buffers = 16MB\nmax_connections = 120\n");
    let (mut one, first) = lab.primary(1).await;
    one.server.provide_slots(&[ArchiveId(2)]).await.unwrap();
    let mut two = lab.member(2);
    two.join(&one, 2, &[first]).await;
    lab.set_parameters("shared_buffers = 16MB\nmax_connections = 30\n");
    for member in [&mut one, &mut two] {
        member.server.refresh().await.unwrap();
        assert_eq!(pending(member).await, ["max_connections"]);
        assert_eq!(shown(member, "max_connections").await, "120");
    }
    one.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1, 2)").await.unwrap();

    // It stays as it is when it starts as a standby.
    two.server.fence().await.unwrap();
    two.server.stop(Stop::Fast).await.unwrap();
    two.server.start_fenced().await.unwrap();
    two.follow(&one, 2, &[first]).await;
    assert_eq!(shown(&two, "max_connections").await, "120");

    let end = one.server.stop(Stop::Fast).await.unwrap().unwrap();
    assert_eq!(two.server.fence().await.unwrap(), end);
    two.server.lower_limits().await.unwrap();
    let second = two.lead(3, &[]).await;
    assert_eq!(second.at, end);
    assert_eq!(shown(&two, "max_connections").await, "30");
    assert_eq!(pending(&two).await, [""; 0]);
    assert_eq!(two.rows().await, [1]);

    // The log of the new primary says so, and the other one has it at its next start.
    two.server.provide_slots(&[ArchiveId(1)]).await.unwrap();
    one.server.start_fenced().await.unwrap();
    one.follow(&two, 3, &[first, second]).await;
    two.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (2, 3)").await.unwrap();
    two.server.checkpoint().await.unwrap();
    eventually_async("replay", async || if one.rows().await == [1, 2] { Ok(()) } else { Err("not yet") }).await;
    assert_eq!(pending(&one).await, ["max_connections"]);
    one.server.checkpoint().await.unwrap();
    one.server.stop(Stop::Fast).await.unwrap();
    one.server.start_fenced().await.unwrap();
    assert_eq!(pending(&one).await, [""; 0]);
    let before = one.postmaster();
    one.server.lower_limits().await.unwrap();
    assert_eq!(one.postmaster(), before, "nothing is to be lowered");
}

/// A standby that was not started again since: PostgreSQL pauses its replay without a limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_with_lower_limits_than_a_new_primary_ends_and_starts_with_greater_ones() {
    let Some(lab) = Lab::new() else { return };
    let (mut one, first) = lab.primary(1).await;
    one.server.provide_slots(&[ArchiveId(2)]).await.unwrap();
    let mut two = lab.member(2);
    two.join(&one, 2, &[first]).await;
    lab.set_parameters("shared_buffers = 16MB\nmax_connections = 130\n");
    one.server.stop(Stop::Fast).await.unwrap();
    // It would receive the greater values before it is told to follow.
    two.server.fence().await.unwrap();
    one.server.start_fenced().await.unwrap();
    let second = one.lead(3, &[]).await;
    two.server.follow(two.archive, &one.source(), 3, &[first, second]).await.unwrap();
    one.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1, 3)").await.unwrap();
    eventually_async("its end", async || match two.server.read().await {
        Ok(reading) => Err(format!("{reading:?}")),
        Err(_) => Ok(()),
    })
    .await;
    let how = two.server.ended().await;
    assert!(how.contains("recovery aborted because of insufficient parameter settings"), "{how}");
    two.server.stop(Stop::Immediate).await.unwrap();
    two.server.start_fenced().await.unwrap();
    two.follow(&one, 3, &[first, second]).await;
    eventually_async("replay", async || if two.rows().await == [1] { Ok(()) } else { Err("not yet") }).await;
    assert_eq!(shown(&two, "max_connections").await, "130");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_lower_than_what_is_in_use_is_not_taken() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters("shared_buffers = 16MB\nmax_prepared_transactions = 5\n");
    let (mut one, _) = lab.primary(1).await;
    let client = one.client().await.unwrap();
    client.batch_execute("BEGIN; INSERT INTO rows VALUES (1, 2); PREPARE TRANSACTION 'mine'").await.unwrap();
    lab.set_parameters("shared_buffers = 16MB\nmax_prepared_transactions = 0\nmax_connections = 20\n");
    one.server.stop(Stop::Fast).await.unwrap();
    one.server.start_fenced().await.unwrap();
    one.server.lower_limits().await.unwrap();
    one.lead(3, &[]).await;
    assert_eq!(shown(&one, "max_prepared_transactions").await, "5");
    assert_eq!(pending(&one).await, ["max_connections", "max_prepared_transactions"]);
    let client = one.client().await.unwrap();
    client.batch_execute("COMMIT PREPARED 'mine'").await.unwrap();
    client.batch_execute("BEGIN; INSERT INTO rows VALUES (2, 3); PREPARE TRANSACTION 'late'").await.unwrap();
    client.batch_execute("COMMIT PREPARED 'late'").await.unwrap();
    // The log to replay after a crash has a prepared transaction.
    one.server.fence().await.unwrap();
    one.server.lower_limits().await.unwrap();
    one.lead(4, &[]).await;
    assert_eq!(shown(&one, "max_prepared_transactions").await, "5");
    one.server.stop(Stop::Fast).await.unwrap();
    one.server.start_fenced().await.unwrap();
    one.server.lower_limits().await.unwrap();
    one.lead(5, &[]).await;
    assert_eq!(shown(&one, "max_prepared_transactions").await, "0");
    assert_eq!(one.rows().await, [1, 2]);
}
