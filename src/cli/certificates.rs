//! `kaa certificates`: a CA and one certificate for all agents. For clusters without cert-manager: nothing renews them.

use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    #[error("'{0}' is not a DNS name")]
    Name(String),
    #[error("the certificates could not be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("{} could not be written: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// How far back they are valid, for nodes whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(3600);

impl Certificates {
    pub(super) fn run(self) -> Result<String, Error> {
        let made = self.make()?;
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

    fn make(&self) -> Result<Made, Error> {
        for name in &self.names {
            if !is_dns_name(name) {
                return Err(Error::Name(name.clone()));
            }
        }
        let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut ca = self.parameters("kaa CA", Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_certificate = ca.self_signed(&ca_key)?.pem();
        let ca_key_pem = ca_key.serialize_pem();
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut agent = self.parameters("kaa agent", self.names.clone())?;
        agent.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Agents call each other, so each is client and server.
        agent.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        agent.use_authority_key_identifier_extension = true;
        let certificate = agent.signed_by(&key, &issuer)?.pem();
        Ok(Made { ca_certificate, ca_key: ca_key_pem, certificate, key: key.serialize_pem() })
    }

    fn parameters(&self, common_name: &str, names: Vec<String>) -> Result<CertificateParams, Error> {
        let mut parameters = CertificateParams::new(names)?;
        parameters.distinguished_name.push(DnType::CommonName, common_name);
        let now = Duration::from_millis(crate::clock::now().0);
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let start = now.saturating_sub(BACKDATED);
        parameters.not_before = epoch + Duration::from_secs(start.as_secs());
        parameters.not_after = epoch + Duration::from_secs(now.as_secs() + u64::from(self.days) * 86_400);
        Ok(parameters)
    }
}

/// What was made, as PEM.
struct Made {
    ca_certificate: String,
    ca_key: String,
    certificate: String,
    key: String,
}

/// Labels of letters, digits and hyphens; the first may be `*`.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len()) && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.strip_prefix("*.").unwrap_or(name).split('.').all(is_label)
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

    #[test]
    fn only_dns_names_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["", "*", "a..b", "*.*.b", "a b", "-a", "ä.example.com"] {
            assert!(matches!(asked(directory.path(), &[name]).run(), Err(Error::Name(_))), "{name}");
        }
    }
}
