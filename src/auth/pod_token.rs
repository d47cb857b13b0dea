//! A secret that proves that a caller is in the agent's own pod, or may execute commands in it: the agent makes it at each start and
//! writes it to a file of the pod. `kubectl exec` reads that file; a proxy in the pod does not have it, unlike a loopback address.
//!
//! It is shown as the password of a user called `pod`, so that every HTTP client can show it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Its user name.
const USER: &str = "pod";
/// Its length: 256 bits cannot be guessed.
const SECRET_BYTES: usize = 32;
/// The longest file that is read as one: far more than one has.
const MAX_FILE_BYTES: u64 = 1024;

/// Why there is none. Never contains any of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no randomness.
    #[error("the system gives no random bytes")]
    Random,
    /// The file cannot be written.
    #[error("cannot write the pod's token to {path}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the pod's token in {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{path} holds no token of a pod", path = .0.display())]
    NoToken(PathBuf),
}

/// The agent's side of it.
#[derive(Debug)]
pub struct PodToken {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl PodToken {
    /// Makes a new one, in a file that only its owner may read. An earlier one is not accepted any more.
    pub fn make(path: &Path) -> Result<Self, Error> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut secret).map_err(|_| Error::Random)?;
        let shown = format!("{USER}:{}", URL_SAFE_NO_PAD.encode(secret));
        write(path, &shown).map_err(|source| Error::Write { path: path.to_owned(), source })?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"kaa");
        let tag = hmac::sign(&key, shown.as_bytes());
        Ok(Self { key, tag })
    }

    /// Whether these are its user name and itself, `pod:TOKEN`. The time that it takes tells nothing.
    pub fn is(&self, given: &[u8]) -> bool {
        hmac::verify(&self.key, given, self.tag.as_ref()).is_ok()
    }
}

/// Reads `pod:TOKEN`, as an agent wrote it.
pub fn read(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_FILE_BYTES {
        return Err(Error::NoToken(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let is_token =
        text.strip_prefix(USER).and_then(|rest| rest.strip_prefix(':')).is_some_and(|token| !token.is_empty());
    if is_token { Ok(text) } else { Err(Error::NoToken(path.to_owned())) }
}

/// Writes the file whole or not at all: a reader finds this token or the one before.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // A file that exists would keep its mode, and a link would lead elsewhere.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_start_has_its_own_that_only_the_owner_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let earlier = PodToken::make(&path).unwrap();
        let shown = read(&path).unwrap();
        assert!(earlier.is(shown.as_bytes()) && shown.len() > 40);
        for wrong in ["", "pod:", "pod", &shown[..shown.len() - 1], &shown[4..], &format!("{shown}\n")] {
            assert!(!earlier.is(wrong.as_bytes()), "{wrong}");
        }
        let later = PodToken::make(&path).unwrap();
        assert!(!later.is(shown.as_bytes()) && later.is(read(&path).unwrap().as_bytes()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "ann:secret").unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), format!("{} holds no token of a pod", path.display()));
    }
}
