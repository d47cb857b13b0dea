//! What the REST API reads from. Until Raft runs it has one thing to show: what the agent waits for.

mod settings;
mod standing;

use super::{APPLY_LIMIT, Shared, membership};
use crate::config::{Config, ordinal_of};
use crate::http::source::{
    Awaits, Check, Health, LastPass, Membership, MembershipReport, NoQuorum, NotWritten, Note, Peer, PlanReport,
    ReadAnchor, ResyncReport, Routing, Source, Status, Written,
};
use crate::http::{DrainAnswer, RecoverAnswer};
use crate::kubernetes::anchor;
use crate::kubernetes::evidence;
use crate::kubernetes::permissions::Permissions;
use crate::metrics::group_waits;
use crate::net::Tls;
use crate::raft::ProposeError;
use crate::raft::recovering::{self, Questions, Way, Wish};
use futures::FutureExt;
use futures::future::BoxFuture;
use kaa_core::domain::Domain;
use kaa_core::domain::change::Command;
use kaa_core::domain::command::Actor;
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{ClusterName, DatabaseName, Millis, RaftId, ServerId, StartId};
use kaa_core::domain::process::SessionState;
use kaa_core::membership::Anchor;
use kaa_core::observed::{Observed, Unknown};
use kaa_core::replication::Timing;
use kaa_core::resync::plan::{Need, WaitingReason};
use kaa_core::resync::whatif::change::Change;
use kaa_core::resync::whatif::outcome::WhatIf;
use kaa_core::resync::{self, plan, whatif};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Stands before the agent until Raft runs.
pub struct Door {
    server: ServerId,
    domain: String,
    cluster: ClusterName,
    annotation_prefix: String,
    timing: Timing,
    settings: BTreeMap<&'static str, String>,
    tls: Tls,
    permissions: Permissions,
    waits: Mutex<String>,
    shared: RwLock<Option<Arc<Shared>>>,
    questions: OnceLock<Questions>,
}

impl Door {
    /// Makes it, closed.
    pub fn new(config: &Config, tls: Tls, permissions: Permissions) -> Self {
        let waits = Mutex::new("starting".to_owned());
        let (server, domain) = (config.server.clone(), config.domain.clone());
        let (cluster, annotation_prefix) = (config.cluster.clone(), config.annotation_prefix.clone());
        let timing = config.timing();
        let (shared, questions, settings) = (RwLock::default(), OnceLock::new(), settings::of(config));
        Self {
            server,
            domain,
            cluster,
            annotation_prefix,
            timing,
            settings,
            tls,
            permissions,
            waits,
            shared,
            questions,
        }
    }

    /// Notes why Raft does not run yet.
    pub fn waits(&self, why: String) {
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Has people's questions for what may be lost go there from now on.
    pub fn set_questions(&self, questions: Questions) {
        // An agent lives once behind its door.
        let _ = self.questions.set(questions);
    }

    /// Shows the running agent from now on.
    pub fn open(&self, shared: Arc<Shared>) {
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = Some(shared);
    }

    /// Shows no running agent any more, and why.
    pub fn close(&self, why: &str) {
        self.waits(why.to_owned());
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The running agent, if there is one.
    pub fn running(&self) -> Option<Arc<Shared>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why there is none.
    pub fn why_not(&self) -> String {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Source for Door {
    fn domain(&self, look: &mut dyn FnMut(&Domain)) {
        match self.running() {
            Some(shared) => shared.raft.read(|domain| look(domain)),
            None => look(&Domain::default()),
        }
    }

    fn peers(&self) -> Vec<Peer> {
        match self.running() {
            Some(shared) => peers(&shared),
            None => vec![local(&self.server, Membership::Learner, None)],
        }
    }

    fn heard(&self) -> BTreeMap<StartId, Duration> {
        self.running().map(|shared| heard(&shared)).unwrap_or_default()
    }

    fn linearize(&self) -> BoxFuture<'_, Result<(), NoQuorum>> {
        async {
            let Some(shared) = self.running() else { return Err(NoQuorum(self.why_not())) };
            shared.raft.linearize().await.map_err(|error| NoQuorum(error.to_string()))
        }
        .boxed()
    }

    fn write(&self, actor: Actor, command: Command) -> BoxFuture<'_, Result<Written, NotWritten>> {
        async {
            match self.running() {
                Some(shared) => write(&shared, actor, command).await,
                None => Err(NotWritten::Certainly(self.why_not())),
            }
        }
        .boxed()
    }

    fn read_afresh(&self, needs: Vec<Need>) -> BoxFuture<'_, Evidence> {
        let needs = BTreeSet::from_iter(needs);
        async move {
            let Some(shared) = self.running() else { return Evidence::default() };
            let read = evidence::gather(&shared.kubernetes, &shared.config.anchor_name(), &needs).await;
            let facts = read.answers.into_values().filter_map(Result::ok).flatten().collect();
            Evidence { read_at: read.at, facts }
        }
        .boxed()
    }

    fn read_workloads(&self, database: &DatabaseName) -> BoxFuture<'_, Evidence> {
        let need = match self.running() {
            Some(shared) => shared.raft.read(|domain| domain.workloads_of(database)),
            None => Need::WorkloadsOf { database: database.clone(), pods: BTreeSet::new() },
        };
        self.read_afresh(vec![need, Need::Anchor])
    }

    fn read_anchor(&self) -> BoxFuture<'_, Result<ReadAnchor, String>> {
        async {
            match self.running() {
                Some(shared) => read_anchor(&shared).await,
                None => Err(self.why_not()),
            }
        }
        .boxed()
    }

    fn observed(&self) -> Observed {
        let Some(shared) = self.running() else { return Observed::default() };
        shared.observed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        self.settings.clone()
    }

    fn name(&self) -> String {
        self.domain.clone()
    }

    fn cluster(&self) -> ClusterName {
        self.cluster.clone()
    }

    fn routing(&self, database: &DatabaseName) -> Routing {
        self.running().map(|shared| shared.slices.of(database)).unwrap_or_default()
    }

    fn seen_wrong(&self, database: &DatabaseName) -> Vec<WaitingReason> {
        let Some(shared) = self.running() else { return Vec::new() };
        let observed = shared.observed.read().unwrap_or_else(PoisonError::into_inner);
        shared.raft.read(|domain| resync::seen_wrong(&observed, domain, database))
    }

    fn timing(&self) -> Timing {
        self.timing
    }

    fn annotation_prefix(&self) -> String {
        self.annotation_prefix.clone()
    }

    fn recover(&self, wish: Wish) -> BoxFuture<'_, Result<RecoverAnswer, String>> {
        async move {
            let questions = self.questions.get().ok_or("this agent starts")?;
            let answer = recovering::ask(questions, wish, Way::Asked).await?;
            serde_json::from_str(&answer).map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn drain(&self) -> BoxFuture<'_, DrainAnswer> {
        async {
            let server = self.server.to_string();
            let Some(shared) = self.running() else {
                let message =
                    format!("Raft does not run on {server}, so there is nothing to drain: {}", self.why_not());
                return DrainAnswer { server, outcome: "not_running".to_owned(), message, leader: None };
            };
            let drained = membership::hand_over(&shared).await;
            let (outcome, message) = (drained.code().to_owned(), format!("{server} {drained}"));
            let leader = shared.raft.status().leader.map(|leader| leader.to_string());
            DrainAnswer { server, outcome, message, leader }
        }
        .boxed()
    }

    fn plan(&self) -> PlanReport {
        self.running().map(|shared| plan_report(&shared)).unwrap_or_default()
    }

    fn resync(&self) -> ResyncReport {
        let Some(shared) = self.running() else { return ResyncReport::default() };
        let leading = shared.candidacy.leads_now();
        let synced = shared.observed.read().unwrap_or_else(PoisonError::into_inner).is_synced();
        let last = shared.last_pass.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // One of an earlier term says nothing of this one.
        let current = shared.raft.read(|domain| domain.resync.get(&shared.config.cluster).map(|leader| leader.epoch));
        let last = last.filter(|last| leading && Some(last.epoch) == current).unwrap_or_default();
        ResyncReport { leading, synced, findings: last.findings, waiting: last.waiting }
    }

    fn membership(&self) -> MembershipReport {
        match self.running() {
            Some(shared) => standing::report(&shared),
            None => {
                let awaits = Awaits { code: group_waits::RAFT_NOT_STARTED, server: None, words: self.why_not() };
                MembershipReport { waiting: vec![awaits], ..MembershipReport::default() }
            }
        }
    }

    fn what_if(&self, changes: &[Change]) -> Result<WhatIf, whatif::Error> {
        let shared = self.running().ok_or(whatif::Error::NotFounded)?;
        // Copied first, so that no lock is held during the computation.
        let observed = shared.observed.read().unwrap_or_else(PoisonError::into_inner).clone();
        let domain = shared.raft.read(Domain::clone);
        let servers = domain.servers.values().map(|server| (server.id.clone(), server.raft_id)).collect();
        let comes = whatif::what_if(&domain, &observed, &shared.policy, changes)?;
        Ok(comes.tell_of_voters(
            &shared.config.stateful_set,
            &shared.raft.membership().halves,
            &servers,
            domain.is_spread(),
        ))
    }

    fn health(&self) -> Health {
        match self.running() {
            Some(shared) => health(&shared),
            // Waiting for the anchor, for a permission or for the first server is no reason to be restarted.
            None => {
                let ready = vec![Check { name: "raft", failure: Some(self.why_not()) }];
                Health { live: Vec::new(), ready, notes: notes(&self.tls, &self.permissions) }
            }
        }
    }

    fn now(&self) -> Millis {
        self.running().map_or_else(crate::clock::now, |shared| shared.raft.now())
    }
}

/// Creates a missing anchor, so that a domain that was restored without one can be adopted. It names the log id 0 as founder.
/// No log has that id, so no server founds an epoch because of this anchor.
async fn read_anchor(shared: &Shared) -> Result<ReadAnchor, String> {
    let (kubernetes, name) = (&shared.kubernetes, shared.config.anchor_name());
    let read = async || anchor::read(kubernetes, &name).await.map_err(|error| error.to_line());
    let found = match read().await? {
        Some(found) => Some(found),
        None => {
            // Only who commits speaks for the domain, and the read above took its time.
            shared.raft.linearize().await.map_err(|error| error.to_string())?;
            let status = shared.raft.status();
            let anchor = Anchor { domain: status.domain, epoch: status.epoch, founder: RaftId(0), lossy: false };
            let made = anchor::create(kubernetes, &name, &anchor, &shared.config.server).await;
            made.map_err(|error| error.to_line())?;
            read().await?
        }
    };
    let (anchor, uid) = found.ok_or_else(|| format!("lease {name} was created and is already gone again"))?;
    let facts = vec![Fact::AnchorIs { uid: uid.clone() }];
    let evidence = Evidence { read_at: crate::clock::now(), facts };
    Ok(ReadAnchor { name, uid, domain: anchor.domain, evidence })
}

async fn write(shared: &Shared, actor: Actor, command: Command) -> Result<Written, NotWritten> {
    let (index, outcome) = shared.propose_as(actor, command).await.map_err(|error| match error {
        ProposeError::NoLeader
        | ProposeError::TooLarge { .. }
        | ProposeError::NoRoom { .. }
        | ProposeError::TooNew(_)
        | ProposeError::Wire(_) => NotWritten::Certainly(error.to_string()),
        ProposeError::Unknown { why } => NotWritten::Perhaps(why),
        ProposeError::Fatal(_) => NotWritten::Perhaps(error.to_string()),
    })?;
    shared.on_a_second_disk().await;
    let mut applied = shared.raft.applied();
    match tokio::time::timeout(APPLY_LIMIT, applied.wait_for(|applied| *applied >= index)).await {
        Ok(Ok(_)) => Ok(Written { index, outcome }),
        Ok(Err(_)) | Err(_) => Err(NotWritten::NotHere(index)),
    }
}

fn local(server: &ServerId, membership: Membership, status: Option<Status>) -> Peer {
    Peer {
        id: server.clone(),
        is_local: true,
        membership,
        connected: true,
        latency: None,
        last_ack: Some(Duration::ZERO),
        status,
    }
}

/// The servers of the domain; this one's own status is read last, so that it does not look behind.
fn peers(shared: &Shared) -> Vec<Peer> {
    let known = shared
        .raft
        .read(|domain| domain.servers.values().map(|server| (server.id.clone(), server.raft_id)).collect::<Vec<_>>());
    let heard = shared.peers.all();
    let group = shared.raft.status();
    // Where several clusters share the domain no server is evicted.
    let wanted = shared.admin_ordinals().filter(|_| !shared.is_spread());
    let membership = |id: &ServerId, raft_id: &RaftId| {
        let placed = ordinal_of(id, &shared.config.stateful_set).zip(wanted.as_ref());
        if group.voters.contains_key(raft_id) {
            Membership::Voter
        } else if placed.is_some_and(|(ordinal, wanted)| !wanted.contains(&ordinal)) {
            Membership::Evicted
        } else {
            Membership::Learner
        }
    };
    let own = &shared.config.server;
    let mut peers = Vec::new();
    for (id, raft_id) in known.iter().filter(|(id, _)| id != own) {
        let heard = heard.get(id);
        peers.push(Peer {
            id: id.clone(),
            is_local: false,
            membership: membership(id, raft_id),
            connected: heard.is_some_and(|heard| heard.connected),
            latency: heard.and_then(|heard| heard.latency),
            last_ack: heard.and_then(|heard| heard.at).map(|at| at.elapsed()),
            status: heard.and_then(|heard| heard.status.clone()).map(Status::from),
        });
    }
    let status = shared.host.status();
    peers.push(local(own, membership(own, &group.raft_id), Some(Status::from(status))));
    peers.sort_by(|a, b| a.id.cmp(&b.id));
    peers
}

/// How long ago each process was heard of: its session says so while it is live, by way of the agent that has it.
fn heard(shared: &Shared) -> BTreeMap<StartId, Duration> {
    let now = shared.raft.now();
    shared.raft.read(|domain| {
        let processes = domain.processes.values().map(|process| {
            let session = &process.session;
            let silent = match session.state {
                SessionState::Lost(since) => Duration::from_millis(now.since(since)),
                SessionState::Live if session.server == shared.config.server => {
                    shared.connected.heard(session.connection).unwrap_or_default()
                }
                SessionState::Live => shared.peers.silent_for(&session.server),
            };
            (process.id, silent)
        });
        processes.collect()
    })
}

fn plan_report(shared: &Shared) -> PlanReport {
    let leadership = shared.candidacy.leadership.borrow().clone();
    let leading = shared.candidacy.leads_now();
    let observed = shared.observed.read().unwrap_or_else(PoisonError::into_inner);
    let moment = shared.moment();
    let (mut plan, epoch) = shared.raft.read(|domain| {
        let epoch = domain.resync.get(&shared.config.cluster).map(|leader| leader.epoch);
        (plan(domain, &observed, &shared.policy, &moment), epoch)
    });
    let last = shared.last_pass.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(last) = &last {
        // What only fresh reads could tell.
        let added = last.waiting.iter().filter(|waiting| !plan.waiting.contains(waiting)).cloned();
        let still = |subject: &kaa_core::domain::audit::Subject| plan.findings.iter().any(|f| f.subject == *subject);
        let added: Vec<_> = added.filter(|waiting| still(&waiting.subject)).collect();
        plan.waiting.extend(added);
    }
    PlanReport {
        leading,
        resync_leader: super::leader_of(&leadership, &shared.config.server),
        epoch,
        plan,
        synced: observed.is_synced(),
        missing_permissions: shared.kubernetes.permissions.missing().iter().map(ToString::to_string).collect(),
        last_pass: last.filter(|it| !it.lines.is_empty()).map(|it| LastPass { at: it.at, lines: it.lines }),
    }
}

/// What an operator should see to although the agent serves.
fn notes(tls: &Tls, permissions: &Permissions) -> Vec<Note> {
    let certificates = super::certificates::note(tls).map(|words| Note { name: "certificates", words });
    let missing = permissions.missing().into_iter();
    let missing = missing
        .map(|permission| Note { name: "permissions", words: format!("the permission to {permission} is missing") });
    certificates.into_iter().chain(missing).collect()
}

/// An agent that answers is live: if Raft stops, the process ends by itself. An agent that follows the group is ready.
fn health(shared: &Shared) -> Health {
    let status = shared.raft.status();
    let quorum = match (standing::said(&shared.waits), standing::no_leader(shared)) {
        // One that is no member yet may wait for what will never come.
        (Some(waits), Some(no_leader)) => Some(format!("{waits}; {no_leader}")),
        (waits, no_leader) => waits.or(no_leader),
    };
    let behind = status.commit_index.saturating_sub(status.applied_index);
    let caught_up = (behind > READY_BEHIND).then(|| format!("{behind} committed entries are not applied here yet"));
    let founded = shared.raft.read(|domain| domain.id.is_some());
    let domain = (!founded).then(|| "the domain is not founded yet".to_owned());
    let observed = shared.observed.read().unwrap_or_else(PoisonError::into_inner);
    // A permission that is missing does not make an agent unready: it does less, and says so here.
    let syncing = [
        ("pods", observed.pods.known().err()),
        ("persistentvolumeclaims", observed.claims.known().err()),
        ("statefulsets", observed.stateful_sets.known().err()),
        ("deployments", observed.deployments.known().err()),
    ];
    let kubernetes = syncing.into_iter().find_map(|(kind, unknown)| match unknown {
        Some(Unknown::Syncing) => Some(format!("{kind} have not been listed yet")),
        Some(Unknown::Forbidden(_)) | None => None,
    });
    Health {
        live: Vec::new(),
        ready: vec![
            Check { name: "raft", failure: quorum },
            Check { name: "disk", failure: shared.raft.cannot_write().map(|why| why.to_string()) },
            Check { name: "caught-up", failure: caught_up },
            Check { name: "domain", failure: domain },
            Check { name: "kubernetes", failure: kubernetes },
        ],
        notes: notes_of(shared),
    }
}

/// The same of an agent whose Raft runs.
fn notes_of(shared: &Shared) -> Vec<Note> {
    let anchor = standing::said(&shared.anchor_alarm).map(|words| Note { name: "anchor", words });
    let eviction = standing::said(&shared.eviction_held).map(|words| Note { name: "voters", words });
    let away = standing::resync_away(shared).map(|words| Note { name: "resync", words });
    [anchor, eviction, away]
        .into_iter()
        .flatten()
        .chain(notes(&shared.guards.tls, &shared.kubernetes.permissions))
        .collect()
}

/// How many entries an agent may lag and still be ready: what a busy group commits between two heartbeats.
const READY_BEHIND: u64 = 1000;
