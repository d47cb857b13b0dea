//! The rows of the output: what was explored, and whether the result was the expected one.

use crate::cases::{self, Case};
use crate::model::{Action, Protocol};
use crate::mutations::{self, Expected, Mutation};
use crate::rules::CORRECTED;
use crate::trace;
use stateright::{Checker, HasDiscoveries, Model};
use std::time::{Duration, Instant};

/// An exploration that does not end within this time is unexpected: a slow machine must not mean a smaller check.
const LIMIT: Duration = Duration::from_secs(3600);
/// The limit of the search for a shorter failing run.
const SHORTER_LIMIT: Duration = Duration::from_secs(60);

/// The result of all explorations.
pub enum Outcome {
    AsExpected,
    /// This number of rows had an unexpected result.
    Unexpected(usize),
    /// No row matched.
    NoRow,
}

/// The result of one exploration.
struct Found {
    states: usize,
    depth: usize,
    took: Duration,
    /// Whether the exploration ended within the limit. If nothing fails, it then visited every state.
    complete: bool,
    /// The property that fails, and the steps to the state in which it fails.
    wrong: Option<(&'static str, Vec<Action>)>,
}

/// Explores the cases and mutations whose names contain `only`; the large ones with `all` only.
pub fn run(all: bool, only: &str) -> Outcome {
    let (mut rows, mut unexpected) = (0, 0);
    println!("{:<44} {:>10} {:>5} {:>7}  result", "the protocol", "states", "depth", "s");
    let cases = cases::all().into_iter().filter(|case| all || !case.large);
    for case in cases.filter(|case| case.name.contains(only)) {
        rows += 1;
        unexpected += usize::from(!holds(&case));
    }
    println!("\n{:<52} {:<10} {:>10} {:>7}  result", "one safeguard changed", "in", "states", "s");
    let with_runs = all || !only.is_empty();
    let mut runs = Vec::new();
    let mutations = mutations::all().into_iter().filter(|mutation| all || !mutation.large);
    for mutation in mutations.filter(|mutation| mutation.name.contains(only)) {
        rows += 1;
        let found = mutate(&mutation, with_runs);
        let as_expected = print_mutation(&mutation, &found);
        unexpected += usize::from(!as_expected);
        if with_runs || !as_expected {
            runs.extend(found.wrong.map(|(property, steps)| (mutation, property, steps)));
        }
    }
    for (mutation, property, steps) in runs {
        println!("\n== {}: {property}", mutation.name);
        trace::print(&(mutation.case)().protocol(mutation.rules, true), &steps);
    }
    match (rows, unexpected) {
        (0, _) => Outcome::NoRow,
        (_, 0) => Outcome::AsExpected,
        (_, unexpected) => Outcome::Unexpected(unexpected),
    }
}

/// Whether all properties hold under the protocol. Prints the row, and the failing run if there is one.
fn holds(case: &Case) -> bool {
    let protocol = case.protocol(CORRECTED, true);
    let found = explore(&protocol, threads(), LIMIT, None);
    let result = match &found.wrong {
        None if found.complete => "S1 S2 S3 S4 S5 L hold".to_owned(),
        None => "NOT EXPLORED in time".to_owned(),
        Some((property, _)) => format!("VIOLATED {property}"),
    };
    let (states, depth, seconds) = (found.states, found.depth, found.took.as_secs_f64());
    println!("{:<44} {states:>10} {depth:>5} {seconds:>7.1}  {result}", case.name);
    if let Some((_, steps)) = &found.wrong {
        trace::print(&protocol, steps);
    }
    found.wrong.is_none() && found.complete
}

/// If an unsafe state is expected, the search does not look for a standstill, because that takes longer to detect.
fn mutate(mutation: &Mutation, shortest: bool) -> Found {
    let protocol = (mutation.case)().protocol(mutation.rules, mutation.expected != Expected::Unsafe);
    let found = explore(&protocol, threads(), LIMIT, None);
    if shortest && mutation.expected != Expected::Nothing { shortened(&protocol, found) } else { found }
}

/// Prints the row. Returns whether the result was the expected one.
fn print_mutation(mutation: &Mutation, found: &Found) -> bool {
    let result = match &found.wrong {
        Some((property, steps)) => format!("{property}: fails after {} steps", steps.len()),
        None if found.complete => "no counterexample".to_owned(),
        None => "NOT EXPLORED in time".to_owned(),
    };
    let is_unsafe = found.wrong.as_ref().map(|(property, _)| property.starts_with('S'));
    let as_expected = match mutation.expected {
        Expected::Unsafe => is_unsafe == Some(true),
        Expected::Standstill => is_unsafe == Some(false),
        Expected::Nothing => is_unsafe.is_none() && found.complete,
    };
    let remark = if as_expected { "" } else { "  UNEXPECTED" };
    let (name, case) = (mutation.name, (mutation.case)());
    let (states, seconds) = (found.states, found.took.as_secs_f64());
    println!("{name:<52} {:<10} {states:>10} {seconds:>7.1}  {result}{remark}", case.word());
    as_expected
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn explore(protocol: &Protocol, threads: usize, limit: Duration, depth: Option<usize>) -> Found {
    let began = Instant::now();
    let mut checker =
        protocol.clone().checker().threads(threads).timeout(limit).finish_when(HasDiscoveries::AnyFailures);
    if let Some(depth) = depth {
        checker = checker.target_max_depth(depth);
    }
    let checker = checker.spawn_bfs().join();
    let took = began.elapsed();
    let wrong = checker.discoveries().into_iter().map(|(property, path)| (property, path.into_actions()));
    Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took,
        complete: took < limit,
        wrong: wrong.min_by_key(|(_, steps)| steps.len()),
    }
}

/// The checker reports any of the failures at about the same depth: searches below that depth until it finds none.
fn shortened(protocol: &Protocol, mut found: Found) -> Found {
    while let Some((_, steps)) = &found.wrong {
        let below = explore(protocol, 1, SHORTER_LIMIT, Some(steps.len()));
        let Some(shorter) = below.wrong.filter(|(_, shorter)| shorter.len() < steps.len()) else { break };
        found.wrong = Some(shorter);
    }
    found
}
