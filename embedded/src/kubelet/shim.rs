//! What runs first in the process of a container: it makes it one, then becomes the container's program.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getppid, setsid};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the program of a container. `arguments`: the kubelet's process id, the program, its arguments. Whatever
/// binary a [`super::Config::shim`] names calls this; it returns only with an error.
pub fn shim(arguments: impl IntoIterator<Item = OsString>) -> io::Error {
    let mut arguments = arguments.into_iter();
    let parent = arguments.next().and_then(|parent| parent.to_str()?.parse::<i32>().ok());
    let (Some(parent), Some(program)) = (parent, arguments.next()) else {
        return io::Error::new(io::ErrorKind::InvalidInput, "usage: KUBELET-PID PROGRAM [ARGUMENT...]");
    };
    // Should the kubelet die, the first process of each container dies with it.
    if let Err(errno) = setsid().and_then(|_| set_pdeathsig(Signal::SIGKILL)) {
        return errno.into();
    }
    if getppid().as_raw() != parent {
        return io::Error::new(io::ErrorKind::NotFound, "the kubelet that started this container is gone");
    }
    let error = Command::new(&program).args(arguments).exec();
    io::Error::new(error.kind(), format!("cannot execute {}: {error}", program.display()))
}
