//! The processes of this machine, as `/proc` shows them: those of a server, and what an earlier one has left behind.

use super::error::Error;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often this process looks for those that were killed.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// How long processes that were killed may take to be gone. One that waits for a disk takes as long as the disk: it runs no code of its own
/// any more, and the domain must not wait for it.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(2);

/// What `/proc` says of a process.
struct Seen {
    pid: Pid,
    parent: Pid,
    is_zombie: bool,
}

/// That `/proc` was not read: what runs is not known.
fn unseen(source: std::io::Error) -> Error {
    Error::File { path: "/proc".into(), source }
}

/// Whether an error of `/proc` says that there is no such process, none any more, or another user's: that is none of the server's.
fn is_no_process(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
        || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// `None` if there is no such process.
fn seen(pid: Pid) -> Result<Option<Seen>, Error> {
    // Any process may choose its name, of any bytes.
    let text = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if is_no_process(&error) => return Ok(None),
        Err(error) => return Err(unseen(error)),
    };
    // The name stands in parentheses, and may contain some.
    let parsed = text.rsplit_once(')').and_then(|(_, rest)| {
        let mut words = rest.split_whitespace();
        let is_zombie = matches!(words.next()?, "Z" | "X");
        let parent = Pid::from_raw(words.next()?.parse().ok()?);
        Some(Seen { pid, parent, is_zombie })
    });
    parsed.map(Some).ok_or_else(|| unseen(std::io::Error::other(format!("the state of process {pid} is {text:?}"))))
}

fn all() -> Result<Vec<Pid>, Error> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(unseen)? {
        let name = entry.map_err(unseen)?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()).map(Pid::from_raw));
    }
    Ok(found)
}

/// The living children of a process.
///
/// # Errors
/// If it is not known what runs.
pub(super) fn children(parent: Pid) -> Result<BTreeSet<Pid>, Error> {
    let mut found = BTreeSet::new();
    for pid in all()? {
        found.extend(seen(pid)?.filter(|it| it.parent == parent && !it.is_zombie).map(|it| it.pid));
    }
    Ok(found)
}

/// Whether a process may serve a client: it has a socket, or it is not seen what it has. A process of the server's own has none, unless it
/// connects to somewhere.
pub(super) fn may_serve(pid: Pid) -> bool {
    let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    let open = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(open) => open,
        Err(error) => return !is_gone(&error),
    };
    open.map(|file| std::fs::read_link(file?.path())).any(|file| match file {
        Ok(file) => file.as_os_str().as_bytes().starts_with(b"socket:"),
        Err(error) => !is_gone(&error),
    })
}

/// The processes whose working directory is one of these. That of a server is its data.
fn inside(directories: &[PathBuf]) -> Result<BTreeSet<Pid>, Error> {
    let own = Pid::this();
    // Those of other users, which this process may not see, are none of the server's.
    let is_inside = |pid: &Pid| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|found| directories.contains(&found)) && *pid != own
    };
    Ok(all()?.into_iter().filter(is_inside).collect())
}

/// Kills these processes and all that work in these directories, and waits until none is left. A postmaster has to have
/// ended before: it starts others.
///
/// A backend leads a session of its own, and one that computes outlives its postmaster for seconds and can still
/// commit.
pub(super) async fn clear(known: &BTreeSet<Pid>, directories: &[PathBuf]) -> Result<(), Error> {
    let directories: Vec<PathBuf> =
        directories.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let give_up_at = Instant::now() + KILL_LIMIT;
    let mut known = known.clone();
    loop {
        known.extend(inside(&directories)?);
        known = left(known)?;
        if known.is_empty() && inside(&directories)?.is_empty() {
            return Ok(());
        }
        if Instant::now() >= give_up_at {
            return Err(Error::Unended(known.first().map_or(0, |pid| pid.as_raw())));
        }
        for pid in &known {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        sleep(LOOK_PERIOD).await;
    }
}

/// Kills all that work in these directories, whose first process has ended: none of them starts others.
pub(super) fn kill_inside(directories: &[PathBuf]) -> Result<(), Error> {
    let mut killed = BTreeSet::new();
    loop {
        let found = inside(directories)?;
        let others: Vec<Pid> = found.difference(&killed).copied().collect();
        if others.is_empty() {
            return Ok(());
        }
        for pid in others {
            let _ = kill(pid, Signal::SIGKILL);
            killed.insert(pid);
        }
    }
}

/// Those of which something is left.
fn left(known: BTreeSet<Pid>) -> Result<BTreeSet<Pid>, Error> {
    let mut left = BTreeSet::new();
    for pid in known {
        left.extend(seen(pid)?.filter(|it| !is_gone(it)).map(|it| it.pid));
    }
    Ok(left)
}

/// Whether nothing of a process is left that could do something. It is reaped if it has become a child of this process.
fn is_gone(it: &Seen) -> bool {
    if it.is_zombie && it.parent == Pid::this() {
        let _ = waitpid(it.pid, Some(WaitPidFlag::WNOHANG));
    }
    it.is_zombie
}

/// The same, for the end of the wrapper or of a test: it waits only shortly.
pub(super) fn clear_at_once(known: &BTreeSet<Pid>, directories: &[PathBuf]) -> Result<(), Error> {
    let mut known = known.clone();
    for _ in 0..200 {
        known.extend(inside(directories)?);
        known = left(known)?;
        if known.is_empty() {
            break;
        }
        for pid in &known {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}
