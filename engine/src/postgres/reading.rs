//! What a running server says of itself.

use super::configuration::{self, Changeable, PREFIX};
use super::error::Error;
use super::follow::timeline;
use super::processes::Messages;
use super::session::{OWN, Session};
use super::worker::Worker;
use super::{Position, Reading, Role, Server, Settings, Standby, credentials, limits};
use nix::sys::statvfs::statvfs;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// How long a reading waits for files: less than it may take, so that the volume alone does not keep a server from being read.
const FILES_LIMIT: Duration = Duration::from_millis(500);
/// How long a server may take to let a new session in.
const LETS_IN: Duration = Duration::from_secs(5);
/// What a server says to a new session once it was told to shut down. One that waits for its sessions to end before that serves them
/// meanwhile, this wrapper's as well: it would wait for these without end.
const SHUTTING_DOWN: &str = "the database system is shutting down";

/// What came of a new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knock {
    /// The server let it in, or said why not.
    Answered,
    /// It did not, in time.
    Unanswered,
    /// It was told to shut down.
    ShuttingDown,
}

/// The values that do not depend on the role.
const STATE: &str = "SELECT pg_is_in_recovery(), \
    (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text, \
    (SELECT received_tli FROM pg_stat_wal_receiver WHERE status = 'streaming'), \
    CASE WHEN NOT pg_is_in_recovery() THEN NULL \
        WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0 \
        ELSE (extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000)::bigint END, \
    ARRAY(SELECT name FROM pg_settings WHERE pending_restart ORDER BY name), \
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
        AND NOT $), \
    (SELECT max(age(datfrozenxid))::bigint FROM pg_database), \
    (SELECT coalesce(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
        ELSE pg_current_wal_flush_lsn() END, restart_lsn)), 0)::bigint FROM pg_replication_slots), \
    (SELECT (extract(epoch FROM last_msg_receipt_time) * 1000000)::bigint FROM pg_stat_wal_receiver), \
    pg_last_wal_receive_lsn()::text, \
    (SELECT greatest(pg_wal_lsn_diff(latest_end_lsn, pg_last_wal_receive_lsn()), 0)::bigint \
        FROM pg_stat_wal_receiver WHERE status = 'streaming'), \
    (SELECT floor(extract(epoch FROM clock_timestamp() - min(prepared)) / 60)::bigint FROM pg_prepared_xacts)";
/// The receivers of a primary. The last is the primary's own end, read after theirs.
const STANDBYS: &str = "SELECT pid, application_name, flush_lsn::text, replay_lsn::text, state = 'streaming', \
    coalesce(extract(epoch FROM reply_time) * 1000000, 0)::bigint, sent_lsn::text, pg_current_wal_flush_lsn()::text \
    FROM pg_stat_replication";

fn position(text: Option<String>) -> Position {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Whether `ALTER SYSTEM` has commits of all sessions wait for less than standbys. This wrapper's own sessions do not show it.
const WEAKENED: &str = "EXISTS (SELECT FROM pg_file_settings WHERE name = 'synchronous_commit' AND applied \
    AND lower(setting) NOT IN ('on', 'remote_apply', 'true', 'yes', '1'))";

/// Whether a standby says that it has flushed what the primary cannot have sent to it: then it is on another history.
///
/// A standby that connects is sent the log from the beginning of a file on, and says from the first moment how far its own is: while it
/// catches up, it may have more than was `sent`, but never more than the primary has. No commit waits for it meanwhile.
fn is_beyond(flushed: Position, streaming: bool, sent: Position, end: Position) -> bool {
    flushed > if streaming { sent } else { end }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The room on a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What a server may still use.
    pub free: u64,
    /// All of it.
    pub size: u64,
}

/// The room on the volume of a directory.
///
/// # Errors
/// If the directory is not there, or its volume does not answer.
pub fn space(directory: &Path) -> Result<Space, Error> {
    let failed = |error: nix::Error| Error::File { path: directory.to_owned(), source: error.into() };
    let volume = statvfs(directory).map_err(failed)?;
    let unit = volume.fragment_size();
    Ok(Space { free: volume.blocks_available() * unit, size: volume.blocks() * unit })
}

/// Reads a server while something else is done with it. It is of one role: another one is made when that changes.
#[derive(Clone, Debug)]
pub struct Reader {
    settings: Settings,
    role: Role,
    /// What the wrapper had written when this was made.
    written: Changeable,
    /// The limits that the server was started with.
    limits: limits::Limits,
    monitor: Monitor,
    messages: Messages,
}

/// What the readings of a server share.
#[derive(Clone, Debug, Default)]
pub(super) struct Monitor {
    /// It stays open.
    session: Arc<Mutex<Option<Session>>>,
    files: Arc<Mutex<Worker>>,
    answers: Arc<std::sync::Mutex<Answers>>,
}

/// The last answer that each sender of a primary had, by the receiver's clock, and when it was first seen.
#[derive(Debug, Default)]
struct Answers(BTreeMap<i32, (i64, Instant)>);

impl Answers {
    fn note(&mut self, answers: impl Iterator<Item = (i32, i64)>, now: Instant) {
        let before = std::mem::take(&mut self.0);
        let seen = |(pid, replied)| match before.get(&pid) {
            Some(known @ (last, _)) if *last == replied => (pid, *known),
            _ => (pid, (replied, now)),
        };
        self.0 = answers.map(seen).collect();
    }

    /// The senders whose receivers have answered within this time.
    fn within(&self, time: Duration, now: Instant) -> Vec<i32> {
        let recent = self.0.iter().filter(|(_, (_, at))| now.saturating_duration_since(*at) < time);
        recent.map(|(pid, _)| *pid).collect()
    }
}

impl Monitor {
    /// Takes the session that the last reading has left, unless another one is under way.
    pub fn take_session(&self) -> Option<Session> {
        self.session.try_lock().ok()?.take()
    }

    /// The senders whose receivers have answered within this time, when they were last read.
    pub fn answered(&self, time: Duration) -> Vec<i32> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).within(time, Instant::now())
    }
}

impl Server {
    /// What reads this server in the role that it has now.
    ///
    /// # Errors
    /// If the server does not run.
    pub fn reader(&self) -> Result<Reader, Error> {
        let running = self.living()?;
        let (role, written) = (running.role, running.changeable.clone());
        Ok(Reader {
            settings: self.settings.clone(),
            role,
            written,
            limits: running.limits,
            monitor: self.monitor.clone(),
            messages: running.process.messages(),
        })
    }

    /// What the server says of itself now, as [`Reader::read`].
    ///
    /// # Errors
    /// If the server does not run, or refuses or does not answer.
    pub async fn read(&self) -> Result<Reading, Error> {
        self.reader()?.read().await
    }
}

impl Reader {
    /// What the server says of itself now, in a session that stays open. A standby's password for the primary is
    /// brought up to date. A standby whose parameters are lower than those of its primary is told to end.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub async fn read(&self) -> Result<Reading, Error> {
        let mut kept = self.monitor.session.lock().await;
        let monitor = match kept.take() {
            Some(monitor) => monitor,
            None => Session::connect(&self.settings).await?,
        };
        // A session that failed is not used again.
        let reading = self.read_by(&monitor).await?;
        self.end_misled(&monitor).await?;
        self.end_low_limits(&monitor).await?;
        *kept = Some(monitor);
        Ok(reading)
    }

    /// The limits that are wanted now; those that the server has while its volume does not answer. A standby's password for the primary is
    /// brought up to date.
    async fn look_at_files(&self) -> limits::Limits {
        let (settings, follows) = (self.settings.clone(), matches!(self.role, Role::Follows { .. }));
        let work = move || {
            // It is healthy whatever is mounted: a complaint comes from the step that uses what has changed.
            if follows && let Err(error) = credentials::keep(&settings) {
                tracing::debug!(%error, "the replication role's password was not written");
            }
            limits::wanted(&settings)
        };
        let looked = timeout(FILES_LIMIT, async { self.monitor.files.lock().await.run(work).await }).await;
        match looked {
            Ok(Ok(wanted)) => return wanted,
            Ok(Err(error)) => tracing::debug!(%error, "the limits that are wanted are not known"),
            Err(_) => tracing::debug!("the volume has not answered for {FILES_LIMIT:?}"),
        }
        self.limits
    }

    /// Whether a standby that was not read lacks log that its primary has removed: one whose data was rewound accepts no session before it
    /// has received more.
    pub fn lacks_log(&self) -> bool {
        matches!(self.role, Role::Follows { .. }) && self.messages.lacks_log()
    }

    /// Tries a new session.
    pub async fn knock(&self) -> Knock {
        match timeout(LETS_IN, Session::connect(&self.settings)).await {
            Ok(Err(Error::NoSql { said, .. })) if said.contains(SHUTTING_DOWN) => Knock::ShuttingDown,
            Ok(session) if session.as_ref().err().is_none_or(Error::is_from_server) => Knock::Answered,
            _ => Knock::Unanswered,
        }
    }

    async fn read_by(&self, monitor: &Session) -> Result<Reading, Error> {
        let row = monitor.row_again("read the state", &STATE.replace('$', OWN)).await?;
        let standbys = match self.role {
            Role::Primary { generation } => self.standbys(monitor, generation).await?,
            Role::Fenced | Role::Follows { .. } => Vec::new(),
        };
        let timeline = match self.role {
            Role::Primary { generation } => generation,
            Role::Fenced | Role::Follows { .. } => timeline(monitor).await?,
        };
        let silent = matches!(self.role, Role::Follows { .. }) && row.get::<_, Option<i32>>(2).is_none();
        Ok(Reading {
            in_recovery: row.get(0),
            timeline,
            end: position(row.get(1)),
            streams_from: row.get::<_, Option<i32>>(2).map(i32::cast_unsigned),
            heard: row.get(8),
            received: position(row.get(9)),
            behind: row.get::<_, Option<i64>>(10).map(unsigned),
            standbys,
            replay_lag_ms: row.get::<_, Option<i64>>(3).map(unsigned),
            restart_pending: limits::pending(row.get(4), &self.limits, &self.look_at_files().await),
            connections: u32::try_from(row.get::<_, i64>(5)).unwrap_or(u32::MAX),
            oldest_xid_age: unsigned(row.get(6)),
            retained_wal_bytes: unsigned(row.get(7)),
            receiver_failure: self.messages.failure().filter(|_| silent),
            lacks_log: silent && self.messages.lacks_log(),
            prepared_for_minutes: row.get::<_, Option<i64>>(11).map_or(0, unsigned),
            cancelled_waits: self.messages.cancelled_waits(),
            overridden: self.overridden(monitor).await?,
        })
    }

    /// At a standby, ends the sessions that try to write again and again. Their clients were led here while it was the primary, or by an address
    /// that was out of date: in a pool they would stay, and fail, for as long as the pool keeps a session.
    async fn end_misled(&self, monitor: &Session) -> Result<(), Error> {
        let misled = self.messages.misled();
        if misled.is_empty() || !matches!(self.role, Role::Follows { .. }) {
            return Ok(());
        }
        let pids: Vec<String> = misled.iter().map(ToString::to_string).collect();
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = ANY ('{{{}}}') \
             AND backend_type = 'client backend' AND NOT {OWN}",
            pids.join(",")
        );
        let ended: i64 = monitor.row("end sessions that try to write", &end).await?.get(0);
        tracing::info!(ended, "sessions of clients that try to write at a standby are ended");
        Ok(())
    }

    /// A standby whose parameters are lower than those of the primary has paused its replay, without a limit. Resumed, it ends and says why;
    /// the next start gives it what it needs.
    async fn end_low_limits(&self, monitor: &Session) -> Result<(), Error> {
        if !self.messages.has_low_limits() || !matches!(self.role, Role::Follows { .. }) {
            return Ok(());
        }
        tracing::warn!(
            "replay is paused, since parameters of this standby are lower than the primary's: it starts again with greater ones"
        );
        monitor.rows("resume replay", "SELECT pg_wal_replay_resume()").await.map(drop)
    }

    /// The parameters that are not what this wrapper has written.
    async fn overridden(&self, monitor: &Session) -> Result<Vec<String>, Error> {
        let Changeable { rule, follows, .. } = &self.written;
        let (conninfo, slot) = follows.as_ref().map_or(("", ""), |(conninfo, slot)| (conninfo, slot));
        // Those that a reload changes, and that a superuser may have changed.
        let wanted =
            [("primary_conninfo", conninfo), ("primary_slot_name", slot), ("synchronous_standby_names", rule.as_str())];
        let settings = wanted.map(|(name, _)| format!("current_setting('{name}')")).join(", ");
        let shown = monitor.row_again("read the parameters", &format!("SELECT {settings}, {WEAKENED}")).await?;
        let overridden =
            wanted.iter().enumerate().filter(|(place, (_, wanted))| shown.get::<_, &str>(*place) != *wanted);
        let weakened = shown.get::<_, bool>(wanted.len()).then_some("synchronous_commit");
        Ok(overridden.map(|(_, (name, _))| *name).chain(weakened).map(str::to_owned).collect())
    }

    async fn standbys(&self, monitor: &Session, generation: u32) -> Result<Vec<Standby>, Error> {
        let mut standbys = Vec::new();
        let rows = monitor.rows_again("read the standbys", STANDBYS).await?;
        let answers = rows.iter().map(|row| (row.get(0), row.get(5)));
        self.monitor.answers.lock().unwrap_or_else(PoisonError::into_inner).note(answers, Instant::now());
        for row in rows {
            let (pid, name): (i32, String) = (row.get(0), row.get(1));
            let positions = (row.get::<_, Option<String>>(2), row.get::<_, Option<String>>(3));
            // It receives no log yet, or replays none.
            let (Some(flushed), Some(replayed)) = positions else { continue };
            let (flushed, replayed) = (position(Some(flushed)), position(Some(replayed)));
            let streaming: bool = row.get(4);
            if is_beyond(flushed, streaming, position(row.get(6)), position(row.get(7))) && name.starts_with(PREFIX) {
                tracing::error!(name, "a member has flushed what was never sent to it: it is disconnected");
                monitor.rows("end a sender", &format!("SELECT pg_terminate_backend({pid})")).await?;
                continue;
            }
            let Some(archive) = configuration::archive_of(&name, generation) else { continue };
            standbys.push(Standby { archive, flushed, replayed, streaming, replied: row.get(5) });
        }
        standbys.sort_by_key(|standby| standby.archive);
        Ok(standbys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_answered_when_its_answer_was_first_seen_whatever_its_clock_says() {
        let (mut answers, began) = (Answers::default(), Instant::now());
        let at = |s: u64| began + Duration::from_secs(s);
        answers.note([(7, 500), (8, -90)].into_iter(), at(0));
        answers.note([(7, 500), (8, -80), (9, 1)].into_iter(), at(4));
        assert_eq!(answers.within(Duration::from_secs(3), at(5)), [8, 9]);
        answers.note([(8, -80)].into_iter(), at(6));
        assert_eq!(answers.within(Duration::from_secs(9), at(6)), [8], "the others have ended");
    }

    #[test]
    fn a_standby_that_has_more_than_it_can_have_got_is_on_another_history() {
        let beyond = |flushed, streaming, sent| is_beyond(Position(flushed), streaming, Position(sent), Position(900));
        assert!(!beyond(800, false, 500), "it connects again: the file is sent from its begin");
        assert!(!beyond(900, false, 500));
        assert!(beyond(901, false, 500), "more than there is");
        assert!(!beyond(900, true, 900));
        assert!(beyond(900, true, 899), "it streams, and has what was not sent");
    }
}
