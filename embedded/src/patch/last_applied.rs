//! The way from client-side to server-side apply: the annotation in which `kubectl apply` keeps what it applied last.
//!
//! A real server knows `kubectl` by its name: what it applied on the client's side it may apply on the server's without
//! a conflict with itself, and the annotation follows, so that one can go back.

use super::fields::{self, Fields, Path};
use super::managed::Manager;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manager that it is done for.
const KUBECTL: &str = "kubectl";

/// The fields that were applied on the client's side and are still as they were applied.
pub fn kept(object: &Value, manager: &Manager) -> BTreeSet<Path> {
    let Some(applied) = applied(object).filter(|_| manager.name == KUBECTL) else { return BTreeSet::new() };
    let mut kept = Fields::of(&applied).0;
    kept.retain(|path| fields::at(&applied, path) == fields::at(object, path));
    kept
}

/// Writes what is applied now into the annotation, if there is one.
pub fn follow(object: &mut Value, said: &Value, manager: &Manager) {
    if manager.name != KUBECTL || applied(object).is_none() {
        return;
    }
    let mut said = said.clone();
    if let Some(annotations) = said.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    object["metadata"]["annotations"][ANNOTATION] = json!(format!("{said}\n"));
}

fn applied(object: &Value) -> Option<Value> {
    serde_json::from_str(object["metadata"]["annotations"].get(ANNOTATION)?.as_str()?).ok()
}
