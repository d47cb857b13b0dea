//! What a primary sees of its standbys, and for how long it has not seen those that it waits for.

use crate::postgres::{Reader, Reading};
use crate::proto as wire;
use kaa_core::domain::ids::ArchiveId;
use kaa_core::replication::Ruling;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A standby whose flushed position is no further behind has caught up, in bytes.
const NEAR: u64 = 16 << 20;
/// How much longer a standby may take that was never seen: it has to hear of the primary first.
const FIRST: Duration = Duration::from_secs(8);

/// A standby that has streamed without an interruption for so long is steady.
const STEADY: Duration = Duration::from_secs(60);
/// A standby that does not answer for longer is interrupted.
const PAUSE: Duration = Duration::from_secs(2);

/// What a primary sees of its standbys.
#[derive(Default)]
pub struct Standbys {
    seen: BTreeMap<ArchiveId, Seen>,
    reader: Option<Reader>,
    /// When the server was last read: silence counts up to then, and not while the server itself does not answer.
    read: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Seen {
    flushed: u64,
    streams: bool,
    /// Since when it has streamed without an interruption.
    since: Instant,
    /// When its last answer was new.
    heard: Instant,
    replied: i64,
}

impl Standbys {
    /// Forgets all: the server is a primary no more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// What reads the server while a step holds it.
    pub fn reader(&self) -> Option<Reader> {
        self.reader.clone()
    }

    /// Keeps it.
    pub fn set_reader(&mut self, reader: Reader) {
        self.reader = Some(reader);
    }

    /// The server that it reads is replaced.
    pub fn forget_reader(&mut self) {
        self.reader = None;
    }

    /// Notes what was read. A member that the primary waits for and that is not there is silent from its first absence on.
    pub fn note(&mut self, reading: &Reading, ruling: &Ruling, now: Instant) {
        // After a pause of the wrapper or of the server the standbys are given time to be heard.
        let paused = self.read.is_some_and(|last| now.duration_since(last) > FIRST / 4);
        self.read = Some(now);
        let wanted = ruling.in_force.members.iter().chain(ruling.coming.iter().flat_map(|rule| &rule.members));
        let wanted: Vec<ArchiveId> = wanted.copied().collect();
        self.seen
            .retain(|archive, _| wanted.contains(archive) || reading.standbys.iter().any(|it| it.archive == *archive));
        for archive in wanted {
            self.seen.entry(archive).or_insert(Seen {
                flushed: 0,
                streams: false,
                since: now,
                heard: now + FIRST,
                replied: 0,
            });
        }
        for (archive, seen) in &mut self.seen {
            if paused {
                seen.heard = seen.heard.max(now);
            }
            if !reading.standbys.iter().any(|it| it.archive == *archive) {
                // Its position was that of a connection that is gone.
                (seen.flushed, seen.streams) = (0, false);
            }
        }
        for standby in &reading.standbys {
            let streams = standby.streaming && reading.end.0.saturating_sub(standby.flushed.0) <= NEAR;
            let before = self.seen.get(&standby.archive);
            let answered = before.is_none_or(|before| before.replied != standby.replied);
            let heard = before.filter(|_| !answered).map_or(now, |before| before.heard);
            let interrupted = !streams || now.saturating_duration_since(heard) > PAUSE;
            let since = before.filter(|before| before.streams && !interrupted).map_or(now, |before| before.since);
            let seen = Seen { flushed: standby.flushed.0, streams, since, heard, replied: standby.replied };
            self.seen.insert(standby.archive, seen);
        }
    }

    /// How far each has flushed the log, over the connection that it has now.
    pub fn flushed(&self) -> BTreeMap<ArchiveId, u64> {
        self.seen.iter().map(|(archive, seen)| (*archive, seen.flushed)).collect()
    }

    /// The same for an agent.
    pub fn said(&self) -> Vec<wire::Standby> {
        let Some(read) = self.read else { return Vec::new() };
        let said = |(archive, seen): (&ArchiveId, &Seen)| wire::Standby {
            archive: archive.0,
            streams: seen.streams,
            flushed: seen.flushed,
            // In whole seconds, so that it is not said again with every look.
            silent_ms: read.saturating_duration_since(seen.heard).as_secs() * 1000,
            steady: seen.streams && read.saturating_duration_since(seen.since) >= STEADY,
        };
        self.seen.iter().map(said).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{Position, Standby};
    use kaa_core::domain::ids::{Generation, SetVersion};
    use kaa_core::replication::Rule;

    fn reading(standbys: &[(u64, u64, i64)]) -> Reading {
        let standby = |(archive, flushed, replied): &(u64, u64, i64)| Standby {
            archive: ArchiveId(*archive),
            flushed: Position(*flushed),
            replayed: Position(*flushed),
            streaming: true,
            replied: *replied,
        };
        Reading {
            in_recovery: false,
            timeline: 2,
            end: Position(1000),
            standbys: standbys.iter().map(standby).collect(),
            ..Reading::of_test()
        }
    }

    fn ruling(members: &[u64]) -> Ruling {
        let members = members.iter().copied().map(ArchiveId).collect();
        Ruling::begin(Rule { generation: Generation(2), version: SetVersion(1), members }, 0)
    }

    fn silent(standbys: &Standbys, archive: u64) -> u64 {
        standbys.said().iter().find(|it| it.archive == archive).map_or(0, |it| it.silent_ms)
    }

    #[test]
    fn a_standby_is_silent_while_its_answers_are_not_new() {
        let (mut standbys, began, ruling) = (Standbys::default(), Instant::now(), ruling(&[2]));
        let at = |tenths: u64| began + Duration::from_millis(tenths * 100);
        standbys.note(&reading(&[(2, 990, 1)]), &ruling, at(0));
        for tenths in (5..=25).step_by(5) {
            standbys.note(&reading(&[(2, 990, 1)]), &ruling, at(tenths));
        }
        assert_eq!(silent(&standbys, 2), 2000, "connected, and it says nothing");
        standbys.note(&reading(&[(2, 995, 2)]), &ruling, at(30));
        assert_eq!(silent(&standbys, 2), 0);
        standbys.note(&reading(&[]), &ruling, at(35));
        assert_eq!((silent(&standbys, 2), standbys.flushed()[&ArchiveId(2)]), (0, 0), "its position is void at once");
    }

    #[test]
    fn a_standby_is_steady_once_it_has_streamed_for_a_minute() {
        let (mut standbys, began, ruling, mut looks) = (Standbys::default(), Instant::now(), ruling(&[2]), 0);
        // Looks twice a second until a time in seconds. Gives whether the standby is steady then.
        let mut until = |s: i64, seen: fn(i64) -> Vec<(u64, u64, i64)>| {
            while looks < 2 * s {
                looks += 1;
                let at = began + Duration::from_millis(500) * u32::try_from(looks).unwrap();
                standbys.note(&reading(&seen(looks)), &ruling, at);
            }
            standbys.said().iter().any(|it| it.archive == 2 && it.steady)
        };
        let (answers, silent) = (|look| vec![(2, 990, look)], |_| vec![(2, 990, 0)]);
        assert!(!until(59, answers));
        assert!(until(61, answers));
        assert!(!until(62, |_| Vec::new()), "its connection is gone");
        assert!(!until(121, answers));
        assert!(until(123, answers));
        assert!(until(125, silent), "it may answer in a moment");
        assert!(!until(127, silent), "it is connected, and does not answer");
    }

    #[test]
    fn a_pause_of_the_primary_is_no_silence_of_its_standbys() {
        let (mut standbys, began, ruling) = (Standbys::default(), Instant::now(), ruling(&[2]));
        standbys.note(&reading(&[(2, 990, 1)]), &ruling, began);
        standbys.note(&reading(&[(2, 990, 1)]), &ruling, began + Duration::from_secs(30));
        assert_eq!(silent(&standbys, 2), 0);
    }

    #[test]
    fn a_member_that_was_never_seen_has_more_time() {
        let (mut standbys, began, ruling) = (Standbys::default(), Instant::now(), ruling(&[2]));
        let mut at = began;
        while at < began + Duration::from_secs(11) {
            standbys.note(&reading(&[]), &ruling, at);
            at += Duration::from_millis(500);
            let early = at < began + Duration::from_secs(8);
            assert!(!early || silent(&standbys, 2) == 0);
        }
        assert!(silent(&standbys, 2) >= 2000);
    }
}
