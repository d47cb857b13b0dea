//! Who is let in no more, and in which order sessions end.

use super::device::{Device, apart, freeze};
use super::lab::{Lab, Member, kill, signal};
use kaa_core::domain::ids::ArchiveId;
use kaa_engine::postgres::{Error, Stop};
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Longer than what is expected takes, on a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// How long something is watched that must not happen.
const WATCHED: Duration = Duration::from_millis(300);

/// A client that has said nothing yet: the server has a process for it, which is not shown.
async fn silent_client(member: &Member) -> TcpStream {
    let stream = TcpStream::connect((member.settings.listen.clone(), member.settings.port)).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    stream
}

/// That the server ends the connection.
fn is_ended(mut client: TcpStream) {
    client.set_read_timeout(Some(LONG)).unwrap();
    let read = client.read(&mut [0; 1]);
    let reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
    assert!(matches!(&read, Ok(0)) || read.as_ref().is_err_and(reset), "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_being_let_in_when_the_server_closes_is_not_let_in() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let waiting = silent_client(&member).await;
    member.server.close().await.unwrap();
    is_ended(waiting);
}

/// It would read what only this server has, and write before the server may open.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_being_let_in_when_a_standby_is_promoted_is_not_let_in() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, begins) = lab.primary(1).await;
    let mut b = lab.member(2);
    a.server.provide_slots(&[b.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    b.server.admit_readers().await.unwrap();
    let waiting = silent_client(&b).await;
    a.server.stop(Stop::Immediate).await.unwrap();
    b.server.fence().await.unwrap();
    b.server.promote(3, &[]).await.unwrap();
    is_ended(waiting);
}

/// A commit that waits for an archive that no server has, begun by this client.
async fn waiting_commit(
    member: &mut Member,
    writer: tokio_postgres::Client,
) -> tokio::task::JoinHandle<Result<(), tokio_postgres::Error>> {
    let requires = timeout(Duration::from_millis(500), member.server.require(&[ArchiveId(99)], 2)).await;
    assert!(requires.is_err(), "it waits for one that is not there");
    let waits = tokio::spawn(async move { writer.batch_execute("INSERT INTO rows VALUES (2, 0)").await });
    let superuser = member.superuser().await;
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'INSERT INTO rows%'";
    let are_waiting = async || superuser.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0);
    let began = Instant::now();
    while are_waiting().await == 0 {
        assert!(began.elapsed() < LONG, "the commit does not wait");
        sleep(Duration::from_millis(10)).await;
    }
    waits
}

/// A commit whose client is told to end shows although no member may have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_is_given_up_after_all_who_could_read_it_have_gone() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let (writer, reader, other) =
        (member.client().await.unwrap(), member.client().await.unwrap(), member.client().await.unwrap());
    other.batch_execute("BEGIN; INSERT INTO rows VALUES (1, 0)").await.unwrap();
    let pid = |client: tokio_postgres::Client| async move {
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        (client, pid)
    };
    let ((reader, reading), (other, writing)) = (pid(reader).await, pid(other).await);
    let waits = waiting_commit(&mut member, writer).await;
    // Neither hears that it is to end, first one that only reads, then one that has written.
    let mut server = member.server;
    signal(reading, Signal::SIGSTOP);
    signal(writing, Signal::SIGSTOP);
    let closing = tokio::spawn(async move {
        server.close().await.unwrap();
        server
    });
    for pid in [reading, writing] {
        tokio::time::sleep(WATCHED).await;
        assert!(!closing.is_finished() && !waits.is_finished(), "others may still read");
        signal(pid, Signal::SIGCONT);
    }
    let _server = closing.await.unwrap();
    assert!(waits.await.unwrap().is_err());
    drop((reader, other));
}

/// A process whose commit waits gives it up once it notices that the first one has ended, and then the commit shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_shows_to_none_when_the_first_process_is_killed() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let (writer, reader) = (member.client().await.unwrap(), member.client().await.unwrap());
    let waits = waiting_commit(&mut member, writer).await;
    // It looks again and again, without a wait in which it would notice the end itself.
    let looks = "DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT FROM rows WHERE id = 2); END LOOP; END $$";
    let reads = tokio::spawn(async move { reader.batch_execute(looks).await });
    sleep(WATCHED).await;
    assert!(!reads.is_finished() && !waits.is_finished());
    kill(member.postmaster());
    member.server.ended().await;
    timeout(LONG, reads).await.unwrap().unwrap().expect_err("a reader has seen a commit that no standby has");
    timeout(LONG, waits).await.unwrap().unwrap().unwrap_err();
}

/// Has a device take writes again, however the test ends: no process ends before.
struct Thaws(std::path::PathBuf);

impl Drop for Thaws {
    fn drop(&mut self) {
        let _ = std::process::Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).output();
    }
}

/// Another one takes over meanwhile, and none starts on this volume before the killed processes are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_disk_hangs_has_ended_once_it_was_killed() {
    let name = "closing::a_server_whose_disk_hangs_has_ended_once_it_was_killed";
    if !apart(name) {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let device = Device::new(lab.file("device"), lab.volume(1));
    let thaws = Thaws(device.at().to_owned());
    let (mut a, _) = lab.primary(1).await;
    let (reader, writer) = (a.client().await.unwrap(), a.client().await.unwrap());
    freeze(device.at(), true);
    let writes = tokio::spawn(async move { writer.batch_execute("INSERT INTO rows VALUES (1, 2)").await });
    sleep(WATCHED).await;
    for _ in 0..2 {
        let error = timeout(LONG, a.server.stop(Stop::Immediate)).await.expect("it waits for the disk").unwrap_err();
        assert!(matches!(error, Error::Unended(_)), "{error}");
        timeout(LONG, reader.batch_execute("SELECT 1")).await.expect("it waits").unwrap_err();
        a.server.start_fenced().await.unwrap_err();
    }
    drop(thaws);
    a.server.stop(Stop::Immediate).await.unwrap();
    writes.await.unwrap().unwrap_err();
    a.server.start_fenced().await.unwrap();
    a.lead(3, &[]).await;
    drop(a);
}

/// What a client sees may be old by then: it must not wait for the disk that its session ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_disk_takes_no_writes_does_not_close_and_is_killed() {
    let name = "closing::a_primary_whose_disk_takes_no_writes_does_not_close_and_is_killed";
    if !apart(name) {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let device = Device::new(lab.file("device"), lab.volume(1));
    let _thaws = Thaws(device.at().to_owned());
    let (mut a, _) = lab.primary(1).await;
    let (reader, writer) = (a.client().await.unwrap(), a.client().await.unwrap());
    reader.batch_execute("SELECT id FROM rows").await.unwrap();
    a.server.checkpoint().await.unwrap();
    freeze(device.at(), true);
    let writes = tokio::spawn(async move { writer.batch_execute("INSERT INTO rows VALUES (1, 2)").await });
    let at = device.at().to_owned();
    let (done, thaws) = std::sync::mpsc::sync_channel::<()>(1);
    let thaw = std::thread::spawn(move || {
        let in_time = thaws.recv_timeout(Duration::from_secs(40)).is_ok();
        freeze(&at, false);
        in_time
    });
    timeout(LONG / 6, reader.batch_execute("SELECT id FROM rows")).await.expect("it reads meanwhile").unwrap();
    timeout(Duration::from_millis(500), a.server.close()).await.expect_err("it closes without its files");
    let ended = tokio::spawn(async move {
        while reader.batch_execute("SELECT 1").await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
        done.send(()).unwrap();
    });
    // A process that writes is not gone before the disk answers.
    let _ = a.server.stop(Stop::Kill).await;
    ended.await.unwrap();
    assert!(thaw.join().unwrap(), "the reader saw more while the disk was away");
    writes.await.unwrap().unwrap_err();
    a.server.stop(Stop::Kill).await.unwrap();
    // What was to be written before comes before what is written now.
    a.server.start_fenced().await.unwrap();
    a.client().await.map(drop).unwrap_err();
    assert_eq!(a.server.read().await.unwrap().overridden, Vec::<String>::new());
    a.lead(3, &[]).await;
    drop(a);
}
