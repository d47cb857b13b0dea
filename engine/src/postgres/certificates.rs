//! The server's certificate, copied to where the server reads it.

use super::Settings;
use super::error::Error;
use super::files;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use x509_parser::prelude::{FromDer, X509Certificate};

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

/// When the copies that a server is given expire, each in seconds since 1970; `None` if it has none, or if that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Of `tls.crt`, what expires first: the server's certificate, or one between that and the authority.
    pub certificate: Option<u64>,
    /// Of `ca.crt`, the authority that expires first.
    pub authority: Option<u64>,
}

/// When the copies expire.
pub fn expiry(settings: &Settings) -> Expiry {
    if settings.tls.is_none() {
        return Expiry::default();
    }
    let first = |name| ends(&std::fs::read(settings.certificate(name)).ok()?).into_iter().min();
    Expiry { certificate: first(FILES[0]), authority: first(FILES[2]) }
}

/// When each certificate of a file expires, in seconds since 1970. What this library cannot read is left to PostgreSQL, and left out.
fn ends(text: &[u8]) -> Vec<u64> {
    let end = |certificate: CertificateDer<'_>| {
        let (_, parsed) = X509Certificate::from_der(&certificate).ok()?;
        Some(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default())
    };
    CertificateDer::pem_slice_iter(text).filter_map(|found| end(found.ok()?)).collect()
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
    let read = match read(directory) {
        Ok([new, ..]) if are_there && is_worse(settings, &new) => {
            Err(format!("{}: it has expired, and the one in use has not", directory.join(FILES[0]).display()))
        }
        read => read,
    };
    let texts = match read {
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

/// Whether a certificate has expired, and the one in use has not: an old Secret was put back.
fn is_worse(settings: &Settings, new: &[u8]) -> bool {
    let used = std::fs::read(settings.certificate(FILES[0]));
    has_expired(new) && used.is_ok_and(|used| !has_expired(&used))
}

/// Whether any certificate of a file has expired.
fn has_expired(text: &[u8]) -> bool {
    let now = crate::clock::now_ms() / 1000;
    ends(text).into_iter().any(|end| end <= now)
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

/// The number of the first line that marks a beginning or an end and says more than that: PostgreSQL refuses a file where two were joined
/// without a line break, and this library reads the first certificate alone.
fn strange_line(text: &[u8]) -> Option<usize> {
    const DASHES: &[u8] = b"-----";
    let is_strange = |line: &[u8]| {
        let is_mark = line.starts_with(b"-----BEGIN ") || line.starts_with(b"-----END ");
        let number = line.windows(DASHES.len()).filter(|bytes| *bytes == DASHES).count();
        is_mark && (number != 2 || !line.ends_with(DASHES))
    };
    text.split(|byte| *byte == b'\n').position(|line| is_strange(line.trim_ascii_end())).map(|index| index + 1)
}

fn certificates(text: &[u8], directory: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let path = directory.join(name).display().to_string();
    if let Some(line) = strange_line(text) {
        return Err(format!("{path}: line {line} is no BEGIN or END of its own: a line break is missing"));
    }
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| format!("{path}: {error}"))?;
    if found.is_empty() { Err(format!("{path}: no certificate in it")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// A certificate that expires long after this test, and its key.
    fn pair() -> (String, String) {
        until(3000)
    }

    /// A certificate that expires when this year begins, and its key.
    fn until(year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
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
        let two = format!("{other}{certificate}");
        assert_eq!(said([&certificate, &key, &two]), "");
        let of_windows = two.replace('\n', "\r\n");
        assert_eq!(said([&certificate, &key, &of_windows]), "");
        let separated = format!("------- old -------\n{other}----------------\n{certificate}");
        assert_eq!(said([&certificate, &key, &separated]), "", "PostgreSQL ignores other lines");
        let joined = format!("{}{certificate}", other.trim_end());
        let line = other.lines().count();
        let wrong = format!("/ca.crt: line {line} is no BEGIN or END of its own: a line break is missing");
        assert_eq!(said([&certificate, &key, &joined]), wrong);
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

    #[test]
    fn one_that_has_expired_replaces_no_other() {
        let (mounted, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = Settings { tls: Some(mounted.path().to_owned()), ..Settings::of_test(volume.path()) };
        std::fs::create_dir(settings.conf()).unwrap();
        let ((old, old_key), (older, older_key)) = (until(2001), until(2000));
        let ((new, new_key), (newer, newer_key)) = (until(3000), until(3001));
        let copied = |certificate: &str, key: &str| {
            write(mounted.path(), [certificate, key, &format!("{newer}{new}")]);
            copy(&settings).unwrap().map(|why| why.replace(&mounted.path().display().to_string(), ""))
        };
        let ends = || expiry(&settings).certificate.unwrap();
        let (in_2000, in_2001, in_3000, in_3001) = (946_684_800, 978_307_200, 32_503_680_000, 32_535_216_000);
        assert_eq!((copied(&old, &old_key), ends()), (None, in_2001), "there is no other");
        assert_eq!((copied(&older, &older_key), ends()), (None, in_2000), "the one in use has expired as well");
        assert_eq!((copied(&newer, &newer_key), ends()), (None, in_3001));
        let why = "/tls.crt: it has expired, and the one in use has not: the last good certificate stays";
        assert_eq!((copied(&old, &old_key), ends()), (Some(why.to_owned()), in_3001));
        assert_eq!((copied(&new, &new_key), ends()), (None, in_3000), "it expires earlier, and has not yet");
    }

    #[test]
    fn of_a_file_what_expires_first_is_said() {
        let volume = tempfile::tempdir().unwrap();
        let settings = Settings { tls: Some("/mounted".into()), ..Settings::of_test(volume.path()) };
        assert_eq!(expiry(&settings), Expiry::default(), "nothing was copied");
        std::fs::create_dir(settings.conf()).unwrap();
        let ((early, _), (late, _)) = (until(2001), until(3000));
        let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        write(&settings.conf(), [&format!("{late}{early}"), "", unreadable]);
        assert_eq!(expiry(&settings), Expiry { certificate: Some(978_307_200), authority: None });
        write(&settings.conf(), [&late, "", &format!("{unreadable}{early}{late}")]);
        assert_eq!(expiry(&settings), Expiry { certificate: Some(32_503_680_000), authority: Some(978_307_200) });
        assert_eq!(expiry(&Settings { tls: None, ..settings }), Expiry::default(), "the copies are not in use");
    }
}
