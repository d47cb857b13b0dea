//! Why each process was chosen, or was not.
//!
//! It reads the outcome of the decision itself. It takes no turn: what it calls chosen is what the next client gets.

use super::candidates::{Candidates, NotOffered};
use super::choose::{Chance, Client, Passed, draw};
use super::evaluate::{Outcome, wanted};
use super::policies::{Origin, Route, Scope};
use super::query::{Field, Query, Selector, Test};
use crate::domain::bounds::cut;
use crate::domain::ids::StartId;
use std::fmt;

/// The most of a filter that a reason repeats: there is one for each process.
const FILTER_BYTES: usize = 200;

/// A decision with its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The query that decided.
    pub query: Query,
    /// Who set it.
    pub origin: Origin,
    /// For each candidate, in the order of the start ids.
    pub verdicts: Vec<Verdict>,
}

/// What became of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The process.
    pub process: StartId,
    /// Why it was chosen, or was not.
    pub why: Why,
}

/// Why a process was chosen, or was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is offered to no client.
    NotOffered(NotOffered),
    /// A pre-filter excluded it.
    Prefiltered(Scope, Reason),
    /// The query did not let it pass.
    Unsuitable(Reason),
    /// It suits as so many do, and another one was drawn.
    NotDrawn {
        /// How one was drawn.
        by: Selector,
        /// How many suit.
        of: usize,
    },
    /// It was drawn of so many that suit.
    Chosen {
        /// How.
        by: Selector,
        /// How many suit.
        of: usize,
    },
}

/// The filter that did not let a process pass, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The character of the text at which the filter begins.
    pub position: u32,
    /// The filter.
    pub filter: String,
    /// Why.
    pub why: Mismatch,
}

/// Why a filter did not let a process pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The process has no such value.
    #[error("it has none")]
    NoValue,
    /// It has another one.
    #[error("it has '{0}'")]
    AnotherValue(String),
    /// For this client nothing is left of the pattern.
    #[error("the client has not set the variable, so nothing matches")]
    NothingToMatch,
    /// Where the client is, is not known.
    #[error("the client's address is not known")]
    NoClientAddress,
    /// `not`, and the filter in it lets the process pass.
    #[error("it is excluded")]
    Excluded,
    /// `or`, and no filter in it lets the process pass.
    #[error("none of its filters lets it pass")]
    NoneOf,
    /// `first`, and no filter in it lets any process pass.
    #[error("none of its filters finds a process")]
    NoneFinds,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.origin, self.query)?;
        self.verdicts.iter().try_for_each(|verdict| writeln!(f, "{}: {}", verdict.process, verdict.why))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered(why) => write!(f, "not offered: {why}"),
            Self::Prefiltered(scope, reason) => write!(f, "excluded by {scope}, {reason}"),
            Self::Unsuitable(reason) => write!(f, "not suitable, {reason}"),
            Self::NotDrawn { by: Selector::Random, of } => write!(f, "suitable, one of {of}, another one was drawn"),
            Self::NotDrawn { by: Selector::RoundRobin, of } => write!(f, "suitable, one of {of}, another one is next"),
            Self::Chosen { by: Selector::Random, of } => write!(f, "chosen, one of {of}, at random"),
            Self::Chosen { by: Selector::RoundRobin, of } => write!(f, "chosen, one of {of}, in turn"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "character {}, {}: {}", self.position, self.filter, self.why)
    }
}

/// Explains what [`choose`](super::choose::choose) answers to the same.
pub fn explain(route: &Route<'_>, candidates: &Candidates, client: Client<'_>, chance: Chance<'_>) -> Explanation {
    let passed = Passed::of(route, candidates, client);
    let by = route.query.selector;
    let suitable = &passed.query.passes;
    let drawn = draw(by, suitable, candidates, chance.random, |set| chance.turns.next(set));
    let of = suitable.len();
    let reason = |outcome: &Outcome<'_>, place| reason(outcome, place, candidates, client);
    let why = |place: usize| {
        if let Some(why) = candidates.not_offered(place) {
            return Why::NotOffered(why.clone());
        }
        if let Some((scope, outcome)) = passed.prefilters.iter().find(|(_, outcome)| !outcome.passes.has(place)) {
            return Why::Prefiltered(*scope, reason(outcome, place));
        }
        if !suitable.has(place) {
            return Why::Unsuitable(reason(&passed.query, place));
        }
        if drawn == Some(place) { Why::Chosen { by, of } } else { Why::NotDrawn { by, of } }
    };
    let verdicts = (0..candidates.len()).map(|place| Verdict { process: candidates.id(place), why: why(place) });
    Explanation { query: route.query.as_ref().clone(), origin: route.origin.clone(), verdicts: verdicts.collect() }
}

/// Why a filter did not let a process pass that it was given: the innermost filter that decides it.
fn reason(outcome: &Outcome<'_>, place: usize, candidates: &Candidates, client: Client<'_>) -> Reason {
    let inner = |outcome| reason(outcome, place, candidates, client);
    let value = |field: &Field| candidates.column(field).and_then(|column| column[place].as_deref());
    let compared = |field: &Field, missing: Option<Mismatch>| {
        missing.unwrap_or_else(|| match value(field) {
            Some(value) => Mismatch::AnotherValue(value.to_owned()),
            None => Mismatch::NoValue,
        })
    };
    let why = match (&outcome.filter.test, outcome.inner.as_slice()) {
        (Test::Colocated, _) => {
            compared(&Field::Address, client.address.is_none().then_some(Mismatch::NoClientAddress))
        }
        (Test::Matches(field, pattern), _) => {
            compared(field, wanted(pattern, client).next().is_none().then_some(Mismatch::NothingToMatch))
        }
        // Each process in its set has one that excludes it.
        (Test::And(_), entered) => match entered.iter().find(|outcome| !outcome.passes.has(place)) {
            Some(excludes) => return inner(excludes),
            None => Mismatch::Excluded,
        },
        (Test::Or(_) | Test::First(_), [only]) => return inner(only),
        (Test::Or(_), _) => Mismatch::NoneOf,
        (Test::First(_), entered) => match entered.last() {
            Some(used) if !used.passes.is_empty() => return inner(used),
            _ => Mismatch::NoneFinds,
        },
        // `any` lets all pass, so only `not` is left.
        (Test::Not(_) | Test::Any, _) => Mismatch::Excluded,
    };
    let mut filter = outcome.filter.to_string();
    cut(&mut filter, FILTER_BYTES);
    Reason { position: outcome.filter.position, filter, why }
}
