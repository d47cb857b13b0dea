//! Grants that come to nothing at this server: then it says that their generations have ended, so that others can follow.

use super::decide::{Run, State, Step};
use super::outside::Outside;
use kaa_core::domain::ids::Generation;
use kaa_core::domain::replicated::Ended;
use kaa_core::replication::{Assignment, Wanted};
use std::time::Duration;
use tokio::time::Instant;

/// So many steps fail before a grant is given up: its server cannot be started, say, or its volume takes no more notes.
pub(super) const FAILS: u32 = 3;
/// A step that fails so long after the grant is enough, if another server can take over now. It is less than a server that serves no session
/// takes to fail, which may have begun before the grant.
pub(super) const LONG: Duration = Duration::from_millis(1500);
/// How long a server that does not run may take to start while it has a grant and another server can take over: its disk may hang. It has
/// twice as long each time. The start is not ended by that, and may have begun before the grant.
pub(super) const START_LIMIT: Duration = Duration::from_secs(15);
/// So many times the limit is doubled at most.
const MOST_DOUBLINGS: u32 = 5;

/// What came so far of a grant that its server has not taken up.
#[derive(Debug, Default)]
pub struct Tries {
    generation: Generation,
    /// When this process learned of it.
    since: Option<Instant>,
    fails: u32,
    /// Since when its server may start, does not run, and could be replaced.
    starts_since: Option<Instant>,
    /// How many grants were given up in a row because it did not start.
    late: u32,
    /// Whether one was given up because the server was promoted from outside.
    was_strange: bool,
}

impl Tries {
    /// Notes that a step has failed.
    pub fn failed(&mut self, state: &mut State, wanted: &Assignment, now: Instant) {
        self.look(state, wanted, now);
        let is_long = wanted.replaceable && self.since.is_some_and(|since| now - since >= LONG);
        self.fails = if is_long { FAILS } else { self.fails + 1 };
        self.look(state, wanted, now);
    }

    /// Gives up the grant if nothing comes of it, and another server can be granted the next generation. This process never takes it up
    /// afterwards.
    pub fn look(&mut self, state: &mut State, wanted: &Assignment, now: Instant) {
        if state.run != Run::Down {
            self.late = 0;
        }
        let Some(generation) = awaits_promotion(state, wanted) else { return };
        if self.generation != generation {
            *self = Self { generation, since: Some(now), fails: 0, starts_since: None, ..*self };
        }
        let starts = state.run == Run::Down && state.may_start && wanted.replaceable;
        self.starts_since = starts.then_some(self.starts_since.unwrap_or(now));
        let limit = START_LIMIT * 2_u32.pow(self.late.min(MOST_DOUBLINGS));
        let is_late = self.starts_since.is_some_and(|since| now - since >= limit);
        // Once: the others may be no better, or an operator wants this one.
        let is_strange = state.outside != Outside::No && !self.was_strange;
        if (self.fails >= FAILS || is_strange || is_late) && wanted.replaceable {
            let why = if is_late { "it does not start" } else { "it cannot be promoted" };
            tracing::error!(%generation, why, "this server gives up its grant, so that another one gets the next");
            state.gave_up = generation;
            self.late += u32::from(is_late);
            self.was_strange |= is_strange;
        }
    }
}

/// The generation that was granted to this server, and that it has neither taken up nor given up.
fn awaits_promotion(state: &State, wanted: &Assignment) -> Option<Generation> {
    let Wanted::Primary { rule, .. } = &wanted.what else { return None };
    Some(rule.generation).filter(|generation| *generation > state.memory.taken_up.max(state.gave_up))
}

/// A generation that was granted to this server and comes to nothing here: it may have been taken up before, or is not any more.
/// `under` is the step that is under way.
pub fn declined(state: &State, wanted: &Assignment, under: Option<&Step>) -> Option<Generation> {
    let Wanted::Primary { rule, .. } = &wanted.what else { return None };
    let is_it = matches!(&state.run, Run::Primary(primary) if primary.begins.generation == rule.generation);
    let promotes = matches!(under, Some(Step::Promote(_)));
    let declines = state.memory.taken_up >= rule.generation || state.gave_up >= rule.generation || state.stopping;
    (declines && !promotes && !is_it).then_some(rule.generation)
}

/// What is said of the end of a generation: how its server ended, if it ever ran, or that it comes to nothing here.
pub fn ended(ended: Option<(Generation, Ended)>, declined: Option<Generation>) -> Option<(Generation, Ended)> {
    let declined = declined.filter(|declined| ended.is_none_or(|(of, _)| of < *declined));
    declined.map(|generation| (generation, Ended::Failed)).or(ended)
}
