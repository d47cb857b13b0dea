//! Random texts, trees, processes and clients.
//!
//! `a_second_evaluator_finds_the_same`: pairs of a query and processes, each with its own seed. `KAA_SEED=n
//! KAA_PAIRS=1` repeats one pair, `KAA_PAIRS=n` runs this number of pairs instead of the number of the tier.

use super::{naive, process};
use crate::seed;
use kaa_core::balancer::candidates::{Candidate, Candidates};
use kaa_core::balancer::choose::{Chance as Draw, Client, choose, listed, suitable};
use kaa_core::balancer::explain::{Why, explain};
use kaa_core::balancer::parse::{Expected, MAX_BYTES, MAX_DEPTH};
use kaa_core::balancer::policies::{Origin, Route, Scope};
use kaa_core::balancer::query::{Alternative, Field, Filter, Pattern, Piece, Query, Selector, Test, Value};
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::ids::Millis;
use kaa_core::domain::process::{DurableState, EngineKind, EngineState, Process, SessionState};
use proptest::collection::vec;
use proptest::prelude::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use testkit::chance::number;
use testkit::{Chance, tier};

const NAMES: [&str; 4] = ["zone", "node", "pod-name", "role"];
const VALUES: [&str; 7] = ["z1", "z2", "z12", "1", "z", "te-1", ""];
/// The values of clients' properties; a client may send anything.
const PROPERTIES: [&str; 9] = ["z1", "z2", "1", "", "*", "z1,z2", "z*", "${zone}", "z1) any"];
const FIELDS: [&str; 6] = ["start_id", "server_id", "node_id", "pid", "address", "hostname"];

fn one<'a>(chance: &mut Chance, of: &[&'a str]) -> &'a str {
    of[chance.below(of.len())]
}

/// A text as a user may write it, and as the parser prints it.
struct Text {
    written: String,
    printed: String,
}

impl Text {
    fn both(&mut self, text: &str) {
        self.written += text;
        self.printed += text;
    }

    fn space(&mut self, chance: &mut Chance) {
        self.written += one(chance, &["", "", "", "", " ", "  ", "\n", "\t "]);
    }
}

fn value(chance: &mut Chance, text: &mut Text) {
    for _ in 0..=chance.below(2) {
        match chance.below(5) {
            0 => text.both(&format!("${{{}}}", one(chance, &NAMES))),
            1 => text.both(&format!("${{{}:-{}}}", one(chance, &NAMES), one(chance, &VALUES))),
            _ => text.both(one(chance, &VALUES[..VALUES.len() - 1])),
        }
    }
}

fn pattern(chance: &mut Chance, text: &mut Text) {
    for n in 0..=chance.below(3) {
        if n > 0 {
            text.space(chance);
            text.both(",");
            text.space(chance);
        }
        match chance.below(8) {
            0 => text.both("*"),
            1 => text.both(&format!("${{{}:-*}}", one(chance, &NAMES))),
            2 => {
                text.both("*");
                value(chance, text);
            }
            3 => {
                value(chance, text);
                text.both("*");
            }
            _ => value(chance, text),
        }
    }
}

fn filter(chance: &mut Chance, depth: u32, text: &mut Text) {
    text.space(chance);
    let inner = if depth == 0 { 0 } else { chance.below(4) };
    match chance.below(10) {
        _ if inner > 0 => {
            let word = one(chance, &["not", "and", "or", "first", "first"]);
            text.both(word);
            text.space(chance);
            text.both("(");
            for n in 0..if word == "not" { 1 } else { inner } {
                if n > 0 {
                    text.both(" ");
                }
                filter(chance, depth - 1, text);
            }
            text.space(chance);
            text.both(")");
        }
        0 => text.both("any"),
        1 => text.both("colocated"),
        2..=5 => {
            let word = one(chance, &["label", "label", "label", "option"]);
            text.both(word);
            text.space(chance);
            text.both("(");
            text.space(chance);
            text.both(one(chance, &NAMES));
            text.both(" ");
            text.space(chance);
            pattern(chance, text);
            text.space(chance);
            text.both(")");
        }
        _ => {
            text.both(one(chance, &FIELDS));
            text.space(chance);
            text.both("(");
            text.space(chance);
            pattern(chance, text);
            text.space(chance);
            text.both(")");
        }
    }
}

fn a_filter(chance: &mut Chance) -> Text {
    let mut text = Text { written: String::new(), printed: String::new() };
    let depth = chance.below(4) as u32;
    filter(chance, depth, &mut text);
    text.space(chance);
    text
}

fn a_process(chance: &mut Chance, id: u64) -> Process {
    let mut process = process(id, if chance.below(6) == 0 { EngineKind::Sm } else { EngineKind::Te });
    let usual = |chance: &mut Chance| chance.below(5) > 0;
    if !usual(chance) {
        process.durable = [DurableState::Requested, DurableState::RequestedShutdown][chance.below(2)];
    }
    if !usual(chance) {
        process.engine = [EngineState::Unknown, EngineState::Syncing, EngineState::ShuttingDown][chance.below(3)];
    }
    if !usual(chance) {
        process.session.state = SessionState::Lost(Millis(1));
    }
    process.session.server = one(chance, &VALUES[..6]).into();
    process.about.address = one(chance, &VALUES).to_owned();
    process.about.hostname = one(chance, &VALUES).to_owned();
    process.about.pid = chance.below(3) as u32;
    for name in NAMES {
        if chance.coin() {
            process.about.labels.insert(name.to_owned(), one(chance, &VALUES).to_owned());
        }
    }
    process
}

fn processes(chance: &mut Chance) -> Vec<Process> {
    // Now and then more than the bits of a word.
    let count = if chance.below(20) == 0 { 60 + chance.below(80) } else { chance.below(8) };
    let mut id = 0;
    let next = |_| {
        id += 1 + chance.below(3) as u64;
        a_process(chance, id)
    };
    (0..count).map(next).collect()
}

/// Runs one pair. Panics with what is wrong.
fn pair(seed: u64) {
    let mut chance = Chance::of(seed);
    let processes = processes(&mut chance);
    let prefilters: Vec<Text> = (0..chance.below(3)).map(|_| a_filter(&mut chance)).collect();
    let filter = a_filter(&mut chance);
    let selector = one(&mut chance, &["random", "round_robin"]);
    let written = format!("{selector}({})", filter.written);
    let query: Query = written.parse().unwrap_or_else(|error| panic!("{written}: {error}"));
    let printed = format!("{selector}({})", filter.printed);
    assert_eq!(query.to_string(), printed, "printed");
    assert_eq!(printed.parse::<Query>().unwrap(), query.to_string().parse().unwrap(), "parsed again");

    let set = NAMES.iter().filter(|_| chance.coin()).copied().collect::<Vec<_>>();
    let properties = set.into_iter().map(|name| (name.to_owned(), one(&mut chance, &PROPERTIES).to_owned()));
    let properties: BTreeMap<String, String> = properties.collect();
    let address = chance.coin().then(|| one(&mut chance, &VALUES[..6]));
    let client = Client { properties: &properties, address };
    let world = naive::World { processes: &processes, properties: &properties, address };
    let parsed: Vec<Filter> = prefilters.iter().map(|text| text.written.parse().unwrap()).collect();
    let scopes = [Scope::Global, Scope::Database];
    let route = Route {
        prefilters: scopes.into_iter().zip(&parsed).collect(),
        query: Cow::Borrowed(&query),
        origin: Origin::Inline,
    };
    let candidates = Candidates::new(processes.iter().map(Candidate::from));
    let texts: Vec<String> = prefilters.iter().map(|text| text.written.clone()).collect();

    let found: BTreeSet<u64> = suitable(&route, &candidates, client).iter().map(|id| id.0).collect();
    assert_eq!(found, world.suitable(&texts, &written), "suitable for {written}\nafter {texts:?}\nclient {client:?}");
    assert!(found.is_subset(&world.offered()), "offered");
    let all = processes.iter().map(|process| process.id.0).collect();
    let in_list: BTreeSet<u64> = listed(&query.filter, &candidates, client).iter().map(|id| id.0).collect();
    assert_eq!(in_list, world.passes(&filter.written, &all), "listed");

    let (turns, random) = (Turns::default(), chance.number());
    let explained = explain(&route, &candidates, client, Draw { turns: &turns, random });
    let chosen = choose(&route, &candidates, client, Draw { turns: &turns, random });
    let count = found.len() as u64;
    let nth = if selector == "random" { random } else { 0 }.checked_rem(count);
    assert_eq!(chosen.map(|id| id.0), nth.and_then(|nth| found.iter().nth(nth as usize).copied()), "chosen");
    for verdict in explained.verdicts {
        let chosen = chosen == Some(verdict.process);
        let drawn = matches!(verdict.why, Why::Chosen { .. });
        let suits = drawn || matches!(verdict.why, Why::NotDrawn { .. });
        let offered = !matches!(verdict.why, Why::NotOffered(_));
        let id = verdict.process.0;
        let truth = (chosen, found.contains(&id), world.offered().contains(&id));
        assert_eq!((drawn, suits, offered), truth, "explained: {id}: {}", verdict.why);
    }
}

#[test]
fn a_second_evaluator_finds_the_same() {
    let count = number("KAA_PAIRS").unwrap_or(tier().of(2_000, 10_000, 100_000, 1_000_000));
    let first = number("KAA_SEED").unwrap_or_else(testkit::chance::fresh);
    eprintln!("KAA_SEED={first} KAA_PAIRS={count}");
    for n in 0..count {
        let seed = first.wrapping_add(n);
        let again = format!("KAA_SEED={seed} KAA_PAIRS=1 cargo test -p kaa-core --test it a_second_evaluator");
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| pair(seed))) {
            eprintln!("again: {again}");
            std::panic::resume_unwind(why);
        }
    }
}

fn pieces() -> impl Strategy<Value = Value> {
    let variable = ("[a-zA-Z0-9_-]{1,4}", proptest::option::of("[a-z0-9.:_-]{0,3}"));
    // Two adjacent texts would be one.
    let piece = prop_oneof![
        2 => "[a-zA-Z0-9.:_-]{1,5}".prop_map(Piece::Text),
        1 => variable.prop_map(|(name, default)| Piece::Variable { name, default }),
    ];
    vec(piece, 1..4).prop_map(|mut pieces| {
        pieces.dedup_by(|next, before| matches!((next, before), (Piece::Text(_), Piece::Text(_))));
        Value(pieces)
    })
}

fn a_tree() -> impl Strategy<Value = Filter> {
    let alternative = prop_oneof![
        Just(Alternative::Anything),
        pieces().prop_map(Alternative::Exactly),
        pieces().prop_map(Alternative::Begins),
        pieces().prop_map(Alternative::Ends),
        "[a-zA-Z0-9_-]{1,4}".prop_map(Alternative::ClientsOrAnything),
    ];
    let named = prop_oneof![
        "[a-zA-Z0-9_-]{1,4}".prop_map(Field::Label),
        "[a-zA-Z0-9_-]{1,4}".prop_map(Field::Option),
        proptest::sample::select(vec![
            Field::StartId,
            Field::ServerId,
            Field::NodeId,
            Field::Pid,
            Field::Address,
            Field::Hostname
        ]),
    ];
    let leaf = prop_oneof![
        Just(Test::Any),
        Just(Test::Colocated),
        (named, vec(alternative, 1..4)).prop_map(|(field, pattern)| Test::Matches(field, Pattern(pattern))),
    ];
    let at = |test| Filter { position: 0, test };
    leaf.prop_map(at).prop_recursive(4, 16, 4, move |inner| {
        let list = || vec(inner.clone(), 1..4);
        prop_oneof![
            inner.clone().prop_map(|filter| Test::Not(Box::new(filter))),
            list().prop_map(Test::And),
            list().prop_map(Test::Or),
            list().prop_map(Test::First),
        ]
        .prop_map(at)
    })
}

/// The position of a filter in the text is not part of its meaning.
fn without_positions(filter: &mut Filter) {
    filter.position = 0;
    match &mut filter.test {
        Test::Not(filter) => without_positions(filter),
        Test::And(filters) | Test::Or(filters) | Test::First(filters) => {
            filters.iter_mut().for_each(without_positions);
        }
        Test::Any | Test::Colocated | Test::Matches(..) => {}
    }
}

/// The words of the language, and some others, in any order.
fn soup() -> impl Strategy<Value = String> {
    let words = "random|round_robin|any|colocated|start_id|label|not|and|or|first|zone|z1|\\(|\\)|\\(|\\)| |,|\\*|\\$\\{|:-|\\}|é";
    proptest::string::string_regex(&format!("({words}){{0,24}}")).expect("a pattern")
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: tier().of(500, 2_000, 20_000, 200_000), failure_persistence: None, rng_seed: seed(), ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_printed_parses_to_the_same(filter in a_tree(), round_robin in any::<bool>()) {
        let selector = if round_robin { Selector::RoundRobin } else { Selector::Random };
        let query = Query { selector, filter };
        let text = query.to_string();
        prop_assume!(text.len() <= MAX_BYTES);
        let mut again: Query = text.parse().map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        prop_assert_eq!(again.to_string(), text);
        without_positions(&mut again.filter);
        prop_assert_eq!(again, query);
    }

    #[test]
    fn whatever_is_sent_no_one_is_sent_to_a_process_that_is_not_monitored(
        text in prop_oneof![soup(), soup().prop_map(|it| format!("random({it})")), ".{0,40}"],
        bytes in vec(any::<u8>(), 0..64),
        seed in any::<u64>(),
    ) {
        let _ = (Query::read(&bytes), Filter::read(&bytes));
        let query = match text.parse::<Query>() {
            Ok(query) => query,
            Err(error) => {
                prop_assert!(error.position as usize <= text.chars().count() + 1, "{}", error);
                return Ok(());
            }
        };
        let processes = processes(&mut Chance::of(seed));
        let candidates = Candidates::new(processes.iter().map(Candidate::from));
        let (turns, properties) = (Turns::default(), BTreeMap::from([("zone".to_owned(), text.clone())]));
        let client = Client { properties: &properties, address: Some("z1") };
        let draw = Draw { turns: &turns, random: seed };
        let route = Route::by(&query);
        explain(&route, &candidates, client, draw);
        if let Some(chosen) = choose(&route, &candidates, client, draw) {
            let chosen = processes.iter().find(|process| process.id == chosen).expect("one of them");
            prop_assert_eq!(chosen.durable, DurableState::Monitored);
        }
    }
}

/// Runs a test on a stack of 256 KiB. A frame for each of 100,000 filters would need a hundred times as much.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(256 << 10).spawn(test).unwrap().join().unwrap();
}

#[test]
fn a_text_without_a_bound_costs_a_bounded_stack() {
    on_a_small_stack(|| {
        let deep = format!("random({}any{})", "not(".repeat(100_000), ")".repeat(100_000));
        let error = deep.parse::<Query>().unwrap_err();
        assert_eq!((error.position, error.expected), (MAX_BYTES as u32 + 1, Expected::Shorter));
        let long = "é".repeat(128 << 10);
        let error = long.parse::<Filter>().unwrap_err();
        assert_eq!((error.position, error.expected), (MAX_BYTES as u32 / 2 + 1, Expected::Shorter));
    });
}

/// Not on a small stack: without the bound it has to fail, and not to end the process.
#[test]
fn filters_are_inside_each_other_up_to_a_bound() {
    let nested = |times: usize| format!("random({}any{})", "not(".repeat(times), ")".repeat(times));
    let bound = MAX_DEPTH as usize;
    assert!(nested(bound - 1).parse::<Query>().is_ok());
    for times in [bound, bound + 1, 810] {
        let error = nested(times).parse::<Query>().unwrap_err();
        assert_eq!((error.position, error.expected), (8 + 4 * MAX_DEPTH, Expected::Shallower));
    }
    assert!(nested(810).len() <= MAX_BYTES);
    for list in ["and(", "or(", "first("] {
        assert_eq!(list.repeat(600).parse::<Filter>().unwrap_err().expected, Expected::Shallower);
    }
}

#[test]
fn what_is_no_text_is_refused_at_its_first_byte() {
    let mut bytes = "random(label(zone zöne))".as_bytes().to_vec();
    assert_eq!(Query::read(&bytes).unwrap_err().position, 20);
    bytes[19] = 0xff;
    let error = Query::read(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "character 20: expected text in UTF-8, found the byte 0xff");
    assert_eq!(Query::read(&[0x80; 256 << 10]).unwrap_err().expected, Expected::Shorter);
}

#[test]
fn the_deepest_and_the_longest_query_is_decided() {
    on_a_small_stack(|| {
        let depth = MAX_DEPTH as usize - 1;
        let deepest = format!("random({}any{})", "not(".repeat(depth), ")".repeat(depth));
        let filters = (MAX_BYTES - "random(or())".len()) / "colocated ".len();
        let longest = format!("random(or({}))", ["colocated"].repeat(filters).join(" "));
        let processes: Vec<Process> = (1..=4096).map(|id| process(id, EngineKind::Te)).collect();
        let candidates = Candidates::new(processes.iter().map(Candidate::from));
        let (turns, properties) = (Turns::default(), BTreeMap::new());
        for (text, suit) in [(deepest, 0), (longest, 0), ("random(any)".to_owned(), 4096)] {
            let query: Query = text.parse().unwrap();
            let client = Client { properties: &properties, address: Some("10.0.0.1") };
            assert_eq!(suitable(&Route::by(&query), &candidates, client).len(), suit);
            let told = explain(&Route::by(&query), &candidates, client, Draw { turns: &turns, random: 0 });
            assert_eq!(told.verdicts.len(), 4096);
            assert!(told.verdicts.iter().all(|verdict| verdict.why.to_string().len() < 500));
            assert_eq!(query.clone().to_string(), text);
        }
    });
}
