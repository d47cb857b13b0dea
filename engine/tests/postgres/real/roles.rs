//! The roles of the Secrets, and passwords that change.

use super::lab::{APPLICATION_PASSWORD, Lab, REPLICATION_PASSWORD};
use kaa_engine::postgres::{Error, Stop};

fn count(row: &tokio_postgres::Row) -> i64 {
    row.get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_made_once_and_follow_their_secrets() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let client = a.client().await.unwrap();
    let powers = "SELECT count(*) FROM pg_roles WHERE rolname IN ('app', 'replicator') AND (rolsuper OR rolcreaterole)";
    assert_eq!(count(&client.query_one(powers, &[]).await.unwrap()), 0);
    assert!(
        client.batch_execute("SELECT * FROM kaa.generations").await.is_err(),
        "what is Kaa's is not the application's"
    );
    assert!(a.client_as("kaa", APPLICATION_PASSWORD, "shop").await.is_err(), "the superuser does not come over TCP");
    assert!(a.client_as("app", REPLICATION_PASSWORD, "shop").await.is_err());
    // A standby that was connected with the old password connects with the new one.
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    lab.set_password("application", "changed '\"\\ password");
    lab.set_password("replication", "changed as well");
    a.server.prepare_roles().await.unwrap();
    a.server.prepare_roles().await.unwrap();
    a.client_as("app", "changed '\"\\ password", "shop").await.unwrap();
    assert!(a.client().await.is_err(), "the old password");
    b.server.read().await.unwrap();
    a.superuser().await.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").await.unwrap();
    testkit::eventually_async("the standby is back", async || {
        let standbys = a.server.read().await.map_err(|error| error.to_string())?.standbys;
        if standbys.iter().any(|it| it.streaming) { Ok(()) } else { Err(format!("{standbys:?}")) }
    })
    .await;
    // So is one whose role has another name now.
    lab.mount("replication/username", "another role");
    a.server.refresh().await.unwrap();
    b.server.refresh().await.unwrap();
    a.superuser().await.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").await.unwrap();
    testkit::eventually_async("the standby streams as the other role", async || {
        let role = "SELECT usename::text FROM pg_stat_replication WHERE state = 'streaming'";
        let rows = a.superuser().await.query(role, &[]).await.map_err(|error| error.to_string())?;
        let roles: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        if roles == ["another role"] { Ok(()) } else { Err(format!("{roles:?}")) }
    })
    .await;
    // The earlier one is kept out once no server uses it.
    assert!(a.server.prepares_again());
    a.server.prepare_roles().await.unwrap();
    assert!(!a.server.prepares_again());
    let keeps_out = "SELECT 1 FROM pg_roles WHERE rolname = 'replicator' AND NOT rolcanlogin AND NOT rolreplication";
    assert_eq!(a.superuser().await.query(keeps_out, &[]).await.unwrap().len(), 1);
    lab.set_password("application", "two\nlines");
    lab.set_password("replication", "changed once more");
    a.server.prepare_roles().await.unwrap();
    let complaints = a.server.complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("application/password"), "{complaints:?}");
    a.client_as("app", "changed '\"\\ password", "shop").await.unwrap();
    a.client_as("another role", "changed once more", "postgres").await.unwrap();
    assert!(matches!(b.server.prepare_roles().await, Err(Error::State(_))), "a standby makes no roles");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_the_server_refuses_keeps_back_nothing_else() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    let template = a.superuser_of("template1").await;
    lab.mount("application/dbname", "another");
    lab.set_password("replication", "changed");
    a.server.prepare_roles().await.unwrap();
    let complaints = a.server.complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("template1"), "{complaints:?}");
    a.client_as("replicator", "changed", "postgres").await.unwrap();
    assert!(a.server.prepares_again());
    drop(template);
    testkit::eventually_async("the database is made", async || {
        a.server.prepare_roles().await.map_err(|error| error.to_string())?;
        if a.server.prepares_again() { Err(format!("{:?}", a.server.complaints())) } else { Ok(()) }
    })
    .await;
    assert_eq!(a.server.complaints(), [""; 0]);
    a.client_as("app", APPLICATION_PASSWORD, "another").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_the_user_are_used_unless_kaa_decides_them() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    let shown = async |a: &super::lab::Member, name: &str| -> String {
        a.superuser().await.query_one(&format!("SHOW {name}"), &[]).await.unwrap().get(0)
    };
    assert_eq!(shown(&a, "shared_buffers").await, "16MB");
    lab.set_parameters("work_mem = 7MB\nfsync = off\nsynchronous_standby_names = ''\nmax_connections = 200\n");
    let changes = ["synchronous_standby_names = 'x'", "synchronous_commit = 'off'"];
    if shown(&a, "server_version_num").await.parse::<u32>().unwrap() >= 170_000 {
        let change = format!("ALTER SYSTEM SET {}", changes[0]);
        let refused = a.superuser().await.batch_execute(&change).await.unwrap_err();
        assert!(refused.as_db_error().unwrap().message().contains("ALTER SYSTEM is not allowed"), "{refused:?}");
        // The file can be written all the same.
        let path = a.settings.directory.join("pgdata/postgresql.auto.conf");
        std::fs::write(path, changes.join("\n") + "\n").unwrap();
    } else {
        for change in changes {
            a.superuser().await.batch_execute(&format!("ALTER SYSTEM SET {change}")).await.unwrap();
        }
    }
    a.superuser().await.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    testkit::eventually_async("the change from outside is seen", async || {
        let overridden = a.server.read().await.map_err(|error| error.to_string())?.overridden;
        if overridden == ["synchronous_standby_names", "synchronous_commit"] {
            Ok(())
        } else {
            Err(format!("{overridden:?}"))
        }
    })
    .await;
    a.server.open().await.unwrap();
    assert_eq!(a.server.read().await.unwrap().overridden, Vec::<String>::new());
    assert_eq!(shown(&a, "work_mem").await, "7MB");
    assert_eq!([shown(&a, "fsync").await, shown(&a, "synchronous_commit").await], ["on", "on"]);
    assert_eq!(shown(&a, "synchronous_standby_names").await, "", "as Kaa has set it");
    let pending = a.server.read().await.unwrap().restart_pending;
    assert!(pending.contains(&"max_connections".to_owned()), "{pending:?}");
    // One line that is wrong would keep the server from starting, or from reading any change.
    for wrong in ["no_such_parameter = 1", "work_mem = many", "work_mem = 'unfinished", "= = ="] {
        lab.set_parameters(&format!("work_mem = 9MB\n{wrong}\n"));
        a.server.close().await.unwrap();
        a.server.open().await.unwrap();
        assert_eq!(shown(&a, "work_mem").await, "7MB", "{wrong}");
    }
    a.server.stop(Stop::Fast).await.unwrap();
    a.server.start_fenced().await.unwrap();
    assert_eq!(shown(&a, "max_connections").await, "200");
    assert_eq!(shown(&a, "synchronous_standby_names").await, "ANY 1 (kaa_none)");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_lines_decide_who_connects_and_wrong_ones_keep_nothing_closed() {
    let Some(lab) = Lab::new() else { return };
    lab.mount("hba.conf", "");
    let (mut a, _) = lab.primary(1).await;
    a.superuser().await.batch_execute("CREATE ROLE guest LOGIN").await.unwrap();
    let enters = async |a: &super::lab::Member| a.client_as("guest", "", "shop").await.is_ok();
    assert!(!enters(&a).await, "it has no password");
    // A superuser and the standbys are Kaa's, whatever the lines say.
    lab.mount("hba.conf", "host shop guest 127.0.0.0/8 trust\nhost all kaa all trust\n");
    a.server.refresh().await.unwrap();
    assert!(enters(&a).await);
    assert_eq!(a.server.complaints(), Vec::<String>::new());
    a.client_as("kaa", "", "shop").await.map(drop).expect_err("the superuser enters by the socket only");
    let wrong = [
        ("host shop guest all no_such_method", "the server refuses them: invalid authentication method"),
        ("host replication all all trust", "line 1: Kaa decides who replicates"),
    ];
    for (line, why) in wrong {
        lab.mount("hba.conf", line);
        a.server.close().await.unwrap();
        a.server.open().await.unwrap();
        assert!(enters(&a).await, "the last good ones stay");
        let [complaint] = &a.server.complaints()[..] else { panic!("{:?}", a.server.complaints()) };
        assert!(complaint.contains(why) && complaint.ends_with("the last good ones stay"), "{complaint}");
    }
    // A wrapper that starts knows only what is on the volume.
    let settings = a.settings.clone();
    drop(a);
    let mut a = lab.member_with(1, |changed| *changed = settings);
    a.server.start_fenced().await.unwrap();
    a.lead(3, &[]).await;
    assert!(enters(&a).await);
    lab.mount("hba.conf", "host all guest all reject\n");
    a.server.refresh().await.unwrap();
    assert!(!enters(&a).await);
    a.client().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_were_never_good_let_no_client_in_until_they_are() {
    let Some(lab) = Lab::new() else { return };
    lab.mount("hba.conf", "host all all all no_such_method");
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    member.server.start_fenced().await.unwrap();
    member.lead(2, &[]).await;
    member.server.prepare_roles().await.unwrap();
    assert!(member.client().await.is_err());
    let complaints = member.server.complaints();
    assert!(complaints[0].ends_with("no client is let in before they are good"), "{complaints:?}");
    // No connection can match this one, as there is no TLS.
    lab.mount("hba.conf", "hostssl all all all cert\n");
    member.server.refresh().await.unwrap();
    assert_eq!(member.server.complaints(), Vec::<String>::new());
    member.client().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_line_for_clients_lets_the_replication_role_in_elsewhere() {
    let Some(lab) = Lab::new() else { return };
    lab.mount("hba.conf", "host all all all trust\n");
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    b.server.admit_readers().await.unwrap();
    for (member, database) in [(&a, "shop"), (&b, "shop"), (&b, "postgres")] {
        let entered = member.client_as("replicator", REPLICATION_PASSWORD, database).await;
        let refused = entered.map(drop).expect_err(database);
        assert!(refused.as_db_error().unwrap().message().contains("pg_hba.conf rejects"), "{refused:?}");
    }
    a.client_as("replicator", REPLICATION_PASSWORD, "postgres").await.expect("as pg_rewind");
}

/// A role of the user's that may replicate streams from a database, by the lines for clients, and runs SQL there.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_ends_senders_that_are_in_a_database() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    a.superuser().await.batch_execute("CREATE ROLE streams LOGIN REPLICATION PASSWORD 'x'").await.unwrap();
    let conninfo = format!(
        "host={} port={} user=streams password=x dbname=shop replication=database",
        a.settings.listen, a.settings.port
    );
    let mut psql = std::process::Command::new(lab.bin().join("psql"));
    psql.args(["-X", "-q", &conninfo]).stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut psql = psql.spawn().unwrap();
    let superuser = a.superuser().await;
    let senders = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' AND usename = 'streams'";
    testkit::eventually_async("a sender in a database", async || {
        let rows = superuser.query(senders, &[]).await.map_err(|error| error.to_string())?;
        if rows.len() == 1 { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
    a.server.close().await.unwrap();
    let left = a.superuser().await.query(senders, &[]).await.unwrap();
    psql.kill().unwrap();
    psql.wait().unwrap();
    assert!(left.is_empty());
}
