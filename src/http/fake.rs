//! A source for tests: a domain made by real commands, and peers made up.

mod parts;
mod shop;

use super::drain::DrainAnswer;
use super::recover::{RecoverAnswer, RecoverServer, Retired};
use super::source::{
    Awaits, Check, Health, LastPass, Membership, MembershipReport, NoQuorum, NotWritten, Peer, PlanReport, ReadAnchor,
    ResyncReport, Routing, Source, Status, Written,
};
use crate::raft::recovering::Wish;
use futures::FutureExt;
use futures::future::BoxFuture;
use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Claim, Ordinal, RemovalReason};
use kaa_core::domain::audit::Subject;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Entry, Expected, Fence, Outcome, Request, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{
    ArchiveId, ClusterName, DatabaseName, MembershipEpoch, Millis, ProtocolId, RaftId, ResyncEpoch, ServerId,
    SessionNumber, StartId, TaskId,
};
use kaa_core::domain::process::{About, EngineKind, EngineState, ExitReason, Identity, Registration};
use kaa_core::domain::protocol::{EffectiveProtocol, Protocol};
use kaa_core::domain::server::Server;
use kaa_core::domain::task::{ProtocolUpgrade, StepKind, TaskKind};
use kaa_core::membership::standing::Awaited;
use kaa_core::membership::warnings;
use kaa_core::observed::Observed;
use kaa_core::observed::objects::{self, Owner, Pod, StatefulSet};
use kaa_core::replication::Timing;
use kaa_core::resync::plan::{Finding, Need, Plan, Waiting, WaitingReason};
use kaa_core::resync::whatif::change::Change;
use kaa_core::resync::whatif::outcome::WhatIf;
use kaa_core::resync::{self, Policy, whatif};
use kaa_core::tasks::waits::TaskWait;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use parts::{membership, observed, peer, plan, recover, scale_down};

pub(crate) use parts::anchor;
pub(crate) use shop::{Shop, shop, stranger};

/// 2026-11-21T16:30:00Z.
const START: u64 = 1_795_278_600_000;

/// A source whose answers are set.
pub(crate) struct Fake {
    pub(crate) domain: Mutex<Domain>,
    pub(crate) observed: Observed,
    pub(crate) peers: Vec<Peer>,
    pub(crate) quorum: bool,
    pub(crate) plan: PlanReport,
    pub(crate) health: Health,
    pub(crate) routing: Routing,
    pub(crate) membership: MembershipReport,
    pub(crate) anchor: Result<ReadAnchor, String>,
    pub(crate) recover: Result<RecoverAnswer, String>,
    /// By whom each question of `recover` was accepted, if it was.
    pub(crate) asked: Arc<Mutex<Vec<Option<String>>>>,
}

impl Source for Fake {
    fn domain(&self, look: &mut dyn FnMut(&Domain)) {
        look(&self.domain.lock().unwrap());
    }

    fn peers(&self) -> Vec<Peer> {
        self.peers.clone()
    }

    fn heard(&self) -> BTreeMap<StartId, Duration> {
        [(StartId(1), Duration::from_millis(1200)), (StartId(4), Duration::from_secs(3))].into()
    }

    fn linearize(&self) -> BoxFuture<'_, Result<(), NoQuorum>> {
        let done = if self.quorum { Ok(()) } else { Err(NoQuorum("admin-1 and admin-2 are silent".to_owned())) };
        async { done }.boxed()
    }

    /// Without a quorum nothing is written.
    fn write(&self, actor: Actor, command: Command) -> BoxFuture<'_, Result<Written, NotWritten>> {
        if !self.quorum {
            return async { Err(NotWritten::Perhaps("admin-1 and admin-2 are silent".to_owned())) }.boxed();
        }
        let mut domain = self.domain.lock().unwrap();
        let index = domain.index + 1;
        let outcome = domain.apply(Entry { index, time: self.now(), request: Request { actor, command } });
        async move { Ok(Written { index, outcome }) }.boxed()
    }

    /// There is no claim here, and nothing wants any database.
    fn read_afresh(&self, needs: Vec<Need>) -> BoxFuture<'_, Evidence> {
        let anchor = self.domain.lock().unwrap().anchor.clone();
        let facts = needs.into_iter().filter_map(|need| match need {
            Need::Anchor => anchor.clone().map(|uid| Fact::AnchorIs { uid }),
            Need::Claim(name) => Some(Fact::ClaimAbsent { name }),
            Need::WantersOf(database) => Some(Fact::DatabaseUnwanted { database }),
            Need::WorkloadsOf { database, pods: _ } => Some(Fact::Settled { database, pods: BTreeMap::new() }),
            Need::Pod(_) | Need::StatefulSet(_) | Need::Replication { .. } | Need::LoadBalancer { .. } => None,
        });
        let facts = facts.collect();
        async move { Evidence { read_at: Millis(5), facts } }.boxed()
    }

    fn read_workloads(&self, database: &DatabaseName) -> BoxFuture<'_, Evidence> {
        self.read_afresh(vec![Need::WorkloadsOf { database: database.clone(), pods: Default::default() }, Need::Anchor])
    }

    fn observed(&self) -> Observed {
        self.observed.clone()
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        [("ThisServerId", "admin-0".to_owned()), ("agentPort", "48004".to_owned())].into()
    }

    /// The real one creates an anchor that is missing.
    fn read_anchor(&self) -> BoxFuture<'_, Result<ReadAnchor, String>> {
        assert!(self.quorum, "the anchor is asked for by a server that does not know that it speaks for the domain");
        let read = self.anchor.clone();
        async { read }.boxed()
    }

    fn name(&self) -> String {
        "nuodb".to_owned()
    }

    fn timing(&self) -> Timing {
        Timing::default()
    }

    fn annotation_prefix(&self) -> String {
        "db.example/".to_owned()
    }

    fn cluster(&self) -> ClusterName {
        "main".into()
    }

    fn drain(&self) -> BoxFuture<'_, DrainAnswer> {
        let [server, outcome, message, leader] =
            ["admin-0", "keeps_vote", "admin-0 is not scaled down, and keeps its vote", "admin-1"].map(str::to_owned);
        async { DrainAnswer { server, outcome, message, leader: Some(leader) } }.boxed()
    }

    fn recover(&self, wish: Wish) -> BoxFuture<'_, Result<RecoverAnswer, String>> {
        let Wish { accepted_by, from_retired_log } = wish;
        self.asked.lock().unwrap().push(accepted_by.clone());
        let mut answer = self.recover.clone();
        if let (Some(place), Ok(answer)) = (&from_retired_log, &mut answer) {
            answer.from_retired_log = Some(place.clone());
            (answer.founder, answer.last_index) = (Some("admin-1".to_owned()), 15);
            answer.lost = Some("whatever was committed after entry 15 of epoch 2, also in epoch 3".to_owned());
            answer.outside = vec!["admin-0".to_owned(), "admin-2".to_owned()];
        }
        if let (Some(by), Ok(answer)) = (accepted_by, &mut answer)
            && answer.refusal.is_none()
        {
            (answer.begun, answer.waits) = (Some(answer.epoch + 1), Some(format!("accepted by {by}")));
        }
        async { answer }.boxed()
    }

    fn plan(&self) -> PlanReport {
        self.plan.clone()
    }

    fn resync(&self) -> ResyncReport {
        let PlanReport { leading, synced, plan, .. } = self.plan.clone();
        ResyncReport { leading, synced, findings: plan.findings.len(), waiting: plan.waiting }
    }

    fn membership(&self) -> MembershipReport {
        self.membership.clone()
    }

    fn what_if(&self, changes: &[Change]) -> Result<WhatIf, whatif::Error> {
        let policy = Policy::new("main".into(), "default".to_owned());
        let comes = whatif::what_if(&self.domain.lock().unwrap(), &self.observed, &policy, changes)?;
        let servers = (0..3).map(|n| (ServerId::new(format!("admin-{n}")), RaftId(100 + n))).collect();
        Ok(comes.tell_of_voters("admin", &[[RaftId(100), RaftId(101)].into()], &servers, false))
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    fn seen_wrong(&self, database: &DatabaseName) -> Vec<WaitingReason> {
        resync::seen_wrong(&self.observed, &self.domain.lock().unwrap(), database)
    }

    fn routing(&self, _: &DatabaseName) -> Routing {
        self.routing.clone()
    }

    fn now(&self) -> Millis {
        Millis(START + 60_000)
    }
}

/// Applies commands one second apart.
#[derive(Default)]
struct Log {
    domain: Domain,
}

impl Log {
    fn apply(&mut self, role: Role, name: &str, command: Command) {
        let index = self.domain.index + 1;
        let request = Request { actor: Actor { role, name: name.to_owned() }, command };
        let outcome = self.domain.apply(Entry { index, time: Millis(START + 1000 * index), request });
        assert!(!matches!(outcome, Outcome::Refused(_)), "entry {index}: {outcome:?}");
    }

    fn admit(&mut self, ordinal: u64) {
        let id = ServerId::new(format!("admin-{ordinal}"));
        let address = format!("admin-{ordinal}.nuodb.default.svc.cluster.local:48005");
        let labels = [("zone".to_owned(), format!("z{ordinal}"))].into();
        let (version, joined) = ("0.1.0".to_owned(), Millis(0));
        let server =
            Server { id, cluster: "main".into(), address, raft_id: RaftId(100 + ordinal), version, labels, joined };
        self.apply(Role::RaftLeader, "admin-0", Command::AdmitServer(change::AdmitServer { server }));
    }

    fn register(&mut self, pod: &str, kind: EngineKind, server: &str) {
        self.register_for("demo", pod, kind, server);
    }

    fn register_for(&mut self, database: &str, pod: &str, kind: EngineKind, server: &str) {
        let set = pod.rsplit_once('-').map_or(pod, |(set, _)| set);
        let ordinal: u32 = pod.rsplit_once('-').and_then(|(_, n)| n.parse().ok()).unwrap_or_default();
        let id = self.domain.last_start.next().0;
        let owner = Some(Ordinal { stateful_set: set.to_owned(), uid: format!("set-{set}").into(), ordinal });
        let name = format!("archive-volume-{pod}");
        let claim = Claim { namespace: "default".to_owned(), uid: format!("claim-{pod}").into(), name, owner };
        let identity = Identity {
            namespace: "default".to_owned(),
            pod: pod.to_owned(),
            pod_uid: format!("uid-{pod}").into(),
            container: "engine".to_owned(),
            nonce: id,
            started: Millis(START),
        };
        let about = About {
            address: format!("10.0.0.{}", 10 + id),
            hostname: pod.to_owned(),
            port: 48006,
            pid: 0,
            version: "7.0.2".to_owned(),
            labels: [("zone".to_owned(), "z1".to_owned())].into(),
            protocols: BTreeMap::new(),
            zone: (database == "shop").then(|| format!("z{}", 1 + ordinal % 2)),
        };
        let registration = Registration {
            database: database.into(),
            kind,
            cluster: "main".into(),
            identity,
            known_as: None,
            claim: (kind == EngineKind::Sm).then_some(claim),
            marker: None,
            path: if kind == EngineKind::Sm { "/var/opt/nuodb/archive/nuodb/demo".to_owned() } else { String::new() },
            server: server.into(),
            connection: id,
            about,
            evidence: None,
            as_of: None,
        };
        self.apply(Role::Agent, server, Command::RegisterProcess(Box::new(registration)));
    }

    fn report(&mut self, process: u64, engine: EngineState) {
        let (process, session) = (StartId(process), SessionNumber(1));
        self.apply(
            Role::Agent,
            "admin-0",
            Command::ReportState(change::ReportState { process, session, engine, pid: 42 }),
        );
    }
}

/// A domain that was founded elsewhere and not used yet.
pub(crate) fn founded_again() -> Fake {
    let mut log = Log::default();
    let founding = Command::FoundDomain(change::FoundDomain {
        domain: "d-2".into(),
        name: "nuodb".to_owned(),
        anchor: "anchor-2".into(),
    });
    log.apply(Role::RaftLeader, "admin-0", founding);
    log.admit(0);
    Fake { domain: Mutex::new(log.domain), ..source() }
}

/// A database whose two engines support a later protocol version than the one in effect, and the task that upgrades it, at
/// its last step, if there is to be one.
pub(crate) fn upgradable(with_task: bool) -> Fake {
    let protocol = |id, name: &str| Protocol { id: ProtocolId(id), name: name.to_owned() };
    let (from, to) = (protocol(1_376_256, "4.2"), protocol(1_441_792, "4.3|4.3.1"));
    let mut log = Log { domain: domain() };
    log.domain.processes.retain(|id, _| [1, 4].contains(&id.0));
    let used: Vec<_> = log.domain.processes.values().filter_map(|process| process.archive).collect();
    log.domain.archives.retain(|id, archive| archive.removed.is_some() || used.contains(id));
    for process in log.domain.processes.values_mut() {
        process.about.version = "4.3.2".to_owned();
        process.about.protocols = [&from, &to].map(|version| (version.id, version.name.clone())).into();
    }
    let database = log.domain.databases.get_mut(&"demo".into()).unwrap();
    database.protocol = Some(EffectiveProtocol::new(from.clone()));
    if with_task {
        let database = || "demo".into();
        let (deployment, uid, query) =
            ("te-demo".to_owned(), "deployment-te".into(), Some("random(start_id(4))".to_owned()));
        let asked = Fact::UpgradeAsked { database: database(), deployment, uid, query };
        let settled = Fact::Settled { database: database(), pods: BTreeMap::new() };
        let facts = vec![Fact::AnchorIs { uid: "anchor-1".into() }, asked, settled];
        let (fence, evidence) = (
            Fence { cluster: "main".into(), epoch: ResyncEpoch(5) },
            Evidence { read_at: Millis(START + 20_000), facts },
        );
        let upgrade = ProtocolUpgrade {
            database: database(),
            deployment: "te-demo".to_owned(),
            uid: "deployment-te".into(),
            from,
            to,
            release: "4.3.2".to_owned(),
            engine: StartId(4),
            query: Some("random(start_id(4))".to_owned()),
        };
        let (kind, reason) = (TaskKind::ProtocolUpgrade(upgrade), "an annotation of deployment te-demo asks for it");
        let begin =
            change::BeginTask { fence: fence.clone(), kind, reason: reason.to_owned(), evidence: evidence.clone() };
        log.apply(Role::ResyncLeader, "admin-0", Command::BeginTask(Box::new(begin)));
        for (step, what) in [(1, StepKind::RaiseVersion), (2, StepKind::StopEngine)] {
            let (fence, evidence) = (fence.clone(), evidence.clone());
            let advance = change::AdvanceTask { fence, task: TaskId(1), step, what, evidence };
            log.apply(Role::ResyncLeader, "admin-0", Command::AdvanceTask(advance));
        }
    }
    let mut fake = Fake { domain: Mutex::new(log.domain), ..source() };
    let reason = WaitingReason::Task(TaskWait::UpgradeEngineAwaited(TaskId(1)));
    fake.plan.plan.waiting = vec![Waiting { subject: Subject::Database("demo".into()), reason }];
    fake
}

/// Three servers, one of them evicted and gone; two storage managers, one of them scaled down; two transaction
/// engines, one of them lost; a third, which starts.
pub(crate) fn domain() -> Domain {
    let mut log = Log::default();
    let founding = Command::FoundDomain(change::FoundDomain {
        domain: "d-1".into(),
        name: "nuodb".to_owned(),
        anchor: "anchor-1".into(),
    });
    log.apply(Role::RaftLeader, "admin-0", founding);
    (0..3).for_each(|ordinal| log.admit(ordinal));
    let lease = Fact::LeaseIs { name: "kaa-nuodb-main".to_owned(), uid: "lease-1".into() };
    let evidence = Evidence { read_at: Millis(START + 4500), facts: vec![lease] };
    let (cluster, lease, holder) = ("main".into(), "lease-1".into(), "admin-0".into());
    log.apply(
        Role::ResyncLeader,
        "admin-0",
        Command::BeginResync(change::BeginResync { cluster, lease, transitions: 1, holder, evidence }),
    );
    log.register("sm-demo-0", EngineKind::Sm, "admin-0");
    log.report(1, EngineState::Running);
    let container = Command::LearnContainer(change::LearnContainer {
        process: StartId(1),
        pod: "uid-sm-demo-0".into(),
        container: "c-1".into(),
    });
    log.apply(Role::ResyncLeader, "admin-0", container);
    log.register("sm-demo-1", EngineKind::Sm, "admin-1");
    log.report(2, EngineState::Running);
    log.register("te-demo-5c9f7-x2b4k", EngineKind::Te, "admin-2");
    log.report(3, EngineState::Running);
    log.report(2, EngineState::ShuttingDown);
    let (process, session, reason) = (StartId(2), SessionNumber(1), ExitReason::Graceful);
    log.apply(
        Role::Agent,
        "admin-1",
        Command::ReportExit(change::ReportExit { process, session, exit_code: Some(0), reason }),
    );
    let (process, session, as_of) = (StartId(1), SessionNumber(1), log.domain.index);
    log.apply(Role::Agent, "admin-0", Command::ConfirmRunning(change::ConfirmRunning { process, session, as_of }));
    log.apply(Role::ResyncLeader, "admin-0", scale_down());
    let why = "admin-2 is silent".to_owned();
    log.apply(
        Role::RaftLeader,
        "admin-0",
        Command::LoseSession(change::LoseSession { process: StartId(3), session, why }),
    );
    log.register("te-demo-5c9f7-p8w9z", EngineKind::Te, "admin-1");
    log.register("sm-demo-2", EngineKind::Sm, "admin-1");
    let (key, value) = ("nuodb/nuosm/readiness".to_owned(), Some("yes".to_owned()));
    log.apply(
        Role::Operator,
        "user ann",
        Command::SetValue(change::SetValue { key, value, expected: Expected::Anything }),
    );
    log.report(4, EngineState::Running);
    log.domain
}

/// The fixture.
pub(crate) fn source() -> Fake {
    use Membership::{Evicted, Voter};
    let check = |name| Check { name, failure: None };
    Fake {
        domain: Mutex::new(domain()),
        observed: observed(),
        peers: vec![peer(0, Voter, true), peer(1, Voter, true), peer(2, Evicted, false)],
        quorum: true,
        plan: plan(),
        anchor: Ok(anchor("d-1")),
        membership: membership(),
        recover: Ok(recover()),
        asked: Arc::default(),
        routing: Routing::default(),
        health: Health { live: vec![check("loop")], ready: vec![check("raft"), check("disk")], notes: vec![] },
    }
}
