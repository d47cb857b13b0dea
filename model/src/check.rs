//! The rows of the output: what was explored, and whether the result was the expected one.

use stateright::{Checker, HasDiscoveries, Model};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// An exploration that does not end within this time is unexpected: a slow machine must not mean a smaller check.
const LIMIT: Duration = Duration::from_secs(3600);
/// The limit of the search for a shorter failing run.
const SHORTER_LIMIT: Duration = Duration::from_secs(60);

/// A protocol to explore. The names of its safety properties begin with S, that of progress with L.
pub trait Explored:
    Model<State: Clone + Hash + PartialEq + Send + Sync, Action: Copy + PartialEq + Send + Sync>
where
    Self: Clone + Send + Sync + 'static,
{
    /// What a row says if every property holds.
    fn hold(&self) -> &'static str;

    /// Prints a run.
    fn print(&self, steps: &[Self::Action]);
}

/// An initial state, with the bounds of the exploration.
pub struct Case<P> {
    /// One word, a colon, and a description.
    pub name: &'static str,
    /// Whether it takes too long to run for every change of the project.
    pub large: bool,
    pub protocol: P,
}

/// A case in which a safeguard is removed.
pub struct Mutation<P> {
    pub name: &'static str,
    /// The case.
    pub case: &'static str,
    pub expected: Expected,
    pub large: bool,
    pub protocol: P,
}

/// The expected result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A safety property fails.
    Unsafe,
    /// The safety properties hold, but the protocol cannot continue: L.
    Standstill,
    /// No property fails: another rule covers this one, or it matters only in another case.
    Nothing,
}

/// Changed rules, and a case in which the change has an effect.
pub struct Change<C, R> {
    pub name: &'static str,
    pub case: fn() -> C,
    pub expected: Expected,
    pub rules: R,
    /// Whether it takes too long to run for every change of the project.
    pub large: bool,
}

/// A safety property fails in this case.
pub fn breaks<C, R>(name: &'static str, case: fn() -> C, rules: R) -> Change<C, R> {
    Change { name, case, expected: Expected::Unsafe, rules, large: false }
}

/// The protocol comes to a standstill in this case.
pub fn stalls<C, R>(name: &'static str, case: fn() -> C, rules: R) -> Change<C, R> {
    Change { name, case, expected: Expected::Standstill, rules, large: false }
}

/// All properties hold in this case: another safeguard covers the one that is changed.
pub fn holds<C, R>(name: &'static str, case: fn() -> C, rules: R) -> Change<C, R> {
    Change { name, case, expected: Expected::Nothing, rules, large: false }
}

/// How many rows there were, and how many of them had an unexpected result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub all: usize,
    pub unexpected: usize,
}

impl std::ops::AddAssign for Rows {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.unexpected += other.unexpected;
    }
}

/// The result of one exploration.
struct Found<P: Explored> {
    states: usize,
    depth: usize,
    took: Duration,
    /// Whether the exploration ended within the limit. If nothing fails, it then visited every state.
    complete: bool,
    /// The property that fails, and the steps to the state in which it fails.
    wrong: Option<(&'static str, Vec<P::Action>)>,
}

/// Explores the cases and mutations whose names contain `only`; the large ones with `all` only.
pub fn run<P: Explored>(
    title: &str,
    (cases, mutations): (Vec<Case<P>>, Vec<Mutation<P>>),
    all: bool,
    only: &str,
) -> Rows {
    let mut rows = Rows::default();
    let cases: Vec<_> = cases.into_iter().filter(|case| (all || !case.large) && case.name.contains(only)).collect();
    let mutations: Vec<_> =
        mutations.into_iter().filter(|one| (all || !one.large) && one.name.contains(only)).collect();
    if !cases.is_empty() {
        println!("{title:<44} {:>10} {:>5} {:>7}  result", "states", "depth", "s");
    }
    for case in &cases {
        rows += Rows { all: 1, unexpected: usize::from(!is_held(case)) };
    }
    if !mutations.is_empty() {
        println!("\n{:<52} {:<10} {:>10} {:>7}  result", "one safeguard changed", "in", "states", "s");
    }
    let with_runs = all || !only.is_empty();
    let mut runs = Vec::new();
    for mutation in &mutations {
        let found = mutate(mutation, with_runs);
        let as_expected = print_mutation(mutation, &found);
        rows += Rows { all: 1, unexpected: usize::from(!as_expected) };
        if with_runs || !as_expected {
            runs.extend(found.wrong.map(|(property, steps)| (mutation, property, steps)));
        }
    }
    for (mutation, property, steps) in runs {
        println!("\n== {}: {property}", mutation.name);
        mutation.protocol.print(&steps);
    }
    println!();
    rows
}

/// Whether all properties hold under the protocol. Prints the row, and the failing run if there is one.
fn is_held<P: Explored>(case: &Case<P>) -> bool {
    let found = explore(&case.protocol, threads(), LIMIT, None);
    let result = match &found.wrong {
        None if found.complete => case.protocol.hold().to_owned(),
        None => "NOT EXPLORED in time".to_owned(),
        Some((property, _)) => format!("VIOLATED {property}"),
    };
    let (states, depth, seconds) = (found.states, found.depth, found.took.as_secs_f64());
    println!("{:<44} {states:>10} {depth:>5} {seconds:>7.1}  {result}", case.name);
    if let Some((_, steps)) = &found.wrong {
        case.protocol.print(steps);
    }
    found.wrong.is_none() && found.complete
}

fn mutate<P: Explored>(mutation: &Mutation<P>, shortest: bool) -> Found<P> {
    let found = explore(&mutation.protocol, threads(), LIMIT, None);
    let is_to_fail = mutation.expected != Expected::Nothing;
    if shortest && is_to_fail { shortened(&mutation.protocol, found) } else { found }
}

/// Prints the row. Returns whether the result was the expected one.
fn print_mutation<P: Explored>(mutation: &Mutation<P>, found: &Found<P>) -> bool {
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
    let (states, seconds) = (found.states, found.took.as_secs_f64());
    println!("{:<52} {:<10} {states:>10} {seconds:>7.1}  {result}{remark}", mutation.name, mutation.case);
    as_expected
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn explore<P: Explored>(protocol: &P, threads: usize, limit: Duration, depth: Option<usize>) -> Found<P> {
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
fn shortened<P: Explored>(protocol: &P, mut found: Found<P>) -> Found<P> {
    while let Some((_, steps)) = &found.wrong {
        let below = explore(protocol, 1, SHORTER_LIMIT, Some(steps.len()));
        let Some(shorter) = below.wrong.filter(|(_, shorter)| shorter.len() < steps.len()) else { break };
        found.wrong = Some(shorter);
    }
    found
}
