//! Candidates are prepared once and used until a process changes. After that they must not be used.

use crate::script::World;
use kaa_core::balancer::candidates::Candidates;
use kaa_core::balancer::choose::{Client, suitable};
use kaa_core::balancer::policies::Route;
use kaa_core::balancer::query::Query;
use std::collections::BTreeMap;

/// Each line, and whether candidates that were prepared before this line are still those of the database after it.
const STORY: [(&str, bool); 25] = [
    ("found", true),
    ("lead admin-0", true),
    ("pod te-a uid=PA running=ka@100", true),
    ("pod te-b uid=PB running=kb@100", true),
    ("pod sm-demo-0 uid=P0 running=k0@100", true),
    ("pod sm-other-0 uid=PO running=ko@100", true),
    ("register sm sm-demo-0 unread", false),
    ("state 1 RUNNING", false),
    ("register te te-a", false),
    ("state 2 RUNNING", false),
    ("state 2 RUNNING", true),
    ("register sm sm-other-0 unread database=other", true),
    ("state 3 RUNNING", true),
    ("register te te-b database=other", true),
    ("state 4 RUNNING", true),
    ("set key value", true),
    // Containers become known, those of the database too.
    ("pass", false),
    ("pass", true),
    ("pause", true),
    ("lose 2", false),
    ("register te te-a known-as=2 connection=7", false),
    ("register te te-a known-as=2 connection=8 on=admin-1", false),
    ("stop 2", false),
    ("evict 4", true),
    ("evict 2", false),
];

#[test]
fn candidates_are_current_until_a_process_of_their_database_changes() {
    let (mut world, database) = (World::default(), "demo".into());
    for (line, current) in STORY {
        let before = Candidates::of(&world.domain, &database);
        let answer = world.run(line);
        assert!(!answer.contains("refused"), "{line}: {answer}");
        assert_eq!(before.are_of(&world.domain, &database), current, "after {line}: {answer}");
        let now = Candidates::of(&world.domain, &database);
        assert!(now.are_of(&world.domain, &database), "prepared after {line}");
        assert_eq!((now.len(), now.is_empty()), (count(&world), count(&world) == 0));
    }
}

fn count(world: &World) -> usize {
    world.domain.processes.values().filter(|process| process.database.as_str() == "demo").count()
}

#[test]
fn only_the_processes_of_the_database_are_candidates() {
    let mut world = World::default();
    for (line, _) in &STORY[..16] {
        world.run(line);
    }
    let (query, properties): (Query, _) = ("random(any)".parse().unwrap(), BTreeMap::new());
    let client = Client { properties: &properties, address: None };
    let found = |database: &str| {
        let candidates = Candidates::of(&world.domain, &database.into());
        suitable(&Route::by(&query), &candidates, client).iter().map(|id| id.0).collect::<Vec<_>>()
    };
    assert_eq!([found("demo"), found("other"), found("another")], [vec![2], vec![4], vec![]]);
}
