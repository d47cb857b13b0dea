//! Makes a server the primary of a generation, and admits clients.

use super::configuration;
use super::control_file::ControlFile;
use super::error::Error;
use super::hba::Admits;
use super::session::Session;
use super::start::is_ill;
use super::{Begins, Position, Role, Server, Settings, Stop, files, histories, slots};
use kaa_core::domain::ids::ArchiveId;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How often the state of a server that is promoted is asked for.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// How long a server may take to write that it is in production, after it has left recovery.
const CONTROL_FILE_LIMIT: Duration = Duration::from_secs(10);
/// The state of a standby in its control file.
const RECOVERING: &str = "in archive recovery";
/// How long it may refuse sessions for another reason than its recovery.
const ILL_LIMIT: Duration = Duration::from_secs(10);
/// How often it is reminded, until it has taken the file.
const REMIND_PERIOD: Duration = Duration::from_secs(1);

/// How long the first commit pauses after its wait was cancelled.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether there is the table into which each primary writes a row as the first record of its own. The highest number in it says of which
/// timeline a server holds the first record: no function of a fenced server tells that. A dump that is restored brings the rows of another
/// system, which count for nothing.
pub(super) const HAS_GENERATIONS: &str = "SELECT to_regclass('kaa.generations') IS NOT NULL";
/// The highest one.
pub(super) const LAST_GENERATION: &str = "SELECT coalesce(max(number), 0) FROM kaa.generations WHERE system = (SELECT system_identifier FROM pg_control_system())";
/// Makes the table.
const GENERATIONS: &str = "CREATE SCHEMA IF NOT EXISTS kaa; \
    CREATE TABLE kaa.generations (system bigint, number integer, commits bigint NOT NULL, begun timestamptz NOT NULL, \
        PRIMARY KEY (system, number)); ";
/// Writes the row.
const FIRST: &str = "INSERT INTO kaa.generations SELECT system_identifier, $, 1, clock_timestamp() FROM pg_control_system() \
    ON CONFLICT (system, number) DO UPDATE SET commits = generations.commits + 1";

/// The first own commit of a primary, under way. It is given up when this is dropped.
#[derive(Debug)]
pub(super) struct Establishing(JoinHandle<Result<Position, Error>>);

impl Drop for Establishing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn first_commit(settings: Settings, generation: u32) -> Result<Position, Error> {
    loop {
        let session = Session::connect(&settings).await?;
        let is_there = session.row("look for the generations", HAS_GENERATIONS).await?.get(0);
        let first = FIRST.replace('$', &generation.to_string());
        let statements = format!("BEGIN; {}{first}; COMMIT", if is_there { "" } else { GENERATIONS });
        session.run("write the first record of the generation", &statements).await?;
        // A wait that was cancelled proves nothing.
        if !session.was_cancelled() {
            return flushed(&session).await;
        }
        tracing::warn!("the wait for the first record was cancelled: it is written again");
        sleep(PAUSE).await;
    }
}

/// The end of the log that is flushed here.
pub(super) async fn flushed(session: &Session) -> Result<Position, Error> {
    let row = session.row("learn the end of the log", "SELECT pg_current_wal_flush_lsn()::text").await?;
    let text: String = row.get(0);
    text.parse().map_err(Error::Stuck)
}

impl Server {
    /// Makes a fenced server the primary of a generation, with its first rule. Clients are not admitted yet, and
    /// nothing is acknowledged. The caller has recorded durably that the server takes up this generation, which no
    /// server did before. Needs no SQL until the server is promoted; all log that the server has is replayed first,
    /// however long it takes.
    ///
    /// # Errors
    /// [`Error::State`] if the server is not fenced, or holds a timeline of this number. [`Error::Unusable`] if no name
    /// and password of the replication role are known. [`Error::Stuck`] if it has become something else than it should:
    /// it is stopped then.
    pub async fn promote(&mut self, generation: u32, rule: &[ArchiveId]) -> Result<Begins, Error> {
        if self.living()?.role != Role::Fenced {
            return Err(Error::State("only a fenced server is promoted".to_owned()));
        }
        // Afterwards it could let no standby connect, and the generation would be used up.
        self.check_replication()?;
        let settings = self.settings.clone();
        let planted = self.in_time(move || {
            let control = ControlFile::read(&settings)?;
            histories::plant(&settings, control.timeline.max(control.minimum_timeline), generation)
        });
        planted.await?;
        let text = configuration::rule(rule, generation);
        // From a rule under which nothing is released, at a server that acknowledges nothing: no proof is needed.
        if self.running()?.changeable.rule != text {
            match self.reload(|changeable| changeable.rule = text).await {
                Ok(_) => {}
                Err(Error::NoSql { said, .. }) => {
                    tracing::warn!(said, "the server is promoted although it refuses SQL")
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(running) = &mut self.running {
            running.role = Role::Primary { generation };
        }
        let session = self.signal_promotion().await?;
        let checked = match self.promoted(&session, generation).await {
            // Clients that were being let in as readers of a standby were not shown until now.
            Ok(begins) => self.end_clients(&session).await.map(|()| begins),
            Err(error) => Err(error),
        };
        if checked.is_err() {
            self.stop(Stop::Immediate).await?;
        }
        let begins = checked?;
        // Until now members could not connect, so the slots come first.
        self.provide_slots_by(&session, &rule.iter().copied().collect(), false).await?;
        self.reload(|changeable| changeable.admits = Admits::Standbys).await?;
        Ok(begins)
    }

    /// Whether the server is fenced, and no history of a later timeline than its data's continues that. A receiver may have fetched such a
    /// history and none of its log: a promotion would continue it from before the point where that timeline begins.
    pub async fn has_no_later_history(&mut self) -> bool {
        let settings = self.settings.clone();
        let look = move || {
            let control = ControlFile::read(&settings)?;
            Ok(histories::latest(&settings, &control)? == control.timeline.max(control.minimum_timeline))
        };
        self.is_fenced() && self.in_time(look).await.unwrap_or_default()
    }

    /// `pg_promote()` would need SQL, and looks only every 100 ms.
    async fn signal_promotion(&mut self) -> Result<Session, Error> {
        let (path, user) = (self.settings.pgdata().join("promote"), self.settings.user);
        let signal_file = path.clone();
        self.in_time(move || files::replace(&signal_file, b"", user)).await?;
        let mut remind_at = Instant::now();
        let (mut session, mut ill_since) = (None, None);
        loop {
            let running = self.living()?;
            if Instant::now() >= remind_at && path.exists() {
                running.process.signal(Signal::SIGUSR1);
                remind_at = Instant::now() + REMIND_PERIOD;
            }
            if session.is_none() {
                match Session::connect(&self.settings).await {
                    Ok(connected) => session = Some(connected),
                    Err(error) if is_ill(&error) => {
                        if ill_since.get_or_insert_with(Instant::now).elapsed() > ILL_LIMIT {
                            return Err(Error::Stuck(format!("the server refuses its wrapper: {error}")));
                        }
                    }
                    Err(_) => ill_since = None,
                }
            }
            if let Some(connected) = session.take() {
                let row = connected.row("ask whether the server is promoted", "SELECT pg_is_in_recovery()").await;
                match row {
                    Ok(row) if !row.get::<_, bool>(0) => return Ok(connected),
                    Ok(_) => session = Some(connected),
                    Err(error) => tracing::warn!(%error, "a session ended during the promotion"),
                }
            }
            sleep(LOOK_PERIOD).await;
        }
    }

    /// Checks what the server has become.
    async fn promoted(&mut self, session: &Session, generation: u32) -> Result<Begins, Error> {
        let row = session.row("learn the timeline", "SELECT pg_walfile_name(pg_current_wal_insert_lsn())").await?;
        let file: String = row.get(0);
        let settings = self.settings.clone();
        let begins = self.in_time(move || histories::beginning(&settings, generation)).await?;
        let mut state = self.control().await?.state;
        // It accepts sessions a moment before its control file is on disk.
        let began = Instant::now();
        while state == RECOVERING && began.elapsed() < CONTROL_FILE_LIMIT {
            sleep(LOOK_PERIOD).await;
            self.living()?;
            state = self.control().await?.state;
        }
        match begins {
            Some(begins) if file.starts_with(&format!("{generation:08X}")) && state == "in production" => Ok(begins),
            _ => Err(Error::Stuck(format!(
                "the server was to become the primary of generation {generation}, and writes {file}, with the state {state:?}"
            ))),
        }
    }

    /// Commits a first record of the generation under the rule, and gives an end of the log that is not before the
    /// record's. Waits as long as a member of the rule is away. May be dropped and called again.
    ///
    /// # Errors
    /// If the server is no primary, or has ended.
    pub async fn establish(&mut self) -> Result<Position, Error> {
        let generation = self.primary()?;
        let settings = self.settings.clone();
        let begin = || Establishing(tokio::spawn(first_commit(settings, generation)));
        let establishing = self.establishing.get_or_insert_with(begin);
        let done = (&mut establishing.0).await;
        self.establishing = None;
        done.unwrap_or_else(|error| Err(Error::Stuck(format!("the first commit was given up: {error}"))))
    }

    /// Admits clients to a primary. The caller has seen [`Server::establish`] come to its end.
    ///
    /// # Errors
    /// If the server is no primary, or does not answer.
    pub async fn open(&mut self) -> Result<(), Error> {
        self.primary()?;
        self.reload(|changeable| changeable.admits = Admits::All).await.map(drop)
    }

    /// Where the logs of the generations before this one begin, as the volume has them, the last one last.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn ancestors(&mut self, generation: u32) -> Result<Vec<Begins>, Error> {
        let settings = self.settings.clone();
        self.in_time(move || histories::ancestors(&settings, generation)).await
    }

    /// Writes a checkpoint. After a promotion it lets others rewind from this server.
    ///
    /// # Errors
    /// If the server does not answer, or has ended.
    pub async fn checkpoint(&mut self) -> Result<(), Error> {
        self.living()?;
        Session::connect(&self.settings).await?.run("write a checkpoint", "CHECKPOINT").await
    }

    /// Gives each of these archives a slot at this primary, and drops the slots of all others that are not in use. A
    /// standby connects only if it has one. Those of a rule get theirs without it.
    ///
    /// # Errors
    /// If the server is no primary, or does not answer.
    pub async fn provide_slots(&mut self, archives: &[ArchiveId]) -> Result<(), Error> {
        self.primary()?;
        let session = Session::connect(&self.settings).await?;
        self.provide_slots_by(&session, &archives.iter().copied().collect(), true).await
    }

    /// The same in a session; others are dropped only if told so.
    pub(super) async fn provide_slots_by(
        &self,
        session: &Session,
        archives: &BTreeSet<ArchiveId>,
        drop_others: bool,
    ) -> Result<(), Error> {
        let wanted: BTreeSet<String> = archives.iter().map(|archive| configuration::slot(*archive)).collect();
        let found = slots::list(session).await?;
        for slot in found.iter().filter(|slot| !slot.active) {
            if drop_others && !wanted.contains(&slot.name) {
                slots::remove(session, &slot.name).await?;
            } else if slot.lost {
                slots::renew(session, &slot.name).await?;
            }
        }
        // One that this server has kept as a standby retains what its member lacks.
        for name in wanted.iter().filter(|name| !found.iter().any(|it| it.name == **name)) {
            slots::make(session, name).await?;
        }
        Ok(())
    }

    /// The generation of a primary that runs.
    pub(super) fn primary(&self) -> Result<u32, Error> {
        match self.living()?.role {
            Role::Primary { generation } => Ok(generation),
            Role::Fenced | Role::Follows { .. } => Err(Error::State("the server is no primary".to_owned())),
        }
    }
}
