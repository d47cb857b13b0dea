//! How a server is made, started, stopped, and what is refused.

use super::lab::{Lab, kill, system};
use kaa_engine::postgres::{Data, Error, Stop, space};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_made_once_and_starts_fenced() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    assert_eq!(member.server.inspect().unwrap(), Data::Empty);
    assert!(matches!(member.server.start_fenced().await, Err(Error::State(_))));
    let made = member.server.initialize().await.unwrap();
    assert!(matches!(made, Data::Initialized { timeline: 1, highest: 1, .. }), "{made:?}");
    assert!(matches!(member.server.initialize().await, Err(Error::State(_))), "nothing is overwritten");
    member.server.start_fenced().await.unwrap();
    let reading = member.server.read().await.unwrap();
    assert!(reading.in_recovery && reading.standbys.is_empty(), "{reading:?}");
    let refused =
        member.client_as("kaa", "", "postgres").await.map(drop).expect_err("a fenced server admits no client");
    assert!(refused.as_db_error().unwrap().message().contains("pg_hba.conf"), "{refused:?}");
    let end = member.server.fence().await.unwrap();
    assert_eq!(member.server.stop(Stop::Fast).await.unwrap(), Some(end));
    assert_eq!(member.processes(), Vec::<String>::new());
    assert_eq!(system(&member.server.inspect().unwrap()), system(&made));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postmaster_that_is_killed_leaves_no_process_behind() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    // A backend that computes does not see the end of its postmaster by itself.
    let client = member.client().await.unwrap();
    let computes =
        tokio::spawn(async move { client.query("SELECT count(*) FROM generate_series(1, 1000000000)", &[]).await });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    kill(member.postmaster());
    let sentence = member.server.ended().await;
    assert!(sentence.contains("signal 9"), "{sentence}");
    assert!(matches!(member.server.read().await, Err(Error::Ended(_))));
    computes.await.unwrap().unwrap_err();
    // What works on its data, and was begun later.
    let mut left = std::process::Command::new("sleep");
    let mut left = left.arg("600").current_dir(member.settings.directory.join("pgdata")).spawn().unwrap();
    assert!(!member.processes().is_empty());
    assert_eq!(member.server.stop(Stop::Fast).await.unwrap(), None, "this was no clean end");
    let _ = left.wait(); // it may be reaped already
    assert_eq!(member.processes(), Vec::<String>::new());
    member.server.start_fenced().await.unwrap();
    member.server.fence().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_its_owner() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    member.server.start_fenced().await.unwrap();
    let other = lab.member(1);
    drop(member);
    assert_eq!(other.processes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_kaa_cannot_use_is_refused_with_a_sentence() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    let pgdata = member.settings.directory.join("pgdata");
    std::fs::create_dir_all(&pgdata).unwrap();
    std::fs::write(pgdata.join("something"), "").unwrap();
    let said = |of: &super::lab::Member| of.server.inspect().unwrap_err().to_string();
    assert!(said(&member).contains("neither empty nor a database cluster"), "{}", said(&member));
    std::fs::remove_file(pgdata.join("something")).unwrap();
    member.server.initialize().await.unwrap();
    std::fs::create_dir(pgdata.join("pg_tblspc/1")).unwrap();
    assert!(said(&member).contains("tablespaces"), "{}", said(&member));
    std::fs::remove_dir(pgdata.join("pg_tblspc/1")).unwrap();
    assert!(!member.settings.directory.join("conf/kaa.conf").exists(), "nothing was written for a server here");
    let control = std::fs::read(pgdata.join("global/pg_control")).unwrap();
    let mut damaged = control.clone();
    damaged[50] ^= 1;
    std::fs::write(pgdata.join("global/pg_control"), damaged).unwrap();
    assert!(said(&member).contains("damaged"), "{}", said(&member));
    std::fs::write(pgdata.join("global/pg_control"), control).unwrap();
    std::fs::write(pgdata.join("PG_VERSION"), "9\n").unwrap();
    assert!(said(&member).contains("PostgreSQL 9's"), "{}", said(&member));
    std::fs::write(pgdata.join("PG_VERSION"), "99\n").unwrap();
    assert!(said(&member).contains("Use an image with PostgreSQL 99;"), "{}", said(&member));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tablespace_that_was_made_here_keeps_no_server_down_and_is_complained_of() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    let place = lab.file("space");
    std::fs::create_dir(&place).unwrap();
    let (user, group) = a.settings.user.unzip();
    std::os::unix::fs::chown(&place, user, group).unwrap();
    let make = format!("CREATE TABLESPACE space LOCATION '{}'", place.display());
    a.superuser().await.batch_execute(&make).await.unwrap();
    a.server.stop(Stop::Immediate).await.unwrap();
    a.server.start_fenced().await.unwrap();
    a.lead(3, &[]).await;
    let complaint = a.server.complaints().concat();
    assert!(complaint.contains("has tablespaces"), "{complaint}");
    a.superuser().await.batch_execute("DROP TABLESPACE space").await.unwrap();
    a.server.refresh().await.unwrap();
    assert_eq!(a.server.complaints(), [""; 0]);
    a.superuser().await.batch_execute(&make).await.unwrap();
    a.server.stop(Stop::Fast).await.unwrap();
    std::fs::rename(&place, lab.file("away")).unwrap();
    let error = a.server.start_fenced().await.unwrap_err().to_string();
    assert!(error.contains(&format!("the tablespace {} is not there", place.display())), "{error}");
    std::fs::rename(lab.file("away"), &place).unwrap();
    a.server.start_fenced().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn data_in_the_layout_of_another_image_is_not_hidden_by_a_new_cluster() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    let volume = member.settings.directory.clone();
    let file = volume.join("PG_VERSION");
    for layout in ["", "data", "18/docker"] {
        let place = if layout.is_empty() { volume.clone() } else { volume.join(layout) };
        std::fs::create_dir_all(&place).unwrap();
        let file = place.join("PG_VERSION");
        std::fs::write(&file, "15\n").unwrap();
        for error in [member.server.inspect().unwrap_err(), member.server.initialize().await.unwrap_err()] {
            let said = format!("{} is a database cluster", place.display());
            assert!(matches!(&error, Error::Unusable(why) if why.contains(&said)), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
    }
    // What an interrupted copy left is no such data, nor is what lies on a volume that Kaa has used.
    std::fs::create_dir_all(volume.join("conf")).unwrap();
    std::fs::write(volume.join("conf/kaa.conf"), "").unwrap();
    std::fs::write(volume.join("18/docker/PG_VERSION"), "15\n").unwrap();
    std::fs::create_dir(volume.join("pgdata.new")).unwrap();
    std::fs::write(volume.join("pgdata.new/PG_VERSION"), "15\n").unwrap();
    member.server.initialize().await.unwrap();
    // Next to data that Kaa has made, such a file changes nothing: no server is stopped because of it.
    std::fs::write(&file, "15\n").unwrap();
    member.server.inspect().unwrap();
}

/// Runs a program of the server's as the servers' user, with this input.
fn run(lab: &Lab, member: &super::lab::Member, program: &str, arguments: &[&str], input: &str) {
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let mut command = Command::new(lab.bin().join(program));
    command.args(arguments).current_dir("/").env("LC_ALL", "C");
    if let Some((user, group)) = member.settings.user {
        std::os::unix::fs::chown(&member.settings.directory, Some(user), Some(group)).unwrap();
        command.uid(user).gid(group);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_does_not_know_the_wrapper_says_so_within_seconds() {
    let Some(lab) = Lab::new() else { return };
    let mut foreign = lab.member(1);
    let pgdata = |of: &super::lab::Member| of.settings.directory.join("pgdata").display().to_string();
    run(&lab, &foreign, "initdb", &["-U", "owner", "-A", "trust", "-D", &pgdata(&foreign)], "");
    let mut without = lab.member(2);
    without.server.initialize().await.unwrap();
    run(&lab, &without, "postgres", &["--single", "-D", &pgdata(&without), "template1"], "DROP DATABASE postgres;\n");
    for (member, missing, way_out) in [
        (&mut foreign, "role \"kaa\" does not exist", "Run CREATE ROLE kaa SUPERUSER LOGIN in"),
        (&mut without, "database \"postgres\" does not exist", "Run CREATE DATABASE postgres in"),
    ] {
        let began = std::time::Instant::now();
        let error = member.server.start_fenced().await.unwrap_err();
        assert!(matches!(&error, Error::NotAdmitted(why) if why.contains(missing) && why.contains(way_out)), "{error}");
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        member.server.stop(Stop::Immediate).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_data_is_damaged_is_not_waited_for() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    // It recovers, and lets no session in.
    let file = member.settings.directory.join("pgdata/global/pg_filenode.map");
    std::fs::rename(&file, lab.file("kept")).unwrap();
    let began = std::time::Instant::now();
    let error = member.server.start_fenced().await.unwrap_err();
    assert!(matches!(&error, Error::NoSql { said, .. } if said.contains("pg_filenode.map")), "{error}");
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    member.server.stop(Stop::Immediate).await.unwrap();
    // So is one that is damaged later.
    std::fs::rename(lab.file("kept"), &file).unwrap();
    member.server.start_fenced().await.unwrap();
    std::fs::rename(&file, lab.file("kept")).unwrap();
    let error = member.server.promote(2, &[]).await.unwrap_err();
    assert!(error.to_string().contains("pg_filenode.map"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_files_that_were_left_behind_do_not_stop_a_start() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    member.server.start_fenced().await.unwrap();
    kill(member.postmaster());
    member.server.ended().await;
    let socket = format!("run/.s.PGSQL.{}.lock", member.settings.port);
    // Another process of the user has the id of the one that has ended, as is soon so in a pod.
    let mut sleep = std::process::Command::new("sleep");
    if let Some((user, group)) = member.settings.user {
        std::os::unix::process::CommandExt::uid(&mut sleep, user);
        std::os::unix::process::CommandExt::gid(&mut sleep, group);
    }
    let mut sleep = sleep.arg("600").spawn().unwrap();
    let taken = format!("{}\n", sleep.id());
    for (name, text) in
        [("pgdata/postmaster.pid", ""), (&socket, ""), ("pgdata/postmaster.pid", &taken), (&socket, &taken)]
    {
        let path = member.settings.directory.join(name);
        assert!(path.exists(), "{name}");
        member.server.stop(Stop::Immediate).await.unwrap();
        std::fs::write(&path, text).unwrap();
        let started = member.server.start_fenced().await;
        if started.is_err() {
            sleep.kill().unwrap();
        }
        started.unwrap();
        assert_ne!(std::fs::read_to_string(&path).unwrap(), text, "{name}");
    }
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_of_the_log_follows_the_volume_unless_the_user_says_otherwise() {
    let Some(lab) = Lab::new() else { return };
    let mut member = lab.member(1);
    member.server.initialize().await.unwrap();
    let volume = space(&member.settings.directory).unwrap().size >> 20;
    let kept = format!("{}", (volume / 16).clamp(64, 1024));
    let mut shown = Vec::new();
    for own in ["", "max_slot_wal_keep_size = 200MB\n"] {
        lab.set_parameters(own);
        member.server.start_fenced().await.unwrap();
        let mut values = Vec::new();
        for name in ["wal_keep_size", "max_slot_wal_keep_size"] {
            let setting = format!("SELECT setting FROM pg_settings WHERE name = '{name}'");
            let row = member.superuser_of("postgres").await.query_one(&setting, &[]).await.unwrap();
            values.push(row.get::<_, String>(0));
        }
        shown.push(values);
        member.server.stop(Stop::Fast).await.unwrap();
    }
    let quarter = format!("{}", (volume / 4).clamp(128, 65536));
    assert_eq!(shown, [[kept.clone(), quarter], [kept, "200".to_owned()]]);
}

#[test]
fn a_program_is_not_executed_for_a_wrapper_that_has_ended() {
    let wrapper = env!("CARGO_BIN_EXE_kaa-engine");
    for (parent, sentence) in [("1", "the wrapper has ended"), ("x", "process id")] {
        let output = std::process::Command::new(wrapper).args(["--run-server", parent, "true"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "{said}");
        assert!(said.contains(sentence), "{said}");
    }
}
