//! What the agent is told, and what it means. Every default and limit of the agent is here, with its reason.

use crate::net::places::Limits;
use crate::raft::backend::Engine;
use clap::{ArgAction, Args, ValueEnum};
use kaa_core::domain::ids::{ClusterName, ServerId, Uid};
use kaa_core::observed::objects;
use kaa_core::observed::objects::ANNOTATION_PREFIX;
use kaa_core::replication::Timing;
use kaa_core::resync::{DatabaseDeletion, Policy};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The first pass of a resync leader: long enough for the watches to have listed everything.
pub const FIRST_PASS: Duration = Duration::from_secs(3);
/// A pass without any event: what was missed is seen after this at the latest.
pub const RESYNC_PERIOD: Duration = Duration::from_secs(10);
/// In a burst of events at most one pass that proposes something in this time.
pub const PASS_SPACING: Duration = Duration::from_millis(20);
/// After a pass that finds nothing, the next begins after this many times its cost: a burst of changes that do not matter
/// to the domain takes no more than a tenth of a processor.
pub const IDLE_SHARE: u32 = 10;
/// The one backoff of the agent's own loops: they retry what failed after this.
pub const BACKOFF: Duration = Duration::from_secs(1);
/// How often the agents tell each other how they are.
pub const PEER_PERIOD: Duration = Duration::from_secs(2);
/// How often the leader looks at the membership besides on changes.
pub const MEMBERSHIP_PERIOD: Duration = Duration::from_millis(500);
/// How often an agent whose Raft runs reads the anchor though nothing is amiss.
pub const ANCHOR_PERIOD: Duration = Duration::from_secs(10);
/// The same for an agent that hears of a quorum and does not lead the resync: it asks the API server at most three times a
/// minute in all. While there is a quorum, only an operator who gave up on it (`kaa recover`) can have founded a later epoch, and
/// for so long such a group may continue after its pods were deleted by force.
pub const CALM_ANCHOR_PERIOD: Duration = Duration::from_secs(60);
/// Without a quorum for this long, on top of the election timeout after which it is missed, an agent asks why, and whether
/// an override is called for. Not a matter of safety; shorter, and it would begin before the ordinary way has had its chance.
pub const OVERRIDE_AFTER: Duration = Duration::from_secs(2);
/// How long a leaving voter stays until the others have voted it out, or can do without it until it is back: the grace
/// period less what is handed over after it, and less than a request may take, since the preStop hook asks for it by one.
pub const DRAIN: Duration = Duration::from_secs(18);
/// How long writes of clients wait, after a founding, for a second disk to hold them.
pub const ALONE: Duration = Duration::from_secs(5);
/// An engine that says nothing for this long has lost its session: five of its heartbeats.
pub const ENGINE_SILENCE: Duration = Duration::from_secs(10);
/// An agent that did not hear of a quorum for this long vouches for no engine: they have to find another agent.
pub const VOUCH_WITHOUT_QUORUM: Duration = Duration::from_secs(20);
/// The same of an agent whose disk hangs: the others may be a quorum, of which it learns nothing before it has written its vote.
pub const VOUCH_WHILE_IT_HANGS: Duration = Duration::from_secs(2);
/// The Raft leader declares the sessions of an agent lost that was silent for this long.
pub const OWNER_SILENCE: Duration = Duration::from_secs(30);
/// A session in the domain without a connection here is checked again after this, so that a registration under way is not
/// taken for a lost session.
pub const SESSION_SWEEP: Duration = Duration::from_secs(5);
/// How long one read about a pod whose engine registers may take. Pod, claim and proposal together have to be done before
/// the engine, which waits for 10 s, tries another agent.
pub const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the agent reads the certificate files. The kubelet itself takes up to a minute to bring a changed Secret.
pub const CERTIFICATE_PERIOD: Duration = Duration::from_secs(5);
/// A certificate that ends within this time is complained of: time enough for an operator to act.
pub const CERTIFICATE_WARNING: Duration = Duration::from_secs(7 * 86_400);
/// How long a gRPC connection may be idle: without a call that was admitted, and between two such calls. An engine attaches at
/// once and its stream stays; agents call each other every two seconds.
const IDLE_CONNECTION: Duration = Duration::from_secs(10);
/// How many connections other agents may have here: each has one or two, and a domain has fewer than ten agents.
pub const AGENT_CONNECTIONS: Limits = Limits { idle_time: Some(IDLE_CONNECTION), ..Limits::new(128, 256) };
/// How many engines one agent serves at once: far more than a domain has.
pub const MAX_ENGINES: usize = 4096;
/// How many connections engines may have here: as many may be about to attach at once as register within seconds.
pub const ENGINE_CONNECTIONS: Limits = Limits { idle_time: Some(IDLE_CONNECTION), ..Limits::new(512, MAX_ENGINES) };
/// Files and sockets of the agent itself: its log, the connections to Kubernetes and to other agents, with plenty to spare.
pub const OWN_DESCRIPTORS: usize = 256;
/// Messages waiting for one engine; it answers each, so more than a few means that it reads nothing.
pub const ENGINE_QUEUE: usize = 16;
/// How long a SIGTERM gives the agent to hand over: with `DRAIN`, less than the 30 s grace period of its pod.
pub const SHUTDOWN: Duration = Duration::from_secs(8);
/// The room that has to be left on the volume of the log: what others write to it in the half second between two looks,
/// and twice a snapshot of 50 MB, since the old one goes only when the new one is whole.
const MIN_FREE: &str = "128Mi";

/// Runs the agent of one admin pod.
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// The server's id: the pod's name.
    #[arg(long, env = "KAA_SERVER")]
    pub server: String,
    /// The pod's UID (downward API, metadata.uid).
    #[arg(long, env = "KAA_POD_UID")]
    pub pod_uid: String,
    /// The domain's name; part of the names of its Leases.
    #[arg(long, env = "KAA_DOMAIN", default_value = "kaa")]
    pub domain: String,
    /// The name of this Kubernetes cluster within the domain.
    #[arg(long, env = "KAA_CLUSTER", default_value = "default")]
    pub cluster: String,
    /// The name of the cluster in which the domain is founded, and whose annotations configure it; default: this one.
    #[arg(long, env = "KAA_ENTRYPOINT_CLUSTER", value_name = "NAME")]
    pub entrypoint_cluster: Option<String>,
    /// The addresses of the agents of that cluster, HOST:PORT of their port for other agents, separated by commas. Needed where it
    /// is another cluster.
    #[arg(long, env = "KAA_ENTRYPOINT", value_name = "ADDRESS", value_delimiter = ',')]
    pub entrypoint: Vec<String>,
    /// The namespace to watch; default: the pod's own.
    #[arg(long, env = "KAA_NAMESPACE")]
    pub namespace: Option<String>,
    /// The headless Service of the admin StatefulSet; default: the StatefulSet's name.
    #[arg(long, env = "KAA_SERVICE")]
    pub service: Option<String>,
    /// What follows `SERVER.SERVICE` in the address at which the others reach this agent; default: `.NAMESPACE.svc`.
    #[arg(long, env = "KAA_ADDRESS_SUFFIX")]
    pub address_suffix: Option<String>,
    /// The directory of the Raft log: on the volume of the claim template `raftlog`.
    #[arg(long, env = "KAA_DATA_DIR", default_value = "/var/lib/kaa")]
    pub data_dir: PathBuf,
    /// The storage engine of the Raft log.
    #[arg(long, env = "KAA_STORE", value_enum, default_value_t)]
    pub store: Engine,
    /// The free space that the log's volume must keep; below it the agent accepts no changes and is not ready: bytes, or a number
    /// with Ki, Mi or Gi.
    #[arg(long, env = "KAA_MIN_FREE", default_value = MIN_FREE, value_parser = bytes, value_name = "SIZE")]
    pub min_free: u64,
    /// The directory with ca.crt, tls.crt and tls.key.
    #[arg(long, env = "KAA_TLS_DIR", default_value = "/etc/kaa/tls")]
    pub tls_dir: PathBuf,
    /// The listen address for other agents.
    #[arg(long, env = "KAA_LISTEN_PEERS", default_value = "[::]:48005")]
    pub listen_peers: SocketAddr,
    /// The listen address for engines.
    #[arg(long, env = "KAA_LISTEN_ENGINES", default_value = "[::]:48004")]
    pub listen_engines: SocketAddr,
    /// The listen address for the REST API, probes and metrics.
    #[arg(long, env = "KAA_LISTEN_HTTP", default_value = "[::]:8888")]
    pub listen_http: SocketAddr,
    /// A hosts(5) file that is consulted before DNS, for pods without DNS.
    #[arg(long, env = "KAA_HOSTS_FILE")]
    pub hosts_file: Option<PathBuf>,
    /// A file with one line USER:PASSWORD for each operator who may change the domain over the REST API. Without it, a change
    /// needs a client certificate or the pod's token.
    #[arg(long, env = "KAA_CREDENTIALS_FILE")]
    pub credentials_file: Option<PathBuf>,
    /// The file to which the agent writes the pod's token, on a volume of this pod alone. Any process that can read it may
    /// change the domain over loopback: `kaa` in the agent's own pod does.
    #[arg(long, env = "KAA_POD_TOKEN_FILE", value_name = "FILE")]
    pub pod_token_file: Option<PathBuf>,
    /// Whether any client on a loopback address may change the domain. Safe only without a proxy in the pod: behind the proxy of a
    /// service mesh every client has a loopback address
    #[arg(long, env = "KAA_LOOPBACK_MAY_WRITE", value_name = "BOOL", default_value_t = false, action = ArgAction::Set)]
    pub loopback_may_write: bool,
    /// The time between the deletion of an archive's claim and its purge: a number with s, m, h or d
    #[arg(long, env = "KAA_PURGE_DELAY", default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub purge_delay: Duration,
    /// Whether a database is deleted once it has no archive and no workload
    #[arg(long, env = "KAA_DATABASE_DELETION", value_enum, default_value_t = Deletion::Auto)]
    pub database_deletion: Deletion,
    /// The prefix of the annotations that the agents read
    #[arg(long, env = "KAA_ANNOTATION_PREFIX", default_value = ANNOTATION_PREFIX)]
    pub annotation_prefix: String,
    /// The audience that an engine's ServiceAccount token must have; default: the domain's name.
    #[arg(long, env = "KAA_TOKEN_AUDIENCE")]
    pub token_audience: Option<String>,
    /// How long a primary serves clients without a sign that it is still the one, and how long the next one waits for it: from 1500ms
    /// to 60s, a number with ms or s. Shorter: a lost primary is replaced sooner, and one whose machine is busy closes sooner
    #[arg(long, env = "KAA_PRIMARY_LEASE", default_value = "2500ms", value_name = "TIME", value_parser = lease)]
    pub primary_lease: Duration,
    /// After how long without a sign of a primary's wrapper, or of its agent, its session is lost: from 1s to 60s. No other server
    /// takes over while a standby hears the primary
    #[arg(long, env = "KAA_PRIMARY_SILENCE", default_value = "1500ms", value_name = "TIME", value_parser = silence)]
    pub primary_silence: Duration,
    /// The pause after a failover whose old primary turned out to run. It doubles up to an hour
    #[arg(long, env = "KAA_FAILOVER_PAUSE", default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub failover_pause: Duration,
}

/// `--database-deletion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Deletion {
    /// By the resync, once the database has no archive and no workload
    Auto,
    /// Never
    Never,
}

/// A shorter lease would end between two signs of a primary.
fn lease(text: &str) -> Result<Duration, String> {
    millis(text, 1_500)
}

/// A sign comes every half second.
fn silence(text: &str) -> Result<Duration, String> {
    millis(text, 1_000)
}

/// `2500ms`, `5s`; up to 60 seconds.
fn millis(text: &str, least: u32) -> Result<Duration, String> {
    let number = |unit: &str| text.strip_suffix(unit).and_then(|number| number.parse::<u32>().ok());
    let millis = number("ms").or_else(|| number("s")?.checked_mul(1000));
    let millis = millis.filter(|millis| (least..=60_000).contains(millis));
    let millis = millis.ok_or_else(|| format!("'{text}' is not a time from {least}ms to 60s, such as 2500ms"))?;
    Ok(Duration::from_millis(millis.into()))
}

/// `90s`, `15m`, `2h`, `7d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a number with s, m, h or d behind it, such as 15m");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u32 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// What the arguments mean.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's id.
    pub server: ServerId,
    /// Its place in its StatefulSet.
    pub ordinal: u32,
    /// The StatefulSet's name.
    pub stateful_set: String,
    /// The pod's UID.
    pub pod_uid: Uid,
    /// The domain's name.
    pub domain: String,
    /// This cluster's name.
    pub cluster: ClusterName,
    /// Where the agents of the entry point are, if this is another cluster.
    pub entrypoint: Option<Vec<String>>,
    /// The namespace, if it was given.
    pub namespace: Option<String>,
    service: String,
    address_suffix: Option<String>,
    /// The directory of the Raft log.
    pub data_dir: PathBuf,
    /// The storage engine of the Raft log.
    pub store: Engine,
    /// How much room the volume of the log must have.
    pub min_free: u64,
    /// The directory of the certificates.
    pub tls_dir: PathBuf,
    /// The listen address for other agents.
    pub listen_peers: SocketAddr,
    /// The listen address for engines.
    pub listen_engines: SocketAddr,
    /// Where the REST API is served.
    pub listen_http: SocketAddr,
    /// Who may change the domain from outside the pod.
    pub credentials_file: Option<PathBuf>,
    /// What proves that a caller is in the pod.
    pub pod_token_file: Option<PathBuf>,
    /// Whether a loopback address proves it too.
    pub loopback_may_write: bool,
    /// The audience of engines' tokens.
    pub token_audience: String,
    /// How long an archive is kept once its claim is gone.
    pub purge_delay: Duration,
    /// Whether databases that nothing wants are deleted.
    pub database_deletion: DatabaseDeletion,
    /// What stands before the names of annotations.
    pub annotation_prefix: String,
    /// The lease of a primary.
    pub primary_lease: Duration,
    /// After how long a primary's wrapper, or its agent, is silent.
    pub primary_silence: Duration,
    /// The first pause after a failover for nothing.
    pub failover_pause: Duration,
}

/// Arguments that mean nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server id without an ordinal.
    #[error("--server '{0}' is not the name of a StatefulSet's pod: it has to end in -ORDINAL")]
    NoOrdinal(String),
    /// Another cluster is the entry point, and nothing says where it is.
    #[error(
        "--entrypoint-cluster is '{entrypoint}', and this is cluster '{cluster}': --entrypoint has to name agents of that one"
    )]
    NoEntryPoint {
        /// The entry point.
        entrypoint: String,
        /// This cluster.
        cluster: String,
    },
    /// Addresses of an entry point that is this cluster.
    #[error(
        "--entrypoint is given, but this cluster '{0}' is the entry point: --entrypoint-cluster has to name another one"
    )]
    OwnEntryPoint(String),
}

impl Config {
    /// Says what the arguments mean, or which of them means nothing.
    pub fn new(args: AgentArgs) -> Result<Self, Error> {
        let no_ordinal = || Error::NoOrdinal(args.server.clone());
        let (stateful_set, ordinal) = args.server.rsplit_once('-').ok_or_else(no_ordinal)?;
        let ordinal = ordinal.parse().map_err(|_| no_ordinal())?;
        let stateful_set = stateful_set.to_owned();
        let entrypoint = entrypoint(&args)?;
        Ok(Self {
            entrypoint,
            ordinal,
            service: args.service.unwrap_or_else(|| stateful_set.clone()),
            stateful_set,
            server: args.server.into(),
            pod_uid: args.pod_uid.into(),
            token_audience: args.token_audience.unwrap_or_else(|| args.domain.clone()),
            domain: args.domain,
            cluster: args.cluster.into(),
            namespace: args.namespace,
            address_suffix: args.address_suffix,
            data_dir: args.data_dir,
            store: args.store,
            min_free: args.min_free,
            tls_dir: args.tls_dir,
            listen_peers: args.listen_peers,
            listen_engines: args.listen_engines,
            listen_http: args.listen_http,
            credentials_file: args.credentials_file,
            pod_token_file: args.pod_token_file,
            loopback_may_write: args.loopback_may_write,
            purge_delay: args.purge_delay,
            database_deletion: match args.database_deletion {
                Deletion::Auto => DatabaseDeletion::Auto,
                Deletion::Never => DatabaseDeletion::Never,
            },
            annotation_prefix: args.annotation_prefix,
            primary_lease: args.primary_lease,
            primary_silence: args.primary_silence,
            failover_pause: args.failover_pause,
        })
    }

    /// Where the agent with this ordinal is reached by the others.
    pub fn peer_address(&self, namespace: &str, ordinal: u32) -> String {
        let suffix = self.address_suffix.clone().unwrap_or_else(|| format!(".{namespace}.svc"));
        format!("{}-{ordinal}.{}{suffix}:{}", self.stateful_set, self.service, self.listen_peers.port())
    }

    /// What the resync is planned for.
    pub fn policy(&self, namespace: &str) -> Policy {
        Policy {
            purge_delay_ms: u64::try_from(self.purge_delay.as_millis()).unwrap_or(u64::MAX),
            database_deletion: self.database_deletion,
            entry_point: self.entrypoint.is_none(),
            ..Policy::new(self.cluster.clone(), namespace.to_owned())
        }
    }

    /// The times by which generations are granted.
    pub fn timing(&self) -> Timing {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Timing { lease_ms: millis(self.primary_lease), held_back_ms: millis(self.failover_pause) }
    }

    /// The name of the Lease that anchors the domain.
    pub fn anchor_name(&self) -> String {
        format!("{}-{}-anchor", self.domain, self.cluster)
    }

    /// The name of the Lease of this cluster's resync leader.
    pub fn resync_name(&self) -> String {
        format!("{}-{}-resync", self.domain, self.cluster)
    }
}

/// Where the agents of the entry point are, if that is another cluster.
fn entrypoint(args: &AgentArgs) -> Result<Option<Vec<String>>, Error> {
    let cluster = args.cluster.clone();
    let addresses =
        args.entrypoint.iter().map(|address| address.trim().to_owned()).filter(|address| !address.is_empty());
    let addresses: Vec<String> = addresses.collect();
    match args.entrypoint_cluster.clone().filter(|entrypoint| *entrypoint != cluster) {
        Some(entrypoint) if addresses.is_empty() => Err(Error::NoEntryPoint { entrypoint, cluster }),
        Some(_) => Ok(Some(addresses)),
        None if addresses.is_empty() => Ok(None),
        None => Err(Error::OwnEntryPoint(cluster)),
    }
}

/// A size in bytes, as Kubernetes writes it.
fn bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = [("Ki", 10), ("Mi", 20), ("Gi", 30)]
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .unwrap_or((text, 0));
    let number: u64 = number.parse().map_err(|_| "expected a number of bytes, or one with Ki, Mi or Gi".to_owned())?;
    number.checked_shl(shift).filter(|bytes| bytes >> shift == number).ok_or_else(|| "that is too large".to_owned())
}

/// The ordinal in a server's id, if it is one of this StatefulSet's.
pub fn ordinal_of(server: &ServerId, stateful_set: &str) -> Option<u32> {
    objects::ordinal_of(server.as_str(), stateful_set)
}

#[cfg(test)]
mod tests {
    use super::{bytes, duration, lease, silence};
    use std::time::Duration;

    #[test]
    fn sizes_are_written_as_kubernetes_writes_them() {
        assert_eq!(
            ["0", "7", "2Ki", "128Mi", "1Gi"].map(|text| bytes(text).unwrap()),
            [0, 7, 2048, 134_217_728, 1 << 30]
        );
        assert!(["", "Mi", "-1", "1M", "1.5Gi", "99999999999999Gi"].iter().all(|text| bytes(text).is_err()));
    }

    #[test]
    fn another_clusters_entry_point_has_an_address() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: super::AgentArgs,
        }
        let config = |line: &str| {
            let words = format!("kaa --server kaa-west-0 --pod-uid P1 {line}");
            let args =
                <Line as clap::Parser>::try_parse_from(words.split(' ').filter(|word| !word.is_empty())).unwrap().args;
            super::Config::new(args).map(|config| (config.entrypoint.clone(), config.policy("ns").entry_point))
        };
        let refused = |line: &str| config(line).unwrap_err().to_string();
        assert_eq!(config("").unwrap(), (None, true));
        assert_eq!(config("--cluster east --entrypoint-cluster east").unwrap(), (None, true));
        let there = config("--cluster west --entrypoint-cluster east --entrypoint a:1,b:2").unwrap();
        assert_eq!(there, (Some(vec!["a:1".to_owned(), "b:2".to_owned()]), false));
        let missing =
            "--entrypoint-cluster is 'east', and this is cluster 'west': --entrypoint has to name agents of that one";
        assert_eq!(refused("--cluster west --entrypoint-cluster east"), missing);
        let own = "--entrypoint is given, but this cluster 'west' is the entry point: --entrypoint-cluster has to name another one";
        assert_eq!(refused("--cluster west --entrypoint a:1"), own);
    }

    #[test]
    fn a_lease_is_neither_too_short_nor_too_long() {
        for (text, millis) in [("1500ms", 1_500), ("2s", 2_000), ("60s", 60_000)] {
            assert_eq!(lease(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "1", "1499ms", "61s", "1m", "4294968s"] {
            assert!(lease(text).is_err(), "{text}");
        }
        assert_eq!((silence("1s"), silence("999ms").is_err()), (Ok(Duration::from_secs(1)), true));
    }

    #[test]
    fn a_time_has_a_unit() {
        let seconds = [("0s", 0), ("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604_800)];
        for (text, seconds) in seconds {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "15", "m", "-1h", "1.5h", "1w", "99999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
