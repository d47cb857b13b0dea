//! The server's certificate, copied to where the server reads it.

use super::Settings;
use super::error::Error;
use super::files;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};

/// The files of a mounted Secret, as cert-manager names them: the server's certificate, its key, and the authority that
/// signed those of all servers.
pub(super) const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

impl Settings {
    /// Whether connections over the network have to be encrypted.
    pub(super) fn needs_tls(&self) -> bool {
        self.tls.is_some() && !self.tls_optional
    }

    /// The copy of one of [`FILES`].
    pub(super) fn certificate(&self, name: &str) -> PathBuf {
        self.conf().join(name)
    }
}

/// The lines of the configuration by which the server uses the copies.
pub(super) fn lines(settings: &Settings) -> String {
    if settings.tls.is_none() {
        return "ssl = off\n".to_owned();
    }
    let [certificate, key, authority] =
        FILES.map(|name| super::configuration::quoted_path(&settings.certificate(name)));
    format!("ssl = on\nssl_cert_file = {certificate}\nssl_key_file = {key}\nssl_ca_file = {authority}\n")
}

/// Copies the mounted files if they have changed. Gives a sentence if they are of no use, and earlier copies stay.
///
/// # Errors
/// If they are of no use and there are no copies: nothing is sent in plaintext because a certificate is missing.
pub(super) fn copy(settings: &Settings) -> Result<Option<String>, Error> {
    let Some(directory) = &settings.tls else { return Ok(None) };
    let are_there = FILES.iter().all(|name| settings.certificate(name).exists());
    let texts = match read(directory) {
        Ok(texts) => texts,
        Err(why) if are_there => {
            tracing::error!(why, "the certificate is not used: the last good one stays");
            return Ok(Some(format!("{why}: the last good certificate stays")));
        }
        Err(why) => return Err(Error::Unusable(why)),
    };
    for (name, text) in FILES.iter().zip(texts) {
        let path = settings.certificate(name);
        if std::fs::read(&path).ok().as_ref() != Some(&text) {
            files::replace(&path, &text, settings.user)?;
        }
    }
    Ok(None)
}

/// The contents of [`FILES`], if they belong together.
fn read(directory: &Path) -> Result<[Vec<u8>; 3], String> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let texts = [read(FILES[0])?, read(FILES[1])?, read(FILES[2])?];
    let [certificate, key, authority] = &texts;
    let chain = certificates(certificate, directory, FILES[0])?;
    certificates(authority, directory, FILES[2])?;
    let wrong = |why: String| format!("{}: {why}", directory.join(FILES[1]).display());
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(format!("no private key: {error}")))?;
    match CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()) {
        Err(rustls::Error::InconsistentKeys(_)) => Err(wrong(format!("the key is not that of {}", FILES[0]))),
        // A kind of key that this library does not know is left to PostgreSQL.
        Ok(_) | Err(_) => Ok(texts),
    }
}

fn certificates(text: &[u8], directory: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let path = directory.join(name).display().to_string();
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| format!("{path}: {error}"))?;
    if found.is_empty() { Err(format!("{path}: no certificate in it")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    /// A certificate and its key.
    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn write(directory: &Path, texts: [&str; 3]) {
        for (name, text) in FILES.iter().zip(texts) {
            std::fs::write(directory.join(name), text).unwrap();
        }
    }

    #[test]
    fn files_that_do_not_belong_together_are_refused_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let ((certificate, key), (other, other_key)) = (pair(), pair());
        let said = |texts| {
            write(directory.path(), texts);
            let said = read(directory.path())
                .map(drop)
                .map_err(|why| why.replace(&directory.path().display().to_string(), ""));
            said.err().unwrap_or_default()
        };
        assert_eq!(said([&certificate, &key, &other]), "");
        let wrong = said([&certificate, &other_key, &other]);
        assert!(wrong.starts_with("/tls.key: the key is not that of tls.crt"), "{wrong}");
        assert_eq!(said(["", &key, &other]), "/tls.crt: no certificate in it");
        assert_eq!(said([&certificate, &key, "text"]), "/ca.crt: no certificate in it");
        let wrong = said([&certificate, "", &other]);
        assert!(wrong.starts_with("/tls.key: no private key"), "{wrong}");
        std::fs::remove_file(directory.path().join("ca.crt")).unwrap();
        let wrong = read(directory.path()).unwrap_err();
        assert!(wrong.contains("ca.crt: No such file"), "{wrong}");
    }

    #[test]
    fn the_last_good_files_stay_and_without_any_nothing_starts() {
        let (mounted, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = Settings { tls: Some(mounted.path().to_owned()), ..Settings::of_test(volume.path()) };
        std::fs::create_dir(settings.conf()).unwrap();
        assert!(matches!(copy(&settings), Err(Error::Unusable(why)) if why.contains("tls.crt: No such file")));
        let (certificate, key) = pair();
        write(mounted.path(), [&certificate, &key, &certificate]);
        assert_eq!(copy(&settings).unwrap(), None);
        write(mounted.path(), [&certificate, "", &certificate]);
        assert!(copy(&settings).unwrap().unwrap().ends_with("the last good certificate stays"));
        assert_eq!(std::fs::read_to_string(settings.certificate("tls.key")).unwrap(), key);
    }
}
