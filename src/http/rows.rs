//! The rows of the API: field names and shapes are those that the published client reads, written down once for the
//! server and our own commands. What is ours alone is added at the end of each.

use super::source::{Membership, Peer};
use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Archive, Claim, Ordinal};
use kaa_core::domain::database::{Database, Incarnation};
use kaa_core::domain::ids::{Millis, ServerId, StartId};
use kaa_core::domain::process::{Process, SessionState, Tombstone};
use kaa_core::domain::server::Server;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Silence after which clients are told nothing rather than a number.
const HEARD_LIMIT: Duration = Duration::from_secs(60);

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct PeerRow {
    pub id: String,
    pub address: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub version: Option<String>,
    pub peer_state: String,
    pub peer_member_state: String,
    pub is_local: bool,
    pub is_evicted: bool,
    pub is_passive: bool,
    pub connected_state: ConnectedState,
    pub local_role_info: RoleInfo,
    pub cluster: Option<String>,
    /// As text, since it does not fit into the numbers of every JSON reader.
    pub raft_id: Option<String>,
    pub epoch: Option<u64>,
    pub applied_index: Option<u64>,
    /// VOTER, LEARNER or EVICTED, as the server that answers sees it.
    pub membership: Option<String>,
    pub quorum: Option<bool>,
    pub resync_leader: Option<String>,
}

/// Whether a server answers the one that was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectedState {
    /// Connected or Disconnected.
    pub state: String,
    /// In nanoseconds; -1 if unknown.
    pub latency: i64,
    /// -1 if unknown.
    pub last_ack_delta_millis: i64,
}

/// A server's view of Raft.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct RoleInfo {
    pub role: Option<String>,
    pub life_cycle: Option<String>,
    pub leader_server_id: Option<String>,
    pub local_peer_term_index_info: TermIndexInfo,
}

/// Where a server is in its log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct TermIndexInfo {
    pub current_term: Option<u64>,
    pub log_last_term: Option<u64>,
    pub log_last_index: Option<u64>,
    pub commit_index: Option<u64>,
    /// False if these are of a server that does not answer any more.
    pub valid: bool,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct ProcessRow {
    pub start_id: String,
    pub db_name: String,
    /// The server that holds its session.
    pub host: String,
    pub r#type: String,
    pub archive_id: Option<u64>,
    pub address: Option<String>,
    pub hostname: Option<String>,
    pub port: Option<u16>,
    pub pid: Option<u32>,
    pub node_id: Option<u64>,
    pub durable_state: String,
    pub state: String,
    /// In milliseconds; absent if it is longer than a minute ago, unknown, or the session is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heard_from: Option<u64>,
    pub labels: BTreeMap<String, String>,
    pub options: BTreeMap<String, String>,
    pub version: Option<String>,
    pub cluster: String,
    pub namespace: String,
    pub session: u64,
    /// Since when the session is lost, in milliseconds since 1970.
    pub session_lost: Option<Millis>,
}

/// What is left of a process that has exited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct ExitedRow {
    pub database_incarnation: Incarnation,
    pub reason: String,
    pub exit_code: Option<i32>,
    pub has_disconnected: bool,
    pub process: ProcessRow,
    pub exited_at: Millis,
}

/// An archive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct ArchiveRow {
    pub id: u64,
    pub db_name: String,
    /// Never known: the engines are started by Kubernetes, not by a server.
    pub host: Option<String>,
    pub path: String,
    pub journal_path: Option<String>,
    pub snapshot_archive_path: Option<String>,
    pub state: String,
    pub observer_storage_groups: Vec<String>,
    pub cluster: String,
    pub claim: Option<ClaimRow>,
    pub removed_at: Option<Millis>,
    pub removed_because: Option<String>,
}

/// The claim that holds an archive, and its place in a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named as in Kubernetes")]
pub struct ClaimRow {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub stateful_set: Option<String>,
    pub ordinal: Option<u32>,
}

impl ClaimRow {
    fn new(claim: &Claim) -> Self {
        let Claim { namespace, name, uid, owner } = claim;
        let owner = owner.as_ref().map(|Ordinal { stateful_set, uid: _, ordinal }| (stateful_set.clone(), *ordinal));
        let (stateful_set, ordinal) = owner.unzip();
        Self { namespace: namespace.clone(), name: name.clone(), uid: uid.to_string(), stateful_set, ordinal }
    }
}

/// A database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct DatabaseRow {
    pub name: String,
    pub state: String,
    pub incarnation: Incarnation,
    pub database_options: BTreeMap<String, String>,
    pub host_assignments: BTreeMap<String, u64>,
    pub created: Millis,
}

fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Every server that the domain or the peers' exchange knows, in the order of their names.
pub fn peers(domain: &Domain, peers: &[Peer]) -> Vec<PeerRow> {
    let mut ids: Vec<&ServerId> = domain.servers.keys().chain(peers.iter().map(|peer| &peer.id)).collect();
    ids.sort();
    ids.dedup();
    let row = |id: &ServerId| PeerRow::new(id, domain.servers.get(id), peers.iter().find(|peer| peer.id == *id));
    ids.into_iter().map(row).collect()
}

impl PeerRow {
    fn new(id: &ServerId, server: Option<&Server>, peer: Option<&Peer>) -> Self {
        let status = peer.and_then(|peer| peer.status.as_ref());
        let membership = peer.map(|peer| peer.membership);
        let added = "ADDED".to_owned();
        Self {
            id: id.to_string(),
            address: server.map(|s| &s.address).or(status.map(|s| &s.address)).and_then(|address| known(address)),
            labels: server.map(|server| server.labels.clone()).unwrap_or_default(),
            version: status.map(|s| &s.version).or(server.map(|s| &s.version)).and_then(|version| known(version)),
            peer_state: added.clone(),
            peer_member_state: added,
            is_local: peer.is_some_and(|peer| peer.is_local),
            is_evicted: membership == Some(Membership::Evicted),
            is_passive: membership == Some(Membership::Learner),
            connected_state: ConnectedState::new(peer),
            local_role_info: RoleInfo::new(peer),
            cluster: server.map(|s| s.cluster.to_string()).or(status.map(|s| s.cluster.clone())),
            raft_id: status.map(|s| s.raft_id.to_string()).or(server.map(|s| s.raft_id.to_string())),
            epoch: status.map(|s| s.epoch),
            applied_index: status.map(|s| s.applied_index),
            membership: membership.map(|membership| membership.to_string()),
            quorum: status.map(|s| s.quorum),
            resync_leader: status.and_then(|s| s.resync_leader.clone()),
        }
    }
}

impl ConnectedState {
    fn new(peer: Option<&Peer>) -> Self {
        let or_unknown = |number: Option<u128>| number.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
        let state = if peer.is_some_and(|peer| peer.connected) { "Connected" } else { "Disconnected" };
        Self {
            state: state.to_owned(),
            latency: or_unknown(peer.and_then(|peer| peer.latency).map(|latency| latency.as_nanos())),
            last_ack_delta_millis: or_unknown(peer.and_then(|peer| peer.last_ack).map(|ack| ack.as_millis())),
        }
    }
}

impl RoleInfo {
    /// A server that does not answer keeps its last known place in the log, but no claim to lead or to be active.
    fn new(peer: Option<&Peer>) -> Self {
        let unknown = || Some("UNKNOWN".to_owned());
        let Some((peer, status)) = peer.and_then(|peer| Some((peer, peer.status.as_ref()?))) else {
            return Self { role: unknown(), life_cycle: unknown(), ..Self::default() };
        };
        let valid = peer.connected;
        Self {
            role: if valid { status.role.clone().or_else(unknown) } else { unknown() },
            life_cycle: if valid { known(&status.lifecycle) } else { unknown() },
            leader_server_id: status.leader.clone().filter(|_| valid),
            local_peer_term_index_info: TermIndexInfo {
                current_term: Some(status.term),
                log_last_term: Some(status.last_log_term),
                log_last_index: Some(status.last_log_index),
                commit_index: Some(status.commit_index),
                valid,
            },
        }
    }
}

/// Tells how long ago a process was heard of.
#[derive(Debug, Default)]
pub struct Hearing {
    /// Where it is known.
    pub heard: BTreeMap<StartId, Duration>,
    /// The agents: each vouches for the live sessions it holds.
    pub peers: Vec<Peer>,
}

impl Hearing {
    fn of(&self, process: &Process) -> Option<Duration> {
        if process.session.state != SessionState::Live {
            return None;
        }
        let vouches = || {
            let peer = self.peers.iter().find(|peer| peer.id == process.session.server)?;
            if peer.is_local { Some(Duration::ZERO) } else { peer.last_ack }
        };
        let heard = self.heard.get(&process.id).copied().or_else(vouches)?;
        (heard <= HEARD_LIMIT).then_some(heard)
    }
}

impl ProcessRow {
    /// A living process.
    pub fn new(domain: &Domain, process: &Process, hearing: &Hearing) -> Self {
        let heard = hearing.of(process).and_then(|heard| u64::try_from(heard.as_millis()).ok());
        Self { last_heard_from: heard, ..Self::last_known(domain, process) }
    }

    fn last_known(domain: &Domain, process: &Process) -> Self {
        let about = &process.about;
        let options = about.address.contains(':').then(|| ("ip-version".to_owned(), "v6".to_owned()));
        Self {
            start_id: process.id.to_string(),
            db_name: process.database.to_string(),
            host: process.session.server.to_string(),
            r#type: process.kind.to_string(),
            archive_id: process.archive.map(|archive| archive.0),
            address: known(&about.address),
            hostname: known(&about.hostname).or_else(|| known(&process.identity.pod)),
            port: (about.port != 0).then_some(about.port),
            pid: (about.pid != 0).then_some(about.pid),
            node_id: Some(process.node.0),
            durable_state: process.durable.to_string(),
            state: process.engine.to_string(),
            last_heard_from: None,
            labels: labels(domain, process),
            options: options.into_iter().collect(),
            version: known(&about.version),
            cluster: process.cluster.to_string(),
            namespace: process.identity.namespace.clone(),
            session: process.session.number.0,
            session_lost: match process.session.state {
                SessionState::Live => None,
                SessionState::Lost(since) => Some(since),
            },
        }
    }
}

/// The free labels of a process, and those that tie it to Kubernetes.
fn labels(domain: &Domain, process: &Process) -> BTreeMap<String, String> {
    let ties = process.ties(domain.claim_under(process));
    let mut labels = process.about.labels.clone();
    labels.extend(ties.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))));
    labels
}

impl ExitedRow {
    /// What a tombstone tells.
    pub fn new(domain: &Domain, tombstone: &Tombstone) -> Self {
        Self {
            database_incarnation: tombstone.incarnation,
            reason: format!("({}) {}", tombstone.at, tombstone.reason),
            exit_code: tombstone.exit_code,
            has_disconnected: tombstone.process.session.state != SessionState::Live,
            process: ProcessRow::last_known(domain, &tombstone.process),
            exited_at: tombstone.at,
        }
    }
}

impl ArchiveRow {
    /// An archive, removed or not.
    pub fn new(domain: &Domain, archive: &Archive) -> Self {
        Self {
            id: archive.id.0,
            db_name: archive.database.to_string(),
            host: None,
            path: archive.path.clone(),
            journal_path: None,
            snapshot_archive_path: None,
            state: domain.archive_state(archive).to_string(),
            observer_storage_groups: Vec::new(),
            cluster: archive.cluster.to_string(),
            claim: archive.claim.as_ref().map(ClaimRow::new),
            removed_at: archive.removed.as_ref().map(|removal| removal.at),
            removed_because: archive.removed.as_ref().map(|removal| removal.because.to_string()),
        }
    }
}

impl DatabaseRow {
    /// A database.
    pub fn new(database: &Database) -> Self {
        Self {
            name: database.name.to_string(),
            state: database.state.to_string(),
            incarnation: database.incarnation,
            database_options: database.options.clone(),
            host_assignments: BTreeMap::new(),
            created: database.created,
        }
    }
}
