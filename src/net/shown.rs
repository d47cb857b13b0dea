//! What a certificate says: its names and its expiry. It is read only after it was verified.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A certificate that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("not a certificate: {0}")]
pub struct NotUnderstood(String);

/// What is of interest in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Its DNS names, in lower case; the first label may be `*`.
    pub dns: Vec<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its URIs.
    pub uris: Vec<String>,
    /// When it ends, in seconds since 1970.
    pub not_after: u64,
}

impl Names {
    /// Reads a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, NotUnderstood> {
        let wrong = |error: &dyn std::fmt::Display| NotUnderstood(error.to_string());
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| wrong(&error))?;
        let not_after = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default();
        let mut names = Self { not_after, ..Self::default() };
        let alternatives = parsed.subject_alternative_name().map_err(|error| wrong(&error))?;
        for name in alternatives.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => names.dns.push(name.to_ascii_lowercase()),
                GeneralName::IPAddress(bytes) => names.addresses.extend(address(bytes)),
                GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
                _ => {}
            }
        }
        Ok(names)
    }

    /// Whether it was made for this host: by its very name or address, or by a `*` in place of the first label.
    pub fn bears(&self, host: &str) -> bool {
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.addresses.contains(&address);
        }
        // As rustls has it: what follows the `*` has two labels at least.
        let rest = host.split_once('.').map(|(_, rest)| rest).filter(|rest| rest.contains('.'));
        self.dns.iter().any(|name| *name == host || (rest.is_some() && name.strip_prefix("*.") == rest))
    }

    /// All names, for an operator who has to find out why none of them matches.
    pub fn to_line(&self) -> String {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let all: Vec<String> = self.dns.iter().chain(&self.uris).cloned().chain(addresses).collect();
        if all.is_empty() { "no name".to_owned() } else { all.join(", ") }
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The certificate that the other end of a connection showed, verified when the connection was made.
#[derive(Debug)]
pub struct Shown {
    /// What it says.
    pub names: Names,
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// Under which of our own certificates it was verified last; the first is 1.
    pub(super) verified_under: AtomicU64,
    /// The log that it was found to be allowed to speak for; a raft id is never 0.
    speaks_for: AtomicU64,
}

impl Shown {
    pub(super) fn new(chain: Vec<CertificateDer<'static>>) -> Result<Self, NotUnderstood> {
        let leaf = chain.first().ok_or_else(|| NotUnderstood("there is none".to_owned()))?;
        let (verified_under, speaks_for) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { names: Names::of(leaf)?, chain, verified_under, speaks_for })
    }

    /// Whether it was found before that it may speak for this log: then the search need not be made for each message.
    pub fn is_known_as(&self, raft_id: u64) -> bool {
        self.speaks_for.load(Ordering::Relaxed) == raft_id
    }

    /// Notes that it may speak for this log.
    pub fn know_as(&self, raft_id: u64) {
        self.speaks_for.store(raft_id, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Names;

    fn names(dns: &[&str], addresses: &[&str]) -> Names {
        let dns = dns.iter().map(|&name| name.to_owned()).collect();
        Names { dns, addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(), ..Names::default() }
    }

    #[test]
    fn a_star_stands_for_one_label() {
        let wild = names(&["*.kaa-admin.ns.svc"], &[]);
        assert!(wild.bears("kaa-admin-0.kaa-admin.ns.svc"));
        assert!(wild.bears("KAA-admin-0.kaa-admin.NS.svc"));
        for other in ["kaa-admin.ns.svc", "a.b.kaa-admin.ns.svc", "kaa-admin-0.kaa-admin.other.svc", "", "svc"] {
            assert!(!wild.bears(other), "{other}");
        }
        assert!(names(&["a.b"], &[]).bears("a.b"));
        assert!(!names(&["*"], &[]).bears("localhost"), "a star alone names nothing");
        assert!(!names(&["*.svc"], &[]).bears("a.svc"), "a star for everything");
    }

    #[test]
    fn an_address_is_borne_as_an_address_only() {
        let both = names(&["127.0.0.2"], &["127.0.0.1", "fd00::1"]);
        assert!(both.bears("127.0.0.1") && both.bears("[fd00::1]"));
        assert!(!both.bears("127.0.0.2"), "a DNS name is no address");
    }

    #[test]
    fn names_and_expiry_are_read_from_a_certificate() {
        use rcgen::{CertificateParams, KeyPair, SanType};
        let mut parameters = CertificateParams::new(vec!["A.example".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        parameters.subject_alt_names.push(SanType::URI("kaa://d/operator/ann".try_into().unwrap()));
        parameters.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let made = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let read = Names::of(made.der()).unwrap();
        assert_eq!((read.dns.as_slice(), read.not_after), (&["a.example".to_owned()][..], 1_893_456_000));
        assert_eq!(read.to_line(), "a.example, kaa://d/operator/ann, 127.0.0.1");
        assert!(Names::of(&vec![1, 2, 3].into()).is_err());
    }
}
