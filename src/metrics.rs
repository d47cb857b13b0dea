//! Every Prometheus metric. A metric that mirrors the domain is set when it is read; one that counts events is counted where
//! the event happens.

mod replication;
mod servers;
mod waiting;

use kaa_core::domain::Domain;
use kaa_core::domain::archive::ArchiveState;
use kaa_core::domain::change::Command;
use kaa_core::domain::command::Outcome;
use kaa_core::domain::ids::{Millis, ServerId};
use kaa_core::domain::process::{EngineState, SessionState};
use kaa_core::membership::{standing, warnings};
use kaa_core::resync::plan::Waiting;
use kaa_core::resync::waiting::WAITS;
use kaa_core::wait::Wait;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
pub use servers::Said;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
pub use waiting::group_waits;

/// From a pass that finds nothing to one that waits for a slow API server, in seconds.
const PASS_BUCKETS: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// A label `state`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// A label `reason`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// A label `warning`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Warning {
    warning: &'static str,
}

/// A label `result`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReadResult {
    result: &'static str,
}

/// Who was not let in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedCaller {
    port: &'static str,
    reason: &'static str,
}

/// A label `file`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct File {
    file: &'static str,
}

/// A permission in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Permission {
    verb: String,
    resource: String,
}

/// A request to the API server of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ApiRequest {
    /// Such as `get`.
    pub verb: &'static str,
    /// Such as `leases.coordination.k8s.io`.
    pub resource: String,
    /// The HTTP status; 0 without an answer.
    pub code: u16,
}

/// What was proposed, and what the domain said.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Proposed {
    command: &'static str,
    outcome: &'static str,
}

/// What a fresh read of Kubernetes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It proves something.
    Answered,
    /// It proves nothing: no answer, forbidden, or not understood.
    Unknown,
}

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    /// Locked while a page is made.
    registry: Mutex<Registry>,
    raft_is_leader: Gauge,
    raft_term: Gauge,
    raft_commit_index: Gauge,
    raft_applied_index: Gauge,
    membership_epoch: Gauge,
    retired: Retired,
    replicated: replication::Replicated,
    servers: servers::Servers,
    raft_voters: Gauge,
    raft_learners: Gauge,
    membership_waiting: Family<Reason, Gauge>,
    membership_warnings: Family<Warning, Gauge>,
    resync_is_leader: Gauge,
    resync_findings: Gauge,
    resync_waiting: Family<Reason, Gauge>,
    resync_passes: Counter,
    resync_pass_duration: Histogram,
    proposals: Family<Proposed, Counter>,
    proposals_refused: Counter,
    sessions: Gauge,
    domain_bytes: Gauge,
    domain_limit: Gauge,
    archives: Family<State, Gauge>,
    processes: Family<State, Gauge>,
    kubernetes_synced: Gauge,
    evidence_reads: Family<ReadResult, Counter>,
    callers_refused: Family<RefusedCaller, Counter>,
    certificate_not_after: Family<File, Gauge>,
    certificate_rejected: Gauge,
    certificate_reloads: Counter,
    permission_missing: Family<Permission, Gauge>,
    api_requests: Family<ApiRequest, Counter>,
    resident_memory: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Registers a metric and keeps a handle on it.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Of the retired logs on the volume.
#[derive(Debug)]
struct Retired {
    logs: Gauge,
    bytes: Gauge,
}

impl Retired {
    fn new(r: &mut Registry) -> Self {
        let help = "Logs of earlier epochs that are kept on the volume";
        let logs = register(r, "retired_logs", help, Gauge::default());
        Self { logs, bytes: register(r, "retired_log_bytes", "Bytes of these logs on the volume", Gauge::default()) }
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("kaa");
        let build = Info::new([("version", crate::VERSION)]);
        registry.register("build", "The version of this agent", build);
        let pass_duration = Histogram::new(PASS_BUCKETS);
        let help = "How long resync passes take, fresh reads and proposals included";
        registry.register_with_unit("resync_pass_duration", help, Unit::Seconds, pass_duration.clone());
        let r = &mut registry;
        Self {
            raft_is_leader: register(r, "raft_is_leader", "1 if this agent leads the Raft group", Gauge::default()),
            raft_term: register(r, "raft_term", "The Raft term, without the epoch", Gauge::default()),
            raft_commit_index: register(r, "raft_commit_index", "Index of the last committed entry", Gauge::default()),
            raft_applied_index: register(r, "raft_applied_index", "Index of the last applied entry", Gauge::default()),
            membership_epoch: register(
                r,
                "membership_epoch",
                "The membership epoch: one more for each override and each kaa recover",
                Gauge::default(),
            ),
            retired: Retired::new(r),
            replicated: replication::Replicated::new(r),
            servers: servers::Servers::new(r),
            raft_voters: register(r, "raft_voters", "Number of voters", Gauge::default()),
            raft_learners: register(r, "raft_learners", "Number of learners", Gauge::default()),
            membership_waiting: register(r, "membership_waiting", "Waits of the servers, by reason", Family::default()),
            membership_warnings: register(r, "membership_warnings", "Warnings about the voters", Family::default()),
            resync_is_leader: register(r, "resync_is_leader", "1 if this agent leads the resync", Gauge::default()),
            resync_findings: register(r, "resync_findings", "Changes the last pass found", Gauge::default()),
            resync_waiting: register(
                r,
                "resync_waiting",
                "Changes the last pass did not propose, by reason",
                Family::default(),
            ),
            resync_passes: register(r, "resync_passes", "Resync passes made as leader", Counter::default()),
            resync_pass_duration: pass_duration,
            proposals: register(r, "proposals", "Commands proposed by this agent", Family::default()),
            proposals_refused: register(r, "proposals_refused", "Commands that the domain refused", Counter::default()),
            sessions: register(r, "sessions", "Live sessions of engines with this agent", Gauge::default()),
            domain_bytes: register(r, "domain_bytes", "Approximate size of the domain in bytes", Gauge::default()),
            domain_limit: register(r, "domain_limit_bytes", "Maximum size of the domain in bytes", Gauge::default()),
            archives: register(r, "archives", "Archives of the domain, by state", Family::default()),
            processes: register(r, "processes", "Processes of the domain, by state", Family::default()),
            kubernetes_synced: register(r, "kubernetes_synced", "1 if all listable kinds are listed", Gauge::default()),
            evidence_reads: register(r, "evidence_reads", "Fresh reads made as evidence, by result", Family::default()),
            callers_refused: register(r, "callers_refused", "Callers refused, by port and reason", Family::default()),
            certificate_not_after: register(
                r,
                "certificate_not_after_seconds",
                "When the certificates in use end, in seconds since 1970",
                Family::default(),
            ),
            certificate_rejected: register(
                r,
                "certificate_rejected",
                "1 if the certificate files cannot be used and their previous content stays in use",
                Gauge::default(),
            ),
            certificate_reloads: register(r, "certificate_reloads", "Certificates reloaded", Counter::default()),
            permission_missing: register(
                r,
                "kubernetes_permission_missing",
                "1 for each missing permission",
                Family::default(),
            ),
            api_requests: register(r, "kubernetes_requests", "Requests to the API server", Family::default()),
            resident_memory: register(r, "resident_memory_bytes", "Memory that this agent holds", Gauge::default()),
            registry: Mutex::new(registry),
        }
    }

    /// Counts a resync pass.
    pub fn pass(&self, took: Duration) {
        self.resync_passes.inc();
        self.resync_pass_duration.observe(took.as_secs_f64());
    }

    /// Counts a command that the domain has answered.
    pub fn proposed(&self, command: &Command, outcome: &Outcome) {
        self.count_proposal(command, outcome_name(outcome));
        match (command, outcome) {
            (_, Outcome::Refused(_)) => _ = self.proposals_refused.inc(),
            (Command::GrantPrimary(grant), Outcome::Changed) => self.replicated.granted(grant),
            _ => {}
        }
    }

    /// Counts a command that could not be proposed.
    pub fn not_proposed(&self, command: &Command) {
        self.count_proposal(command, "failed");
    }

    fn count_proposal(&self, command: &Command, outcome: &'static str) {
        self.proposals.get_or_create(&Proposed { command: command.name(), outcome }).inc();
    }

    /// Counts a fresh read.
    pub fn evidence_read(&self, reading: Reading) {
        let result = match reading {
            Reading::Answered => "answered",
            Reading::Unknown => "unknown",
        };
        self.evidence_reads.get_or_create(&ReadResult { result }).inc();
    }

    /// Counts a refused caller.
    pub fn refused(&self, port: &'static str, reason: &'static str) {
        self.callers_refused.get_or_create(&RefusedCaller { port, reason }).inc();
    }

    /// Counts a changed certificate that is used from now on.
    pub fn certificate_reloaded(&self) {
        self.certificate_reloads.inc();
    }

    /// Sets what mirrors the certificates in use: when they end, and whether their files hold others that are broken.
    pub fn mirror_certificates(&self, own: u64, authority: u64, rejected: bool) {
        for (file, not_after) in [("tls.crt", own), ("ca.crt", authority)] {
            self.certificate_not_after.get_or_create(&File { file }).set(not_after.cast_signed());
        }
        self.certificate_rejected.set(i64::from(rejected));
    }

    /// Sets whether a permission is missing. One that is there again goes back to 0 and does not vanish.
    pub fn mirror_permission(&self, verb: &str, resource: &str, missing: bool) {
        let permission = Permission { verb: verb.to_owned(), resource: resource.to_owned() };
        self.permission_missing.get_or_create(&permission).set(i64::from(missing));
    }

    /// Counts a request to the API server.
    pub fn count_api_request(&self, request: ApiRequest) {
        self.api_requests.get_or_create(&request).inc();
    }

    /// Sets what mirrors this process.
    pub fn mirror_process(&self) {
        self.resident_memory.set(resident_memory_bytes());
    }

    /// Sets what mirrors Raft.
    pub fn mirror_raft(&self, is_leader: bool, term: u64, commit_index: u64, applied_index: u64) {
        self.raft_is_leader.set(i64::from(is_leader));
        self.raft_term.set(term.cast_signed());
        self.raft_commit_index.set(commit_index.cast_signed());
        self.raft_applied_index.set(applied_index.cast_signed());
    }

    /// Sets what mirrors the retired logs on the volume: how many, and how many bytes.
    pub fn mirror_retired(&self, logs: usize, bytes: u64) {
        self.retired.logs.set(logs as i64);
        self.retired.bytes.set(bytes.cast_signed());
    }

    /// Sets what mirrors the group: its epoch, how many vote and how many follow, and the words of what is said of it.
    pub fn mirror_membership(&self, epoch: u64, voters: usize, learners: usize, warned: &[&str], waiting: &[&str]) {
        self.membership_epoch.set(epoch.cast_signed());
        self.raft_voters.set(voters as i64);
        self.raft_learners.set(learners as i64);
        let times = |said: &[&str], known: &str| said.iter().filter(|word| **word == known).count() as i64;
        for warning in warnings::CODES {
            self.membership_warnings.get_or_create(&Warning { warning }).set(times(warned, warning));
        }
        for Wait { code: reason, .. } in group_waits::WAITS.into_iter().chain(standing::WAITS) {
            self.membership_waiting.get_or_create(&Reason { reason }).set(times(waiting, reason));
        }
    }

    /// Sets what mirrors the resync.
    pub fn mirror_resync(&self, leading: bool, synced: bool, findings: usize, waiting: &[Waiting]) {
        self.resync_is_leader.set(i64::from(leading));
        self.kubernetes_synced.set(i64::from(synced));
        self.resync_findings.set(findings as i64);
        // Never cleared: a series that was there goes back to 0 and does not vanish from graphs and alerts.
        for Wait { code: known, .. } in WAITS {
            let held = waiting.iter().filter(|held| held.reason.code() == known).count();
            self.resync_waiting.get_or_create(&Reason { reason: known }).set(held as i64);
        }
    }

    /// Sets what mirrors the domain, as the server `local` sees it. `behind`: it has no leader, so that others may know more.
    pub fn mirror_domain(&self, domain: &Domain, local: Option<&ServerId>, behind: bool, now: Millis) {
        self.replicated.mirror(domain, behind, now);
        self.domain_bytes.set(domain.bytes() as i64);
        self.domain_limit.set(domain.bounds.bytes as i64);
        let held = domain.processes.values().filter(|process| Some(&process.session.server) == local);
        let live = held.filter(|process| process.session.state == SessionState::Live).count();
        self.sessions.set(live as i64);
        let archives =
            domain.archives.values().map(|archive| match (&archive.removed, domain.archive_state(archive)) {
                (Some(_), _) => "removed",
                (None, ArchiveState::Provisioned) => "provisioned",
                (None, ArchiveState::Running) => "running",
                (None, ArchiveState::NotRunning) => "not_running",
            });
        tally(&self.archives, &["provisioned", "running", "not_running", "removed"], archives);
        let processes = domain.processes.values().map(|process| match (process.session.state, process.engine) {
            (SessionState::Lost(_), _) => "unreachable",
            (SessionState::Live, EngineState::Unknown) => "unknown",
            (SessionState::Live, EngineState::Syncing) => "syncing",
            (SessionState::Live, EngineState::Running) => "running",
            (SessionState::Live, EngineState::ShuttingDown) => "shutting_down",
        });
        tally(&self.processes, &["unknown", "syncing", "running", "shutting_down", "unreachable"], processes);
    }

    /// Sets what mirrors the servers with roles whose streams this agent has.
    pub fn mirror_servers<'a>(&self, domain: &Domain, said: impl Iterator<Item = Said<'a>>, now: Millis) {
        self.servers.mirror(domain, said, now);
    }

    /// All of them as text, after `mirror` has set those that mirror the agent's state. It clears some before it sets them, so pages for two
    /// readers at once are made one after the other: otherwise a series may be missing from one of them.
    pub fn page(&self, mirror: impl FnOnce(&Self)) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        mirror(self);
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string can be written to");
        text
    }

    /// All of them as text, as they are now.
    pub fn text(&self) -> String {
        self.page(|_| {})
    }
}

/// Sets how often each state occurs, those that do not occur too.
fn tally(family: &Family<State, Gauge>, states: &[&'static str], found: impl Iterator<Item = &'static str>) {
    let found: Vec<&str> = found.collect();
    for state in states {
        let number = found.iter().filter(|found| *found == state).count();
        family.get_or_create(&State { state }).set(number as i64);
    }
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Changed | Outcome::Registered(_) | Outcome::ResyncBegun(_) | Outcome::ArchiveCreated(_) => "changed",
        Outcome::Unchanged => "unchanged",
        Outcome::Refused(_) => "refused",
    }
}

/// What the kernel says that this process holds; 0 where it does not say.
fn resident_memory_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.trim().parse::<i64>().ok());
    kib.map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    /// Two Prometheus servers often read at the same moment.
    #[test]
    fn pages_are_made_one_after_the_other() {
        let metrics = &Metrics::new();
        let (first_begins, first_began) = sync_channel(1);
        let (second_begins, second_began) = sync_channel(1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                metrics.page(|_| {
                    first_begins.send(()).unwrap();
                    // Long enough for the other one to begin, if it could.
                    assert!(second_began.recv_timeout(Duration::from_millis(100)).is_err());
                })
            });
            first_began.recv().unwrap();
            metrics.page(|_| _ = second_begins.send(()));
        });
    }
}
