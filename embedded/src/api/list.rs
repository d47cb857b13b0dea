//! Lists: all objects of a kind, those that a selector wants, page by page.
//!
//! Every page shows the objects as they were when the first was given out: the changes since are taken back. So there
//! is one kind of failure only, that the changes are not remembered any more.

use super::form::Form;
use super::path::Target;
use super::{Reply, Request};
use crate::failure::Failure;
use crate::resource::Kind;
use crate::selector::Selector;
use crate::store::{Key, Store};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Answers a GET of a collection.
pub fn answer(store: &Store, request: &Request, target: &Target) -> Result<Reply, Failure> {
    let (form, selector) = (Form::of(request)?, Selector::of(request, target.kind)?);
    let limit = usize::try_from(request.number("limit")?.unwrap_or(0)).unwrap_or(0);
    let page = page(store, request, target)?;
    let mut found: Vec<Arc<Value>> = page.objects;
    found.retain(|object| selector.wants(object));
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if limit > 0 && found.len() > limit {
        let remaining = found.split_off(limit).len();
        let last = Key::of(target.kind, &found[limit - 1]);
        metadata["continue"] = json!(Position { version: page.version, after: last }.token());
        if selector.wants_all() {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    Ok(Reply::object(200, form.list(target.kind, &found, &metadata, store.now())))
}

struct Page {
    version: u64,
    objects: Vec<Arc<Value>>,
}

fn page(store: &Store, request: &Request, target: &Target) -> Result<Page, Failure> {
    let namespace = target.namespace.as_deref();
    let asked = reached(store, request)?;
    let exact = match request.given("resourceVersionMatch") {
        Some("Exact") => true,
        None | Some("NotOlderThan") => false,
        Some(other) => {
            let why = format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\"");
            return Err(super::options::refused("ListOptions", &[("resourceVersionMatch", why)]));
        }
    };
    if request.given("resourceVersionMatch").is_some() && request.given("resourceVersion").is_none() {
        let why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided".to_owned();
        return Err(super::options::refused("ListOptions", &[("resourceVersionMatch", why)]));
    }
    if let Some(token) = request.given("continue") {
        let position = Position::read(token, target.kind)?;
        let mut objects = as_of(store, target.kind, namespace, position.version)?;
        objects.retain(|key, _| *key > position.after);
        return Ok(Page { version: position.version, objects: objects.into_values().collect() });
    }
    if exact {
        let objects = as_of(store, target.kind, namespace, asked)?;
        return Ok(Page { version: asked, objects: objects.into_values().collect() });
    }
    Ok(Page { version: store.version(), objects: store.list(target.kind, namespace).cloned().collect() })
}

/// The version that is asked for at least, which has to be reached; 0 if none is.
pub fn reached(store: &Store, request: &Request) -> Result<u64, Failure> {
    let bad = |failure: Failure| Failure::bad_request(format!("invalid resource version: {failure}"));
    let asked = request.given("resourceVersion").map(version).transpose().map_err(bad)?.unwrap_or(0);
    if asked > store.version() { Err(Failure::too_large_version(asked, store.version())) } else { Ok(asked) }
}

/// Reads a resourceVersion.
pub fn version(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| {
        let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        Failure::internal(format!("resourceVersion: Invalid value: {text:?}: {why}"))
    })
}

/// The objects as they were.
fn as_of(
    store: &Store,
    kind: Kind,
    namespace: Option<&str>,
    version: u64,
) -> Result<BTreeMap<Key, Arc<Value>>, Failure> {
    let forgotten = |_| Failure::expired("The resourceVersion for the provided list is too old.");
    let here = |key: &Key| key.kind == kind && namespace.is_none_or(|namespace| key.namespace == namespace);
    let mut objects: BTreeMap<Key, Arc<Value>> =
        store.list(kind, namespace).map(|object| (Key::of(kind, object), object.clone())).collect();
    let changes: Vec<_> = store.changes_since(version).map_err(forgotten)?.filter(|change| here(&change.key)).collect();
    for change in changes.into_iter().rev() {
        match &change.before {
            Some(before) => drop(objects.insert(change.key.clone(), before.clone())),
            None => drop(objects.remove(&change.key)),
        }
    }
    Ok(objects)
}

/// Where a list continues.
struct Position {
    version: u64,
    after: Key,
}

impl Position {
    fn token(&self) -> String {
        let start = json!([self.after.namespace, self.after.name]);
        URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": self.version, "start": start}).to_string())
    }

    fn read(token: &str, kind: Kind) -> Result<Self, Failure> {
        let invalid = || Failure::bad_request("invalid continue token: continue key is not valid");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
        let read: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let text = |pointer: &str| read.pointer(pointer).and_then(Value::as_str).ok_or_else(invalid);
        let after = Key::new(kind, text("/start/0")?, text("/start/1")?);
        Ok(Self { version: read["rv"].as_u64().ok_or_else(invalid)?, after })
    }
}
