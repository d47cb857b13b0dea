//! Starts programs in sessions of their own, and ends them with all that they started.

use super::paths::Mounts;
use super::session;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{io, thread};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// How many programs can wait to be started.
const WAITING_STARTS: usize = 256;
/// The exit code of a process whose own cannot be learned.
const UNKNOWN_CODE: i32 = 255;

/// A program cannot be started. The sentences are those of runc.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// There is no command.
    #[error("no command specified")]
    NoCommand,
    /// `PATH` does not lead to it.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotFound(String),
    /// It is a path, and nothing is there.
    #[error("exec: {0:?}: stat {0}: no such file or directory")]
    NoSuchFile(String),
    /// The system refuses.
    #[error("exec: {program:?}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
}

/// What a program finds when it is started in a container.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub environment: BTreeMap<String, String>,
    pub directory: PathBuf,
    pub mounts: Mounts,
    /// By what its processes are known: [`session::mark`].
    pub mark: String,
}

/// The thread that starts all processes: a process whose parent's thread ends is killed, and those of a runtime may.
#[derive(Clone, Debug)]
pub(super) struct Spawner {
    shim: Vec<String>,
    requests: mpsc::Sender<(Command, oneshot::Sender<io::Result<Child>>)>,
}

impl Spawner {
    /// Starts the thread. It ends with the last of these.
    pub fn start(shim: Vec<String>) -> io::Result<Self> {
        let (requests, mut waiting) = mpsc::channel::<(Command, oneshot::Sender<io::Result<Child>>)>(WAITING_STARTS);
        let runtime = Handle::current();
        thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            let _guard = runtime.enter();
            while let Some((mut command, reply)) = waiting.blocking_recv() {
                // A caller that has stopped waiting does not want the process: dropped, it is killed.
                drop(reply.send(command.spawn()));
            }
        })?;
        Ok(Self { shim, requests })
    }

    /// Starts a program. The paths of its command are those of this machine ([`Launch::words`]).
    pub async fn spawn(&self, command: &[String], launch: &Launch, stdin: bool) -> Result<Process, Error> {
        let program = launch.find(command.first().ok_or(Error::NoCommand)?)?;
        let failed = |source| Error::Spawn { program: command[0].clone(), source };
        let (shim, shim_arguments) = self.shim.split_first().ok_or(Error::NoCommand)?;
        let mut starting = Command::new(shim);
        starting.args(shim_arguments).arg(std::process::id().to_string()).arg(program).args(&command[1..]);
        starting.env_clear().envs(&launch.environment).env(session::VARIABLE, &launch.mark);
        starting.current_dir(&launch.directory).kill_on_drop(true);
        starting.stdin(if stdin { Stdio::piped() } else { Stdio::null() });
        starting.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (reply, started) = oneshot::channel();
        let gone = || failed(io::Error::other("the kubelet has ended"));
        self.requests.send((starting, reply)).await.map_err(|_| gone())?;
        let child = started.await.map_err(|_| gone())?.map_err(failed)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).expect("it was not waited for yet");
        Ok(Process { child, pid: Pid::from_raw(pid), mark: None, ended: false })
    }
}

impl Launch {
    /// A command with the container's paths made this machine's.
    pub fn words<'a>(&self, command: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        command.into_iter().map(|word| self.mounts.rewrite(word)).collect()
    }

    /// The program that a command means.
    pub fn find(&self, program: &str) -> Result<PathBuf, Error> {
        let is_program =
            |path: &Path| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
        if program.contains('/') {
            let path = self.directory.join(program);
            return if path.exists() { Ok(path) } else { Err(Error::NoSuchFile(program.to_owned())) };
        }
        let directories = self.environment.get("PATH").map_or("", String::as_str).split(':');
        let mut paths = directories.map(|directory| Path::new(directory).join(program));
        paths.find(|path| is_program(path)).ok_or_else(|| Error::NotFound(program.to_owned()))
    }
}

/// The first process of a session. Dropped before [`Process::end`], it ends with all of its session.
#[derive(Debug)]
pub(super) struct Process {
    pub child: Child,
    pid: Pid,
    /// Whether those outside the session that are marked so belong to it as well.
    mark: Option<String>,
    ended: bool,
}

impl Process {
    /// Makes it the first process of its container: with it ends everything that bears the container's mark.
    pub fn into_first(mut self, mark: &str) -> Self {
        self.mark = Some(mark.to_owned());
        self
    }

    /// Waits for it to end; gives its exit code, 128 + n if signal n ended it.
    pub async fn wait(&mut self) -> i32 {
        match self.child.wait().await {
            Ok(status) => status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(UNKNOWN_CODE),
            Err(error) => {
                tracing::error!(pid = %self.pid, %error, "cannot wait for a process");
                UNKNOWN_CODE
            }
        }
    }

    /// Lets be what it left running: it has ended itself.
    pub fn leave(mut self) {
        self.ended = true;
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        session::signal(self.pid, Signal::SIGTERM);
    }

    /// Ends it and all of its session; gives its exit code.
    pub async fn end(mut self) -> i32 {
        let (pid, mark) = (self.pid, self.mark.clone());
        let code = match self.child.try_wait() {
            Ok(Some(_)) => self.wait().await,
            Ok(None) | Err(_) => {
                session::signal(pid, Signal::SIGKILL);
                self.wait().await
            }
        };
        match tokio::task::spawn_blocking(move || session::end(Some(pid), mark.as_deref())).await {
            Ok(()) => self.ended = true,
            Err(error) => tracing::error!(%error, "cannot end the processes of a session"),
        }
        code
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            session::end(Some(self.pid), self.mark.as_deref());
        }
    }
}
