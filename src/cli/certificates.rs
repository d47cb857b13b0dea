//! `kaa certificates`: a CA, and certificates for agents, people and engines. For clusters without cert-manager: nothing
//! renews them.

use crate::certificates::{self, Authority, Pair};
use clap::{Args, Subcommand};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// `kaa certificates`.
#[derive(Debug, Subcommand)]
pub(super) enum Certificates {
    /// Creates a CA and one certificate for all agents, and prints the next commands
    Init(Init),
    /// Creates a client certificate for an operator, for commands that change the domain (port 8888)
    Operator(Operator),
    /// Creates a client certificate for engines without a ServiceAccount token
    Engine(Engine),
}

/// `kaa certificates init`.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Where to write ca.crt, ca.key, tls.crt and tls.key
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The namespace of the agents; their addresses are *.SERVICE.NAMESPACE.svc
    #[arg(long, default_value = "default")]
    namespace: String,
    /// The Service of the agents' StatefulSet
    #[arg(long, default_value = "kaa-admin")]
    service: String,
    /// Further DNS names of the agents
    #[arg(long = "dns", value_name = "NAME", num_args = 1..)]
    names: Vec<String>,
    /// The domain's name: the agents' --domain
    #[arg(long, default_value = "kaa")]
    domain: String,
    /// Their validity in days
    #[arg(long, default_value_t = 3650, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// What `operator` and `engine` have in common.
#[derive(Debug, Args)]
pub(super) struct Issue {
    /// Where `init` wrote ca.crt and ca.key, and where to write NAME.crt and NAME.key
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The domain's name: the agents' --domain
    #[arg(long, default_value = "kaa")]
    domain: String,
    /// Its validity in days
    #[arg(long, default_value_t = 365, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// `kaa certificates operator`.
#[derive(Debug, Args)]
pub(super) struct Operator {
    #[command(flatten)]
    issue: Issue,
    /// The operator's name in the audit trail
    #[arg(value_name = "NAME")]
    name: String,
}

/// `kaa certificates engine`.
#[derive(Debug, Args)]
pub(super) struct Engine {
    #[command(flatten)]
    issue: Issue,
    /// The namespace of the engines
    #[arg(value_name = "NAMESPACE")]
    namespace: String,
    /// Limits the certificate to the engine of this pod
    #[arg(value_name = "POD")]
    pod: Option<String>,
}

/// Why no certificates were made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("nothing was written, since {} exists already", names(.0))]
    Exists(Vec<PathBuf>),
    #[error(transparent)]
    Make(#[from] certificates::Error),
    #[error("{} could not be written: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{} could not be read: {source}; `kaa certificates init` creates it", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Certificates {
    pub(super) fn run(self) -> Result<String, Error> {
        match self {
            Self::Init(init) => init.run(),
            Self::Operator(operator) => operator.run(),
            Self::Engine(engine) => engine.run(),
        }
    }
}

impl Init {
    fn run(self) -> Result<String, Error> {
        let Self { directory, namespace, service, names, domain, days } = self;
        let mut all = vec![service.clone(), format!("*.{service}.{namespace}.svc")];
        all.extend(names);
        let authority = Authority::new(days)?;
        let Pair { certificate, key } = authority.agents(&all, Some(&domain), days)?;
        let files = [
            ("ca.crt", authority.certificate.as_str(), 0o644),
            ("ca.key", &authority.key, 0o600),
            ("tls.crt", &certificate, 0o644),
            ("tls.key", &key, 0o600),
        ];
        write_all(&directory, &files)?;
        Ok(what_to_do(&directory, &namespace, &all))
    }
}

impl Issue {
    fn authority(&self) -> Result<Authority, Error> {
        let read = |name: &str| {
            let path = self.directory.join(name);
            std::fs::read_to_string(&path).map_err(|source| Error::Read { path, source })
        };
        Ok(Authority::of(read("ca.crt")?, read("ca.key")?)?)
    }

    /// Writes a certificate and its key under this name.
    fn write(&self, name: &str, made: &Pair) -> Result<(String, String), Error> {
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        write_all(&self.directory, &[(&certificate, &made.certificate, 0o644), (&key, &made.key, 0o600)])?;
        let shown = |name: &str| quoted(&self.directory.join(name).display().to_string());
        Ok((shown(&certificate), shown(&key)))
    }
}

impl Operator {
    fn run(self) -> Result<String, Error> {
        let Self { issue, name } = self;
        let made = issue.authority()?.operator(&issue.domain, &name, issue.days)?;
        let (certificate, key) = issue.write(&format!("operator-{name}"), &made)?;
        let ca = quoted(&issue.directory.join("ca.crt").display().to_string());
        Ok(format!(
            "Created {certificate} and {key}. Their owner may change the domain, as 'certificate {name}':\n\n\
             curl --cacert {ca} --cert {certificate} --key {key} https://SERVER:8888/api/1/...\n\n\
             The same files are `kaa`'s own --ca, --cert and --key, with --api-server https://SERVER:8888.\n"
        ))
    }
}

impl Engine {
    fn run(self) -> Result<String, Error> {
        let Self { issue, namespace, pod } = self;
        let made = issue.authority()?.engine(&issue.domain, &namespace, pod.as_deref(), issue.days)?;
        let name = pod.as_ref().map_or_else(|| namespace.clone(), |pod| format!("{namespace}-{pod}"));
        let (certificate, key) = issue.write(&format!("engine-{name}"), &made)?;
        Ok(format!("Created {certificate} and {key}, for `kaa engine --cert FILE --key FILE`.\n"))
    }
}

/// Writes files of which none may exist.
fn write_all(directory: &Path, files: &[(&str, &str, u32)]) -> Result<(), Error> {
    let paths: Vec<PathBuf> = files.iter().map(|(name, _, _)| directory.join(name)).collect();
    let existing: Vec<PathBuf> = paths.iter().filter(|path| path.symlink_metadata().is_ok()).cloned().collect();
    if !existing.is_empty() {
        return Err(Error::Exists(existing));
    }
    std::fs::create_dir_all(directory).map_err(|source| Error::Write { path: directory.to_owned(), source })?;
    for (path, (_, content, mode)) in paths.iter().zip(files) {
        write_new(path, content, *mode).map_err(|source| Error::Write { path: path.clone(), source })?;
    }
    Ok(())
}

/// Writes a file that must not exist, with its mode from the first moment on.
fn write_new(path: &Path, content: &str, mode: u32) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

fn what_to_do(directory: &Path, namespace: &str, names: &[String]) -> String {
    let at = |name: &str| quoted(&directory.join(name).display().to_string());
    let (ca, certificate, key, ca_key) = (at("ca.crt"), at("tls.crt"), at("tls.key"), at("ca.key"));
    let (names, directory) = (names.join(", "), quoted(&directory.display().to_string()));
    format!(
        "Created ca.crt, ca.key, tls.crt and tls.key, for agents that are reached under {names}. To hand them to the agents:\n\n\
         kubectl -n {namespace} create secret generic kaa-admin-tls --type=kubernetes.io/tls \\\n  \
         --from-file=ca.crt={ca} --from-file=tls.crt={certificate} --from-file=tls.key={key}\n\
         kubectl -n {namespace} create configmap kaa-ca --from-file=ca.crt={ca}\n\n\
         A certificate for an operator who may change the domain from outside the agents' pods:\n\n\
         kaa certificates operator {directory} NAME\n\n\
         All agents share one certificate: {key} is enough to impersonate any of them.\n\
         Do not store {ca_key} in the cluster: it is enough to impersonate any agent, operator or engine.\n"
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
        let (namespace, service, domain) = ("ns".to_owned(), "kaa-admin".to_owned(), "kaa".to_owned());
        Certificates::Init(Init { directory: directory.to_owned(), namespace, service, names, domain, days: 30 })
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
        assert!(text.contains("kubectl -n ns create secret generic kaa-admin-tls") && text.contains("'"), "{text}");
        shake_hands(&inner, "kaa-admin-0.kaa-admin.ns.svc").unwrap();
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
        assert!(error.to_string().ends_with("tls.key exists already"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn people_and_engines_get_theirs_from_the_same_authority() {
        let directory = tempfile::tempdir().unwrap();
        let issue = || Issue { directory: directory.path().to_owned(), domain: "kaa".to_owned(), days: 30 };
        let operator = || Certificates::Operator(Operator { issue: issue(), name: "ann".to_owned() });
        let error = operator().run().unwrap_err().to_string();
        assert!(error.contains("ca.crt could not be read") && error.contains("certificates init"), "{error}");
        asked(directory.path(), &[]).run().unwrap();
        assert!(operator().run().unwrap().contains("certificate ann"));
        assert!(matches!(operator().run(), Err(Error::Exists(_))), "hers is not overwritten");
        let engine = Engine { issue: issue(), namespace: "ns".to_owned(), pod: Some("sm-0".to_owned()) };
        Certificates::Engine(engine).run().unwrap();
        for key in ["operator-ann.key", "engine-ns-sm-0.key"] {
            assert_eq!(directory.path().join(key).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{key}");
        }
    }
}
