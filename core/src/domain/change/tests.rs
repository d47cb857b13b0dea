//! What an operator creates and deletes by hand.

use super::*;
use crate::domain::archive::{Claim, Ordinal, RemovalReason};
use crate::domain::audit::Subject;
use crate::domain::command::{Entry, Outcome, Request, Role};
use crate::domain::database::{Database, DatabaseState};
use crate::domain::gate::{Held, Start};
use crate::domain::ids::{ArchiveId, DatabaseName, Millis, SessionNumber, StartId};
use crate::domain::invariants::{step_violations, violations};
use crate::domain::process::{About, EngineKind, EngineState, ExitReason, Identity};
use std::collections::BTreeMap;

const DEMO: &str = "demo";

struct Tried(Domain);

impl Tried {
    fn new() -> Self {
        let mut tried = Self(Domain::default());
        let found = FoundDomain { domain: "D1".into(), name: "kaa".to_owned(), anchor: "A1".into() };
        tried.apply(Role::Agent, Command::FoundDomain(found));
        tried
    }

    /// With every invariant checked.
    fn apply(&mut self, role: Role, command: Command) -> String {
        let before = self.0.clone();
        let request = Request { actor: Actor { role, name: "ann".to_owned() }, command };
        let outcome = self.0.apply(Entry { index: before.index + 1, time: Millis(5), request });
        let wrong = [violations(&self.0), step_violations(&before, &self.0)].concat();
        assert!(wrong.is_empty(), "{outcome:?}: {wrong:?}");
        match outcome {
            Outcome::Refused(refusal) => {
                let (index, needs) = (self.0.index, self.0.needs);
                assert!(self.0 == Domain { index, needs, ..before }, "{refusal} changed something");
                refusal.to_string()
            }
            outcome => format!("{outcome:?}"),
        }
    }

    fn create(&mut self, options: &[(&str, &str)], may_exist: bool) -> String {
        let create = CreateDatabase { database: DEMO.into(), options: map(options), may_exist };
        self.apply(Role::Operator, Command::CreateDatabase(create))
    }

    fn configure(&mut self, options: &[(&str, &str)], replace_all: bool) -> String {
        let configure = ConfigureDatabase { database: DEMO.into(), options: map(options), replace_all };
        self.apply(Role::Operator, Command::ConfigureDatabase(configure))
    }

    fn drop(&mut self, purge: bool, facts: Vec<Fact>) -> String {
        let evidence = Evidence { read_at: Millis(5), facts };
        let drop = DropDatabase { database: DEMO.into(), purge, cluster: "c1".into(), evidence };
        self.apply(Role::Operator, Command::DropDatabase(drop))
    }

    fn archive(&mut self, restored: bool) -> String {
        let (database, path) = (DEMO.into(), "/archive".to_owned());
        let create = CreateArchive { database, cluster: "c1".into(), path, restored };
        self.apply(Role::Operator, Command::CreateArchive(create))
    }

    fn give_up(&mut self, archive: u64) -> String {
        let why = "lost".to_owned();
        self.apply(Role::Operator, Command::GiveUpArchive(GiveUpArchive { archive: ArchiveId(archive), why }))
    }

    fn resurrect(&mut self, archive: u64) -> String {
        self.apply(Role::Operator, Command::ResurrectArchive(ResurrectArchive { archive: ArchiveId(archive) }))
    }

    /// The storage manager `sm-N` registers, on the archive that a marker names, if it names one.
    fn register(&mut self, ordinal: u32, marker: Option<u64>) -> String {
        let asked = registration(ordinal, marker, self.0.index);
        self.apply(Role::Agent, Command::RegisterProcess(Box::new(asked)))
    }

    fn report(&mut self, process: u64, engine: EngineState) {
        let (process, session) = (StartId(process), SessionNumber(1));
        let said = self.apply(Role::Agent, Command::ReportState(ReportState { process, session, engine, pid: 1 }));
        assert_eq!(said, "Changed");
    }

    fn exit(&mut self, process: u64) {
        let (process, session, reason) = (StartId(process), SessionNumber(1), ExitReason::Graceful);
        let exit = ReportExit { process, session, exit_code: Some(0), reason };
        assert_eq!(self.apply(Role::Agent, Command::ReportExit(exit)), "Changed");
    }

    /// The resync of cluster c1 begins.
    fn lead(&mut self) -> Fence {
        let lease = Fact::LeaseIs { name: "kaa".to_owned(), uid: "L1".into() };
        let begin = BeginResync {
            cluster: "c1".into(),
            lease: "L1".into(),
            transitions: 1,
            holder: "admin-0".into(),
            evidence: Evidence { read_at: Millis(5), facts: vec![lease] },
        };
        self.apply(Role::ResyncLeader, Command::BeginResync(begin));
        let epoch = self.0.resync[&"c1".into()].epoch;
        Fence { cluster: "c1".into(), epoch }
    }

    /// The resync proposes to delete the database.
    fn resync_deletes(&mut self) -> String {
        let fence = self.lead();
        let evidence = Evidence { read_at: Millis(5), facts: unwanted() };
        let delete = DeleteDatabase { fence, database: DEMO.into(), evidence };
        self.apply(Role::ResyncLeader, Command::DeleteDatabase(delete))
    }

    fn database(&self) -> &Database {
        &self.0.databases[&DatabaseName::from(DEMO)]
    }

    fn last(&self, subject: Subject) -> String {
        self.0.audit.of(&subject).last().unwrap().text()
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn unwanted() -> Vec<Fact> {
    vec![Fact::AnchorIs { uid: "A1".into() }, Fact::DatabaseUnwanted { database: DEMO.into() }]
}

fn claim(ordinal: u32) -> Claim {
    let owner = Ordinal { stateful_set: "sm".to_owned(), uid: "S1".into(), ordinal };
    let (namespace, name) = ("default".to_owned(), format!("archive-volume-sm-{ordinal}"));
    Claim { namespace, name, uid: format!("C{ordinal}").into(), owner: Some(owner) }
}

fn registration(ordinal: u32, marker: Option<u64>, nonce: u64) -> Registration {
    let marker = marker.map(|id| crate::domain::archive::Marker { domain: "D1".into(), archive: ArchiveId(id) });
    Registration {
        database: DEMO.into(),
        kind: EngineKind::Sm,
        cluster: "c1".into(),
        identity: Identity {
            namespace: "default".to_owned(),
            pod: format!("sm-{ordinal}"),
            pod_uid: format!("P{nonce}").into(),
            container: "engine".to_owned(),
            nonce,
            started: Millis(nonce),
        },
        known_as: None,
        claim: Some(claim(ordinal)),
        marker,
        path: "/archive".to_owned(),
        server: "admin-0".into(),
        connection: nonce,
        about: About::default(),
        evidence: Some(Evidence { read_at: Millis(5), facts: vec![Fact::AnchorIs { uid: "A1".into() }] }),
        as_of: None,
    }
}

#[test]
fn a_database_is_created_once_and_its_options_have_bounds() {
    let mut tried = Tried::new();
    assert_eq!(tried.create(&[("mem", "1G")], false), "Changed");
    assert_eq!(tried.last(Subject::Database(DEMO.into())), "its options are mem");
    assert_eq!(tried.create(&[], false), "there is a database demo");
    assert_eq!(tried.create(&[("mem", "2G")], true), "Unchanged");
    assert_eq!(tried.configure(&[("ping-timeout", "60")], false), "Changed");
    assert_eq!(tried.database().options, map(&[("mem", "1G"), ("ping-timeout", "60")]));
    assert_eq!(tried.configure(&[("mem", "1G")], false), "Unchanged");
    assert_eq!(tried.configure(&[("mem", "3G")], true), "Changed");
    assert_eq!(tried.database().options, map(&[("mem", "3G")]));

    let many: Vec<(String, &str)> = (0..63).map(|n| (n.to_string(), "x")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    assert_eq!(tried.configure(&many, false), "Changed");
    let too_many = "options: there would be 65, and at most 64 are allowed";
    assert_eq!(tried.configure(&[("one-more", "x")], false), too_many);
    let long = "x".repeat(5000);
    assert!(tried.configure(&[("mem", &long)], true).starts_with("all options together: "), "of one change");

    let unnamed = CreateDatabase { database: "-".into(), options: map(&[]), may_exist: false };
    assert!(tried.apply(Role::Operator, Command::CreateDatabase(unnamed)).contains("cannot be the name"));
    for command in [
        Command::CreateDatabase(CreateDatabase { database: "d".into(), options: map(&[]), may_exist: false }),
        Command::ConfigureDatabase(ConfigureDatabase { database: DEMO.into(), options: map(&[]), replace_all: true }),
        Command::DropDatabase(DropDatabase {
            database: DEMO.into(),
            purge: false,
            cluster: "c1".into(),
            evidence: Evidence { read_at: Millis(5), facts: unwanted() },
        }),
        Command::CreateArchive(CreateArchive {
            database: DEMO.into(),
            cluster: "c1".into(),
            path: String::new(),
            restored: false,
        }),
        Command::ResurrectArchive(ResurrectArchive { archive: ArchiveId(1) }),
    ] {
        assert_eq!(tried.apply(Role::ResyncLeader, command), "only an operator may ask for this");
    }
}

#[test]
fn the_resync_leaves_a_database_alone_that_waits_for_its_first_engine() {
    let mut tried = Tried::new();
    tried.create(&[], false);
    let kept = "an operator created database demo, and no engine has registered for it yet";
    assert_eq!(tried.resync_deletes(), kept);
    assert!(tried.register(0, None).contains("process: StartId(1)"));
    tried.exit(1);
    tried.0.archives.clear();
    assert_eq!(tried.resync_deletes(), "Changed", "an engine registered, so it is like any other");
    assert_eq!(tried.create(&[("a", "b")], false), "Changed");
    assert!(tried.database().next_node.0 > 1 && tried.database().by_hand, "its node ids continue");
}

#[test]
fn a_database_is_deleted_by_hand_only_where_no_data_can_be_lost() {
    let mut tried = Tried::new();
    assert_eq!(tried.drop(false, unwanted()), "there is no database demo");
    tried.register(0, None);
    assert_eq!(tried.drop(false, unwanted()), "database demo still has process 1");
    tried.report(1, EngineState::Running);
    tried.exit(1);
    let gone = Fact::ClaimAbsent { name: claim(0).name };
    let with = |fact: &Fact| [unwanted(), vec![fact.clone()]].concat();
    assert_eq!(tried.drop(false, with(&gone)), "database demo still has archive 1", "it is not removed");
    let at = Millis(5);
    let because = RemovalReason::ScaledDown;
    let removal = crate::domain::archive::Removal { at, because, claim_gone: None, watched: None };
    tried.0.archives.get_mut(&ArchiveId(1)).unwrap().removed = Some(removal);
    let there = Fact::ClaimIs { name: claim(0).name, uid: "C0".into() };
    for unproven in [unwanted(), with(&there), vec![gone.clone(), unwanted()[1].clone()]] {
        let said = tried.drop(true, unproven.clone());
        assert!(said.contains("still has archive 1") || said.contains("Kubernetes"), "{said}: {unproven:?}");
    }
    let wanted = Fact::DatabaseWanted { database: DEMO.into(), by: "deployment te".to_owned() };
    let said = tried.drop(false, [with(&gone), vec![wanted]].concat());
    assert_eq!(said, "deployment te wants database demo");
    tried.0.archives.get_mut(&ArchiveId(1)).unwrap().cluster = "c2".into();
    assert_eq!(tried.drop(false, with(&gone)), "database demo still has archive 1", "it is another cluster's");
    tried.0.archives.get_mut(&ArchiveId(1)).unwrap().cluster = "c1".into();

    assert_eq!(tried.drop(false, with(&gone)), "Changed");
    assert_eq!((tried.database().state, tried.0.archives.len()), (DatabaseState::Tombstone, 0));
    let purged = "archive 1 purged: its claim archive-volume-sm-0 (C0) was deleted";
    assert!(tried.last(Subject::Archive(ArchiveId(1))).starts_with(purged));
    assert_eq!(tried.drop(false, Vec::new()), "Unchanged");
    assert_eq!(tried.configure(&[], true), "there is no database demo");
    assert_eq!(tried.archive(false), "there is no database demo");
    assert_eq!((tried.drop(true, Vec::new()).as_str(), tried.0.databases.len()), ("Changed", 0));
    assert_eq!((tried.0.tombstones.len(), tried.drop(true, Vec::new()).as_str()), (0, "there is no database demo"));
}

#[test]
fn an_archive_by_hand_does_not_count_as_the_one_that_a_database_keeps() {
    let mut tried = Tried::new();
    assert_eq!(tried.archive(false), "there is no database demo");
    tried.register(0, None);
    tried.report(1, EngineState::Running);
    assert_eq!(tried.archive(false), "ArchiveCreated(ArchiveId(2))");
    assert_eq!(tried.archive(true), "ArchiveCreated(ArchiveId(3))");
    tried.exit(1);
    assert_eq!(tried.give_up(1), "archive 1 is the last of its database");
    for archive in [2, 3] {
        assert_eq!(tried.give_up(archive), "Changed", "there is nothing to be lost but an id");
    }
    let forget = |archive| {
        let (why, evidence) = ("a slip".to_owned(), Evidence::default());
        Command::ForgetArchive(ForgetArchive { archive, why, cluster: None, evidence })
    };
    assert_eq!(tried.apply(Role::Operator, forget(ArchiveId(2))), "Changed");
    assert_eq!(tried.0.archives.keys().copied().collect::<Vec<_>>(), [ArchiveId(1), ArchiveId(3)]);
}

#[test]
fn scaling_down_keeps_the_last_archive_that_has_a_volume() {
    let mut tried = Tried::new();
    tried.register(0, None);
    tried.exit(1);
    tried.archive(false);
    let set =
        Fact::StatefulSetIs { name: "sm".to_owned(), uid: "S1".into(), generation: 2, replicas: 0, first_ordinal: 0 };
    let evidence = Evidence { read_at: Millis(5), facts: vec![unwanted()[0].clone(), set] };
    let (archive, claim, reason) = (ArchiveId(1), "C0".into(), RemovalReason::ScaledDown);
    let remove = RemoveArchive { fence: tried.lead(), archive, claim, reason, evidence };
    let said = tried.apply(Role::ResyncLeader, Command::RemoveArchive(remove));
    assert_eq!(said, "archive 1 is the last of its database");
}

#[test]
fn an_archive_by_hand_is_dropped_with_its_database_unless_the_operator_said_that_it_has_data() {
    let mut tried = Tried::new();
    tried.create(&[], false);
    tried.archive(true);
    assert_eq!(tried.drop(false, unwanted()), "database demo still has archive 1");
    assert_eq!(tried.give_up(1), "Changed");
    assert_eq!(tried.drop(false, unwanted()), "database demo still has archive 1", "its record says that it has data");
    let (why, evidence) = ("a slip".to_owned(), Evidence::default());
    let forget = ForgetArchive { archive: ArchiveId(1), why, cluster: None, evidence };
    tried.apply(Role::Operator, Command::ForgetArchive(forget));
    tried.archive(false);
    let entries = [("database/demo/prefilter".parse().unwrap(), Some("any".to_owned()))].into();
    assert_eq!(tried.apply(Role::Operator, Command::SetLoadBalancer(SetLoadBalancer { entries })), "Changed");
    assert_eq!(tried.drop(false, unwanted()), "Changed");
    assert!(tried.0.archives.is_empty() && tried.0.balancing.entries.is_empty());
}

#[test]
fn a_cold_start_waits_for_an_archive_by_hand_only_if_the_operator_said_that_it_has_data() {
    for (restored, waits) in [(false, false), (true, true)] {
        let mut tried = Tried::new();
        tried.register(0, None);
        tried.report(1, EngineState::Running);
        tried.exit(1);
        tried.archive(restored);
        tried.register(0, Some(1));
        let (process, session) = (StartId(2), SessionNumber(1));
        tried.apply(Role::Agent, Command::ReportHistory(ReportHistory { process, session, history: 0 }));
        let held = Held::Histories { archives: vec![ArchiveId(2)], removed: Vec::new() };
        assert_eq!(tried.0.may_start(process), if waits { Err(held) } else { Ok(Start::First) });
        if waits {
            // The way out.
            tried.give_up(2);
            assert_eq!(tried.0.may_start(process), Ok(Start::First));
        }
    }
}

#[test]
fn an_engine_whose_volume_names_an_archive_by_hand_registers_on_it_and_never_goes_before_data() {
    let mut tried = Tried::new();
    tried.register(0, None);
    tried.report(1, EngineState::Running);
    tried.exit(1);
    tried.archive(false);
    assert!(tried.register(1, Some(2)).contains("archive: Some(ArchiveId(2))"));
    let archive = &tried.0.archives[&ArchiveId(2)];
    assert!(!archive.by_hand && archive.claim == Some(claim(1)));
    let (process, session) = (StartId(2), SessionNumber(1));
    tried.apply(Role::Agent, Command::ReportHistory(ReportHistory { process, session, history: 9 }));
    let held = Held::Histories { archives: vec![ArchiveId(1)], removed: Vec::new() };
    assert_eq!(tried.0.may_start(process), Err(held));
}

#[test]
fn an_archive_by_hand_replaces_none_of_another_cluster() {
    for cluster in ["c1", "c2"] {
        let mut tried = Tried::new();
        tried.register(0, None);
        tried.report(1, EngineState::Running);
        tried.exit(1);
        tried.archive(false);
        let mut asked = registration(0, Some(2), tried.0.index);
        asked.cluster = cluster.into();
        asked.claim = Some(Claim { uid: "another".into(), ..claim(0) });
        let said = tried.apply(Role::Agent, Command::RegisterProcess(Box::new(asked)));
        assert!(said.contains("archive: Some(ArchiveId(2))"), "{said}");
        let kept = tried.0.archives.contains_key(&ArchiveId(1));
        assert_eq!(kept, cluster == "c2", "each cluster has claims of its own");
    }
}

#[test]
fn a_removed_archive_is_resurrected_unless_its_claim_is_gone() {
    let mut tried = Tried::new();
    assert_eq!(tried.resurrect(1), "there is no archive 1");
    for ordinal in 0..2 {
        tried.register(ordinal, None);
    }
    tried.exit(1);
    assert_eq!(tried.resurrect(1), "Unchanged");
    assert_eq!(tried.give_up(1), "Changed");
    assert_eq!(tried.resurrect(1), "Changed");
    assert_eq!(tried.last(Subject::Archive(ArchiveId(1))), "archive 1 resurrected");
    assert_eq!(tried.give_up(1), "Changed");
    let removed = tried.0.archives.get_mut(&ArchiveId(1)).unwrap().removed.as_mut().unwrap();
    removed.because = RemovalReason::ClaimDeleted;
    assert_eq!(tried.resurrect(1), "archive 1 cannot be resurrected: its claim is gone");
}
