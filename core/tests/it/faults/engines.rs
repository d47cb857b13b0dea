//! The engines of a sequence, and the agents that they speak with: they register, report, fall silent and end.

use super::kubernetes::{Death, Effect, Kind, running};
use super::run::Run;
use super::upgrades::about;
use kaa_core::domain::archive::{Claim, Marker, Ordinal};
use kaa_core::domain::change::{self, Command, Lesson};
use kaa_core::domain::command::{Outcome, Refusal, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::gate::Start;
use kaa_core::domain::ids::{ArchiveId, ContainerId, DatabaseName, Millis, SessionNumber, StartId, Uid};
use kaa_core::domain::process::{
    DurableState, EngineKind, EngineState, ExitReason, Identity, Process, Registration, SessionState,
};
use kaa_core::observed::objects::{Container, Ended, Pod};
use std::collections::BTreeSet;

/// An engine's container.
#[derive(Clone, Debug)]
pub struct Engine {
    pub pod: String,
    pub pod_uid: Uid,
    pub claim: Option<Claim>,
    pub container: ContainerId,
    /// Names this start of its wrapper.
    pub nonce: u64,
    /// The release that its container was started with.
    release: u64,
    started: u64,
    connection: u64,
    /// Its wrapper runs.
    pub alive: bool,
    /// Its wrapper has started the engine.
    pub runs: bool,
    /// The engine has the data of its database, and serves.
    pub serves: bool,
    /// Its pod was deleted and it still runs.
    pub zombie: bool,
    before: Option<Ended>,
}

/// What is on the volume of a claim.
#[derive(Clone, Debug, Default)]
pub struct Volume {
    pub marker: Option<ArchiveId>,
    /// How new the data is.
    pub history: u64,
}

impl Run {
    /// Makes the kubelet do what the last change requires.
    pub fn follow_kubernetes(&mut self) {
        let stopping = self.kubernetes.effects.iter().filter_map(|effect| match effect {
            Effect::Ends(pod, Death::Graceful) => Some(pod.clone()),
            _ => None,
        });
        stopping.collect::<Vec<_>>().iter().for_each(|pod| self.stops(pod));
        for effect in std::mem::take(&mut self.kubernetes.effects) {
            match effect {
                Effect::Begins(pod) => self.begin(&pod),
                Effect::Ends(pod, death) => self.end_of_pod(&pod, death),
                Effect::Lost(name, uid) => {
                    let volume = self.volumes.remove(&uid).unwrap_or_default();
                    self.last_volume.insert(name, volume);
                }
                Effect::Restored(name, uid) => {
                    let volume = self.last_volume.get(&name).cloned().unwrap_or_default();
                    self.volumes.insert(uid, volume);
                }
                Effect::Copied(from, to) => {
                    let volume = self.volumes.get(&from).cloned().unwrap_or_default();
                    self.volumes.insert(to, volume);
                }
            }
        }
    }

    fn begin(&mut self, uid: &Uid) {
        let Some(pod) = self.kubernetes.is.pods.values().find(|pod| pod.uid == *uid).cloned() else { return };
        let claim = pod.archive_claim.as_ref().and_then(|name| self.kubernetes.is.claims.get(name));
        let owner = pod.owner.as_ref().zip(pod.ordinal());
        let claim = claim.map(|claim| Claim {
            namespace: "default".to_owned(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            owner: owner.map(|(owner, ordinal)| Ordinal {
                stateful_set: owner.name.clone(),
                uid: owner.uid.clone(),
                ordinal,
            }),
        });
        self.claim_of_pod.extend(claim.iter().map(|claim| (uid.clone(), claim.clone())));
        let engine = Engine {
            pod: pod.name,
            pod_uid: pod.uid,
            claim,
            container: ContainerId::default(),
            nonce: 0,
            release: 0,
            started: 0,
            connection: 0,
            alive: false,
            runs: false,
            serves: false,
            zombie: false,
            before: None,
        };
        self.engines.insert(uid.clone(), engine);
        self.start_container(uid, true);
    }

    /// Starts the next container of a pod.
    pub fn start_container(&mut self, pod: &Uid, shown: bool) {
        self.nonces += 1;
        let (nonce, clock, release) = (self.nonces, self.clock, self.release());
        let Some(engine) = self.engines.get_mut(pod).filter(|engine| !engine.alive && !engine.zombie) else { return };
        self.changes += 1;
        engine.container = format!("k{nonce}").into();
        (engine.nonce, engine.started, engine.connection, engine.alive) = (nonce, clock, nonce, true);
        engine.release = release;
        if shown {
            self.show_status(pod);
        }
    }

    /// Updates the pod's status to the state of its container.
    pub fn show_status(&mut self, pod: &Uid) {
        let Some(engine) = self.engines.get(pod).filter(|engine| !engine.zombie) else { return };
        let running = engine.alive.then(|| running(engine.container.as_str(), engine.started));
        let ended = engine.before.clone().into_iter().collect();
        let container = Container { name: "engine".to_owned(), running, ended };
        let name = engine.pod.clone();
        self.kubernetes.show(&name, container);
    }

    /// The process of an engine in the domain, if it has one.
    pub fn process_of(&self, engine: &Engine) -> Option<&Process> {
        let is_it =
            |process: &&Process| process.identity.pod_uid == engine.pod_uid && process.identity.nonce == engine.nonce;
        self.domain.processes.values().find(is_it)
    }

    fn live_process_of(&self, engine: &Engine) -> Option<(StartId, SessionNumber)> {
        let process = self.process_of(engine).filter(|process| process.session.state == SessionState::Live)?;
        Some((process.id, process.session.number))
    }

    /// An engine is told to stop, and its wrapper says so.
    fn stops(&mut self, pod: &Uid) {
        let Some(engine) = self.engines.get(pod).filter(|engine| engine.alive && engine.runs).cloned() else { return };
        if let Some((process, session)) = self.live_process_of(&engine) {
            let engine = EngineState::ShuttingDown;
            self.propose(Role::Agent, Command::ReportState(change::ReportState { process, session, engine, pid: 7 }));
        }
    }

    /// A container ends. `said`: its wrapper reports that.
    pub fn end_container(&mut self, pod: &Uid, said: bool, shown: bool) {
        let Some(engine) = self.engines.get(pod).filter(|engine| engine.alive && !engine.zombie).cloned() else {
            return;
        };
        if said && let Some((process, session)) = self.live_process_of(&engine) {
            self.stops(pod);
            let reason = ExitReason::Graceful;
            self.propose(
                Role::Agent,
                Command::ReportExit(change::ReportExit { process, session, exit_code: Some(0), reason }),
            );
        }
        if let Some(engine) = self.engines.get_mut(pod) {
            (engine.alive, engine.runs, engine.serves) = (false, false, false);
            engine.before = Some(Ended { id: engine.container.clone(), exit_code: Some(0), said: String::new() });
        }
        if shown {
            self.show_status(pod);
        }
    }

    fn end_of_pod(&mut self, pod: &Uid, death: Death) {
        match death {
            Death::Zombie => {
                if let Some(engine) = self.engines.get_mut(pod) {
                    engine.zombie = true;
                    return;
                }
            }
            Death::Graceful => self.end_container(pod, true, false),
            Death::Silent => self.end_container(pod, false, false),
        }
        self.engines.remove(pod);
    }

    pub fn zombies_die(&mut self) {
        self.engines.retain(|_, engine| !engine.zombie);
    }

    /// Reports sessions as lost whose engine is dead or has opened another connection.
    pub fn notice_the_dead(&mut self) {
        let connections: BTreeSet<u64> =
            self.engines.values().filter(|engine| engine.alive).map(|engine| engine.connection).collect();
        let dead = self.domain.processes.values().filter(|process| {
            process.session.state == SessionState::Live && !connections.contains(&process.session.connection)
        });
        let dead: Vec<_> = dead.map(|process| (process.id, process.session.number)).collect();
        for (process, session) in dead {
            self.propose(
                Role::Agent,
                Command::LoseSession(change::LoseSession { process, session, why: "stream reset".to_owned() }),
            );
        }
    }

    pub fn cut(&mut self, pod: &Uid) {
        let Some(engine) = self.engines.get(pod).cloned() else { return };
        if let Some((process, session)) = self.live_process_of(&engine) {
            self.propose(
                Role::Agent,
                Command::LoseSession(change::LoseSession { process, session, why: "stream reset".to_owned() }),
            );
        }
    }

    /// Everything that an engine can do now.
    pub fn act(&mut self, pod: &Uid) {
        let Some(engine) = self.engines.get(pod).filter(|engine| engine.alive).cloned() else { return };
        if self.live_process_of(&engine).is_none() && !engine.zombie {
            self.connect(&engine);
        }
        let Some((process, session)) = self.live_process_of(&engine) else { return };
        if self.domain.processes[&process].stop.is_some() && !engine.zombie {
            self.end_container(pod, true, true);
            self.start_container(pod, true);
            return;
        }
        if let Some(claim) = engine.claim.as_ref().filter(|_| !engine.runs) {
            let history = self.volumes.entry(claim.uid.clone()).or_default().history;
            let said = if self.tells_history { history } else { 0 };
            if self.domain.processes[&process].history.is_none() || self.domain.lacks_history(process) {
                self.propose(
                    Role::Agent,
                    Command::ReportHistory(change::ReportHistory { process, session, history: said }),
                );
            }
        }
        if !engine.runs {
            let Ok(start) = self.domain.may_start(process) else { return };
            let database = &self.domain.processes[&process].database;
            if start == Start::Join && engine.claim.is_some() && self.running_on(database).is_empty() {
                // The storage manager that it was to join has ended meanwhile.
                self.end_container(pod, true, true);
                self.start_container(pod, true);
                return;
            }
            self.judge_start(&engine, process);
            self.engines.entry(pod.clone()).and_modify(|engine| engine.runs = true);
            let engine = EngineState::Syncing;
            self.propose(Role::Agent, Command::ReportState(change::ReportState { process, session, engine, pid: 7 }));
            return;
        }
        self.engines.entry(pod.clone()).and_modify(|engine| engine.serves = true);
        if self.domain.processes[&process].durable == DurableState::Requested {
            self.propose(
                Role::Agent,
                Command::ReportState(change::ReportState { process, session, engine: EngineState::Running, pid: 7 }),
            );
        }
        if self.domain.owed_proof(process).is_some() {
            let as_of = self.domain.index;
            self.propose(Role::Agent, Command::ConfirmRunning(change::ConfirmRunning { process, session, as_of }));
        }
        self.ran.insert(engine.pod_uid.clone());
        self.commit(&self.domain.processes[&process].database.clone());
    }

    /// A client's commit, in which every running storage manager of the database takes part.
    fn commit(&mut self, database: &DatabaseName) {
        let clock = self.clock;
        for claim in self.running_on(database) {
            self.volumes.entry(claim).or_default().history = clock;
        }
    }

    /// The claims of the running storage managers of a database.
    pub fn running_on(&self, database: &DatabaseName) -> Vec<Uid> {
        let of_it = |engine: &&Engine| {
            // An operator who deletes a pod by force declares that its engine has ended: commits of that engine after
            // this are lost.
            let gone = engine.zombie && self.process_of(engine).is_none();
            let claim = engine.claim.as_ref().filter(|_| engine.alive && engine.serves && !gone);
            claim.is_some_and(|claim| self.database_of(&claim.name) == database.as_str())
        };
        self.engines.values().filter(of_it).filter_map(|engine| Some(engine.claim.as_ref()?.uid.clone())).collect()
    }

    fn connect(&mut self, engine: &Engine) {
        let unread = self.unread();
        let registration = self.registration(engine);
        let copied = self.read_as_a_copy(&registration);
        let outcome = self.propose(Role::Agent, Command::RegisterProcess(Box::new(registration.clone())));
        match outcome {
            Outcome::Registered(registered) => {
                if let Some(archive) = copied {
                    self.violated(format!("process {} has a copy of archive {archive}", registered.process));
                }
                self.judge_id(registered.process, engine);
                self.registered.insert((engine.pod_uid.clone(), unread || self.anchor != self.domain.anchor));
                if let (Some(archive), Some(claim)) = (registered.archive, &engine.claim) {
                    self.volumes.entry(claim.uid.clone()).or_default().marker = Some(archive);
                }
            }
            Outcome::Refused(refusal) => self.refused(engine, &registration, &refusal),
            _ => {}
        }
    }

    /// As an agent: what the refused registration proves is recorded, and the engine ends if its process has.
    fn refused(&mut self, engine: &Engine, asked: &Registration, refusal: &Refusal) {
        if let Some(ended) = self.domain.outlived(asked) {
            self.propose(Role::Agent, ended);
        }
        if matches!(refusal, Refusal::Exited { .. } | Refusal::Forgotten(_)) {
            self.end_container(&engine.pod_uid, false, true);
            self.start_container(&engine.pod_uid, true);
        }
    }

    /// The archive of which the volume of a new engine is a copy, if the evidence of the registration proves that.
    fn read_as_a_copy(&self, asked: &Registration) -> Option<ArchiveId> {
        let archive = self.domain.archives.get(&asked.marker.as_ref()?.archive)?;
        let (known, claim) = (archive.claim.as_ref()?, asked.claim.as_ref()?);
        let exists = asked.evidence.as_ref()?.claim_exists(&known.name, &known.uid);
        (exists && known.uid != claim.uid && asked.known_as.is_none()).then_some(archive.id)
    }

    /// Whether agents cannot read pods and claims.
    fn unread(&self) -> bool {
        self.denied.contains(&Kind::Pods) || self.denied.contains(&Kind::Claims)
    }

    /// A registration that was sent before arrives. Its engine does not hear the answer.
    pub fn arrive_late(&mut self, number: usize) {
        let sent = number.checked_rem(self.sent.len()).map(|number| self.sent[number].clone());
        let Some(sent) = sent else { return };
        let (before, nonce) = (self.domain.processes.clone(), sent.identity.nonce);
        self.propose(Role::Agent, Command::RegisterProcess(Box::new(sent.clone())));
        if let Some(ended) = self.domain.outlived(&sent) {
            self.propose(Role::Agent, ended);
        }
        let alive = self.alive();
        let gone = before.into_values().filter(|process| !self.domain.processes.contains_key(&process.id));
        let lives = |process: &Process| alive.contains(&process.identity.nonce) && !alive.contains(&nonce);
        for process in gone.filter(lives).collect::<Vec<_>>() {
            self.violated(format!("process {} lives and was ended by an earlier start that came late", process.id));
        }
    }

    /// What an agent reads of an engine's pod: the claim that the pod mounts, with the present owner of the pod; and
    /// the evidence.
    fn read_pod(&self, engine: &Engine) -> (Option<Claim>, Option<Evidence>) {
        if self.unread() {
            return (None, None);
        }
        let pod = self.kubernetes.is.pods.get(&engine.pod);
        let owner = pod.and_then(|pod| pod.owner.as_ref().zip(pod.ordinal()));
        let owner =
            owner.map(|(owner, ordinal)| Ordinal { stateful_set: owner.name.clone(), uid: owner.uid.clone(), ordinal });
        let claim = engine.claim.clone().map(|claim| Claim { owner, ..claim });
        let anchor = self.anchor.clone().map(|uid| Fact::AnchorIs { uid });
        let facts = |pod: &Pod| pod.facts().into_iter().chain(anchor).collect();
        (claim, pod.map(|pod| Evidence { read_at: Millis(self.clock), facts: facts(pod) }))
    }

    /// The agents read the pods again that they could not read. An engine that must not run is told to end.
    pub fn learn_claims(&mut self) {
        for mut asked in self.domain.unbound(&"admin-0".into()) {
            let engine = self.engines.get(&asked.identity.pod_uid).filter(|it| it.nonce == asked.identity.nonce);
            let Some(engine) = engine.filter(|it| !it.zombie && it.connection == asked.connection).cloned() else {
                continue;
            };
            let pod = self.kubernetes.is.pods.get(&engine.pod).filter(|pod| pod.uid == engine.pod_uid);
            (asked.claim, asked.evidence) = self.read_pod(&engine);
            self.kubernetes.is.read_claim_in_doubt(&self.domain, &mut asked);
            match self.domain.learns(&asked) {
                _ if pod.is_none() => {}
                Lesson::Nothing | Lesson::RunsOnACopy(_) => {}
                Lesson::Claim => drop(self.propose(Role::Agent, Command::RegisterProcess(Box::new(asked)))),
                Lesson::End(_) => {
                    self.end_container(&engine.pod_uid, true, true);
                    // A kubelet waits longer each time that a container ends with an error.
                    self.clock += 10_000;
                    self.start_container(&engine.pod_uid, true);
                }
            }
        }
    }

    /// The registration that an engine sends now. It may also arrive later.
    pub fn registration(&mut self, engine: &Engine) -> Registration {
        self.nonces += 1;
        if let Some(engine) = self.engines.get_mut(&engine.pod_uid) {
            engine.connection = self.nonces;
        }
        let volume = engine.claim.as_ref().and_then(|claim| self.volumes.get(&claim.uid));
        let marker = volume.and_then(|volume| volume.marker);
        let database = self.kubernetes.is.pods.get(&engine.pod).and_then(|pod| pod.database.clone());
        let (claim, evidence) = self.read_pod(engine);
        let mut registration = Registration {
            database: database.unwrap_or_else(|| "demo".into()),
            kind: if engine.claim.is_some() { EngineKind::Sm } else { EngineKind::Te },
            cluster: "c1".into(),
            identity: Identity {
                namespace: "default".to_owned(),
                pod: engine.pod.clone(),
                pod_uid: engine.pod_uid.clone(),
                container: "engine".to_owned(),
                nonce: engine.nonce,
                started: Millis(engine.started + 300),
            },
            known_as: self.process_of(engine).map(|process| process.id),
            claim,
            marker: marker.map(|archive| Marker { domain: "D1".into(), archive }),
            path: "/archive".to_owned(),
            server: "admin-0".into(),
            connection: self.nonces,
            about: about(engine.release),
            evidence,
            as_of: Some(self.domain.index),
        };
        self.kubernetes.is.read_claim_in_doubt(&self.domain, &mut registration);
        self.sent.push(registration.clone());
        registration
    }
}
