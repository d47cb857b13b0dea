//! What people are told of the server, from the last reading and the volume.

use super::volume::Volume;
use crate::postgres::{self, Expiry, Reading, Settings, Space};
use crate::proto as wire;
use std::time::Duration;
use tokio::time::Instant;

/// How often agents are told something new, at most.
const PERIOD: Duration = Duration::from_secs(1);
/// A server that was not read for so long does not answer.
const SILENT: Duration = Duration::from_secs(5);
/// The free space is told in units of this, so that a database that rests is quiet; in bytes.
const UNIT: u64 = 1 << 20;

/// With less room than this, in bytes, a server is not to be the primary...
const ROOM: u64 = 256 << 20;
/// ...or with less than this part of a smaller volume.
const PART_OF_ROOM: u64 = 16;

/// A standby that has so much log to replay, in bytes, is not to be the primary either: it would take seconds.
const BACKLOG: u64 = 256 << 20;

/// It has enough room, or little to replay, once it had so for this long. The delay saves entries in every log.
const ENOUGH_AFTER: Duration = Duration::from_secs(60);

/// Keeps what is told, and when it may change.
pub(super) struct Watch {
    volume: Volume,
    /// The last reading of the server that runs, as it is told, and when it was made.
    read: Option<(wire::Vitals, Instant)>,
    /// Whether it has let no new session in, when that was tried last.
    shut: bool,
    /// When a standby was last seen to have replayed all that it had received.
    caught_up: Option<Instant>,
    said: Option<wire::Vitals>,
    next: Instant,
    /// When the volume last had too little room, if it has not had enough for long since.
    short_of_room: Option<Instant>,
    /// When the standby last had much log to replay, if it has not had little for long since.
    late: Option<Instant>,
    /// Until then a server that was never read is given time to start.
    starts_until: Instant,
}

impl Watch {
    /// Nothing was read yet of the server with these settings.
    pub fn new(settings: Settings) -> Self {
        let now = Instant::now();
        Self {
            volume: Volume::of(settings),
            read: None,
            shut: false,
            caught_up: None,
            said: None,
            next: now,
            short_of_room: None,
            late: None,
            starts_until: now + SILENT,
        }
    }

    /// Takes note of a reading.
    pub fn note(&mut self, reading: &Reading, now: Instant) {
        // The time of the last commit that was replayed alone would tell that a server which rested for an hour lags by an hour.
        let behind = reading.replay_lag_ms.filter(|_| reading.streams_from.is_some());
        let is_late = reading.in_recovery && reading.received.0.saturating_sub(reading.end.0) >= BACKLOG;
        self.late = lately(self.late, is_late, now);
        if behind == Some(0) {
            self.caught_up = Some(now);
        }
        let since = self.caught_up.map_or(u64::MAX, |at| millis(now.saturating_duration_since(at)));
        let connection = |standby: &postgres::Standby| wire::Connection {
            archive: standby.archive.0,
            flushed: standby.flushed.0,
            replayed: standby.replayed.0,
            streams: standby.streaming,
        };
        let vitals = wire::Vitals {
            answers: true,
            end: reading.end.0,
            connections: reading.standbys.iter().map(connection).collect(),
            replay_lag_ms: behind.map(|lag| lag.min(since)),
            restart_pending: reading.restart_pending.clone(),
            clients: reading.connections,
            oldest_xid_age: reading.oldest_xid_age,
            retained_log_bytes: reading.retained_wal_bytes,
            overridden: reading.overridden.clone(),
            prepared_for_minutes: reading.prepared_for_minutes,
            cancelled_waits: reading.cancelled_waits,
            ..wire::Vitals::default()
        };
        self.read = Some((vitals, now));
    }

    /// Whether the volume has too little room for a primary. One whose room is not known has enough.
    pub fn is_short_of_room(&mut self, now: Instant) -> bool {
        if let Some(space) = self.volume.space() {
            self.short_of_room = short(self.short_of_room, space, now);
        }
        self.short_of_room.is_some()
    }

    /// Whether the server is a standby that has much log to replay.
    pub fn replays_late(&mut self, now: Instant) -> bool {
        self.late = lately(self.late, false, now);
        self.late.is_some()
    }

    /// Takes note of whether the server lets a new session in.
    pub fn knocked(&mut self, lets_in: bool) {
        self.shut = !lets_in;
    }

    /// Whether the server was read a moment ago, and lets new sessions in.
    pub fn answers(&self, now: Instant) -> bool {
        self.current(now).is_some()
    }

    fn current(&self, now: Instant) -> Option<&wire::Vitals> {
        let fresh = |at: Instant| now.saturating_duration_since(at) < SILENT;
        self.read.as_ref().filter(|(_, at)| !self.shut && fresh(*at)).map(|(vitals, _)| vitals)
    }

    /// The server has ended, or is another one.
    pub fn clear(&mut self) {
        (self.read, self.caught_up, self.late, self.shut) = (None, None, None, false);
    }

    /// What is to be told now; `None` until there is something. It stays the same for at least [`PERIOD`], unless the server begins
    /// or ceases to answer, or a primary closes or opens.
    pub fn told(&mut self, closed: bool, now: Instant) -> Option<wire::Vitals> {
        let current = self.current(now);
        let turns = match &self.said {
            None => current.is_some() || now >= self.starts_until,
            Some(said) => (said.answers, said.closed) != (current.is_some(), closed),
        };
        if turns || (self.said.is_some() && now >= self.next) {
            let mut vitals = current.cloned().unwrap_or_default();
            if let Some(space) = self.volume.space() {
                (vitals.free_bytes, vitals.size_bytes) = (space.free / UNIT * UNIT, space.size);
            }
            let Expiry { certificate, authority } = self.volume.expiry();
            (vitals.certificate_not_after, vitals.authority_not_after) = (certificate, authority);
            let application = self.volume.application();
            vitals.application = application.map(|(user, database)| wire::Application { user, database });
            vitals.closed = closed;
            self.next = now + PERIOD;
            self.said = Some(vitals);
        }
        self.said.clone()
    }
}

/// When something was last so, if that was less than [`ENOUGH_AFTER`] ago.
fn lately(last: Option<Instant>, is_so: bool, now: Instant) -> Option<Instant> {
    let last = if is_so { Some(now) } else { last };
    last.filter(|last| now.saturating_duration_since(*last) < ENOUGH_AFTER)
}

/// When the volume last had too little room; `None` after [`ENOUGH_AFTER`] with enough.
fn short(last: Option<Instant>, Space { free, size }: Space, now: Instant) -> Option<Instant> {
    lately(last, free < ROOM.min(size / PART_OF_ROOM), now)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Position;
    use std::path::Path;

    fn a_watch() -> Watch {
        Watch::new(Settings::of_test(Path::new("/")))
    }

    fn reading(end: u64, lag_ms: u64) -> Reading {
        Reading {
            timeline: 2,
            end: Position(end),
            streams_from: Some(2),
            replay_lag_ms: Some(lag_ms),
            connections: 3,
            oldest_xid_age: 7,
            ..Reading::of_test()
        }
    }

    /// `end lag` of what is told at a time in milliseconds, or that the server does not answer.
    fn told(watch: &mut Watch, began: Instant, ms: u64) -> String {
        let Some(vitals) = watch.told(false, began + Duration::from_millis(ms)) else { return "nothing".to_owned() };
        assert!(vitals.size_bytes > 0, "the volume is told in any case");
        match vitals.answers {
            true => format!("{} {:?}", vitals.end, vitals.replay_lag_ms),
            false => "silent".to_owned(),
        }
    }

    #[test]
    fn what_changes_with_every_reading_is_told_once_a_second() {
        let (mut watch, began) = (a_watch(), Instant::now());
        let mut seen = Vec::new();
        for half in 0..8 {
            watch.note(&reading(half, 0), began + Duration::from_millis(half * 500));
            seen.push(told(&mut watch, began, half * 500 + 1));
        }
        seen.dedup();
        assert_eq!(seen, ["0 Some(0)", "2 Some(0)", "4 Some(0)", "6 Some(0)"]);
    }

    #[test]
    fn that_a_primary_closes_or_opens_is_told_at_once() {
        let (mut watch, began) = (a_watch(), Instant::now());
        watch.note(&reading(5, 0), began);
        let mut at = |closed: bool, ms: u64| watch.told(closed, began + Duration::from_millis(ms)).unwrap().closed;
        assert_eq!(
            [(false, 0), (true, 10), (true, 20), (false, 30)].map(|(closed, ms)| at(closed, ms)),
            [false, true, true, false]
        );
    }

    #[test]
    fn when_its_certificates_expire_is_told_also_of_a_server_that_does_not_run() {
        let volume = tempfile::tempdir().unwrap();
        std::fs::create_dir(volume.path().join("conf")).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        for (name, year) in [("tls.crt", 2030), ("ca.crt", 2040)] {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            std::fs::write(volume.path().join("conf").join(name), params.self_signed(&key).unwrap().pem()).unwrap();
        }
        let settings = Settings { tls: Some("/mounted".into()), ..Settings::of_test(volume.path()) };
        let vitals = Watch::new(settings).told(false, Instant::now() + SILENT).unwrap();
        let told = (vitals.answers, vitals.certificate_not_after, vitals.authority_not_after);
        assert_eq!(told, (false, Some(1_893_456_000), Some(2_208_988_800)));
    }

    #[test]
    fn a_volume_has_too_little_room_until_it_has_had_enough_for_a_minute() {
        let (mut last, began) = (None, Instant::now());
        let mut at = |s: u64, free_mib: u64, size_mib: u64| {
            last = short(last, Space { free: free_mib << 20, size: size_mib << 20 }, began + Duration::from_secs(s));
            last.is_some()
        };
        assert!(!at(0, 256, 102_400));
        assert!(at(1, 255, 102_400));
        assert!(at(60, 1_000, 102_400));
        assert!(!at(61, 1_000, 102_400));
        assert!(!at(62, 64, 1_024));
        assert!(at(63, 63, 1_024), "a sixteenth of a small volume");
    }

    #[test]
    fn a_standby_replays_late_until_it_has_had_little_to_replay_for_a_minute() {
        let (mut watch, began) = (a_watch(), Instant::now());
        let mut at = |s: u64, in_recovery: bool, backlog: u64| {
            let received = Position((1 << 40) + backlog);
            let now = began + Duration::from_secs(s);
            watch.note(&Reading { in_recovery, received, ..reading(1 << 40, 0) }, now);
            watch.replays_late(now)
        };
        assert!(!at(0, true, BACKLOG - 1));
        assert!(!at(1, false, BACKLOG), "a primary replays nothing");
        assert!(at(2, true, BACKLOG));
        assert!(at(61, true, 0));
        assert!(!at(62, true, 0));
        assert!(!at(63, true, 1 << 20), "it may be behind what it has received by a little, always");
        assert!(at(64, true, 1 << 40));
        watch.clear();
        assert!(!watch.replays_late(began + Duration::from_secs(65)), "it has ended");
    }

    #[test]
    fn a_server_that_lets_no_new_session_in_does_not_answer_although_it_is_read() {
        let (mut watch, began) = (a_watch(), Instant::now());
        watch.note(&reading(5, 0), began);
        assert_eq!(told(&mut watch, began, 0), "5 Some(0)");
        watch.knocked(false);
        assert_eq!(told(&mut watch, began, 10), "silent");
        watch.knocked(true);
        assert_eq!(told(&mut watch, began, 20), "5 Some(0)");
    }

    #[test]
    fn a_server_that_is_not_read_any_more_does_not_answer() {
        let (mut watch, began) = (a_watch(), Instant::now());
        assert_eq!(told(&mut watch, began, 0), "nothing", "it may start");
        assert_eq!(told(&mut a_watch(), began, 5100), "silent", "it has not started");
        watch.note(&reading(5, 0), began);
        assert_eq!(told(&mut watch, began, 4000), "5 Some(0)");
        assert_eq!(told(&mut watch, began, 5000), "silent");
        watch.note(&reading(6, 0), began + Duration::from_secs(6));
        assert_eq!(told(&mut watch, began, 6000), "6 Some(0)");
        watch.clear();
        assert_eq!(told(&mut watch, began, 6001), "silent", "it has ended");
    }

    #[test]
    fn a_standby_of_a_primary_that_rested_lags_no_longer_than_it_was_seen_to() {
        let (mut watch, began) = (a_watch(), Instant::now());
        let mut lag = |ms: u64, read: Reading| {
            watch.note(&read, began + Duration::from_millis(ms));
            watch.read.as_ref().unwrap().0.replay_lag_ms
        };
        assert_eq!(lag(0, reading(1, 3_600_000)), Some(3_600_000), "nothing is known of the time before");
        assert_eq!(lag(500, reading(2, 0)), Some(0));
        assert_eq!(lag(1000, reading(3, 3_600_000)), Some(500), "one commit came in after an hour");
        assert_eq!(lag(1500, reading(3, 200)), Some(200));
        assert_eq!(lag(2000, Reading { streams_from: None, ..reading(3, 0) }), None, "it may lack anything");
    }
}
