//! The API server: HTTPS on a loopback address of its own, with a bound on everything that comes in.
//!
//! Each instance takes a network 127.X.Y.0/24 for itself by listening on its last address: the socket is the
//! reservation, so that instances run side by side and a dead one leaves nothing behind. The API is on the first, where
//! nothing listens while it is down; the others are the pods'.

mod caller;
mod certificates;
mod door;
mod exec;
mod faults;
mod streams;

pub use caller::{Callers, admin};
pub use door::Door;
pub use faults::{Cut, Faults, Injector};
pub use streams::Body;

use crate::failure::Failure;
use crate::instance::Instance;
use crate::kubeconfig;
use crate::resource::Kind;
use crate::runtime::Runtime;
use crate::store::{Key, Store};
use crate::tokens::Tokens;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Response;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::future::pending;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Ports, and the second numbers of networks that go with them. A machine where something listens on the first port at
/// all addresses has none left there; with numbers of their own, two instances cannot take one network by two ports.
const PLACES: [(u16, RangeInclusive<u8>); 2] = [(6443, 77..=101), (16443, 102..=126)];

/// Connections at once. A watch takes one, and there are some dozens of watches; those beyond wait in the kernel.
const MAX_CONNECTIONS: u32 = 512;
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to say what it wants, or stay idle: longer than the 90 s after which clients close an idle
/// connection by themselves, so that none is closed here at the moment at which a client begins to ask by it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The greatest head of a request.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The greatest body, as a real API server has it.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;
/// How long a request that is being answered may still take when the server stops.
const LINGER: Duration = Duration::from_secs(2);
/// How long to wait after a connection could not be accepted: there is no file descriptor left, or no memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Every network is taken.
    #[error(
        "there is no free address: something listens on ports 6443 and 16443 of all of 127.77.0.1 to 127.126.255.1"
    )]
    NoAddress,
    /// Loopback addresses cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// There is no certificate to show.
    #[error(transparent)]
    Certificates(#[from] certificates::Error),
    /// The objects that are always there could not be made.
    #[error("the objects that every Kubernetes has could not be made")]
    Bootstrap(#[from] Failure),
    /// A client would not find the server.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    ca_pem: String,
    kubeconfig: PathBuf,
    door: Arc<Door>,
    /// Never accepts anything; see above.
    _reservation: TcpListener,
    accepting: JoinHandle<()>,
    timers: JoinHandle<()>,
}

impl Server {
    /// Starts serving an instance, and writes the file `kubeconfig` by which its admin finds it.
    pub async fn start(instance: Arc<Instance>, tokens: Arc<Tokens>, dir: &Path) -> Result<Self, Error> {
        let (reservation, listener, address) = listen().await?;
        let (tls, ca_pem) = certificates::make(address.ip())?;
        instance.with(|store| bootstrap(store, &ca_pem))?;
        let token = tokens.secret();
        let kubeconfig = dir.join("kubeconfig");
        write(&kubeconfig, &kubeconfig::admin(&url(address), &ca_pem, &token))
            .map_err(|source| Error::Write { path: kubeconfig.clone(), source })?;
        let timers = tokio::spawn({
            let instance = instance.clone();
            async move { instance.run_timers().await }
        });
        let door = Arc::new(Door::new(instance, tokens, Callers::new(&token)));
        let accepting = tokio::spawn(serve(listener, address, TlsAcceptor::from(tls), door.clone()));
        Ok(Self { address, ca_pem, kubeconfig, door, _reservation: reservation, accepting, timers })
    }

    /// The first three numbers of the network that is this instance's.
    pub fn subnet(&self) -> [u8; 3] {
        match self.address.ip() {
            IpAddr::V4(address) => [address.octets()[0], address.octets()[1], address.octets()[2]],
            IpAddr::V6(_) => unreachable!("it listens on an IPv4 address"),
        }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        url(self.address)
    }

    /// The authority that it is to be judged by.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The admin's file.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where requests come in that need no socket.
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// Says who runs containers.
    pub fn set_runtime(&self, runtime: Arc<dyn Runtime>) {
        self.door.set_runtime(runtime);
    }

    /// Ends watches, logs and commands, and waits for what is being answered, but not for long.
    pub async fn stop(self) {
        self.timers.abort();
        self.door.close();
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, "the server had failed before it was stopped");
        }
    }
}

fn url(address: SocketAddr) -> String {
    format!("https://{address}")
}

/// The first network that is free: its reservation, and the API's socket.
async fn listen() -> Result<(TcpListener, TcpListener, SocketAddr), Error> {
    for (port, seconds) in PLACES {
        for (second, third) in seconds.flat_map(|second| (0..=255).map(move |third| (second, third))) {
            let place = |last| SocketAddr::from((Ipv4Addr::new(127, second, third, last), port));
            let Some(reservation) = bind(place(255)).await? else { continue };
            let Some(listener) = bind(place(1)).await? else { continue };
            return Ok((reservation, listener, place(1)));
        }
    }
    Err(Error::NoAddress)
}

/// Listens there; `None` if another process does.
async fn bind(address: SocketAddr) -> Result<Option<TcpListener>, Error> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(source) => Err(Error::Listen { address, source }),
    }
}

/// Makes what every Kubernetes has. The authority's certificate is there before the namespaces that get a copy of it.
fn bootstrap(store: &mut Store, ca_pem: &str) -> Result<(), Failure> {
    let mut make = |kind: Kind, object: Value| match store.find(&Key::of(kind, &object)) {
        Some(_) => Ok(()),
        None => store.create(kind, object).map(drop),
    };
    make(Kind::Namespace, json!({"metadata": {"name": "kube-system"}}))?;
    let metadata = json!({"name": "kube-root-ca.crt", "namespace": "kube-system"});
    make(Kind::ConfigMap, json!({"metadata": metadata, "data": {"ca.crt": ca_pem}}))?;
    make(Kind::Namespace, json!({"metadata": {"name": "default"}}))
}

/// Writes a file that only its owner may read, as a whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&beside, path)
}

/// Accepts connections until the door closes, then waits for those that there are.
async fn serve(listener: TcpListener, address: SocketAddr, tls: TlsAcceptor, door: Arc<Door>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let (mut stopping, mut faults) = (door.stopping(), door.injector().faults());
    let mut listener = Some(listener);
    loop {
        if faults.borrow_and_update().down {
            drop(listener.take());
        } else if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
        }
        let accepted = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => break,
            _ = faults.changed() => continue,
            // The address may not be free at once.
            () = sleep(ACCEPT_BACKOFF), if listener.is_none() => continue,
            accepted = accept(listener.as_ref(), &room) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let conversation = converse(stream, tls.clone(), door.clone());
                tokio::spawn(async move {
                    conversation.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    drop(listener);
    if timeout(LINGER, room.acquire_many(MAX_CONNECTIONS)).await.is_err() {
        tracing::warn!("some requests were not answered before the server stopped");
    }
}

async fn accept(
    listener: Option<&TcpListener>,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let Some(listener) = listener else { return pending().await };
    let place = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // An answer that is held back for an acknowledgement costs 40 ms.
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn converse(stream: TcpStream, tls: TlsAcceptor, door: Arc<Door>) {
    let (mut stopping, mut faults) = (door.stopping(), door.injector().faults());
    let stream = tokio::select! {
        _ = stopping.wait_for(|stopping| *stopping) => return,
        _ = faults.wait_for(|faults| faults.down) => return,
        done = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => match done {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
            Err(_) => return tracing::debug!("a handshake took too long"),
        },
    };
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let door = door.clone();
        async move { answer(&door, request).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        _ = stopping.wait_for(|stopping| *stopping) => None,
        _ = faults.wait_for(|faults| faults.down) => return,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(LINGER, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended in the middle of a request");
    }
}

async fn answer(door: &Door, request: hyper::Request<Incoming>) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    match read(body).await {
        Ok(body) => door.serve(hyper::Request::from_parts(head, body)).await,
        Err(failure) => Ok(door::failed(&failure)),
    }
}

/// Reads a body that is not too large and does not take too long. One that says that it is too large is not waited for.
async fn read(body: Incoming) -> Result<Bytes, Failure> {
    let too_large = || {
        let message = format!("Request entity too large: limit is {MAX_BODY_BYTES}");
        Failure { code: 413, reason: "RequestEntityTooLarge", message, details: Value::Null }
    };
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(too_large());
    }
    let read = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await;
    match read.map_err(|_| Failure::bad_request("the body took too long"))? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Failure::bad_request(format!("the body could not be read: {error}"))),
    }
}

#[cfg(test)]
mod tests;
