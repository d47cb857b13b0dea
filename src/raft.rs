//! Consensus: one replicated log per domain, held by openraft, and the domain that results from it.
//!
//! ```text
//! Volume ── found | retired ──> start() ──> Handle: propose, linearize, read, change who votes
//!   │                               │            │
//!   └ backend (redb)                │            └ server: what others ask;  transport: what others are asked
//!                                   └ store (log), snapshot, state_machine (the domain)
//! ```
//!
//! Nothing outside this module names openraft. Who may start, found or join is decided elsewhere (`membership` of the
//! core, and the agent); here it is carried out, and messages of another domain, epoch or log are kept out.

pub mod admission;
pub mod backend;
pub mod disk;
pub mod handle;
mod leading;
pub mod recovering;
pub mod refused;
pub mod runtime;
pub mod said;
pub mod sealing;
pub mod server;
pub mod snapshot;
pub mod space;
mod stamps;
pub mod state_machine;
pub mod status;
pub mod store;
pub mod transport;
pub mod types;
pub mod volume;
pub mod wire;

#[cfg(test)]
mod tests;

pub use admission::{Admission, Agents};
pub use handle::{Handle, MAX_PROPOSAL_BYTES};
pub use refused::{ChangeError, ProposeError, ReadError};
pub use server::{Host, Service};
pub use status::{Lifecycle, Role, Status};
pub use transport::Peers;
pub use types::Node;
pub use volume::Volume;

use crate::net::Tls;
use handle::Inner;
use kaa_core::domain::ids::{ClusterName, ServerId};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use openraft::{EntryPayload, SnapshotPolicy};
use space::Space;
use state_machine::StateMachine;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::sync::watch;
use transport::Connector;
use types::{Raft, TypeConfig};

/// After how many entries a snapshot is made: with the log in memory, some megabytes.
const SNAPSHOT_ENTRIES: u64 = 5_000;
/// How many entries are kept that a snapshot covers, for those that are a little behind.
const KEPT_ENTRIES: u64 = 500;
/// How many entries go into one append; the transport cuts it further where they are large.
const APPEND_ENTRIES: u64 = 300;
/// How long a snapshot may take to be sent and installed.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);
/// Delays before one that could not be reached is tried again.
const BACKOFF: &str = "50ms 100ms 200ms ...500ms";

/// Why Raft does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume has not been through the gate.
    #[error("the log belongs to no domain yet")]
    NoDomain,
    /// The log takes part in an override, and appends and votes no more.
    #[error("the log is sealed")]
    Sealed,
    /// The configuration contradicts itself.
    #[error("the timeouts do not fit together")]
    Config(#[from] openraft::ConfigError),
    /// The log's writer could not be started.
    #[error("cannot start the log's writer")]
    Writer(#[source] std::io::Error),
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// Raft refuses its log.
    #[error("raft does not start on this log")]
    Raft(#[source] Box<Fatal<TypeConfig>>),
}

/// Who one is, and how patient.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server's id.
    pub server: ServerId,
    /// `host:port` under which the others reach its agent-to-agent port.
    pub address: String,
    /// The cluster that it lives in.
    pub cluster: ClusterName,
    /// The agent's version.
    pub version: String,
    /// How often a leader lets hear of itself.
    pub heartbeat_ms: u64,
    /// How long a follower waits for a leader, at least.
    pub election_min_ms: u64,
    /// How long a follower waits for a leader, at most.
    pub election_max_ms: u64,
    /// With less room on the volume than this, in bytes, nothing is written.
    pub min_free: u64,
}

impl Options {
    /// Options with the default patience, and no floor of room.
    pub fn new(server: ServerId, address: String, cluster: ClusterName, version: String) -> Self {
        let (heartbeat_ms, election_min_ms, election_max_ms) = (150, 750, 1500);
        Self { server, address, cluster, version, heartbeat_ms, election_min_ms, election_max_ms, min_free: 0 }
    }

    fn config(&self) -> Result<Arc<openraft::Config>, openraft::ConfigError> {
        let config = openraft::Config {
            cluster_name: "kaa".to_owned(),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_min_ms,
            election_timeout_max: self.election_max_ms,
            enable_pre_vote: Some(true),
            // The committed index is not synced, so that a leader that restarts could serve an old state.
            enable_leader_restore: Some(false),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_ENTRIES),
            max_in_snapshot_log_to_keep: KEPT_ENTRIES,
            // A learner that is farther behind gets a snapshot; must exceed what lies between two of them.
            replication_lag_threshold: SNAPSHOT_ENTRIES + KEPT_ENTRIES,
            max_payload_entries: APPEND_ENTRIES,
            install_snapshot_timeout: SNAPSHOT_TIMEOUT.as_millis() as u64,
            backoff: BACKOFF.to_owned(),
            ..openraft::Config::default()
        };
        Ok(Arc::new(config.validate()?))
    }
}

/// Starts Raft on a volume that belongs to a domain. Without `tls` it speaks in clear, which is for tests.
pub async fn start(volume: Volume, options: Options, tls: Option<Tls>) -> Result<Handle, Error> {
    start_among(volume, options, Peers::new(tls)).await
}

/// The same, with channels to the others that are there already.
pub async fn start_among(volume: Volume, options: Options, peers: Peers) -> Result<Handle, Error> {
    let config = options.config()?;
    let volume::Parts { disk, dir, lock, backend, shelf, local, log } = volume.into_parts();
    if local.sealed {
        return Err(Error::Sealed);
    }
    let space = Space::new(disk, dir, options.min_free);
    // From the log itself: Raft's metrics may be published only later.
    let voters = log.voters();
    let domain = local.domain.as_ref().ok_or(Error::NoDomain)?.to_string();
    let connector = Connector::new(peers, domain, local.epoch.0);
    let store = Store::start(backend, lock, log).map_err(Error::Writer)?;
    let machine = StateMachine::open(store.clone(), shelf.clone())?;
    let (domain, applied, stamps) = (machine.domain(), machine.applied(), machine.stamps());
    let me = local.raft_id.0;
    let founding = founding(&store, me, local.epoch.0);
    let raft = Raft::new(me, config, connector.clone(), store.clone(), machine).await;
    let raft = raft.map_err(|error| Error::Raft(Box::new(error)))?;
    let failure = watch::Sender::new(None);
    let heard = Mutex::new(None);
    let inner = Inner { raft, store, shelf, space, domain, applied, stamps, connector, local, options, heard, failure };
    let handle = Handle::new(inner);
    tokio::spawn(watch_health(handle.clone()));
    tokio::spawn(space::watch(handle.clone()));
    if voters == BTreeSet::from([me]) {
        // No other server can win, and waiting for the election timeout would cost a second or two.
        let elected = handle.raft().trigger().elect(false).await;
        elected.map_err(|error| Error::Raft(Box::new(error)))?;
    }
    if let Some(index) = founding {
        tokio::spawn(compact(handle.clone(), index));
    }
    Ok(handle)
}

/// Finds the founding of this epoch by this log, with entries of earlier epochs before it. It is found as long as it is not
/// purged: the process may have ended before it was.
fn founding(store: &Store, me: u64, epoch: u64) -> Option<u64> {
    let founded = store.find(|entry| {
        let leader = entry.log_id.committed_leader_id();
        leader.term == types::first_term(epoch) && leader.node_id == me
    })?;
    (matches!(founded.payload, EntryPayload::Membership(_)) && founded.log_id.index > 0).then_some(founded.log_id.index)
}

/// Makes a snapshot after a founding and purges what came before, so that no server replays memberships of earlier epochs.
async fn compact(handle: Handle, founding: u64) {
    let raft = handle.raft();
    let applied = raft.wait(None).applied_index_at_least(Some(founding), "the founding").await;
    if applied.is_err() || raft.trigger().snapshot().await.is_err() {
        return;
    }
    let covered = |metrics: &status::Metrics| metrics.snapshot.is_some_and(|snapshot| snapshot.index >= founding);
    if raft.wait(None).metrics(covered, "a snapshot of the founding").await.is_ok() {
        // What is not purged now is purged after the next snapshot.
        let _ = raft.trigger().purge_log(founding).await;
    }
}

/// Notes when Raft ends by itself.
async fn watch_health(handle: Handle) {
    let mut metrics = handle.raft().metrics();
    loop {
        let running = metrics.borrow_watched().running_state.clone();
        match running {
            Ok(()) => {}
            Err(Fatal::Stopped) => return,
            Err(error) => return handle.fail(&error),
        }
        if metrics.changed().await.is_err() {
            // A core that panicked leaves its last state behind, which says that all is well.
            if let Err(error) = handle.raft().with_raft_state(|_| ()).await
                && error != Fatal::Stopped
            {
                handle.fail(&error);
            }
            return;
        }
    }
}
