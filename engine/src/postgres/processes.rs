//! Processes of a server: started so that they end with the wrapper, and waited for until none is left.
//!
//! A parent-death signal comes when the *thread* that made the child ends. So one thread makes all children of a
//! server, and lives as long as what it belongs to. This process waits for each child by its own id: other servers, and
//! the wrapper, have children too.

use super::death_pipe::DeathPipe;
use super::error::Error;
use super::messages::{CANCELLED_WAIT, CONSISTENT, FLUSHES, LOW_LIMITS, failure_of_receiver, misled, said_by};
use super::proc::{KILL_LIMIT, LOOK_PERIOD, children};
use super::shim;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

/// Orders to start that the thread has not taken yet.
const ORDERS: usize = 4;
/// The lines at the end of what a process printed that are kept.
const LINES: usize = 40;
/// The bytes of a line that are printed as one. A server prints statements of clients, which may be of any length.
const LINE: u64 = 8192;
/// The ends of receivers that are kept.
const FAILURES: usize = 2;
/// A receiver is started again within less than this.
const PRESENT: Duration = Duration::from_secs(2);
/// So often children of a server are killed before the server: one that waits for a disk does not end.
const KILL_ROUNDS: usize = 20;

/// Starts processes as the server's user.
#[derive(Debug)]
pub(super) struct Starter {
    orders: mpsc::SyncSender<Order>,
    shim: PathBuf,
    bin: PathBuf,
    user: Option<(u32, u32)>,
}

#[derive(Debug)]
struct Order {
    command: Command,
    reply: oneshot::Sender<std::io::Result<Child>>,
}

/// A started process. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    pid: Pid,
    shared: Arc<Shared>,
    ended: watch::Receiver<Option<Ended>>,
}

#[derive(Debug)]
struct Shared {
    /// Whether its id is still its own: it is until the process is reaped.
    is_own: Mutex<bool>,
    said: Mutex<VecDeque<String>>,
    receivers: Mutex<Receivers>,
    /// Whether a server has replayed so much that its data is consistent.
    is_consistent: AtomicBool,
    /// When a server last said that it still flushes its data before it recovers.
    flushes: Mutex<Option<Instant>>,
    /// How often a client has cancelled the wait of its commit.
    cancelled_waits: AtomicU64,
    misled: Mutex<Misled>,
    /// Whether a standby has paused its replay, because parameters of it are lower than those of the primary.
    has_low_limits: AtomicBool,
    /// Of a server, once it has started.
    death_pipe: Mutex<Option<DeathPipe>>,
}

impl Shared {
    fn new() -> Self {
        let (is_own, is_consistent) = (Mutex::new(true), AtomicBool::new(false));
        let has_low_limits = AtomicBool::new(false);
        let cancelled_waits = AtomicU64::new(0);
        let (said, receivers, flushes) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (misled, death_pipe) = (Mutex::default(), Mutex::default());
        Self { is_own, said, receivers, is_consistent, flushes, cancelled_waits, misled, has_low_limits, death_pipe }
    }
}

/// The processes of the last clients that tried to write where that is not possible.
#[derive(Debug, Default)]
struct Misled {
    once: VecDeque<(i32, Instant)>,
    /// More than once: no mere try. Not told of yet.
    again: VecDeque<i32>,
}

impl Misled {
    fn note(&mut self, pid: i32, now: Instant) {
        self.once.retain(|(_, at)| now.duration_since(*at) < MISLED_AGAIN);
        match self.once.iter().position(|(it, _)| *it == pid) {
            Some(place) => {
                self.once.remove(place);
                bounded(&mut self.again, pid);
            }
            None => bounded(&mut self.once, (pid, now)),
        }
    }
}

fn bounded<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() >= MISLED {
        list.pop_front();
    }
    list.push_back(new);
}

/// How the receivers of the log of a standby ended.
#[derive(Debug, Default)]
struct Receivers {
    /// Why, the last one last.
    failures: VecDeque<String>,
    last: Option<Instant>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Whether it said that all went well.
    pub success: bool,
    /// Whether a signal ended it, so that it has said nothing of that.
    pub by_signal: bool,
    /// For an operator: `exited with code 1`.
    pub how: String,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Starter {
    /// Starts the thread.
    pub fn new(shim: &Path, bin: &Path, user: Option<(u32, u32)>) -> Self {
        let (orders, taken) = mpsc::sync_channel::<Order>(ORDERS);
        std::thread::spawn(move || {
            while let Ok(Order { mut command, reply }) = taken.recv() {
                // The pipe's end in `command` has to be closed for its reader to see the end.
                let child = command.spawn();
                drop(command);
                if let Err(Ok(mut child)) = reply.send(child) {
                    // No one waits for it any more.
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        });
        Self { orders, shim: shim.to_owned(), bin: bin.to_owned(), user }
    }

    /// Starts a program of the server's, in this directory.
    pub async fn start(&self, program: &str, arguments: &[String], directory: &Path) -> Result<Process, Error> {
        let path = self.bin.join(program);
        let failed = |source| Error::Execute { program: path.clone(), source };
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new(&self.shim);
        command.arg(shim::FLAG).arg(std::process::id().to_string()).arg(&path).args(arguments);
        command.current_dir(directory).process_group(0).stdin(std::process::Stdio::null());
        command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        command.env("LC_ALL", "C");
        // libpq looks for certificates of a client there; another user's home it could not enter.
        command.env("HOME", directory);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        let (reply, child) = oneshot::channel();
        let gone = || failed(std::io::ErrorKind::BrokenPipe.into());
        self.orders.try_send(Order { command, reply }).map_err(|_| gone())?;
        let child = child.await.map_err(|_| gone())?;
        let failed = |source| Error::Execute { program: self.shim.clone(), source };
        Ok(Process::watch(program, child.map_err(failed)?, reader))
    }

    /// Runs a program to its end, and gives what it printed.
    pub async fn run(&self, program: &str, arguments: &[String], directory: &Path) -> Result<String, Error> {
        let mut process = self.start(program, arguments, directory).await?;
        let Ended { success, how, by_signal: _ } = process.ended().await;
        let said = process.said();
        if success { Ok(said) } else { Err(Error::Program { program: program.to_owned(), how, said }) }
    }
}

impl Process {
    fn watch(name: &str, child: Child, reader: PipeReader) -> Self {
        let pid = Pid::from_raw(child.id().cast_signed());
        let shared = Arc::new(Shared::new());
        let (tell, ended) = watch::channel(None);
        let (listening, waiting) = (shared.clone(), shared.clone());
        let program = name.to_owned();
        let reading = std::thread::spawn(move || listen(&program, reader, &listening));
        let is_server = name == SERVER;
        std::thread::spawn(move || {
            let ended = wait(child, &waiting);
            // What a server has left behind may hold the pipe. One that ends by itself waits for its children first.
            if !is_server {
                let _ = reading.join();
            } else if !ended.by_signal {
                let until = Instant::now() + LAST_WORDS;
                while !reading.is_finished() && Instant::now() < until {
                    std::thread::sleep(LAST_WORDS / 20);
                }
            }
            tell.send_replace(Some(ended));
        });
        Self { name: name.to_owned(), pid, shared, ended }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Has the other processes of a server not notice its end before the wrapper has killed them. They do if that is not possible.
    pub fn hold_death_pipe(&self) {
        let is_own = locked(&self.shared.is_own);
        if !*is_own {
            return;
        }
        match DeathPipe::hold(self.pid) {
            Ok(pipe) => *locked(&self.shared.death_pipe) = Some(pipe),
            Err(error) => tracing::warn!(
                pid = %self.pid, %error,
                "the death pipe of the server is not held: if its first process is killed, readers may see commits that wait. To hold it, the \
                 wrapper has to run as the user of the server, or with CAP_SYS_PTRACE"
            ),
        }
    }

    /// The one that takes it kills the other processes.
    pub fn take_death_pipe(&self) -> Option<DeathPipe> {
        locked(&self.shared.death_pipe).take()
    }

    /// Signals it, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        let is_own = locked(&self.shared.is_own);
        if *is_own && let Err(error) = kill(self.pid, signal) {
            tracing::warn!(%signal, name = self.name, pid = %self.pid, %error, "cannot signal a process of the server");
        }
    }

    /// Kills it and its children, and gives these. First it is held: then it starts no other one, and does not react to their ends. The
    /// children come before it, since one of them may answer a client while the first process waits for a disk before it ends.
    ///
    /// # Errors
    /// [`Error::Unended`] if it is not gone soon after that; another one if it is not known what runs.
    pub async fn kill_all(&mut self) -> Result<BTreeSet<Pid>, Error> {
        self.signal(Signal::SIGSTOP);
        let killed = self.kill_children().await;
        self.signal(Signal::SIGKILL);
        let known = killed?;
        timeout(KILL_LIMIT, self.ended()).await.map_err(|_| Error::Unended(self.pid.as_raw()))?;
        Ok(known)
    }

    async fn kill_children(&self) -> Result<BTreeSet<Pid>, Error> {
        let mut known = BTreeSet::new();
        for _ in 0..KILL_ROUNDS {
            let living = children(self.pid)?;
            if living.is_empty() {
                break;
            }
            for pid in &living {
                let _ = kill(*pid, Signal::SIGKILL);
            }
            known.extend(living);
            sleep(LOOK_PERIOD).await;
        }
        Ok(known)
    }

    /// Resolves when it has ended.
    pub async fn ended(&mut self) -> Ended {
        let gone = || Ended { success: false, by_signal: false, how: "ended unobserved".to_owned() };
        self.ended.wait_for(Option::is_some).await.map_or_else(|_| gone(), |ended| ended.clone().unwrap_or_else(gone))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Whether a server has said that its data is consistent.
    pub fn is_consistent(&self) -> bool {
        self.shared.is_consistent.load(Ordering::Relaxed)
    }

    /// When a server last said that it still flushes its data before it recovers: it does so every ten seconds.
    pub fn flushes(&self) -> Option<Instant> {
        *locked(&self.shared.flushes)
    }

    /// The end of what it has printed.
    pub fn said(&self) -> String {
        locked(&self.shared.said).iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// What the messages of a server tell.
    pub fn messages(&self) -> Messages {
        Messages(self.shared.clone())
    }
}

/// What the messages of a server tell: of the receivers of a standby's log, since it was told which server to follow, and of commits that
/// do not wait.
#[derive(Clone, Debug)]
pub(super) struct Messages(Arc<Shared>);

impl Messages {
    /// What the last receivers said counts no more: they follow another server now.
    pub fn begin(&self) {
        *locked(&self.0.receivers) = Receivers::default();
    }

    /// Why the last receiver ended.
    pub fn failure(&self) -> Option<String> {
        locked(&self.0.receivers).failures.back().cloned()
    }

    /// How often a client has cancelled the wait of its commit for the rule, since the server started: that commit was acknowledged with a
    /// warning.
    pub fn cancelled_waits(&self) -> u64 {
        self.0.cancelled_waits.load(Ordering::Relaxed)
    }

    /// The processes of clients that tried more than once to write where that is not possible, since this was last asked.
    pub fn misled(&self) -> Vec<i32> {
        locked(&self.0.misled).again.drain(..).collect()
    }

    /// Whether replay has paused, because parameters of this standby are lower than those of the primary.
    pub fn has_low_limits(&self) -> bool {
        self.0.has_low_limits.load(Ordering::Relaxed)
    }

    /// Whether the receivers end, at present, because the primary has removed log that this server lacks. One that streams leaves what the last
    /// ones said.
    pub fn lacks_log(&self) -> bool {
        let Receivers { failures, last } = &*locked(&self.0.receivers);
        lacks_log(failures) && last.is_some_and(|last| last.elapsed() < PRESENT)
    }
}

/// It says so of a file that it does not find: once may be a moment at which it was about to make it.
fn lacks_log(failures: &VecDeque<String>) -> bool {
    let is_removed = |why: &String| why.contains("requested WAL segment") && why.ends_with("has already been removed");
    failures.len() == FAILURES && failures.iter().all(is_removed)
}

impl Drop for Process {
    fn drop(&mut self) {
        // It leads a group, with what a program has started in turn.
        let is_own = locked(&self.shared.is_own);
        if *is_own {
            let _ = killpg(self.pid, Signal::SIGKILL);
        }
    }
}

/// The program that is a server: its children may outlive it.
pub(super) const SERVER: &str = "postgres";

/// How long what a server has printed last may take to be read, once it has ended.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How many clients that tried to write are remembered, in each list.
const MISLED: usize = 1000;
/// A second try of the same process counts for so long. Later the number may be that of another one.
const MISLED_AGAIN: Duration = Duration::from_secs(60);

/// Takes note of what a line of a server says.
fn note(line: &str, shared: &Shared) {
    if let Some((_, message)) = said_by("startup", line) {
        if message.starts_with(CONSISTENT) {
            shared.is_consistent.store(true, Ordering::Relaxed);
        }
        if message == LOW_LIMITS {
            shared.has_low_limits.store(true, Ordering::Relaxed);
        }
        if message.starts_with(FLUSHES) {
            *locked(&shared.flushes) = Some(Instant::now());
        }
    }
    // A statement may have the same words.
    if said_by("client backend", line) == Some(("WARNING", CANCELLED_WAIT)) {
        shared.cancelled_waits.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(pid) = misled(line) {
        locked(&shared.misled).note(pid, Instant::now());
    }
    let Some(why) = failure_of_receiver(line) else { return };
    let mut receivers = locked(&shared.receivers);
    receivers.failures.push_back(why.to_owned());
    receivers.last = Some(Instant::now());
    if receivers.failures.len() > FAILURES {
        receivers.failures.pop_front();
    }
}

fn listen(program: &str, reader: PipeReader, shared: &Shared) {
    read_lines(BufReader::new(reader), |line, is_begin| {
        tracing::info!(target: "postgres", program, "{line}");
        // Words within a long line are a client's.
        if !is_begin {
            return;
        }
        note(line, shared);
        let mut said = locked(&shared.said);
        if said.len() >= LINES {
            said.pop_front();
        }
        said.push_back(line.to_owned());
    });
}

/// Calls this with each line until the end, and with pieces of [`LINE`] bytes of a longer one. The second argument is whether
/// the piece begins a line.
fn read_lines(mut reader: impl BufRead, mut each: impl FnMut(&str, bool)) {
    let (mut piece, mut is_begin) = (Vec::new(), true);
    // A pipe that cannot be read has ended.
    while reader.by_ref().take(LINE).read_until(b'\n', &mut piece).is_ok_and(|length| length > 0) {
        let is_last = piece.pop_if(|last| *last == b'\n').is_some();
        if is_begin || !piece.is_empty() {
            each(&String::from_utf8_lossy(&piece), is_begin);
        }
        is_begin = is_last;
        piece.clear();
    }
}

/// Waits for the end of a child. It is reaped only once no signal can reach another process by its id.
fn wait(mut child: Child, shared: &Shared) -> Ended {
    let id = || Id::Pid(Pid::from_raw(child.id().cast_signed()));
    while waitid(id(), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
    *locked(&shared.is_own) = false;
    // Who asks for it meanwhile waits until the others are killed.
    let mut pipe = locked(&shared.death_pipe);
    if let Some(pipe) = pipe.take() {
        pipe.end();
    }
    drop(pipe);
    match child.wait() {
        Ok(status) => Ended { success: status.success(), by_signal: status.signal().is_some(), how: described(status) },
        Err(error) => {
            Ended { success: false, by_signal: false, how: format!("ended, and how cannot be learned: {error}") }
        }
    }
}

fn described(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_receiver_says_why_it_has_ended() {
        let refused = "could not connect to the primary server: connection refused";
        let why = |line: String| failure_of_receiver(&line).map(str::to_owned);
        assert_eq!(why(format!("18 walreceiver FATAL:  {refused}")).as_deref(), Some("connection refused"));
        let named = format!("18 walreceiver FATAL:  streaming replication receiver \"kaa_2\" {refused}");
        assert_eq!(why(named).as_deref(), Some("connection refused"), "PostgreSQL 18");
        assert_eq!(why(format!("18 client backend ERROR:  {refused}")), None);
        assert_eq!(why(format!("18 client backend STATEMENT:  SELECT 1/0 -- 18 walreceiver FATAL:  {refused}")), None);
        assert_eq!(why(format!("\t18 walreceiver FATAL:  {refused}")), None, "a line within the message of a client");
        assert_eq!(why("18 walreceiver LOG:  started streaming WAL from primary".to_owned()), None);
        assert_eq!(
            said_by("startup", "7 startup LOG:  consistent recovery state reached at 0/1"),
            Some(("LOG", "consistent recovery state reached at 0/1"))
        );
    }

    #[test]
    fn a_long_line_is_kept_by_its_first_piece() {
        let size = usize::try_from(LINE).unwrap();
        let statement = format!("9 client backend STATEMENT:  {}", "x".repeat(3 * size));
        let misleading = format!("{}9 walreceiver FATAL:  words of a client", "y".repeat(size));
        let exact = "z".repeat(size);
        let text = format!("one\n\n{statement}\n{misleading}\n{exact}\nlast");
        let mut pieces = Vec::new();
        read_lines(text.as_bytes(), |line, is_begin| pieces.push((line.to_owned(), is_begin)));
        let begins: Vec<&str> =
            pieces.iter().filter(|(_, is_begin)| *is_begin).map(|(line, _)| line.as_str()).collect();
        assert_eq!(begins, ["one", "", &statement[..size], &"y".repeat(size), &exact, "last"]);
        assert_eq!(pieces.iter().map(|(line, _)| line.as_str()).collect::<String>(), text.replace('\n', ""));
        assert!(pieces.iter().all(|(line, _)| line.len() <= size));
    }

    #[test]
    fn a_server_that_is_not_read_says_in_its_log_what_it_lacks() {
        let shared = Arc::new(Shared::new());
        let receiving = Messages(shared.clone());
        let removed = "9 walreceiver FATAL:  could not receive data from WAL stream: ERROR:  requested WAL segment \
            000000020000000000000003 has already been removed";
        note(removed, &shared);
        note("8 startup LOG:  waiting for WAL to become available at 0/3000018", &shared);
        assert!(!receiving.lacks_log());
        note(removed, &shared);
        assert!(receiving.lacks_log());
        receiving.begin();
        assert!(!receiving.lacks_log() && receiving.failure().is_none());
        note("8 startup LOG:  consistent recovery state reached at 0/3000018", &shared);
        assert!(shared.is_consistent.load(Ordering::Relaxed));
        note(&format!("8 client backend WARNING:  {LOW_LIMITS}"), &shared);
        assert!(!receiving.has_low_limits());
        note(&format!("8 startup WARNING:  {LOW_LIMITS}"), &shared);
        assert!(receiving.has_low_limits());
        note("8 client backend LOG:  syncing data directory (fsync), elapsed time: 10.00 s", &shared);
        assert!(locked(&shared.flushes).is_none());
        note(
            "8 startup LOG:  syncing data directory (fsync), elapsed time: 10.00 s, current path: ./base/5/1",
            &shared,
        );
        assert!(locked(&shared.flushes).is_some());
    }

    #[test]
    fn the_waits_that_clients_cancelled_are_counted() {
        let shared = Arc::new(Shared::new());
        let cancelled = "9 client backend WARNING:  canceling wait for synchronous replication due to user request";
        note(cancelled, &shared);
        note("9 client backend DETAIL:  The transaction has already committed locally.", &shared);
        note(&format!("9 client backend STATEMENT:  {CANCELLED_WAIT}"), &shared);
        note("9 client backend ERROR:  canceling statement due to user request", &shared);
        note(cancelled, &shared);
        assert_eq!(Messages(shared).cancelled_waits(), 2);
    }

    #[test]
    fn who_tries_to_write_where_that_is_not_possible_is_remembered() {
        let shared = Arc::new(Shared::new());
        let refused = "cannot execute INSERT in a read-only transaction";
        let messages = Messages(shared.clone());
        let lines = [
            format!("21 client backend ERROR:  {refused}"),
            format!("22 client backend STATEMENT:  {refused}"),
            format!("23 walsender ERROR:  {refused}"),
            "24 client backend ERROR:  cannot execute VACUUM during recovery".to_owned(),
            "25 client backend ERROR:  cannot execute SELECT FOR UPDATE in a read-only transaction".to_owned(),
            "26 client backend ERROR:  cannot use serializable mode in a hot standby".to_owned(),
            "27 client backend ERROR:  cannot set transaction read-write mode during recovery".to_owned(),
            "28 client backend FATAL:  the database system is not accepting connections".to_owned(),
        ];
        lines.iter().for_each(|line| note(line, &shared));
        assert!(messages.misled().is_empty(), "once may be a mere try");
        lines.iter().for_each(|line| note(line, &shared));
        assert_eq!(messages.misled(), [21, 24, 25, 26, 27]);
        assert!(messages.misled().is_empty(), "once");
    }

    #[test]
    fn a_late_second_try_may_be_that_of_another_process_with_the_number() {
        let (mut misled, began) = (Misled::default(), Instant::now());
        misled.note(21, began);
        misled.note(21, began + MISLED_AGAIN);
        assert!(misled.again.is_empty());
        misled.note(21, began + MISLED_AGAIN + Duration::from_secs(1));
        assert_eq!(misled.again, [21]);
        for pid in 0..2 * MISLED {
            misled.note(pid as i32, began);
        }
        assert_eq!(misled.once.len(), MISLED);
    }

    #[test]
    fn log_that_the_primary_has_removed_is_lacked_once_it_has_said_so_again() {
        let removed = "ERROR:  requested WAL segment 000000020000000000000003 has already been removed";
        let lacks = |failures: &[&str]| lacks_log(&failures.iter().map(|why| (*why).to_owned()).collect());
        assert!(!lacks(&[removed]), "it may be about to be made");
        assert!(lacks(&[removed, removed]));
        assert!(!lacks(&[removed, "connection refused"]), "it may be another server by now");
    }
}
