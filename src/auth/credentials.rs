//! Names and passwords of people who may change the domain: a file, from a mounted Secret, with a line `USER:PASSWORD` for
//! each. It is read again for every attempt, so that a Secret that changes counts at once and nothing is kept.
//!
//! A password is compared in constant time and never logged. Two lines of one user are two passwords: that is how one is
//! changed without anybody being locked out.

use ring::hmac;
use std::path::{Path, PathBuf};

/// The greatest file that is read, which is also what limits the cost of an attempt.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The longest name: it goes into the audit trail.
const MAX_NAME_BYTES: usize = 128;

/// Why the file cannot be used. Never contains any of its lines.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is missing, or may not be read.
    #[error("cannot read the credentials in {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{path} has more than {MAX_FILE_BYTES} bytes", path = .0.display())]
    TooLarge(PathBuf),
    /// A line is not what it has to be.
    #[error("line {line} of {path} is not USER:PASSWORD: {why}", path = .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1 on.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file has no line.
    #[error("{path} names no user", path = .0.display())]
    Empty(PathBuf),
}

/// The file.
#[derive(Clone, Debug)]
pub struct Credentials {
    path: PathBuf,
}

impl Credentials {
    /// Names the file, and reads it once, so that a mistake in it is found at the start.
    pub async fn new(path: PathBuf) -> Result<Self, Error> {
        let credentials = Self { path };
        let text = credentials.read().await?;
        parse(&credentials.path, &text)?;
        Ok(credentials)
    }

    /// Whether the file has a line that is exactly these bytes; the user's name, if so.
    pub async fn accept(&self, given: &[u8]) -> Result<Option<String>, Error> {
        let text = self.read().await?;
        Ok(find(&parse(&self.path, &text)?, given).map(str::to_owned))
    }

    async fn read(&self) -> Result<String, Error> {
        let path = || self.path.clone();
        let failed = |source| Error::Read { path: path(), source };
        if tokio::fs::metadata(&self.path).await.map_err(failed)?.len() > MAX_FILE_BYTES {
            return Err(Error::TooLarge(path()));
        }
        tokio::fs::read_to_string(&self.path).await.map_err(failed)
    }
}

/// The lines; empty ones are skipped.
fn parse<'a>(path: &Path, text: &'a str) -> Result<Vec<&'a str>, Error> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty()) {
        let wrong = |why| Error::Line { path: path.to_owned(), line: number, why };
        let (name, password) = line.split_once(':').ok_or_else(|| wrong("there is no colon"))?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(|c| c.is_ascii_graphic()) {
            return Err(wrong("the name has to be 1 to 128 visible ASCII characters"));
        }
        if password.is_empty() {
            return Err(wrong("there is no password"));
        }
        lines.push(line);
    }
    if lines.is_empty() { Err(Error::Empty(path.to_owned())) } else { Ok(lines) }
}

/// The name in the line that is the same. How long it takes tells nothing of any line but its length: digests are compared,
/// in constant time, and every line's is.
fn find<'a>(lines: &[&'a str], given: &[u8]) -> Option<&'a str> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"kaa");
    let mut found = None;
    for line in lines {
        if hmac::verify(&key, given, hmac::sign(&key, line.as_bytes()).as_ref()).is_ok() {
            found = line.split_once(':').map(|(name, _)| name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_whole_line_is_accepted_and_a_file_that_changes_counts_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        std::fs::write(&path, "ann:old\nann:a:b c\n\nbob:x\r\n").unwrap();
        let credentials = Credentials::new(path.clone()).await.unwrap();
        for (given, name) in [
            ("ann:old", Some("ann")),
            ("ann:a:b c", Some("ann")),
            ("bob:x", Some("bob")),
            ("ann:x", None),
            ("ann:", None),
            ("ann:ol", None),
            ("ann:old\nann:a:b c", None),
            ("", None),
        ] {
            assert_eq!(credentials.accept(given.as_bytes()).await.unwrap().as_deref(), name, "{given:?}");
        }
        std::fs::write(&path, "ann:new\n").unwrap();
        assert_eq!(credentials.accept(b"ann:old").await.unwrap(), None);
        assert_eq!(credentials.accept(b"ann:new").await.unwrap().as_deref(), Some("ann"));
        std::fs::remove_file(&path).unwrap();
        let error = credentials.accept(b"ann:new").await.unwrap_err().to_string();
        assert!(error.starts_with("cannot read the credentials in "), "{error}");
    }

    #[tokio::test]
    async fn a_mistake_is_found_at_the_start_and_no_password_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        for (text, why) in [
            ("ann:secret\nsecret", "line 2 of "),
            ("ann:secret\n:secret", "the name has to be"),
            ("a nn:secret", "the name has to be"),
            ("ann:", "there is no password"),
            ("\n\n", "names no user"),
            (&"x".repeat(70_000), "more than 65536 bytes"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Credentials::new(path.clone()).await.unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
