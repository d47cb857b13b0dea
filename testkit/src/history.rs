//! The operations of clients on one compare-and-set register, and whether they are linearizable: whether each operation
//! can have one moment between its invocation and its completion such that, in this order, a single register would give
//! the same answers.
//!
//! Every value is written at most once. An operation whose outcome is not known may have taken effect at any moment after
//! its invocation, also long after the client gave up, or never.
//!
//! The search is that of Wing and Gong with the memory of Lowe: it tries each operation that may be next, and tries no
//! state (which operations are done, the value of the register) twice. An observation is done as soon as it fits, since
//! that excludes no order. So only writes branch, and with unique values few of them fit at a time.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

/// The value of a register; `None` at first.
pub type Value = Option<String>;

/// A request of a client, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The client learned the value of the register: by a read, or by a compare-and-set that found another value.
    Observed(Value),
    /// The register had `expected` and now has `new`, by the answer; or there was no answer, and no completion is
    /// known.
    Set {
        /// The value that the register must have before.
        expected: Value,
        /// The value of the register after the operation.
        new: Value,
    },
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The client.
    pub client: String,
    /// The time of the request, in any unit, by one clock.
    pub invoked: u64,
    /// When the outcome was known; `None` if it never was.
    pub completed: Option<u64>,
    /// The operation and its answer.
    pub operation: Operation,
}

/// The history of one register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    events: Vec<Event>,
}

/// No order of the operations explains what was answered.
#[derive(Debug, PartialEq, Eq)]
pub struct NotLinearizable {
    /// The last operations of the longest order that was found.
    pub explained: Vec<Event>,
    /// The value of the register after this order.
    pub holds: Value,
    /// The operations of which one would have to be next; none of them fits.
    pub stuck: Vec<Event>,
}

/// How many operations of the longest order are shown.
const SHOWN: usize = 8;

impl History {
    /// Adds an operation, in any order. Do not add a read without an answer: it has no information.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The operations so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Checks whether the history is linearizable.
    pub fn check(&self) -> Result<(), NotLinearizable> {
        let mut events = self.events.clone();
        events.sort_by_key(|event| event.invoked);
        let mut tried = BTreeSet::new();
        let mut ahead = vec![State::new(events.len())];
        let mut longest = State::new(events.len());
        while let Some(mut state) = ahead.pop() {
            state.observe(&events);
            if state.is_complete(&events) {
                return Ok(());
            }
            if !tried.insert((state.done.clone(), state.holds.clone())) {
                continue;
            }
            if state.order.len() > longest.order.len() {
                longest = state.clone();
            }
            for at in state.possible(&events) {
                if let Operation::Set { expected, .. } = &events[at].operation
                    && *expected == state.holds
                {
                    let mut next = state.clone();
                    next.take(at, &events);
                    ahead.push(next);
                }
            }
        }
        longest.observe(&events);
        let last = longest.order.len().saturating_sub(SHOWN);
        Err(NotLinearizable {
            explained: longest.order[last..].iter().map(|at| events[*at].clone()).collect(),
            holds: longest.holds.clone(),
            stuck: longest.possible(&events).into_iter().map(|at| events[at].clone()).collect(),
        })
    }
}

/// A point of the search.
#[derive(Clone)]
struct State {
    done: Vec<bool>,
    holds: Value,
    order: Vec<usize>,
}

impl State {
    fn new(events: usize) -> Self {
        Self { done: vec![false; events], holds: None, order: Vec::new() }
    }

    fn is_complete(&self, events: &[Event]) -> bool {
        events.iter().zip(&self.done).all(|(event, done)| *done || event.completed.is_none())
    }

    fn take(&mut self, at: usize, events: &[Event]) {
        self.done[at] = true;
        self.order.push(at);
        if let Operation::Set { new, .. } = &events[at].operation {
            self.holds.clone_from(new);
        }
    }

    /// The operations that may be next: those invoked before the first completion of any operation that is not done.
    fn possible(&self, events: &[Event]) -> Vec<usize> {
        let left = || events.iter().enumerate().filter(|(at, _)| !self.done[*at]);
        let first = left().filter_map(|(_, event)| event.completed).min().unwrap_or(u64::MAX);
        left().filter(|(_, event)| event.invoked <= first).map(|(at, _)| at).collect()
    }

    /// Does every observation that fits.
    fn observe(&mut self, events: &[Event]) {
        loop {
            let fits = |at: &usize| matches!(&events[*at].operation, Operation::Observed(seen) if *seen == self.holds);
            let Some(at) = self.possible(events).into_iter().find(fits) else { return };
            self.take(at, events);
        }
    }
}

fn shown(value: &Value) -> &str {
    value.as_deref().unwrap_or("-")
}

fn read(word: &str) -> Value {
    (word != "-").then(|| word.to_owned())
}

/// `CLIENT INVOKED..COMPLETED sees VALUE` or `... sets EXPECTED -> NEW`; `-` for nothing, and no completion if it is not
/// known.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let completed = self.completed.map(|at| at.to_string()).unwrap_or_default();
        write!(f, "{} {}..{completed} ", self.client, self.invoked)?;
        match &self.operation {
            Operation::Observed(value) => write!(f, "sees {}", shown(value)),
            Operation::Set { expected, new } => write!(f, "sets {} -> {}", shown(expected), shown(new)),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = |events: &[Event]| events.iter().map(|event| format!("  {event}\n")).collect::<String>();
        write!(
            f,
            "after\n{}it holds {}, and one of these would be next:\n{}",
            lines(&self.explained),
            shown(&self.holds),
            lines(&self.stuck)
        )
    }
}

impl std::str::FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{line}: {error}"));
        let [client, times, rest @ ..] = &words[..] else { return Err(format!("{line}: too short")) };
        let (invoked, completed) = times.split_once("..").ok_or_else(|| format!("{line}: no times"))?;
        let completed = if completed.is_empty() { None } else { Some(number(completed)?) };
        let operation = match rest {
            ["sees", value] => Operation::Observed(read(value)),
            ["sets", expected, "->", new] => Operation::Set { expected: read(expected), new: read(new) },
            _ => return Err(format!("{line}: neither sees nor sets")),
        };
        Ok(Self { client: (*client).to_owned(), invoked: number(invoked)?, completed, operation })
    }
}

impl std::str::FromStr for History {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(Self { events: lines.map(str::parse).collect::<Result<_, _>>()? })
    }
}
