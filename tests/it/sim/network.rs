//! The network between agents, and between engines and agents: gRPC without sockets, with delays and partitions.
//!
//! A call runs in the runtime of the host that receives it. Over a cut link nothing gets through and no side learns of
//! it, as over a real one. If no host listens at an address, a call is refused; if a listener dies, its calls break.

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

/// How long one direction takes at most.
const MOST_DELAY_MS: u64 = 6;

/// The number of calls that can wait for an agent; a paused agent accepts none.
const WAITING: usize = 4096;

/// The error that a caller gets when its connection breaks.
const BROKEN: &str = "the connection broke";

/// A call that has not been answered.
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
    /// What breaks when a host dies, in the order of creation: the calls that wait for the host, and its answers.
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

    /// Restores all links.
    pub fn heal(&self) {
        self.state.lock().unwrap().cut.clear();
    }

    /// Breaks all connections to a host that dies, in a fixed order. If they were dropped with the host's runtime, they
    /// would break in the order of its task ids, which tokio counts for the whole process, so that other threads would
    /// affect it.
    pub fn break_off(&self, host: &str) {
        let open = self.state.lock().unwrap().open.remove(host);
        open.into_iter().flatten().for_each(drop);
    }

    /// Completes at the end of a host.
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

    /// Listens at an address, and replaces the previous listener there.
    pub fn listen(&self, address: &str) -> mpsc::Receiver<Call> {
        let (listener, calls) = mpsc::channel(WAITING);
        self.state.lock().unwrap().listeners.insert(address.to_owned(), listener);
        calls
    }

    /// A function with which a host connects to the others.
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

    /// Waits for the time of one direction; never completes over a cut link.
    async fn pass(&self, from: &str, to: &str) {
        tokio::time::sleep(Duration::from_millis(1 + clock::random_below(MOST_DELAY_MS))).await;
        if self.is_cut(from, to) {
            std::future::pending::<()>().await;
        }
    }
}

/// The body of a host's answer to a call, until the host dies.
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

/// Serves the incoming calls.
pub async fn serve<S>(service: S, mut calls: mpsc::Receiver<Call>)
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    while let Some(Call { request, answer }) = calls.recv().await {
        let mut service = service.clone();
        tokio::spawn(async move {
            let Ok(response) = service.call(request).await;
            // The caller may be gone.
            let _ = answer.send(response);
        });
    }
}
