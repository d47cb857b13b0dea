//! Decides what happens next to the containers of a pod: pure, so that the rules of restarting can be read as cases.
//!
//! Init containers run one after another to their end, then all others run at once. What ended is started again as
//! `restartPolicy` says: at once the first time, then after a delay that doubles up to five minutes.

use jiff::{SignedDuration, Timestamp};

/// The longest delay before a restart.
const MOST_BACKOFF: SignedDuration = SignedDuration::from_mins(5);
/// A container that ran for so long is not held to have crashed again.
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// When containers that ended are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Always,
    OnFailure,
    Never,
}

impl Policy {
    /// The policy of a pod.
    pub fn of(word: &str) -> Self {
        match word {
            "Never" => Self::Never,
            "OnFailure" => Self::OnFailure,
            _ => Self::Always,
        }
    }
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub id: String,
    pub code: i32,
    pub reason: &'static str,
    pub message: String,
    /// `None` if it could not be started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It was not started yet.
    Waiting,
    /// It cannot be started, and will be tried again.
    Blocked {
        reason: &'static str,
        message: String,
        try_at: Timestamp,
    },
    Running {
        id: String,
        since: Timestamp,
    },
    Ended(Ended),
}

/// A container of a pod.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub name: String,
    pub image: String,
    /// Whether it is one of `initContainers`.
    pub init: bool,
    pub state: State,
    /// How the run before this one ended.
    pub last: Option<Ended>,
    pub restarts: u32,
    /// Whether its startup probe, if it has one, has succeeded.
    pub started: bool,
    pub ready: bool,
    /// The delay before the first restart but one.
    first_backoff: SignedDuration,
    /// The delay before the next restart.
    backoff: SignedDuration,
}

impl Member {
    /// A container that was not started yet.
    pub fn new(name: &str, image: &str, init: bool, first_backoff: SignedDuration) -> Self {
        Self {
            name: name.to_owned(),
            image: image.to_owned(),
            init,
            state: State::Waiting,
            last: None,
            restarts: 0,
            started: false,
            ready: false,
            first_backoff,
            backoff: SignedDuration::ZERO,
        }
    }

    /// It was started.
    pub fn start(&mut self, id: String, since: Timestamp) {
        self.take_over(State::Running { id, since });
        (self.started, self.ready) = (false, false);
    }

    /// It could not be started, and that was its run.
    pub fn fail(&mut self, ended: Ended) {
        self.take_over(State::Ended(ended));
    }

    /// It cannot be started yet.
    pub fn block(&mut self, reason: &'static str, message: String, now: Timestamp) {
        self.backoff = self.next_backoff();
        let try_at = now.checked_add(self.backoff).unwrap_or(Timestamp::MAX);
        if let State::Ended(ended) = &self.state {
            self.last = Some(ended.clone());
        }
        self.state = State::Blocked { reason, message, try_at };
    }

    /// It ended.
    pub fn end(&mut self, code: i32, message: String, finished_at: Timestamp) {
        let State::Running { id, since } = &self.state else { return };
        let reason = if code == 0 { "Completed" } else { "Error" };
        let (id, started_at) = (id.clone(), Some(*since));
        if finished_at.duration_since(*since) > FORGIVEN_AFTER {
            self.backoff = SignedDuration::ZERO;
        }
        self.state = State::Ended(Ended { id, code, reason, message, started_at, finished_at });
        (self.started, self.ready) = (false, self.init && code == 0);
    }

    /// When it is started again after it ended; `None`: never.
    pub fn restarts_at(&self, policy: Policy) -> Option<Timestamp> {
        let State::Ended(ended) = &self.state else { return None };
        let again = match policy {
            Policy::Always => !self.init || ended.code != 0,
            Policy::OnFailure => ended.code != 0,
            Policy::Never => false,
        };
        again.then(|| ended.finished_at.checked_add(self.backoff).unwrap_or(Timestamp::MAX))
    }

    /// How long it is held back, if it is: what `CrashLoopBackOff` tells.
    pub fn held_back(&self, policy: Policy) -> Option<SignedDuration> {
        (self.restarts_at(policy).is_some() && !self.backoff.is_zero()).then_some(self.backoff)
    }

    fn take_over(&mut self, state: State) {
        match std::mem::replace(&mut self.state, state) {
            State::Ended(ended) => {
                self.last = Some(ended);
                self.restarts += 1;
                self.backoff = self.next_backoff();
            }
            State::Blocked { .. } if self.last.is_some() => self.restarts += 1,
            State::Blocked { .. } => self.backoff = SignedDuration::ZERO,
            State::Waiting | State::Running { .. } => {}
        }
    }

    fn next_backoff(&self) -> SignedDuration {
        (self.backoff * 2).clamp(self.first_backoff, MOST_BACKOFF.max(self.first_backoff))
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start this container.
    Start(usize),
    /// Wait until something ends, or until then.
    Wait(Option<Timestamp>),
    /// Nothing will run any more.
    Finished,
}

/// Decides what happens next. Init containers stand first.
pub(super) fn next(members: &[Member], policy: Policy, now: Timestamp) -> Next {
    let (mut alive, mut due) = (false, None::<Timestamp>);
    for (index, member) in members.iter().enumerate() {
        let start_at = match &member.state {
            State::Waiting => Some(now),
            State::Blocked { try_at, .. } => Some(*try_at),
            State::Running { .. } if member.init => return Next::Wait(None),
            State::Running { .. } => {
                alive = true;
                continue;
            }
            State::Ended(_) => member.restarts_at(policy),
        };
        match start_at {
            Some(at) if at <= now => return Next::Start(index),
            Some(at) if member.init => return Next::Wait(Some(at)),
            Some(at) => due = Some(due.map_or(at, |due| due.min(at))),
            None if member.init && !member.ready => return Next::Finished,
            None => {}
        }
    }
    if alive || due.is_some() { Next::Wait(due) } else { Next::Finished }
}

#[cfg(test)]
#[path = "tests/lifecycle.rs"]
mod tests;
