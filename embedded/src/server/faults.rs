//! Faults between clients and the API, as networks, proxies and an API server under load make them: to be switched on
//! while clients run, decided by a seed, and gone as soon as they are switched off.
//!
//! The parts of this Kubernetes itself (controllers, kubelet) do not come by the door and meet none. Reads by
//! name and lists are not stale either: without a resourceVersion they are quorum reads in a real one too. Only watches lag.

use crate::failure::Failure;
use crate::server::door::failed;
use crate::server::streams::Body;
use crate::store::Ids;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// How many pieces of a watch that lags are held; those beyond wait where they come from.
const MAX_HELD: usize = 4096;

/// What is wrong; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The server does not listen; connections and watches are cut.
    pub down: bool,
    /// So many requests of a hundred are answered with 429, 500, 503 or 504; some of the 500 and 504 are carried out all
    /// the same.
    pub errors_percent: u8,
    /// So many requests of a hundred are never answered, carried out or not: until faults change.
    pub lost_percent: u8,
    /// Every answer takes so much longer, before or after the request is carried out.
    pub delay: Duration,
    /// Watches tell everything so much later.
    pub lag: Duration,
    /// Watches end after this.
    pub watch_life: Option<Duration>,
}

/// The connection is cut: there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut")]
pub struct Cut;

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    answered: Answered,
    /// Whether it is carried out; of one that is answered rightly: before the delay, not after.
    acts_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Rightly,
    With(u16),
    Never,
}

/// Makes faults.
#[derive(Debug)]
pub struct Injector {
    faults: watch::Sender<Faults>,
    random: Mutex<Ids>,
}

impl Default for Injector {
    fn default() -> Self {
        Self { faults: watch::Sender::new(Faults::default()), random: Mutex::new(Ids::new(0)) }
    }
}

impl Injector {
    /// Begins a stream of decisions: the same seed decides the same about the same requests in the same order.
    pub fn seed(&self, seed: u64) {
        *self.random.lock().unwrap_or_else(PoisonError::into_inner) = Ids::new(seed);
    }

    /// From now on these.
    pub fn set(&self, faults: Faults) {
        self.faults.send_replace(faults);
    }

    /// These, and when they change.
    pub fn faults(&self) -> watch::Receiver<Faults> {
        self.faults.subscribe()
    }

    /// Lets a request through, or not. `act` carries it out, at most once.
    pub(super) async fn pass(&self, act: impl FnOnce() -> Response<Body>) -> Result<Response<Body>, Cut> {
        let mut changes = self.faults.subscribe();
        let faults = *changes.borrow_and_update();
        if faults.down {
            return Err(Cut);
        }
        let fate = self.decide(&faults);
        let answered = async {
            let mut act = Some(act);
            let mut act = || act.take().map(|act| act());
            let early = if fate.acts_first { act() } else { None };
            if !faults.delay.is_zero() {
                sleep(faults.delay).await;
            }
            match fate.answered {
                Answered::Rightly => early.or_else(act),
                Answered::With(code) => Some(failed(&failure(code))),
                Answered::Never => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = answered => answer.ok_or(Cut),
            () = ended(&mut changes, fate.answered == Answered::Never) => Err(Cut),
        }
    }

    fn decide(&self, faults: &Faults) -> Fate {
        if *faults == Faults::default() {
            return Fate { answered: Answered::Rightly, acts_first: true };
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        // All are drawn whatever the faults are, so that these do not shift what comes later.
        let (share, coin, which) = (random.number() % 100, random.number().is_multiple_of(2), random.number() % 4);
        let (errors, lost) = (u64::from(faults.errors_percent), u64::from(faults.lost_percent));
        let (answered, acts_first) = match which {
            _ if share >= errors + lost => (Answered::Rightly, coin),
            _ if share >= errors => (Answered::Never, coin),
            0 => (Answered::With(429), false),
            1 => (Answered::With(503), false),
            2 => (Answered::With(500), coin),
            _ => (Answered::With(504), coin),
        };
        Fate { answered, acts_first }
    }

    /// What a watch tells, as late as watches lag, until they are cut.
    pub(super) fn late(&self, body: Body) -> Body {
        let (faults, held) = (self.faults.subscribe(), VecDeque::new());
        let late = Late { body, faults, held, began: Instant::now(), ended: false };
        let frames = stream::unfold(late, |mut late| async {
            let piece = late.next().await?;
            Some((Ok(Frame::data(piece)), late))
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

/// Waits until the connection is to be cut: the server is down, or an answer that never comes is not waited for any more.
async fn ended(changes: &mut watch::Receiver<Faults>, with_any_change: bool) {
    while changes.changed().await.is_ok() {
        if with_any_change || changes.borrow().down {
            return;
        }
    }
}

fn failure(code: u16) -> Failure {
    let (reason, message) = match code {
        429 => ("TooManyRequests", "too many requests, please try again later"),
        503 => ("ServiceUnavailable", "apiserver is shutting down"),
        504 => ("Timeout", "Timeout: request did not complete within the allotted timeout"),
        _ => ("InternalError", "etcdserver: request timed out"),
    };
    let details = if code == 429 { json!({"retryAfterSeconds": 1}) } else { Value::Null };
    Failure { code, reason, message: message.to_owned(), details }
}

/// A watch whose pieces are held back.
struct Late {
    body: Body,
    faults: watch::Receiver<Faults>,
    /// What it said, and when.
    held: VecDeque<(Instant, Bytes)>,
    began: Instant,
    ended: bool,
}

impl Late {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let faults = *self.faults.borrow_and_update();
            let now = Instant::now();
            let cut = faults.watch_life.map(|life| self.began + life);
            if faults.down || cut.is_some_and(|cut| cut <= now) {
                return None;
            }
            let due = self.held.front().map(|(said, _)| *said + faults.lag);
            if due.is_some_and(|due| due <= now) {
                return self.held.pop_front().map(|(_, piece)| piece);
            }
            if self.ended && self.held.is_empty() {
                return None;
            }
            let wake = [due, cut].into_iter().flatten().min();
            tokio::select! {
                piece = self.body.frame(), if !self.ended && self.held.len() < MAX_HELD => {
                    match piece.and_then(Result::ok).and_then(|frame| frame.into_data().ok()) {
                        Some(piece) => self.held.push_back((Instant::now(), piece)),
                        None => self.ended = true,
                    }
                }
                // There is no server any more.
                changed = self.faults.changed() => changed.ok()?,
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
