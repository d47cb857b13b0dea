//! One run, from a seed to its result. One thread, one clock, one source of random numbers.

use crate::sim::checks::Checks;
use crate::sim::databases::Databases;
use crate::sim::engine::{self, Truth};
use crate::sim::group::{Counts, Group};
use crate::sim::host::{self, Host, runtime};
use crate::sim::kubelet::Kubelet;
use crate::sim::kubernetes::Kubernetes;
use crate::sim::network::Network;
use crate::sim::people;
use crate::sim::schedule::{Action, UNTIL_MS, schedule};
use crate::sim::seeds::Told;
use crate::sim::trace::Trace;
use embedded_kubernetes::store::Ids;
use kaa::agent::Shared;
use kaa::clock::{self, Simulated};
use kaa::kubernetes::lease::Leadership;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Expected, Outcome, Role};
use kaa_core::domain::ids::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// How far the clocks move in one step: the resolution of what happens between agents.
const TICK_MS: u64 = 4;
/// The wall time at which a run begins.
pub const EPOCH_MS: u64 = 1_750_000_000_000;
/// How long the domain may take to converge after the faults have ended: the grace period of an agent that is about to
/// end, the Lease of one that is gone, two passes of the resync, and the next look of all others.
const CONVERGED_WITHIN_MS: u64 = 90_000;
/// The highest number of admin servers.
const MOST_ADMINS: usize = 4;
/// How many admin servers there are at the beginning and at the end.
const ADMINS: usize = 3;

/// The result of a run.
pub struct Run {
    /// How long the domain took to converge.
    pub converged_ms: u64,
    pub acknowledged: usize,
    /// Linearizable reads that were answered.
    pub reads: usize,
    pub taken_away: u64,
    pub group: Counts,
}

/// What the clients learned.
#[derive(Default)]
struct Clients {
    /// The values whose writes were acknowledged.
    acknowledged: BTreeSet<String>,
    /// The index of the last log entry that any client knows as committed.
    known: u64,
    reads: usize,
}

/// All parts of one run.
pub struct World {
    now_ms: u64,
    /// The agents whose clocks are ahead, and how much.
    pub ahead_ms: BTreeMap<usize, u64>,
    pub trace: Trace,
    pub ground: host::Ground,
    pub hosts: Vec<Host>,
    pub kubelet: Kubelet,
    pub checks: Checks,
    pub group: Group,
    outside: Runtime,
    outside_begin: Instant,
    clients: Arc<Mutex<Clients>>,
    dice: Ids,
    writes: u64,
    _directory: TempDir,
}

/// The clock and the random numbers of the agents. Kubernetes has its own sequence: with the same one, both could give
/// the same name to two objects.
pub fn simulated(seed: u64) -> Simulated {
    Simulated { now: Millis(EPOCH_MS), random: seed ^ 0xa6e2_7500 }
}

fn set_clock(now_ms: u64) {
    let random = clock::simulated().expect("it was put in place").random;
    clock::simulate(Some(Simulated { now: Millis(EPOCH_MS + now_ms), random }));
}

/// Runs a seed.
pub fn play(seed: u64) -> (Told, Run) {
    clock::simulate(Some(simulated(seed)));
    let mut world = World::new(seed);
    let mut actions = schedule(seed).into_iter().peekable();
    while world.now_ms < UNTIL_MS {
        world.step();
        while let Some((_, action)) = actions.next_if(|(at, _)| *at <= world.now_ms) {
            world.act(action);
        }
    }
    for (_, action) in actions {
        // An agent that was to start later starts now.
        if matches!(action, Action::Start(_)) {
            world.act(action);
        }
    }
    let converged_ms = world.converge();
    world.checks.close();
    let told = world.trace.told();
    let clients = world.clients.lock().unwrap();
    let (acknowledged, reads) = (clients.acknowledged.len(), clients.reads);
    drop(clients);
    let taken_away = world.checks.taken_away;
    let group = Counts { retired: world.hosts.iter().map(Host::retired).sum(), ..world.group.counts };
    drop(world);
    clock::simulate(None);
    (told, Run { converged_ms, acknowledged, reads, taken_away, group })
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, false)
    }

    /// A world whose database has roles.
    pub fn with_databases(seed: u64) -> Self {
        Self::with(seed, true)
    }

    fn with(seed: u64, has_roles: bool) -> Self {
        let trace = Trace::default();
        let (network, kubernetes) = (Network::new(trace.clone()), Kubernetes::new(seed, trace.clone(), has_roles));
        let truth: Arc<Mutex<Truth>> = Arc::default();
        let databases = has_roles.then(|| Databases::new(network.clone(), trace.clone(), truth.clone()));
        let agents = (0..ADMINS).map(|ordinal| format!("kaa-admin-{ordinal}")).collect();
        let (tokens, instance) = (kubernetes.tokens.clone(), kubernetes.instance.clone());
        let (checks, for_engines) = (Checks::new(trace.clone(), instance.clone(), truth.clone()), trace.clone());
        let engines = engine::Ground { network: network.clone(), tokens, truth, agents, trace: for_engines, databases };
        let ground = host::Ground { network, kubernetes, trace: trace.clone() };
        let directory = tempfile::tempdir().unwrap();
        let dice = Ids::new(seed ^ 0xd1ce);
        let host = |ordinal: usize| Host::new(ordinal, directory.path().join(ordinal.to_string()), seed);
        let hosts = (0..MOST_ADMINS).map(host).collect();
        let group = Group::new(trace.clone(), instance.clone());
        let outside = runtime(&format!("{seed} outside"));
        let outside_begin = outside.block_on(async { Instant::now() });
        let kubelet = Kubelet::new(engines, instance);
        let clients = Arc::default();
        let (now_ms, writes, _directory) = (0, 0, directory);
        Self {
            now_ms,
            ahead_ms: BTreeMap::new(),
            trace,
            ground,
            hosts,
            kubelet,
            checks,
            group,
            outside,
            outside_begin,
            clients,
            dice,
            writes,
            _directory,
        }
    }

    /// Advances all parts by one tick.
    pub fn step(&mut self) {
        self.now_ms += TICK_MS;
        self.trace.set_now(self.now_ms);
        for (ordinal, host) in self.hosts.iter_mut().enumerate() {
            set_clock(self.now_ms + self.ahead_ms.get(&ordinal).copied().unwrap_or(0));
            host.step(Duration::from_millis(TICK_MS));
        }
        set_clock(self.now_ms);
        let until = self.outside_begin + Duration::from_millis(self.now_ms);
        self.outside.block_on(async move { tokio::time::sleep_until(until).await });
        if self.now_ms.is_multiple_of(20) {
            self.ground.kubernetes.instance.with(|_| ());
            self.kubelet.step(&self.outside, self.now_ms);
            self.kubelet.tend(&mut self.hosts, &self.ground, self.now_ms);
            self.checks.truth.lock().unwrap().move_on();
            if let Some(databases) = &self.kubelet.ground.databases {
                databases.step(self.now_ms);
            }
            self.group.look(&self.hosts);
        }
        for host in &self.hosts {
            self.checks.look(host, self.now_ms);
        }
        match self.now_ms % 600 {
            0 | 300 => self.write(),
            160 => self.read(),
            _ => {}
        }
    }

    /// An operator writes a value on some agent. An acknowledged write has a higher index than all entries that were
    /// known before it began.
    fn write(&mut self) {
        self.writes += 1;
        let host = &self.hosts[usize::try_from(self.dice.number()).unwrap() % self.hosts.len()];
        let (key, clients, trace) = (format!("sim/{}", self.writes), self.clients.clone(), self.trace.clone());
        let known = clients.lock().unwrap().known;
        host.spawn(move |shared| async move {
            let actor = Actor { role: Role::Operator, name: "loopback".to_owned() };
            let command = Command::SetValue(change::SetValue {
                key: key.clone(),
                value: Some("v".to_owned()),
                expected: Expected::Absent,
            });
            if let Ok((index, Outcome::Changed)) = shared.propose_as(actor, command).await {
                if index <= known {
                    trace.wrong(&format!("{key} was written at entry {index}, and {known} was known when it began"));
                }
                let mut clients = clients.lock().unwrap();
                clients.known = clients.known.max(index);
                clients.acknowledged.insert(key);
            }
        });
    }

    /// An operator reads from some agent. The answer includes everything that was acknowledged before; otherwise there
    /// is no answer.
    fn read(&mut self) {
        let host = &self.hosts[usize::try_from(self.dice.number()).unwrap() % self.hosts.len()];
        let (clients, trace, name) = (self.clients.clone(), self.trace.clone(), host.name.clone());
        let known = clients.lock().unwrap().known;
        host.spawn(move |shared| async move {
            if shared.raft.linearize().await.is_ok() {
                let index = shared.raft.read(|domain| domain.index);
                if index < known {
                    trace.wrong(&format!("{name} showed entry {index}, and {known} was known when it was asked"));
                }
                clients.lock().unwrap().reads += 1;
            }
        });
    }

    /// Ends all faults, and waits until the domain shows the real state. Returns how long that took.
    fn converge(&mut self) -> u64 {
        self.trace.line("nothing goes wrong any more");
        self.ground.network.heal();
        // With all servers back, even a group that waited for an operator continues: it has lost no more for good than
        // it can do without.
        people::scale_admins(self, ADMINS);
        for ordinal in 0..self.hosts.len() {
            self.act(Action::Resume(ordinal));
            self.act(Action::Start(ordinal));
            self.act(Action::MakeRoom(ordinal));
            self.ground.kubernetes.set_trouble(&self.hosts[ordinal].name.clone(), Default::default());
        }
        let begun = self.now_ms;
        let mut differences = vec!["it was not looked at".to_owned()];
        while self.now_ms < begun + CONVERGED_WITHIN_MS {
            self.step();
            if self.now_ms.is_multiple_of(1_000) {
                people::start_what_cold_starts_wait_for(self);
            }
            if self.now_ms.is_multiple_of(100) {
                differences = self.group.differences(&self.hosts[..ADMINS]);
                if differences.is_empty() {
                    let acknowledged = self.clients.lock().unwrap().acknowledged.clone();
                    differences = self.checks.differences(&self.hosts[..ADMINS], &acknowledged);
                }
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

    /// Whether all wanted servers run, vote, and know it, and no other server votes. Then the group can lose the volume
    /// of one server, or of any server that is not wanted. If two voters, or the only one, lost their volumes at the
    /// same time, no group would continue without an operator who gives up their data.
    fn may_lose(&self, ordinal: usize) -> bool {
        let wanted = self.group.wanted();
        let whole = self.group.differences(&self.hosts[..wanted]).is_empty();
        whole && (ordinal >= wanted || wanted > 1)
    }

    /// The server that leads the resync by its own account; if there are several, the one with the highest ordinal.
    pub fn holder(&self) -> Option<usize> {
        let leads = |shared: &Shared| matches!(*shared.candidacy.leadership.borrow(), Leadership::Leader(_));
        self.hosts.iter().rposition(|host| host.look(leads) == Some(true))
    }

    fn isolate(&self, host: usize, cut: bool) {
        for other in self.hosts.iter().filter(|other| other.name != self.hosts[host].name) {
            self.ground.network.set_cut(&self.hosts[host].name, &other.name, cut);
        }
    }

    pub fn act(&mut self, action: Action) {
        self.trace.line(&action.to_string());
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        match action {
            Action::Crash(host) => {
                self.hosts[host].held = self.hosts[host].is_running();
                self.hosts[host].kill();
            }
            Action::Start(host) => {
                // A process that has not ended by now is killed, unless its pod ends as well.
                if self.hosts[host].held && self.hosts[host].is_stopping() {
                    self.hosts[host].kill();
                }
                self.hosts[host].held = false;
            }
            Action::Stop(host) => {
                self.hosts[host].held = self.hosts[host].is_running();
                self.hosts[host].stop();
            }
            Action::Wipe(host) if !self.may_lose(host) => self.trace.line("not now: too many would be lost"),
            Action::Wipe(host) => {
                self.hosts[host].kill();
                people::wipe_admin(self, &names[host]);
            }
            Action::DeleteAdmin(host, how) => people::delete_admin(self, host, how),
            Action::ScaleAdmins(replicas, how) => {
                people::scale_admins(self, replicas);
                for host in replicas..MOST_ADMINS {
                    people::delete_admin(self, host, how);
                }
            }
            Action::Pause(host) => self.hosts[host].pause(),
            Action::PauseHolder => {
                if let Some(holder) = self.holder() {
                    self.trace.line(&format!("the holder is {}", names[holder]));
                    self.hosts[holder].pause();
                }
            }
            Action::Resume(host) => self.hosts[host].resume(),
            Action::ResumeAll => self.hosts.iter_mut().for_each(Host::resume),
            Action::Cut(one, other) => self.ground.network.set_cut(&names[one], &names[other], true),
            Action::Mend(one, other) => self.ground.network.set_cut(&names[one], &names[other], false),
            Action::Isolate(host) => self.isolate(host, true),
            Action::Rejoin(host) => self.isolate(host, false),
            Action::Fill(host) => self.hosts[host].room.set_full(true),
            Action::MakeRoom(host) => self.hosts[host].room.set_full(false),
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
            | Action::RecreateClaim(_) => people::change(self, &action),
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }
}
