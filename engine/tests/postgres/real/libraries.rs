//! Libraries of the user's own parameters: what they do to sessions, and to the processes of a server.

use super::lab::{Lab, titled};
use kaa_engine::postgres::Stop;
use testkit::eventually_async;

const BASE: &str = "shared_buffers = 16MB\nmax_connections = 60\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_no_session_can_load_keeps_no_client_out() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    for name in ["session_preload_libraries", "LOCAL_preload_libraries"] {
        lab.set_parameters(&format!("{BASE}work_mem = 7MB\n{name} = 'no, such'\n"));
        a.server.refresh().await.unwrap();
        let complaint = a.server.complaints().concat();
        assert!(
            complaint.contains("no\": No such file") && complaint.ends_with("the last good ones stay"),
            "{complaint}"
        );
        a.client().await.expect("the last good ones stay");
    }
    lab.set_parameters(&format!("{BASE}session_preload_libraries = 'auto_explain, $libdir/auto_explain'\n"));
    a.server.refresh().await.unwrap();
    assert_eq!(a.server.complaints(), [""; 0]);
    let client = a.client().await.unwrap();
    client.batch_execute("SHOW auto_explain.log_analyze").await.expect("it is loaded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_a_start_brings_and_no_session_can_load_holds_up_no_change_of_roles() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    b.server.fence().await.unwrap();
    b.server.stop(Stop::Fast).await.unwrap();
    lab.set_parameters(&format!("{BASE}session_preload_libraries = 'none'\n"));
    b.server.start_fenced().await.unwrap();
    b.lead(3, &[]).await;
    let complaint = b.server.complaints().concat();
    assert!(complaint.starts_with("no client can connect with the mounted parameters: "), "{complaint}");
    assert!(b.client().await.is_err());
    lab.set_parameters(BASE);
    b.server.refresh().await.unwrap();
    assert_eq!(b.server.complaints(), [""; 0]);
    b.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1, 3)").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_a_library_is_no_session_that_has_to_end() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(&format!("{BASE}shared_preload_libraries = 'pg_prewarm'\n"));
    let (mut a, _) = lab.primary(1).await;
    let leader = "autoprewarm leader";
    eventually_async("the process of the library", async || match titled(&a, leader).len() {
        1 => Ok(()),
        _ => Err(format!("{:?}", a.processes())),
    })
    .await;
    // A session that begins while the server closes makes it look for longer.
    let before = titled(&a, leader);
    for _ in 0..5 {
        a.server.close().await.unwrap();
        a.server.open().await.unwrap();
    }
    assert_eq!(titled(&a, leader), before, "it was not told to end");
}
