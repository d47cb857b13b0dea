//! The moments right after something became durable, at which a test ends the agent as `kill -9` does.
//!
//! They are compiled in with the feature `failpoints` only, which tests turn on for themselves; else [`pass`] is empty. An
//! agent whose environment names a directory in `KAA_FAILPOINTS` has a script in each file of it. It ends itself at the
//! point that the first line of a script names, and deletes that line, so that its next start takes the next one.
//! A line `~POINT` is removed without ending. At a line `=POINT` the agent stops itself, until it gets SIGCONT.
//!
//! It is SIGKILL itself, to the whole process, and not `abort`: that raises SIGABRT, which can be handled, runs the
//! handler and may write a core, while other threads keep writing. A process that gets SIGKILL does not return from the
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
    /// The new name of a retired log.
    Retired,
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
        Self::Retired,
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
            Self::Retired => "retired",
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
    use std::io::ErrorKind;
    use std::path::{Path, PathBuf};
    use std::sync::{LazyLock, Mutex, PoisonError};

    /// The directory that the environment names. Held while scripts are read and changed: the log has a thread of its own.
    static SCRIPTS: LazyLock<Mutex<Option<PathBuf>>> =
        LazyLock::new(|| Mutex::new(std::env::var_os("KAA_FAILPOINTS").map(PathBuf::from)));

    pub(super) fn pass(point: Point) {
        let scripts = SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(directory) = scripts.as_deref() else { return };
        let signal =
            take(directory, point).unwrap_or_else(|error| panic!("scripts in {}: {error}", directory.display()));
        if let Some(signal) = signal {
            kill(Pid::this(), signal).expect("a process may signal itself");
        }
    }

    /// Takes the first line of each script away that names the point. Gives the signal that the process gets there.
    fn take(directory: &Path, point: Point) -> std::io::Result<Option<Signal>> {
        let scripts = match std::fs::read_dir(directory) {
            Ok(scripts) => scripts,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut signal = None;
        for script in scripts {
            let script = script?.path();
            let lines = match std::fs::read_to_string(&script) {
                Ok(lines) => lines,
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let (first, rest) = lines.split_once('\n').unwrap_or((&lines, ""));
            if first.trim_start_matches(['~', '=']) == point.name() {
                std::fs::write(&script, rest)?;
                signal = match first.as_bytes().first() {
                    Some(b'~') => signal,
                    Some(b'=') => signal.or(Some(Signal::SIGSTOP)),
                    _ => Some(Signal::SIGKILL),
                };
            }
        }
        Ok(signal)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_script_advances_and_one_that_names_the_point_ends_the_process() {
            let dir = tempfile::tempdir().unwrap();
            let scripts = dir.path().join("scripts");
            assert_eq!(take(&scripts, Point::Vote).unwrap(), None, "no scripts");
            std::fs::create_dir(&scripts).unwrap();
            std::fs::write(scripts.join("a"), "~founded\nvote\n=entry\n").unwrap();
            std::fs::write(scripts.join("b"), "founded").unwrap();
            let left = || ["a", "b"].map(|name| std::fs::read_to_string(scripts.join(name)).unwrap());
            assert_eq!(take(&scripts, Point::Vote).unwrap(), None, "it is not the turn of it");
            assert_eq!(take(&scripts, Point::Founded).unwrap(), Some(Signal::SIGKILL));
            assert_eq!(left(), ["vote\n=entry\n", ""]);
            assert_eq!(take(&scripts, Point::Vote).unwrap(), Some(Signal::SIGKILL));
            assert_eq!(take(&scripts, Point::Founded).unwrap(), None);
            assert_eq!(left(), ["=entry\n", ""]);
            assert_eq!(take(&scripts, Point::Entry).unwrap(), Some(Signal::SIGSTOP));
        }
    }
}
