//! A CA and certificates made here: for clusters without cert-manager. Nothing renews them.
//!
//! An agent's certificate bears the names that it is reached under, and may bear the URI `kaa://DOMAIN/agent`. An operator's
//! bears `kaa://DOMAIN/operator/NAME`, an engine's `kaa://DOMAIN/engine/NAMESPACE[/POD]`, and neither has another name.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use std::time::Duration;

/// How far back they are valid, for nodes whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(3600);

/// Why no certificates were made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a name.
    #[error("'{0}' is not a DNS name")]
    Name(String),
    /// Not a part of a URI.
    #[error("'{0}' is no {1}: letters, digits, '-', '_', '.' and '@' only")]
    Part(String, &'static str),
    /// The library refused.
    #[error("the certificates could not be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// What was made for the agents, as PEM.
pub struct Made {
    /// The authority's certificate.
    pub ca_certificate: String,
    /// Its key.
    pub ca_key: String,
    /// The agents' certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// A certificate and its key, as PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// Makes an authority, and a certificate for agents that are reached under these names, valid for so many days.
pub fn make(names: &[String], days: u32) -> Result<Made, Error> {
    let authority = Authority::new(days)?;
    let Pair { certificate, key } = authority.agents(names, None, days)?;
    Ok(Made { ca_certificate: authority.certificate, ca_key: authority.key, certificate, key })
}

/// Who vouches.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub certificate: String,
    /// Its key, as PEM.
    pub key: String,
}

impl Authority {
    /// Makes one, valid for so many days.
    pub fn new(days: u32) -> Result<Self, Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut ca = parameters("kaa CA", days)?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let (certificate, key_pem) = (ca.self_signed(&key)?.pem(), key.serialize_pem());
        Ok(Self { issuer: Issuer::new(ca, key), certificate, key: key_pem })
    }

    /// The one that was made before.
    pub fn of(certificate: String, key: String) -> Result<Self, Error> {
        let issuer = Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key)?)?;
        Ok(Self { issuer, certificate, key })
    }

    /// For agents that are reached under these names; of this domain, if it is given.
    pub fn agents(&self, names: &[String], domain: Option<&str>, days: u32) -> Result<Pair, Error> {
        if let Some(name) = names.iter().find(|name| !is_dns_name(name)) {
            return Err(Error::Name(name.clone()));
        }
        let mut agent = parameters("kaa agent", days)?;
        for name in names {
            agent.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        if let Some(domain) = domain {
            agent.subject_alt_names.push(uri(&[(domain, "domain")], |parts| format!("kaa://{}/agent", parts[0]))?);
        }
        // Agents call each other, so each is client and server.
        agent.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(agent)
    }

    /// For an operator who may change the domain.
    pub fn operator(&self, domain: &str, name: &str, days: u32) -> Result<Pair, Error> {
        let parts = [(domain, "domain"), (name, "name of an operator")];
        self.client(name, uri(&parts, |parts| format!("kaa://{}/operator/{}", parts[0], parts[1]))?, days)
    }

    /// For the engines of a namespace, or the one of a pod there.
    pub fn engine(&self, domain: &str, namespace: &str, pod: Option<&str>, days: u32) -> Result<Pair, Error> {
        let mut parts = vec![(domain, "domain"), (namespace, "namespace")];
        parts.extend(pod.map(|pod| (pod, "pod")));
        let name = uri(&parts, |parts| format!("kaa://{}/engine/{}", parts[0], parts[1..].join("/")))?;
        self.client(pod.unwrap_or(namespace), name, days)
    }

    fn client(&self, common_name: &str, name: SanType, days: u32) -> Result<Pair, Error> {
        let mut client = parameters(common_name, days)?;
        client.subject_alt_names.push(name);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(client)
    }

    fn sign(&self, mut parameters: CertificateParams) -> Result<Pair, Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        Ok(Pair { certificate: parameters.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
    }
}

/// A URI of parts, each with what it is called.
fn uri(parts: &[(&str, &'static str)], join: impl Fn(&[&str]) -> String) -> Result<SanType, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    for (part, what) in parts {
        if !(1..=128).contains(&part.len()) || !part.chars().all(plain) {
            return Err(Error::Part((*part).to_owned(), what));
        }
    }
    let parts: Vec<&str> = parts.iter().map(|(part, _)| *part).collect();
    Ok(SanType::URI(join(&parts).as_str().try_into()?))
}

fn parameters(common_name: &str, days: u32) -> Result<CertificateParams, Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, common_name);
    let now = Duration::from_millis(crate::clock::now().0);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let start = now.saturating_sub(BACKDATED);
    parameters.not_before = epoch + Duration::from_secs(start.as_secs());
    parameters.not_after = epoch + Duration::from_secs(now.as_secs() + u64::from(days) * 86_400);
    Ok(parameters)
}

/// Labels of letters, digits and hyphens; the first may be `*`.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len()) && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.strip_prefix("*.").unwrap_or(name).split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::{Authority, Error, make};
    use crate::net::shown::Names;
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    #[test]
    fn only_dns_names_are_taken() {
        for name in ["", "*", "a..b", "*.*.b", "a b", "-a", "ä.example.com"] {
            assert!(matches!(make(&[name.to_owned()], 30), Err(Error::Name(_))), "{name}");
        }
    }

    fn uris(certificate: &str) -> Vec<String> {
        Names::of(&CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap().uris
    }

    #[test]
    fn an_authority_that_was_made_before_vouches_for_people_and_engines() {
        let made = Authority::new(30).unwrap();
        let authority = Authority::of(made.certificate, made.key).unwrap();
        assert_eq!(uris(&authority.operator("kaa", "ann", 30).unwrap().certificate), ["kaa://kaa/operator/ann"]);
        assert_eq!(uris(&authority.engine("kaa", "ns", None, 30).unwrap().certificate), ["kaa://kaa/engine/ns"]);
        let one = authority.engine("kaa", "ns", Some("sm-0"), 30).unwrap();
        assert_eq!(uris(&one.certificate), ["kaa://kaa/engine/ns/sm-0"]);
        let agents = authority.agents(&["localhost".to_owned()], Some("kaa"), 30).unwrap();
        assert_eq!(uris(&agents.certificate), ["kaa://kaa/agent"]);
        for name in ["", "a/b", "a b", "a%2Fb"] {
            assert!(matches!(authority.operator("kaa", name, 30), Err(Error::Part(..))), "{name}");
        }
    }
}
