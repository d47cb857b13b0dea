//! The certificate, key and authority of this agent, read again when their files change.
//!
//! A connection keeps what it began with; new ones use what is current. The names of the files are cert-manager's, so that
//! its Secrets can be mounted as they are.

use super::shown::Shown;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};

/// What agents and engines speak over TLS.
const HTTP_2: &[u8] = b"h2";
/// What clients of the REST API speak over TLS.
const HTTP_1: &[u8] = b"http/1.1";

/// A certificate that cannot be used.
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
    /// A file does not hold what it has to.
    #[error("{file} cannot be used: {why}")]
    Unusable {
        /// `ca.crt`, `tls.crt` or `tls.key`.
        file: &'static str,
        /// What is wrong. Never contains any of a key.
        why: String,
    },
}

/// The three files.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    ca: Vec<u8>,
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// What is shown and demanded by connections that begin now.
pub struct Current {
    /// How often the files had changed before.
    pub generation: u64,
    /// When our certificate ends, in seconds since 1970.
    pub not_after: u64,
    /// When the first of the authorities ends.
    pub ca_not_after: u64,
    files: Files,
    verifier: Arc<dyn ClientCertVerifier>,
    /// For agents: a client certificate is required.
    pub(super) agents: Arc<ServerConfig>,
    /// For engines: they may show a certificate.
    pub(super) engines: Arc<ServerConfig>,
    /// For clients of the REST API: they may show a certificate.
    pub(super) people: Arc<ServerConfig>,
    /// For calling other agents.
    pub(super) client: Arc<ClientConfig>,
}

/// This agent's certificate; clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    /// `None` if it was not read from files.
    dir: Option<PathBuf>,
    current: RwLock<Arc<Current>>,
    trouble: Mutex<Option<String>>,
    /// Hosts whose certificate was not accepted the last time, and why.
    unaccepted: Mutex<BTreeMap<String, String>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.0.dir)
    }
}

impl Tls {
    /// Reads `ca.crt`, `tls.crt` and `tls.key`.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        Ok(Self::new(Some(dir.to_owned()), Current::new(Files::read(dir)?, 1)?))
    }

    /// Takes them as they are, in PEM: authority, certificate chain with ours first, key.
    pub fn from_pem(ca: impl Into<Vec<u8>>, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let files = Files { ca: ca.into(), cert: cert.into(), key: key.into() };
        Ok(Self::new(None, Current::new(files, 1)?))
    }

    fn new(dir: Option<PathBuf>, current: Current) -> Self {
        let current = RwLock::new(Arc::new(current));
        Self(Arc::new(Shared { dir, current, trouble: Mutex::default(), unaccepted: Mutex::default() }))
    }

    /// What connections that begin now use.
    pub fn current(&self) -> Arc<Current> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why what the files hold now is not used, if it is not.
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses what the files hold now, if that is something else and good. What is broken changes nothing. Returns whether
    /// anything changed.
    pub fn reload(&self) -> Result<bool, Error> {
        let done = self.try_reload();
        let trouble = done.as_ref().err().map(ToString::to_string);
        *self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        done
    }

    fn try_reload(&self) -> Result<bool, Error> {
        let (Some(dir), current) = (&self.0.dir, self.current()) else { return Ok(false) };
        let files = Files::read(dir)?;
        if files == current.files {
            return Ok(false);
        }
        let new = Current::new(files, current.generation + 1)?;
        let now = now_seconds();
        if new.not_after <= now && current.not_after > now {
            return Err(unusable("tls.crt", &"it has expired, and the one in use has not"));
        }
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(true)
    }

    /// Notes how a TLS session with a host that we called began. A certificate that is not accepted is said once, since we
    /// call again and again.
    pub(super) fn dialled(&self, host: &str, failure: Option<&io::Error>) {
        let mut unaccepted = self.0.unaccepted.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            None => drop(unaccepted.remove(host)),
            Some(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                let why = error.to_string();
                if unaccepted.get(host) != Some(&why) {
                    tracing::warn!("no TLS session with {host}: {why}");
                    unaccepted.insert(host.to_owned(), why);
                }
            }
            Some(_) => {}
        }
    }

    /// Whether a certificate that was good when its connection began still is: it has not expired, and the authority that
    /// vouches for it was not removed meanwhile.
    pub fn still_trusts(&self, shown: &Shown) -> bool {
        let now = now_seconds();
        if shown.names.not_after <= now {
            return false;
        }
        let current = self.current();
        if shown.verified_under.load(Ordering::Relaxed) == current.generation {
            return true;
        }
        let Some((leaf, intermediates)) = shown.chain.split_first() else { return false };
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        let trusted = current.verifier.verify_client_cert(leaf, intermediates, at).is_ok();
        if trusted {
            shown.verified_under.store(current.generation, Ordering::Relaxed);
        }
        trusted
    }
}

fn now_seconds() -> u64 {
    crate::clock::now().0 / 1000
}

impl Files {
    /// The kubelet replaces all files of a Secret at once, by one link to their directory: so that link is followed first,
    /// lest a key be read that belongs to another certificate.
    fn read(dir: &Path) -> Result<Self, Error> {
        let linked = std::fs::canonicalize(dir.join("..data")).unwrap_or_else(|_| dir.to_owned());
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(linked.join(name)).map_err(|source| Error::Read { path, source })
        };
        Ok(Self { ca: read("ca.crt")?, cert: read("tls.crt")?, key: read("tls.key")? })
    }
}

fn unusable(file: &'static str, why: &dyn fmt::Display) -> Error {
    Error::Unusable { file, why: why.to_string() }
}

fn certificates(file: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|error| unusable(file, &error))?;
    if found.is_empty() { Err(unusable(file, &"it holds no certificate in PEM")) } else { Ok(found) }
}

impl Current {
    fn new(files: Files, generation: u64) -> Result<Self, Error> {
        let (authorities, chain) = (certificates("ca.crt", &files.ca)?, certificates("tls.crt", &files.cert)?);
        let mut roots = RootCertStore::empty();
        let mut ca_not_after = u64::MAX;
        for authority in authorities {
            let not_after = super::shown::Names::of(&authority).map_err(|error| unusable("ca.crt", &error))?.not_after;
            ca_not_after = ca_not_after.min(not_after);
            roots.add(authority).map_err(|error| unusable("ca.crt", &error))?;
        }
        let not_after = super::shown::Names::of(&chain[0]).map_err(|error| unusable("tls.crt", &error))?.not_after;
        // Not the parser's words: they could be about what a private key looks like.
        let key = || {
            let wrong = |_| unusable("tls.key", &"it holds no private key in PEM");
            PrivateKeyDer::from_pem_slice(&files.key).map_err(wrong)
        };
        let (roots, provider) = (Arc::new(roots), Arc::new(default_provider()));
        let verifier = |optional: bool| {
            let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
            let builder = if optional { builder.allow_unauthenticated() } else { builder };
            builder.build().map_err(|error| unusable("ca.crt", &error))
        };
        let versions = |error: rustls::Error| unusable("tls.crt", &error);
        let server = |optional: bool, protocol: &[u8]| -> Result<Arc<ServerConfig>, Error> {
            let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
            let builder = builder.map_err(versions)?.with_client_cert_verifier(verifier(optional)?);
            // This also finds out whether the key is that of the certificate.
            let built = builder.with_single_cert(chain.clone(), key()?);
            let mut config = built.map_err(|error| unusable("tls.key", &error))?;
            config.alpn_protocols = vec![protocol.to_vec()];
            Ok(Arc::new(config))
        };
        let client = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let client = client.map_err(versions)?.with_root_certificates(roots.clone());
        let client = client.with_client_auth_cert(chain.clone(), key()?);
        let mut client = client.map_err(|error| unusable("tls.key", &error))?;
        client.alpn_protocols = vec![HTTP_2.to_vec()];
        let (agents, engines, people) = (server(false, HTTP_2)?, server(true, HTTP_2)?, server(true, HTTP_1)?);
        let (verifier, client) = (verifier(false)?, Arc::new(client));
        Ok(Self { generation, not_after, ca_not_after, files, verifier, agents, engines, people, client })
    }
}

#[cfg(test)]
mod tests {
    use super::{Shown, Tls};
    use crate::certificates::{self, Made};
    use std::path::Path;
    use std::sync::atomic::Ordering;

    fn made(days: u32) -> Made {
        certificates::make(&["localhost".to_owned()], days).unwrap()
    }

    fn write(dir: &Path, made: &Made) {
        for (name, text) in [("ca.crt", &made.ca_certificate), ("tls.crt", &made.certificate), ("tls.key", &made.key)] {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "x").unwrap();
        let error = Tls::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tls.crt: the directory must hold"), "{error}");
    }

    #[test]
    fn what_is_broken_keeps_what_was_good_and_is_told_until_it_is_mended() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (made(30), made(60));
        write(dir.path(), &first);
        let tls = Tls::load(dir.path()).unwrap();
        let before = tls.current().not_after;
        assert!(!tls.reload().unwrap(), "nothing changed");
        for (file, content, words) in [
            ("tls.key", second.key.as_str(), "tls.key cannot be used"),
            ("tls.key", "nonsense", "tls.key cannot be used: it holds no private key"),
            ("tls.crt", "", "tls.crt cannot be used: it holds no certificate"),
            ("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca.crt cannot be used"),
        ] {
            write(dir.path(), &first);
            std::fs::write(dir.path().join(file), content).unwrap();
            let error = tls.reload().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(tls.trouble(), Some(error));
            assert_eq!((tls.current().not_after, tls.current().generation), (before, 1));
        }
        write(dir.path(), &made(0));
        assert!(tls.reload().unwrap_err().to_string().contains("has expired"));
        write(dir.path(), &second);
        assert!(tls.reload().unwrap());
        assert!(tls.current().not_after > before && tls.trouble().is_none());
        assert_eq!(tls.current().generation, 2);
    }

    /// A connection may outlive the certificate that it began with.
    #[test]
    fn what_has_expired_since_it_was_verified_is_trusted_no_more() {
        for (made, trusted) in [(made(30), true), (made(0), false)] {
            let chain = super::certificates("tls.crt", made.certificate.as_bytes()).unwrap();
            let tls = Tls::from_pem(made.ca_certificate, made.certificate, made.key).unwrap();
            let shown = Shown::new(chain).unwrap();
            shown.verified_under.store(tls.current().generation, Ordering::Relaxed);
            assert_eq!(tls.still_trusts(&shown), trusted);
        }
    }

    /// As the kubelet does it: the files are links into a directory that is replaced as a whole.
    #[test]
    fn files_that_are_replaced_together_are_read_together() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (version, made) in [("..1", made(30)), ("..2", made(60))] {
            std::fs::create_dir(at(version)).unwrap();
            write(&at(version), &made);
        }
        std::os::unix::fs::symlink("..1", at("..data")).unwrap();
        // What a reader would see who had read half of the links before the change.
        write(dir.path(), &made(90));
        std::fs::write(at("tls.key"), "another").unwrap();
        let tls = Tls::load(dir.path()).unwrap();
        let before = tls.current().not_after;
        std::os::unix::fs::symlink("..2", at("..new")).unwrap();
        std::fs::rename(at("..new"), at("..data")).unwrap();
        assert!(tls.reload().unwrap());
        assert!(tls.current().not_after > before);
    }
}
