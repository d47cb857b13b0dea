//! A domain as one JSON document: what it holds, whose it was, and a checksum over all of it.
//!
//! The checksum is of the values, not of how they are laid out: a file may be printed prettily and stays what it is.

use kaa_core::domain::Domain;
use kaa_core::domain::ids::ClusterName;
use kaa_core::domain::snapshot::{FORMAT, LeftBehind, Snapshot};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What tells such a document from any other.
const KIND: &str = "kaa-domain-snapshot";

/// The field with the checksum of all others.
const CHECKSUM: &str = "sha256";

/// A domain as a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Document {
    kind: String,
    /// Its format.
    pub format: u32,
    /// The SHA-256 of all other fields as compact JSON with sorted names, in hexadecimal digits.
    pub sha256: String,
    /// When it was taken, in UTC.
    pub taken: String,
    /// The server that it was taken from.
    pub server: String,
    /// That server's cluster.
    pub cluster: ClusterName,
    /// That server's version.
    pub version: String,
    /// What is not in it.
    pub left_behind: LeftBehind,
    /// What is.
    pub snapshot: Snapshot,
}

/// Where and when a document was made.
pub(super) struct Source {
    pub(super) taken: String,
    pub(super) server: String,
    pub(super) cluster: ClusterName,
}

/// Why something is no such document.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It ends too early.
    #[error("it is truncated: {0}")]
    Truncated(#[source] serde_json::Error),
    /// It is not even JSON.
    #[error("it is not JSON: {0}")]
    NoJson(#[source] serde_json::Error),
    /// It is something else.
    #[error("it is not a snapshot of a domain: it has no kind \"{KIND}\"")]
    Another,
    /// It has a format that this version does not read, such as that of a newer one.
    #[error("it is a snapshot of format {found}, and this version reads format {FORMAT}")]
    Format {
        /// Its format, as it stands there.
        found: Value,
    },
    /// It was changed since it was made.
    #[error("it was modified or is damaged: the SHA-256 of its content is {is}, but it records {says}")]
    Checksum {
        /// What it is.
        is: String,
        /// What is written there.
        says: String,
    },
    /// It is whole, and still not understood.
    #[error("it is not understood: {0}")]
    Content(#[source] serde_json::Error),
}

impl Document {
    /// What can be taken of a domain; nothing before it is founded.
    pub(super) fn of(domain: &Domain, from: Source) -> Option<Self> {
        let mut document = Self {
            kind: KIND.to_owned(),
            format: FORMAT,
            sha256: String::new(),
            taken: from.taken,
            server: from.server,
            cluster: from.cluster,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            left_behind: domain.left_behind(),
            snapshot: domain.snapshot()?,
        };
        document.sha256 = checksum(&json!(document));
        Some(document)
    }

    /// Reads a document from the text of a file.
    pub fn parse(text: &[u8]) -> Result<Self, Unreadable> {
        let value = serde_json::from_slice(text).map_err(|error| match error.is_eof() {
            true => Unreadable::Truncated(error),
            false => Unreadable::NoJson(error),
        })?;
        Self::read(value)
    }

    /// Reads a document, if it is whole and of a known format.
    pub fn read(value: Value) -> Result<Self, Unreadable> {
        if value.get("kind").and_then(Value::as_str) != Some(KIND) {
            return Err(Unreadable::Another);
        }
        // Before all else: what follows is what this format means.
        let format = value.get("format");
        if format.and_then(Value::as_u64) != Some(FORMAT.into()) {
            return Err(Unreadable::Format { found: format.cloned().unwrap_or_default() });
        }
        let (is, says) = (checksum(&value), value.get(CHECKSUM).and_then(Value::as_str).unwrap_or("nothing"));
        if is != says {
            return Err(Unreadable::Checksum { is, says: says.to_owned() });
        }
        serde_json::from_value(value).map_err(Unreadable::Content)
    }
}

/// The checksum of a document, whatever it says of itself.
fn checksum(document: &Value) -> String {
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        fields.remove(CHECKSUM);
    }
    digest(&SHA256, document.to_string().as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fake;

    fn document() -> Value {
        let from = Source { taken: "now".to_owned(), server: "admin-0".to_owned(), cluster: "main".into() };
        json!(Document::of(&fake::domain(), from).unwrap())
    }

    #[test]
    fn a_document_is_read_however_it_is_laid_out() {
        let value = document();
        let document = Document::read(value.clone()).unwrap();
        assert_eq!(Document::parse(serde_json::to_string_pretty(&value).unwrap().as_bytes()).unwrap(), document);
        assert_eq!(json!(document), value);
        assert_eq!(document.snapshot, fake::domain().snapshot().unwrap());
        let from = Source { taken: String::new(), server: String::new(), cluster: "main".into() };
        assert_eq!(Document::of(&Domain::default(), from), None);
    }

    #[test]
    fn what_is_wrong_with_a_document_is_said() {
        let text = document().to_string();
        let said = |text: &str| Document::parse(text.as_bytes()).unwrap_err().to_string();
        for end in [0, 1, text.len() / 2, text.len() - 1] {
            assert!(said(&text[..end]).starts_with("it is truncated: "), "{}", said(&text[..end]));
        }
        assert!(said("hello").starts_with("it is not JSON: "));
        for other in ["{}", "[]", "7", r#"{"kind": "List"}"#] {
            assert!(said(other).starts_with("it is not a snapshot of a domain"), "{other}");
        }
        let newer = text.replace("\"format\":1", "\"format\":2");
        assert_eq!(said(&newer), "it is a snapshot of format 2, and this version reads format 1");
        for (what, becomes) in [("admin-0", "admin-9"), ("\"lastArchive\":3", "\"lastArchive\":2"), ("demo", "dem0")] {
            assert!(text.contains(what), "{what} in {text}");
            let changed = text.replacen(what, becomes, 1);
            assert!(
                said(&changed).starts_with("it was modified or is damaged: the SHA-256 of its content is "),
                "{what}"
            );
        }
        let mut without = document();
        without.as_object_mut().unwrap().remove(CHECKSUM);
        assert!(said(&without.to_string()).ends_with("but it records nothing"));
    }

    /// With a right checksum, and yet another document than this version knows.
    #[test]
    fn what_is_not_known_is_not_passed_over() {
        let mut value = document();
        value["snapshot"]["archives"][0]["colour"] = json!("red");
        value[CHECKSUM] = json!(checksum(&value));
        let error = Document::read(value).unwrap_err().to_string();
        assert!(error.starts_with("it is not understood: unknown field `colour`"), "{error}");
    }
}
