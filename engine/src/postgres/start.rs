//! Makes, starts and stops a server. Every start is fenced.

use super::configuration::{self, Changeable, NONE};
use super::control_file::{self, ControlFile, end_after_stop};
use super::error::Error;
use super::messages::is_last_word;
use super::overwrite::COPY;
use super::proc::{self, children};
use super::processes::SERVER;
use super::reading::Monitor;
use super::reload::Mounts;
use super::session::Session;
use super::{Data, Position, Role, Running, Server, Settings, Source, Stop, files, histories, limits};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A server that starts is asked for a session after this, and then at growing intervals: it logs each refusal.
const LOOK_FIRST: Duration = Duration::from_millis(10);
/// The longest interval.
const LOOK_LAST: Duration = Duration::from_millis(250);
/// How long a postmaster may take from its start until recovery has begun. After a crash it first flushes the whole directory: the time counts
/// from its last word of that.
const START_LIMIT: Duration = Duration::from_secs(600);
/// How long after that it may refuse sessions before the caller hears that it runs.
const SESSION_LIMIT: Duration = Duration::from_secs(2);
/// How long backends may take to obey an immediate stop, before they are killed.
const QUIT_LIMIT: Duration = Duration::from_secs(1);
/// How long a disk may take to take the files of the configuration.
const FILES_LIMIT: Duration = Duration::from_secs(20);
/// The first major version whose `initdb` takes parameters of the server.
const INITDB_SETS: u32 = 16;
/// How much log a receiver outside the rule may lack when the server stops, in bytes: it gets that in a part of a second.
const SLOW: u64 = 16 << 20;

/// Within this time a receiver has answered that is not frozen.
const ANSWERS: Duration = Duration::from_secs(3);

/// The statement that ends slow senders. Those of the members that the rule names stay, and between two rules those of all members. `answered`:
/// the senders whose receivers are not frozen. A frozen one would not take the word that its connection ends, which the sender waits to
/// send; without one `wal_sender_timeout` ends it.
fn end_slow(rule: &str, answered: &[i32]) -> String {
    let copies = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = '{COPY}'");
    if rule == NONE {
        return copies;
    }
    let (members, pids) =
        (configuration::named(rule), answered.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    format!(
        "{copies} OR application_name <> ALL ('{{{members}}}') AND pid = ANY ('{{{pids}}}') \
         AND coalesce(flush_lsn, write_lsn, '0/0') + {SLOW} < \
         CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END"
    )
}

impl Server {
    /// Makes a database cluster where there is none, with checksums, of UTF-8.
    ///
    /// # Errors
    /// If there is one, or `initdb` fails. Nothing that exists is replaced but the remains of an earlier try.
    pub async fn initialize(&mut self) -> Result<Data, Error> {
        let (settings, pgdata) = (self.settings.clone(), self.settings.pgdata());
        if self.inspect_in_time().await? != Data::Empty {
            return Err(Error::State(format!("{} is a database cluster already", pgdata.display())));
        }
        let draft = self.draft().await?;
        let path = draft.display().to_string();
        let user = configuration::SUPERUSER;
        let words =
            ["-D", &path, "-U", user, "-E", "UTF8", "--locale=C.UTF-8", "--data-checksums", "-A", "scram-sha-256"];
        let more: &[&str] = &["--auth-local=trust", "--no-instructions"];
        // It needs none, and is killed if the node has them and the container may not use them.
        let huge: &[&str] = if settings.major >= INITDB_SETS { &["-c", "huge_pages=off"] } else { &[] };
        let arguments: Vec<String> = words.iter().chain(more).chain(huge).map(|&word| word.to_owned()).collect();
        match self.starter.run("initdb", &arguments, &settings.run()).await {
            Err(Error::Program { said, .. }) if said.contains("effective user ID") => {
                return Err(Error::Unusable(format!(
                    "initdb needs an entry in the passwd file for the user id that the server runs as: {said}"
                )));
            }
            Err(Error::Program { said, .. }) if said.contains("Bus error") => {
                return Err(Error::Unusable(format!(
                    "initdb ended with a bus error: the node has huge pages, and this container may use none. Give it \
                     some (resources.limits.hugepages-2Mi), or a node without (vm.nr_hugepages = 0): {said}"
                )));
            }
            result => result?,
        };
        self.files
            .run(move || {
                let failed = |source| Error::File { path: pgdata.clone(), source };
                // Only an empty directory is replaced.
                std::fs::rename(&draft, &pgdata).map_err(failed)?;
                files::sync(&settings.directory).map_err(failed)?;
                control_file::inspect(&settings)
            })
            .await
    }

    /// An empty directory in which data is made before it takes its place.
    pub(super) async fn draft(&mut self) -> Result<PathBuf, Error> {
        let settings = self.settings.clone();
        // An earlier try may have been given up.
        self.clear(&BTreeSet::new()).await?;
        // It may have left all of a database to remove.
        self.files
            .run(move || {
                configuration::write_base(&settings)?;
                let draft = settings.directory.join("pgdata.new");
                files::remove(&draft)?;
                files::make_directory(&draft, settings.user)?;
                Ok(draft)
            })
            .await
    }

    /// Starts the server as a standby that follows no server and admits no client. Gives back when sessions are
    /// possible, or when it recovers and refuses them: [`Server::promote`] works then too.
    ///
    /// # Errors
    /// If it runs, or does not start. Dropped, it leaves a server that [`Server::stop`] stops.
    pub async fn start_fenced(&mut self) -> Result<(), Error> {
        let path = configuration::parameters(&self.settings);
        let before = self.in_time(move || files::read(&path)).await?;
        self.start_in_any_case().await?;
        self.check_libraries(before).await?;
        self.keep_started_parameters().await;
        Ok(())
    }

    /// The same without readers, and with the limits that are wanted. It accepts no session until it is promoted.
    pub(super) async fn start_unread(&mut self) -> Result<(), Error> {
        self.start(false).await
    }

    pub(super) async fn start(&mut self, readers: bool) -> Result<(), Error> {
        if self.running.is_some() {
            return Err(Error::State("the server runs".to_owned()));
        }
        self.clear(&BTreeSet::new()).await?;
        let (settings, pgdata) = (&self.settings, self.settings.pgdata());
        let path = settings.run().join(format!(".s.PGSQL.{}", settings.port));
        if path.as_os_str().len() > SOCKET_PATH {
            return Err(Error::Unusable(format!("{} is too long for a socket: {SOCKET_PATH} bytes", path.display())));
        }
        let prepared = settings.clone();
        // What was given up of an earlier step, as a signal to promote, comes before this.
        let control = self.files.run(move || match control_file::inspect(&prepared)? {
            Data::Initialized { major, .. } => Ok((major, prepare(&prepared)?)),
            Data::Empty => {
                Err(Error::State(format!("there is no database cluster in {}", prepared.pgdata().display())))
            }
        });
        let (major, control) = control.await?;
        let changeable = self.write(Changeable::fenced(), Mounts::Used).await?;
        // A standby makes no roles.
        self.unprepared = None;
        let wanted = self.wanted_limits().await?;
        let settings = &self.settings;
        let limits = if readers { limits::of_a_standby(wanted, &control) } else { wanted };
        let arguments = configuration::arguments(settings, major, &limits::arguments(&limits, &wanted), readers);
        let process = self.starter.start(SERVER, &arguments, &pgdata).await?;
        self.running = Some(Running { process, role: Role::Fenced, changeable, limits, follows: None });
        self.await_recovery().await?;
        self.running()?.process.hold_death_pipe();
        Ok(())
    }

    /// Waits until the server has begun to recover, and for a session if one is accepted soon. One whose data does not know the wrapper is no
    /// server that it can work with.
    async fn await_recovery(&mut self) -> Result<(), Error> {
        let (settings, running) = (self.settings.clone(), self.running()?);
        let began = std::time::Instant::now();
        let (mut recovers_since, mut ill_since) = (None, None);
        let mut pause = LOOK_FIRST;
        loop {
            if running.process.has_ended() {
                let Running { mut process, .. } = self.running.take().ok_or_else(not_running)?;
                let how = process.ended().await.how;
                self.clear(&BTreeSet::new()).await?;
                return Err(Error::Ended(format!("{how} while it started: {}", process.said())));
            }
            match Session::connect(&settings).await {
                Ok(_) => return Ok(()),
                Err(Error::NoSql { said, .. }) if said.contains(UNREAD) => return Ok(()),
                Err(error) if recovers(&error) => {
                    if recovers_since.get_or_insert_with(Instant::now).elapsed() > SESSION_LIMIT {
                        tracing::warn!(%error, "the server recovers, and accepts no session yet");
                        return Ok(());
                    }
                }
                // Log that it has still to replay may bring the role: it is given a moment.
                Err(error) if is_ill(&error) => {
                    if ill_since.get_or_insert_with(Instant::now).elapsed() > SESSION_LIMIT {
                        return Err(error);
                    }
                }
                Err(error) if running.process.flushes().unwrap_or(began).elapsed() > START_LIMIT => {
                    let limit = START_LIMIT.as_secs();
                    return Err(Error::Stuck(format!(
                        "the server has not begun to recover within {limit} s of its start, or of the last word that it flushes its data: \
                         {error}"
                    )));
                }
                Err(_) => ill_since = None,
            }
            sleep(pause).await;
            pause = (pause + pause / 4).min(LOOK_LAST);
        }
    }

    /// Stops the server, until no process of it is left. Gives the end of its log after a clean stop, and `None` after
    /// another one or if it did not run.
    ///
    /// A fast stop of a primary waits for standbys that are connected, a frozen one for as long as `wal_sender_timeout`
    /// says. It may be dropped, and an immediate stop follow.
    ///
    /// # Errors
    /// [`Error::Unended`] if a process is not gone although it was killed. No other server starts before it is.
    pub async fn stop(&mut self, how: Stop) -> Result<Option<Position>, Error> {
        self.monitor = Monitor::default();
        self.establishing = None;
        let Some(running) = &mut self.running else {
            self.clear(&BTreeSet::new()).await?;
            return Ok(None);
        };
        // A server is told to end also if it is not known which processes it has.
        let children = children(running.process.pid());
        let mut killed = BTreeSet::new();
        match how {
            Stop::Fast => {
                running.process.signal(Signal::SIGINT);
                running.process.ended().await;
            }
            Stop::Immediate => {
                running.process.signal(Signal::SIGQUIT);
                if timeout(QUIT_LIMIT, running.process.ended()).await.is_err() {
                    killed = running.process.kill_all().await?;
                }
            }
            Stop::Kill => killed = running.process.kill_all().await?,
        }
        let known = children?.union(&killed).copied().collect();
        self.clear(&known).await?;
        self.running = None;
        if how != Stop::Fast {
            return Ok(None);
        }
        let settings = self.settings.clone();
        self.in_time(move || end_after_stop(&settings)).await
    }

    /// Stops a server whose clients have ended: a primary after its standbys have all of its log.
    ///
    /// # Errors
    /// [`Error::Stuck`] if it does not stop cleanly within the limit, which allows for a frozen standby: it runs on, or was
    /// stopped as by a crash.
    pub async fn stand_down(&mut self, limit: Duration) -> Result<Position, Error> {
        let stops = async {
            if let Err(error) = self.end_slow_senders().await {
                tracing::warn!(%error, "slow senders were not ended: the stop may wait for them");
            }
            self.stop(Stop::Fast).await
        };
        match timeout(limit, stops).await {
            Ok(Ok(Some(end))) => Ok(end),
            Ok(Ok(None)) => Err(Error::Stuck("the server did not stop cleanly".to_owned())),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Stuck(format!("the server has not stopped within {} s", limit.as_secs()))),
        }
    }

    /// Ends the senders that a fast stop would wait for, and no commit does: those of copies, and those of standbys outside the rule and
    /// other receivers that lack much log. Each connects again, to the next primary.
    async fn end_slow_senders(&self) -> Result<(), Error> {
        let end = end_slow(&self.running()?.changeable.rule, &self.monitor.answered(ANSWERS));
        // A new session takes 10 ms, in which no client can write.
        if let Some(session) = self.monitor.take_session()
            && session.rows("end slow senders", &end).await.is_ok()
        {
            return Ok(());
        }
        let session = Session::connect(&self.settings).await?;
        session.rows("end slow senders", &end).await.map(drop)
    }

    /// Resolves when the server has ended without [`Server::stop`], with a sentence. Pending while none runs. What the
    /// server has left behind may still run: [`Server::stop`] ends it.
    pub async fn ended(&mut self) -> String {
        match &mut self.running {
            Some(running) => {
                let how = running.process.ended().await.how;
                let said = running.process.said();
                let last = said.lines().rev().find(|line| is_last_word(line));
                last.map_or_else(|| format!("the server {how}"), |last| format!("the server {how}: {last}"))
            }
            None => std::future::pending().await,
        }
    }

    /// Kills what an earlier server, or a program that was started for it, has left behind.
    pub(super) async fn clear(&self, known: &BTreeSet<nix::unistd::Pid>) -> Result<(), Error> {
        proc::clear(known, &self.places()).await
    }

    /// Where the server's processes work.
    pub(super) fn places(&self) -> [PathBuf; 3] {
        [self.settings.pgdata(), self.settings.run(), self.settings.directory.join("pgdata.new")]
    }

    /// The running server, as long as it has not ended.
    pub(super) fn running(&self) -> Result<&Running, Error> {
        self.running.as_ref().ok_or_else(not_running)
    }

    /// Which of what is mounted is not used, and why: sentences.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.iter().chain(&self.unprepared).cloned().collect()
    }

    /// How to connect to a primary under this name.
    pub(super) async fn conninfo(&mut self, source: &Source, name: String) -> Result<String, Error> {
        let (settings, source) = (self.settings.clone(), source.clone());
        self.in_time(move || configuration::conninfo(&settings, &source, &name)).await
    }

    /// Has a thread read or write files, in time: a disk that hangs is an error.
    pub(super) async fn in_time<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let late =
            || Error::Stuck(format!("the disk has not taken the server's files for {} s", FILES_LIMIT.as_secs()));
        timeout(FILES_LIMIT, self.files.run(work)).await.unwrap_or_else(|_| Err(late()))
    }

    /// Whether it runs as a standby that follows no server, and takes no log.
    pub fn is_fenced(&self) -> bool {
        self.living().is_ok_and(|running| running.role == Role::Fenced)
    }

    /// An error if the server has ended.
    pub(super) fn living(&self) -> Result<&Running, Error> {
        let running = self.running()?;
        if running.process.has_ended() { Err(Error::Ended(running.process.said())) } else { Ok(running) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(Running { process, .. }) = self.running.take() else { return };
        let known = children(process.pid());
        // This one kills the others itself: no thread does once another server may run here.
        let _pipe = process.take_death_pipe();
        drop(process);
        if let Err(error) = known.and_then(|known| proc::clear_at_once(&known, &self.places())) {
            tracing::error!(%error, "processes of the server may be left");
        }
    }
}

/// The longest path of a socket, by the kernel's `sockaddr_un`.
const SOCKET_PATH: usize = 107;

pub(super) fn not_running() -> Error {
    Error::State("the server does not run".to_owned())
}

/// Whether a session was refused because the server recovers, and not because it has not begun to.
fn recovers(error: &Error) -> bool {
    matches!(error, Error::NoSql { said, .. } if said.contains("not yet accepting connections"))
}

/// Whether the server refuses sessions for another reason than that it starts, recovers or stops: its data lacks the role, or is damaged.
/// One whose clients connect all at once may have no session left.
pub(super) fn is_ill(error: &Error) -> bool {
    let passes = ["the database system is ", "too many ", "remaining connection slots"];
    let will_pass = |said: &str| passes.iter().any(|it| said.contains(it));
    error.is_from_server() && !matches!(error, Error::NoSql { said, .. } if will_pass(said))
}

/// The server's words if it serves no readers, and has consistent data.
const UNREAD: &str = "is not accepting connections";

/// What is added to the server's words if it has consistent data and refuses sessions: a transaction that ran has too
/// many subtransactions.
const UNTIL_PROMOTED: &str = "it may do so until it is promoted";

/// The error for a server that refuses sessions with this one although its data is consistent.
pub(super) fn until_promoted(error: &Error) -> Error {
    Error::NoSql { heard: error.is_from_server(), said: format!("{error}; {UNTIL_PROMOTED}") }
}

/// Whether it is such an error.
pub(super) fn refuses_until_promoted(error: &Error) -> bool {
    matches!(error, Error::NoSql { said, .. } if said.contains(UNTIL_PROMOTED))
}

/// Makes the files such that a server starts fenced.
fn prepare(settings: &Settings) -> Result<ControlFile, Error> {
    let pgdata = settings.pgdata();
    // A volume's group makes it 02770, which PostgreSQL refuses.
    files::make_directory(&pgdata, settings.user)?;
    let control = ControlFile::read(settings)?;
    histories::tidy(settings, &control)?;
    histories::complete(settings)?;
    drop_locks(settings)?;
    files::remove(&pgdata.join("promote"))?;
    files::remove(&pgdata.join("recovery.signal"))?;
    configuration::write_base(settings)?;
    files::replace(&pgdata.join("standby.signal"), b"", settings.user)?;
    Ok(control)
}

/// Removes lock files. All processes of the directory have ended, so no process owns them: PostgreSQL takes an empty one, as a loss of power
/// leaves it, and one whose process id another process of the user has now, for that of a server that runs.
fn drop_locks(settings: &Settings) -> Result<(), Error> {
    files::remove(&settings.run().join(format!(".s.PGSQL.{}.lock", settings.port)))?;
    files::remove(&settings.pgdata().join("postmaster.pid"))
}
