//! A volume that fills up: refused before it is full, back when there is room, and over at once when writing fails.

use super::recorder::Recorder;
use super::{Agent, blank_on, cluster, found_on, options, start_with, until, value};
use crate::raft::{Options, ProposeError, Role, Volume};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::{TempDir, tempdir};

const FLOOR: u64 = 10 << 20;

fn disk() -> (TempDir, Recorder) {
    let dir = tempdir().unwrap();
    let disk = Recorder::new(dir.path());
    (dir, disk)
}

fn leave(disk: &Recorder, free: u64) {
    disk.free.store(free, Ordering::Relaxed);
}

fn with_floor(server: &str) -> Options {
    Options { min_free: FLOOR, ..options(server, &super::free_address()) }
}

/// A disk that hangs until this is dropped.
struct Hanging(Arc<AtomicBool>);

impl Hanging {
    fn begin(disk: &Recorder) -> Self {
        disk.hung.store(true, Ordering::Relaxed);
        Self(disk.hung.clone())
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

async fn refused(agent: &Agent) -> String {
    match agent.handle.propose(value("too late", "v")).await {
        Err(error @ ProposeError::NoRoom { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn writes_are_refused_before_the_volume_is_full_and_accepted_when_there_is_room() {
    let (dir, disk) = disk();
    let agent = found_on(&disk, dir.path(), with_floor("admin-0")).await;
    agent.set("before").await;
    assert_eq!(agent.handle.no_room(), None);

    leave(&disk, FLOOR - 1);
    until("it is noticed", || agent.handle.no_room().is_some()).await;
    let why = refused(&agent).await;
    assert!(why.starts_with("admin-0 leads, and the volume of the log has 10485759 bytes free"), "{why}");
    assert!(why.contains("--min-free"), "{why}");
    // Snapshots, which make room, and reads still work.
    agent.handle.raft().trigger().snapshot().await.unwrap();
    until("a snapshot is made", || agent.handle.metrics().snapshot.is_some()).await;
    agent.handle.linearize().await.unwrap();
    assert!(agent.has("before") && !agent.has("too late"));

    leave(&disk, 2 * FLOOR);
    until("there is room", || agent.handle.no_room().is_none()).await;
    agent.set("after").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_takes_nothing_and_the_others_continue() {
    let volumes = [disk(), disk(), disk()];
    let first = found_on(&volumes[0].1, volumes[0].0.path(), with_floor("admin-0")).await;
    let second = blank_on(&volumes[1].1, volumes[1].0.path(), with_floor("admin-1")).await;
    let third = blank_on(&volumes[2].1, volumes[2].0.path(), with_floor("admin-2")).await;
    cluster::join(&first, &second).await;
    cluster::join(&first, &third).await;
    cluster::settle(&first.handle, &BTreeSet::from([first.id(), second.id(), third.id()])).await;
    first.set("before").await;
    until("all have it", || third.has("before")).await;

    leave(&volumes[2].1, 0);
    until("it is noticed", || third.handle.no_room().is_some()).await;
    for i in 0..20 {
        first.set(&format!("k{i}")).await;
    }
    until("the other follows", || second.has("k19")).await;
    assert!(!third.has("k0"), "it has no room and takes nothing");
    leave(&volumes[2].1, u64::MAX);
    until("it has caught up", || third.has("k19")).await;

    // The leader: hands over, so that the domain can be written.
    leave(&volumes[0].1, 0);
    let leads = |agent: &Agent| agent.handle.status().role == Role::Leader;
    until("another leads", || leads(&second) || leads(&third)).await;
    second.set("by another").await;
    assert!(!first.has("by another"));
    leave(&volumes[0].1, u64::MAX);
    until("it has caught up", || first.has("by another")).await;
    for agent in [first, second, third] {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_leads_on_while_its_disk_hangs() {
    let volumes = [disk(), disk(), disk()];
    let first = found_on(&volumes[0].1, volumes[0].0.path(), with_floor("admin-0")).await;
    let second = blank_on(&volumes[1].1, volumes[1].0.path(), with_floor("admin-1")).await;
    let third = blank_on(&volumes[2].1, volumes[2].0.path(), with_floor("admin-2")).await;
    cluster::join(&first, &second).await;
    cluster::join(&first, &third).await;
    cluster::settle(&first.handle, &BTreeSet::from([first.id(), second.id(), third.id()])).await;

    // Whatever fails: an agent does not end while it writes.
    let hanging = Hanging::begin(&volumes[0].1);
    first.set("by the others' disks").await;
    until("all have it", || second.has("by the others' disks") && third.has("by the others' disks")).await;
    until("it is noticed", || first.handle.cannot_write().is_some()).await;
    let why = first.handle.cannot_write().unwrap().to_string();
    assert!(why.contains("has not taken a write for"), "{why}");
    first.set("later").await;
    first.handle.linearize().await.unwrap();
    drop(hanging);
    until("it writes again", || first.handle.cannot_write().is_none()).await;
    first.set("at the end").await;
    until("all have it", || second.has("at the end") && third.has("at the end")).await;
    for agent in [first, second, third] {
        agent.stop().await;
    }
}

#[tokio::test]
async fn an_io_error_stops_raft_and_nothing_acknowledged_is_lost() {
    let (dir, disk) = disk();
    let agent = found_on(&disk, dir.path(), options("admin-0", &super::free_address())).await;
    agent.set("acknowledged").await;
    disk.broken.store(1, Ordering::Relaxed);
    let written = agent.handle.propose(value("not written", "v")).await;
    assert!(written.is_err(), "{written:?}");
    let why = agent.handle.failed().await;
    assert!(why.contains("the log's storage failed"), "{why}");
    agent.stop().await;

    disk.broken.store(0, Ordering::Relaxed);
    let volume = Volume::open_on(Arc::new(disk), dir.path()).unwrap();
    let agent = start_with(volume, options("admin-0", &super::free_address()), None).await;
    agent.handle.linearize().await.unwrap();
    assert!(agent.has("acknowledged"));
    agent.stop().await;
}
