//! A database with one primary, played: the Raft leader's grants, the duties of the agents, and wrappers that do at once what they are
//! assigned. What the audit trail keeps is the text to review.

use kaa_core::domain::audit::Subject;
use kaa_core::domain::change::{
    AdoptData, Asked, Command, DiscardData, FoundDomain, GrantReason, LoseSession, ReportExit, ReportState,
    RequestSwitchover,
};
use kaa_core::domain::command::{Actor, Entry, Outcome, Refusal, Request, Role};
use kaa_core::domain::event::Event;
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{ArchiveId, Generation, Millis, Permission, SessionNumber, StartId, SystemId};
use kaa_core::domain::invariants::{step_violations, violations};
use kaa_core::domain::process::{
    About, EngineKind, EngineState, ExitReason, Handicap, Identity, Registration, SessionState,
};
use kaa_core::domain::replicated::{Begins, Data, Ended, FailoverMode, Position, Settings, WhenAlone};
use kaa_core::domain::{Domain, archive};
use kaa_core::replication::route::routes;
use kaa_core::replication::{Assignment, InForce, Memory, Report, Stand, Standby, Timing, Wanted, grants, waits};
use std::collections::BTreeMap;

mod alone;
mod clocks;
mod handicap;
mod lost;
mod switchover;
mod uncertain;
mod unpromoted;
mod volumes;
mod zones;

const SHOP: &str = "shop";

/// A wrapper and its server.
struct Server {
    process: StartId,
    data: Data,
    memory: Memory,
    stand: Stand,
    in_force: Option<InForce>,
    ended: Option<(Generation, Ended)>,
    needs: Option<(Generation, String)>,
    /// Whether its log has what the next primary lacks.
    diverged: bool,
    may_stop: bool,
    /// Whether it has not heard the primary for a while.
    unheard: bool,
    /// What speaks against it as the next primary.
    handicap: Handicap,
    /// The start that its volume remembers, and that it remembered when the wrapper came up.
    start: StartId,
    start_before: StartId,
    /// How many claims of its pod were deleted.
    deleted: u32,
}

struct Play {
    domain: Domain,
    servers: BTreeMap<u32, Server>,
    shown: u64,
    /// How much later the stamps of entries are than the number of entries implies.
    ahead_ms: u64,
    /// Whether standbys have not streamed for long.
    unsteady: bool,
    /// For how long a primary has not heard those that do not stream, in milliseconds.
    silent_ms: u64,
}

fn begins(generation: Generation, parent: u64) -> Begins {
    Begins { generation, parent: Generation(parent), at: Position(generation.0 << 24) }
}

impl Play {
    /// A domain whose database `shop` wants three pods.
    fn new(when_alone: WhenAlone) -> Self {
        let mut play = Self {
            domain: Domain::default(),
            servers: BTreeMap::new(),
            shown: 0,
            ahead_ms: 0,
            unsteady: false,
            silent_ms: 5_000,
        };
        let found = FoundDomain { domain: "D1".into(), name: "kaa".to_owned(), anchor: "A1".into() };
        play.does(Role::Agent, Command::FoundDomain(found));
        for ordinal in 0..3 {
            play.starts(ordinal);
        }
        // What the resync leader notes: without its evidence here.
        let settings = Settings {
            stateful_set: SHOP.to_owned(),
            uid: "S1".into(),
            replicas: 3,
            synchronous: 1,
            when_alone,
            failover: FailoverMode::Manual,
            preferred_zone: None,
        };
        let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
        database.replicated.get_or_insert_default().settings = Some(settings);
        play
    }

    /// What the StatefulSet declares.
    fn settings(&mut self) -> &mut Settings {
        let database = self.domain.databases.get_mut(&SHOP.into()).unwrap();
        database.replicated.as_mut().unwrap().settings.as_mut().unwrap()
    }

    fn does(&mut self, role: Role, command: Command) -> Outcome {
        let before = self.domain.clone();
        let request = Request { actor: Actor { role, name: "ann".to_owned() }, command };
        let time = Millis(before.index * 10 + self.ahead_ms);
        let outcome = self.domain.apply(Entry { index: before.index + 1, time, request });
        let wrong = [violations(&self.domain), step_violations(&before, &self.domain)].concat();
        assert!(wrong.is_empty(), "{outcome:?}: {wrong:?}");
        outcome
    }

    /// A pod starts, on the volume that it had.
    fn starts(&mut self, ordinal: u32) {
        let registration = self.registration(ordinal, self.domain.index, None);
        let outcome = self.does(Role::Agent, Command::RegisterProcess(Box::new(registration)));
        let Outcome::Registered(registered) = outcome else { panic!("{outcome:?}") };
        self.started(ordinal, registered.process);
    }

    /// A wrapper whose session was lost opens another one.
    fn returns(&mut self, ordinal: u32) {
        let process = self.servers[&ordinal].process;
        let nonce = self.domain.processes[&process].identity.nonce;
        let registration =
            Registration { connection: self.domain.index, ..self.registration(ordinal, nonce, Some(process)) };
        let outcome = self.does(Role::Agent, Command::RegisterProcess(Box::new(registration)));
        assert!(matches!(&outcome, Outcome::Registered(it) if it.process == process), "{outcome:?}");
    }

    fn registration(&self, ordinal: u32, nonce: u64, known_as: Option<StartId>) -> Registration {
        let deleted = self.servers.get(&ordinal).map_or(0, |server| server.deleted);
        let claim = archive::Claim {
            namespace: "ns".to_owned(),
            name: format!("archive-volume-shop-{ordinal}"),
            uid: format!("C{ordinal}-{deleted}").as_str().into(),
            owner: Some(archive::Ordinal { stateful_set: SHOP.to_owned(), uid: "S1".into(), ordinal }),
        };
        let (hostname, address) = (format!("shop-{ordinal}"), format!("10.0.0.{ordinal}"));
        let about = About { hostname, address, port: 5432, ..About::default() };
        Registration {
            database: SHOP.into(),
            kind: EngineKind::Sm,
            cluster: "c1".into(),
            identity: Identity {
                namespace: "ns".to_owned(),
                pod: format!("shop-{ordinal}"),
                pod_uid: format!("P{ordinal}-{nonce}").as_str().into(),
                container: "engine".to_owned(),
                nonce,
                started: Millis(nonce),
            },
            known_as,
            claim: Some(claim),
            marker: None,
            path: "/archive".to_owned(),
            server: "admin-0".into(),
            connection: nonce,
            about,
            evidence: Some(Evidence { read_at: Millis(nonce), facts: vec![Fact::AnchorIs { uid: "A1".into() }] }),
            as_of: None,
        }
    }

    fn started(&mut self, ordinal: u32, process: StartId) {
        let kept = self.servers.remove(&ordinal);
        let server = Server {
            process,
            data: kept.as_ref().map_or(Data::Empty, |server| server.data),
            memory: kept.as_ref().map_or(Memory::default(), |server| server.memory),
            stand: Stand::Down,
            in_force: None,
            ended: None,
            needs: None,
            diverged: kept.as_ref().is_some_and(|server| server.diverged),
            may_stop: false,
            unheard: false,
            handicap: Handicap::default(),
            start: kept.as_ref().map_or(StartId(0), |server| server.start),
            start_before: kept.as_ref().map_or(StartId(0), |server| server.start),
            deleted: kept.map_or(0, |server| server.deleted),
        };
        self.servers.insert(ordinal, server);
    }

    fn said(&mut self, ordinal: u32, engine: EngineState) {
        let process = self.servers[&ordinal].process;
        let report = ReportState { process, session: SessionNumber(1), engine, pid: 1 };
        self.does(Role::Agent, Command::ReportState(report));
    }

    /// The pod is told to stop.
    fn sigterm(&mut self, ordinal: u32) {
        self.said(ordinal, EngineState::Running);
        self.said(ordinal, EngineState::ShuttingDown);
    }

    fn exits(&mut self, ordinal: u32, reason: ExitReason) {
        let process = self.servers[&ordinal].process;
        let exit = ReportExit { process, session: SessionNumber(1), exit_code: None, reason };
        self.does(Role::Agent, Command::ReportExit(exit));
        self.servers.get_mut(&ordinal).unwrap().stand = Stand::Down;
    }

    /// What the wrapper says of its server.
    fn report(&self, ordinal: u32) -> Report {
        let server = &self.servers[&ordinal];
        let generation = match server.stand {
            Stand::Promoted(begins) | Stand::Open(begins) => Some(begins.generation),
            _ => None,
        };
        let seen = |other: &Server| Standby {
            archive: self.domain.processes[&other.process].archive.unwrap(),
            streams: Some(other.stand) == generation.map(Stand::Follows),
            flushed: Position(1),
            silent_ms: if Some(other.stand) == generation.map(Stand::Follows) { 0 } else { self.silent_ms },
            is_steady: !self.unsteady && Some(other.stand) == generation.map(Stand::Follows),
        };
        let there = |other: &&Server| self.domain.processes.contains_key(&other.process);
        let others = self.servers.values().filter(|other| other.process != server.process).filter(there);
        // A member whose pod is gone is missed as well.
        let record = self.domain.replicated(&SHOP.into()).and_then(|it| it.record.as_ref());
        let mut standbys: Vec<Standby> = generation.map(|_| others.map(seen).collect()).unwrap_or_default();
        for member in record.map(|record| record.rule().members).unwrap_or_default() {
            if generation.is_some() && !standbys.iter().any(|standby| standby.archive == member) {
                standbys.push(Standby {
                    archive: member,
                    streams: false,
                    flushed: Position(0),
                    silent_ms: self.silent_ms,
                    is_steady: false,
                });
            }
        }
        Report {
            data: server.data,
            start_before: server.start_before,
            start: server.start,
            ancestors: Vec::new(),
            stand: server.stand,
            in_force: server.in_force,
            ended: server.ended,
            needs_overwrite: server.needs.clone(),
            returned: server.memory.returned,
            standbys,
            end: Position(1),
            unheard: match self.domain.assignment(server.process, None).map(|it| it.what) {
                Some(Wanted::Follow { generation, .. } | Wanted::Hold(generation)) => {
                    server.unheard.then_some(generation)
                }
                _ => None,
            },
            handicap: server.handicap,
            keeps_lease: true,
            trouble: None,
        }
    }

    /// A wrapper does what it is assigned, one step of it. Gives whether that was anything.
    fn obeys(&mut self, ordinal: u32) -> bool {
        let report = self.report(ordinal);
        let server = &self.servers[&ordinal];
        let Some(Assignment { what, may_start, may_stop, .. }) = self.domain.assignment(server.process, Some(&report))
        else {
            return false;
        };
        let server = self.servers.get_mut(&ordinal).unwrap();
        let before = (server.data, server.memory, server.stand, server.in_force, server.ended, server.needs.clone());
        server.may_stop = may_stop;
        if server.start != server.process {
            server.start = server.process;
            return true;
        }
        if !may_start && server.stand == Stand::Down {
            // It says what it needs, and begins nothing.
            let needs = match what {
                Wanted::Follow { generation, discard: true, .. } => Some((generation, "its log has more".to_owned())),
                _ => return false,
            };
            return std::mem::replace(&mut server.needs, needs.clone()) != needs;
        }
        let has_data = server.data != Data::Empty;
        match what {
            Wanted::Initialize if !has_data => {
                server.data = Data::Initialized { system: SystemId(77), highest: Generation(1) };
            }
            Wanted::Primary { stand_down: true, .. } => {
                server.ended = server.in_force.map(|it| (it.generation, Ended::StoodDown));
                (server.stand, server.in_force) = (Stand::Down, None);
            }
            Wanted::Primary { rule, blocks, .. } => match server.stand {
                Stand::Promoted(begins) | Stand::Open(begins) if begins.generation == rule.generation => {
                    let confirmed = rule
                        .members
                        .iter()
                        .all(|member| report.standby(*member).is_some_and(|standby| standby.streams));
                    if confirmed && !(blocks && rule.members.is_empty()) {
                        server.in_force = Some(InForce { generation: rule.generation, version: rule.version });
                        server.stand = Stand::Open(begins);
                    }
                }
                _ if server.memory.take_up(rule.generation).is_ok() => {
                    let parent = rule.generation.0 - 1;
                    let Data::Initialized { system, .. } = server.data else { panic!("nothing to promote") };
                    server.data = Data::Initialized { system, highest: rule.generation };
                    server.stand = Stand::Promoted(begins(rule.generation, parent));
                }
                _ => {
                    server.ended = Some((rule.generation, Ended::Failed));
                    server.stand = Stand::Fenced;
                }
            },
            Wanted::Follow { generation, permission, discard, .. } => {
                let is_permitted = permission.is_some_and(|permission| permission > server.memory.returned);
                server.diverged |= discard && (is_permitted || server.stand != Stand::Follows(generation));
                follow(server, generation, permission);
                if discard && permission.is_none() {
                    server.needs = Some((generation, "an operator gave up its data".to_owned()));
                }
            }
            Wanted::Hold(_) | Wanted::Initialize => {
                if has_data && server.stand == Stand::Down {
                    server.stand = Stand::Fenced;
                }
            }
        }
        before != (server.data, server.memory, server.stand, server.in_force, server.ended, server.needs.clone())
    }

    /// Everything is done that is due, until nothing is.
    fn settle(&mut self) {
        for _ in 0..200 {
            if self.round() {
                return;
            }
        }
        panic!("it does not settle: {}", self.news());
    }

    /// Everything is done once that is due; true if nothing is.
    fn round(&mut self) -> bool {
        let mut quiet = true;
        for command in grants::plan(&self.domain, self.domain.time, &Timing::default()) {
            quiet &= !self.changes(Role::RaftLeader, command);
        }
        for ordinal in self.servers.keys().copied().collect::<Vec<_>>() {
            // A wrapper that no agent hears is not told anything either.
            let process = self.domain.processes.get(&self.servers[&ordinal].process);
            if process.is_none_or(|process| process.session.state != SessionState::Live) {
                continue;
            }
            quiet &= !self.obeys(ordinal);
            quiet &= !self.reports(ordinal);
        }
        quiet
    }

    /// The agent of a wrapper does what follows from its words. Gives whether that was anything.
    fn reports(&mut self, ordinal: u32) -> bool {
        let (process, session, report) = (self.servers[&ordinal].process, self.session(ordinal), self.report(ordinal));
        let commands = self.domain.duties(process, session, &report);
        commands.into_iter().fold(false, |changed, command| self.changes(Role::Agent, command) | changed)
    }

    /// Rounds until the audit trail has these words: all that it has since it was last asked.
    fn until(&mut self, words: &str) -> String {
        let mut news = self.news();
        while !news.contains(words) {
            assert!(!self.round(), "{news}");
            news += &self.news();
        }
        news
    }

    fn changes(&mut self, role: Role, command: Command) -> bool {
        let text = format!("{command:?}");
        match self.does(role, command) {
            Outcome::Changed => true,
            Outcome::Unchanged => panic!("proposed though there is nothing to do: {text}"),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn switchover(&mut self, to: Option<u64>) -> String {
        let generation = self.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap().generation;
        let what = Asked::Move(to.map(ArchiveId));
        let asked = RequestSwitchover { database: SHOP.into(), generation, what, why: "maintenance".to_owned() };
        outcome(self.does(Role::Operator, Command::RequestSwitchover(asked)))
    }

    fn failover(&mut self, to: u64, may_run: bool) -> String {
        let replicated = self.domain.replicated(&SHOP.into()).unwrap().clone();
        let reason = GrantReason::Failover { why: "node lost".to_owned(), may_run };
        match grants::propose(&self.domain, &SHOP.into(), &replicated, ArchiveId(to), reason, &Timing::default()) {
            Some(grant) => outcome(self.does(Role::Operator, Command::GrantPrimary(grant))),
            None => "no server is there".to_owned(),
        }
    }

    /// Continues with an archive that may lack commits.
    fn gives_up(&mut self, to: u64, lost: &[u64], is_off: bool) -> String {
        let replicated = self.domain.replicated(&SHOP.into()).unwrap().clone();
        let lost = lost.iter().copied().map(ArchiveId).collect();
        let reason = GrantReason::LossAccepted { why: "all burnt".to_owned(), lost, is_off };
        let grant = grants::propose(&self.domain, &SHOP.into(), &replicated, ArchiveId(to), reason, &Timing::default())
            .unwrap();
        outcome(self.does(Role::Operator, Command::GrantPrimary(grant)))
    }

    /// The session of a server's wrapper now.
    fn session(&self, ordinal: u32) -> SessionNumber {
        self.domain.processes.get(&self.servers[&ordinal].process).map_or(SessionNumber(1), |it| it.session.number)
    }

    fn lose(&mut self, ordinal: u32) {
        let (process, session) = (self.servers[&ordinal].process, self.session(ordinal));
        let lose = LoseSession { process, session, why: "silent".to_owned() };
        self.does(Role::Agent, Command::LoseSession(lose));
    }

    /// What the audit trail has of replication since this was last asked.
    fn news(&mut self) -> String {
        let records: Vec<_> = self.domain.audit.of(&Subject::Database(SHOP.into())).cloned().collect();
        let mut lines: Vec<(u64, String)> = Vec::new();
        for record in records.iter().filter(|record| record.index > self.shown) {
            if let Event::Replication(event) = &record.event {
                lines.push((record.index, event.to_string()));
            }
        }
        lines.sort();
        self.shown = self.domain.index;
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }
}

fn outcome(outcome: Outcome) -> String {
    match outcome {
        Outcome::Refused(why) => why.to_string(),
        other => format!("{other:?}"),
    }
}

fn follow(server: &mut Server, generation: Generation, permission: Option<Permission>) {
    if server.memory.follow(generation).is_err() {
        server.stand = Stand::Fenced;
        return;
    }
    let usable = permission.filter(|permission| *permission > server.memory.returned);
    if server.data == Data::Empty || server.diverged {
        let Some(permission) = usable else {
            let why = if server.diverged { "its log has more" } else { "its volume is empty" };
            (server.stand, server.needs) = (Stand::Fenced, Some((generation, why.to_owned())));
            return;
        };
        server.memory.begin_overwrite(permission).unwrap();
        server.memory.end_overwrite();
        (server.diverged, server.needs) = (false, None);
        server.data = Data::Initialized { system: SystemId(77), highest: generation };
    }
    server.stand = Stand::Follows(generation);
    if let Some(permission) = usable {
        server.memory.return_permission(permission).unwrap();
    }
}

/// Three servers, of which shop-0's is the primary and shop-1's confirms.
fn running(when_alone: WhenAlone) -> Play {
    let mut play = Play::new(when_alone);
    play.settle();
    play.news();
    play
}

#[test]
fn the_first_data_is_made_once_all_pods_are_there_and_the_others_are_copied() {
    let mut play = Play::new(WhenAlone::Degrade);
    play.settle();
    let expected = "\
archive 1 is empty
archive 2 is empty
archive 3 is empty
archive 1 makes the first data
archive 1 holds data of system 77, up to generation 1
generation 2 granted to archive 1, sync set 1: it is the first primary
archive 1 holds data of system 77, up to generation 2
generation 2: the server of archive 1 was promoted; its log continues that of generation 1 at 0/2000000
the data of archive 2 may be overwritten, permission 1: its volume is empty
the data of archive 3 may be overwritten, permission 2: its volume is empty
generation 2: the server of archive 1 is open
archive 2 holds data of system 77, up to generation 2
archive 3 holds data of system 77, up to generation 2
the data of archive 2 is whole; permission 1 is spent
the data of archive 3 is whole; permission 2 is spent
archive 2 joins the sync set, version 3
archive 2 is in the sync set: version 3 is in force
";
    assert_eq!(play.news(), expected);
}

#[test]
fn a_pod_that_is_late_holds_up_the_first_data() {
    let mut play = Play::new(WhenAlone::Degrade);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    assert!(!play.news().contains("makes the first data"));
}

/// None of their servers can have run.
#[test]
fn pods_that_end_before_there_is_any_data_hold_up_nothing() {
    for reason in [ExitReason::Graceful, ExitReason::Killed, ExitReason::PodGone, ExitReason::Evicted] {
        let mut play = Play::new(WhenAlone::Degrade);
        play.exits(2, reason.clone());
        play.settle();
        play.said(0, EngineState::ShuttingDown);
        play.exits(0, reason.clone());
        play.starts(0);
        play.settle();
        assert!(!play.news().contains("makes the first data"), "{reason:?}: a pod is late");
        play.starts(2);
        play.settle();
        assert!(play.news().contains("generation 2: the server of archive 1 is open"), "{reason:?}");
    }
}

#[test]
fn one_that_ends_while_it_makes_the_first_data_goes_on_with_it() {
    let mut play = Play::new(WhenAlone::Degrade);
    for _ in 0..20 {
        if play.domain.replicated(&SHOP.into()).unwrap().initializes.is_some() {
            break;
        }
        play.round();
    }
    play.exits(0, ExitReason::PodGone);
    assert!(play.domain.archives[&ArchiveId(1)].ever_ran, "its server may have run");
    play.starts(0);
    play.settle();
    assert!(play.news().contains("generation 2: the server of archive 1 is open"));
}

#[test]
fn data_that_is_away_before_the_first_is_made_is_named() {
    let mut play = Play::new(WhenAlone::Degrade);
    play.servers.get_mut(&2).unwrap().data = Data::Initialized { system: SystemId(78), highest: Generation(1) };
    play.settle();
    play.exits(2, ExitReason::PodGone);
    play.settings().replicas = 2;
    play.settle();
    assert!(!play.news().contains("makes the first data"));
    let said = |play: &Play, now: &str| {
        let replicated = play.domain.replicated(&SHOP.into()).unwrap();
        let waits = waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time);
        let said: Vec<_> = waits.iter().map(ToString::to_string).collect();
        let held = "archive 3 held data when its server was last there (pod shop-2)";
        assert_eq!(said, [format!("{held}, and {now}: no pod makes the first data meanwhile")]);
    };
    said(&play, "its server is away");
    play.servers.get_mut(&2).unwrap().data = Data::Empty;
    play.starts(2);
    play.settle();
    said(&play, "its volume is empty now");
}

#[test]
fn data_that_the_domain_does_not_know_is_not_touched_until_it_is_adopted() {
    let mut play = Play::new(WhenAlone::Degrade);
    play.servers.get_mut(&1).unwrap().data = Data::Initialized { system: SystemId(77), highest: Generation(9) };
    play.settle();
    let expected = "archive 1 is empty\narchive 2 holds data of system 77, up to generation 9\narchive 3 is empty\n";
    assert_eq!(play.news(), expected);
    let adopt = AdoptData { database: SHOP.into(), archive: ArchiveId(2), why: "moved".to_owned() };
    assert_eq!(play.does(Role::Operator, Command::AdoptData(adopt)), Outcome::Changed);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 10 granted to archive 2, sync set 2"), "{news}");
    assert!(news.contains("archive 1 is in the sync set"), "{news}");
}

#[test]
fn a_switchover_lets_a_third_server_join_first_and_loses_no_member() {
    let mut play = running(WhenAlone::Degrade);
    assert_eq!(play.switchover(Some(2)), "Changed");
    play.settle();
    let expected = "\
switchover to archive 2 requested: maintenance
archive 3 joins the sync set, version 4
archive 3 is in the sync set: version 4 is in force
generation 2: the server of archive 1 stood down
generation 3 granted to archive 2, after archive 1, sync set 2, 3: switchover: maintenance
archive 2 holds data of system 77, up to generation 3
generation 3: the server of archive 2 was promoted; its log continues that of generation 2 at 0/3000000
generation 3: the server of archive 2 is open
";
    assert_eq!(play.news(), expected);
}

#[test]
fn a_switchover_to_an_archive_outside_the_set_lets_it_join_first() {
    let mut play = running(WhenAlone::Degrade);
    assert_eq!(play.switchover(Some(3)), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 3, after archive 1, sync set 2, 3"), "{news}");
    assert_eq!(play.switchover(Some(3)), "archive 3 is the primary's");
    assert!(play.switchover(Some(9)).contains("archive 9 has no engine"));
}

#[test]
fn a_primary_whose_pod_stops_hands_over_and_may_end_then() {
    let mut play = running(WhenAlone::Degrade);
    play.sigterm(0);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 2, after archive 1, sync set 2, 3: the pod of"), "{news}");
    assert!(play.servers[&0].may_stop);
}

/// As in a scale-down to one pod. The primary is the last to know that it may end.
#[test]
fn a_primary_that_stops_together_with_its_set_waits_until_the_third_server_can_take_over() {
    let mut play = running(WhenAlone::Degrade);
    play.sigterm(0);
    play.sigterm(1);
    while !play.round() {
        let ended = play.servers[&0].ended.is_some();
        // The third one joins by the word of the other one, too: a commit would wait for it.
        let stops = [0, 1].map(|ordinal| play.servers[&ordinal].may_stop);
        assert!(ended || stops == [false, false], "{stops:?} {}", play.news());
    }
    let news = play.news();
    assert!(news.contains("granted to archive 3, after archive 1, sync set 1, 2, 3: the pod of"), "{news}");
    assert!([0, 1].iter().all(|ordinal| play.servers[ordinal].may_stop), "{news}");
}

#[test]
fn a_standby_whose_pod_stops_leaves_the_set_after_another_has_joined() {
    let mut play = running(WhenAlone::Degrade);
    play.sigterm(1);
    play.settle();
    let expected = "\
archive 3 joins the sync set, version 4
archive 3 is in the sync set: version 4 is in force
archive 2 left the sync set, version 5: its pod stops
";
    assert_eq!(play.news(), expected);
    assert!(play.servers[&1].may_stop);
}

#[test]
fn a_primary_that_crashed_returns_in_the_next_generation_and_no_other_takes_over_by_itself() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(0, ExitReason::Exited("killed".to_owned()));
    play.settle();
    assert_eq!(play.news(), "", "no other is granted without an operator's word");
    play.starts(0);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 1, sync set 1, 2: the server of the primary has"), "{news}");
    assert!(news.contains("generation 3: the server of archive 1 is open"), "{news}");
}

#[test]
fn a_failover_is_an_operators_and_needs_the_end_of_the_old_primary_or_a_word_about_it() {
    let mut play = running(WhenAlone::Degrade);
    assert!(play.failover(3, false).contains("may still run"));
    play.lose(0);
    assert!(play.failover(2, false).contains("may still run"), "lost is not dead");
    assert_eq!(play.failover(3, true), "archive 3 is not in the sync set");
    assert_eq!(play.failover(2, true), "Changed");
    play.settle();
    let news = play.news();
    assert!(
        news.contains("generation 3 granted to archive 2, after archive 1, sync set 1, 2: failover: node lost"),
        "{news}"
    );
    assert!(news.contains("archive 1 left the sync set, version 5: its server does not follow yet"), "{news}");
    let mut play = running(WhenAlone::Degrade);
    play.exits(0, ExitReason::PodGone);
    assert_eq!(play.failover(2, false), "Changed", "its end is known");
}

#[test]
fn commits_are_given_up_only_if_no_server_has_them_and_none_could_acknowledge_more() {
    let mut play = running(WhenAlone::Degrade);
    play.lose(0);
    play.exits(1, ExitReason::PodGone);
    assert!(play.gives_up(3, &[1, 2], false).contains("may still run"), "lost is not dead");
    play.exits(0, ExitReason::PodGone);
    assert!(play.gives_up(3, &[1, 2], false).contains("may still run"), "a pod may be deleted whose node is cut off");
    assert!(play.gives_up(3, &[1], true).contains("not the one whose commits were given up"));
    play.starts(1);
    play.settle();
    assert!(play.gives_up(3, &[1, 2], true).starts_with("archive 2 holds every acknowledged commit"));
    play.exits(1, ExitReason::PodGone);
    play.news();
    assert_eq!(play.gives_up(3, &[1, 2], true), "Changed");
    for ordinal in [0, 1] {
        play.starts(ordinal);
    }
    play.settle();
    let expected = "\
generation 3 granted to archive 3, after archive 1, sync set 3: failover: all burnt; the old primary is off; commits that only archives 1, 2 hold are given up
archive 1 holds data of system 77, up to generation 2
archive 2 holds data of system 77, up to generation 2
archive 3 holds data of system 77, up to generation 3
generation 3: the server of archive 3 was promoted; its log continues that of generation 2 at 0/3000000
generation 3: the server of archive 3 is open
";
    assert_eq!(play.news(), expected, "what is on the others may be all that is left of what was lost");
    assert_eq!(waits(&play), ["data_not_adopted", "data_not_adopted", "few_standbys"]);
    let discard =
        DiscardData { database: SHOP.into(), archive: ArchiveId(2), why: "nothing of it is missed".to_owned() };
    assert_eq!(play.does(Role::Operator, Command::DiscardData(discard)), Outcome::Changed);
    play.settle();
    let news = play.news();
    assert!(
        news.contains("data of archive 2 is whole")
            && news.ends_with("archive 2 is in the sync set: version 5 is in force\n"),
        "{news}"
    );
}

#[test]
fn after_a_loss_no_server_is_overwritten_or_shown_to_readers_that_may_have_what_was_lost() {
    let mut play = running(WhenAlone::Degrade);
    play.settings().synchronous = 0;
    play.settle();
    play.exits(0, ExitReason::Exited("killed".to_owned()));
    play.news();
    // Neither was in the set. The server of archive 3 runs on, and has more than that of archive 2.
    play.servers.get_mut(&2).unwrap().diverged = true;
    assert_eq!(play.gives_up(2, &[1], false), "Changed", "its wrapper saw the primary's server end");
    play.settle();
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro", "it may have another history");
    let news = play.news();
    assert!(news.contains("of archive 2 is open") && !news.contains("may be overwritten"), "{news}");
    assert_eq!(waits(&play), ["data_not_adopted"]);
}

#[test]
fn what_a_loss_has_left_behind_continues_after_another_one() {
    let mut play = running(WhenAlone::Degrade);
    play.settings().synchronous = 0;
    play.settle();
    play.exits(0, ExitReason::Exited("killed".to_owned()));
    assert_eq!(play.gives_up(2, &[1], false), "Changed");
    play.settle();
    play.exits(1, ExitReason::Exited("killed".to_owned()));
    assert_eq!(play.gives_up(3, &[2], false), "Changed", "no other data is left");
    play.settle();
    assert!(play.news().contains("of archive 3 is open"));
}

#[test]
fn an_old_primary_with_more_is_overwritten_and_counts_only_after_that() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(0, ExitReason::PodGone);
    assert_eq!(play.failover(2, false), "Changed");
    play.servers.get_mut(&0).unwrap().diverged = true;
    play.settle();
    play.news();
    play.exits(2, ExitReason::PodGone);
    play.starts(0);
    play.settle();
    let expected = "\
archive 1 holds data of system 77, up to generation 2
archive 3 left the sync set, version 7: the primary has not heard its server for 5 s
the data of archive 1 may be overwritten, permission 3: its log has more
archive 1 holds data of system 77, up to generation 3
the data of archive 1 is whole; permission 3 is spent
archive 1 joins the sync set, version 8
archive 1 is in the sync set: version 8 is in force
";
    assert_eq!(play.news(), expected);
}

#[test]
fn a_primary_alone_continues_or_blocks_as_it_was_declared() {
    for (when_alone, open) in [(WhenAlone::Degrade, true), (WhenAlone::Block, false)] {
        let mut play = running(when_alone);
        play.exits(1, ExitReason::PodGone);
        play.exits(2, ExitReason::PodGone);
        play.settle();
        let record = play.domain.replicated(&SHOP.into()).unwrap().record.clone().unwrap();
        let in_force = play.servers[&0].in_force.unwrap().version == record.version;
        assert_eq!(in_force, open, "{when_alone}");
        let replicated = play.domain.replicated(&SHOP.into()).unwrap();
        let said: Vec<_> = waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time)
            .iter()
            .map(ToString::to_string)
            .collect();
        let blocked = if open { "" } else { ": commits wait until one does (kaa.dev/when-alone: block)" };
        assert_eq!(said, [format!("0 of 1 standbys confirm each commit{blocked}")]);
        play.starts(2);
        play.settle();
        assert!(play.news().contains("archive 3 is in the sync set"), "{when_alone}");
    }
}

#[test]
fn all_pods_stop_at_once_and_the_database_is_back_without_an_operator() {
    let mut play = running(WhenAlone::Degrade);
    for ordinal in 0..3 {
        play.sigterm(ordinal);
    }
    play.settle();
    for ordinal in 0..3 {
        assert!(play.servers[&ordinal].may_stop, "shop-{ordinal}");
        play.exits(ordinal, ExitReason::Graceful);
    }
    play.news();
    for ordinal in [2, 1, 0] {
        play.starts(ordinal);
    }
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3: the server of archive 1 is open"), "{news}");
    assert!(news.contains("is in the sync set"), "{news}");
}

/// Its volume was replaced by an empty one under the same claim.
#[test]
fn a_sole_primary_that_comes_back_without_data_is_not_said_to_be_promoted() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(1, ExitReason::PodGone);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    play.exits(0, ExitReason::PodGone);
    play.servers.get_mut(&0).unwrap().data = Data::Empty;
    play.starts(0);
    play.settle();
    assert!(!play.news().contains("granted"));
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    let said: Vec<_> =
        waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time).iter().map(ToString::to_string).collect();
    let expected = "the server of the primary, on archive 1, has ended, and no other archive of the sync set has a server. It does not return \
                    by itself: no grant is possible: archive 1 has no engine that is connected, has the database's data, and was not told to stop";
    assert_eq!(said, [expected]);
}

/// Its wrapper notes its own start on the volume once it is assigned anything: what the volume remembered before would be gone.
#[test]
fn a_server_is_assigned_nothing_before_the_domain_has_judged_its_data() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(2, ExitReason::PodGone);
    play.starts(2);
    let assigned = |play: &Play| play.domain.assignment(play.servers[&2].process, Some(&play.report(2)));
    assert_eq!(assigned(&play), None);
    play.settle();
    assert!(assigned(&play).is_some());
}

/// What it was copied from was the primary until that was lost.
#[test]
fn a_copy_that_is_whole_when_a_loss_is_accepted_is_kept() {
    for discarded in [false, true] {
        let mut play = running(WhenAlone::Degrade);
        play.exits(1, ExitReason::PodGone);
        play.exits(2, ExitReason::PodGone);
        play.settle();
        if discarded {
            let discard = DiscardData { database: SHOP.into(), archive: ArchiveId(3), why: "of a test".to_owned() };
            assert_eq!(play.does(Role::Operator, Command::DiscardData(discard)), Outcome::Changed);
        }
        play.servers.get_mut(&2).unwrap().diverged = true;
        play.starts(2);
        let overwrites = |play: &Play| {
            let record = play.domain.replicated(&SHOP.into()).unwrap().record.clone().unwrap();
            record.overwriting.contains_key(&ArchiveId(3))
        };
        while !overwrites(&play) {
            assert!(!play.round());
        }
        let before = play.servers[&2].memory.returned;
        while play.servers[&2].memory.returned == before {
            assert!(play.obeys(2));
        }
        play.lose(2);
        play.exits(0, ExitReason::PodGone);
        play.starts(1);
        play.settle();
        assert_eq!(play.gives_up(2, &[1], true), "Changed");
        play.settle();
        play.returns(2);
        play.settle();
        assert!(!overwrites(&play), "{discarded}: it says that the copy is whole");
        assert_eq!(waits(&play), ["data_not_adopted", "few_standbys"], "{discarded}");
    }
}

/// What waits, by its codes.
fn waits(play: &Play) -> Vec<&'static str> {
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time).iter().map(|wait| wait.into()).collect()
}

#[test]
fn data_of_another_system_is_neither_followed_with_nor_overwritten() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(2, ExitReason::PodGone);
    play.servers.get_mut(&2).unwrap().data = Data::Initialized { system: SystemId(78), highest: Generation(1) };
    play.starts(2);
    play.settle();
    assert_eq!(play.news(), "archive 3 holds data of system 78, up to generation 1\n");
    assert_eq!((waits(&play), play.servers[&2].stand), (vec!["data_not_adopted"], Stand::Down));
}

#[test]
fn what_was_not_adopted_is_kept_until_an_operator_gives_it_up() {
    let mut play = Play::new(WhenAlone::Degrade);
    for ordinal in [1, 2] {
        let highest = Generation(6);
        play.servers.get_mut(&ordinal).unwrap().data = Data::Initialized { system: SystemId(77), highest };
    }
    play.settle();
    let adopt = AdoptData { database: SHOP.into(), archive: ArchiveId(2), why: "moved".to_owned() };
    assert_eq!(play.does(Role::Operator, Command::AdoptData(adopt)), Outcome::Changed);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 7 granted to archive 2"), "above every number that is known: {news}");
    assert!(!news.contains("archive 3 may be overwritten") && !news.contains("archive 3 joins"), "{news}");
    assert_eq!(waits(&play), ["data_not_adopted"]);
    let discard = DiscardData { database: SHOP.into(), archive: ArchiveId(3), why: "an old copy".to_owned() };
    assert_eq!(play.does(Role::Operator, Command::DiscardData(discard)), Outcome::Changed);
    play.settle();
    let expected = "\
the data on archive 3 is given up and may be overwritten: an old copy
the data of archive 3 may be overwritten, permission 2: its log has more
archive 3 holds data of system 77, up to generation 7
the data of archive 3 is whole; permission 2 is spent
";
    assert_eq!(play.news(), expected);
    assert_eq!(waits(&play), [""; 0]);
}

#[test]
fn data_that_is_not_needed_goes_with_its_claim_before_there_is_a_primary() {
    let mut play = Play::new(WhenAlone::Degrade);
    let (system, highest) = (SystemId(78), Generation(1));
    play.servers.get_mut(&2).unwrap().data = Data::Initialized { system, highest };
    play.settle();
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    let waits = waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time);
    let said: Vec<_> = waits.iter().map(ToString::to_string).collect();
    let expected = "archive 3 holds data that the domain knows nothing of (pod shop-2, system 78, up to generation 1): it is not touched, \
                    and no pod makes the first data meanwhile";
    assert_eq!(said, [expected]);
    let ends = waits[0].ends().unwrap();
    assert!(
        ends.contains("`kubectl delete pvc/archive-volume-{pod} pod/{pod}`") && !ends.contains("discard"),
        "{ends}"
    );
    let discard = DiscardData { database: SHOP.into(), archive: ArchiveId(3), why: "of a test".to_owned() };
    assert_eq!(
        play.does(Role::Operator, Command::DiscardData(discard)),
        Outcome::Refused(Refusal::NoPrimaryYet(SHOP.into()))
    );
    play.exits(2, ExitReason::PodGone);
    let server = play.servers.get_mut(&2).unwrap();
    (server.data, server.start, server.deleted) = (Data::Empty, StartId(0), 1);
    play.starts(2);
    play.settle();
    let news = play.news();
    assert!(
        news.contains("generation 2 granted to archive 1") && news.contains("data of archive 4 is whole"),
        "{news}"
    );
}

#[test]
fn a_number_that_a_late_volume_knows_is_not_granted_again() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(2, ExitReason::PodGone);
    play.servers.get_mut(&2).unwrap().data = Data::Initialized { system: SystemId(77), highest: Generation(9) };
    play.starts(2);
    play.settle();
    let next = play.domain.replicated(&SHOP.into()).unwrap().next_generation(Generation(2));
    assert_eq!(next, Generation(10), "as a dry run shows it");
    play.exits(0, ExitReason::PodGone);
    play.starts(0);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 10 granted to archive 1"), "{news}");
}

/// The primary would stand down for it, and no grant would follow.
#[test]
fn a_member_whose_volume_was_emptied_is_no_successor() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(1, ExitReason::PodGone);
    play.servers.get_mut(&1).unwrap().data = Data::Empty;
    play.starts(1);
    play.reports(1);
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    assert!(replicated.counts(ArchiveId(2)) && play.domain.successors(replicated).is_empty());
    assert_eq!(play.switchover(Some(2)), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("the data of archive 2 is whole"), "{news}");
    assert!(news.contains("generation 3 granted to archive 2, after archive 1"), "{news}");
}

#[test]
fn a_successor_that_stops_before_it_was_promoted_is_followed_by_another() {
    let mut play = running(WhenAlone::Degrade);
    assert_eq!(play.switchover(Some(2)), "Changed");
    play.until("generation 3 granted");
    play.exits(1, ExitReason::PodGone);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 4 granted to archive 3, after archive 2"), "{news}");
    assert!(news.contains("generation 4: the server of archive 3 is open"), "{news}");
}

#[test]
fn a_generation_that_cannot_be_taken_up_is_given_back() {
    let mut play = running(WhenAlone::Degrade);
    assert_eq!(play.switchover(Some(2)), "Changed");
    while play.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap().generation == Generation(2) {
        play.round();
    }
    let server = play.servers.get_mut(&1).unwrap();
    (server.memory.taken_up, server.stand) = (Generation(3), Stand::Fenced);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3: the server of archive 2 has ended by itself"), "{news}");
    assert!(news.contains("generation 4: the server of archive"), "{news}");
}

/// Where clients are sent: `shop-rw shop-0; shop-ro shop-1 shop-2`.
fn sent(play: &Play) -> String {
    let routes = routes(&play.domain, &"c1".into());
    let shown = routes.iter().map(|route| {
        let pods = route.endpoints.iter().map(|endpoint| format!(" {}", endpoint.pod));
        route.name() + &pods.collect::<String>()
    });
    shown.collect::<Vec<_>>().join("; ")
}

#[test]
fn clients_are_sent_to_the_current_primary_and_readers_to_whole_standbys_that_run() {
    let mut play = Play::new(WhenAlone::Degrade);
    assert_eq!(sent(&play), "shop-rw; shop-ro", "there is no data yet");
    play.settle();
    for ordinal in 0..3 {
        play.said(ordinal, EngineState::Running);
    }
    assert_eq!(sent(&play), "shop-rw shop-0; shop-ro shop-1 shop-2");
    assert_eq!(routes(&play.domain, &"c2".into()), [], "another cluster");
    assert_eq!(play.switchover(Some(2)), "Changed");
    let mut seen = vec![sent(&play)];
    while !play.round() {
        seen.push(sent(&play));
    }
    seen.dedup();
    let expected = ["shop-rw shop-0; shop-ro shop-1 shop-2", "shop-rw shop-1; shop-ro shop-0 shop-2"];
    assert_eq!(seen, expected, "there is always a server that answers or refuses");
    play.said(0, EngineState::Syncing);
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro shop-2", "it lets no reader in");
    play.said(2, EngineState::Syncing);
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro shop-0 shop-2", "a Service without any server costs more");
    play.said(0, EngineState::Running);
    play.exits(2, ExitReason::PodGone);
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro shop-0");
    play.lose(1);
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro shop-0", "lost is not dead: it serves its clients");
    play.exits(1, ExitReason::PodGone);
    assert_eq!(sent(&play), "shop-rw; shop-ro shop-0", "its address may be another pod's by now");
}

#[test]
fn readers_are_not_sent_to_lost_servers_outside_the_set_while_another_one_is_there() {
    let served = || {
        let mut play = lost::automatic();
        for ordinal in 0..3 {
            play.said(ordinal, EngineState::Running);
        }
        assert_eq!(sent(&play), "shop-rw shop-0; shop-ro shop-1 shop-2");
        play
    };
    let mut play = served();
    play.lose(2);
    assert_eq!(sent(&play), "shop-rw shop-0; shop-ro shop-1", "its node may be gone");
    play.lose(1);
    assert_eq!(sent(&play), "shop-rw shop-0; shop-ro shop-1", "it is in the set: it confirms commits");
    let mut play = served();
    play.ends_here(0, 2);
    play.until("generation 3 granted to archive 2");
    play.lose(0);
    let mut seen = vec![sent(&play)];
    while !play.round() {
        seen.push(sent(&play));
    }
    seen.dedup();
    assert_eq!(seen, ["shop-rw shop-1; shop-ro shop-2"], "the primary before lets no client in");
    play.exits(2, ExitReason::PodGone);
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro", "neither if it is the only one left");

    let mut play = served();
    assert_eq!(play.switchover(Some(2)), "Changed");
    play.settle();
    play.lose(0);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    assert_eq!(sent(&play), "shop-rw shop-1; shop-ro shop-0", "it has followed since, and may serve");
}

#[test]
fn nothing_moves_while_the_record_may_be_wrong() {
    let mut play = running(WhenAlone::Degrade);
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    database.replicated.as_mut().unwrap().uncertain = Some("entries were lost".to_owned());
    assert_eq!(play.switchover(None), "what is recorded of database shop may be wrong: entries were lost");
    play.sigterm(0);
    play.settle();
    assert_eq!(play.news(), "");
    assert!(play.servers[&0].may_stop, "its pod is not held for a hand-over that cannot be");
}

#[test]
fn a_standby_that_seems_to_stream_and_is_not_heard_does_not_join() {
    let mut play = running(WhenAlone::Degrade);
    let process = play.servers[&0].process;
    // As when the connections of all standbys are cut.
    let cut = |play: &Play| {
        let mut report = play.report(0);
        for standby in &mut report.standbys {
            (standby.streams, standby.silent_ms) = (true, 4_000);
        }
        play.domain.duties(process, play.session(0), &report)
    };
    for _ in 0..5 {
        for command in cut(&play) {
            assert_eq!(play.does(Role::Agent, command), Outcome::Changed);
        }
        play.obeys(0);
    }
    assert_eq!(play.news(), "archive 2 left the sync set, version 4: the primary has not heard its server for 4 s\n");
    play.settle();
    assert!(play.news().contains("joins the sync set"), "it is heard again");
}
