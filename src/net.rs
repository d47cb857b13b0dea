//! The only door to other agents' sockets, and the certificates that agents show each other.
//!
//! The names of the files are cert-manager's, so that its Secrets can be mounted as they are.

mod incoming;
pub mod names;

pub use incoming::{Counted, incoming};

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection is pinged this often and given up when a ping is not answered in the same time: a pod that vanished
/// without a word is noticed within two seconds, and its name is resolved anew.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// An engine's connection is pinged less often: its node may be busy, and a session that flaps helps nobody. What ends in
/// an orderly way is noticed at once.
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Calls that one agent has under way here: appends, votes, forwarded proposals of its engines.
const STREAMS_OF_AN_AGENT: u32 = 256;
/// An engine has one stream; a second may overlap with it for a moment.
const STREAMS_OF_AN_ENGINE: u32 = 4;

/// A certificate that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the three files is missing or unreadable.
    #[error("cannot read {}: the directory must hold ca.crt, tls.crt and tls.key", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An address or a certificate cannot be used.
    #[error("cannot set up a connection with {address}")]
    Connect {
        /// The address.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The certificate cannot be served.
    #[error("cannot serve with this certificate")]
    Serve(#[source] tonic::transport::Error),
}

/// Makes a channel that connects when it is first used, and again whenever it has to. Without `tls` it is in clear.
pub fn channel(address: &str, tls: Option<&Tls>) -> Result<Channel, Error> {
    let failed = |source| Error::Connect { address: address.to_owned(), source };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.client_tls()).map_err(failed)?;
    }
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(names::connect)))
}

/// Makes a server for agents. Without `tls` it is in clear, and with it nobody comes in without a certificate.
pub fn server(tls: Option<&Tls>) -> Result<Server, Error> {
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(STREAMS_OF_AN_AGENT);
    match tls {
        Some(tls) => server.tls_config(tls.server_tls(true)).map_err(Error::Serve),
        None => Ok(server),
    }
}

/// Makes a server for engines: they show a token instead of a certificate.
pub fn engine_server(tls: &Tls) -> Result<Server, Error> {
    Server::builder()
        .http2_keepalive_interval(Some(ENGINE_KEEP_ALIVE))
        .http2_keepalive_timeout(Some(ENGINE_KEEP_ALIVE))
        .max_concurrent_streams(STREAMS_OF_AN_ENGINE)
        .tls_config(tls.server_tls(false))
        .map_err(Error::Serve)
}

/// A certificate, its key and the authority that others are judged by, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The authority.
    pub ca: Vec<u8>,
    /// The certificate chain, ours first.
    pub cert: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads `ca.crt`, `tls.crt` and `tls.key`.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(&path).map_err(|source| Error::Read { path, source })
        };
        Ok(Self { ca: read("ca.crt")?, cert: read("tls.crt")?, key: read("tls.key")? })
    }

    /// What a client shows and demands. The name that is verified is the host that is dialled.
    pub fn client_tls(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca)).identity(self.identity())
    }

    /// What a server shows; with `client_auth` it lets nobody in without a certificate of the authority.
    pub fn server_tls(&self, client_auth: bool) -> ServerTlsConfig {
        let config = ServerTlsConfig::new().identity(self.identity()).timeout(HANDSHAKE_TIMEOUT);
        if client_auth { config.client_ca_root(Certificate::from_pem(&self.ca)) } else { config }
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.cert, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::Tls;

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "x").unwrap();
        let error = Tls::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tls.crt: the directory must hold"), "{error}");
    }
}
