//! The log store: a mirror in memory, and one thread that makes the changes durable in their order (in a simulation,
//! one task).
//!
//! Whatever is queued goes into one commit, so that a burst of writes costs one fsync. Vote, append, truncate and purge
//! go through the same queue; the committed index waits for the next commit of something else, since losing it costs
//! nothing but a later replay.

use super::backend::{self, Backend, Op};
use super::snapshot::Pointer;
use super::types::{Entry, LogId, TypeConfig, Vote};
use super::volume::{Lock, Log, names};
use super::wire;
use crate::failpoints::{self, Point};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use serde::Serialize;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How many changes go into one commit at most: some megabytes, which redb still takes in a few milliseconds.
const MAX_OPS_PER_COMMIT: usize = 1024;

/// Who waits for a commit.
enum Waiter {
    Raft(IOFlushed<TypeConfig>),
    Task(oneshot::Sender<io::Result<()>>),
    /// No caller waits: it need not be durable now.
    None,
}

struct Job {
    ops: Vec<Op>,
    waiter: Waiter,
}

/// How many changes may wait for the writer. openraft bounds what is in flight far below; should it not, the log is
/// what everything has to wait for anyway.
const QUEUE: usize = 16_384;

struct Writer {
    running: Running,
    /// Held until the last change is written.
    _lock: Lock,
}

enum Running {
    Thread { queue: mpsc::SyncSender<Job>, thread: JoinHandle<()> },
    Task { queue: tokio::sync::mpsc::Sender<Job> },
}

/// The log store; clones share it.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    log: Mutex<Log>,
    writer: Mutex<Option<Writer>>,
    commits_since: CommitsSince,
}

/// Since when the commit that is under way has been; `None` if none is.
type CommitsSince = Arc<Mutex<Option<Instant>>>;

impl Store {
    /// Starts the writer.
    pub(super) fn start(backend: Box<dyn Backend>, lock: Lock, log: Log) -> io::Result<Self> {
        let simulated = backend.simulated();
        let since = CommitsSince::default();
        let commits = Commits { backend, failed: None, ops: Vec::new(), waiters: Vec::new(), since: since.clone() };
        let running = match simulated {
            None => {
                let (queue, jobs) = mpsc::sync_channel(QUEUE);
                let thread = std::thread::Builder::new().name("raft-log".into()).spawn(move || commits.write(&jobs))?;
                Running::Thread { queue, thread }
            }
            Some(duration) => {
                let (queue, jobs) = tokio::sync::mpsc::channel(QUEUE);
                tokio::spawn(commits.write_in_virtual_time(jobs, duration));
                Running::Task { queue }
            }
        };
        let writer = Writer { running, _lock: lock };
        Ok(Self(Arc::new(Shared { log: Mutex::new(log), writer: Mutex::new(Some(writer)), commits_since: since })))
    }

    /// For how long the commit that is under way has not ended; zero if none is.
    pub(super) fn commits_for(&self) -> Duration {
        let since = *self.0.commits_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Writes what is queued and lets go of the volume.
    pub(super) fn close(&self) {
        self.0.close();
    }

    /// The snapshot that is pointed to.
    pub(super) fn snapshot(&self) -> Option<Pointer> {
        self.log().snapshot.clone()
    }

    /// Points to another snapshot.
    pub(super) async fn set_snapshot(&self, pointer: Pointer) -> io::Result<()> {
        self.commit(vec![set(names::SNAPSHOT, &pointer)?]).await?;
        self.log().snapshot = Some(pointer);
        Ok(())
    }

    /// The first entry of the log that is so.
    pub(super) fn find(&self, is_so: impl Fn(&Entry) -> bool) -> Option<Entry> {
        self.log().entries.values().find(|entry| is_so(entry)).cloned()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn commit(&self, ops: Vec<Op>) -> io::Result<()> {
        let (done, wait) = oneshot::channel();
        self.queue(ops, Waiter::Task(done));
        wait.await.map_err(|_| closed())?
    }

    fn queue(&self, ops: Vec<Op>, waiter: Waiter) {
        let writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let job = Job { ops, waiter };
        let refused = match writer.as_ref() {
            Some(Writer { running: Running::Thread { queue, .. }, .. }) => queue.send(job).map_err(|it| it.0).err(),
            Some(Writer { running: Running::Task { queue }, .. }) => {
                queue.try_send(job).map_err(|it| it.into_inner()).err()
            }
            None => Some(job),
        };
        if let Some(job) = refused {
            job.waiter.wake(Err(closed()));
        }
    }
}

impl Shared {
    fn close(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Writer { running: Running::Thread { queue, thread }, _lock }) = writer {
            drop(queue);
            // A panic of the writer was seen by everybody who waited for it.
            let _ = thread.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

impl Waiter {
    fn wake(self, result: io::Result<()>) {
        match self {
            Self::Raft(callback) => callback.io_completed(result),
            // The caller may have stopped waiting.
            Self::Task(done) => drop(done.send(result)),
            Self::None => {}
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the log's storage is closed")
}

fn set<T: Serialize>(name: &'static str, value: &T) -> Result<Op, wire::Error> {
    Ok(Op::Set(name, wire::encode(value)?))
}

/// What is to be written next.
struct Commits {
    backend: Box<dyn Backend>,
    failed: Option<Arc<backend::Error>>,
    ops: Vec<Op>,
    waiters: Vec<Waiter>,
    since: CommitsSince,
}

impl Commits {
    /// The writer's life: until the queue is closed and empty.
    fn write(mut self, jobs: &mpsc::Receiver<Job>) {
        loop {
            let Ok(job) = jobs.recv() else { break };
            self.take(job);
            while self.ops.len() < MAX_OPS_PER_COMMIT {
                let Ok(job) = jobs.try_recv() else { break };
                self.take(job);
            }
            if !self.waiters.is_empty() {
                self.commit();
            }
        }
        if self.failed.is_none() && !self.ops.is_empty() {
            // Only the committed index is left; without it the next start replays less.
            let _ = self.backend.commit(&self.ops);
        }
    }

    /// The same where a commit takes its time by the clock of a simulation.
    async fn write_in_virtual_time(mut self, mut jobs: tokio::sync::mpsc::Receiver<Job>, duration: Duration) {
        while let Some(job) = jobs.recv().await {
            self.take(job);
            while self.ops.len() < MAX_OPS_PER_COMMIT {
                let Ok(job) = jobs.try_recv() else { break };
                self.take(job);
            }
            if !self.waiters.is_empty() {
                tokio::time::sleep(duration).await;
                self.commit();
            }
        }
    }

    fn take(&mut self, job: Job) {
        self.ops.extend(job.ops);
        if !matches!(job.waiter, Waiter::None) {
            self.waiters.push(job.waiter);
        }
    }

    fn commit(&mut self) {
        // After a failure it is unknown what is on disk, so nothing is written any more.
        if self.failed.is_none() {
            let note = |since| *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
            note(Some(Instant::now()));
            self.failed = self.backend.commit(&self.ops).err().map(Arc::new);
            note(None);
            // Durable, but no waiter knows it yet.
            self.ops.iter().filter_map(point).for_each(failpoints::pass);
        }
        self.ops.clear();
        for waiter in self.waiters.drain(..) {
            waiter.wake(self.failed.clone().map_or(Ok(()), |error| Err(io::Error::other(error))));
        }
    }
}

/// What is durable once a change is written, where a test may want it to be the last thing.
fn point(op: &Op) -> Option<Point> {
    match op {
        Op::Put(..) => Some(Point::Entry),
        Op::Set(names::VOTE, _) => Some(Point::Vote),
        Op::Set(names::SNAPSHOT, _) => Some(Point::Snapshot),
        Op::Purge(_) => Some(Point::Purged),
        Op::Set(..) | Op::Truncate(_) | Op::Clear(_) => None,
    }
}

impl RaftLogReader<TypeConfig> for Store {
    async fn try_get_log_entries<R>(&mut self, range: R) -> Result<Vec<Entry>, io::Error>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.log().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.log().vote)
    }
}

impl RaftLogStorage<TypeConfig> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let log = self.log();
        let last = log.entries.values().next_back().map(|entry| entry.log_id).or(log.purged);
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.commit(vec![set(names::VOTE, vote)?]).await?;
        self.log().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.log().committed = Some(committed);
            self.queue(vec![set(names::COMMITTED, &committed)?], Waiter::None);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.log().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut ops = Vec::new();
        {
            let mut log = self.log();
            for entry in entries {
                ops.push(Op::Put(entry.log_id.index, wire::encode(&entry)?));
                log.entries.insert(entry.log_id.index, entry);
            }
        }
        self.queue(ops, Waiter::Raft(callback));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |last| last.index + 1);
        self.log().entries.split_off(&from);
        self.commit(vec![Op::Truncate(from)]).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let ops = vec![set(names::PURGED, &upto)?, Op::Purge(upto.index)];
        {
            let mut log = self.log();
            log.purged = Some(upto);
            log.entries = log.entries.split_off(&(upto.index + 1));
        }
        self.commit(ops).await
    }
}
