//! A CA and one certificate for all agents, made here: for clusters without cert-manager. Nothing renews them.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
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
    /// The library refused.
    #[error("the certificates could not be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// What was made, as PEM.
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

/// Makes certificates for agents that are reached under these names, valid for so many days.
pub fn make(names: &[String], days: u32) -> Result<Made, Error> {
    if let Some(name) = names.iter().find(|name| !is_dns_name(name)) {
        return Err(Error::Name(name.clone()));
    }
    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut ca = parameters("kaa CA", Vec::new(), days)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_certificate = ca.self_signed(&ca_key)?.pem();
    let ca_key_pem = ca_key.serialize_pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut agent = parameters("kaa agent", names.to_vec(), days)?;
    agent.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Agents call each other, so each is client and server.
    agent.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    agent.use_authority_key_identifier_extension = true;
    let certificate = agent.signed_by(&key, &issuer)?.pem();
    Ok(Made { ca_certificate, ca_key: ca_key_pem, certificate, key: key.serialize_pem() })
}

fn parameters(common_name: &str, names: Vec<String>, days: u32) -> Result<CertificateParams, Error> {
    let mut parameters = CertificateParams::new(names)?;
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
    use super::{Error, make};

    #[test]
    fn only_dns_names_are_taken() {
        for name in ["", "*", "a..b", "*.*.b", "a b", "-a", "ä.example.com"] {
            assert!(matches!(make(&[name.to_owned()], 30), Err(Error::Name(_))), "{name}");
        }
    }
}
