//! Which connections of a port are kept, and which are closed, when there are many.
//!
//! A connection is idle while it shakes hands, sends a request, or waits; it is in use while a call on it is answered. An idle
//! connection never keeps a new one out: when there are too many, the one that has been idle for the longest is closed, of
//! the address that has the most. A connection in use is never closed in favour of another; a call beyond the limit
//! is refused instead. So a call that takes no place, such as a probe, is answered whatever other callers hold, and an
//! address that opens many connections displaces its own.

use super::refusals::{Port, Refusals};
use hyper::body::{Body, Frame, SizeHint};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many connections a port has at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Idle connections.
    pub idle: usize,
    /// How long one may be idle before its first call that is admitted, and between such calls; `None` leaves that to the
    /// server behind the port.
    pub idle_time: Option<Duration>,
    /// Connections in use.
    pub calls: usize,
    /// Of these, those from other addresses than the pod's own: its address, and loopback.
    pub calls_remote: usize,
    /// Of these, those of one address that is not the pod's own.
    pub calls_each: usize,
}

impl Limits {
    /// Limits that treat all addresses alike.
    pub const fn new(idle: usize, calls: usize) -> Self {
        Self { idle, idle_time: None, calls, calls_remote: calls, calls_each: calls }
    }

    /// The most connections there are at once.
    pub const fn most(&self) -> usize {
        self.idle + self.calls
    }
}

/// The connections of one port; clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    noted: Option<(Port, Refusals)>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    rows: BTreeMap<u64, Row>,
}

#[derive(Debug)]
struct Row {
    from: SocketAddr,
    /// Whether that is the pod's own address or loopback: behind a proxy in the pod it is everybody's.
    own: bool,
    idle_since: Instant,
    calls: usize,
    /// Dropped to have the connection closed.
    _open: oneshot::Sender<()>,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    handle: Handle,
    closed: oneshot::Receiver<()>,
}

/// What a call uses a connection's place by.
#[derive(Clone, Debug)]
pub struct Handle {
    places: Places,
    id: u64,
}

/// A connection is in use until this is dropped.
#[derive(Debug)]
pub struct Call {
    handle: Handle,
    admitted: bool,
}

/// There is no place for another call, or the connection is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many concurrent calls: try again")]
pub struct NoPlace;

impl Places {
    /// Makes them; what is closed or refused is noted there.
    pub fn new(limits: Limits, noted: Option<(Port, Refusals)>) -> Self {
        Self(Arc::new(Shared { limits, noted, table: Mutex::default() }))
    }

    /// The place of a new connection between these two ends. There always is one: an idle connection is closed if there has to be.
    pub fn enter(&self, from: SocketAddr, to: Option<SocketAddr>) -> Place {
        let (open, closed) = oneshot::channel();
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        let own = from.ip().to_canonical().is_loopback() || to.is_some_and(|to| to.ip() == from.ip());
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        table.rows.insert(id, Row { from, own, idle_since: Instant::now(), calls: 0, _open: open });
        let displaced = table.displace(self.0.limits.idle, id);
        drop(table);
        self.note_displaced(displaced);
        Place { handle: Handle { places: self.clone(), id }, closed }
    }

    /// Closes the connections that were idle for too long.
    pub fn expire(&self) {
        let Some(most) = self.0.limits.idle_time else { return };
        let now = Instant::now();
        let late = |row: &Row| row.calls == 0 && now.duration_since(row.idle_since) >= most;
        let gone: Vec<Row> = self.table().rows.extract_if(.., |_, row| late(row)).map(|(_, row)| row).collect();
        for row in gone {
            self.note("no_call", row.from, &format!("no call was admitted within {} s", most.as_secs()));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_displaced(&self, from: Option<SocketAddr>) {
        if let Some(from) = from {
            self.note("displaced", from, "its idle connection was closed in favour of a new one");
        }
    }

    fn note(&self, reason: &'static str, from: SocketAddr, words: &str) {
        if let Some((port, refusals)) = &self.0.noted {
            refusals.note(*port, reason, Some(from), words);
        }
    }
}

impl Table {
    /// Closes one idle connection if there are more than `most`: not the newest, if there is a choice.
    fn displace(&mut self, most: usize, newest: u64) -> Option<SocketAddr> {
        let mut idle: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let rows = || self.rows.iter().filter(|(_, row)| row.calls == 0);
        for (_, row) in rows() {
            *idle.entry(row.from.ip()).or_default() += 1;
        }
        if idle.values().sum::<usize>() <= most {
            return None;
        }
        let rank = |(id, row): &(&u64, &Row)| (**id != newest, idle[&row.from.ip()], std::cmp::Reverse(row.idle_since));
        let (id, _) = rows().max_by_key(rank)?;
        let id = *id;
        self.rows.remove(&id).map(|row| row.from)
    }

    fn has_room(&self, limits: &Limits, of: &Row) -> bool {
        let used =
            |counts: &dyn Fn(&Row) -> bool| self.rows.values().filter(|row| row.calls > 0 && counts(row)).count();
        let remote = || used(&|row| !row.own) < limits.calls_remote;
        let each = || used(&|row| row.from.ip() == of.from.ip()) < limits.calls_each;
        used(&|_| true) < limits.calls && (of.own || (remote() && each()))
    }
}

impl Place {
    /// What its calls use it by.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the connection has to be closed.
    pub async fn closed(&mut self) {
        std::future::poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Whether the connection has to be closed; wakes the task when it has to.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The sender sends nothing: it is dropped. A receiver that has said so must not be asked again.
        if self.closed.is_terminated() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.closed).poll(cx).map(|_| ())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handle.places.table().rows.remove(&self.handle.id);
    }
}

impl Handle {
    /// Uses the connection for a call.
    pub fn call(&self) -> Result<Call, NoPlace> {
        let mut table = self.places.table();
        let row = table.rows.get(&self.id).ok_or(NoPlace)?;
        let from = row.from;
        let has_room = row.calls > 0 || table.has_room(&self.places.0.limits, row);
        if has_room && let Some(row) = table.rows.get_mut(&self.id) {
            row.calls += 1;
            return Ok(Call { handle: self.clone(), admitted: false });
        }
        drop(table);
        self.places.note("no_place", from, "too many calls at once");
        Err(NoPlace)
    }
}

impl Call {
    /// Says that the caller may make this call: the connection's idle time begins at its end.
    pub fn admit(&mut self) {
        self.admitted = true;
    }

    /// A body that ends the call when it has been sent.
    pub fn until_sent<B>(self, body: B) -> Answered<B> {
        Answered { body, _call: self }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let places = &self.handle.places;
        let mut table = places.table();
        let Some(row) = table.rows.get_mut(&self.handle.id) else { return };
        row.calls -= 1;
        if self.admitted {
            row.idle_since = Instant::now();
        }
        let displaced = table.displace(places.0.limits.idle, self.handle.id);
        drop(table);
        places.note_displaced(displaced);
    }
}

/// The body of an answer, and the call that it ends.
#[derive(Debug)]
pub struct Answered<B> {
    body: B,
    _call: Call,
}

impl<B: Body + Unpin> Body for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn at(address: &str, port: u16) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), port)
    }

    /// The places that were not told to close, by their numbers.
    fn open(places: &mut [Place]) -> Vec<usize> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut open = Vec::new();
        for (number, place) in places.iter_mut().enumerate() {
            if place.poll_closed(&mut cx).is_pending() {
                open.push(number);
            }
        }
        open
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_displaces_the_longest_idle_of_the_address_with_the_most() {
        let places = Places::new(Limits::new(4, 4), None);
        let mut entered = Vec::new();
        for from in ["10.0.0.1", "10.0.0.2", "10.0.0.2", "::ffff:10.0.0.2"] {
            entered.push(places.enter(at(from, 1), None));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        entered.push(places.enter(at("10.0.0.3", 1), None));
        assert_eq!(open(&mut entered), [0, 2, 3, 4], "the oldest of those of 10.0.0.2");
        let mut call = entered[2].handle().call().unwrap();
        call.admit();
        entered.push(places.enter(at("10.0.0.3", 2), None));
        assert_eq!(open(&mut entered), [0, 2, 3, 4, 5], "one in use does not count");
        drop(call);
        assert_eq!(open(&mut entered), [0, 2, 4, 5], "one that becomes idle does: of 10.0.0.2 the older");
    }

    #[tokio::test]
    async fn calls_of_one_address_leave_places_for_others_and_for_the_pod_itself() {
        let limits = Limits { calls_remote: 3, calls_each: 2, ..Limits::new(99, 5) };
        let metrics = Arc::new(Metrics::new());
        let places = Places::new(limits, Some((Port::Http, Refusals::new(metrics.clone()))));
        let entered: Vec<Place> = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1", "10.0.0.9"]
            .iter()
            .map(|from| places.enter(at(from, 1), Some(at("10.0.0.9", 8888))))
            .collect();
        let calls: Vec<Result<Call, NoPlace>> = entered.iter().map(|place| place.handle().call()).collect();
        let held: Vec<bool> = calls.iter().map(Result::is_ok).collect();
        assert_eq!(held, [true, true, false, true, false, true, true]);
        assert!(entered[0].handle().call().is_ok(), "another call on a connection in use takes no other place");
        let text = metrics.text();
        assert!(text.contains("kaa_callers_refused_total{port=\"http\",reason=\"no_place\"} 2"), "{text}");
        drop(calls);
        assert!(entered[2].handle().call().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn only_admitted_calls_keep_a_connection() {
        let limits = Limits { idle_time: Some(Duration::from_secs(10)), ..Limits::new(9, 9) };
        let places = Places::new(limits, None);
        let mut entered: Vec<Place> = (0..4).map(|port| places.enter(at("10.0.0.1", port), None)).collect();
        let mut streaming = entered[1].handle().call().unwrap();
        streaming.admit();
        tokio::time::advance(Duration::from_secs(9)).await;
        // Refused, and admitted.
        drop(entered[2].handle().call().unwrap());
        let mut admitted = entered[3].handle().call().unwrap();
        admitted.admit();
        drop(admitted);
        tokio::time::advance(Duration::from_secs(1)).await;
        places.expire();
        assert_eq!(open(&mut entered), [1, 3]);
        tokio::time::advance(Duration::from_secs(9)).await;
        places.expire();
        assert_eq!(open(&mut entered), [1]);
        drop(streaming);
        places.expire();
        assert_eq!(open(&mut entered), [1], "its idle time has just begun");
    }
}
