//! Commands in a container that runs already: for `kubectl exec`, probes and hooks.

use super::process::Process;
use crate::runtime::{Execution, Output};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdin;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How many pieces wait for a slow reader. More make the command wait.
const PIECES: usize = 16;
const PIECE_BYTES: usize = 32 << 10;
/// How much of what a probe's command writes is told.
const TOLD_BYTES: usize = 10 << 10;
/// How long output is awaited after a command has ended: what it left running may hold the pipe forever.
const DRAIN: Duration = Duration::from_millis(500);

/// The ends of an execution that are kept here.
#[derive(Debug)]
pub(super) struct Ends {
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
    output: mpsc::Sender<Output>,
    exit: oneshot::Sender<i32>,
}

/// Makes an execution whose command has yet to start.
pub(super) fn prepare(stdin: bool) -> (Execution, Ends) {
    let (input, stdin) = if stdin { Some(mpsc::channel(PIECES)).unzip() } else { (None, None) };
    let (sender, output) = mpsc::channel(PIECES);
    let (end, exit) = oneshot::channel();
    (Execution { stdin: input, output, exit }, Ends { stdin, output: sender, exit: end })
}

impl Ends {
    /// Attends a command until it ends, or until its client stops reading: then it is killed.
    pub async fn attend(self, mut process: Process) {
        let Self { stdin, output, exit } = self;
        let feeding = stdin.zip(process.child.stdin.take()).map(|(from, to)| tokio::spawn(feed(from, to)));
        let copying = copy_both(&mut process, &output);
        let code = tokio::select! {
            code = process.wait() => Some(code),
            () = output.closed() => None,
        };
        match code {
            Some(code) => {
                let drained = timeout(DRAIN, async {
                    for copying in copying {
                        drop(copying.await);
                    }
                });
                // Late output is lost only if something else than the command holds the pipe.
                drop(drained.await);
                drop(output);
                process.leave();
                // The client may have gone.
                let _ = exit.send(code);
            }
            None => drop(process.end().await),
        }
        if let Some(feeding) = feeding {
            feeding.abort();
        }
    }

    /// The command could not be started.
    pub async fn refuse(self, why: String) {
        // The client may have gone.
        drop(self.output.send(Output::Stderr(format!("{why}\n").into_bytes())).await);
        let _ = self.exit.send(126);
    }
}

fn copy_both(process: &mut Process, output: &mpsc::Sender<Output>) -> Vec<tokio::task::JoinHandle<()>> {
    let mut copying = Vec::new();
    if let Some(from) = process.child.stdout.take() {
        copying.push(tokio::spawn(copy(from, output.clone(), Output::Stdout)));
    }
    if let Some(from) = process.child.stderr.take() {
        copying.push(tokio::spawn(copy(from, output.clone(), Output::Stderr)));
    }
    copying
}

async fn copy(mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Output>, kind: fn(Vec<u8>) -> Output) {
    let mut buffer = vec![0; PIECE_BYTES];
    // A pipe that cannot be read any more is one that has ended.
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.send(kind(buffer[..count].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn feed(mut from: mpsc::Receiver<Vec<u8>>, mut to: ChildStdin) {
    while let Some(piece) = from.recv().await {
        // A command need not read what it is given.
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

/// Waits for a command; gives its exit code and what it wrote.
pub(super) async fn collect(mut process: Process) -> (i32, String) {
    let (output, mut written) = mpsc::channel(PIECES);
    let copying = copy_both(&mut process, &output);
    drop(output);
    let mut told = Vec::new();
    let gather = async {
        while let Some(Output::Stdout(piece) | Output::Stderr(piece)) = written.recv().await {
            told.extend_from_slice(&piece[..piece.len().min(TOLD_BYTES - told.len())]);
        }
    };
    let ended = async {
        let code = process.wait().await;
        tokio::time::sleep(DRAIN).await;
        code
    };
    let code = tokio::select! {
        () = gather => process.wait().await,
        code = ended => code,
    };
    copying.iter().for_each(tokio::task::JoinHandle::abort);
    process.leave();
    (code, String::from_utf8_lossy(&told).into_owned())
}
