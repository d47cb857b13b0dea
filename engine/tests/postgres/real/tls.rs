//! Encryption between servers, and between them and clients.

use super::lab::{Authority, Lab};
use kaa_engine::postgres::Error;

#[tokio::test(flavor = "multi_thread")]
async fn with_certificates_everybody_encrypts_and_a_standby_verifies_its_primary() {
    let Some(lab) = Lab::new() else { return };
    let authority = Authority::new("first");
    lab.set_tls(&authority);
    let mut a = lab.member(1);
    a.server.initialize().await.unwrap();
    a.server.start_fenced().await.unwrap();
    let begins = a.lead(2, &[]).await;
    a.server.prepare_roles().await.unwrap();
    assert_eq!(lab.psql(&a, &lab.verifies("shop-0.shop.test")).as_deref(), Ok("t"));
    let wrong = lab.psql(&a, &lab.verifies("other.test")).unwrap_err();
    assert!(wrong.contains("does not match host name"), "{wrong}");
    let plain = lab.psql(&a, "sslmode=disable").unwrap_err();
    assert!(plain.contains("no encryption"), "{plain}");
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)";
    assert!(a.superuser().await.query_one(encrypted, &[]).await.unwrap().get::<_, bool>(0));

    // The authority is replaced. The primary has the new certificate first: its standby does not trust it yet.
    lab.set_tls(&Authority::new("second"));
    a.server.refresh().await.unwrap();
    assert_eq!(a.server.complaints(), Vec::<String>::new());
    a.superuser().await.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").await.unwrap();
    testkit::eventually_async("the standby says why it does not stream", async || {
        let reading = b.server.read().await.map_err(|error| error.to_string())?;
        let why = reading.receiver_failure.unwrap_or_default();
        if why.contains("certificate verify failed") { Ok(()) } else { Err(why) }
    })
    .await;
    b.server.refresh().await.unwrap();
    b.streams(2).await;
    assert_eq!(b.server.read().await.unwrap().receiver_failure, None);
    assert_eq!(lab.psql(&a, &lab.verifies("shop-0.shop.test")).as_deref(), Ok("t"));

    // A key that is not the certificate's is not used.
    let before = lab.mounted("tls/tls.key");
    lab.set_tls(&authority);
    lab.mount("tls/tls.key", &before);
    a.server.refresh().await.unwrap();
    assert!(
        a.server.complaints()[0].contains("tls.key: the key is not that of tls.crt"),
        "{:?}",
        a.server.complaints()
    );
    assert_eq!(lab.psql(&a, "sslmode=require").as_deref(), Ok("t"), "with the last good one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_certificate_does_not_start_in_plaintext() {
    let Some(lab) = Lab::new() else { return };
    lab.set_tls(&Authority::new("first"));
    let mut a = lab.member(1);
    a.server.initialize().await.unwrap();
    lab.mount("tls/tls.crt", "");
    let error = a.server.start_fenced().await.unwrap_err();
    assert!(matches!(&error, Error::Unusable(why) if why.ends_with("tls.crt: no certificate in it")), "{error}");
    lab.set_tls(&Authority::new("first"));
    a.server.start_fenced().await.unwrap();
    a.lead(2, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_that_is_optional_serves_those_that_have_none_yet() {
    let Some(lab) = Lab::new() else { return };
    let (mut old, begins) = lab.primary(1).await;
    lab.set_tls(&Authority::new("first"));
    // A standby of the rolling update that introduces it follows a primary that has none.
    let mut new = lab.member_with(2, |settings| settings.tls_optional = true);
    old.server.provide_slots(&[new.archive]).await.unwrap();
    new.join(&old, 2, &[begins]).await;
    new.server.admit_readers().await.unwrap();
    for (mode, encrypted) in [("disable", "f"), ("require", "t")] {
        assert_eq!(lab.psql(&new, &format!("sslmode={mode}")).as_deref(), Ok(encrypted));
    }
}
