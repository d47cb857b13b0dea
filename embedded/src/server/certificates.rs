//! A certificate authority that lives as long as the server does, and the one certificate that it signs.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use std::net::IpAddr;
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};

/// The names under which a Kubernetes is known to its pods, and to clients on this machine.
const NAMES: [&str; 5] =
    ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"];

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be made.
    #[error("the server's certificate could not be made: {0}")]
    Make(#[from] rcgen::Error),
    /// It could not be served.
    #[error("the server's certificate cannot be served: {0}")]
    Serve(#[from] rustls::Error),
}

/// What a server shows, and the authority that clients judge it by, in PEM. The authority's key is forgotten.
pub fn make(address: IpAddr) -> Result<(Arc<ServerConfig>, String), Error> {
    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut ca = named("embedded-kubernetes", Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let names = NAMES.iter().map(|name| (*name).to_owned()).chain([address.to_string()]);
    let mut server = named("kube-apiserver", names.collect())?;
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    let certificate = server.signed_by(&key, &issuer)?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|why| rustls::Error::General(why.to_owned()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Arc::new(config), ca_pem))
}

fn named(name: &str, names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    Ok(parameters)
}
