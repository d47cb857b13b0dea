//! The interface between the API and the container runtime: logs of containers, and commands in them.

use crate::failure::Failure;
use crate::store::Key;
use tokio::sync::{mpsc, oneshot};

/// What a container wrote.
#[derive(Clone, Debug)]
pub struct LogRequest {
    /// The pod.
    pub pod: Key,
    /// The container; `None`: the only one, or the one that the pod names as its default.
    pub container: Option<String>,
    /// Continue until the container ends.
    pub follow: bool,
    /// The run before this one.
    pub previous: bool,
    /// Only this many lines from the end.
    pub tail_lines: Option<u64>,
    /// No more than this.
    pub limit_bytes: Option<u64>,
    /// Only what was written in the last seconds.
    pub since_seconds: Option<u64>,
    /// A time before each line.
    pub timestamps: bool,
}

/// A command to be run in a container.
#[derive(Clone, Debug)]
pub struct ExecRequest {
    /// The pod.
    pub pod: Key,
    /// The container; `None`: as for a log.
    pub container: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether something will be written to it.
    pub stdin: bool,
}

/// What a command wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To its standard output.
    Stdout(Vec<u8>),
    /// To its standard error.
    Stderr(Vec<u8>),
}

/// A command that runs. Once it is dropped, the command is killed.
#[derive(Debug)]
pub struct Execution {
    /// What it reads; dropped, it reads an end of file.
    pub stdin: Option<mpsc::Sender<Vec<u8>>>,
    /// What it writes, until it has ended.
    pub output: mpsc::Receiver<Output>,
    /// Its exit code; 128 + n if signal n ended it.
    pub exit: oneshot::Receiver<i32>,
}

/// Runs containers.
pub trait Runtime: Send + Sync + 'static {
    /// Reads what a container wrote, in pieces.
    fn logs(&self, request: LogRequest) -> Result<mpsc::Receiver<Vec<u8>>, Failure>;
    /// Starts a command in a container.
    fn exec(&self, request: ExecRequest) -> Result<Execution, Failure>;
}
