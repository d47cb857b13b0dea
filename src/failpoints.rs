//! The moments right after something became durable, at which a test ends the agent as `kill -9` does.
//!
//! They are compiled in with the feature `failpoints` only, which tests turn on for themselves; else [`pass`] is empty. An
//! agent whose environment names a file in `KAA_FAILPOINTS` ends itself at the point that the first line of the file
//! names, and takes that line away, so that its next life goes on to the next one. A line `~POINT` is passed without
//! ending. What was passed in this way is appended to `FILE.passed`.
//!
//! It is SIGKILL itself, to the whole process, and not `abort`: that raises SIGABRT, which can be handled, runs the
//! handler and may write a core, while other threads go on writing. A process that gets SIGKILL does not return from the
//! call.

/// What has just become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// The id of an empty log.
    Identity,
    /// The anchor of a new domain: the API server has said so.
    AnchorCreated,
    /// The anchor of the next epoch, likewise.
    AnchorSwapped,
    /// The epoch and membership of a founder.
    Founded,
    /// That the gate was passed for this pod.
    GatePassed,
    /// The seal of a log.
    Sealed,
    /// The new name of a log that is set aside.
    SetAside,
    /// The domain and epoch of an empty log.
    Joined,
    /// A vote.
    Vote,
    /// One entry of the log or more.
    Entry,
    /// The pointer to a snapshot.
    Snapshot,
    /// How far the log was purged.
    Purged,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Identity,
        Self::AnchorCreated,
        Self::AnchorSwapped,
        Self::Founded,
        Self::GatePassed,
        Self::Sealed,
        Self::SetAside,
        Self::Joined,
        Self::Vote,
        Self::Entry,
        Self::Snapshot,
        Self::Purged,
    ];

    /// As a script names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::AnchorCreated => "anchor-created",
            Self::AnchorSwapped => "anchor-swapped",
            Self::Founded => "founded",
            Self::GatePassed => "gate-passed",
            Self::Sealed => "sealed",
            Self::SetAside => "set-aside",
            Self::Joined => "joined",
            Self::Vote => "vote",
            Self::Entry => "entry",
            Self::Snapshot => "snapshot",
            Self::Purged => "purged",
        }
    }
}

/// Passes a point, unless the script of this process says that it ends here.
#[cfg(feature = "failpoints")]
pub fn pass(point: Point) {
    script::pass(point);
}

/// Nothing is compiled in.
#[cfg(not(feature = "failpoints"))]
pub fn pass(_: Point) {}

#[cfg(feature = "failpoints")]
mod script {
    use super::Point;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::io::{ErrorKind, Write};
    use std::path::{Path, PathBuf};
    use std::sync::{LazyLock, Mutex, PoisonError};

    /// The file that the environment names. Held while it is read and changed: the log has a thread of its own.
    static SCRIPT: LazyLock<Mutex<Option<PathBuf>>> =
        LazyLock::new(|| Mutex::new(std::env::var_os("KAA_FAILPOINTS").map(PathBuf::from)));

    pub(super) fn pass(point: Point) {
        let script = SCRIPT.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = script.as_deref() else { return };
        let ends = take(file, point).unwrap_or_else(|error| panic!("fail points in {}: {error}", file.display()));
        if ends {
            kill(Pid::this(), Signal::SIGKILL).expect("a process may kill itself");
            unreachable!("a process that was killed does not go on");
        }
    }

    /// Takes the first line away if it names the point. Tells whether the process is to end there.
    fn take(file: &Path, point: Point) -> std::io::Result<bool> {
        let lines = match std::fs::read_to_string(file) {
            Ok(lines) => lines,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let (first, rest) = lines.split_once('\n').unwrap_or((&lines, ""));
        if first.trim_start_matches('~') != point.name() {
            return Ok(false);
        }
        let passed = file.with_extension("passed");
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(passed)?
            .write_all(format!("{first}\n").as_bytes())?;
        let next = file.with_extension("next");
        std::fs::write(&next, rest)?;
        std::fs::rename(next, file)?;
        Ok(!first.starts_with('~'))
    }
}
