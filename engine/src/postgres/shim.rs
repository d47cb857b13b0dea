//! The program between the wrapper and a program of the server: it has the kernel kill the latter when the wrapper
//! ends.
//!
//! The signal is forgotten at a change of user, and the standard library changes the user last. So it is set by a
//! program of its own which already runs as that user.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use std::env::args_os;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The first argument of an executable that is to run [`shim()`].
pub const FLAG: &str = "--run-server";
/// The exit code if the program was not executed, as shells have it.
const NOT_EXECUTED: u8 = 126;

/// Runs the program that the arguments name, if the first one is [`FLAG`]: it returns only if it is not, or with the
/// exit code of a failure. The second argument is the process id of the parent, the others are the program and its
/// arguments.
///
/// To be called first in `main`, before there is a second thread.
pub fn shim() -> Option<ExitCode> {
    let mut arguments = args_os().skip(1);
    (arguments.next()? == FLAG).then(|| {
        eprintln!("kaa: {}", run(arguments));
        ExitCode::from(NOT_EXECUTED)
    })
}

/// Gives the sentence that says why it returns.
fn run(mut arguments: impl Iterator<Item = OsString>) -> String {
    let parent = arguments.next().and_then(|parent| parent.to_str()?.parse::<i32>().ok());
    let (Some(parent), Some(program)) = (parent, arguments.next()) else {
        return format!("{FLAG} needs the parent's process id and a program");
    };
    if let Err(error) = set_pdeathsig(Signal::SIGKILL) {
        return format!("cannot ask to end with the wrapper: {error}");
    }
    // The parent may have ended before the line above: then no signal will come.
    if getppid().as_raw() != parent {
        return "the wrapper has ended".to_owned();
    }
    let error = Command::new(&program).args(arguments).exec();
    format!("cannot execute {}: {error}", program.display())
}
