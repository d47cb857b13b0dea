//! How many decisions one thread takes in a second: `cargo bench -p kaa-core --bench route`.
//!
//! One database of 1,000 transaction engines in ten zones, on a hundred nodes, with the labels that the charts give them.
//! Each decision finds the client's query and pre-filters among the policies, as a request does; each client has other
//! properties than the one before.

use kaa_core::balancer::candidates::{Candidate, Candidates};
use kaa_core::balancer::choose::{Chance, Client, choose};
use kaa_core::balancer::policies::Policies;
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::ids::{NodeId, ServerId, StartId};
use kaa_core::domain::process::{DurableState, EngineKind, EngineState};
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
    let labels: Vec<BTreeMap<String, String>> = (0..CANDIDATES).map(labels).collect();
    let (server, options) = (ServerId::from("admin-0"), BTreeMap::new());
    let texts: Vec<(String, String)> = (0..CANDIDATES).map(|n| (format!("10.0.{n}.1"), format!("te-{n}"))).collect();
    let all = || {
        (0..CANDIDATES).map(|n| Candidate {
            id: StartId(n + 1),
            node: NodeId(n + 1),
            kind: EngineKind::Te,
            durable: DurableState::Monitored,
            engine: EngineState::Running,
            server: &server,
            live: true,
            address: &texts[n as usize].0,
            hostname: &texts[n as usize].1,
            pid: 7,
            labels: &labels[n as usize],
            options: &options,
        })
    };
    let began = Instant::now();
    let candidates = Candidates::new(all());
    println!("{CANDIDATES} candidates, prepared in {:.1?}, {DECISIONS} decisions of each", began.elapsed());
    let mut policies = Policies::default();
    policies.named.insert("nearest".to_owned(), NEAREST.parse().expect("a query"));
    policies.global.prefilter = Some("not(label(region tiebreaker))".parse().expect("a filter"));
    println!("{:<26} {:>12} {:>10} {:>10} {:>10}", "", "decisions/s", "p50", "p99", "max");
    for (name, properties) in REQUESTS {
        measure(name, properties, &policies, &candidates);
    }
}

fn measure(name: &str, properties: &[(&str, &str)], policies: &Policies, candidates: &Candidates) {
    let (turns, database) = (Turns::default(), "demo".into());
    let clients: Vec<BTreeMap<String, String>> = (0..100)
        .map(|n| {
            properties.iter().map(|(key, value)| ((*key).to_owned(), value.replace('#', &n.to_string()))).collect()
        })
        .collect();
    let mut took: Vec<Duration> = (0..DECISIONS)
        .map(|n| {
            let began = Instant::now();
            let client = Client { properties: &clients[n as usize % clients.len()], address: None };
            let route = policies.route(&database, client).expect("a route");
            // Any number will do.
            let chance = Chance { turns: &turns, random: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
            assert!(black_box(choose(&route, candidates, client, chance)).is_some());
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
