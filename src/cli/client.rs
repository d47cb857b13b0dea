//! One request over one connection, in clear or over TLS: as much of an HTTP client as commands need. Agents are asked
//! directly: a proxy outside the cluster does not know them.

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use clap::Args;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use url::{Host, Url};

/// How long to wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The same where the agent waits for others: longer than it gives itself for any request.
const LONG_TIMEOUT: Duration = Duration::from_secs(25);

/// How long to wait for a connection: an unused address often sends no answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The greatest answer: far more than a page of rows.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// How to speak over TLS, and as whom.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Tls {
    /// For https: the CA certificate of the agents, as a PEM file
    #[arg(long, env = "KAA_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For https: the expected name in the agent's certificate, if it is not the host in --api-server, for example with a
    /// forwarded port
    #[arg(long, env = "KAA_TLS_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,
    /// For https: a client certificate as a PEM file, for commands that change the domain (`kaa certificates operator` creates one)
    #[arg(long, env = "KAA_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of --cert, as a PEM file
    #[arg(long, env = "KAA_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says which authority vouches for agents.
    #[error("https needs --ca, the certificate authority of the agents")]
    NoAuthority,
    /// A file is missing or not what it should be. Never contains any of a key.
    #[error("{} cannot be used: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// No certificate could bear it.
    #[error("'{0}' cannot be a name in a certificate")]
    Name(String),
    /// No connection.
    #[error("{}", plain(.0))]
    Connect(io::Error),
    /// No TLS session.
    #[error("the TLS handshake failed: {0}")]
    Handshake(io::Error),
    /// The connection broke, or what came over it is no HTTP.
    #[error("{}", bottom(.0))]
    Broken(#[from] hyper::Error),
    /// The request cannot be made.
    #[error("{0}")]
    Request(#[from] axum::http::Error),
    /// The answer broke off, or is too long.
    #[error("{}", bottom(.0))]
    Answer(#[from] axum::Error),
    /// Nothing came in time.
    #[error("no answer within {} seconds", .0.as_secs())]
    Late(Duration),
}

/// `connection refused` rather than `Connection refused (os error 111)`.
fn plain(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |_| error.kind().to_string())
}

/// The reason at the bottom of the chain: `received fatal alert: UnknownCA` rather than `connection error`.
fn bottom(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.last().map_or_else(String::new, ToString::to_string)
}

/// An answer, whatever its status.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

/// A connection to an agent, without the API's own types.
pub(super) struct Client {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    patience: Duration,
    shows_certificate: bool,
}

impl Client {
    /// Makes it for the host of a URL; reads the files if that is https.
    pub(super) fn new(url: &Url, tls: &Tls) -> Result<Self, Error> {
        let host = match url.host() {
            Some(Host::Ipv6(address)) => address.to_string(),
            host => host.map(|host| host.to_string()).unwrap_or_default(),
        };
        let port = url.port_or_known_default().unwrap_or(80);
        let shows_certificate = url.scheme() == "https" && tls.cert.is_some();
        let tls = match url.scheme() {
            "https" => {
                let name = tls.server_name.as_ref().unwrap_or(&host);
                let name = ServerName::try_from(name.clone()).map_err(|_| Error::Name(name.clone()))?;
                Some((TlsConnector::from(Arc::new(tls.config()?)), name))
            }
            _ => None,
        };
        Ok(Self { host, port, tls, patience: TIMEOUT, shows_certificate })
    }

    /// Whether the agent learns from a certificate who asks.
    pub(super) fn shows_certificate(&self) -> bool {
        self.shows_certificate
    }

    /// The same, for answers that take their time.
    pub(super) fn patient(self) -> Self {
        Self { patience: LONG_TIMEOUT, ..self }
    }

    /// Sends a request, with the value of its `authorization` and its body in JSON if there are any.
    pub(super) async fn send(
        &self,
        method: Method,
        url: &Url,
        authorization: Option<&str>,
        body: Option<&serde_json::Value>,
    ) -> Result<Answer, Error> {
        let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let mut request = Request::builder().method(method).uri(target).header(header::HOST, url.authority());
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = match body {
            None => request.body(Body::empty())?,
            Some(body) => {
                request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string()))?
            }
        };
        timeout(self.patience, self.exchange(request)).await.map_err(|_| Error::Late(self.patience))?
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Answer, Error> {
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((self.host.as_str(), self.port))).await;
        let stream = connecting.map_err(|_| Error::Late(CONNECT_TIMEOUT))?.map_err(Error::Connect)?;
        match &self.tls {
            None => talk(stream, request).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(Error::Handshake)?;
                talk(stream, request).await
            }
        }
    }
}

async fn talk<S>(stream: S, request: Request<Body>) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER_BYTES).await?;
    driving.abort();
    Ok(Answer { status, text: String::from_utf8_lossy(&body).into_owned() })
}

impl Tls {
    fn config(&self) -> Result<ClientConfig, Error> {
        let path = self.ca.as_ref().ok_or(Error::NoAuthority)?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(path)? {
            roots.add(authority).map_err(|error| unusable(path, &error))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions();
        let config = config.map_err(|error| unusable(path, &error))?.with_root_certificates(roots);
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Ok(config.with_no_client_auth()) };
        // Not the parser's words: they could be about what a private key looks like.
        let read = PrivateKeyDer::from_pem_slice(&read(key)?);
        let read = read.map_err(|_| unusable(key, &"it holds no private key in PEM"))?;
        config.with_client_auth_cert(certificates(cert)?, read).map_err(|error: rustls::Error| unusable(cert, &error))
    }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::File { path: path.to_owned(), why: why.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| unusable(path, &plain(&error)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = read.map_err(|error| unusable(path, &error))?;
    if found.is_empty() { Err(unusable(path, &"it holds no certificate in PEM")) } else { Ok(found) }
}
