//! The processes of a container: how to know them, and how to end them all.
//!
//! Each container is a session of its own, which keeps together what it starts, also in process groups of their own or
//! orphaned. What leaves the session is known by a variable in its environment. A process that left the session and
//! cleared its environment is not known any more.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use std::path::Path;
use std::time::Duration;

/// The variable that marks the processes of a container: the directory of the kubelet, `#`, and the container's id.
pub(super) const VARIABLE: &str = "EMBEDDED_CONTAINER";

/// How many checks whether all have ended: a process that remains after them waits for a broken device.
const ROUNDS: u32 = 2_000;
const ROUND: Duration = Duration::from_millis(1);

/// The value of the variable.
pub(super) fn mark(directory: &Path, id: &str) -> String {
    format!("{}#{id}", directory.display())
}

/// Ends every process of a session and every one whose mark begins so, and waits until they are gone.
pub(super) fn end(session: Option<Pid>, mark: Option<&str>) {
    let wanted = mark.map(|mark| format!("{VARIABLE}={mark}"));
    for _ in 0..ROUNDS {
        let left = members(session, wanted.as_deref());
        if left.is_empty() {
            return;
        }
        for pid in left {
            signal(pid, Signal::SIGKILL);
        }
        std::thread::sleep(ROUND);
    }
    tracing::error!(?session, mark, "processes do not end although they were killed");
}

/// The process that a marked session began with, if it is alive.
pub(super) fn leader(mark: &str) -> Option<Pid> {
    let marked = members(None, Some(&format!("{VARIABLE}={mark}")));
    marked.into_iter().find(|pid| getsid(Some(*pid)) == Ok(*pid))
}

/// Signals a process. That it has gone is no error: it is what the signal would have led to.
pub(super) fn signal(pid: Pid, signal: Signal) {
    if let Err(error) = kill(pid, signal)
        && error != Errno::ESRCH
    {
        tracing::warn!(%pid, %signal, %error, "cannot signal a process");
    }
}

/// The processes that are alive.
pub(super) fn members(session: Option<Pid>, wanted: Option<&str>) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let belongs = |pid: &i32| {
        // A process that ends during the check has no files any more.
        let Some(of) = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| session_of(&stat))
        else {
            return false;
        };
        session.is_some_and(|session| session.as_raw() == of) || wanted.is_some_and(|wanted| is_marked(*pid, wanted))
    };
    numbers.filter(belongs).map(Pid::from_raw).collect()
}

/// The session of a process that is no zombie, from its `stat`: the name, in parentheses, may hold anything.
fn session_of(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(2)?.parse().ok()
}

fn is_marked(pid: i32, wanted: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(wanted.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::session_of;

    #[test]
    fn a_session_is_read_whatever_the_process_is_called() {
        assert_eq!(session_of("42 (a) b (c) S 1 40 39 0 -1"), Some(39));
        assert_eq!(session_of("42 (sh) Z 1 40 39 0 -1"), None, "a zombie");
        assert_eq!(session_of("nonsense"), None);
    }
}
