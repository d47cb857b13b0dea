//! The signals that a container's first process must take care of: without a handler they would not even end it.

use nix::sys::signal::Signal;
use std::io;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Every signal that is handled or passed on.
pub(super) struct Signals {
    child: Stream,
    terminate: Stream,
    interrupt: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
    quit: Stream,
}

impl Signals {
    /// From here on none of them is missed.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The next signal. Several of the same kind may arrive as one.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.child.recv() => Signal::SIGCHLD,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.hangup.recv() => Signal::SIGHUP,
            _ = self.user1.recv() => Signal::SIGUSR1,
            _ = self.user2.recv() => Signal::SIGUSR2,
            _ = self.quit.recv() => Signal::SIGQUIT,
        }
    }
}
