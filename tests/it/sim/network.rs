//! The way from one agent to another, and from an engine to an agent: gRPC without sockets, with delays and partitions.
//!
//! A call is carried out in the runtime of whom it is for. Over a cut link nothing comes through and nobody is told, as
//! over a real one; where nobody listens a call is refused, and where a listener dies its calls break.

use crate::sim::trace::Trace;
use axum::http;
use hyper::body::{Frame, SizeHint};
use kaa::clock;
use kaa::net::{CallError, Channel, Dial};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tower::Service;
use tower::util::BoxCloneSyncService;

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// How long one way takes at most.
const MOST_DELAY_MS: u64 = 6;

/// Calls that wait for an agent; one that is paused takes none.
const WAITING: usize = 4096;

/// What a caller is told whose connection breaks.
const BROKEN: &str = "the connection broke";

/// A call on its way.
pub struct Call {
    request: Request,
    answer: oneshot::Sender<Response>,
}

/// The network; clones share it.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
    trace: Trace,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<String, mpsc::Sender<Call>>,
    cut: BTreeSet<(String, String)>,
    /// What breaks when a host dies, in the order in which it began: the calls that wait for it, and its answers.
    open: BTreeMap<String, Vec<oneshot::Sender<()>>>,
}

/// The host in an address: `kaa-admin-0` in `kaa-admin-0.kaa-admin.default.svc:48005`.
fn host(address: &str) -> &str {
    address.split(['.', ':']).next().unwrap_or_default()
}

impl Network {
    pub fn new(trace: Trace) -> Self {
        Self { state: Arc::new(Mutex::new(State::default())), trace }
    }

    /// Cuts or heals the link between two hosts.
    pub fn set_cut(&self, one: &str, other: &str, cut: bool) {
        let mut state = self.state.lock().unwrap();
        for link in [(one.to_owned(), other.to_owned()), (other.to_owned(), one.to_owned())] {
            if cut {
                state.cut.insert(link)
            } else {
                state.cut.remove(&link)
            };
        }
    }

    /// Heals everything.
    pub fn heal(&self) {
        self.state.lock().unwrap().cut.clear();
    }

    /// Breaks all connections to a host that dies, in their order. Dropped with its runtime they would break in the order
    /// of its tasks' numbers, which tokio counts for the whole process: other threads would have a say in it.
    pub fn break_off(&self, host: &str) {
        let open = self.state.lock().unwrap().open.remove(host);
        open.into_iter().flatten().for_each(drop);
    }

    /// Waits for the end of a host.
    fn end_of(&self, host: &str) -> oneshot::Receiver<()> {
        let (dies, end) = oneshot::channel();
        let mut state = self.state.lock().unwrap();
        let open = state.open.entry(host.to_owned()).or_default();
        open.retain(|other| !other.is_closed());
        open.push(dies);
        end
    }

    pub fn is_cut(&self, one: &str, other: &str) -> bool {
        self.state.lock().unwrap().cut.contains(&(one.to_owned(), other.to_owned()))
    }

    /// Listens at an address, in the place of whoever listened there.
    pub fn listen(&self, address: &str) -> mpsc::Receiver<Call> {
        let (listener, calls) = mpsc::channel(WAITING);
        self.state.lock().unwrap().listeners.insert(address.to_owned(), listener);
        calls
    }

    /// How a host reaches the others.
    pub fn dial(&self, from: &str) -> Dial {
        let (network, from) = (self.clone(), from.to_owned());
        Arc::new(move |address| Ok(network.channel(&from, address)))
    }

    pub fn channel(&self, from: &str, address: &str) -> Channel {
        let (network, from, address) = (self.clone(), from.to_owned(), address.to_owned());
        BoxCloneSyncService::new(tower::service_fn(move |request: Request| {
            let (network, from, address) = (network.clone(), from.clone(), address.clone());
            async move { network.carry(&from, &address, request).await }
        }))
    }

    async fn carry(&self, from: &str, address: &str, request: Request) -> Result<Response, CallError> {
        let path = request.uri().path().to_owned();
        self.pass(from, host(address)).await;
        let listener = self.state.lock().unwrap().listeners.get(address).cloned();
        let refused = || CallError(Box::new(tonic::ConnectError("nobody listens there".into())));
        let listener = listener.filter(|listener| !listener.is_closed()).ok_or_else(refused)?;
        let (answer, answered) = oneshot::channel();
        let mut end = self.end_of(host(address));
        if listener.try_send(Call { request, answer }).is_err() {
            std::future::pending::<()>().await;
        }
        self.trace.mix(&format!("{from} {address} {path}"));
        let response = tokio::select! {
            biased;
            _ = &mut end => Err(()),
            answered = answered => answered.map_err(drop),
        };
        let response = response.map_err(|()| CallError(BROKEN.into()))?;
        self.pass(host(address), from).await;
        Ok(response.map(|body| Body::new(Answer { body, end: Some(end) })))
    }

    /// The time of one way; forever over a link that is cut.
    async fn pass(&self, from: &str, to: &str) {
        tokio::time::sleep(Duration::from_millis(1 + clock::random_below(MOST_DELAY_MS))).await;
        if self.is_cut(from, to) {
            std::future::pending::<()>().await;
        }
    }
}

/// What a host says in answer to a call, until it dies.
struct Answer {
    body: Body,
    end: Option<oneshot::Receiver<()>>,
}

impl hyper::body::Body for Answer {
    type Data = <Body as hyper::body::Body>::Data;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if Pin::new(end).poll(cx).is_ready() {
            self.end = None;
            return Poll::Ready(Some(Err(tonic::Status::unavailable(BROKEN))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves the calls that come in.
pub async fn serve<S>(service: S, mut calls: mpsc::Receiver<Call>)
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    while let Some(Call { request, answer }) = calls.recv().await {
        let mut service = service.clone();
        tokio::spawn(async move {
            let Ok(response) = service.call(request).await;
            // Whoever called may be gone.
            let _ = answer.send(response);
        });
    }
}
