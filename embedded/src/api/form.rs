//! The forms in which objects are given out: as they are, as rows of a table, or their metadata only.

use super::Request;
use crate::failure::Failure;
use crate::resource::Kind;
use crate::table::{self, Include};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// How a caller wants objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Plain,
    /// As rows for people.
    Table(Include),
    /// `PartialObjectMetadata`.
    Metadata,
}

impl Form {
    /// The first of the wanted forms that there is. Protobuf is not written: clients that ask for it accept JSON too.
    pub fn of(request: &Request) -> Result<Self, Failure> {
        if request.accept.trim().is_empty() {
            return Ok(Self::Plain);
        }
        for wanted in request.accept.split(',') {
            let mut parts = wanted.split(';').map(str::trim);
            let json = matches!(parts.next(), Some("application/json" | "application/*" | "*/*"));
            let parameter = |name: &str| {
                let found = wanted.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
                found.unwrap_or_default()
            };
            match (json, parameter("as"), parameter("v")) {
                (true, "", _) => return Ok(Self::Plain),
                (true, "Table", "v1") => return Ok(Self::Table(Include::of(request.given("includeObject"))?)),
                (true, "PartialObjectMetadata" | "PartialObjectMetadataList", "v1") => return Ok(Self::Metadata),
                _ => {}
            }
        }
        let message = "406: Not Acceptable\n\nAvailable representations: application/json".to_owned();
        Err(Failure { code: 406, reason: "NotAcceptable", message, details: json!({}) })
    }

    /// One object.
    pub fn one(self, kind: Kind, object: &Arc<Value>, now: Timestamp) -> Value {
        let version = &object["metadata"]["resourceVersion"];
        match self {
            Self::Plain => Value::clone(object),
            Self::Table(include) => {
                let metadata = json!({"resourceVersion": version});
                table::of(kind, std::slice::from_ref(object), &metadata, include, now)
            }
            Self::Metadata => metadata_only(object),
        }
    }

    /// A list.
    pub fn list(self, kind: Kind, objects: &[Arc<Value>], metadata: &Value, now: Timestamp) -> Value {
        let resource = kind.resource();
        let (name, api_version, items): (_, _, Vec<Value>) = match self {
            Self::Table(include) => return table::of(kind, objects, metadata, include, now),
            // As in a real one, the kind stands once at the top.
            Self::Plain => {
                (format!("{}List", resource.name), resource.api_version(), objects.iter().map(bare).collect())
            }
            Self::Metadata => {
                let items = objects.iter().map(|object| metadata_only(object)).collect();
                ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned(), items)
            }
        };
        json!({"kind": name, "apiVersion": api_version, "metadata": metadata, "items": items})
    }
}

fn bare(object: &Arc<Value>) -> Value {
    let fields = object.as_object().into_iter().flatten();
    let kept = fields.filter(|(key, _)| *key != "kind" && *key != "apiVersion");
    Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// An object's metadata as an object of its own.
pub fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
