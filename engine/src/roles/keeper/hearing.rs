//! Whether a standby hears its primary.

use crate::roles::decide::Run;
use kaa_core::domain::ids::Generation;
use kaa_core::replication::{Assignment, Wanted};
use std::time::Duration;
use tokio::time::Instant;

/// A primary that was not heard for so long is silent. It writes something twice a second.
const SILENT: Duration = Duration::from_secs(1);
/// The same if the server that should hear it does not answer this wrapper.
const UNKNOWN: Duration = Duration::from_secs(5);
/// From then on the server is read more often.
const DOUBTFUL: Duration = Duration::from_millis(600);
/// And up to then: a server that is fenced hears nothing for long.
const LATELY: Duration = Duration::from_secs(10);
/// After a longer pause of the wrapper the primary is given time to be heard.
const PAUSED: Duration = Duration::from_secs(1);

/// What is known of the server that should hear a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ear {
    /// It does not follow the primary: it does not run, or has not got that far.
    Deaf,
    /// It does not answer its wrapper.
    Unknown,
    /// Its own time of the last message; `None` if it is not connected.
    Last(Option<i64>),
}

/// What a standby has heard of its primary.
#[derive(Default)]
pub struct Hearing(Option<Heard>);

struct Heard {
    generation: Generation,
    message: Option<i64>,
    /// When that was new.
    at: Instant,
    /// When it was looked after last, and what was found.
    looked: Instant,
    ear: Ear,
}

impl Hearing {
    /// Takes note of how it is with a server that is to follow the primary of a generation.
    fn note(&mut self, generation: Generation, ear: Ear, now: Instant) {
        let before = self.0.as_ref().filter(|it| it.generation == generation);
        let known = before.and_then(|it| it.message);
        let message = match ear {
            Ear::Last(message) => message,
            Ear::Deaf => None,
            Ear::Unknown => known,
        };
        // An answer that does not come takes longer than that.
        let answers = ear != Ear::Unknown;
        let paused = answers && before.is_some_and(|it| now.saturating_duration_since(it.looked) > PAUSED);
        let is_new = before.is_none() || (message.is_some() && message != known);
        let at = before.filter(|_| !is_new && !paused).map_or(now, |it| it.at);
        self.0 = Some(Heard { generation, message, at, looked: now, ear });
    }

    /// Takes note of whether a server hears the primary of the current generation.
    pub fn look(&mut self, run: &Run, wanted: Option<&Assignment>, ear: Ear, now: Instant) {
        let wanted = match wanted.map(|wanted| &wanted.what) {
            // It is told to hold if the process of the primary was removed.
            Some(Wanted::Follow { generation, .. } | Wanted::Hold(generation)) => *generation,
            _ => return self.clear(),
        };
        let follows = matches!(run, Run::Follows { generation, .. } if *generation == wanted);
        self.note(wanted, if follows { ear } else { Ear::Deaf }, now);
    }

    /// Forgets all: the server is to follow no other.
    fn clear(&mut self) {
        self.0 = None;
    }

    /// The generation whose primary it has not heard for a while.
    pub fn unheard(&self) -> Option<Generation> {
        self.silent_for(SILENT)
    }

    /// Whether it is to be read more often.
    pub fn is_doubtful(&self) -> bool {
        let lately = self.0.as_ref().is_some_and(|it| it.looked.saturating_duration_since(it.at) < LATELY);
        lately && self.silent_for(DOUBTFUL).is_some()
    }

    fn silent_for(&self, time: Duration) -> Option<Generation> {
        let silent = |it: &&Heard| {
            let time = if it.ear == Ear::Unknown { UNKNOWN } else { time };
            it.looked.saturating_duration_since(it.at) >= time
        };
        self.0.as_ref().filter(silent).map(|it| it.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::Ear::{Deaf, Last, Unknown};
    use super::*;

    /// What is said after looks at these times, in tenths of a second.
    fn said(looks: &[(u64, Ear)]) -> Option<u64> {
        let (mut hearing, began) = (Hearing::default(), Instant::now());
        for (tenths, ear) in looks {
            hearing.note(Generation(3), *ear, began + Duration::from_millis(tenths * 100));
        }
        hearing.unheard().map(|generation| generation.0)
    }

    #[test]
    fn a_primary_is_silent_once_nothing_new_has_come_for_a_second() {
        let last = |message| Last(Some(message));
        assert_eq!(said(&[(0, last(1)), (5, last(2)), (10, last(3)), (15, last(3))]), None);
        assert_eq!(said(&[(0, last(1)), (5, last(1)), (9, last(1))]), None);
        assert_eq!(said(&[(0, last(1)), (5, last(1)), (10, last(1))]), Some(3), "connected, and nothing comes");
        assert_eq!(said(&[(0, last(1)), (5, Last(None)), (10, Last(None))]), Some(3), "not connected");
        assert_eq!(said(&[(0, Deaf), (5, Deaf), (10, Deaf)]), Some(3), "it never was");
        assert_eq!(said(&[(0, last(1)), (5, Last(None)), (10, Last(None)), (11, last(2))]), None, "it is heard again");
    }

    #[test]
    fn a_pause_of_the_standby_is_no_silence_of_its_primary() {
        let last = |message| Last(Some(message));
        assert_eq!(said(&[(0, last(1)), (5, last(1)), (90, last(1))]), None);
        assert_eq!(said(&[(0, last(1)), (90, Deaf), (95, Deaf), (100, Deaf)]), Some(3));
    }

    #[test]
    fn a_server_that_does_not_answer_has_more_time() {
        let unknown = |until: u64| {
            let looks: Vec<_> =
                [(0, Last(Some(1)))].into_iter().chain((1..=until).map(|at| (at * 20, Unknown))).collect();
            said(&looks)
        };
        assert_eq!([1, 2, 3].map(unknown), [None, None, Some(3)]);
    }
}
