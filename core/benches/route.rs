//! How many decisions one thread takes in a second: `cargo bench -p kaa-core --bench route`.
//!
//! One database of 1,000 transaction engines in ten zones, on a hundred nodes, with the labels that the charts give them.
//! Each decision finds the client's query and pre-filters among the policies, as a request does; each client has other
//! properties than the one before.

use kaa_core::balancer::choose::{Chance, Client, choose};
use kaa_core::balancer::prepared::Prepared;
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::Domain;
use kaa_core::domain::balancing::{Annotated, Entry, Item, Object};
use kaa_core::domain::database::{Database, DatabaseState, Incarnation};
use kaa_core::domain::ids::{Millis, NodeId, SessionNumber, StartId};
use kaa_core::domain::process::{
    About, DurableState, EngineKind, EngineState, Identity, Process, Session, SessionState,
};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

const CANDIDATES: u64 = 1_000;
const DECISIONS: u64 = 20_000;

const NEAREST: &str = "random(first(label(pod ${pod:-}) label(node ${node:-}) label(zone ${zone:-}) any))";

/// What is measured, and the client's properties; `#` is replaced by a number below 100.
const REQUESTS: [(&str, &[(&str, &str)]); 6] = [
    ("default: any at random", &[]),
    ("nearest, found by node", &[("LBPolicy", "nearest"), ("pod", "p-#"), ("node", "n-#")]),
    ("nearest, nothing found", &[("LBPolicy", "nearest"), ("pod", "p-#"), ("node", "x-#"), ("zone", "x-#")]),
    ("round robin over all", &[("LBQuery", "round_robin(any)")]),
    ("inline: a zone by prefix", &[("LBQuery", "round_robin(and(label(zone z*) not(label(zone z1,z2))))")]),
    ("inline: eight labels", &[("LBQuery", EIGHT)]),
];

const EIGHT: &str = "random(first(and(label(pod-name *x) label(pod-uid *x)) and(or(label(zone x) label(region r)) \
                     label(node *-#)) or(label(host x) label(node y) label(zone *)) any))";

fn main() {
    let mut domain = domain();
    let set = |domain: &mut Domain, item: Item, text: &str| {
        let annotated =
            Annotated { text: text.to_owned(), cluster: "c1".into(), object: Object::StatefulSet("admin".to_owned()) };
        domain.balancing.entries.insert(item, Entry { annotated: Some(annotated), manual: None });
        domain.balancing.changed += 1;
    };
    set(&mut domain, Item::Policy("nearest".to_owned()), NEAREST);
    set(&mut domain, Item::Prefilter(None), "not(label(region tiebreaker))");
    let began = Instant::now();
    Prepared::default().of(&domain, &"demo".into());
    println!("{CANDIDATES} candidates, prepared in {:.1?}, {DECISIONS} decisions of each", began.elapsed());
    println!("{:<26} {:>12} {:>10} {:>10} {:>10}", "", "decisions/s", "p50", "p99", "max");
    for (name, properties) in REQUESTS {
        measure(name, properties, &domain);
    }
}

fn domain() -> Domain {
    let mut domain = Domain::default();
    let database = Database {
        name: "demo".into(),
        state: DatabaseState::Running,
        incarnation: Incarnation::default(),
        next_node: NodeId(CANDIDATES + 1),
        created: Millis(0),
        stopping_since: None,
        protocol: None,
        options: Default::default(),
        by_hand: false,
        judged: BTreeMap::new(),
        replicated: None,
    };
    domain.databases.insert("demo".into(), database);
    domain.processes = (0..CANDIDATES).map(|n| (StartId(n + 1), process(n))).collect();
    domain
}

fn process(n: u64) -> Process {
    Process {
        id: StartId(n + 1),
        node: NodeId(n + 1),
        database: "demo".into(),
        kind: EngineKind::Te,
        archive: None,
        cluster: "c1".into(),
        identity: Identity {
            namespace: "ns".to_owned(),
            pod: format!("te-{n}"),
            pod_uid: format!("uid-{n}").into(),
            container: "engine".to_owned(),
            nonce: n,
            started: Millis(0),
        },
        container_id: None,
        session: Session {
            server: "admin-0".into(),
            number: SessionNumber(1),
            connection: n,
            state: SessionState::Live,
        },
        durable: DurableState::Monitored,
        engine: EngineState::Running,
        about: About {
            address: format!("10.0.{n}.1"),
            hostname: format!("te-{n}"),
            port: 48006,
            pid: 7,
            version: String::new(),
            protocols: Default::default(),
            labels: labels(n),
            zone: None,
        },
        registered: Millis(0),
        entry: 0,
        stop: None,
        started: None,
        history: None,
        claim_unread: false,
        interrupted: None,
        data: None,
        handicap: Default::default(),
    }
}

/// The whole decision, as an agent makes it: what is prepared is compared with the domain first.
fn measure(name: &str, properties: &[(&str, &str)], domain: &Domain) {
    let (turns, database, mut prepared) = (Turns::default(), "demo".into(), Prepared::default());
    let clients: Vec<BTreeMap<String, String>> = (0..100)
        .map(|n| {
            properties.iter().map(|(key, value)| ((*key).to_owned(), value.replace('#', &n.to_string()))).collect()
        })
        .collect();
    let mut took: Vec<Duration> = (0..DECISIONS)
        .map(|n| {
            let began = Instant::now();
            let client = Client { properties: &clients[n as usize % clients.len()], address: None };
            let (policies, candidates) = prepared.of(domain, &database);
            let route = policies.route(&database, client).expect("a route");
            // Any number will do.
            let chance = Chance { turns: &turns, random: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
            let chosen = choose(&route, &candidates, client, chance);
            assert!(black_box(chosen.and_then(|id| domain.processes.get(&id))).is_some());
            began.elapsed()
        })
        .collect();
    let total: Duration = took.iter().sum();
    took.sort();
    let at = |share: usize| took[took.len() * share / 100];
    let a_second = DECISIONS as f64 / total.as_secs_f64();
    println!("{name:<26} {a_second:>12.0} {:>10.1?} {:>10.1?} {:>10.1?}", at(50), at(99), took[took.len() - 1]);
}

fn labels(n: u64) -> BTreeMap<String, String> {
    let labels = [
        ("pod-name", format!("te-{n}")),
        ("pod-uid", format!("5f0c9b0e-4b5a-4c65-8d0c-{n:012}")),
        ("container-id", format!("{n:064}")),
        ("host", format!("te-{n}")),
        ("node", format!("n-{}", n % 100)),
        ("zone", format!("z{}", n % 10)),
        ("region", "r".to_owned()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
