//! One run, from a seed to its result, and the tests.

use super::faults::{Fault, UNTIL_MS, Which, schedule};
use super::postgres::Role;
use super::wrapper::Wrapper;
use super::{Databases, Inner, NAME};
use crate::sim::people;
use crate::sim::schedule::Action;
use crate::sim::seeds::{Told, play_all};
use crate::sim::world::{World, simulated};
use embedded_kubernetes::object::uid;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{DeleteOptions, Key, Part};
use kaa::clock;
use kaa::raft::Role as RaftRole;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{Asked, Command, DiscardData, RequestSwitchover};
use kaa_core::domain::command::{Actor, Role as ActorRole};
use kaa_core::domain::ids::{ArchiveId, DatabaseName};
use kaa_core::replication::Replication;
use kaa_core::replication::waits::{self, ReplicationWait};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use testkit::tier;

pub const ADMINS: usize = 3;
/// How many servers there are at the beginning and at the end.
pub const SERVERS: u32 = 3;
/// How long the database may take until all is well after the faults have ended: a failover is held back for up to a
/// minute after one that was for nothing.
const WELL_WITHIN_MS: u64 = 120_000;
/// How often an operator looks for data that nothing else will replace.
const DISCARD_EVERY_MS: u64 = 2_000;
/// How many entries a standby may be behind that streams: own commits go on.
const BEHIND: usize = 12;

/// The result of a run.
struct Run {
    well_ms: u64,
    acknowledged: usize,
    /// How often another archive than before became an open primary.
    moves: usize,
    /// How many volumes were set back.
    set_back: usize,
}

/// A run that is under way.
pub struct Play {
    seed: u64,
    pub world: World,
    pub databases: Databases,
    /// What ends later, and when.
    ends: Vec<(u64, Fault)>,
    opened: Option<u64>,
    /// How often another archive than before became an open primary.
    pub moves: usize,
    /// The pods whose volumes were set back.
    pub set_back: BTreeSet<String>,
}

fn play(seed: u64) -> (Told, Run) {
    let mut play = Play::begin(seed);
    let mut faults = schedule(seed).into_iter().peekable();
    while play.world.now_ms() < UNTIL_MS {
        play.step();
        while let Some((_, fault)) = faults.next_if(|(at, _)| *at <= play.world.now_ms()) {
            play.act(&fault);
        }
    }
    let well_ms = play.recover();
    play.world.checks.close();
    let acknowledged = play.databases.inner().clients.acknowledged.len();
    play.world.trace.mix(&format!("{acknowledged} acknowledged"));
    let (told, run) =
        (play.world.trace.told(), Run { well_ms, acknowledged, moves: play.moves, set_back: play.set_back.len() });
    drop(play);
    clock::simulate(None);
    (told, run)
}

impl Play {
    pub fn begin(seed: u64) -> Self {
        clock::simulate(Some(simulated(seed)));
        let world = World::with_databases(seed);
        let databases = world.kubelet.ground.databases.clone().expect("it has them");
        Self { seed, world, databases, ends: Vec::new(), opened: None, moves: 0, set_back: BTreeSet::new() }
    }

    /// Lets time pass until then.
    pub fn until(&mut self, at_ms: u64) {
        while self.world.now_ms() < at_ms {
            self.step();
        }
    }

    pub fn step(&mut self) {
        self.world.step();
        let now_ms = self.world.now_ms();
        let due: Vec<Fault> = self.ends.extract_if(.., |(at, _)| *at <= now_ms).map(|(_, fault)| fault).collect();
        due.iter().for_each(|fault| self.undo(fault));
        let opened = {
            let inner = self.databases.inner();
            let opened = inner.wrappers.values().filter_map(|(wrapper, _)| wrapper.opened());
            opened.max_by_key(|(_, generation)| *generation).map(|(archive, _)| archive.0)
        };
        if !self.set_back.is_empty() && now_ms.is_multiple_of(DISCARD_EVERY_MS) {
            self.discard();
        }
        if opened.is_some() && opened != self.opened {
            self.moves += usize::from(self.opened.is_some());
            self.opened = opened;
        }
    }

    /// The pod that is meant.
    pub fn pod(&self, which: Which) -> String {
        let inner = self.databases.inner();
        let mut open = inner.wrappers.values().filter(|(wrapper, _)| wrapper.opened().is_some());
        match which {
            Which::Ordinal(ordinal) => format!("{NAME}-{ordinal}"),
            Which::Primary => open.next().map_or(format!("{NAME}-0"), |(wrapper, _)| wrapper.pod.clone()),
        }
    }

    fn pod_uid(&self, pod: &str) -> Option<String> {
        let key = Key::new(Kind::Pod, "default", pod);
        self.world.ground.kubernetes.instance.look(|store| store.find(&key).map(|pod| uid(pod).to_owned()))
    }

    pub fn delete(&self, kind: Kind, name: &str, grace_seconds: Option<i64>) {
        let key = Key::new(kind, "default", name);
        let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
        // If the object does not exist, there is nothing to delete.
        let _ = self.world.ground.kubernetes.instance.with(|store| store.delete(&key, &options));
    }

    fn kill(&mut self, pod: &str) {
        if let Some(uid) = self.pod_uid(pod) {
            self.world.kubelet.kill_engine(&uid, None);
        }
    }

    /// The agent that leads Raft.
    pub fn leader(&self) -> usize {
        let leads = |status: kaa::raft::Status| status.role == RaftRole::Leader;
        let found = self
            .world
            .hosts
            .iter()
            .position(|host| host.look(|shared| leads(shared.raft.status())).unwrap_or_default());
        found.unwrap_or_default()
    }

    pub fn act(&mut self, fault: &Fault) {
        self.world.trace.line(&format!("{fault:?}"));
        let now_ms = self.world.now_ms();
        match fault {
            Fault::Crash(which) => {
                let pod = self.pod(*which);
                let mut inner = self.databases.inner();
                let found = inner.postgres.servers.iter().find(|(_, server)| server.host == pod);
                if let Some(container) = found.map(|(container, _)| *container) {
                    inner.postgres.crash(container);
                }
            }
            Fault::Kill(which) => self.kill(&self.pod(*which)),
            Fault::DeletePod(which) => self.delete(Kind::Pod, &self.pod(*which), None),
            Fault::ForceDeletePod(which) => self.delete(Kind::Pod, &self.pod(*which), Some(0)),
            Fault::Lose(which) => {
                let pod = self.pod(*which);
                self.kill(&pod);
                self.delete(Kind::Pod, &pod, Some(0));
            }
            Fault::RecreateClaim(which) if self.is_well().is_empty() => {
                let pod = self.pod(*which);
                // A server that went on without its claim could become the only one of the sync set.
                self.kill(&pod);
                self.delete(Kind::PersistentVolumeClaim, &format!("archive-volume-{pod}"), None);
                self.delete(Kind::Pod, &pod, Some(0));
            }
            Fault::SetBack(which) if self.is_well().is_empty() => self.set_back(&self.pod(*which)),
            Fault::RecreateClaim(_) | Fault::SetBack(_) => self.world.trace.line("not now: too much would be lost"),
            Fault::Pause(which, lasts_ms)
            | Fault::PauseServer(which, lasts_ms)
            | Fault::CutServers(which, lasts_ms)
            | Fault::CutAgents(which, lasts_ms)
            | Fault::Isolate(which, lasts_ms)
            | Fault::Part(which, _, lasts_ms) => {
                let (pod, until_ms) = (self.pod(*which), now_ms + lasts_ms);
                let Some(ordinal) = pod.rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()) else { return };
                let fault = at(fault, Which::Ordinal(ordinal));
                self.toggle(&fault, true);
                self.ends.push((until_ms, fault));
            }
            Fault::Switchover => self.switchover(None),
            Fault::Scale(replicas) => self.scale(*replicas),
            Fault::KillAll => (0..SERVERS).for_each(|ordinal| self.kill(&format!("{NAME}-{ordinal}"))),
            Fault::KillLeader(lasts_ms) => {
                let leader = self.leader();
                self.world.act(Action::Crash(leader));
                self.ends.push((now_ms + lasts_ms, Fault::Other(Action::Start(leader))));
            }
            Fault::PauseLeader(lasts_ms) => {
                let leader = self.leader();
                self.world.act(Action::Pause(leader));
                self.ends.push((now_ms + lasts_ms, Fault::Other(Action::Resume(leader))));
            }
            Fault::Other(action) => self.world.act(action.clone()),
        }
    }

    /// A snapshot of a pod's volume is put back while its container is away. An operator gives up what is on it.
    fn set_back(&mut self, pod: &str) {
        let found = self
            .databases
            .inner()
            .wrappers
            .values()
            .find(|(it, _)| it.pod == pod)
            .map(|(it, _)| (it.nonce, it.claim.clone()));
        let Some((container, claim)) = found else { return };
        self.kill(pod);
        let postgres = &mut self.databases.inner().postgres;
        postgres.crash(container);
        if postgres.volume(&claim).set_back() {
            self.world.trace.line(&format!("the volume of {pod} is set back"));
            self.set_back.insert(pod.to_owned());
        }
    }

    /// An operator lets data be overwritten that was set back.
    fn discard(&self) {
        let set_back = self.set_back.clone();
        self.operate(move |domain, database| {
            let waits = waits::of(domain, &database, domain.replicated(&database)?, clock::now());
            let archive = waits.into_iter().find_map(|wait| match wait {
                ReplicationWait::DataNotAdopted { archive, pod, .. } if set_back.contains(&pod) => Some(archive),
                _ => None,
            })?;
            Some(Command::DiscardData(DiscardData { database, archive, why: "it was set back".to_owned() }))
        });
    }

    /// An operator proposes what the domain gives reason for. It may be refused.
    pub fn operate(&self, asks: impl FnOnce(&Domain, DatabaseName) -> Option<Command> + Send + 'static) {
        self.world.hosts[self.leader()].spawn(|shared| async move {
            let Some(command) = shared.raft.read(|domain| asks(domain, NAME.into())) else { return };
            let actor = Actor { role: ActorRole::Operator, name: "loopback".to_owned() };
            let _ = shared.propose_as(actor, command).await;
        });
    }

    fn undo(&mut self, fault: &Fault) {
        match fault {
            Fault::Other(action) => self.world.act(action.clone()),
            fault => {
                self.world.trace.line(&format!("{fault:?} ends"));
                self.toggle(fault, false);
            }
        }
    }

    /// Begins or ends a fault that lasts.
    pub fn toggle(&self, fault: &Fault, begins: bool) {
        let network = &self.world.ground.network;
        let cut_servers = |pod: &str| others(pod).iter().for_each(|other| network.set_cut(pod, other, begins));
        let agents = || self.world.hosts.iter().map(|host| host.name.as_str());
        let cut_agents =
            |from: &str| agents().filter(|it| *it != from).for_each(|it| network.set_cut(from, it, begins));
        match fault {
            Fault::Pause(which, _) | Fault::PauseServer(which, _) => {
                let pod = self.pod(*which);
                let inner = &mut *self.databases.inner();
                for server in inner.postgres.servers.values_mut().filter(|server| server.host == pod) {
                    (server.paused, server.resumed_ms) = (begins, self.world.now_ms());
                }
                let machine = matches!(fault, Fault::Pause(..)) || !begins;
                for (wrapper, _) in inner.wrappers.values_mut().filter(|(it, _)| it.pod == pod && machine) {
                    wrapper.paused = begins;
                    wrapper.line.lock().unwrap().paused = begins;
                }
            }
            Fault::CutServers(which, _) => cut_servers(&self.pod(*which)),
            Fault::CutAgents(which, _) => cut_agents(&self.pod(*which)),
            Fault::Isolate(which, _) => {
                cut_servers(&self.pod(*which));
                cut_agents(&self.pod(*which));
            }
            Fault::Part(which, agent, _) => {
                let (pod, agent) = (self.pod(*which), &self.world.hosts[*agent].name);
                cut_servers(&pod);
                cut_agents(&pod);
                cut_agents(agent);
                others(&pod).iter().for_each(|other| network.set_cut(agent, other, begins));
                network.set_cut(&pod, agent, false);
            }
            _ => {}
        }
    }

    fn scale(&mut self, replicas: u32) {
        let key = Key::new(Kind::StatefulSet, "default", NAME);
        let instance = &self.world.ground.kubernetes.instance;
        let scaled =
            instance.with(|store| store.edit(&key, Part::Main, |set| set["spec"]["replicas"] = json!(replicas)));
        scaled.expect("it can be scaled");
        self.world.checks.scaled(self.world.now_ms(), replicas);
    }

    /// An operator wants the primary elsewhere.
    pub fn switchover(&self, to: Option<ArchiveId>) {
        self.operate(move |domain, database| {
            let generation = domain.replicated(&database)?.record.as_ref()?.generation;
            let (what, why) = (Asked::Move(to), "an operator's wish".to_owned());
            Some(Command::RequestSwitchover(RequestSwitchover { database, generation, what, why }))
        });
    }

    /// Ends all faults, and waits until all is well. Returns how long that took.
    pub fn recover(&mut self) -> u64 {
        self.world.trace.line("nothing goes wrong any more");
        let ends = std::mem::take(&mut self.ends);
        ends.iter().for_each(|(_, fault)| self.undo(fault));
        self.world.ground.network.heal();
        self.scale(SERVERS);
        people::scale_admins(&mut self.world, ADMINS);
        for ordinal in 0..self.world.hosts.len() {
            self.world.act(Action::Resume(ordinal));
            self.world.act(Action::Start(ordinal));
            let name = self.world.hosts[ordinal].name.clone();
            self.world.ground.kubernetes.set_trouble(&name, Default::default());
        }
        let begun = self.world.now_ms();
        let mut differences = vec!["it was not looked at".to_owned()];
        while self.world.now_ms() < begun + WELL_WITHIN_MS {
            self.step();
            if self.world.now_ms().is_multiple_of(100) {
                differences = self.is_well();
                if differences.is_empty() {
                    self.world.trace.line("all is well");
                    return self.world.now_ms() - begun;
                }
            }
        }
        for difference in differences {
            self.world.trace.wrong(&format!("not well: {difference}"));
        }
        WELL_WITHIN_MS
    }

    /// What the newest domain shows that an agent has.
    pub fn domain<T>(&self, look: impl Fn(&Domain) -> T + Copy) -> T {
        let look = |domain: &Domain| (domain.index, look(domain));
        let all = self.world.hosts.iter().filter_map(|host| host.look(|shared| shared.raft.read(look)));
        all.max_by_key(|(index, _)| *index).expect("an agent runs").1
    }

    /// Its record of the database, once there is one.
    pub fn record(&self) -> Option<Replication> {
        self.domain(|domain| domain.replicated(&DatabaseName::from(NAME))?.record.clone())
    }

    /// What is not as it should be: one open primary, which all others follow, and what was acknowledged at each server.
    pub fn is_well(&self) -> Vec<String> {
        let mut inner = self.databases.inner();
        let Inner { postgres, clients, wrappers, .. } = &mut *inner;
        let mut differences = Vec::new();
        let open: Vec<_> = wrappers.values().filter(|(wrapper, _)| wrapper.opened().is_some()).collect();
        let [(primary, _)] = open.as_slice() else {
            return vec![format!("{} servers are open, {}", open.len(), told(wrappers))];
        };
        let (_, generation) = primary.opened().expect("it is open");
        let longest = postgres.volume(&primary.claim).log.clone();
        for (wrapper, _) in wrappers.values() {
            let role = postgres.servers.get(&wrapper.nonce).map(|server| server.role);
            let follows = role == Some(Role::Follows { generation: generation.0 });
            let log = &postgres.volume(&wrapper.claim).log;
            if wrapper.nonce != primary.nonce && !follows {
                differences.push(format!("{} is {role:?}: {}", wrapper.pod, wrapper.trouble));
            } else if !longest.starts_with(log) || log.len() + BEHIND < longest.len() {
                differences.push(format!("{} has another log than the primary", wrapper.pod));
            }
            differences.extend(clients.differences(log));
        }
        let members = self.record().map_or(0, |record| record.sync_set.len());
        let wanted = 1 + super::synchronous(self.seed);
        if members < wanted {
            differences.push(format!("{members} of {wanted} servers are in the sync set"));
        }
        if wrappers.len() != SERVERS as usize {
            differences.push(format!("{} containers run", wrappers.len()));
        }
        differences
    }
}

/// The pods of the two other servers.
pub fn others(pod: &str) -> [String; 2] {
    let others: Vec<String> = (0..SERVERS).map(|it| format!("{NAME}-{it}")).filter(|it| it != pod).collect();
    others.try_into().expect("there are three")
}

/// What the wrappers do.
fn told<T>(wrappers: &BTreeMap<u64, (Wrapper, T)>) -> String {
    let told = wrappers.values().map(|(wrapper, _)| {
        let (run, under) = (&wrapper.state.run, wrapper.under.as_ref().map(|under| &under.step));
        let (pod, trouble, what) = (&wrapper.pod, &wrapper.trouble, wrapper.wanted.as_ref().map(|wanted| &wanted.what));
        format!("{pod} is {run:?}, does {under:?}, is told {what:?} ({trouble})")
    });
    told.collect::<Vec<_>>().join("; ")
}

/// The same fault at a server that is known.
fn at(fault: &Fault, which: Which) -> Fault {
    match fault {
        Fault::Pause(_, ms) => Fault::Pause(which, *ms),
        Fault::PauseServer(_, ms) => Fault::PauseServer(which, *ms),
        Fault::CutServers(_, ms) => Fault::CutServers(which, *ms),
        Fault::CutAgents(_, ms) => Fault::CutAgents(which, *ms),
        Fault::Isolate(_, ms) => Fault::Isolate(which, *ms),
        Fault::Part(_, agent, ms) => Fault::Part(which, *agent, *ms),
        other => other.clone(),
    }
}

/// In this number of seeds, each counted event happens at least once.
const ENOUGH: u64 = 20;
/// The number of lines of the trace, counted from its end, that are printed when a seed fails.
const TAIL: usize = 40;

#[test]
fn no_commit_is_lost_no_reader_sees_an_old_state_and_a_primary_opens() {
    let (mut well_ms, mut acknowledged, mut moves, mut set_back) = (0, 0, 0, 0);
    let test = "sim::databases::runs::no_commit";
    let seeds = play_all(test, tier().of(2, 5, 25, 100), TAIL, play, |run: Run| {
        well_ms = run.well_ms.max(well_ms);
        acknowledged += run.acknowledged;
        moves += run.moves;
        set_back += run.set_back;
    });
    println!(
        "{seeds} seeds: well within {well_ms} ms, {acknowledged} commits acknowledged, the primary moved {moves} times, \
         {set_back} volumes were set back"
    );
    assert!(seeds < ENOUGH || (acknowledged > 0 && moves > 0 && set_back > 0), "something never happened");
}

#[test]
fn a_seed_replays_bit_for_bit() {
    let other = std::thread::spawn(|| play(1));
    let ((one, _), (other, _)) = (play(1), other.join().unwrap());
    assert_eq!(one.text, other.text);
    assert_eq!(one.hash, other.hash, "the words agree and what is behind them does not");
}
