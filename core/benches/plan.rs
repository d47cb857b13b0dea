//! How long one plan takes over a large cluster: `cargo bench -p kaa-core --bench plan`.
//!
//! Every tenth pod is a storage manager with an archive, the others are transaction engines; nothing is to be done, which
//! is the usual case and looks at everything.

use kaa_core::domain::Domain;
use kaa_core::domain::archive::{Claim, Ordinal};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Entry, Request, Role};
use kaa_core::domain::ids::{ContainerId, Millis, SessionNumber, StartId};
use kaa_core::domain::process::{About, EngineKind, EngineState, Identity, Registration};
use kaa_core::observed::Observed;
use kaa_core::observed::objects::{self, Container, Owner, Pod, Running, StatefulSet};
use kaa_core::resync::{Moment, Policy, plan};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: usize = 101;

fn main() {
    println!("{:>7} pods {:>6} archives  {:>12} {:>12} {:>14}", "", "", "median", "max", "per pod");
    for pods in [1_000, 2_000, 5_000, 10_000, 20_000] {
        let (domain, observed) = cluster(pods);
        let moment = Moment { now: domain.time, ..Moment::default() };
        let policy = Policy::new("c1".into(), "default".to_owned());
        let mut took: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                let plan = black_box(plan(&domain, &observed, &policy, &moment));
                let took = began.elapsed();
                assert!(plan.findings.is_empty() && plan.waiting.is_empty(), "{plan}");
                took
            })
            .collect();
        took.sort();
        let median = took[ROUNDS / 2];
        println!(
            "{pods:>7} pods {:>6} archives  {median:>12.1?} {:>12.1?} {:>11.0} ns",
            pods / 10,
            took[ROUNDS - 1],
            median.as_nanos() as f64 / pods as f64
        );
    }
}

fn cluster(pods: u64) -> (Domain, Observed) {
    let (mut domain, mut observed) = (Domain::default(), Observed::default());
    let mut index = 0;
    let mut apply = |domain: &mut Domain, command| {
        index += 1;
        let actor = Actor { role: Role::Agent, name: "bench".to_owned() };
        domain.apply(Entry { index, time: Millis(index), request: Request { actor, command } })
    };
    apply(
        &mut domain,
        Command::FoundDomain(change::FoundDomain { domain: "d".into(), name: "kaa".into(), anchor: "a".into() }),
    );
    let managers = pods / 10;
    observed.stateful_sets.list(StatefulSet {
        name: "sm".to_owned(),
        uid: "s".into(),
        replicas: u32::try_from(managers).expect("a number of pods"),
        ..StatefulSet::default()
    });
    for n in 0..pods {
        let manages = n < managers;
        let name = if manages { format!("sm-{n}") } else { format!("te-{n}") };
        let claim_name = format!("archive-volume-sm-{n}");
        let identity = Identity {
            namespace: "default".to_owned(),
            pod: name.clone(),
            pod_uid: format!("p{n}").into(),
            container: "engine".to_owned(),
            nonce: n,
            started: Millis(0),
        };
        let ordinal = u32::try_from(n).expect("a number of pods");
        let owner = Ordinal { stateful_set: "sm".to_owned(), uid: "s".into(), ordinal };
        let claim = Claim {
            namespace: "default".to_owned(),
            name: claim_name.clone(),
            uid: format!("c{n}").into(),
            owner: Some(owner),
        };
        let registration = Registration {
            database: "demo".into(),
            kind: if manages { EngineKind::Sm } else { EngineKind::Te },
            cluster: "c1".into(),
            identity,
            known_as: None,
            claim: manages.then_some(claim),
            marker: None,
            path: String::new(),
            server: "admin-0".into(),
            connection: n,
            about: About::default(),
            evidence: None,
            as_of: None,
        };
        apply(&mut domain, Command::RegisterProcess(Box::new(registration)));
        let (process, session, engine) = (StartId(n + 1), SessionNumber(1), EngineState::Running);
        apply(&mut domain, Command::ReportState(change::ReportState { process, session, engine, pid: 7 }));
        let (pod, container) = (format!("p{n}").into(), ContainerId::new(format!("k{n}")));
        apply(
            &mut domain,
            Command::LearnContainer(change::LearnContainer { process, pod, container: container.clone() }),
        );
        if manages {
            let uid = format!("c{n}").into();
            observed.claims.list(objects::Claim { name: claim_name.clone(), uid, ..objects::Claim::default() });
        }
        observed.pods.list(Pod {
            name,
            uid: format!("p{n}").into(),
            owner: manages.then(|| Owner { kind: "StatefulSet".to_owned(), name: "sm".to_owned(), uid: "s".into() }),
            archive_claim: manages.then_some(claim_name),
            containers: vec![Container {
                name: "engine".to_owned(),
                running: Some(Running { id: container, started: Millis(0) }),
                ended: Vec::new(),
            }],
            ..Pod::default()
        });
    }
    observed.stateful_sets.complete();
    observed.deployments.complete();
    observed.pods.complete();
    observed.claims.complete();
    (domain, observed)
}
