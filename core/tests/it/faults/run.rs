//! One run of a script: the domain, the real Kubernetes, the engines and the leaders, and the violations.

use super::engines::{Engine, Volume};
use super::kubernetes::{Change, DEPLOYMENTS, KINDS, Kind, Kubernetes, SETS, claim_name};
use super::leader::{Leader, Sent};
use super::upgrades::Seen;
use super::{Script, Step};
use crate::script::Objects;
use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Claim, Ordinal};
use kaa_core::domain::audit::Audit;
use kaa_core::domain::bounds::Bounds;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Entry, Outcome, Request, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{ArchiveId, Millis, ResyncEpoch, SessionNumber, StartId, Uid};
use kaa_core::domain::process::{About, EngineKind, Identity, Registration};
use kaa_core::resync::Policy;
use std::collections::{BTreeMap, BTreeSet};

/// How much time passes with each step. Two starts of a container may be even less than that apart.
const STEP_MS: u64 = 700;
/// The maximum number of passes until a domain without changes must be at rest.
const ROUNDS: usize = 24;

#[derive(Default)]
pub struct Run {
    pub domain: Domain,
    pub kubernetes: Kubernetes,
    pub anchor: Option<Uid>,
    pub denied: BTreeSet<Kind>,
    /// By pod UID.
    pub engines: BTreeMap<Uid, Engine>,
    /// By the UID of the claim.
    pub volumes: BTreeMap<Uid, Volume>,
    /// The contents of the last claim of each name that was deleted.
    pub last_volume: BTreeMap<String, Volume>,
    /// The registrations that were sent: each may arrive at any time, and more than once.
    pub sent: Vec<Registration>,
    pub leaders: Vec<Leader>,
    pub purge_delay_ms: u64,
    pub transitions: u64,
    pub clock: u64,
    /// How often a leader's clock was set.
    pub clocks_set: u64,
    pub nonces: u64,
    /// The pods whose engines registered, and whether without a proven read of their claim.
    pub registered: BTreeSet<(Uid, bool)>,
    /// The pods whose engines ran.
    pub ran: BTreeSet<Uid>,
    pub starts: BTreeMap<StartId, u64>,
    pub archives: BTreeSet<ArchiveId>,
    /// The claims of all pods so far, by the UID of the pod.
    pub claim_of_pod: BTreeMap<Uid, Claim>,
    /// Whether engines can say how new their data is; else all of them say 0.
    pub tells_history: bool,
    /// The progress of the tasks.
    pub upgrades: Seen,
    /// How many commands changed anything, and how many containers were started.
    pub changes: u64,
    /// The objects of which the watches were last told.
    published: Objects,
    /// Whether to record what happens, which takes most of the time.
    pub tells: bool,
    pub trace: Vec<String>,
    pub wrong: Option<String>,
}

impl Run {
    pub fn new(script: &Script, tells: bool) -> Self {
        let purge_delay_ms = u64::from(script.purge_delay_s) * 1000;
        let tells_history = script.tells_history;
        let mut run =
            Self { anchor: Some("A1".into()), purge_delay_ms, clock: 10_000, tells, tells_history, ..Self::default() };
        let anchor = "A1".into();
        if script.few_tombstones {
            run.domain.bounds = Bounds { tombstones: 1, ..Bounds::DEFAULT };
        }
        run.propose(
            Role::RaftLeader,
            Command::FoundDomain(change::FoundDomain { domain: "D1".into(), name: "kaa".into(), anchor }),
        );
        run.leaders.resize_with(super::LEADERS, Leader::default);
        // One clock is right, one fast, one slow.
        (1..super::LEADERS).zip([7200, -7200]).for_each(|(leader, seconds)| run.set_clock(leader, seconds));
        run.clocks_set = 0;
        if script.another_cluster {
            run.another_cluster();
        }
        run.change(&Change::CreateSet { set: 0, replicas: 2 });
        run.change(&Change::CreateSet { set: 1, replicas: 1 });
        run.kubernetes.create_deployment(0, 1);
        run.change(&Change::Reconcile);
        run.publish();
        (0..super::LEADERS).for_each(|leader| run.see(leader));
        run.lead(0, false);
        run
    }

    /// A storage manager of another cluster, whose claim and pod have the names of ours, and whose session is lost.
    fn another_cluster(&mut self) {
        let owner = Some(Ordinal { stateful_set: "sm".to_owned(), uid: "X1".into(), ordinal: 4 });
        let (namespace, name) = ("default".to_owned(), claim_name("sm", 4));
        let registration = Registration {
            database: "far".into(),
            kind: EngineKind::Sm,
            cluster: "c2".into(),
            identity: Identity {
                namespace: namespace.clone(),
                pod: "sm-4".to_owned(),
                pod_uid: "X3".into(),
                container: "engine".to_owned(),
                nonce: u64::MAX,
                started: Millis(0),
            },
            known_as: None,
            claim: Some(Claim { namespace, name, uid: "X2".into(), owner }),
            marker: None,
            path: "/archive".to_owned(),
            server: "admin-0".into(),
            connection: 1,
            about: About::default(),
            evidence: None,
            as_of: None,
        };
        self.propose(Role::Agent, Command::RegisterProcess(Box::new(registration)));
        let (process, session) = (StartId(1), SessionNumber(1));
        self.propose(
            Role::Agent,
            Command::LoseSession(change::LoseSession { process, session, why: "stream reset".to_owned() }),
        );
    }

    pub fn policy(&self) -> Policy {
        Policy { purge_delay_ms: self.purge_delay_ms, ..Policy::new("c1".into(), "default".to_owned()) }
    }

    /// The true time, of which leaders' clocks may be off.
    pub fn now(&self) -> Millis {
        Millis(100_000_000 + self.clock)
    }

    pub fn epoch(&self) -> ResyncEpoch {
        self.domain.resync.get(&"c1".into()).map_or(ResyncEpoch(0), |leader| leader.epoch)
    }

    /// The nonces of the wrappers that run.
    pub fn alive(&self) -> BTreeSet<u64> {
        self.engines.values().filter(|engine| engine.alive).map(|engine| engine.nonce).collect()
    }

    pub fn violated(&mut self, what: String) {
        self.trace.push(format!("  WRONG: {what}"));
        self.wrong.get_or_insert(what);
    }

    pub fn propose(&mut self, role: Role, command: Command) -> Outcome {
        self.apply(role, command, None)
    }

    /// A leader's command reaches the log.
    pub fn arrive(&mut self, sent: &Sent) -> Outcome {
        self.apply(Role::ResyncLeader, sent.command.clone(), Some(sent))
    }

    fn apply(&mut self, role: Role, command: Command, sent: Option<&Sent>) -> Outcome {
        // The audit trail decides nothing, and copies of it would be most of the work.
        self.domain.audit = Audit::default();
        let before = self.domain.clone();
        let request = Request { actor: Actor { role, name: "admin-0".to_owned() }, command: command.clone() };
        let outcome = self.domain.apply(Entry { index: before.index + 1, time: self.now(), request });
        if matches!(outcome, Outcome::Changed | Outcome::Registered(_) | Outcome::ArchiveCreated(_)) {
            self.changes += 1;
        }
        if self.tells {
            self.trace.push(format!("  {}: {}", self.domain.index, told(&command, &outcome)));
        }
        self.judge(&before, &command, &outcome, sent);
        outcome
    }

    /// Runs a step of the script. In a run without faults, only changes are steps.
    pub fn step(&mut self, step: &Step) {
        self.clock += STEP_MS;
        self.trace.extend(self.tells.then(|| format!("{step:?}")));
        match *step {
            Step::Change(ref change) => self.change(change),
            Step::Engines => self.engines_act(),
            Step::Engine(number) => {
                let pod = self.kubernetes.pod(number).map(|pod| pod.uid.clone());
                pod.iter().for_each(|pod| self.act(pod));
            }
            Step::Delayed(number) => {
                let engine = self.kubernetes.pod(number).and_then(|pod| self.engines.get(&pod.uid)).cloned();
                engine.filter(|engine| engine.alive).iter().for_each(|engine| drop(self.registration(engine)));
            }
            Step::Late(number) => self.arrive_late(number),
            Step::Notice => self.notice_the_dead(),
            Step::Watch { leader, kind, watch } => self.watch(leader, kind, watch),
            Step::See { leader } => self.see(leader),
            Step::Lead { leader, late } => self.lead(leader, late),
            Step::Plan { leader, follow } => {
                if follow {
                    self.follow(leader);
                }
                self.plan(leader);
            }
            Step::Read { leader, fails } => self.read(leader, fails),
            Step::Send { leader, most, twice } => drop(self.send(leader, most, twice)),
            Step::Pass { leader } => {
                self.follow(leader);
                self.pass(leader);
            }
            Step::Crash { leader } => self.crash(leader),
            Step::Clock { leader, seconds } => self.set_clock(leader, seconds),
        }
        self.publish();
    }

    /// Queues the latest changes for every watch.
    fn publish(&mut self) {
        for leader in &mut self.leaders {
            leader.queue(&self.published, &self.kubernetes.is);
        }
        self.published.clone_from(&self.kubernetes.is);
    }

    /// A whole pass. Returns how many of its commands changed anything.
    fn pass(&mut self, leader: usize) -> usize {
        self.plan(leader);
        self.read(leader, None);
        self.send(leader, usize::MAX, false)
    }

    fn engines_act(&mut self) {
        for pod in self.engines.keys().cloned().collect::<Vec<_>>() {
            self.act(&pod);
        }
        self.learn_claims();
    }

    pub fn change(&mut self, change: &Change) {
        let picked = match *change {
            Change::DeletePod { pod, .. }
            | Change::Terminating { pod }
            | Change::Restart { pod, .. }
            | Change::Ends { pod, .. }
            | Change::Cut { pod }
            | Change::Evict { pod }
            | Change::Stop { pod } => self.kubernetes.pod(pod).map(|pod| (pod.name.clone(), pod.uid.clone())),
            _ => None,
        };
        match picked {
            Some((name, uid)) => self.change_pod(change, &name, &uid),
            None => self.change_others(change),
        }
        self.follow_kubernetes();
    }

    fn change_pod(&mut self, change: &Change, name: &str, uid: &Uid) {
        match *change {
            Change::DeletePod { death, .. } => self.kubernetes.delete_pod(name, death),
            Change::Terminating { .. } => {
                if let Some(pod) = self.kubernetes.is.pods.get_mut(name) {
                    pod.deleting = true;
                }
            }
            Change::Restart { said, shown, .. } => {
                self.end_container(uid, said, shown);
                self.start_container(uid, shown);
            }
            Change::Ends { said, .. } => self.end_container(uid, said, true),
            Change::Cut { .. } => self.cut(uid),
            Change::Evict { .. } | Change::Stop { .. } => {
                let engine = self.engines.get(uid).cloned();
                let Some(process) = engine.and_then(|engine| self.process_of(&engine)).map(|p| p.id) else { return };
                let how = kaa_core::domain::process::Stop::Gracefully;
                let evict = matches!(change, Change::Evict { .. });
                let stop = Command::StopProcess(change::StopProcess { process, how });
                self.propose(
                    Role::Operator,
                    if evict { Command::EvictProcess(change::EvictProcess { process }) } else { stop },
                );
            }
            _ => {}
        }
    }

    fn change_others(&mut self, change: &Change) {
        let kubernetes = &mut self.kubernetes;
        match *change {
            Change::Scale { set, replicas } => kubernetes.edit_set(set, |set| set.replicas = replicas),
            Change::FirstOrdinal { set, start } => kubernetes.edit_set(set, |set| set.first_ordinal = start),
            Change::Retention { set, delete } => {
                kubernetes.edit_set(set, |set| set.deletes_claims_when_scaled = delete);
            }
            Change::Annotate { set, hold_purge, pause } => {
                kubernetes.edit_set(set, |set| (set.holds_purge, set.paused) = (hold_purge, pause));
            }
            Change::DeleteSet { set, claims, death } => kubernetes.delete_set(set, claims, death),
            Change::CreateSet { set, replicas } => kubernetes.create_set(set, replicas),
            Change::RecreateSet { set } => kubernetes.recreate_set(set),
            Change::RenameDeployment => kubernetes.rename_deployment(),
            Change::ScaleDeployment { replicas } => {
                let deployment = DEPLOYMENTS.iter().find(|name| kubernetes.is.deployments.contains_key(**name));
                let deployment = deployment.and_then(|name| kubernetes.is.deployments.get_mut(*name));
                deployment.into_iter().for_each(|deployment| deployment.replicas = replicas);
            }
            Change::Reconcile => kubernetes.reconcile(),
            Change::DeleteClaim { set, ordinal } => kubernetes.delete_claim(&claim_name(SETS[set].0, ordinal)),
            Change::Wipe { set, death } => kubernetes.wipe(set, death),
            Change::RestoreClaim { set, ordinal } => kubernetes.restore_claim(set, ordinal),
            Change::CopyClaim { set, ordinal, from } => kubernetes.copy_claim(set, ordinal, from),
            Change::RemoveMarker { set, ordinal } => {
                let claim = kubernetes.is.claims.get(&claim_name(SETS[set].0, ordinal));
                if let Some(volume) = claim.and_then(|claim| self.volumes.get_mut(&claim.uid)) {
                    volume.marker = None;
                }
            }
            Change::Shown => {
                for pod in self.engines.keys().cloned().collect::<Vec<_>>() {
                    self.show_status(&pod);
                }
            }
            Change::ZombiesDie => self.zombies_die(),
            Change::Anchor(uid) => self.anchor = uid.map(Into::into),
            Change::Adopt => self.adopt(),
            Change::Permissions { kind, granted } => {
                if granted {
                    self.denied.remove(&kind)
                } else {
                    self.denied.insert(kind)
                };
            }
            Change::Pause(true) => drop(
                self.propose(Role::Operator, Command::PauseResync(change::PauseResync { why: "a look".to_owned() })),
            ),
            Change::Pause(false) => drop(self.propose(Role::Operator, Command::ResumeResync)),
            Change::Later { seconds } => self.clock += seconds * 1000,
            Change::RollOut { all, said } => self.roll_out(all, said),
            Change::AskForUpgrades(asks) => self.ask_for_upgrades(asks),
            Change::Rolling { workload, rolling } => self.set_rolling(workload, rolling),
            Change::ByHand(asked) => self.by_hand(asked),
            // There was no pod to select.
            _ => {}
        }
    }

    fn adopt(&mut self) {
        let (Some(known), Some(anchor)) = (self.domain.anchor.clone(), self.anchor.clone()) else { return };
        let evidence = Evidence { read_at: self.now(), facts: vec![Fact::AnchorIs { uid: anchor.clone() }] };
        self.propose(
            Role::Operator,
            Command::AdoptAnchor(change::AdoptAnchor {
                known,
                anchor,
                cluster: None,
                why: "restored".to_owned(),
                evidence,
            }),
        );
    }

    /// Without faults: everything is noticed at once, and passes continue until one changes nothing.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS {
            let before = self.changes;
            self.notice_the_dead();
            self.engines_act();
            self.see(0);
            self.pass(0);
            if self.changes == before {
                return;
            }
        }
        self.violated(format!("does not come to rest in {ROUNDS} rounds"));
    }

    /// The faults end, in Kubernetes and at the leaders, and the domain has to come to rest.
    pub fn finish(&mut self) {
        self.trace.push("the faults end".to_owned());
        self.change(&Change::Anchor(Some("A1")));
        self.change(&Change::Adopt);
        KINDS.into_iter().for_each(|kind| self.change(&Change::Permissions { kind, granted: true }));
        for set in 0..SETS.len() {
            self.change(&Change::Annotate { set, hold_purge: false, pause: false });
        }
        self.change(&Change::Pause(false));
        (0..=SETS.len()).for_each(|workload| self.change(&Change::Rolling { workload, rolling: false }));
        self.change(&Change::ZombiesDie);
        for pod in self.engines.keys().cloned().collect::<Vec<_>>() {
            self.start_container(&pod, true);
        }
        self.change(&Change::Reconcile);
        self.change(&Change::Reconcile);
        self.change(&Change::Shown);
        self.lead(0, false);
        // The commands of earlier leaders that are still in transit arrive now.
        for leader in 0..self.leaders.len() {
            self.send(leader, usize::MAX, false);
        }
        self.settle();
        // A delay ends only if a leader has watched it.
        for _ in 0..(2 * self.purge_delay_ms).div_ceil(60_000) {
            self.clock += 60_000;
            self.settle();
        }
        for _ in 0..2 {
            self.see(0);
            let findings = self.plan(0);
            if findings > 0 {
                self.violated(format!("still proposes {findings} things at rest"));
            }
        }
    }
}

/// A command and its answer as text.
fn told(command: &Command, outcome: &Outcome) -> String {
    let what = match command {
        Command::RegisterProcess(asked) => {
            let claim = asked.claim.as_ref().map_or("none".to_owned(), |claim| format!("{} {}", claim.name, claim.uid));
            let marker = asked.marker.as_ref().map_or("none".to_owned(), |marker| marker.archive.to_string());
            let (pod, uid, nonce) = (&asked.identity.pod, &asked.identity.pod_uid, asked.identity.nonce);
            format!("register {pod} {uid} wrapper {nonce} claim {claim} marker {marker}")
        }
        Command::RemoveProcess(change::RemoveProcess { fence, process, reason, evidence, .. }) => {
            format!("epoch {}: remove process {process}: {reason} [{evidence}]", fence.epoch)
        }
        Command::RemoveArchive(change::RemoveArchive { fence, archive, reason, evidence, .. }) => {
            format!("epoch {}: remove archive {archive}: {reason} [{evidence}]", fence.epoch)
        }
        Command::PurgeArchive(change::PurgeArchive { fence, archive, evidence, .. }) => {
            format!("epoch {}: purge archive {archive} [{evidence}]", fence.epoch)
        }
        Command::NoteClaimGone(change::NoteClaimGone { fence, archive, evidence, .. }) => {
            format!("epoch {}: the claim of archive {archive} is gone [{evidence}]", fence.epoch)
        }
        Command::DeleteDatabase(change::DeleteDatabase { fence, database, evidence }) => {
            format!("epoch {}: delete database {database} [{evidence}]", fence.epoch)
        }
        Command::RemoveServer(change::RemoveServer { fence, server, evidence, .. }) => {
            format!("epoch {}: remove server {server} [{evidence}]", fence.epoch)
        }
        Command::BeginResync(change::BeginResync { holder, transitions, .. }) => {
            format!("{holder} acquires the lease as {transitions}")
        }
        other => format!("{other:?}"),
    };
    match outcome {
        Outcome::Registered(r) => {
            format!("{what}: process {} archive {:?} session {}", r.process, r.archive, r.session)
        }
        Outcome::Refused(why) => format!("{what}: refused: {why}"),
        other => format!("{what}: {other:?}"),
    }
}
