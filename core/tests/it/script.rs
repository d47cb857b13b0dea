//! The language of the cases.
//!
//! A script is blocks of command lines, `----`, and the answers. `World::run` says what each command does. Objects are
//! `KIND NAME key=value...` or `KIND NAME gone`. With `unseen` before an object, the watches do not notice the change;
//! `see` updates them. After every command that reaches the domain, its invariants are checked.

mod clusters;
mod upgrades;

use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Claim, Marker, Ordinal, RemovalReason};
use kaa_core::domain::audit::Subject;
use kaa_core::domain::balancing::{Item, Object};
use kaa_core::domain::change::{self, Command, Lesson};
use kaa_core::domain::command::{Actor, Entry, Expected, Fence, Outcome, Request, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::gate::Start;
use kaa_core::domain::ids::{
    ArchiveId, Generation, MembershipEpoch, Millis, RaftId, ResyncEpoch, SessionNumber, StartId, SystemId, Uid,
};
use kaa_core::domain::invariants::{step_violations, violations};
use kaa_core::domain::process::{EngineKind, EngineState, ExitReason, Identity, Registration, SessionState, Stop};
use kaa_core::domain::replicated::Data;
use kaa_core::domain::server::Server;
use kaa_core::domain::snapshot::{FORMAT, Restore, Snapshot};
use kaa_core::domain::voters::Voters;
use kaa_core::observed::Observed;
use kaa_core::observed::annotations::{Annotations, SECONDARY, SYNC};
use kaa_core::observed::objects::{self, Container, Deployment, Ended, Owner, Pod, Running, StatefulSet};
use kaa_core::resync::databases::wanted_by;
use kaa_core::resync::plan::Need;
use kaa_core::resync::whatif::change::Change;
use kaa_core::resync::whatif::what_if;
use kaa_core::resync::{DatabaseDeletion, Moment, Objection, Policy, Readings, confirm, plan};
use kaa_core::tasks::workloads;
use std::collections::{BTreeMap, BTreeSet};

/// Runs a script and returns it with its answers.
pub fn run(text: &str) -> String {
    let mut world = World::default();
    answered(text, |line| world.run(line))
}

/// A script with its answers, which `run` gives.
pub fn answered(text: &str, mut run: impl FnMut(&str) -> String) -> String {
    let mut out = String::new();
    let mut answer = String::new();
    let mut in_answer = false;
    for line in text.lines() {
        if in_answer {
            if line.is_empty() {
                in_answer = false;
                out.push('\n');
            }
            continue;
        }
        out.push_str(line);
        out.push('\n');
        if line == "----" {
            out.push_str(&std::mem::take(&mut answer));
            in_answer = true;
        } else if !line.is_empty() && !line.starts_with('#') {
            answer.push_str(&run(line));
        }
    }
    assert!(answer.is_empty(), "the script ends in commands without ----");
    out
}

/// A domain, the real Kubernetes, and the Kubernetes that the watches show.
pub struct World {
    pub domain: Domain,
    pub api: Objects,
    pub seen: Objects,
    pub forbidden: BTreeMap<&'static str, bool>,
    anchor: String,
    lease: String,
    transitions: u64,
    unreadable: Option<String>,
    policy: Policy,
    /// The logs that vote.
    voters: BTreeSet<RaftId>,
    /// How much later the time is than the number of entries implies.
    later_ms: u64,
    /// How far the clock of the agent that acts is off.
    clock_ms: i64,
    saved: Option<Snapshot>,
    /// The commands that passes proposed, in order.
    sent: Vec<Command>,
}

#[derive(Clone, Default)]
pub struct Objects {
    pub sets: BTreeMap<String, StatefulSet>,
    pub deployments: BTreeMap<String, Deployment>,
    pub pods: BTreeMap<String, Pod>,
    pub claims: BTreeMap<String, objects::Claim>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            domain: Domain::default(),
            api: Objects::default(),
            seen: Objects::default(),
            forbidden: BTreeMap::new(),
            anchor: "A1".to_owned(),
            lease: "L1".to_owned(),
            transitions: 0,
            unreadable: None,
            policy: Policy::new("c1".into(), "default".to_owned()),
            voters: BTreeSet::new(),
            later_ms: 0,
            clock_ms: 0,
            saved: None,
            sent: Vec::new(),
        }
    }
}

/// A command line: its words, and its `key=value` words.
struct Line<'a> {
    words: Vec<&'a str>,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let (values, words): (Vec<_>, Vec<_>) = line.split_whitespace().partition(|word| word.contains('='));
        Self { words, values: values.into_iter().filter_map(|word| word.split_once('=')).collect() }
    }

    fn number(&self, key: &str, default: u64) -> u64 {
        self.values.get(key).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{key}={value}")))
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
}

impl World {
    pub fn run(&mut self, text: &str) -> String {
        let line = Line::parse(text);
        match line.words[0] {
            "statefulset" | "deployment" | "pod" | "claim" => {
                self.api.change(&line.words, &line.values);
                self.seen.change(&line.words, &line.values);
                String::new()
            }
            "unseen" => {
                self.api.change(&line.words[1..], &line.values);
                String::new()
            }
            "see" => {
                self.seen = self.api.clone();
                String::new()
            }
            "forbid" => self.permit(line.words[1], false),
            "permit" => self.permit(line.words[1], true),
            "unreadable" => {
                self.unreadable = line.words.get(1).map(|word| (*word).to_owned());
                String::new()
            }
            "anchor" => {
                self.anchor = line.words[1].to_owned();
                String::new()
            }
            "lease" => {
                (self.lease, self.transitions) = (line.words[1].to_owned(), line.number("transitions", 0));
                String::new()
            }
            "policy" => {
                self.policy.purge_delay_ms = line.number("purge-delay", 0) * 1000;
                let never = line.values.get("database-deletion") == Some(&"never");
                self.policy.database_deletion = if never { DatabaseDeletion::Never } else { DatabaseDeletion::Auto };
                String::new()
            }
            "later" => {
                self.later_ms += line.words[1].parse::<u64>().unwrap() * 1000;
                String::new()
            }
            // This number of seconds passes, with a pass every half minute. Answers the changes of the passes, without
            // notes of missing claims.
            "watch" => self.watch(line.words[1].parse().unwrap()),
            // From now on the clock of the agent that acts is off by this number of seconds.
            "clock" => {
                self.clock_ms = line.words[1].parse::<i64>().unwrap() * 1000;
                String::new()
            }
            // The bounds of the domain.
            "capacity" => self.capacity(&line),
            // The number of records in the audit trail, and the entry of the first one.
            "trail" => {
                let of: BTreeMap<_, _> = self.domain.audit.records().map(|record| (record.index, ())).collect();
                format!("{} records from entry {}\n", self.domain.audit.records().count(), of.keys().next().unwrap())
            }
            // `times N COMMAND; COMMAND...`: runs the commands N times; {n} is the number of the repetition. Answers
            // what the last one did.
            "times" => self.times(text),
            // The rest of the line is the reason.
            "pause" => self.propose(operator(&line), Command::PauseResync(change::PauseResync { why: why(&line) })),
            "resume" => self.propose(operator(&line), Command::ResumeResync),
            "adopt" => self.adopt(&line),
            "found" => {
                let anchor = self.anchor.as_str().into();
                let domain = line.words.get(1).copied().unwrap_or("D1").into();
                self.propose(
                    Role::RaftLeader,
                    Command::FoundDomain(change::FoundDomain { domain, name: "kaa".into(), anchor }),
                )
            }
            "save" => self.save(),
            // Another cluster without any objects; what was saved is kept.
            "elsewhere" => {
                *self = Self { saved: self.saved.take(), anchor: "A2".to_owned(), ..Self::default() };
                String::new()
            }
            "restore" => self.restore(&line),
            "admit" => self.admit(&line),
            "vote" => {
                self.voters = line.words[1..].iter().map(|log| RaftId(log.parse().unwrap())).collect();
                String::new()
            }
            "voters" => self.voters(&line),
            "lead" => self.lead(&line),
            "register" => self.register(&line),
            "state" => self.state(&line),
            "history" => {
                let (process, session) = self.process(&line);
                let history = line.words[2].parse().unwrap();
                self.propose(Role::Agent, Command::ReportHistory(change::ReportHistory { process, session, history }))
            }
            // What is on its volume: `data PROCESS empty`, or `data PROCESS system=1 generation=7`.
            "data" => {
                let (process, session) = self.process(&line);
                let system = Some(line.number("system", 0)).filter(|system| *system > 0).map(SystemId);
                let highest = Generation(line.number("generation", 1));
                let data = system.map_or(Data::Empty, |system| Data::Initialized { system, highest });
                let report = change::ReportData { process, session, data, start: StartId(0) };
                self.propose(Role::Agent, Command::ReportData(report))
            }
            "initialize" => {
                let (database, archive) = (line.words[1].into(), ArchiveId(line.words[2].parse().unwrap()));
                let initialize = change::InitializeDatabase { database, archive };
                self.propose(Role::Agent, Command::InitializeDatabase(initialize))
            }
            // Which engines may start, after all running engines have confirmed that they run.
            "gate" => {
                self.beat();
                let gates = self.domain.processes.keys().map(|id| match self.domain.may_start(*id) {
                    Ok(Start::First) => format!("process {id} may start\n"),
                    Ok(Start::Join) => format!("process {id} may join\n"),
                    Err(held) => format!("process {id} is blocked: {held}\n"),
                });
                gates.collect()
            }
            // The agents read the pods again that they could not read.
            "learn" => self.learn(),
            "beat" => self.beat(),
            "give-up" => self.give_up(&line),
            "forget" => self.forget(&line),
            "lose" => self.lose(&line),
            "exit" => self.exit(&line),
            "set" => self.set(&line),
            "stop" => self.stop(&line),
            "evict" => self.evict(&line),
            "balance" => self.balance(text),
            "join-cluster" | "lead-cluster" | "judge" | "entry-point" | "forget-cluster" => self.clusters(&line),
            "balancers" => self.balancers(),
            "plan" => self.plan().to_string(),
            "what-if" => self.what_if(text),
            "force" => self.force(&line),
            "pass" => self.pass(line.number("epoch", self.epoch())),
            "archives" => self.archives(),
            // The cluster of each archive according to the domain, and its path.
            "places" => {
                let archives = self.domain.archives.values();
                archives
                    .map(|archive| format!("archive {} {} {}\n", archive.id, archive.cluster, archive.path))
                    .collect()
            }
            "processes" => self.processes(),
            "databases" => self.databases(),
            "explain" => self.explain(line.words[1]),
            "versions" | "tasks" | "cancel" | "upgrade" | "advance" | "again" => self.upgrades(&line),
            other => panic!("no command '{other}'"),
        }
    }

    fn permit(&mut self, kind: &str, permitted: bool) -> String {
        let kind =
            ["pods", "claims", "statefulsets", "deployments"].into_iter().find(|known| *known == kind).expect("a kind");
        self.forbidden.insert(kind, !permitted);
        String::new()
    }

    fn epoch(&self) -> u64 {
        self.domain.resync.get(&"c1".into()).map_or(0, |leader| leader.epoch.0)
    }

    pub fn propose(&mut self, role: Role, command: Command) -> String {
        let before = self.domain.clone();
        let name = if role == Role::Operator { "user ann" } else { "admin-0" };
        let request = Request { actor: Actor { role, name: name.to_owned() }, command };
        let index = before.index + 1;
        let outcome = self.domain.apply(Entry { index, time: self.now(index), request: request.clone() });
        let wrong = [step_violations(&before, &self.domain), violations(&self.domain)].concat();
        assert!(wrong.is_empty(), "after {request:?}: {wrong:?}");
        if let Outcome::Refused(_) | Outcome::Unchanged = outcome {
            let Domain { index, time, needs, .. } = before;
            let unchanged = Domain { index, time, needs, ..self.domain.clone() };
            assert_eq!(before, unchanged, "a refused or repeated command changed something: {request:?}");
        }
        match outcome {
            Outcome::Changed => "changed\n".to_owned(),
            Outcome::Unchanged => "unchanged\n".to_owned(),
            Outcome::Registered(r) => {
                let on = r.archive.map_or(String::new(), |archive| format!(" archive {archive}"));
                format!("process {} node {}{on} session {}\n", r.process, r.node, r.session)
            }
            Outcome::ResyncBegun(epoch) => format!("epoch {epoch}\n"),
            Outcome::ArchiveCreated(archive) => format!("archive {archive}\n"),
            Outcome::Refused(refusal) => format!("refused: {refusal}\n"),
        }
    }

    fn now(&self, index: u64) -> Millis {
        Millis((1_000_000 + index * 1000 + self.later_ms).strict_add_signed(self.clock_ms))
    }

    fn capacity(&mut self, line: &Line) -> String {
        let bounds = &mut self.domain.bounds;
        for (key, value) in &line.values {
            let bound = match *key {
                "tombstones" => &mut bounds.tombstones,
                "tasks" => &mut bounds.tasks,
                "records" => &mut bounds.records,
                "of-process" => &mut bounds.records_of_process,
                "values" => &mut bounds.values,
                "value-bytes" => &mut bounds.values_bytes,
                "databases" => &mut bounds.databases,
                "archives" => &mut bounds.archives,
                "processes" => &mut bounds.processes,
                "servers" => &mut bounds.servers,
                "clusters" => &mut bounds.clusters,
                "bytes" => &mut bounds.bytes,
                other => panic!("no bound {other}"),
            };
            *bound = value.parse().unwrap();
        }
        String::new()
    }

    fn watch(&mut self, seconds: u64) -> String {
        let mut out = String::new();
        for elapsed in (0..seconds).step_by(30) {
            self.later_ms += 1000 * (seconds - elapsed).min(30);
            let pass = self.pass(self.epoch());
            let lines = pass.lines().filter(|line| *line != "nothing" && !line.starts_with("note that claim"));
            lines.for_each(|line| out.push_str(&format!("{line}\n")));
        }
        out
    }

    fn times(&mut self, text: &str) -> String {
        let (count, commands) = text["times ".len()..].split_once(' ').unwrap();
        let mut last = String::new();
        for time in 1..=count.parse::<u64>().unwrap() {
            let commands = commands.replace("{n}", &time.to_string());
            last = commands.split("; ").map(|command| self.run(command)).collect();
        }
        last
    }

    /// `adopt UID [known=UID] [unread] [by-agent]`: the anchor has this UID according to a read, which is missing with
    /// `unread`.
    fn adopt(&mut self, line: &Line) -> String {
        let anchor: Uid = line.words[1].into();
        let known = line.values.get("known").map_or(self.domain.anchor.clone().unwrap(), |uid| (*uid).into());
        let read = (!line.has("unread")).then(|| Fact::AnchorIs { uid: anchor.clone() });
        let evidence = Evidence { read_at: Millis(5), facts: read.into_iter().collect() };
        let why = "restored from the backup of Monday".to_owned();
        self.propose(
            operator(line),
            Command::AdoptAnchor(change::AdoptAnchor { known, anchor, why, cluster: None, evidence }),
        )
    }

    fn save(&mut self) -> String {
        let saved = self.domain.snapshot().expect("a domain");
        let Snapshot { domain, index, last_archive, last_start, .. } = &saved;
        let mut text =
            format!("domain {domain} up to entry {index}, last archive {last_archive}, last start {last_start}\n");
        for database in &saved.databases {
            let (name, next, deleted) =
                (&database.name, database.next_node, if database.deleted { " deleted" } else { "" });
            text +=
                &format!("database {name} incarnation {}.{} node {next}{deleted}\n", database.major, database.minor);
        }
        for archive in &saved.archives {
            let removed = archive.removed.as_ref().map_or(String::new(), |kept| format!(" removed: {}", kept.because));
            let was = archive.was.as_ref().map_or("nobody knows", |was| &was.claim);
            text += &format!("archive {} of {} on {was}{removed}\n", archive.id, archive.database);
        }
        saved.values.iter().for_each(|(key, value)| text += &format!("value {key}={value}\n"));
        saved.origins.iter().for_each(|(from, archives)| text += &format!("from {from}: archives {archives:?}\n"));
        self.saved = Some(saved);
        text
    }

    /// `restore [format=] [checksum=] [without=ID] [last-archive=] [next-node=] [twice] [without-databases]
    /// [by-agent]`: restores the saved snapshot with these changes.
    fn restore(&mut self, line: &Line) -> String {
        let mut snapshot = self.saved.clone().expect("something that was saved");
        snapshot.last_archive = ArchiveId(line.number("last-archive", snapshot.last_archive.0));
        if let Some(database) = snapshot.databases.first_mut() {
            database.next_node.0 = line.number("next-node", database.next_node.0);
        }
        if line.has("twice") {
            snapshot.archives.extend(snapshot.archives.first().cloned());
        }
        if line.has("without-databases") {
            snapshot.databases.clear();
        }
        let without = line.values.get("without").map(|id| id.parse().unwrap());
        let restore = Restore {
            format: line.number("format", FORMAT.into()) as u32,
            checksum: line.values.get("checksum").copied().unwrap_or("c0ffee").to_owned(),
            cluster: "c1".into(),
            without: without.into_iter().collect(),
            snapshot,
        };
        self.propose(operator(line), Command::RestoreDomain(Box::new(restore)))
    }

    fn admit(&mut self, line: &Line) -> String {
        let server = Server {
            id: line.words[1].into(),
            cluster: line.values.get("cluster").copied().unwrap_or("c1").into(),
            address: format!("{}.kaa-admin:48005", line.words[1]),
            raft_id: RaftId(line.number("log", 1)),
            version: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
            joined: Millis(0),
        };
        self.propose(Role::RaftLeader, Command::AdmitServer(change::AdmitServer { server }))
    }

    /// `voters SERVER... since= [epoch=] [wanted=]`
    fn voters(&mut self, line: &Line) -> String {
        let servers = line.words[1..].iter().map(|server| (*server).into()).collect();
        let epoch = MembershipEpoch(line.number("epoch", 1));
        let voters = Voters { epoch, since: line.number("since", 0), servers };
        let wanted = line.values.get("wanted").map(|wanted| wanted.parse().unwrap());
        self.propose(Role::RaftLeader, Command::NoteVoters(change::NoteVoters { voters, wanted }))
    }

    fn lead(&mut self, line: &Line) -> String {
        self.transitions = line.number("transitions", self.transitions + 1);
        let lease = line.values.get("lease").copied().unwrap_or(&self.lease).into();
        let proof = Fact::LeaseIs { name: "resync".to_owned(), uid: self.lease.as_str().into() };
        let command = Command::BeginResync(change::BeginResync {
            cluster: "c1".into(),
            lease,
            transitions: self.transitions,
            holder: line.words.get(1).copied().unwrap_or("admin-0").into(),
            evidence: Evidence { read_at: Millis(0), facts: vec![proof] },
        });
        self.propose(Role::ResyncLeader, command)
    }

    /// `register sm|te POD [nonce=] [connection=] [on=] [known-as=] [marker=ID | marker=DOMAIN/ID] [path=] [database=]
    /// [cluster=] [started=] [as-of=] [release=] [protocols=] [long=] [unread] [anchor-unread]`
    fn register(&mut self, line: &Line) -> String {
        let pod = self.api.pods.get(line.words[2]).unwrap_or_else(|| panic!("no pod {}", line.words[2])).clone();
        let kind = if line.words[1] == "sm" { EngineKind::Sm } else { EngineKind::Te };
        let mounts_none = pod.archive_claim.is_none();
        let claim = (!line.has("unread")).then(|| self.api.claim_of(&pod)).flatten();
        let marker = line.values.get("marker").map(|text| {
            let (domain, archive) = text.split_once('/').unwrap_or(("D1", text));
            Marker { domain: domain.into(), archive: archive.parse().unwrap() }
        });
        let anchor = (!line.has("anchor-unread")).then(|| Fact::AnchorIs { uid: self.anchor.as_str().into() });
        let evidence = (!line.has("unread"))
            .then(|| Evidence { read_at: Millis(0), facts: pod.facts().into_iter().chain(anchor).collect() });
        let mut registration = Registration {
            database: line.values.get("database").copied().unwrap_or("demo").into(),
            kind,
            cluster: line.values.get("cluster").copied().unwrap_or("c1").into(),
            identity: Identity {
                namespace: "default".to_owned(),
                pod: pod.name.clone(),
                pod_uid: pod.uid.clone(),
                container: long(line, "engine"),
                nonce: line.number("nonce", 1),
                started: Millis(line.number("started", 100) * 1000 + 300),
            },
            known_as: line.values.get("known-as").map(|id| id.parse().unwrap()),
            claim,
            marker,
            path: line.values.get("path").copied().unwrap_or("/archive").to_owned(),
            server: line.values.get("on").copied().unwrap_or("admin-0").into(),
            connection: line.number("connection", line.number("nonce", 1)),
            about: upgrades::about(line),
            evidence,
            as_of: line.values.contains_key("as-of").then(|| line.number("as-of", 0)),
        };
        if let Some(evidence) = registration.evidence.as_mut().filter(|_| kind == EngineKind::Sm && mounts_none) {
            evidence.facts.push(Fact::PodWithoutArchive { pod_uid: pod.uid.clone() });
        }
        self.api.read_claim_in_doubt(&self.domain, &mut registration);
        let said = self.propose(Role::Agent, Command::RegisterProcess(Box::new(registration.clone())));
        let ended = self.domain.outlived(&registration).map(|ended| self.propose(Role::Agent, ended));
        said + &ended.unwrap_or_default()
    }

    fn learn(&mut self) -> String {
        let mut told = String::new();
        for mut asked in self.domain.unbound(&"admin-0".into()) {
            let (name, pod) = (&asked.identity.pod, self.api.pods.get(&asked.identity.pod));
            let Some(pod) = pod.filter(|pod| pod.uid == asked.identity.pod_uid).cloned() else { continue };
            told += &format!("{name}: ");
            asked.claim = self.api.claim_of(&pod);
            let anchor = Fact::AnchorIs { uid: self.anchor.as_str().into() };
            asked.evidence =
                Some(Evidence { read_at: Millis(0), facts: pod.facts().into_iter().chain([anchor]).collect() });
            self.api.read_claim_in_doubt(&self.domain, &mut asked);
            told += &match self.domain.learns(&asked) {
                Lesson::Claim => self.propose(Role::Agent, Command::RegisterProcess(Box::new(asked))),
                Lesson::Nothing => "nothing new\n".to_owned(),
                Lesson::End(why) => format!("has to end: {why}\n"),
                Lesson::RunsOnACopy(copy) => format!("runs on a copy: {copy}\n"),
            };
        }
        told
    }

    fn process(&self, line: &Line) -> (StartId, SessionNumber) {
        let id: StartId = line.words[1].parse().unwrap();
        let current = self.domain.processes.get(&id).map_or(1, |process| process.session.number.0);
        (id, SessionNumber(line.number("session", current)))
    }

    fn state(&mut self, line: &Line) -> String {
        let (process, session) = self.process(line);
        let engine = match line.words[2] {
            "RUNNING" => EngineState::Running,
            "SYNCING" => EngineState::Syncing,
            "SHUTTING_DOWN" => EngineState::ShuttingDown,
            other => panic!("no state {other}"),
        };
        self.propose(Role::Agent, Command::ReportState(change::ReportState { process, session, engine, pid: 7 }))
    }

    /// As with each heartbeat: the agents ask the running engines whether they still run, if something depends on the
    /// answer.
    fn beat(&mut self) -> String {
        let owed = self.domain.processes.values().filter(|process| self.domain.owed_proof(process.id).is_some());
        let owed: Vec<_> = owed.map(|process| (process.id, process.session.number)).collect();
        let as_of = self.domain.index;
        let beats = owed.into_iter().map(|(process, session)| {
            self.propose(Role::Agent, Command::ConfirmRunning(change::ConfirmRunning { process, session, as_of }))
        });
        beats.collect()
    }

    /// `give-up ARCHIVE [by-agent]`
    fn give_up(&mut self, line: &Line) -> String {
        let archive = line.words[1].parse().unwrap();
        self.propose(
            operator(line),
            Command::GiveUpArchive(change::GiveUpArchive { archive, why: "the volume is lost".to_owned() }),
        )
    }

    /// `forget ARCHIVE [by-agent] [cluster=NAME]`: an operator's command, with a read of the claim.
    fn forget(&mut self, line: &Line) -> String {
        let archive: ArchiveId = line.words[1].parse().unwrap();
        let claim = self.domain.archives.get(&archive).and_then(|archive| archive.claim.as_ref());
        let needs = claim.map(|claim| Need::Claim(claim.name.clone())).into_iter().chain([Need::Anchor]);
        let facts = needs.filter_map(|need| self.read(&need).ok()).flatten().collect();
        let evidence = Evidence { read_at: Millis(5), facts };
        let cluster = Some(line.values.get("cluster").copied().unwrap_or("c1").into());
        let why = "its node is gone".to_owned();
        self.propose(operator(line), Command::ForgetArchive(change::ForgetArchive { archive, why, cluster, evidence }))
    }

    fn lose(&mut self, line: &Line) -> String {
        let (process, session) = self.process(line);
        let why = long(line, "stream reset");
        self.propose(Role::Agent, Command::LoseSession(change::LoseSession { process, session, why }))
    }

    fn exit(&mut self, line: &Line) -> String {
        let (process, session) = self.process(line);
        let code = line.number("code", 0) as i32;
        let reason = if line.has("graceful") { ExitReason::Graceful } else { ExitReason::Exited(long(line, "ended")) };
        self.propose(
            Role::Agent,
            Command::ReportExit(change::ReportExit { process, session, exit_code: Some(code), reason }),
        )
    }

    /// `set KEY [VALUE] [if=VALUE | absent]`
    fn set(&mut self, line: &Line) -> String {
        let words: Vec<_> = line.words.iter().filter(|word| **word != "absent").collect();
        let expected = match line.values.get("if") {
            Some(value) => Expected::Value((*value).to_owned()),
            None if line.has("absent") => Expected::Absent,
            None => Expected::Anything,
        };
        let (key, value) = (words[1].to_string(), words.get(2).map(|value| long(line, value)));
        self.propose(Role::Operator, Command::SetValue(change::SetValue { key, value, expected }))
    }

    /// `balance [by-agent] ENTRY [TEXT]`: an operator sets an entry, or removes it if there is no text.
    fn balance(&mut self, text: &str) -> String {
        let asked = text["balance ".len()..].trim_start_matches("by-agent ");
        let role = if text.contains("by-agent") { Role::Agent } else { Role::Operator };
        let (item, text) = asked.split_once(' ').map_or((asked, None), |(item, text)| (item, Some(text.to_owned())));
        let entries = [(item.parse().unwrap(), text)].into();
        self.propose(role, Command::SetLoadBalancer(change::SetLoadBalancer { entries }))
    }

    /// The load-balancing entries, and the text of each that has effect.
    fn balancers(&self) -> String {
        let mut out = String::new();
        for (item, entry) in &self.domain.balancing.entries {
            let manual = entry.manual.as_ref().map(|manual| format!(" [{}: {}]", manual.by, manual.text));
            let annotated = entry.annotated.as_ref().map(|it| format!(" [{}: {}]", it.object, it.text));
            let (manual, annotated) = (manual.unwrap_or_default(), annotated.unwrap_or_default());
            out.push_str(&format!("{item} {}{annotated}{manual}\n", entry.text()));
        }
        if out.is_empty() { "none\n".to_owned() } else { out }
    }

    /// `stop ID [kill]`
    fn stop(&mut self, line: &Line) -> String {
        let how = if line.has("kill") { Stop::Kill } else { Stop::Gracefully };
        self.propose(
            Role::Operator,
            Command::StopProcess(change::StopProcess { process: line.words[1].parse().unwrap(), how }),
        )
    }

    /// `evict ID|last [by-agent]`
    fn evict(&mut self, line: &Line) -> String {
        let role = if line.has("by-agent") { Role::Agent } else { Role::Operator };
        let process = if line.has("last") { self.domain.last_start } else { line.words[1].parse().unwrap() };
        self.propose(role, Command::EvictProcess(change::EvictProcess { process }))
    }

    pub fn observed(&self) -> Observed {
        let mut observed = Observed::default();
        let may = |kind: &str| self.forbidden.get(kind) != Some(&true);
        self.seen.sets.values().for_each(|set| observed.stateful_sets.list(set.clone()));
        self.seen.deployments.values().for_each(|deployment| observed.deployments.list(deployment.clone()));
        self.seen.pods.values().for_each(|pod| observed.pods.list(pod.clone()));
        self.seen.claims.values().for_each(|claim| observed.claims.list(claim.clone()));
        observed.stateful_sets.complete();
        observed.deployments.complete();
        observed.pods.complete();
        observed.claims.complete();
        if !may("deployments") {
            observed.deployments.forbid("no list".to_owned());
        }
        if !may("pods") {
            observed.pods.forbid("no list".to_owned());
        }
        if !may("claims") {
            observed.claims.forbid("no list".to_owned());
        }
        if !may("statefulsets") {
            observed.stateful_sets.forbid("no list".to_owned());
        }
        observed
    }

    pub fn plan(&self) -> plan::Plan {
        let moment = Moment { now: self.now(self.domain.index), voters: self.voters.clone() };
        plan(&self.domain, &self.observed(), &self.policy, &moment)
    }

    /// `what-if [scale=KIND/NAME=N]... [delete=KIND/NAME]...`, with the same arguments as `kaa plan`.
    fn what_if(&self, text: &str) -> String {
        let changes =
            text.split_whitespace().skip(1).map(|word| match word.split_once('=').expect("scale= or delete=") {
                ("scale", change) => Change::Scale(change.parse().unwrap()),
                ("delete", change) => Change::Delete(change.parse().unwrap()),
                (other, _) => panic!("{other} is no change"),
            });
        // All that were admitted vote; their StatefulSet is `admin`.
        let servers: BTreeMap<_, _> =
            self.domain.servers.values().map(|known| (known.id.clone(), known.raft_id)).collect();
        let voters = servers.values().copied().collect();
        match what_if(&self.domain, &self.observed(), &self.policy, &changes.collect::<Vec<_>>()) {
            Ok(comes) => comes.tell_of_voters("admin", &[voters], &servers, self.domain.is_spread()).to_string(),
            Err(why) => format!("cannot tell: {why}\n"),
        }
    }

    fn read(&self, need: &Need) -> Result<Vec<Fact>, String> {
        if self.unreadable.as_ref().is_some_and(|kind| need.to_string().starts_with(kind.as_str())) {
            return Err("HTTP 503".to_owned());
        }
        Ok(match need {
            Need::Anchor => vec![Fact::AnchorIs { uid: self.anchor.as_str().into() }],
            Need::LoadBalancer { object, item } => {
                let real = Self { seen: self.api.clone(), ..Self::default() }.observed();
                real.annotation(object, item).unwrap()
            }
            Need::WantersOf(database) => {
                let real = Self { seen: self.api.clone(), ..Self::default() }.observed();
                let database = database.clone();
                match wanted_by(&real, &database).unwrap() {
                    Some(by) => vec![Fact::DatabaseWanted { database, by }],
                    None => vec![Fact::DatabaseUnwanted { database }],
                }
            }
            Need::Claim(name) => match self.api.claims.get(name) {
                Some(claim) => claim.facts(),
                None => vec![Fact::ClaimAbsent { name: name.clone() }],
            },
            Need::Pod(name) => match self.api.pods.get(name) {
                Some(pod) => pod.facts(),
                None => vec![Fact::PodAbsent { name: name.clone() }],
            },
            Need::StatefulSet(name) => self.api.sets.get(name).map(StatefulSet::facts).unwrap_or_default(),
            Need::Replication { stateful_set, last } => {
                let set = self.api.sets.get(stateful_set);
                set.map(|set| set.facts_after(last.as_deref())).unwrap_or_default()
            }
            Need::WorkloadsOf { database, pods } => {
                let real = Self { seen: self.api.clone(), ..Self::default() }.observed();
                workloads::facts(&real, database, pods).unwrap()
            }
        })
    }

    /// One pass of the resync leader: plan, fresh reads, confirmed proposals.
    pub fn pass(&mut self, epoch: u64) -> String {
        self.beat();
        let plan = self.plan();
        let needs = plan.findings.iter().flat_map(|finding| &finding.needs);
        let answers = needs.map(|need| (need.clone(), self.read(need))).collect();
        let readings = Readings { at: self.now(self.domain.index), answers };
        let fence = Fence { cluster: "c1".into(), epoch: ResyncEpoch(epoch) };
        let mut out = String::new();
        for finding in &plan.findings {
            let answer = match confirm(finding, &readings, &fence, &self.domain) {
                Ok(command) => {
                    self.sent.push(command.clone());
                    self.propose(Role::ResyncLeader, command)
                }
                Err(Objection::Waits(why)) => format!("held: {why}\n"),
                Err(Objection::Refused(why)) => format!("refused: {why}\n"),
            };
            out.push_str(&format!("{}: {answer}", finding.text));
        }
        if out.is_empty() { "nothing\n".to_owned() } else { out }
    }

    /// `force remove-process|remove-archive|note-claim-gone|purge-archive|delete-database|annotate|unset|unset-manual
    /// ID [epoch=] [session=] [claim=] [statefulset=] FACT...`: a proposal that no plan made, with only these facts as
    /// evidence: `anchor`, `other-anchor`, `pod-absent`, `claim-absent`, `scaled`, `unwanted`, `says`, `says-other`,
    /// `says-none`, `syncs`, `syncs-other`. Shows whether the domain itself refuses it.
    fn force(&mut self, line: &Line) -> String {
        let fence = Fence { cluster: "c1".into(), epoch: ResyncEpoch(line.number("epoch", self.epoch())) };
        let number: u64 = line.words[2].parse().unwrap();
        let (process, archive) = (StartId(number), ArchiveId(number));
        let pod = self.domain.processes.get(&process).map(|process| process.identity.pod.clone()).unwrap_or_default();
        let claim = self.domain.archives.get(&archive).and_then(|archive| archive.claim.clone());
        let owner = claim.as_ref().and_then(|claim| claim.owner.clone());
        let (name, uid) = claim.map(|claim| (claim.name, claim.uid)).unwrap_or_default();
        // Another claim than the archive's, or a read of another StatefulSet.
        let uid = line.values.get("claim").map_or(uid, |uid| (*uid).into());
        let set = line.values.get("statefulset").map(|uid| Uid::from(*uid));
        let facts = line.words[3..].iter().filter_map(|word| {
            Some(match *word {
                "anchor" => Fact::AnchorIs { uid: self.anchor.as_str().into() },
                "other-anchor" => Fact::AnchorIs { uid: "A0".into() },
                "pod-absent" => Fact::PodAbsent { name: pod.clone() },
                "unwanted" => Fact::DatabaseUnwanted { database: "demo".into() },
                "claim-absent" => Fact::ClaimAbsent { name: name.clone() },
                "scaled" => {
                    let Ordinal { stateful_set, uid, ordinal } = owner.clone()?;
                    let (replicas, first_ordinal) = (ordinal, 0);
                    let uid = set.clone().unwrap_or(uid);
                    Fact::StatefulSetIs { name: stateful_set, uid, generation: 9, replicas, first_ordinal }
                }
                // The annotation of the StatefulSet `admin` for the global default.
                "says" | "says-other" | "says-none" => Fact::AnnotationSays {
                    object: Object::StatefulSet("admin".to_owned()),
                    item: Item::Default(None),
                    text: match *word {
                        "says" => Some("random(any)".to_owned()),
                        "says-other" => Some("round_robin(any)".to_owned()),
                        _ => None,
                    },
                },
                "syncs" => Fact::SyncsFully { stateful_set: "admin".to_owned() },
                "syncs-other" => Fact::SyncsFully { stateful_set: "sm".to_owned() },
                other => panic!("no fact {other}"),
            })
        });
        let evidence = Evidence { read_at: Millis(5), facts: facts.collect() };
        let command = match line.words[1] {
            "remove-process" => {
                let current = self.domain.processes.get(&process).map_or(1, |process| process.session.number.0);
                let session = SessionNumber(line.number("session", current));
                Command::RemoveProcess(change::RemoveProcess {
                    fence,
                    process,
                    session,
                    reason: ExitReason::PodGone,
                    evidence,
                })
            }
            "remove-archive" => {
                let scaled = line.has("scaled");
                let reason = if scaled { RemovalReason::ScaledDown } else { RemovalReason::ClaimDeleted };
                Command::RemoveArchive(change::RemoveArchive { fence, archive, claim: uid, reason, evidence })
            }
            "note-claim-gone" => Command::NoteClaimGone(change::NoteClaimGone { fence, archive, claim: uid, evidence }),
            // The commands from here to `delete-database` ignore the number: they act on the global default, or on the
            // only database.
            "annotate" => {
                let (item, text) = (Item::Default(None), "random(any)".to_owned());
                let object = Object::StatefulSet("admin".to_owned());
                Command::AnnotateLoadBalancer(change::AnnotateLoadBalancer { fence, item, text, object, evidence })
            }
            "unset" | "unset-manual" => {
                let origin = match line.words[1] {
                    "unset" => change::Unset::Annotated(Object::StatefulSet("admin".to_owned())),
                    _ => change::Unset::Manual { stateful_set: "admin".to_owned() },
                };
                let item = Item::Default(None);
                Command::RemoveLoadBalancer(change::RemoveLoadBalancer { fence, item, origin, evidence })
            }
            "delete-database" => {
                Command::DeleteDatabase(change::DeleteDatabase { fence, database: "demo".into(), evidence })
            }
            "purge-archive" => Command::PurgeArchive(change::PurgeArchive { fence, archive, claim: uid, evidence }),
            other => panic!("no proposal {other}"),
        };
        self.propose(Role::ResyncLeader, command)
    }

    fn archives(&self) -> String {
        let mut out = String::new();
        for archive in self.domain.archives.values() {
            let state = self.domain.archive_state(archive);
            let state = if archive.removed.is_some() { format!("REMOVED({state})") } else { state.to_string() };
            let claim =
                archive.claim.as_ref().map_or("none".to_owned(), |claim| format!("{} {}", claim.name, claim.uid));
            out.push_str(&format!("archive {} {} {state} on {claim}\n", archive.id, archive.database));
        }
        if out.is_empty() { "none\n".to_owned() } else { out }
    }

    fn processes(&self) -> String {
        let mut out = String::new();
        for process in self.domain.processes.values() {
            let session = match process.session.state {
                SessionState::Live => "live",
                SessionState::Lost(_) => "lost",
            };
            let container = process.container_id.as_ref().map_or("unknown", |id| id.as_str());
            out.push_str(&format!(
                "process {} {} {} {}:{} {session} with {} container {container}\n",
                process.id, process.kind, process.identity.pod, process.durable, process.engine, process.session.server,
            ));
        }
        for exited in self.domain.tombstones.values() {
            let process = &exited.process;
            let code = exited.exit_code.map_or("?".to_owned(), |code| code.to_string());
            out.push_str(&format!(
                "exited  {} {} {} {}:{} {} ({code})\n",
                process.id, process.kind, process.identity.pod, process.durable, process.engine, exited.reason
            ));
        }
        if out.is_empty() { "none\n".to_owned() } else { out }
    }

    fn databases(&self) -> String {
        let lines = self.domain.databases.values().map(|database| {
            let incarnation = database.incarnation;
            format!("{} {} incarnation {}.{}\n", database.name, database.state, incarnation.major, incarnation.minor)
        });
        lines.collect()
    }

    fn explain(&self, subject: &str) -> String {
        let subject: Subject = subject.parse().unwrap();
        let records = self.domain.audit.of(&subject).map(|record| {
            let evidence = record.evidence.as_ref().filter(|evidence| !evidence.facts.is_empty());
            let evidence = evidence.map_or(String::new(), |evidence| format!(" [{evidence}]"));
            format!("{} {}: {}{evidence}\n", record.index, record.actor, record.text())
        });
        records.collect()
    }
}

/// An operator, unless the line says that an agent asks.
fn operator(line: &Line) -> Role {
    if line.has("by-agent") { Role::Agent } else { Role::Operator }
}

/// A text with this number of additional characters (`long=`), of two bytes each.
fn long(line: &Line, text: &str) -> String {
    text.to_owned() + &"ä".repeat(line.number("long", 0) as usize)
}

/// The words after the command, without `by-agent`.
fn why(line: &Line) -> String {
    long(line, &line.words[1..].iter().filter(|word| **word != "by-agent").copied().collect::<Vec<_>>().join(" "))
}

/// The load-balancer annotations: `default=`, `prefilter=`, `policy.NAME=`, `sync=`, `secondary=`. In a text `~` is a space,
/// and `TEXT*N` is N times the text.
fn annotations(values: &BTreeMap<&str, &str>) -> Annotations {
    let long = |text: &str| match text.split_once('*').and_then(|(text, times)| Some((text, times.parse().ok()?))) {
        Some((text, times)) => text.repeat(times),
        None => text.replace('~', " "),
    };
    let name = |key: &str| match key {
        "default" | "prefilter" => format!("load-balancer-{key}"),
        "sync" => SYNC.to_owned(),
        "secondary" => SECONDARY.to_owned(),
        _ => format!("load-balancer-{key}"),
    };
    let named: Vec<_> = values.iter().map(|(key, text)| (name(key), long(text))).collect();
    Annotations::read(named.iter().map(|(name, text)| (name.as_str(), text.as_str())))
}

impl Objects {
    pub fn change(&mut self, words: &[&str], values: &BTreeMap<&str, &str>) {
        let (kind, name) = (words[0], words[1].to_owned());
        let get = |key: &str| values.get(key).map(|value| (*value).to_owned());
        if words.contains(&"gone") {
            match kind {
                "statefulset" => drop(self.sets.remove(&name)),
                "deployment" => drop(self.deployments.remove(&name)),
                "pod" => drop(self.pods.remove(&name)),
                "claim" => drop(self.claims.remove(&name)),
                other => panic!("no kind {other}"),
            }
            return;
        }
        let number = |key: &str, old: u32| get(key).map_or(old, |value| value.parse().unwrap());
        match kind {
            "statefulset" => {
                let set = self.sets.entry(name.clone()).or_default();
                set.replicas = number("replicas", set.replicas);
                set.first_ordinal = number("from", set.first_ordinal);
                (set.name, set.generation) = (name, set.generation + 1);
                set.uid = get("uid").map_or(set.uid.clone(), Into::into);
                set.templates = vec![get("template").unwrap_or("archive-volume".to_owned())];
                set.database = get("database").map(|name| name.as_str().into());
                set.ordered = words.contains(&"ordered");
                set.annotations = annotations(values);
                set.rolling = words.contains(&"rolling");
                (set.holds_purge, set.paused) = (words.contains(&"hold-purge"), words.contains(&"pause-resync"));
                set.deletes_claims_when_scaled = get("when-scaled").is_some_and(|policy| policy == "Delete");
            }
            "deployment" => {
                let uid = get("uid").unwrap_or_default().into();
                let database = get("database").map(|name| name.as_str().into());
                let paused = words.contains(&"pause-resync");
                let replicas = number("replicas", 1);
                let annotations = annotations(values);
                let deployment = Deployment {
                    name: name.clone(),
                    uid,
                    replicas,
                    database,
                    paused,
                    rolling: words.contains(&"rolling"),
                    secondary: words.contains(&"secondary"),
                    upgrades_protocol: words.contains(&"upgrade"),
                    te_preference: get("prefer"),
                    annotations,
                };
                self.deployments.insert(name, deployment);
            }
            "claim" => {
                let deleting = words.contains(&"deleting");
                let uid = get("uid").map(Into::into).or_else(|| self.claims.get(&name).map(|claim| claim.uid.clone()));
                let database = get("database").map(|name| name.as_str().into());
                let claim = objects::Claim { name: name.clone(), uid: uid.expect("uid="), deleting, database };
                self.claims.insert(name, claim);
            }
            "pod" => self.change_pod(name, words, &get),
            other => panic!("no kind {other}"),
        }
    }

    /// The claim that a pod mounts, with the owner of the pod.
    fn claim_of(&self, pod: &Pod) -> Option<Claim> {
        let name = pod.archive_claim.as_ref()?;
        let owner = pod.owner.clone().zip(pod.ordinal());
        Some(Claim {
            namespace: "default".to_owned(),
            name: name.clone(),
            uid: self.claims.get(name).unwrap_or_else(|| panic!("no claim {name}")).uid.clone(),
            owner: owner.map(|(owner, ordinal)| Ordinal { stateful_set: owner.name, uid: owner.uid, ordinal }),
        })
    }

    pub fn read_claim_in_doubt(&self, domain: &Domain, asked: &mut Registration) {
        let Some(claim) = domain.claim_in_doubt(asked).map(|claim| claim.name.clone()) else { return };
        if let Some(evidence) = &mut asked.evidence {
            evidence.facts.push(match self.claims.get(&claim) {
                Some(there) => Fact::ClaimIs { name: claim, uid: there.uid.clone() },
                None => Fact::ClaimAbsent { name: claim },
            });
        }
    }

    /// `pod NAME uid= [owner=SET] [claim=] [running=ID@SECOND] [ended=ID:CODE] [deleting]`
    fn change_pod(&mut self, name: String, words: &[&str], get: &dyn Fn(&str) -> Option<String>) {
        let sets = &self.sets;
        let pod = self.pods.entry(name.clone()).or_default();
        pod.name = name;
        pod.deleting = words.contains(&"deleting");
        pod.ended = words.contains(&"ended");
        pod.database = get("database").map(|name| name.as_str().into());
        if let Some(uid) = get("uid") {
            pod.uid = uid.into();
        }
        // A ReplicaSet; its name is also its UID.
        if let Some(owner) = get("replicaset") {
            pod.owner = Some(Owner { kind: "ReplicaSet".to_owned(), name: owner.clone(), uid: owner.as_str().into() });
        }
        if let Some(owner) = get("owner") {
            let uid = sets.get(&owner).map(|set| set.uid.clone()).unwrap_or_default();
            pod.owner = Some(Owner { kind: "StatefulSet".to_owned(), name: owner, uid });
        }
        pod.archive_claim = get("claim").or(pod.archive_claim.take());
        let mut engine = Container { name: "engine".to_owned(), ..Container::default() };
        if let Some(running) = get("running") {
            let (id, second) = running.split_once('@').expect("running=ID@SECOND");
            let started = Millis(second.parse::<u64>().unwrap() * 1000);
            engine.running = Some(Running { id: id.into(), started });
        }
        if let Some(ended) = get("ended") {
            let (id, code) = ended.split_once(':').expect("ended=ID:CODE");
            engine.ended.push(Ended { id: id.into(), exit_code: code.parse().ok(), said: String::new() });
        }
        if engine.running.is_some() || !engine.ended.is_empty() {
            pod.containers = vec![engine];
        }
    }
}
