//! The engine as a child process, and the duties of a container's first process.
//!
//! Everything here is called by the one task that supervises, so that reaping can never race with starting: the
//! standard library waits by itself for a child whose program could not be executed.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variable that tells an engine how it starts: `first` on its own data, which is the newest that is known, or `join`
/// beside another storage manager, from which it takes the data.
const START: &str = "KAA_START";
/// The exit code of a child whose own cannot be learned.
const UNKNOWN_CODE: i32 = 255;

/// A started engine: a process that leads a group of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pid: Pid,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its exit code, or 128 + n if signal n ended it.
    pub code: i32,
    /// The same, for an operator.
    pub how: String,
}

impl Child {
    /// Starts the command, and tells it how in [`START`]. Its own process group lets a signal reach whatever it starts in
    /// turn.
    pub fn start(command: &[OsString], how: &str) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program).args(arguments).env(START, how).process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).expect("process ids are positive and small");
        Ok(Self { pid: Pid::from_raw(pid) })
    }

    /// The process id.
    pub fn pid(self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Signals the whole group. A group that is already gone is no error: the signal wanted that anyway.
    pub fn signal(self, signal: Signal) {
        if let Err(error) = killpg(self.pid, signal)
            && error != Errno::ESRCH
        {
            tracing::warn!(%signal, pid = self.pid(), %error, "cannot signal the engine");
        }
    }
}

/// Has orphans of this container reported to this process even where it is not the first of it.
pub(super) fn adopt_orphans() {
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "orphaned processes will not be reaped, unless this is process 1");
    }
}

/// Whether a child still runs. It may have ended before the task that supervises has heard of it.
pub(super) fn lives(pid: u32) -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = Pid::from_raw(pid.cast_signed());
    pid.as_raw() > 0 && waitid(Id::Pid(pid), look) == Ok(WaitStatus::StillAlive)
}

/// Takes note of every process that has ended; gives the child's end if it is among them.
pub(super) fn reap(child: Option<Child>) -> Option<Ended> {
    let mut ended = None;
    loop {
        let (pid, how) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, Ended { code, how: format!("exited with code {code}") }),
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                (pid, Ended { code: 128 + signal as i32, how: format!("ended by {signal}") })
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => break,
            Err(Errno::EINTR) => continue,
            // A process ended by a real-time signal, which has no name: it is reaped, but not told which it was.
            Err(Errno::EINVAL) => {
                if ended.is_none() && child.is_some_and(|child| kill(child.pid, None) == Err(Errno::ESRCH)) {
                    ended = Some(Ended { code: UNKNOWN_CODE, how: "ended by a real-time signal".to_owned() });
                }
                continue;
            }
            Ok(_) => continue,
            Err(error) => {
                tracing::error!(%error, "cannot wait for processes");
                break;
            }
        };
        if child.is_some_and(|child| child.pid == pid) {
            ended = Some(how);
        }
    }
    ended
}
