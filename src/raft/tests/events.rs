//! The audit trail in snapshots: what was kept once must be readable forever.
//!
//! `KAA_REWRITE_GOLDEN=1` writes the file again, which is right only for lines that are new.

use crate::raft::wire::{decode, encode};
use kaa_core::domain::archive::{Ordinal, RemovalReason};
use kaa_core::domain::audit::{Record, Subject};
use kaa_core::domain::balancing::Object;
use kaa_core::domain::change::{GrantReason, Progress};
use kaa_core::domain::database::DatabaseState;
use kaa_core::domain::event::{
    ArchiveEvent, ClaimName, DatabaseEvent, DomainEvent, Event, LoadBalancerEvent, ProcessEvent, ReplicationEvent,
    RestoredFrom, ServerEvent, TaskEvent, ValueEvent,
};
use kaa_core::domain::ids::{
    ArchiveId, Generation, MembershipEpoch, Millis, Permission, ProtocolId, RaftId, ResyncEpoch, SessionNumber,
    SetVersion, StartId, SystemId, TaskId,
};
use kaa_core::domain::process::{DurableState, EngineKind, EngineState, ExitReason, Handicap, Stop};
use kaa_core::domain::protocol::Protocol;
use kaa_core::domain::replicated::{Begins, Data, FailoverMode, Position, Settings, WhenAlone};
use kaa_core::domain::task::{ProtocolUpgrade, StepKind, TaskKind};
use std::collections::BTreeSet;
use std::path::Path;

fn of_the_domain() -> Vec<DomainEvent> {
    let why = || "why".to_owned();
    let (wanted, epoch) = (Some(3), MembershipEpoch(2));
    let servers = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<BTreeSet<_>>();
    vec![
        DomainEvent::Founded { name: "kaa".to_owned(), domain: "D1".into() },
        DomainEvent::Restored(RestoredFrom {
            name: "kaa".to_owned(),
            domain: "D0".into(),
            index: 70_000,
            time: Millis(1_795_278_622_045),
            checksum: "c0ffee".to_owned(),
            databases: 1,
            archives: 2,
            values: 3,
            without: BTreeSet::from([ArchiveId(3)]),
        }),
        DomainEvent::AnchorAdopted { anchor: "A2".into(), before: "A1".into(), why: why() },
        DomainEvent::ClusterAnchored { cluster: "west".into(), anchor: "uid-west".into() },
        DomainEvent::ClusterForgotten { cluster: "west".into(), why: why() },
        DomainEvent::LossAccepted { epoch, founder: "admin-0".into(), at: Millis(5), lost: "entries".to_owned() },
        DomainEvent::VotersChanged {
            epoch: Some(epoch),
            left: servers(&["admin-3"]),
            came: servers(&["admin-1", "admin-2"]),
            voters: servers(&["admin-0", "admin-1", "admin-2"]),
            wanted,
        },
        DomainEvent::ResyncBegun { holder: "admin-0".into(), cluster: "c1".into(), epoch: ResyncEpoch(17) },
        DomainEvent::ResyncPaused { why: why() },
        DomainEvent::ResyncResumed { by: "user ann".to_owned(), why: why() },
    ]
}

fn of_archives() -> Vec<ArchiveEvent> {
    let (archive, by, why) = (ArchiveId(2), ArchiveId(3), || "why".to_owned());
    let claim = || ClaimName { name: "archive-volume-sm-0".to_owned(), uid: "C0".into() };
    let owner = Some(Ordinal { stateful_set: "sm".to_owned(), uid: "S1".into(), ordinal: 2 });
    vec![
        ArchiveEvent::Created { archive, database: "demo".into(), claim: Some(claim()) },
        ArchiveEvent::Bound { archive, resurrected: true, claim: Some(claim()) },
        ArchiveEvent::Owned { archive, owner },
        ArchiveEvent::Displaced { archive, by, kept: true },
        ArchiveEvent::Superseded { archive, by, was_removed: false },
        ArchiveEvent::Removed { archive, reason: RemovalReason::GivenUp, why: Some(why()) },
        ArchiveEvent::ClaimGone { archive, claim: claim().name },
        ArchiveEvent::Purged { archive, claim: claim() },
        ArchiveEvent::Forgotten { archive, why: why() },
    ]
}

fn of_processes() -> Vec<ProcessEvent> {
    let (process, session, why) = (StartId(300), SessionNumber(2), || "why".to_owned());
    let server = || "admin-1".into();
    vec![
        ProcessEvent::Registered { process, kind: EngineKind::Sm, pod: "sm-0".to_owned(), archive: Some(ArchiveId(2)) },
        ProcessEvent::SessionOpened { session, server: server(), from: Some("admin-0".into()) },
        ProcessEvent::SessionLost { session, server: server(), why: why() },
        ProcessEvent::StateChanged { durable: DurableState::Monitored, engine: EngineState::Running },
        ProcessEvent::HistoryReported { history: 1 << 40 },
        ProcessEvent::RanAfter { entry: 70_000 },
        ProcessEvent::ContainerLearned { container: "cri".into() },
        ProcessEvent::StopAsked { how: Stop::Kill },
        ProcessEvent::Exited { process, reason: ExitReason::Exited(why()), exit_code: Some(137) },
        ProcessEvent::ZoneLearned { zone: "eu-west-1a".to_owned() },
    ]
}

fn of_balancing() -> [Event; 5] {
    let (object, text) = (|| Object::Deployment("te".to_owned()), || "random(any)".to_owned());
    [
        LoadBalancerEvent::Set { text: text() },
        LoadBalancerEvent::Removed,
        LoadBalancerEvent::Annotated { object: object(), text: text() },
        LoadBalancerEvent::AnnotationGone { object: object() },
        LoadBalancerEvent::Synced { stateful_set: "admin".to_owned() },
    ]
    .map(Event::from)
}

/// One of each kind.
fn events() -> Vec<Event> {
    let database = || "demo".into();
    let of_servers = [
        ServerEvent::Joined { log: RaftId(7) },
        ServerEvent::LogReplaced { log: RaftId(8), before: RaftId(7) },
        ServerEvent::Described { address: "admin-1:48005".to_owned(), version: "0.1.0".to_owned() },
        ServerEvent::Removed { server: "admin-1".into() },
    ];
    let of_databases = [
        DatabaseEvent::Created { database: database(), again: true },
        DatabaseEvent::Changed { state: DatabaseState::Running },
        DatabaseEvent::Deleted { database: database() },
        DatabaseEvent::Forgotten { database: database() },
        DatabaseEvent::ProtocolKnown { protocol: protocol(1_376_256) },
        DatabaseEvent::ProtocolRaised { from: protocol(1_376_256), to: protocol(1_441_792) },
        DatabaseEvent::Configured { options: vec!["mem".to_owned()] },
        DatabaseEvent::Purged { database: database() },
    ];
    let domain = of_the_domain().into_iter().map(Event::from);
    let rest = of_servers.into_iter().map(Event::from).chain(of_databases.into_iter().map(Event::from));
    let rest =
        rest.chain(of_archives().into_iter().map(Event::from)).chain(of_processes().into_iter().map(Event::from));
    let rest = rest.chain([ValueEvent::Set.into(), ValueEvent::Deleted.into()]);
    let rest = rest.chain(of_balancing()).chain(of_tasks().into_iter().map(Event::from));
    domain.chain(rest).chain(of_replication().into_iter().map(Event::from)).collect()
}

fn of_replication() -> Vec<ReplicationEvent> {
    let (archive, why, version, permission) = (ArchiveId(2), || "why".to_owned(), SetVersion(23), Permission(4));
    let (system, generation) = (SystemId(7_451_234_567_890_123_456), Generation(7));
    let (stateful_set, uid, when_alone) = ("shop".to_owned(), "uid".into(), WhenAlone::Block);
    let settings = Settings {
        stateful_set,
        uid,
        replicas: 3,
        synchronous: 1,
        when_alone,
        failover: FailoverMode::Manual,
        preferred_zone: None,
    };
    let begins = Begins { generation, parent: Generation(6), at: Position(0x7_3A01_48B8) };
    let reason = GrantReason::Failover { why: why(), may_run: true };
    let (from, sync_set) = (Some(ArchiveId(3)), vec![archive, ArchiveId(300)]);
    vec![
        ReplicationEvent::Set { settings },
        ReplicationEvent::DataReported { archive, data: Data::Initialized { system, highest: generation } },
        ReplicationEvent::Initializes { archive },
        ReplicationEvent::Adopted { archive, system, why: why() },
        ReplicationEvent::Granted { generation, archive, from, sync_set, reason },
        ReplicationEvent::Progressed {
            generation,
            archive,
            what: Progress::Promoted { begins, before: vec![begins], keeps_lease: false },
        },
        ReplicationEvent::Heard { generation, archive, silent: Some(Position(0x7_3A01_48B8)) },
        ReplicationEvent::Handicap { archive, handicap: Handicap { short_of_room: true, replays_late: true } },
        ReplicationEvent::Joins { archive, version },
        ReplicationEvent::Joined { archive, version },
        ReplicationEvent::Left { archive, version, why: why() },
        ReplicationEvent::MayBeOverwritten { archive, permission, why: why() },
        ReplicationEvent::Whole { archive, permission },
        ReplicationEvent::SetBack { archive, start: StartId(4), confirmed: StartId(9) },
        ReplicationEvent::Discarded { archive, why: why() },
        ReplicationEvent::SwitchoverRequested { to: Some(archive), why: why() },
        ReplicationEvent::SwitchoverCancelled { why: why() },
    ]
}

fn protocol(id: u64) -> Protocol {
    Protocol { id: ProtocolId(id), name: "4.2|4.3".to_owned() }
}

fn of_tasks() -> Vec<TaskEvent> {
    let (task, why) = (TaskId(7), || "why".to_owned());
    let upgrade = ProtocolUpgrade {
        database: "demo".into(),
        deployment: "te".to_owned(),
        uid: "uid".into(),
        from: protocol(1_376_256),
        to: protocol(1_441_792),
        release: "4.3.1".to_owned(),
        engine: StartId(8),
        query: Some("random(any)".to_owned()),
    };
    vec![
        TaskEvent::Begun { task, kind: Box::new(TaskKind::ProtocolUpgrade(upgrade)), reason: why() },
        TaskEvent::Advanced { task, step: 1, what: StepKind::RaiseVersion, last: false },
        TaskEvent::Failed { task, why: why() },
        TaskEvent::Cancelled { task, done: 2, why: why() },
    ]
}

#[test]
fn every_event_ever_kept_can_be_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/audit/v1.jsonl");
    let events = events();
    assert_eq!(events.iter().map(Event::name).collect::<Vec<_>>(), Event::names(), "an event has no sample");
    let json = |event: &Event| serde_json::to_string(event).unwrap();
    if std::env::var_os("KAA_REWRITE_GOLDEN").is_some() {
        std::fs::write(&path, events.iter().map(|event| json(event) + "\n").collect::<String>()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(kept.lines().collect::<Vec<_>>(), events.iter().map(json).collect::<Vec<_>>());
    for (line, event) in kept.lines().zip(&events) {
        assert_eq!(serde_json::from_str::<Event>(line).unwrap(), *event);
        assert_eq!(decode::<Event>(&encode(event).unwrap(), "an event").unwrap(), *event);
    }
}

#[test]
fn a_sentence_of_an_earlier_version_is_kept_as_it_is() {
    let kept = serde_json::json!({
        "index": 14,
        "at": 5,
        "actor": { "role": "ResyncLeader", "name": "admin-0" },
        "subjects": [{ "Archive": 2 }],
        "what": "archive 2 removed: its claim was deleted",
        "evidence": { "read_at": 4, "facts": [{ "ClaimAbsent": { "name": "c-2" } }] },
    });
    let record: Record = decode(&encode(&kept).unwrap(), "a record").unwrap();
    assert_eq!(record.text(), "archive 2 removed: its claim was deleted");
    assert_eq!((record.index, &record.subjects[..]), (14, &[Subject::Archive(ArchiveId(2))][..]));
    let again: Record = decode(&encode(&record).unwrap(), "a record").unwrap();
    assert_eq!(again, record);
}
