//! Who we are on the network: the certificates that agents show each other.
//!
//! The names of the files are cert-manager's, so that its Secrets can be mounted as they are.

use std::fmt;
use std::path::{Path, PathBuf};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

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
        let config = ServerTlsConfig::new().identity(self.identity());
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
