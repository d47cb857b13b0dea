//! One run: a seed in, what happened out. One thread, one clock, one source of chance.

use crate::checks::Checks;
use crate::engine::{self, Truth};
use crate::host::{self, Host, runtime};
use crate::kubelet::Kubelet;
use crate::kubernetes::Kubernetes;
use crate::network::Network;
use crate::schedule::{Action, UNTIL_MS, schedule};
use crate::trace::Trace;
use embedded_kubernetes::object::{name, text, uid};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{DeleteOptions, Ids, Key, Part};
use kaa::agent::Shared;
use kaa::clock::{self, Simulated};
use kaa::kubernetes::lease::Leadership;
use kaa_core::domain::command::{Actor, Command, Expected, Outcome, Role};
use kaa_core::domain::ids::Millis;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// How far the clocks move in one step: the grain of what happens between agents.
const TICK_MS: u64 = 4;
/// The wall time at which a run begins.
pub const EPOCH_MS: u64 = 1_750_000_000_000;
/// How long the domain may take to converge once nothing goes wrong any more: the Lease of one that is gone, two passes
/// of the resync, and the next look of everybody else.
const CONVERGED_WITHIN_MS: u64 = 60_000;

/// What came of a run.
pub struct Run {
    pub hash: u64,
    pub text: String,
    pub wrong: Vec<String>,
    /// How long it took to converge.
    pub converged_ms: u64,
    pub acknowledged: usize,
    pub taken_away: u64,
}

struct World {
    now_ms: u64,
    trace: Trace,
    ground: host::Ground,
    hosts: Vec<Host>,
    kubelet: Kubelet,
    checks: Checks,
    outside: Runtime,
    outside_begin: Instant,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    dice: Ids,
    writes: u64,
    _directory: TempDir,
}

/// Plays a seed.
pub fn play(seed: u64) -> Run {
    clock::simulate(Some(Simulated { now: Millis(EPOCH_MS), random: seed }));
    let mut world = World::new(seed);
    let mut actions = schedule(seed).into_iter().peekable();
    while world.now_ms < UNTIL_MS {
        world.step();
        while let Some((_, action)) = actions.next_if(|(at, _)| *at <= world.now_ms) {
            world.act(action);
        }
    }
    for (_, action) in actions {
        // What was to end later ends now.
        if matches!(action, Action::Start(_)) {
            world.act(action);
        }
    }
    let converged_ms = world.converge();
    world.checks.close();
    let (hash, text, wrong) = (world.trace.hash(), world.trace.text(), world.trace.all_wrong());
    let (acknowledged, taken_away) = (world.acknowledged.lock().unwrap().len(), world.checks.taken_away);
    drop(world);
    clock::simulate(None);
    Run { hash, text, wrong, converged_ms, acknowledged, taken_away }
}

impl World {
    fn new(seed: u64) -> Self {
        let trace = Trace::default();
        let (network, kubernetes) = (Network::new(trace.clone()), Kubernetes::new(seed, trace.clone()));
        let truth: Arc<Mutex<Truth>> = Arc::default();
        let agents = (0..3).map(|ordinal| format!("kaa-admin-{ordinal}")).collect();
        let (tokens, instance) = (kubernetes.tokens.clone(), kubernetes.instance.clone());
        let (checks, for_engines) = (Checks::new(trace.clone(), instance.clone(), truth.clone()), trace.clone());
        let engines = engine::Ground { network: network.clone(), tokens, truth, agents, trace: for_engines };
        let ground = host::Ground { network, kubernetes, trace: trace.clone() };
        let directory = tempfile::tempdir().unwrap();
        let mut dice = Ids::new(seed ^ 0xd1ce);
        let mut hosts = Vec::new();
        for ordinal in 0..3 {
            let dir = directory.path().join(ordinal.to_string());
            let mut host = Host::new(ordinal, dir, dice.uid(), seed);
            host.start(&ground);
            hosts.push(host);
        }
        let outside = runtime(&format!("{seed} outside"));
        let outside_begin = outside.block_on(async { Instant::now() });
        let kubelet = Kubelet::new(engines, instance);
        let acknowledged = Arc::default();
        let (now_ms, writes, _directory) = (0, 0, directory);
        Self {
            now_ms,
            trace,
            ground,
            hosts,
            kubelet,
            checks,
            outside,
            outside_begin,
            acknowledged,
            dice,
            writes,
            _directory,
        }
    }

    /// Lets everything move on by one tick.
    fn step(&mut self) {
        self.now_ms += TICK_MS;
        self.trace.set_now(self.now_ms);
        let random = clock::simulated().expect("it was put in place").random;
        clock::simulate(Some(Simulated { now: Millis(EPOCH_MS + self.now_ms), random }));
        for host in &mut self.hosts {
            host.step(Duration::from_millis(TICK_MS));
        }
        let until = self.outside_begin + Duration::from_millis(self.now_ms);
        self.outside.block_on(async move { tokio::time::sleep_until(until).await });
        if self.now_ms.is_multiple_of(20) {
            self.ground.kubernetes.instance.with(|_| ());
            self.kubelet.step(&self.outside, self.now_ms);
            self.checks.truth.lock().unwrap().move_on();
        }
        for host in &self.hosts {
            self.checks.look(host, self.now_ms);
        }
        if self.now_ms.is_multiple_of(300) {
            self.write();
        }
    }

    /// A person writes a value at some agent.
    fn write(&mut self) {
        self.writes += 1;
        let host = &self.hosts[(self.dice.number() % 3) as usize];
        let (key, acknowledged) = (format!("sim/{}", self.writes), self.acknowledged.clone());
        host.spawn(|shared| async move {
            let actor = Actor { role: Role::Person, name: "loopback".to_owned() };
            let command =
                Command::SetValue { key: key.clone(), value: Some("v".to_owned()), expected: Expected::Absent };
            if let Ok((_, Outcome::Changed)) = shared.propose_as(actor, command).await {
                acknowledged.lock().unwrap().insert(key);
            }
        });
    }

    /// Ends everything that goes wrong and waits until the domain shows what is. Tells how long that took.
    fn converge(&mut self) -> u64 {
        self.trace.line("nothing goes wrong any more");
        self.ground.network.heal();
        for ordinal in 0..self.hosts.len() {
            self.act(Action::Resume(ordinal));
            self.act(Action::Start(ordinal));
            self.ground.kubernetes.set_trouble(&self.hosts[ordinal].name.clone(), Default::default());
        }
        let begun = self.now_ms;
        let mut differences = vec!["it was not looked at".to_owned()];
        while self.now_ms < begun + CONVERGED_WITHIN_MS {
            self.step();
            if self.now_ms.is_multiple_of(100) {
                let acknowledged = self.acknowledged.lock().unwrap().clone();
                differences = self.checks.differences(&self.hosts, &acknowledged);
                if differences.is_empty() {
                    self.trace.line("the domain has converged");
                    return self.now_ms - begun;
                }
            }
        }
        for difference in differences {
            self.trace.wrong(&format!("not converged: {difference}"));
        }
        CONVERGED_WITHIN_MS
    }

    /// Whether all agents run, vote, and know it.
    fn is_whole(&self) -> bool {
        let status = |host: &Host| host.look(|shared| shared.raft.status()).filter(|_| host.is_up());
        let Some(all) = self.hosts.iter().map(status).collect::<Option<Vec<_>>>() else { return false };
        all.iter().all(|one| one.quorum && all.iter().all(|other| one.voters.contains_key(&other.raft_id)))
    }

    fn act(&mut self, action: Action) {
        self.trace.line(&action.to_string());
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        match action {
            Action::Crash(host) => self.hosts[host].kill(),
            Action::Start(host) => self.hosts[host].start(&self.ground),
            Action::Stop(host) => self.hosts[host].stop(),
            // Two volumes out of three at once are more than any group survives.
            Action::Wipe(_) if !self.is_whole() => self.trace.line("not now: not all three vote"),
            Action::Wipe(host) => {
                let pod_uid = self.dice.uid();
                self.hosts[host].wipe(pod_uid);
            }
            Action::Pause(host) => self.hosts[host].pause(),
            Action::PauseHolder => {
                let leads = |shared: &Shared| matches!(*shared.candidacy.leadership.borrow(), Leadership::Leader(_));
                let holds = |host: &&mut Host| host.look(leads) == Some(true);
                if let Some(holder) = self.hosts.iter_mut().find(holds) {
                    self.trace.line(&format!("the holder is {}", holder.name));
                    holder.pause();
                }
            }
            Action::Resume(host) => self.hosts[host].resume(),
            Action::ResumeAll => self.hosts.iter_mut().for_each(Host::resume),
            Action::Cut(one, other) => self.ground.network.set_cut(&names[one], &names[other], true),
            Action::Mend(one, other) => self.ground.network.set_cut(&names[one], &names[other], false),
            Action::CutEngine(pod, host) => self.ground.network.set_cut(&pod, &names[host], true),
            Action::MendEngine(pod, host) => self.ground.network.set_cut(&pod, &names[host], false),
            Action::Trouble(host, trouble) => self.ground.kubernetes.set_trouble(&names[host], trouble),
            Action::TroubleForAll(trouble) => {
                names.iter().for_each(|name| self.ground.kubernetes.set_trouble(name, trouble));
            }
            Action::Forget
            | Action::KillEngine(_)
            | Action::KillFor(..)
            | Action::KillEngines
            | Action::DeletePod(_)
            | Action::ForceDeletePod(_)
            | Action::Scale(_)
            | Action::DeleteClaim(_)
            | Action::RecreateClaim(_) => self.change(&action),
        }
    }

    /// What people do with `kubectl`, and what happens to containers.
    fn change(&mut self, action: &Action) {
        let instance = self.ground.kubernetes.instance.clone();
        let pods = instance.look(|store| {
            let pods = store.list(Kind::Pod, None).filter(|pod| !text(pod, "/metadata/labels/component").is_empty());
            pods.map(|pod| (name(pod).to_owned(), uid(pod).to_owned())).collect::<Vec<_>>()
        });
        let pick = |which: u64| pods.get(usize::try_from(which).unwrap() % pods.len().max(1)).cloned();
        let delete = |kind: Kind, name: &str, grace_seconds: Option<i64>| {
            let key = Key::new(kind, "default", name);
            let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
            // What is not there cannot be deleted, and need not be.
            let _ = instance.with(|store| store.delete(&key, &options));
        };
        let claim = |ordinal: u32| format!("archive-volume-sm-demo-{ordinal}");
        match action {
            Action::Forget => instance.with(|store| store.forget_history()),
            Action::KillEngine(which) => {
                if let Some((_, uid)) = pick(*which) {
                    self.kubelet.kill_engine(&uid, None);
                }
            }
            Action::KillFor(ordinal, ms) => {
                let name = format!("sm-demo-{ordinal}");
                if let Some((_, uid)) = pods.iter().find(|(pod, _)| *pod == name) {
                    self.kubelet.kill_engine(uid, Some(self.now_ms + ms));
                }
            }
            Action::KillEngines => pods.iter().for_each(|(_, uid)| self.kubelet.kill_engine(uid, None)),
            Action::DeletePod(which) => pick(*which).into_iter().for_each(|(name, _)| delete(Kind::Pod, &name, None)),
            Action::ForceDeletePod(which) => {
                pick(*which).into_iter().for_each(|(name, _)| delete(Kind::Pod, &name, Some(0)));
            }
            Action::Scale(replicas) => {
                let key = Key::new(Kind::StatefulSet, "default", "sm-demo");
                let scaled = instance
                    .with(|store| store.edit(&key, Part::Main, |set| set["spec"]["replicas"] = json!(replicas)));
                scaled.expect("it can be scaled");
                self.checks.scaled(self.now_ms, *replicas);
            }
            Action::DeleteClaim(ordinal) => delete(Kind::PersistentVolumeClaim, &claim(*ordinal), None),
            Action::RecreateClaim(ordinal) => {
                delete(Kind::PersistentVolumeClaim, &claim(*ordinal), None);
                delete(Kind::Pod, &format!("sm-demo-{ordinal}"), None);
            }
            _ => unreachable!("the others are not changes"),
        }
    }
}
