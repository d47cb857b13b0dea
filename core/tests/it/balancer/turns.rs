//! Round robin under concurrency, and its counters.

use super::process;
use kaa_core::balancer::candidates::{Candidate, Candidates};
use kaa_core::balancer::choose::{Chance, Client, choose};
use kaa_core::balancer::policies::Route;
use kaa_core::balancer::query::Query;
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::process::{EngineKind, Process};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

const THREADS: usize = 8;

/// How often each process was drawn by several threads at once. Each thread asks `times` times for each label in turn.
fn drawn(processes: u64, times: usize, zones: &[&str]) -> BTreeMap<u64, usize> {
    let all: Vec<Process> = (1..=processes)
        .map(|id| {
            let mut process = process(id, EngineKind::Te);
            process.about.labels.insert("zone".to_owned(), zones[id as usize % zones.len()].to_owned());
            process
        })
        .collect();
    let candidates = Candidates::new(all.iter().map(Candidate::from));
    let query: Query = "round_robin(label(zone ${zone}))".parse().unwrap();
    let (turns, route, together) = (Turns::default(), Route::by(&query), Barrier::new(THREADS));
    let ask = || {
        let clients: Vec<BTreeMap<String, String>> =
            zones.iter().map(|zone| BTreeMap::from([("zone".to_owned(), (*zone).to_owned())])).collect();
        together.wait();
        let asked = (0..times).flat_map(|_| &clients).map(|properties| {
            let client = Client { properties, address: None };
            choose(&route, &candidates, client, Chance { turns: &turns, random: 0 }).unwrap().0
        });
        asked.collect::<Vec<u64>>()
    };
    let mut drawn = BTreeMap::new();
    thread::scope(|scope| {
        let askers: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        for asker in askers {
            asker.join().unwrap().into_iter().for_each(|id| *drawn.entry(id).or_default() += 1);
        }
    });
    drawn
}

#[test]
fn concurrent_callers_get_each_process_as_often() {
    for (processes, times) in [(1, 10), (3, 125), (7, 1000), (100, 20)] {
        let counts: Vec<usize> = drawn(processes, times, &["z1"]).into_values().collect();
        let (asked, of) = (THREADS * times, processes as usize);
        assert_eq!((counts.iter().sum::<usize>(), counts.len()), (asked, of.min(asked)));
        let fair = |count: &usize| *count == asked / of || *count == asked.div_ceil(of);
        assert!(counts.iter().all(fair), "{asked} callers over {of}: {counts:?}");
    }
}

#[test]
fn clients_of_several_zones_take_no_turns_from_each_other() {
    let counts: Vec<usize> = drawn(4, 250, &["z1", "z2"]).into_values().collect();
    assert_eq!(counts, [THREADS * 125; 4]);
}

/// Two sets with the same counter would use up each other's turns.
#[test]
fn sets_spread_over_the_counters() {
    let all: Vec<Process> = (1..=64).map(|id| process(id, EngineKind::Te)).collect();
    let candidates = Candidates::new(all.iter().map(Candidate::from));
    let (turns, properties) = (Turns::default(), BTreeMap::new());
    let mut first = 0;
    for id in 1..=64 {
        for other in 1..=64 {
            let query: Query = format!("round_robin(not(start_id({id},{other})))").parse().unwrap();
            let client = Client { properties: &properties, address: None };
            let chosen = choose(&Route::by(&query), &candidates, client, Chance { turns: &turns, random: 0 });
            let lowest = (1..).find(|it| *it != id && *it != other);
            first += usize::from(chosen.map(|chosen| chosen.0) == lowest);
        }
    }
    // 2,080 sets, each drawn once or twice, over 4,096 counters: by chance about 1,600 of them find their counter
    // unused.
    assert!((1_400..=2_080).contains(&first), "{first} sets had their first turn");
}

#[test]
fn no_two_callers_get_the_same_turn() {
    const TIMES: u64 = 200_000;
    let (turns, together) = (Turns::default(), Barrier::new(THREADS));
    let take = || {
        together.wait();
        (0..TIMES).map(|_| turns.take(7)).sum::<u64>()
    };
    let taken: u64 = thread::scope(|scope| {
        let takers: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    let callers = THREADS as u64 * TIMES;
    assert_eq!((turns.next(7), taken), (callers, callers * (callers - 1) / 2), "a turn was given twice, or to nobody");
}
