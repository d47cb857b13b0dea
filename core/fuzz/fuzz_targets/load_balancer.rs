//! Whatever bytes a client sends as a query: they are refused, or they parse, print to the same, and choose a process that
//! is MONITORED. The first line is the query, the second one the value of the client's properties.
#![no_main]

use kaa_core::balancer::candidates::{Candidate, Candidates};
use kaa_core::balancer::choose::{Chance, Client, choose, suitable};
use kaa_core::balancer::explain::explain;
use kaa_core::balancer::policies::Route;
use kaa_core::balancer::query::{Filter, Query};
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::ids::{NodeId, ServerId, StartId};
use kaa_core::domain::process::{DurableState, EngineKind, EngineState};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let (text, value) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let _ = Filter::read(text);
    let Ok(query) = Query::read(text) else { return };
    let printed = query.to_string();
    // Where spaces are put in, it may become longer than a query may be.
    if let Ok(again) = printed.parse::<Query>() {
        assert_eq!(again.to_string(), printed);
    } else {
        assert!(printed.len() > kaa_core::balancer::parse::MAX_BYTES, "{printed}");
    }
    decide(&query, &String::from_utf8_lossy(value));
});

fn decide(query: &Query, value: &str) {
    let (server, none) = (ServerId::from("admin-0"), BTreeMap::new());
    let labels = BTreeMap::from([("zone".to_owned(), "z1".to_owned()), ("a".to_owned(), value.to_owned())]);
    let states = [DurableState::Requested, DurableState::Monitored, DurableState::RequestedShutdown];
    let all = (1..=12).map(|n: u64| Candidate {
        id: StartId(n),
        node: NodeId(n),
        kind: if n % 5 == 0 { EngineKind::Sm } else { EngineKind::Te },
        durable: states[n as usize % 3],
        engine: EngineState::Running,
        server: &server,
        live: n % 7 != 0,
        address: "10.0.0.1",
        hostname: "te",
        pid: 7,
        labels: if n % 2 == 0 { &labels } else { &none },
        ties: [("archive-pvc", None), ("container-id", None), ("pod-name", Some("te")), ("pod-uid", Some("u"))],
        options: &none,
    });
    let candidates = Candidates::new(all);
    let properties = ["zone", "a", "b"].map(|name| (name.to_owned(), value.to_owned())).into();
    let client = Client { properties: &properties, address: Some("10.0.0.1") };
    let (turns, route) = (Turns::default(), Route::by(query));
    let chance = Chance { turns: &turns, random: 3 };
    let told = explain(&route, &candidates, client, chance);
    assert_eq!(told.verdicts.len(), 12);
    let chosen = choose(&route, &candidates, client, chance);
    assert_eq!(chosen.is_none(), suitable(&route, &candidates, client).is_empty());
    // 1, 4, 7 and 10 are MONITORED; 10 is a storage manager and 7 is lost.
    assert!(chosen.is_none_or(|chosen| [1, 4].contains(&chosen.0)), "{chosen:?}");
}
