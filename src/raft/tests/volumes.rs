//! What happens to a volume between two runs of Raft.

use super::recorder::Recorder;
use super::{Agent, anchor, found, free_address, node, start};
use crate::raft::backend::{Backend, Engine, Op, Redb};
use crate::raft::disk::Local;
use crate::raft::snapshot::Pointer;
use crate::raft::types::{Entry, LogId, SnapshotMeta};
use crate::raft::volume::{Error, Parts, Volume, names, retired_logs};
use crate::raft::{Role, wire};
use kaa_core::domain::Domain;
use kaa_core::domain::ids::{MembershipEpoch, RaftId};
use openraft::EntryPayload::Blank;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use tempfile::tempdir;
use testkit::Chance;
use testkit::chance::number;

fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("log/raft.redb")
}

#[test]
fn a_raft_id_stays_with_its_log() {
    let dir = tempdir().unwrap();
    let local = Volume::open(dir.path()).unwrap().local_log();
    assert_ne!(local.raft_id, RaftId(0));
    assert_eq!((local.domain.clone(), local.epoch), (None, MembershipEpoch(0)));
    assert_eq!(Volume::open(dir.path()).unwrap().local_log(), local);
}

#[test]
fn a_volume_is_used_by_one_process_at_a_time() {
    let dir = tempdir().unwrap();
    let _volume = Volume::open(dir.path()).unwrap();
    let error = Volume::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
}

#[test]
fn the_gate_is_passed_once_per_pod() {
    let dir = tempdir().unwrap();
    let mut volume = Volume::open(dir.path()).unwrap();
    assert_eq!(volume.gate_passed(), None);
    volume.set_gate_passed("uid-1").unwrap();
    drop(volume);
    assert_eq!(Volume::open(dir.path()).unwrap().gate_passed(), Some("uid-1"));
}

#[test]
fn an_unreadable_file_is_refused_and_kept() {
    let dir = tempdir().unwrap();
    drop(Volume::open(dir.path()).unwrap());
    for garbage in
        [b"not a database".repeat(1000), vec![0; 4096], std::fs::read(file(dir.path())).unwrap()[..5000].into()]
    {
        std::fs::write(file(dir.path()), &garbage).unwrap();
        let error = Volume::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("raft.redb cannot be read") && error.contains("Remove the directory 'log'"), "{error}");
        assert_eq!(std::fs::read(file(dir.path())).unwrap(), garbage);
    }
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    assert_eq!(Volume::open(dir.path()).unwrap().local_log().domain, None, "as the error says");
}

#[test]
fn a_database_of_something_else_is_refused() {
    let dir = tempdir().unwrap();
    std::fs::create_dir(dir.path().join("log")).unwrap();
    let database = redb::Database::create(file(dir.path())).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(redb::TableDefinition::<u64, u64>::new("accounts")).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = Volume::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("accounts"), "{error}");
}

/// A volume whose log continues from a snapshot, as an orderly end leaves it; and what it holds.
fn with_a_snapshot(dir: &Path) -> (Pointer, BTreeMap<u64, Entry>) {
    let mut volume = Volume::open_on(Arc::new(Recorder::new(dir)), dir).unwrap();
    volume.found(&anchor(1, volume.local_log().raft_id), &node("a", "a:1"), None).unwrap();
    let Parts { mut backend, shelf, lock, log, .. } = volume.into_parts();
    let founding = log.entries[&0].clone();
    for index in 1..40 {
        let entry = Entry { log_id: LogId { index, ..founding.log_id }, payload: Blank };
        backend.commit(&[Op::Put(index, wire::encode(&entry).unwrap())]).unwrap();
    }
    let meta = SnapshotMeta { last_log_id: Some(LogId { index: 20, ..founding.log_id }), ..SnapshotMeta::default() };
    let pointer = shelf.write(&meta, &Domain::default()).unwrap();
    backend.commit(&[Op::Set(names::SNAPSHOT, wire::encode(&pointer).unwrap())]).unwrap();
    drop((lock, backend));
    (pointer, Volume::open(dir).unwrap().into_parts().log.entries)
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file());
    files.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn a_snapshot_that_is_missing_or_cut_off_is_refused_and_nothing_is_deleted() {
    let dir = tempdir().unwrap();
    let (pointer, _) = with_a_snapshot(dir.path());
    let shelf = dir.path().join("log/snapshots");
    let path = shelf.join(&pointer.file);
    std::fs::write(shelf.join("7-ff.snapshot"), "of another time").unwrap();
    let whole = std::fs::read(&path).unwrap();
    let make: [&dyn Fn(); 3] = [
        &|| std::fs::write(&path, &whole[..whole.len() - 1]).unwrap(),
        &|| std::fs::remove_file(&path).unwrap(),
        &|| std::os::unix::fs::symlink("elsewhere", &path).unwrap(),
    ];
    for make in make {
        make();
        let before = files(&shelf);
        let error = Volume::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&pointer.file) && error.contains("the directory 'log'"), "{error}");
        assert_eq!(files(&shelf), before);
    }
}

#[test]
fn a_log_that_is_gone_beside_its_snapshot_is_not_begun_again() {
    let dir = tempdir().unwrap();
    let (pointer, _) = with_a_snapshot(dir.path());
    let shelf = dir.path().join("log/snapshots");
    let before = files(&shelf);
    std::fs::remove_file(file(dir.path())).unwrap();
    for _ in 0..2 {
        let error = Volume::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::LogLost { .. }) && error.to_string().contains(&pointer.file), "{error}");
        assert_eq!(files(&shelf), before);
    }
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    assert_eq!(Volume::open(dir.path()).unwrap().local_log().domain, None, "without the directory it starts again");
}

#[test]
fn a_file_that_is_no_file_is_refused_with_its_name() {
    let dir = tempdir().unwrap();
    std::fs::create_dir_all(file(dir.path())).unwrap();
    let error = Volume::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("raft.redb cannot be read") && error.contains("Remove the directory 'log'"), "{error}");
    assert!(file(dir.path()).is_dir());
}

/// What a disk altered or lost by itself. `KAA_SEED` replays, `KAA_DAMAGES` says how often.
#[test]
fn a_log_that_the_disk_altered_is_refused_or_whole() {
    let mut chance = Chance::new("damage");
    let dir = tempdir().unwrap();
    let (_, entries) = with_a_snapshot(dir.path());
    let whole = std::fs::read(file(dir.path())).unwrap();
    let (mut refused, mut unharmed) = (0, 0);
    for turn in 0..number("KAA_DAMAGES").unwrap_or(60) {
        let mut bytes = whole.clone();
        let at = chance.below(bytes.len());
        match turn % 3 {
            0 => bytes.truncate(at),
            // Near the beginning, where there is more of what matters.
            1 => bytes[at % 8192] ^= 1 << chance.below(8),
            _ => bytes[at] ^= 1 << chance.below(8),
        }
        std::fs::write(file(dir.path()), &bytes).unwrap();
        match Volume::open_on(Arc::new(Recorder::new(dir.path())), dir.path()) {
            Ok(volume) => {
                assert!(volume.into_parts().log.entries == entries, "damage at {at}: another log is taken for it");
                unharmed += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("raft.redb cannot be read"), "damage at {at}: {error}");
                assert!(std::fs::read(file(dir.path())).unwrap() == bytes, "damage at {at}: the file was changed");
                refused += 1;
            }
        }
    }
    eprintln!("{refused} refused, {unharmed} unharmed");
    assert!(refused > 0);
}

#[test]
fn an_entry_of_a_newer_agent_is_refused_with_a_sentence() {
    let dir = tempdir().unwrap();
    drop(Volume::open(dir.path()).unwrap());
    let mut redb = Redb::open(&Local, &file(dir.path())).unwrap();
    redb.commit(&[Op::Put(0, vec![wire::VERSION + 1, 0xc0])]).unwrap();
    drop(redb);
    let error = Volume::open(dir.path()).unwrap_err();
    let why = error.source().unwrap().to_string();
    assert!(why.starts_with("log entry 0 was written by a newer agent"), "{why}");
}

#[test]
fn only_the_founder_founds() {
    let dir = tempdir().unwrap();
    let mut volume = Volume::open(dir.path()).unwrap();
    let another = anchor(1, RaftId(volume.local_log().raft_id.0 ^ 1));
    assert!(matches!(volume.found(&another, &node("a", "a:1"), None), Err(Error::NotFounder { .. })));
    assert_eq!(volume.local_log().epoch, MembershipEpoch(0));
}

#[tokio::test]
async fn a_founder_elects_itself_on_an_empty_log_and_comes_back() {
    let dir = tempdir().unwrap();
    let agent = found(dir.path(), "admin-0", None).await;
    agent.set("k").await;
    let (status, address) = (agent.handle.status(), agent.address.clone());
    assert_eq!((status.role, status.epoch, status.term), (Role::Leader, MembershipEpoch(1), 1));
    assert_eq!(status.leader.unwrap().as_str(), "admin-0");
    assert!(status.quorum);
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    assert!(agent.handle.status().quorum, "one that is alone is a quorum, also when nothing happens");
    agent.set("later").await;
    let local = agent.handle.local().clone();
    agent.stop().await;

    let mut volume = Volume::open(dir.path()).unwrap();
    assert_eq!(volume.local_log(), local);
    volume.found(&anchor(1, local.raft_id), &node("admin-0", &address), None).unwrap();
    let agent = start(volume, "admin-0", &address, None).await;
    agent.handle.linearize().await.unwrap();
    assert!(agent.has("k"));
    agent.stop().await;
}

#[tokio::test]
async fn a_survivor_of_two_founds_the_next_epoch_with_all_it_holds() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", None).await;
    let second = super::blank(dirs[1].path(), "admin-1", 1, None).await;
    super::cluster::join(&first, &second).await;
    let both = BTreeSet::from([first.id(), second.id()]);
    super::cluster::settle(&first.handle, &both).await;
    for i in 0..20 {
        first.set(&format!("k{i}")).await;
    }
    let (id, address) = (first.id(), first.address.clone());
    second.stop().await;
    first.stop().await;

    // Founding again after a crash before the start changes nothing.
    for _ in 0..2 {
        let mut volume = Volume::open(dirs[0].path()).unwrap();
        volume.found(&anchor(2, id), &node("admin-0", &address), None).unwrap();
    }
    let founder: Agent = start(Volume::open(dirs[0].path()).unwrap(), "admin-0", &address, None).await;
    founder.set("after").await;
    assert!((0..20).all(|i| founder.has(&format!("k{i}"))));
    let status = founder.handle.status();
    assert_eq!(status.voters.keys().copied().collect::<Vec<_>>(), [id]);
    assert_eq!((status.epoch, status.role), (MembershipEpoch(2), Role::Leader));
    super::until("what came before the founding is purged", || founder.handle.metrics().purged.is_some()).await;
    founder.stop().await;

    let mut volume = Volume::open(dirs[1].path()).unwrap();
    let (old, extent) = (volume.local_log(), volume.extent());
    volume.retire_log(&anchor(2, id)).unwrap();
    let new = volume.local_log();
    assert_ne!(old.raft_id, new.raft_id);
    assert_eq!((new.epoch, new.domain), (MembershipEpoch(2), Some("d1".into())));
    let kept = dirs[1].path().join(format!("retired-1-{}", old.raft_id));
    assert!(kept.join("raft.redb").exists());
    // An operator can see what it holds, and one that is damaged is listed all the same.
    std::fs::create_dir(dirs[1].path().join("retired-9-7")).unwrap();
    std::fs::write(dirs[1].path().join("retired-9-7/raft.redb"), "not a database").unwrap();
    let listed = retired_logs(dirs[1].path(), Engine::Redb).unwrap();
    assert_eq!(
        listed.iter().map(|log| (log.epoch.0, log.raft_id)).collect::<Vec<_>>(),
        [(9, RaftId(7)), (1, old.raft_id)]
    );
    assert!(listed[0].holds.is_err() && extent.position.index >= 20, "{listed:?}");
    let holds = listed[1].holds.as_ref().unwrap();
    assert_eq!((&holds.domain, holds.extent.position), (&Some("d1".into()), extent.position));
    assert_eq!(holds.extent.nodes.keys().collect::<Vec<_>>(), extent.nodes.keys().collect::<Vec<_>>());
    // Once more, as after a crash, an empty log of an epoch gives way to another.
    drop(volume);
    assert_eq!(Volume::open(dirs[1].path()).unwrap().local_log().raft_id, new.raft_id);
}

#[tokio::test]
async fn raft_does_not_start_on_a_volume_without_a_domain() {
    let dir = tempdir().unwrap();
    let volume = Volume::open(dir.path()).unwrap();
    let started = crate::raft::start(volume, super::options("a", &free_address()), None).await;
    assert!(matches!(started, Err(crate::raft::Error::NoDomain)));
}

/// The process ended between noting a snapshot that it was sent and purging the log, whose tail was of another leader.
#[tokio::test]
async fn a_founding_continues_where_an_installed_snapshot_ends() {
    use crate::raft::types::TypeConfig;
    use openraft::vote::RaftLeaderId;
    let id = |term: u64, index: u64| {
        LogId::new(openraft::alias::LeaderIdOf::<TypeConfig>::new((1 << 32) + term, 9).to_committed(), index)
    };
    let dir = tempdir().unwrap();
    let Parts { lock, mut backend, shelf, local, .. } = Volume::open(dir.path()).unwrap().into_parts();
    let mut domain = kaa_core::domain::Domain { id: Some("d1".into()), index: 10, ..Default::default() };
    domain.values.insert("k".to_owned(), "v".to_owned());
    let meta = SnapshotMeta { last_log_id: Some(id(2, 10)), ..SnapshotMeta::default() };
    let pointer = shelf.write(&meta, &domain).unwrap();
    let set = |name, value| Op::Set(name, value);
    let entry = |index| Op::Put(index, wire::encode(&Entry { log_id: id(1, index), payload: Blank }).unwrap());
    let mut ops: Vec<_> = (0..=12).map(entry).collect();
    ops.push(set(names::SNAPSHOT, wire::encode(&pointer).unwrap()));
    ops.push(set(names::EPOCH, wire::encode(&MembershipEpoch(1)).unwrap()));
    ops.push(set(names::DOMAIN, wire::encode(&"d1").unwrap()));
    backend.commit(&ops).unwrap();
    drop((lock, backend));

    let agent = found(dir.path(), "admin-0", None).await;
    assert_eq!(agent.handle.local().raft_id, local.raft_id);
    assert!(agent.has("k"));
    let address = agent.address.clone();
    agent.stop().await;
    let agent = start(Volume::open(dir.path()).unwrap(), "admin-0", &address, None).await;
    agent.set("after").await;
    assert!(agent.has("k"));
    agent.stop().await;
}
