//! Keeps the other processes of a server from noticing that the first one has ended, until they are killed.
//!
//! All of them hold the reading end of a pipe whose writing end only the first one has: when it is killed, the pipe ends. A backend whose
//! commit waits for a standby then gives up the wait, before it ends itself. So for some milliseconds other backends, whose queries still run,
//! show a commit that no standby may have, and that may be lost. The wrapper holds the writing end as well, and hands it to no child. The pipe
//! ends only once the wrapper has seen the end of the first process, and has killed the others: who was killed runs no code of its own any
//! more, whatever it waited for.

use super::proc::kill_inside;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, read_dir, read_link, read_to_string};
use std::io::{Error, ErrorKind};
use std::path::PathBuf;

/// The pipe of a server.
#[derive(Debug)]
pub(super) struct DeathPipe {
    /// Its writing ends.
    held: Vec<File>,
    /// Where the processes of the server work.
    directory: PathBuf,
}

impl DeathPipe {
    /// Opens the writing end of each pipe of which the first process of a server has both ends. Of the pipe that takes its messages it has
    /// the writing end only.
    ///
    /// # Errors
    /// If it has no such pipe, or none that the wrapper may open.
    pub fn hold(postmaster: Pid) -> Result<Self, Error> {
        let process = PathBuf::from(format!("/proc/{postmaster}"));
        let directory = read_link(process.join("cwd"))?;
        let mut ends: BTreeMap<PathBuf, (bool, Option<PathBuf>)> = BTreeMap::new();
        // Of other files some may be closed meanwhile.
        for entry in read_dir(process.join("fd"))?.flatten() {
            let Ok(target) = read_link(entry.path()) else { continue };
            let Ok(info) = read_to_string(process.join("fdinfo").join(entry.file_name())) else { continue };
            if !target.to_string_lossy().starts_with("pipe:") {
                continue;
            }
            let pipe = ends.entry(target).or_default();
            match access(&info) {
                Some(Access::Read) => pipe.0 = true,
                Some(Access::Write) => pipe.1 = Some(entry.path()),
                None => {}
            }
        }
        let (mut held, mut failure) = (Vec::new(), Error::new(ErrorKind::NotFound, "it has both ends of no pipe"));
        for path in ends.into_values().filter_map(|(reads, writes)| writes.filter(|_| reads)) {
            match OpenOptions::new().write(true).open(path) {
                Ok(end) => held.push(end),
                Err(error) => failure = error,
            }
        }
        if held.is_empty() { Err(failure) } else { Ok(Self { held, directory }) }
    }

    /// Kills the other processes of a server whose first process has ended, and lets go.
    pub fn end(self) {
        if let Err(error) = kill_inside(&[self.directory]) {
            tracing::warn!(%error, "the other processes of a server that has ended end by themselves");
        }
        drop(self.held);
    }
}

/// What one end of a pipe is for.
#[derive(Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Of the text of `/proc/PID/fdinfo/FD`: `flags` is an octal number, and its last two bits say it.
fn access(info: &str) -> Option<Access> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    match u32::from_str_radix(flags.trim(), 8).ok()? & 3 {
        0 => Some(Access::Read),
        1 => Some(Access::Write),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_such_a_pipe_is_told_from_a_server() {
        let mut sleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_it = DeathPipe::hold(Pid::from_raw(sleep.id().cast_signed())).map(drop);
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        assert_eq!(of_it.unwrap_err().to_string(), "it has both ends of no pipe");
        let (_reads, _writes) = std::io::pipe().unwrap();
        let own = DeathPipe::hold(Pid::this()).unwrap();
        assert!(!own.held.is_empty());
    }

    #[test]
    fn the_end_of_a_pipe_is_known_by_its_flags() {
        assert_eq!(access("pos:\t0\nflags:\t02004000\nmnt_id:\t15\n"), Some(Access::Read));
        assert_eq!(access("pos:\t0\nflags:\t02000001\nmnt_id:\t15\n"), Some(Access::Write));
        assert_eq!(access("pos:\t0\nflags:\t02\n"), None);
        assert_eq!(access("pos:\t0\n"), None);
    }
}
