//! Connections that come in: a bounded number of them, whose small messages go out at once, over TLS where it is asked for.
//!
//! Each handshake uses the certificate that is current when it begins. Handshakes do not hold up each other, and count
//! among the idle connections: a handshake that is never finished keeps no other client out.

use super::places::{Handle, Limits, Place, Places};
use super::refusals::{Port, Refusals};
use super::shown::Shown;
use super::tls::Tls;
use futures::Stream;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// How long to wait after a connection could not be accepted: there is no file descriptor left, or no memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that are ready and wait to be served: the server takes each at once.
const READY: usize = 16;
/// How often connections that were idle for too long are closed.
const EXPIRE_PERIOD: Duration = Duration::from_secs(1);

/// A connection, and its place among those that are allowed.
pub struct Counted {
    stream: Socket,
    place: Place,
}

/// A connection in clear or over TLS.
pub enum Socket {
    /// In clear.
    Plain(TcpStream),
    /// Over TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where it is.
    pub address: Option<SocketAddr>,
    /// The certificate that it showed.
    pub shown: Option<Arc<Shown>>,
    /// What its calls use the place of its connection by.
    pub place: Option<Handle>,
}

/// What a server demands, and where it says who was refused.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// The certificate to show.
    pub tls: Tls,
    /// Which port it is.
    pub port: Port,
    /// Where refusals are noted.
    pub refusals: Refusals,
}

impl Entrance {
    /// Shakes hands. An error was noted where it is a refusal.
    pub async fn shake_hands(&self, stream: TcpStream) -> io::Result<Socket> {
        let (current, from) = (self.tls.current(), stream.peer_addr().ok());
        let config = match self.port {
            Port::Http => &current.people,
            Port::Engines => &current.engines,
            Port::Peers => &current.agents,
        };
        let shaking = TlsAcceptor::from(config.clone()).accept(stream);
        let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await;
        match shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut)).flatten() {
            Ok(stream) => Ok(Socket::Tls(Box::new(stream))),
            Err(error) => {
                // One that merely looks whether the port is open is not refused.
                if error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>()) {
                    self.refusals.note(self.port, "handshake", from, &format!("TLS handshake failed: {error}"));
                } else {
                    tracing::debug!(port = self.port.name(), %error, "a connection ended during the TLS handshake");
                }
                Err(error)
            }
        }
    }
}

impl Socket {
    /// Who is at the other end. The first message decides whether its certificate is trusted.
    pub fn caller(&self) -> Caller {
        match self {
            Self::Plain(stream) => Caller { address: stream.peer_addr().ok(), shown: None, place: None },
            Self::Tls(stream) => {
                let (tcp, session) = stream.get_ref();
                let chain =
                    session.peer_certificates().map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect());
                // What rustls verified and we cannot read bears no name that would let anybody in.
                let shown = chain.and_then(|chain| Shown::new(chain).ok()).map(Arc::new);
                Caller { address: tcp.peer_addr().ok(), shown, place: None }
            }
        }
    }
}

/// Accepts connections within the limits. None waits for another to end: see [`Places`]. Without an entrance they are in clear,
/// which is for tests.
pub fn incoming(
    listener: TcpListener,
    limits: Limits,
    entrance: Option<Entrance>,
) -> impl Stream<Item = io::Result<Counted>> {
    let (ready, connections) = mpsc::channel(READY);
    let noted = entrance.as_ref().map(|entrance| (entrance.port, entrance.refusals.clone()));
    let places = Places::new(limits, noted);
    tokio::spawn(async move {
        let mut expire = tokio::time::interval(EXPIRE_PERIOD);
        expire.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (stream, from) = tokio::select! {
                accepted = accept(&listener) => accepted,
                _ = expire.tick() => {
                    places.expire();
                    continue;
                }
                () = ready.closed() => return,
            };
            let mut place = places.enter(from, stream.local_addr().ok());
            let (ready, entrance) = (ready.clone(), entrance.clone());
            tokio::spawn(async move {
                let stream = tokio::select! {
                    stream = begin(stream, entrance.as_ref()) => stream,
                    () = place.closed() => return,
                };
                if let Ok(stream) = stream {
                    // A server that has ended takes no connections.
                    let _ = ready.send(Ok(Counted { stream, place })).await;
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

async fn begin(stream: TcpStream, entrance: Option<&Entrance>) -> io::Result<Socket> {
    match entrance {
        Some(entrance) => entrance.shake_hands(stream).await,
        None => Ok(Socket::Plain(stream)),
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // A message that is held back for an acknowledgement costs 40 ms; a slow one is still a message.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "small messages will be slow");
                }
                return (stream, from);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

impl Connected for Counted {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { place: Some(self.place.handle()), ..self.stream.caller() }
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // A server always reads, so that it learns of it here.
        if self.place.poll_closed(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests;
