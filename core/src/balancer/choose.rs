//! Decides: which processes suit a client, and which of them it gets.

use super::candidates::Candidates;
pub use super::evaluate::Client;
use super::evaluate::{Outcome, evaluate};
use super::policies::{Route, Scope};
use super::query::{Filter, Selector};
use super::set::Set;
use super::turns::Turns;
use crate::domain::ids::StartId;

/// What a decision takes from outside: it rolls no dice and keeps no count.
#[derive(Clone, Copy, Debug)]
pub struct Chance<'a> {
    /// Whose turn it is.
    pub turns: &'a Turns,
    /// A random number, another one for each decision.
    pub random: u64,
}

/// The process that a client is sent to; `None` if none suits it. A decision by `round_robin` takes a turn.
pub fn choose(route: &Route<'_>, candidates: &Candidates, client: Client<'_>, chance: Chance<'_>) -> Option<StartId> {
    let suitable = Passed::of(route, candidates, client).query.passes;
    let place = draw(route.query.selector, &suitable, candidates, chance.random, |set| chance.turns.take(set))?;
    Some(candidates.id(place))
}

/// All that suit a client, in order.
pub fn suitable(route: &Route<'_>, candidates: &Candidates, client: Client<'_>) -> Vec<StartId> {
    let suitable = Passed::of(route, candidates, client).query.passes;
    suitable.iter().map(|place| candidates.id(place)).collect()
}

/// Those that a filter lets pass of all, whatever their kind and state. For lists of processes; no client is sent to one.
pub fn listed(filter: &Filter, candidates: &Candidates, client: Client<'_>) -> Vec<StartId> {
    let outcome = evaluate(filter, &candidates.all(), candidates, client);
    outcome.passes.iter().map(|place| candidates.id(place)).collect()
}

/// What the pre-filters and the query let pass, one after another.
pub(super) struct Passed<'q> {
    pub prefilters: Vec<(Scope, Outcome<'q>)>,
    pub query: Outcome<'q>,
}

impl<'q> Passed<'q> {
    pub fn of(route: &'q Route<'_>, candidates: &Candidates, client: Client<'_>) -> Self {
        let mut prefilters: Vec<(Scope, Outcome<'q>)> = Vec::with_capacity(route.prefilters.len());
        for (scope, filter) in &route.prefilters {
            let left = prefilters.last().map_or(candidates.offered(), |(_, outcome)| &outcome.passes);
            prefilters.push((*scope, evaluate(filter, left, candidates, client)));
        }
        let left = prefilters.last().map_or(candidates.offered(), |(_, outcome)| &outcome.passes);
        let query = evaluate(&route.query.filter, left, candidates, client);
        Self { prefilters, query }
    }
}

/// Draws one of a set.
pub(super) fn draw(
    selector: Selector,
    suitable: &Set,
    candidates: &Candidates,
    random: u64,
    turn: impl FnOnce(u64) -> u64,
) -> Option<usize> {
    let count = suitable.len() as u64;
    if count == 0 {
        return None;
    }
    let number = match selector {
        Selector::Random => random,
        Selector::RoundRobin => turn(key(suitable, candidates)),
    };
    suitable.iter().nth((number % count) as usize)
}

/// Names a set of processes by their start ids, the same at every agent (FNV-1a, a start id at a time).
fn key(set: &Set, candidates: &Candidates) -> u64 {
    let mixed = set.iter().fold(0xcbf2_9ce4_8422_2325, |key: u64, place| {
        (key ^ candidates.id(place).0).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // Its low bits alone would depend on the low bits of the start ids only.
    mixed ^ (mixed >> 32)
}
