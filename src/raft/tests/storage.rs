//! openraft's own suite for stores, and what it does not ask.

use crate::raft::Volume;
use crate::raft::backend::Engine;
use crate::raft::disk::Local;
use crate::raft::snapshot::Shelf;
use crate::raft::state_machine::StateMachine;
use crate::raft::store::Store;
use crate::raft::types::{SnapshotMeta, TypeConfig};
use crate::raft::volume::Parts;
use kaa_core::domain::Domain;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::sync::Arc;
use tempfile::TempDir;

struct In(Engine);

impl StoreBuilder<TypeConfig, Store, StateMachine, TempDir> for In {
    async fn build(&self) -> Result<(TempDir, Store, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let Parts { lock, backend, shelf, log, .. } = Volume::open_in(dir.path(), self.0).unwrap().into_parts();
        let store = Store::start(backend, lock, log).unwrap();
        let machine = StateMachine::open(store.clone(), shelf).unwrap();
        Ok((dir, store, machine))
    }
}

#[test]
fn the_redb_store_passes_openrafts_suite() {
    tokio::runtime::Runtime::new().unwrap().block_on(Suite::test_all(In(Engine::Redb))).unwrap();
    assert_eq!(Engine::Redb.warning(), None);
}

#[cfg(feature = "sled")]
#[test]
fn the_sled_store_passes_openrafts_suite_and_warns() {
    tokio::runtime::Runtime::new().unwrap().block_on(Suite::test_all(In(Engine::Sled))).unwrap();
    assert!(Engine::Sled.warning().unwrap().contains("may lose what was acknowledged"));
}

/// Also by a build that is without the other engine: it would found an empty log beside the one that is there.
#[test]
fn a_log_of_another_engine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("log/raft.sled")).unwrap();
    let error = Volume::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("raft.sled") && error.contains("another --store"), "{error}");
    assert!(!dir.path().join("log/raft.redb").exists());
}

#[test]
fn a_snapshot_of_50_megabytes_can_be_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::open(Arc::new(Local), dir.path().join("snapshots")).unwrap();
    let value = "x".repeat(1 << 20);
    let values = (0..50).map(|i| (format!("key{i}"), value.clone())).collect();
    let domain = Domain { values, ..Domain::default() };
    let pointer = shelf.write(&SnapshotMeta::default(), &domain).unwrap();
    assert!(pointer.bytes > 50 << 20);
    assert_eq!(shelf.read(&pointer).unwrap(), domain);
    shelf.keep_only(None).unwrap();
    assert!(shelf.read(&pointer).is_err());
}

#[test]
fn a_damaged_snapshot_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::open(Arc::new(Local), dir.path().to_owned()).unwrap();
    let pointer = shelf.write(&SnapshotMeta::default(), &Domain::default()).unwrap();
    let path = dir.path().join(&pointer.file);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = shelf.read(&pointer).unwrap_err().to_string();
    assert!(error.contains(&pointer.file) && error.contains("checksum"), "{error}");
}
