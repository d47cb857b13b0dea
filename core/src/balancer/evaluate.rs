//! What a filter lets pass.
//!
//! The outcome keeps what each filter in it let pass, so that a decision can be explained by what decided it and not by a
//! second reading of the rules.

use super::candidates::Candidates;
use super::query::{Alternative, Field, Filter, Pattern, Piece, Test, Value};
use super::set::Set;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The properties of its connection.
    pub properties: &'a BTreeMap<String, String>,
    /// Its address, as the addresses of processes are written.
    pub address: Option<&'a str>,
}

impl<'a> Client<'a> {
    /// The value of a property. An empty one counts as not set, as in a shell.
    pub fn property(&self, name: &str) -> Option<&'a str> {
        self.properties.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// What a filter lets pass, and what those in it do as far as it took to know.
pub(super) struct Outcome<'q> {
    pub filter: &'q Filter,
    pub passes: Set,
    pub inner: Vec<Outcome<'q>>,
}

/// Evaluates a filter over a set.
pub(super) fn evaluate<'q>(
    filter: &'q Filter,
    scope: &Set,
    candidates: &Candidates,
    client: Client<'_>,
) -> Outcome<'q> {
    let mut inner = Vec::new();
    let enter = |filter: &'q Filter| evaluate(filter, scope, candidates, client);
    let mut passes;
    match &filter.test {
        Test::Any => passes = scope.clone(),
        Test::Colocated => {
            let here = |value: &str| client.address == Some(value);
            passes = matching(&Field::Address, here, scope, candidates);
        }
        Test::Matches(field, pattern) => {
            passes = Set::empty(candidates.len());
            for wanted in wanted(pattern, client) {
                passes.add(&matching(field, |value| wanted.is(value), scope, candidates));
            }
        }
        Test::Not(excluded) => {
            inner.push(enter(excluded));
            passes = scope.clone();
            passes.remove(&inner[0].passes);
        }
        Test::And(filters) => {
            // Where nothing is left, the rest need not be known: each process has one that excludes it.
            passes = scope.clone();
            for (n, filter) in filters.iter().enumerate() {
                if !passes.is_empty() {
                    inner.push(enter(filter));
                    passes.keep(&inner[n].passes);
                }
            }
        }
        Test::Or(filters) => {
            passes = Set::empty(candidates.len());
            for (n, filter) in filters.iter().enumerate() {
                inner.push(enter(filter));
                passes.add(&inner[n].passes);
            }
        }
        Test::First(filters) => {
            passes = Set::empty(candidates.len());
            for (n, filter) in filters.iter().enumerate() {
                if passes.is_empty() {
                    inner.push(enter(filter));
                    passes = inner[n].passes.clone();
                }
            }
        }
    }
    Outcome { filter, passes, inner }
}

/// Those of a set with such a value.
fn matching(field: &Field, wanted: impl Fn(&str) -> bool, scope: &Set, candidates: &Candidates) -> Set {
    let mut passes = Set::empty(candidates.len());
    if let Some(column) = candidates.column(field) {
        let there = scope.iter().filter(|place| column[*place].as_deref().is_some_and(&wanted));
        there.for_each(|place| passes.insert(place));
    }
    passes
}

/// An alternative with the client's values in the place of its variables.
pub(super) enum Wanted<'a> {
    Anything,
    Exactly(Cow<'a, str>),
    Begins(Cow<'a, str>),
    Ends(Cow<'a, str>),
}

impl Wanted<'_> {
    fn is(&self, value: &str) -> bool {
        match self {
            Self::Anything => true,
            Self::Exactly(wanted) => value == wanted,
            Self::Begins(beginning) => value.starts_with(&**beginning),
            Self::Ends(end) => value.ends_with(&**end),
        }
    }
}

/// What this client's pattern matches: nothing where all of its alternatives come out empty.
pub(super) fn wanted<'a>(pattern: &'a Pattern, client: Client<'a>) -> impl Iterator<Item = Wanted<'a>> {
    pattern.0.iter().filter_map(move |alternative| match alternative {
        Alternative::Anything => Some(Wanted::Anything),
        Alternative::Exactly(value) => text(value, client).map(Wanted::Exactly),
        Alternative::Begins(value) => text(value, client).map(Wanted::Begins),
        Alternative::Ends(value) => text(value, client).map(Wanted::Ends),
        Alternative::ClientsOrAnything(name) => {
            Some(client.property(name).map_or(Wanted::Anything, |value| Wanted::Exactly(value.into())))
        }
    })
}

/// A value's text; `None` if it comes out empty.
fn text<'a>(value: &'a Value, client: Client<'a>) -> Option<Cow<'a, str>> {
    let piece = |piece: &'a Piece| match piece {
        Piece::Text(text) => text,
        Piece::Variable { name, default } => client.property(name).or(default.as_deref()).unwrap_or_default(),
    };
    let text: Cow<'a, str> = match value.0.as_slice() {
        [one] => piece(one).into(),
        several => several.iter().map(piece).collect::<String>().into(),
    };
    (!text.is_empty()).then_some(text)
}
