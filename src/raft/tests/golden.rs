//! The bytes of every kind of log entry: what was written once must be readable forever.
//!
//! `KAA_REWRITE_GOLDEN=1` writes the file again, which is right only for lines that are new.

mod replication;

use crate::raft::types::{Entry, LogId, Proposal, TypeConfig};
use crate::raft::wire::{Error, VERSION, decode, encode};
use crate::raft::{Node, snapshot};
use kaa_core::domain::archive::{Claim, Marker, Ordinal, RemovalReason};
use kaa_core::domain::balancing::{Item, Object};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Expected, Fence, Request, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{
    ArchiveId, MembershipEpoch, Millis, NodeId, ProtocolId, RaftId, ResyncEpoch, SessionNumber, StartId, TaskId,
};
use kaa_core::domain::process::{About, EngineKind, EngineState, ExitReason, Identity, Registration, Stop};
use kaa_core::domain::protocol::Protocol;
use kaa_core::domain::server::Server;
use kaa_core::domain::snapshot::{FORMAT, KeptArchive, KeptDatabase, KeptRemoval, Place, Restore, Snapshot};
use kaa_core::domain::task::{ProtocolUpgrade, StepKind, TaskKind};
use kaa_core::domain::voters::Voters;
use openraft::EntryPayload;
use openraft::vote::RaftLeaderId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A command's name, as the file has it.
fn camel_case(name: &str) -> String {
    let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
    name.split('_').map(capital).collect()
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("zone".to_owned(), "a".to_owned())])
}

/// The facts that a later version added.
fn database_evidence() -> Evidence {
    let (database, stateful_set) = (|| "demo".into(), || "sm".to_owned());
    let facts = vec![
        Fact::DatabaseUnwanted { database: database() },
        Fact::DatabaseWanted { database: database(), by: "pod te".to_owned() },
        Fact::PurgeHeld { stateful_set: stateful_set() },
        Fact::WorkloadPaused { stateful_set: stateful_set() },
    ];
    Evidence { read_at: Millis(1), facts }
}

/// Facts that were added after those.
fn archive_evidence() -> Evidence {
    let (name, uid) = (|| "name".to_owned(), || "uid".into());
    let facts = vec![
        Fact::ClaimIs { name: name(), uid: uid() },
        Fact::PodOwnedBy { pod_uid: uid(), stateful_set: name(), uid: uid() },
        Fact::PodWithoutArchive { pod_uid: uid() },
    ];
    Evidence { read_at: Millis(1), facts }
}

/// Facts about the workloads of a database.
fn workload_evidence() -> Evidence {
    let (database, workload) = (|| "demo".into(), || "deployment te".to_owned());
    let asked =
        |query| Fact::UpgradeAsked { database: database(), deployment: "te".to_owned(), uid: "uid".into(), query };
    let facts = vec![
        Fact::Settled { database: database(), pods: BTreeMap::from([("sm-0".to_owned(), "uid".into())]) },
        Fact::RollingOut { database: database(), workload: workload() },
        Fact::UpgradePaused { database: database(), workload: workload() },
        asked(None),
        asked(Some("random(any)".to_owned())),
    ];
    Evidence { read_at: Millis(1), facts }
}

/// Every fact of the first version.
fn evidence() -> Evidence {
    let (name, uid) = (|| "name".to_owned(), || "uid".into());
    let facts = vec![
        Fact::AnchorIs { uid: uid() },
        Fact::LeaseIs { name: name(), uid: uid() },
        Fact::ClaimAbsent { name: name() },
        Fact::PodAbsent { name: name() },
        Fact::PodIs { name: name(), uid: uid() },
        Fact::ContainerEnded { pod_uid: uid(), container: name(), id: "cri".into(), exit_code: Some(137) },
        Fact::ContainerEnded { pod_uid: uid(), container: name(), id: "cri".into(), exit_code: None },
        Fact::ContainerRuns { pod_uid: uid(), container: name(), id: "cri".into(), started: Millis(5) },
        Fact::StatefulSetIs { name: name(), uid: uid(), generation: -1, replicas: 3, first_ordinal: 5 },
    ];
    Evidence { read_at: Millis(1_795_278_622_045), facts }
}

fn registration() -> Registration {
    let owner = Ordinal { stateful_set: "sm".to_owned(), uid: "uid-ss".into(), ordinal: 1 };
    let (namespace, name) = ("db".to_owned(), "archive-volume-sm-1".to_owned());
    Registration {
        database: "demo".into(),
        kind: EngineKind::Sm,
        cluster: "c1".into(),
        identity: Identity {
            namespace: "db".to_owned(),
            pod: "sm-1".to_owned(),
            pod_uid: "uid-pod".into(),
            container: "engine".to_owned(),
            nonce: u64::MAX,
            started: Millis(7),
        },
        known_as: Some(StartId(4)),
        claim: Some(Claim { namespace, name, uid: "uid-claim".into(), owner: Some(owner) }),
        marker: Some(Marker { domain: "d1".into(), archive: ArchiveId(2) }),
        path: "/archive".to_owned(),
        evidence: Some(evidence()),
        as_of: None,
        server: "admin-0".into(),
        connection: 99,
        about: About {
            address: "10.0.0.1".to_owned(),
            hostname: "sm-1".to_owned(),
            port: 48006,
            pid: 12,
            version: "1.2.3".to_owned(),
            labels: labels(),
            protocols: BTreeMap::new(),
            zone: None,
        },
    }
}

/// The registration of an engine that reports its protocol versions.
fn with_protocols() -> Registration {
    let mut registration = registration();
    registration.about.protocols = BTreeMap::from([(ProtocolId(1_376_256), "4.2".to_owned())]);
    registration
}

/// The registration of an engine whose pod names its zone.
fn with_zone() -> Registration {
    let mut registration = registration();
    registration.about.zone = Some("eu-west-1a".to_owned());
    registration
}

fn server() -> Server {
    Server {
        id: "admin-1".into(),
        cluster: "c1".into(),
        address: "admin-1.admin:48005".to_owned(),
        raft_id: RaftId(0xfeed_beef_0000_0001),
        version: "0.1.0".to_owned(),
        labels: labels(),
        joined: Millis(0),
    }
}

fn restore() -> Restore {
    let was = Place { cluster: "c0".into(), namespace: "db".to_owned(), claim: "archive-volume-sm-1".to_owned() };
    let archive = |id, removed, was| KeptArchive {
        id: ArchiveId(id),
        database: "demo".into(),
        path: "/archive".to_owned(),
        ever_ran: true,
        outdated: false,
        removed,
        created: Millis(7),
        was,
        by_hand: false,
    };
    let removed = KeptRemoval { at: Millis(9), because: RemovalReason::ClaimDeleted };
    let (major, minor, next_node, created) = (3, 1, NodeId(300), Millis(5));
    let database = KeptDatabase {
        name: "demo".into(),
        deleted: false,
        major,
        minor,
        next_node,
        created,
        protocol: None,
        options: BTreeMap::new(),
        by_hand: false,
    };
    let snapshot = Snapshot {
        domain: "d0".into(),
        name: "nuo".to_owned(),
        index: 70_000,
        time: Millis(1_795_278_622_045),
        databases: vec![database],
        archives: vec![archive(1, None, Some(was)), archive(2, Some(removed), None)],
        values: labels(),
        load_balancer: BTreeMap::new(),
        last_archive: ArchiveId(2),
        last_start: StartId(300),
        origins: BTreeMap::from([("d".into(), BTreeSet::from([ArchiveId(1)]))]),
    };
    let without = BTreeSet::from([ArchiveId(2)]);
    Restore { format: FORMAT, checksum: "c0ffee".to_owned(), cluster: "c1".into(), without, snapshot }
}

fn commands() -> Vec<Command> {
    let (process, session) = (StartId(300), SessionNumber(2));
    let fence = || Fence { cluster: "c1".into(), epoch: ResyncEpoch(17) };
    let (archive, claim) = (ArchiveId(3), || "uid-claim".into());
    vec![
        Command::FoundDomain(change::FoundDomain {
            domain: "d1".into(),
            name: "nuo".to_owned(),
            anchor: "uid-lease".into(),
        }),
        Command::AdmitServer(change::AdmitServer { server: server() }),
        Command::BeginResync(change::BeginResync {
            cluster: "c1".into(),
            lease: "uid-lease".into(),
            transitions: 70_000,
            holder: "admin-2".into(),
            evidence: evidence(),
        }),
        Command::RegisterProcess(Box::new(registration())),
        Command::LoseSession(change::LoseSession { process, session, why: "silent for 30 s".to_owned() }),
        Command::ReportState(change::ReportState { process, session, engine: EngineState::Running, pid: 12 }),
        Command::LearnContainer(change::LearnContainer { process, pod: "uid-pod".into(), container: "cri".into() }),
        Command::ReportExit(change::ReportExit {
            process,
            session,
            exit_code: Some(-1),
            reason: ExitReason::Exited("why".to_owned()),
        }),
        Command::RemoveProcess(change::RemoveProcess {
            fence: fence(),
            process,
            session,
            reason: ExitReason::Restarted(StartId(301)),
            evidence: Evidence::default(),
        }),
        Command::RemoveArchive(change::RemoveArchive {
            fence: fence(),
            archive,
            claim: claim(),
            reason: RemovalReason::ScaledDown,
            evidence: evidence(),
        }),
        Command::PurgeArchive(change::PurgeArchive {
            fence: fence(),
            archive,
            claim: claim(),
            evidence: Evidence::default(),
        }),
        Command::SetValue(change::SetValue {
            key: "k".to_owned(),
            value: None,
            expected: Expected::Value("v".to_owned()),
        }),
        Command::StopProcess(change::StopProcess { process, how: Stop::Kill }),
        Command::EvictProcess(change::EvictProcess { process }),
    ]
}

/// The rest of those of the first version.
fn more_commands() -> Vec<Command> {
    let (process, session) = (StartId(300), SessionNumber(2));
    let fence = || Fence { cluster: "c1".into(), epoch: ResyncEpoch(17) };
    let (archive, claim) = (ArchiveId(3), || "uid-claim".into());
    vec![
        Command::NoteClaimGone(change::NoteClaimGone {
            fence: fence(),
            archive,
            claim: claim(),
            evidence: Evidence::default(),
        }),
        Command::DeleteDatabase(change::DeleteDatabase {
            fence: fence(),
            database: "demo".into(),
            evidence: database_evidence(),
        }),
        Command::PauseResync(change::PauseResync { why: "the storage is being moved".to_owned() }),
        Command::ResumeResync,
        Command::AdoptAnchor(change::AdoptAnchor {
            known: "uid-lease".into(),
            anchor: "uid-other".into(),
            why: "restored".to_owned(),
            cluster: None,
            evidence: Evidence::default(),
        }),
        Command::ReportHistory(change::ReportHistory { process, session, history: 1 << 40 }),
        Command::RemoveServer(change::RemoveServer {
            fence: fence(),
            server: "admin-2".into(),
            raft_id: RaftId(0xfeed_beef_0000_0003),
            owner: Ordinal { stateful_set: "admin".to_owned(), uid: "uid-set".into(), ordinal: 2 },
            evidence: Evidence::default(),
        }),
        Command::AcceptLoss(change::AcceptLoss {
            epoch: MembershipEpoch(2),
            founder: "admin-0".into(),
            at: Millis(1_795_278_622_045),
            lost: "entries after 17 that only admin-1 may hold".to_owned(),
        }),
        Command::RestoreDomain(Box::new(restore())),
        Command::NoteVoters(change::NoteVoters {
            voters: Voters { epoch: MembershipEpoch(2), since: 70_000, servers: ["admin-0".into()].into() },
            wanted: Some(1),
        }),
    ]
}

/// Those that were added after the first version.
fn later_commands() -> Vec<Command> {
    let (process, session) = (StartId(300), SessionNumber(2));
    let fence = || Fence { cluster: "c1".into(), epoch: ResyncEpoch(17) };
    let (archive, claim) = (ArchiveId(3), || "uid-claim".into());
    vec![
        Command::ConfirmRunning(change::ConfirmRunning { process, session, as_of: 70_000 }),
        Command::GiveUpArchive(change::GiveUpArchive { archive, why: "its node is lost".to_owned() }),
        Command::ForgetArchive(change::ForgetArchive {
            archive,
            why: "its node is lost".to_owned(),
            cluster: None,
            evidence: archive_evidence(),
        }),
        Command::LearnOwner(change::LearnOwner {
            fence: fence(),
            archive,
            claim: claim(),
            process,
            owner: Ordinal { stateful_set: "sm".to_owned(), uid: "uid-set".into(), ordinal: 1 },
            evidence: Evidence::default(),
        }),
        Command::ForgetServer(change::ForgetServer {
            server: "admin-2".into(),
            raft_id: None,
            cluster: None,
            evidence: archive_evidence(),
        }),
        Command::ForgetServer(change::ForgetServer {
            server: "admin-2".into(),
            raft_id: Some(RaftId(0xfeed_beef_0000_0002)),
            cluster: Some("c1".into()),
            evidence: archive_evidence(),
        }),
        Command::ForgetArchive(change::ForgetArchive {
            archive,
            why: "its node is lost".to_owned(),
            cluster: Some("c1".into()),
            evidence: archive_evidence(),
        }),
        Command::RegisterProcess(Box::new(Registration { as_of: Some(70_000), ..registration() })),
    ]
}

/// Those of tasks and upgrades.
fn task_commands() -> Vec<Command> {
    let fence = || Fence { cluster: "c1".into(), epoch: ResyncEpoch(17) };
    let protocol = |id, name: &str| Protocol { id: ProtocolId(id), name: name.to_owned() };
    let (task, why) = (TaskId(7), || "not now".to_owned());
    let upgrade = |query: Option<&str>| ProtocolUpgrade {
        database: "demo".into(),
        deployment: "te".to_owned(),
        uid: "uid".into(),
        from: protocol(1_376_256, "4.2"),
        to: protocol(1_441_792, "4.3"),
        release: "4.3.1".to_owned(),
        engine: StartId(8),
        query: query.map(str::to_owned),
    };
    let begin = |query| change::BeginTask {
        fence: fence(),
        kind: TaskKind::ProtocolUpgrade(upgrade(query)),
        reason: "an annotation asks for it".to_owned(),
        evidence: workload_evidence(),
    };
    let advance = |step, what| change::AdvanceTask { fence: fence(), task, step, what, evidence: Evidence::default() };
    let mut restore = restore();
    restore.snapshot.databases.iter_mut().for_each(|database| database.protocol = Some(protocol(1_376_256, "4.2")));
    vec![
        Command::RegisterProcess(Box::new(with_protocols())),
        Command::BeginTask(Box::new(begin(Some("random(any)")))),
        Command::BeginTask(Box::new(begin(None))),
        Command::AdvanceTask(advance(1, StepKind::RaiseVersion)),
        Command::AdvanceTask(advance(2, StepKind::StopEngine)),
        Command::AdvanceTask(advance(3, StepKind::AwaitEngine)),
        Command::FailTask(change::FailTask { fence: fence(), task, why: why() }),
        Command::CancelTask(change::CancelTask { task, why: why() }),
        Command::UpgradeDatabase(change::UpgradeDatabase {
            database: "demo".into(),
            to: Some(ProtocolId(1_441_792)),
            cluster: None,
            evidence: workload_evidence(),
        }),
        Command::RestoreDomain(Box::new(restore)),
    ]
}

fn options() -> BTreeMap<String, String> {
    BTreeMap::from([("ping-timeout".to_owned(), "60".to_owned())])
}

/// With what an operator created by hand.
fn restore_by_hand() -> Restore {
    let mut restore = restore();
    let Snapshot { databases, archives, .. } = &mut restore.snapshot;
    for database in databases {
        (database.options, database.by_hand) = (options(), true);
    }
    archives.iter_mut().for_each(|archive| archive.by_hand = true);
    restore
}

/// Those of databases and archives by hand.
fn by_hand_commands() -> Vec<Command> {
    let archive = ArchiveId(3);
    vec![
        Command::CreateDatabase(change::CreateDatabase {
            database: "demo".into(),
            options: options(),
            may_exist: true,
        }),
        Command::ConfigureDatabase(change::ConfigureDatabase {
            database: "demo".into(),
            options: options(),
            replace_all: true,
        }),
        Command::DropDatabase(change::DropDatabase {
            database: "demo".into(),
            purge: true,
            cluster: "c1".into(),
            evidence: database_evidence(),
        }),
        Command::CreateArchive(change::CreateArchive {
            database: "demo".into(),
            cluster: "c1".into(),
            path: "/archive".to_owned(),
            restored: true,
        }),
        Command::ResurrectArchive(change::ResurrectArchive { archive }),
        Command::RestoreDomain(Box::new(restore_by_hand())),
    ]
}

fn entry(index: u64, payload: EntryPayload<Proposal, u64, Node>) -> Entry {
    let leader = openraft::alias::LeaderIdOf::<TypeConfig>::new((2 << 32) + 3, 0xfeed_beef_0000_0001).to_committed();
    Entry { log_id: LogId::new(leader, index), payload }
}

/// Those of several clusters.
fn cluster_commands() -> Vec<Command> {
    let (cluster, epoch) = (|| "west".into(), ResyncEpoch(17));
    vec![
        Command::AnchorCluster(change::AnchorCluster {
            cluster: cluster(),
            anchor: "uid-west".into(),
            founded_in: "east".into(),
        }),
        Command::JudgeDatabase(change::JudgeDatabase {
            fence: Fence { cluster: cluster(), epoch },
            database: "demo".into(),
            wanted: false,
            settled: true,
            evidence: workload_evidence(),
        }),
        Command::ForgetCluster(change::ForgetCluster { cluster: cluster(), why: "burnt".to_owned() }),
        Command::AdoptAnchor(change::AdoptAnchor {
            known: "uid-west".into(),
            anchor: "uid-other".into(),
            why: "restored".to_owned(),
            cluster: Some(cluster()),
            evidence: Evidence::default(),
        }),
        Command::UpgradeDatabase(change::UpgradeDatabase {
            database: "demo".into(),
            to: None,
            cluster: Some(cluster()),
            evidence: workload_evidence(),
        }),
    ]
}

/// Those of load balancing.
fn balancing_commands() -> Vec<Command> {
    let fence = || Fence { cluster: "c1".into(), epoch: ResyncEpoch(17) };
    let (item, text) = (|| Item::Prefilter(Some("demo".into())), || "not(label(zone dr))".to_owned());
    let object = || Object::Deployment("te".to_owned());
    let facts = vec![
        Fact::AnnotationSays { object: object(), item: item(), text: Some(text()) },
        Fact::AnnotationSays { object: Object::StatefulSet("admin".to_owned()), item: Item::Default(None), text: None },
        Fact::SyncsFully { stateful_set: "admin".to_owned() },
    ];
    let evidence = || Evidence { read_at: Millis(1), facts: facts.clone() };
    let remove = |origin| {
        Command::RemoveLoadBalancer(change::RemoveLoadBalancer {
            fence: fence(),
            item: item(),
            origin,
            evidence: evidence(),
        })
    };
    let entries = [(Item::Policy("nearest".to_owned()), Some("random(any)".to_owned())), (item(), None)];
    vec![
        Command::SetLoadBalancer(change::SetLoadBalancer { entries: entries.into() }),
        Command::AnnotateLoadBalancer(change::AnnotateLoadBalancer {
            fence: fence(),
            item: item(),
            text: text(),
            object: object(),
            evidence: evidence(),
        }),
        remove(change::Unset::Annotated(object())),
        remove(change::Unset::Manual { stateful_set: "admin".to_owned() }),
    ]
}

/// Every kind of entry.
fn samples() -> Vec<(String, Entry)> {
    let roles = [Role::Agent, Role::ResyncLeader, Role::RaftLeader, Role::Operator];
    let mut samples: Vec<_> = commands()
        .into_iter()
        .chain(more_commands())
        .chain(later_commands())
        .chain(balancing_commands())
        .chain(task_commands())
        .chain(by_hand_commands())
        .chain(cluster_commands())
        .chain(replication::commands())
        .zip(roles.into_iter().cycle())
        .zip(1..)
        .map(|((command, role), index)| {
            let name = camel_case(command.name());
            let request = Request { actor: Actor { role, name: "admin-0".to_owned() }, command };
            let time = Millis(1_795_278_622_045);
            (name, entry(index, EntryPayload::Normal(Proposal { time, request })))
        })
        .collect();
    samples.push(("Blank".to_owned(), entry(400, EntryPayload::Blank)));
    let node = |server: &str| Node { server: server.to_owned(), address: format!("{server}:48005") };
    let nodes = BTreeMap::from([(5, node("a")), (u64::MAX, node("b")), (7, node("c"))]);
    let halves = vec![BTreeSet::from([5]), BTreeSet::from([5, u64::MAX])];
    let membership = openraft::Membership::new(halves, nodes).unwrap();
    samples.push(("Membership".to_owned(), entry(70_000, EntryPayload::Membership(membership))));
    samples
}

#[test]
fn every_entry_ever_written_can_be_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/log/v1.txt");
    let samples = samples();
    let names: BTreeSet<_> = samples.iter().map(|(name, _)| name.as_str()).collect();
    assert!(Command::NAMES.iter().all(|name| names.contains(camel_case(name).as_str())), "a command has no sample");
    if std::env::var_os("KAA_REWRITE_GOLDEN").is_some() {
        let line = |(name, entry): &(String, Entry)| format!("{name} {}\n", snapshot::hex(&encode(entry).unwrap()));
        std::fs::write(&path, samples.iter().map(line).collect::<String>()).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let golden: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(golden.len(), samples.len());
    for ((name, entry), (known, bytes)) in samples.iter().zip(golden) {
        assert_eq!(name, known);
        let decoded: Entry = decode(&unhex(bytes), name).unwrap();
        assert_eq!(decoded, *entry, "{name}");
        assert_eq!(snapshot::hex(&encode(entry).unwrap()), bytes, "{name}");
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn what_is_not_understood_is_told_from_what_is_damaged() {
    let bytes = encode(&samples()[11].1).unwrap();
    let changed = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        [&bytes[..at], to, &bytes[at + from.len()..]].concat()
    };
    let read = |bytes: &[u8]| decode::<Entry>(bytes, "log entry 17").unwrap_err();

    let newer = read(&changed(b"SetValue", b"Unheard!"));
    assert!(newer.is_newer() && matches!(newer, Error::NotUnderstood { .. }), "{newer:?}");
    assert!(newer.to_string().starts_with("log entry 17 was written by a newer agent: "), "{newer}");

    let newer = read(&[&[VERSION + 1], &bytes[1..]].concat());
    assert!(newer.is_newer() && matches!(newer, Error::NewerFormat { found: 2, .. }), "{newer:?}");

    assert!(matches!(read(&bytes[..bytes.len() - 3]), Error::Damaged { .. }));
    assert!(matches!(read(&[]), Error::Empty { .. }));
}
