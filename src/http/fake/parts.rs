//! What a made-up agent answers: its peers, plan, membership and recovery.

use super::*;

pub(super) fn scale_down() -> Command {
    let set = Fact::StatefulSetIs {
        name: "sm-demo".to_owned(),
        uid: "set-sm-demo".into(),
        generation: 2,
        replicas: 1,
        first_ordinal: 0,
    };
    let facts = vec![Fact::AnchorIs { uid: "anchor-1".into() }, set];
    Command::RemoveArchive(change::RemoveArchive {
        fence: Fence { cluster: "main".into(), epoch: ResyncEpoch(5) },
        archive: ArchiveId(2),
        claim: "claim-sm-demo-1".into(),
        reason: RemovalReason::ScaledDown,
        evidence: Evidence { read_at: Millis(START + 14_500), facts },
    })
}

pub(super) fn peer(ordinal: u64, membership: Membership, connected: bool) -> Peer {
    let local = ordinal == 0;
    let status = Status {
        address: format!("admin-{ordinal}.nuodb.default.svc.cluster.local:48005"),
        cluster: "main".to_owned(),
        epoch: 1,
        raft_id: 100 + ordinal,
        role: Some(if local { "LEADER" } else { "FOLLOWER" }.to_owned()),
        lifecycle: "ACTIVE".to_owned(),
        leader: Some("admin-0".to_owned()),
        term: 2,
        last_log_term: 2,
        last_log_index: if connected { 20 } else { 16 },
        commit_index: if connected { 20 } else { 16 },
        applied_index: if connected { 20 } else { 16 },
        version: "0.1.0".to_owned(),
        quorum: connected,
        resync_leader: Some("admin-0".to_owned()),
        hears: BTreeMap::new(),
        reached: BTreeMap::new(),
    };
    Peer {
        id: ServerId::new(format!("admin-{ordinal}")),
        is_local: local,
        membership,
        connected,
        latency: connected.then_some(Duration::from_micros(700 * ordinal)),
        last_ack: Some(if connected { Duration::from_millis(840 * ordinal) } else { Duration::from_secs(95) }),
        status: Some(status),
    }
}

pub(super) fn plan() -> PlanReport {
    let finding = Finding {
        subject: Subject::Archive(ArchiveId(2)),
        command: Command::PurgeArchive(change::PurgeArchive {
            fence: Fence::default(),
            archive: ArchiveId(2),
            claim: "claim-sm-demo-1".into(),
            evidence: Evidence::default(),
        }),
        text: "purge archive 2: its claim archive-volume-sm-demo-1 was deleted".to_owned(),
        needs: vec![Need::Claim("archive-volume-sm-demo-1".to_owned()), Need::Anchor],
        guards: Vec::new(),
    };
    let lost = Waiting { subject: Subject::Process(StartId(3)), reason: WaitingReason::ContainerUnknown };
    PlanReport {
        leading: true,
        resync_leader: Some("admin-0".into()),
        epoch: Some(ResyncEpoch(5)),
        plan: Plan { findings: vec![finding], waiting: vec![lost] },
        missing_permissions: Vec::new(),
        synced: true,
        last_pass: Some(LastPass {
            at: Millis(START + 15_000),
            lines: vec!["archive/2: removed, its StatefulSet was scaled down".to_owned()],
        }),
    }
}

/// What Kubernetes shows of it: StatefulSet `sm-demo` wants three of its storage managers again, of which the second
/// has not started yet.
pub(super) fn observed() -> Observed {
    let mut observed = Observed::default();
    observed.stateful_sets.list(StatefulSet {
        name: "sm-demo".to_owned(),
        uid: "set-sm-demo".into(),
        generation: 3,
        replicas: 3,
        templates: vec!["archive-volume".to_owned()],
        ..StatefulSet::default()
    });
    observed.stateful_sets.list(StatefulSet {
        name: "admin".to_owned(),
        uid: "set-admin".into(),
        replicas: 2,
        templates: vec!["raftlog".to_owned()],
        ..StatefulSet::default()
    });
    for ordinal in 0..3 {
        let (name, database) = (format!("archive-volume-sm-demo-{ordinal}"), None);
        let uid = format!("claim-sm-demo-{ordinal}").into();
        observed.claims.list(objects::Claim { name, uid, deleting: false, database });
        let name = format!("raftlog-admin-{ordinal}");
        let uid = format!("claim-admin-{ordinal}").into();
        observed.claims.list(objects::Claim { name, uid, deleting: false, database: None });
    }
    let owner = Owner { kind: "StatefulSet".to_owned(), name: "sm-demo".to_owned(), uid: "set-sm-demo".into() };
    for name in ["sm-demo-0", "sm-demo-2", "te-demo-5c9f7-x2b4k", "te-demo-5c9f7-p8w9z"] {
        let manages = name.starts_with("sm-");
        observed.pods.list(Pod {
            name: name.to_owned(),
            uid: format!("uid-{name}").into(),
            owner: manages.then(|| owner.clone()),
            archive_claim: manages.then(|| format!("archive-volume-{name}")),
            ..Pod::default()
        });
    }
    observed.stateful_sets.complete();
    observed.deployments.complete();
    observed.claims.complete();
    observed.pods.complete();
    observed
}

/// Two voters, and one that was scaled down.
pub(super) fn membership() -> MembershipReport {
    let evicted = Awaited::Evicted { replicas: 2 };
    MembershipReport {
        epoch: MembershipEpoch(1),
        voters: vec!["admin-0".into(), "admin-1".into()],
        learners: vec!["admin-2".into()],
        warnings: vec![warnings::Warning::Even { voters: 2 }],
        waiting: vec![Awaits { code: evicted.code(), server: Some("admin-2".into()), words: evicted.to_string() }],
    }
}

/// Another anchor than the one that the domain was founded with.
pub(crate) fn anchor(domain: &str) -> ReadAnchor {
    let evidence = Evidence { read_at: Millis(START), facts: vec![Fact::AnchorIs { uid: "anchor-2".into() }] };
    ReadAnchor { name: "nuodb-main-anchor".to_owned(), uid: "anchor-2".into(), domain: domain.into(), evidence }
}

/// One of three is wanted and left.
pub(super) fn recover() -> RecoverAnswer {
    let (id, wanted, votes) = ("admin-0".to_owned(), true, true);
    let (raft_id, role) = ("100".to_owned(), Some("FOLLOWER".to_owned()));
    let left = RecoverServer {
        id,
        wanted,
        votes,
        raft_id,
        role,
        epoch: 1,
        last_term: 3,
        last_index: 17,
        ..Default::default()
    };
    let away = |id: &str| RecoverServer {
        id: id.to_owned(),
        votes: true,
        silent: Some(format!("no answer from {id}.nuodb.default.svc.cluster.local:48005")),
        ..RecoverServer::default()
    };
    let readable = Retired {
        server: "admin-1".to_owned(),
        domain: Some("d-1".to_owned()),
        name: "retired-2-77".to_owned(),
        epoch: 2,
        raft_id: "77".to_owned(),
        last_term: Some(2),
        last_index: Some(15),
        unreadable: None,
    };
    let (name, unreadable) = ("retired-1-76".to_owned(), Some("it is damaged".to_owned()));
    let server = "admin-0".to_owned();
    let damaged = Retired { server, name, epoch: 1, raft_id: "76".to_owned(), unreadable, ..Retired::default() };
    RecoverAnswer {
        name: "nuodb".to_owned(),
        domain: "d-1".to_owned(),
        epoch: 3,
        anchor_epoch: 3,
        server: "admin-0".to_owned(),
        servers: vec![left, away("admin-1"), away("admin-2")],
        founder: Some("admin-0".to_owned()),
        last_index: 17,
        lost: Some("entries after 17 that only admin-1, admin-2 may hold".to_owned()),
        outside: vec!["admin-1".to_owned(), "admin-2".to_owned()],
        retired: vec![readable, damaged],
        unlisted: vec!["admin-2: no answer".to_owned()],
        ..RecoverAnswer::default()
    }
}
