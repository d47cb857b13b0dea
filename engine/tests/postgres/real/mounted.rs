//! Mounted files that are missing: what was good last stays in use, and a sentence names the file.

use super::lab::{Lab, Member};
use kaa_engine::postgres::{Error, Stop};
use testkit::eventually_async;

/// Has each server use what is mounted, and gives what each complains of.
async fn refreshed(members: [&mut Member; 2]) -> Vec<String> {
    let mut complaints = Vec::new();
    for member in members {
        member.server.refresh().await.unwrap();
        complaints.extend(member.server.complaints());
    }
    complaints
}

/// Ends the senders of a primary, and waits until its standby is back.
async fn connects_again(primary: &Member) {
    let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_replication";
    primary.superuser().await.batch_execute(end).await.unwrap();
    eventually_async("the standby is back", async || {
        let standbys = primary.server.read().await.map_err(|error| error.to_string())?.standbys;
        if standbys.iter().any(|it| it.streaming) { Ok(()) } else { Err(format!("{standbys:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_replication_without_its_files_keeps_no_server_from_its_role() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    a.server.require(&[b.archive], 2).await.unwrap();
    for file in ["replication/username", "replication/password"] {
        let before = lab.mounted(file);
        lab.unmount(file);
        let complaints = refreshed([&mut a, &mut b]).await;
        assert!(complaints.len() == 2 && complaints.iter().all(|it| it.contains(file)), "{complaints:?}");
        // A lost standby leaves the rule, a lease ends, and is renewed.
        a.server.require(&[], 2).await.unwrap();
        a.server.close().await.unwrap();
        a.server.open().await.unwrap();
        a.server.require(&[b.archive], 2).await.unwrap();
        b.server.read().await.unwrap();
        connects_again(&a).await;
        lab.mount(file, &before);
        assert_eq!(refreshed([&mut a, &mut b]).await, Vec::<String>::new());
    }
    lab.unmount("replication/username");
    a.server.stop(Stop::Fast).await.unwrap();
    b.server.fence().await.unwrap();
    b.lead(3, &[]).await;
    b.server.prepare_roles().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_had_a_replication_role_uses_up_no_generation() {
    let Some(lab) = Lab::new() else { return };
    let before = lab.mounted("replication/password");
    lab.unmount("replication/password");
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    member.server.start_fenced().await.unwrap();
    assert!(member.server.complaints()[0].contains("replication/password"), "{:?}", member.server.complaints());
    let error = member.server.promote(2, &[]).await.unwrap_err();
    assert!(matches!(&error, Error::Unusable(why) if why.contains("replication/password")), "{error}");
    lab.mount("replication/password", &before);
    member.lead(2, &[]).await;
}
