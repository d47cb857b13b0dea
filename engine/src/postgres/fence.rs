//! Stops a server taking log, and finds the exact end of what it has; ends sessions of clients.

use super::configuration::{self, Changeable, NONE};
use super::error::Error;
use super::hba::Admits;
use super::proc::{children, may_serve};
use super::reload::Mounts;
use super::session::{OWN, Session};
use super::start::until_promoted;
use super::{Position, Role, Server, Stop, histories};
use kaa_core::domain::ids::ArchiveId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How often the state of a server that stops to take log is read.
const LOOK_PERIOD: Duration = Duration::from_millis(4);
/// How long its replay may stand still before it is stopped and started fenced.
const PROGRESS_LIMIT: Duration = Duration::from_secs(1);
/// The same after a fenced start, which leaves nothing else to do. A single record may need that long on a slow disk.
const FENCED_LIMIT: Duration = Duration::from_secs(60);

/// How long a process of the server may take until it is shown, or its client is let in.
const NAMELESS: Duration = Duration::from_millis(40);

/// A condition that finds the sessions of clients: all but this wrapper's. A sender that is in a database runs SQL as well.
fn clients() -> String {
    format!("(backend_type = 'client backend' OR (backend_type = 'walsender' AND datid IS NOT NULL)) AND NOT {OWN}")
}

/// The order in which sessions of clients end. A commit whose wait for members is cut off shows to others, although no member may have
/// it: it is given up once no one is left who could read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It has written nothing.
    Reads,
    Writes,
    /// Its commit waits for members.
    Waits,
}

/// The sessions of clients that are shown, by their process ids.
async fn shown(session: &Session) -> Result<BTreeMap<i32, Turn>, Error> {
    let list = format!(
        "SELECT pid, wait_event IS NOT DISTINCT FROM 'SyncRep', backend_xid IS NOT NULL FROM pg_stat_activity WHERE {}",
        clients()
    );
    let rows = session.rows("list the sessions of clients", &list).await?;
    let turn = |waits, writes| match (waits, writes) {
        (true, _) => Turn::Waits,
        (false, true) => Turn::Writes,
        (false, false) => Turn::Reads,
    };
    Ok(rows.iter().map(|row| (row.get(0), turn(row.get(1), row.get(2)))).collect())
}

/// Tells these sessions to end, unless they were told before.
///
/// Once: a backend that is told again while it reports that it ends may exit inside the signal's handler, and then it waits
/// for a lock that it holds itself. Such a server ends only by an immediate stop.
async fn tell(session: &Session, pids: impl Iterator<Item = i32>, told: &mut BTreeSet<i32>) -> Result<(), Error> {
    let new: Vec<String> = pids.filter(|pid| told.insert(*pid)).map(|pid| pid.to_string()).collect();
    if !new.is_empty() {
        let end = format!("SELECT pg_terminate_backend(pid) FROM unnest('{{{}}}'::int[]) AS pid", new.join(","));
        session.rows("end sessions of clients", &end).await?;
    }
    Ok(())
}

/// Whether one of those that were told is still there.
fn is_ending(told: &BTreeSet<i32>, living: &BTreeSet<Pid>) -> bool {
    told.iter().any(|pid| living.contains(&Pid::from_raw(*pid)))
}

/// A server in recovery at one moment.
struct Look {
    /// The end of what is replayed; a whole record's.
    replayed: Position,
    /// Whether the startup process has found the end of the log, and there is no receiver that could add to it.
    is_end: bool,
    receivers: Vec<i32>,
    /// Whether receivers of this run have flushed more than that: a part of a record, or records that are not replayed
    /// yet.
    has_more: bool,
}

impl Look {
    async fn take(session: &Session) -> Result<Self, Error> {
        let row = session.row("look at the recovery", LOOK).await?;
        let replayed: Option<String> = row.get(0);
        // Histories past it are removed: no position is not the first one.
        let replayed = replayed.ok_or_else(|| Error::Stuck("the server has no position of its replay".to_owned()))?;
        let replayed = replayed.parse().map_err(Error::Stuck)?;
        let (waits, receivers, has_more): (bool, Vec<i32>, bool) = (row.get(1), row.get(2), row.get(3));
        Ok(Self { replayed, is_end: waits && receivers.is_empty(), receivers, has_more })
    }
}

/// The position is read before the condition. So with two looks in a row the second one's position is that of a moment
/// after the first one's condition.
///
/// `pg_last_wal_receive_lsn()` is not the end: it may be inside a record, and is lost by a restart.
const LOOK: &str = "SELECT pg_last_wal_replay_lsn()::text, \
    (SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event = 'RecoveryRetrieveRetryInterval'), \
    ARRAY(SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'), \
    coalesce(pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn(), false)";

impl Server {
    /// Stops to take log, and gives the exact end of what the server has. A primary is stopped at once and started
    /// fenced; so is a standby whose replay stands still.
    ///
    /// # Errors
    /// [`Error::NoSql`] if the server is fenced, and accepts no session or replays one record for long: it can be promoted, but its end is not
    /// known.
    pub async fn fence(&mut self) -> Result<Position, Error> {
        self.fenced(NONE).await.map(|(end, _)| end)
    }

    /// The same for a server that is promoted next: a standby that runs is told in the same turn which members its commits will wait for.
    ///
    /// # Errors
    /// Those of [`Server::fence`].
    pub async fn fence_for_promotion(&mut self, generation: u32, rule: &[ArchiveId]) -> Result<Position, Error> {
        // Should it be a primary already, promoted by hand, an empty rule would release what waits there.
        let text = if rule.is_empty() { NONE.to_owned() } else { configuration::rule(rule, generation) };
        self.fenced(&text).await.map(|(end, _)| end)
    }

    /// The same, with a session that was made since.
    pub(super) async fn fenced(&mut self, rule: &str) -> Result<(Position, Session), Error> {
        let (end, session) = self.taken(rule).await?;
        let settings = self.settings.clone();
        let unreached = self.in_time(move || histories::unreached(&settings, end)).await?;
        if unreached.is_empty() {
            return Ok((end, session));
        }
        // Recovery goes along one of them. A promotion would continue it, from before the point where it begins.
        tracing::info!(?unreached, %end, "timelines whose histories were received, and no log: forgotten");
        self.stop(Stop::Immediate).await?;
        let settings = self.settings.clone();
        self.in_time(move || histories::forget(&settings, &unreached)).await?;
        self.start_fenced().await?;
        self.exact_end().await
    }

    /// Stops to take log, and gives the end of it.
    async fn taken(&mut self, rule: &str) -> Result<(Position, Session), Error> {
        self.establishing = None;
        match self.living().map(|running| running.role) {
            Ok(Role::Fenced) => return self.exact_end().await,
            Ok(Role::Follows { .. }) => match self.stop_taking(rule).await {
                Ok(taken) => return Ok(taken),
                // A start would make a standby of it again, and hide what it wrote.
                Err(error) if error.is_from_server() && self.was_promoted().await => return Err(Error::Promoted),
                Err(error) => tracing::warn!(%error, "the standby does not stop to take log: it is started fenced"),
            },
            Ok(Role::Primary { .. }) | Err(_) => {}
        }
        self.stop(Stop::Immediate).await?;
        self.start_fenced().await?;
        self.exact_end().await
    }

    /// Whether a server that was started as a standby says that it is none.
    async fn was_promoted(&self) -> bool {
        let look = async {
            let session = Session::connect(&self.settings).await?;
            session.row("look at the role", "SELECT NOT pg_is_in_recovery()").await
        };
        timeout(PROGRESS_LIMIT, look).await.is_ok_and(|row| row.is_ok_and(|row| row.get(0)))
    }

    /// Has a standby that runs stop to take log.
    async fn stop_taking(&mut self, rule: &str) -> Result<(Position, Session), Error> {
        let fence = |changeable: &mut Changeable| {
            changeable.follows = None;
            changeable.admits = Admits::Wrapper;
            rule.clone_into(&mut changeable.rule);
        };
        let session = self.reload(fence).await?;
        let end = self.await_end(&session, PROGRESS_LIMIT).await?;
        if let Some(running) = &mut self.running {
            running.role = Role::Fenced;
        }
        Ok((end, session))
    }

    /// The exact end of a server that was fenced by a start.
    async fn exact_end(&self) -> Result<(Position, Session), Error> {
        let mut refused_since = None;
        let session = loop {
            let is_consistent = self.living()?.process.is_consistent();
            match Session::connect(&self.settings).await {
                Ok(session) => break session,
                Err(error) => {
                    let since: Instant = *refused_since.get_or_insert_with(Instant::now);
                    if is_consistent && since.elapsed() > PROGRESS_LIMIT {
                        return Err(until_promoted(&error));
                    }
                    if since.elapsed() > FENCED_LIMIT {
                        return Err(error);
                    }
                }
            }
            sleep(LOOK_PERIOD).await;
        };
        Ok((self.await_end(&session, FENCED_LIMIT).await?, session))
    }

    /// Waits for the end of replay. The session was made after the server was told to follow no other one.
    async fn await_end(&self, session: &Session, limit: Duration) -> Result<Position, Error> {
        let mut told = BTreeSet::new();
        let (mut progress, mut before, mut looked_again) = (Instant::now(), None, false);
        loop {
            let postmaster = self.living()?.process.pid();
            // Readers and a paused replay would delay the rest, a pause without limit. None of them is to see what comes after.
            tell(session, shown(session).await?.into_keys(), &mut told).await?;
            session.rows("resume replay", "SELECT pg_wal_replay_resume()").await?;
            let look = Look::take(session).await?;
            for pid in &look.receivers {
                // It may be of another history: then it would stay. It is no backend, so that SQL does not end it.
                let pid = Pid::from_raw(*pid);
                if children(postmaster)?.contains(&pid) {
                    let _ = kill(pid, Signal::SIGTERM);
                }
            }
            let is_end = look.is_end && !is_ending(&told, &children(postmaster)?);
            match before {
                Some((_, true)) if is_end && (looked_again || !look.has_more) => return Ok(look.replayed),
                Some((_, true)) if is_end => {
                    self.have_it_look_again(session).await?;
                    (looked_again, before) = (true, None);
                    continue;
                }
                Some((replayed, _)) if replayed == look.replayed => {}
                _ => progress = Instant::now(),
            }
            if progress.elapsed() > limit {
                let said = format!("replay stands still at {}", look.replayed);
                // At the end of its log it is a session that does not end, and a promotion would not end it.
                return Err(if look.is_end { Error::Stuck(said) } else { Error::NoSql { heard: true, said } });
            }
            before = Some((look.replayed, is_end));
            if !is_end {
                sleep(LOOK_PERIOD).await;
            }
        }
    }

    /// Has a startup process that was seen waiting look for more log once more. When its receiver ends it may wait
    /// before it has read what that one flushed last. A request to pause wakes it, and it confirms the pause only after
    /// it has read on.
    async fn have_it_look_again(&self, session: &Session) -> Result<(), Error> {
        session.rows("pause replay", "SELECT pg_wal_replay_pause()").await?;
        let asked = Instant::now();
        loop {
            self.living()?;
            let state = session.row("look at the pause", "SELECT pg_get_wal_replay_pause_state()").await?;
            if state.get::<_, &str>(0) == "paused" {
                return session.rows("resume replay", "SELECT pg_wal_replay_resume()").await.map(drop);
            }
            if asked.elapsed() > PROGRESS_LIMIT {
                return Err(Error::Stuck("replay does not pause".to_owned()));
            }
            sleep(LOOK_PERIOD).await;
        }
    }

    /// Admits no clients, and ends their sessions. The server keeps its role; standbys stay connected.
    ///
    /// # Errors
    /// If the server does not answer, or a session does not end: then only a stop closes it.
    pub async fn close(&mut self) -> Result<(), Error> {
        // What it waited for says nothing of the commits that end now.
        self.establishing = None;
        let admits = match self.living()?.role {
            Role::Primary { .. } => Admits::Standbys,
            Role::Fenced | Role::Follows { .. } => Admits::Wrapper,
        };
        let session = self.reload_with(Mounts::Unread, |changeable| changeable.admits = admits).await?;
        self.end_clients(&session).await
    }

    /// Ends the sessions of clients in their [`Turn`]s, and first those that were being let in when the server was told to admit none:
    /// these are not shown.
    pub(super) async fn end_clients(&self, session: &Session) -> Result<(), Error> {
        let postmaster = self.living()?.process.pid();
        let mut unknown = children(postmaster)?;
        let others = format!("SELECT pid FROM pg_stat_activity WHERE NOT ({})", clients());
        let began = Instant::now();
        let mut told = BTreeSet::new();
        loop {
            self.living()?;
            let shown = shown(session).await?;
            let living = children(postmaster)?;
            // A library's process may never be shown, and does not end when it is told to.
            unknown.retain(|pid| living.contains(pid) && !shown.contains_key(&pid.as_raw()) && may_serve(*pid));
            // A session of this wrapper may have been made meanwhile.
            for row in session.rows("list the processes", &others).await? {
                unknown.remove(&Pid::from_raw(row.get(0)));
            }
            // Also a session of this wrapper that was told before it had its name: a stop would tell it again.
            if shown.is_empty() && unknown.is_empty() && !is_ending(&told, &living) {
                return Ok(());
            }
            // Who is being let in may read as well.
            let turn = if unknown.is_empty() { shown.values().min().copied() } else { Some(Turn::Reads) };
            let next = shown.iter().filter(|(_, its)| Some(**its) == turn).map(|(pid, _)| *pid);
            tell(session, next, &mut told).await?;
            // A process of the server's own that has begun just now is shown in a moment.
            let nameless = unknown.iter().filter(|_| began.elapsed() > NAMELESS);
            for pid in nameless.filter(|pid| told.insert(pid.as_raw())) {
                let _ = kill(*pid, Signal::SIGTERM);
            }
            if began.elapsed() > FENCED_LIMIT {
                return Err(Error::Stuck(format!("{} sessions of clients do not end", shown.len())));
            }
            sleep(LOOK_PERIOD).await;
        }
    }
}
