//! `kaa certificates`: a CA and one certificate for all agents. For clusters without cert-manager: nothing renews them.

use crate::certificates;
use clap::Args;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// `kaa certificates`.
#[derive(Debug, Args)]
pub(super) struct Certificates {
    /// Where to write ca.crt, ca.key, tls.crt and tls.key
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The names under which agents are reached, such as *.nuodb.default.svc.cluster.local
    #[arg(long = "dns", value_name = "NAME", required = true, num_args = 1..)]
    names: Vec<String>,
    /// How long they are valid
    #[arg(long, default_value_t = 3650, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Why no certificates were made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("nothing was written, since there is already {}", names(.0))]
    Exists(Vec<PathBuf>),
    #[error(transparent)]
    Make(#[from] certificates::Error),
    #[error("{} could not be written: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Certificates {
    pub(super) fn run(self) -> Result<String, Error> {
        let made = certificates::make(&self.names, self.days)?;
        let files = [
            ("ca.crt", &made.ca_certificate, 0o644),
            ("ca.key", &made.ca_key, 0o600),
            ("tls.crt", &made.certificate, 0o644),
            ("tls.key", &made.key, 0o600),
        ];
        let paths = files.map(|(name, _, _)| self.directory.join(name));
        let existing: Vec<PathBuf> = paths.iter().filter(|path| path.symlink_metadata().is_ok()).cloned().collect();
        if !existing.is_empty() {
            return Err(Error::Exists(existing));
        }
        std::fs::create_dir_all(&self.directory)
            .map_err(|source| Error::Write { path: self.directory.clone(), source })?;
        for (path, (_, content, mode)) in paths.iter().zip(files) {
            write_new(path, content, mode).map_err(|source| Error::Write { path: path.clone(), source })?;
        }
        Ok(what_to_do(&self.directory))
    }
}

/// Writes a file that must not exist, with its mode from the first moment on.
fn write_new(path: &Path, content: &str, mode: u32) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

fn what_to_do(directory: &Path) -> String {
    let at = |name: &str| quoted(&directory.join(name).display().to_string());
    let (ca, certificate, key, ca_key) = (at("ca.crt"), at("tls.crt"), at("tls.key"), at("ca.key"));
    format!(
        "Made ca.crt, ca.key, tls.crt and tls.key. To hand them to the agents:\n\n\
         kubectl create secret generic kaa-admin-tls --type=kubernetes.io/tls \\\n  \
         --from-file=ca.crt={ca} --from-file=tls.crt={certificate} --from-file=tls.key={key}\n\
         kubectl create configmap kaa-ca --from-file=ca.crt={ca}\n\n\
         Keep {ca_key} away from the cluster: whoever has it can pose as an agent.\n"
    )
}

/// A path that a shell reads as one word.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    fn asked(directory: &Path, names: &[&str]) -> Certificates {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Certificates { directory: directory.to_owned(), names, days: 30 }
    }

    /// Two agents that hold what is in the directory shake hands; one expects the other to bear `name`.
    fn shake_hands(directory: &Path, name: &str) -> Result<(), rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificate = |file| CertificateDer::from_pem_file(directory.join(file)).unwrap();
        let key = || PrivateKeyDer::from_pem_file(directory.join("tls.key")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.crt")).unwrap();
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build().unwrap();
        let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let server = server.unwrap().with_client_cert_verifier(verifier);
        let server = server.with_single_cert(vec![certificate("tls.crt")], key()).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let client = client.unwrap().with_root_certificates(roots);
        let client = client.with_client_auth_cert(vec![certificate("tls.crt")], key()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from(name.to_owned()).unwrap())?;
        let mut server = ServerConnection::new(Arc::new(server))?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn agents_with_these_certificates_trust_each_other_under_their_names_only() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("made here");
        let text = asked(&inner, &["*.nuodb.default.svc.cluster.local", "localhost"]).run().unwrap();
        assert!(text.contains("kubectl create secret generic kaa-admin-tls") && text.contains("'"), "{text}");
        shake_hands(&inner, "admin-0.nuodb.default.svc.cluster.local").unwrap();
        shake_hands(&inner, "localhost").unwrap();
        assert!(shake_hands(&inner, "elsewhere.example.com").is_err());
        for (file, mode) in [("ca.key", 0o600), ("tls.key", 0o600)] {
            assert_eq!(inner.join(file).metadata().unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn nothing_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("tls.key"), "precious").unwrap();
        let error = asked(directory.path(), &["localhost"]).run().unwrap_err();
        assert!(error.to_string().ends_with("tls.key"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
