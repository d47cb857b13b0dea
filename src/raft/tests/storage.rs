//! openraft's own suite for stores, and what it does not ask.

use crate::raft::Volume;
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

struct Redb;

impl StoreBuilder<TypeConfig, Store, StateMachine, TempDir> for Redb {
    async fn build(&self) -> Result<(TempDir, Store, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let Parts { lock, backend, shelf, log, .. } = Volume::open(dir.path()).unwrap().into_parts();
        let store = Store::start(backend, lock, log).unwrap();
        let machine = StateMachine::open(store.clone(), shelf).unwrap();
        Ok((dir, store, machine))
    }
}

#[test]
fn the_redb_store_passes_openrafts_suite() {
    tokio::runtime::Runtime::new().unwrap().block_on(Suite::test_all(Redb)).unwrap();
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
