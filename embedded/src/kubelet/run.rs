//! One run of a container, from its start until nothing of it is left.

use super::logs::Log;
use super::probes::{self, Target};
use super::process::{Launch, Process};
use crate::object::text;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// What a container has after its preStop hook took all the grace there was.
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// How long output is awaited after all processes have ended.
const DRAIN: Duration = Duration::from_secs(1);

/// What a kubelet takes of a log for a termination message.
const MESSAGE_LINES: usize = 80;
/// The same in bytes.
const MESSAGE_BYTES: usize = 2048;

/// A run.
#[derive(Debug)]
pub(super) struct Run {
    pub id: String,
    pub launch: Launch,
    pub log: Log,
}

/// When a run has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// SIGKILL follows then.
    pub by: Instant,
    /// Whether there is time for the preStop hook.
    pub hook: bool,
}

/// What a run tells its pod.
#[derive(Debug)]
pub(super) enum Told {
    Ended { index: usize, id: String, code: i32, message: String },
    HookFailed { index: usize, why: String },
}

/// Goes along with a run until it has ended, of itself or because it was told to.
pub(super) async fn attend(
    mut process: Process,
    run: Arc<Run>,
    target: Target,
    mut stop: watch::Receiver<Option<Stop>>,
    told: mpsc::Sender<Told>,
) {
    let mut keeping = JoinSet::new();
    keep(&mut keeping, &run, "stdout", process.child.stdout.take());
    keep(&mut keeping, &run, "stderr", process.child.stderr.take());
    until_over(&mut process, &target, &mut stop, &told).await;
    let code = process.end().await;
    // What left the session and cannot be known may hold the pipes forever.
    let kept = timeout(DRAIN, async { while keeping.join_next().await.is_some() {} });
    if kept.await.is_err() {
        tracing::warn!(container = run.id, "something outside of its container keeps writing to its log");
    }
    run.log.end();
    let message = if code == 0 { String::new() } else { termination_message(&run, &target) };
    let (index, id) = (target.index, target.id);
    // The pod may be gone: then the message has no receiver, which is fine.
    drop(told.send(Told::Ended { index, id, code, message }).await);
}

/// What a container that failed leaves for its status: the end of its log, if its policy says so. It has no file for that, since containers
/// share the files of this machine.
fn termination_message(run: &Run, target: &Target) -> String {
    if text(&target.container, "/terminationMessagePolicy") != "FallbackToLogsOnError" {
        return String::new();
    }
    run.log.end_of(MESSAGE_LINES, MESSAGE_BYTES).unwrap_or_else(|error| {
        tracing::error!(container = run.id, %error, "the log cannot be read");
        String::new()
    })
}

/// Keeps what comes out of a stream.
fn keep(
    keeping: &mut JoinSet<()>,
    run: &Arc<Run>,
    stream: &'static str,
    from: Option<impl AsyncRead + Unpin + Send + 'static>,
) {
    let (run, from) = (run.clone(), from.expect("containers write into pipes"));
    keeping.spawn(async move {
        if let Err(error) = run.log.keep(stream, from).await {
            tracing::error!(container = run.id, stream, %error, "the log is not whole");
        }
    });
}

/// Waits until the first process has ended or has to be killed.
async fn until_over(
    process: &mut Process,
    target: &Target,
    stop: &mut watch::Receiver<Option<Stop>>,
    told: &mpsc::Sender<Told>,
) {
    let wanted = tokio::select! {
        _ = process.wait() => return,
        wanted = stop.wait_for(Option::is_some) => wanted.ok().and_then(|stop| *stop),
    };
    // Without a pod there is no grace.
    let Some(wanted) = wanted else { return };
    let hook = target.container.pointer("/lifecycle/preStop").filter(|hook| wanted.hook && hook.is_object());
    if let Some(hook) = hook {
        let limit = wanted.by.saturating_duration_since(Instant::now());
        let done = tokio::select! {
            _ = process.wait() => return,
            done = timeout(limit, probes::perform(target, hook, limit)) => done.unwrap_or_else(|_| Err("it took too long".to_owned())),
            () = passed(stop, Instant::now()) => Ok(()),
        };
        if let Err(why) = done {
            // The pod may be gone: then the message has no receiver, which is fine.
            drop(told.send(Told::HookFailed { index: target.index, why }).await);
        }
    }
    process.terminate();
    let least = if hook.is_some() { LEAST_GRACE } else { Duration::ZERO };
    tokio::select! {
        _ = process.wait() => {}
        () = passed(stop, Instant::now() + least) => {}
    }
}

/// Waits until the run has to end, which may be moved to an earlier time meanwhile.
async fn passed(stop: &mut watch::Receiver<Option<Stop>>, earliest: Instant) {
    loop {
        let Some(wanted) = *stop.borrow_and_update() else { return };
        let by = if wanted.hook { wanted.by.max(earliest) } else { wanted.by };
        tokio::select! {
            () = sleep_until(by) => return,
            changed = stop.changed() => if changed.is_err() { return },
        }
    }
}
