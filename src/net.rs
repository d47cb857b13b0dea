//! The only door to other agents' sockets, and the certificates that agents show each other.

mod answering;
pub mod descriptors;
mod incoming;
mod listen;
pub mod names;
pub mod places;
pub mod refusals;
pub mod shown;
mod tls;

pub use incoming::{Caller, Entrance, Socket, incoming};
pub use listen::listen;
pub use tls::Tls;

use answering::Answering;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::{Endpoint, Server, Uri};
use tower::layer::util::{Identity, Stack};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection is pinged this often and given up when a ping is not answered in the same time: a pod that vanished
/// without a word is noticed within two seconds, and its name is resolved again.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// An engine's connection is pinged less often: its node may be busy, and a session that flaps is worse than one that is
/// noticed late. The agent notices an orderly end at once.
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Calls that one agent has under way here: appends, votes, forwarded proposals of its engines.
const STREAMS_OF_AN_AGENT: u32 = 256;
/// An engine has one stream; a second may overlap with it for a moment.
const STREAMS_OF_AN_ENGINE: u32 = 4;

/// Why there can be no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// An address cannot be used.
    #[error("cannot set up a connection with {address}")]
    Connect {
        /// The address.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// A way to another agent: gRPC over a socket, or whatever a simulation puts in its place.
pub type Channel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, CallError>;

/// Why a call came to nothing; what is behind it tells whether it was sent at all.
#[derive(Debug, thiserror::Error)]
#[error("the call failed")]
pub struct CallError(#[source] pub BoxError);

/// Makes the channel to an address.
pub type Dial = Arc<dyn Fn(&str) -> Result<Channel, Error> + Send + Sync>;

/// Makes a channel that connects when it is first used, and again whenever it has to, each time with the certificate that
/// is current then. Without `tls` it is in clear.
pub fn channel(address: &str, tls: Option<&Tls>) -> Result<Channel, Error> {
    let failed = |source| Error::Connect { address: address.to_owned(), source };
    // The scheme is for tonic, which is not to begin a TLS session of its own.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let channel = match tls.cloned() {
        None => endpoint.connect_with_connector_lazy(tower::service_fn(names::connect)),
        Some(tls) => endpoint.connect_with_connector_lazy(tower::service_fn(move |uri| secure(uri, tls.clone()))),
    };
    Ok(BoxCloneSyncService::new(channel.map_err(|error| CallError(error.into()))))
}

/// Connects over TLS. The name that is verified is the host that is dialled.
async fn secure(uri: Uri, tls: Tls) -> io::Result<TokioIo<TlsStream<tokio::net::TcpStream>>> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let name =
        ServerName::try_from(host.clone()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let stream = names::connect(uri).await?.into_inner();
    let connected = TlsConnector::from(tls.current().client.clone()).connect(name, stream).await;
    tls.dialled(&host, connected.as_ref().err());
    connected.map(TokioIo::new)
}

/// A gRPC server whose calls use the places of their connections.
pub type GrpcServer = Server<Stack<Answering, Identity>>;

/// Makes a server for agents; what it demands of them is up to what it is fed from ([`incoming`]).
pub fn server() -> GrpcServer {
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(STREAMS_OF_AN_AGENT)
        .layer(Answering)
}

/// Makes a server for engines.
pub fn engine_server() -> GrpcServer {
    Server::builder()
        .http2_keepalive_interval(Some(ENGINE_KEEP_ALIVE))
        .http2_keepalive_timeout(Some(ENGINE_KEEP_ALIVE))
        .max_concurrent_streams(STREAMS_OF_AN_ENGINE)
        .layer(Answering)
}
