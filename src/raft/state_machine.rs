//! The state machine: applies what is committed to the domain, and makes and takes snapshots of it.

use super::snapshot::{self, Pointer, Shelf, SnapshotData};
use super::stamps::Stamps;
use super::store::Store;
use super::types::{Applied, LogId, Snapshot, SnapshotMeta, StoredMembership, TypeConfig};
use futures::{Stream, TryStreamExt};
use kaa_core::domain::Domain;
use kaa_core::domain::command::Entry;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{Mutex, watch};

/// The domain, shared with its readers.
pub(super) type SharedDomain = Arc<RwLock<Domain>>;

/// Runs what blocks where it does not hold up Raft.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, snapshot::Error> + Send + 'static,
) -> io::Result<T> {
    Ok(crate::clock::blocking(work).await??)
}

/// The state machine.
pub struct StateMachine {
    domain: SharedDomain,
    last: Option<LogId>,
    membership: StoredMembership,
    applied: watch::Sender<u64>,
    stamps: Stamps,
    snapshots: Snapshots,
}

/// Where snapshots go, in an order that never points back to an older one.
#[derive(Clone)]
struct Snapshots {
    shelf: Shelf,
    store: Store,
    turn: Arc<Mutex<()>>,
}

/// Makes one snapshot.
pub struct Builder {
    meta: SnapshotMeta,
    domain: Domain,
    snapshots: Snapshots,
}

impl StateMachine {
    /// Opens the state at the last snapshot; openraft replays the log from there.
    pub(super) fn open(store: Store, shelf: Shelf) -> Result<Self, snapshot::Error> {
        let pointer = store.snapshot();
        let domain = pointer.as_ref().map(|pointer| shelf.read(pointer)).transpose()?.unwrap_or_default();
        let meta = pointer.map(|pointer| pointer.meta).unwrap_or_default();
        let applied = watch::Sender::new(meta.last_log_id.map_or(0, |id| id.index));
        let snapshots = Snapshots { shelf, store, turn: Arc::default() };
        let stamps = Stamps::new(domain.time);
        let domain = Arc::new(RwLock::new(domain));
        Ok(Self { domain, last: meta.last_log_id, membership: meta.last_membership, applied, stamps, snapshots })
    }

    pub(super) fn domain(&self) -> SharedDomain {
        Arc::clone(&self.domain)
    }

    pub(super) fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    pub(super) fn stamps(&self) -> Stamps {
        self.stamps.clone()
    }

    fn apply_entry(&mut self, entry: super::types::Entry) -> Applied {
        let id = entry.log_id;
        self.last = Some(id);
        let outcome = match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(proposal) => {
                let entry = Entry { index: id.index, time: proposal.time, request: proposal.request };
                let mut domain = self.domain.write().unwrap_or_else(PoisonError::into_inner);
                let outcome = domain.apply(entry);
                self.stamps.applied(domain.time);
                Some(outcome)
            }
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(id), membership);
                None
            }
        };
        self.applied.send_replace(id.index);
        Applied(outcome)
    }
}

impl Snapshots {
    /// Lets the log point to a new snapshot, unless it points to a later one already, and opens what it points to.
    async fn publish(&self, pointer: Pointer) -> io::Result<Snapshot> {
        let _turn = self.turn.lock().await;
        let before = self.store.snapshot();
        if let Some(before) = &before
            && before.meta.last_log_id > pointer.meta.last_log_id
        {
            self.shelf.discard(&pointer);
            return self.open(before);
        }
        self.store.set_snapshot(pointer.clone()).await?;
        if let Some(before) = before {
            self.shelf.discard(&before);
        }
        self.open(&pointer)
    }

    /// Opens what the log points to; in its turn, for a file that is replaced is deleted.
    async fn current(&self) -> io::Result<Option<Snapshot>> {
        let _turn = self.turn.lock().await;
        self.store.snapshot().map(|pointer| self.open(&pointer)).transpose()
    }

    fn open(&self, pointer: &Pointer) -> io::Result<Snapshot> {
        Ok(Snapshot { meta: pointer.meta.clone(), snapshot: self.shelf.open_data(pointer)? })
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (shelf, meta, domain) = (self.snapshots.shelf.clone(), self.meta.clone(), std::mem::take(&mut self.domain));
        let pointer = blocking(move || shelf.write(&meta, &domain)).await?;
        self.snapshots.publish(pointer).await
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let applied = self.apply_entry(entry);
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let domain = self.domain.read().unwrap_or_else(PoisonError::into_inner).clone();
        let meta = SnapshotMeta { last_log_id: self.last, last_membership: self.membership.clone() };
        Builder { meta, domain, snapshots: self.snapshots.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: SnapshotData) -> Result<(), io::Error> {
        let (shelf, noted) = (self.snapshots.shelf.clone(), meta.clone());
        let (pointer, domain) = blocking(move || {
            let domain = data.read()?;
            Ok((shelf.write(&noted, &domain)?, domain))
        })
        .await?;
        self.snapshots.publish(pointer).await?;
        self.stamps.applied(domain.time);
        *self.domain.write().unwrap_or_else(PoisonError::into_inner) = domain;
        (self.last, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        self.applied.send_replace(meta.last_log_id.map_or(0, |id| id.index));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        self.snapshots.current().await
    }
}
