//! Takes note of what steps have done to a server, and of what readings say of it.

use super::decide::{Readers, Run, State, Step, Unfit};
use super::keeper::Ear;
use super::outside::Outside;
use super::perform::Outcome;
use super::words;
use crate::postgres::Reading;
use kaa_core::domain::ids::Generation;
use kaa_core::domain::replicated::Ended;

/// Takes note that a step is dropped. Its server may have done a part of it.
pub fn note_dropped(state: &mut State, step: &Step) {
    if let (Step::Retire, Run::Primary(primary)) = (step, &mut state.run) {
        primary.may_refuse();
    }
}

/// Takes note of a step that begins. `end` is that of the primary's log. False if nothing is to be done.
pub fn note_begin(state: &mut State, step: &Step, end: u64) -> bool {
    match step {
        Step::StartFenced if state.outside == Outside::Runs => state.outside = Outside::Was,
        Step::Overwrite { .. } => state.copied = 0,
        _ => {}
    }
    let Run::Primary(primary) = &mut state.run else { return true };
    match step {
        // Where a change was given up, parts of the server may obey it: the next one is made in any case.
        Step::Require(rule) if primary.ruling.coming.is_some() => primary.ruling.replace(rule.clone()),
        Step::Require(rule) => primary.ruling.take(rule.clone(), end),
        Step::Open => {
            primary.admits = true;
            true
        }
        _ => true,
    }
}

/// How many starts with a copy may fail before it is made once more: with their pauses, most of ten minutes. The copy may be damaged; but it
/// takes hours where there is much data, and another one does not help if a library is missing.
pub const STARTS: u16 = 100;

/// Takes note that a step has made the data a whole copy of the primary's, whatever comes of it: it need not be copied once more.
pub fn note_copied(state: &mut State, step: &Step) {
    (state.copied, state.unfit, state.outside) = (STARTS, None, Outside::No);
    if let Step::Overwrite { permission, .. } = step {
        state.overwritten = *permission;
    }
}

/// Takes note of what a step has done, and of what the server does now. Gives the generation in which it was the primary, and how that ended,
/// if it is it no more.
pub fn note_done(
    state: &mut State,
    step: &Step,
    result: &Result<Outcome, String>,
    run: Run,
) -> Option<(Generation, Ended)> {
    if matches!(step, Step::StartFenced) && result.is_err() {
        state.copied = state.copied.saturating_sub(1);
    }
    if let Ok(outcome) = result {
        state.unfit = match (step, &outcome.needs_overwrite) {
            (Step::Follow { generation, .. }, Some(why)) => {
                Some(Unfit { generation: *generation, why: why.clone(), forked: true })
            }
            (Step::Follow { .. } | Step::Overwrite { .. }, None) => None,
            _ => state.unfit.take(),
        };
        state.outside = match (step, state.outside) {
            // What it wrote is gone, or is a part of the history.
            (Step::Overwrite { .. } | Step::Promote(_), _) => Outside::No,
            (Step::Stop, Outside::Runs) => Outside::Was,
            _ if result.as_ref().is_ok_and(|outcome| outcome.outside) => Outside::Was,
            (_, outside) => outside,
        };
    }
    state.shuts_down &= run != Run::Down;
    let Run::Primary(was) = std::mem::replace(&mut state.run, run) else { return None };
    if matches!(&state.run, Run::Primary(now) if now.begins == was.begins) {
        return None;
    }
    let stood_down = matches!(step, Step::StandDown) && result.is_ok();
    Some((was.begins.generation, if stood_down { Ended::StoodDown } else { Ended::Failed }))
}

/// What a reading of a server says of the primary that it follows.
pub struct Heard {
    pub ear: Ear,
    /// Whether it streams with data that was being overwritten: that is whole now.
    pub whole: bool,
}

/// Takes note that a standby lacks log which its primary has removed.
pub fn note_lack_of_log(state: &mut State) {
    if let Run::Follows { generation, .. } = state.run {
        let why = "its primary has removed log that it lacks".to_owned();
        state.unfit = Some(Unfit { generation, why, forked: false });
    }
}

/// Takes note of a reading. `under` is the step that is under way.
pub fn note_reading(state: &mut State, reading: &Reading, under: Option<&Step>) -> Heard {
    let is_standby = matches!(state.run, Run::Fenced | Run::Follows { .. }) && !matches!(under, Some(Step::Promote(_)));
    if is_standby && !reading.in_recovery {
        state.outside = Outside::Runs;
        return Heard { ear: Ear::Deaf, whole: false };
    }
    let Run::Follows { generation, readers, .. } = &mut state.run else {
        return Heard { ear: Ear::Deaf, whole: false };
    };
    let timeline = words::timeline(*generation);
    let streams = reading.streams_from == Some(timeline);
    if streams && reading.timeline == timeline && *readers == Readers::No {
        *readers = Readers::May;
    }
    if reading.lacks_log {
        note_lack_of_log(state);
    }
    // What streamed with the old data may be read while that is overwritten.
    let is_new = !matches!(under, Some(Step::Overwrite { .. }));
    Heard { ear: Ear::Last(reading.heard), whole: streams && is_new && state.memory.overwriting }
}
