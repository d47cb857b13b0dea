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
async fn a_server_starts_with_the_parameters_before_if_no_session_can_load_the_new_ones_libraries() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(&format!("{BASE}work_mem = 7MB\n"));
    let (mut a, _) = lab.primary(1).await;
    a.server.stop(Stop::Fast).await.unwrap();
    lab.set_parameters(&format!("{BASE}session_preload_libraries = 'none'\n"));
    a.server.start_fenced().await.unwrap();
    a.lead(3, &[]).await;
    let complaint = a.server.complaints().concat();
    assert!(complaint.ends_with("the last good ones stay") && a.server.retries_libraries(), "{complaint}");
    let shown = a.client().await.unwrap().query_one("SHOW work_mem", &[]).await.unwrap();
    assert_eq!(shown.get::<_, &str>(0), "7MB");
    lab.set_parameters(BASE);
    a.server.refresh().await.unwrap();
    assert_eq!(a.server.complaints(), [""; 0]);
    assert!(!a.server.retries_libraries());
}

/// The server's program accepts all of these.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_with_the_parameters_of_its_last_start_if_it_does_not_with_the_new_ones() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(&format!("{BASE}work_mem = 7MB\n"));
    let (mut a, _) = lab.primary(1).await;
    for (wrong, said) in [
        ("shared_preload_libraries = 'none'", "could not access file \"none\""),
        ("shared_buffers = 900GB", "could not map anonymous shared memory"),
    ] {
        // The running server hears of it, and takes it with its next start.
        lab.set_parameters(&format!("{BASE}work_mem = 8MB\n{wrong}\n"));
        a.server.refresh().await.unwrap();
        a.server.stop(Stop::Immediate).await.unwrap();
        a.server.start_fenced().await.unwrap();
        let complaint = a.server.complaints().concat();
        assert!(complaint.contains(said) && complaint.ends_with("the last good ones stay"), "{complaint}");
        a.server.refresh().await.unwrap();
        assert_eq!(a.server.complaints().concat(), complaint, "it stays until the file changes");
    }
    a.lead(3, &[]).await;
    let shown = a.client().await.unwrap().query_one("SHOW work_mem", &[]).await.unwrap();
    assert_eq!(shown.get::<_, &str>(0), "7MB");
    lab.set_parameters(BASE);
    a.server.refresh().await.unwrap();
    assert_eq!(a.server.complaints(), [""; 0]);
    // With those of its last start no client could connect.
    a.server.stop(Stop::Fast).await.unwrap();
    let started = a.settings.directory.join("conf/started.conf");
    let good = std::fs::read_to_string(&started).unwrap();
    std::fs::write(&started, "session_preload_libraries = 'none'\n").unwrap();
    lab.set_parameters(&format!("{BASE}shared_preload_libraries = 'none'\n"));
    let error = a.server.start_fenced().await.unwrap_err().to_string();
    assert!(error.contains("could not access file"), "{error}");
    std::fs::write(&started, good).unwrap();
    a.server.start_fenced().await.unwrap();
    // What no parameters help against is said as it is.
    a.server.stop(Stop::Fast).await.unwrap();
    lab.set_parameters(&format!("{BASE}work_mem = 9MB\n"));
    std::fs::remove_dir_all(a.settings.directory.join("pgdata/pg_notify")).unwrap();
    let error = a.server.start_fenced().await.unwrap_err().to_string();
    assert!(error.contains("pg_notify"), "{error}");
    assert_eq!(a.server.complaints(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_image_lacks_a_library_of_its_sessions_does_not_start() {
    let Some(lab) = Lab::new() else { return };
    lab.set_parameters(&format!("{BASE}session_preload_libraries = 'auto_explain'\n"));
    let (mut a, _) = lab.primary(1).await;
    a.server.stop(Stop::Fast).await.unwrap();
    // As if the program's own directory had it no more.
    lab.set_parameters(&format!("{BASE}session_preload_libraries = 'none'\n"));
    let used = std::fs::read_to_string(lab.file("parameters.conf")).unwrap();
    std::fs::write(a.settings.directory.join("conf/user.conf"), used).unwrap();
    // The other one mounted names it as well.
    lab.set_parameters(&format!("{BASE}work_mem = 7MB\nsession_preload_libraries = 'none'\n"));
    let error = a.server.start_fenced().await.unwrap_err().to_string();
    assert!(error.starts_with("no client could connect with the mounted parameters: "), "{error}");
    assert_eq!(a.processes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_no_session_of_a_role_can_load_holds_up_no_change_of_roles() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    let set = "ALTER ROLE kaa SET session_preload_libraries = 'none'; ALTER DATABASE postgres SET local_preload_libraries = 'none'";
    a.superuser().await.batch_execute(set).await.unwrap();
    a.server.close().await.unwrap();
    a.server.stop(Stop::Immediate).await.unwrap();
    a.server.start_fenced().await.unwrap();
    a.lead(3, &[]).await;
    a.client().await.unwrap().batch_execute("INSERT INTO rows VALUES (1, 3)").await.unwrap();
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
