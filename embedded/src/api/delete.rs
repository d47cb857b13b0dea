//! Deletes one object, or all that a selector wants.

use super::options::{dry, perform, refused};
use super::path::Target;
use super::{Reply, Request, decode};
use crate::api::form::Form;
use crate::failure::Failure;
use crate::object::{self, text};
use crate::resource::Kind;
use crate::selector::Selector;
use crate::store::{DeleteOptions, Deleted, Key, Propagation, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// DELETE of an object or a collection.
pub fn answer(store: &mut Store, request: &Request, target: &Target) -> Result<Reply, Failure> {
    let (options, dry) = options(request)?;
    match &target.name {
        Some(name) if target.kind == Kind::Namespace && matches!(name.as_str(), "default" | "kube-system") => {
            Err(Failure::forbidden(Kind::Namespace, name, "this namespace may not be deleted"))
        }
        Some(_) => {
            let deleted = perform(store, dry, |store| store.delete(&target.key(), &options))?;
            Ok(Reply::object(200, shown(target.kind, &deleted)))
        }
        None => collection(store, request, target, &options, dry),
    }
}

fn collection(
    store: &mut Store,
    request: &Request,
    target: &Target,
    options: &DeleteOptions,
    dry: bool,
) -> Result<Reply, Failure> {
    let selector = Selector::of(request, target.kind)?;
    let namespace = target.namespace.as_deref();
    let found: Vec<Arc<Value>> =
        store.list(target.kind, namespace).filter(|object| selector.wants(object)).cloned().collect();
    let gone = perform(store, dry, |store| {
        let mut gone = Vec::new();
        for object in &found {
            match store.delete(&Key::of(target.kind, object), options)? {
                Deleted::Gone(object) | Deleted::Begun(object) => gone.push(object),
            }
        }
        Ok(gone)
    })?;
    let metadata = json!({"resourceVersion": store.version().to_string()});
    Ok(Reply::object(200, Form::Plain.list(target.kind, &gone, &metadata, store.now())))
}

/// What a real one answers: some kinds show the object that is gone, most only say so.
fn shown(kind: Kind, deleted: &Deleted) -> Value {
    let shown = matches!(kind, Kind::Pod | Kind::PersistentVolumeClaim | Kind::Service | Kind::ServiceAccount);
    match deleted {
        Deleted::Begun(object) => Value::clone(object),
        Deleted::Gone(object) if shown => Value::clone(object),
        Deleted::Gone(object) => {
            let resource = kind.resource();
            let mut details =
                json!({"name": object::name(object), "kind": resource.plural, "uid": object::uid(object)});
            if !resource.group.is_empty() {
                details["group"] = json!(resource.group);
            }
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
        }
    }
}

fn options(request: &Request) -> Result<(DeleteOptions, bool), Failure> {
    let body = if request.body.is_empty() { Value::Null } else { decode::json(&request.body)? };
    let optional = |pointer: &str| Some(text(&body, pointer).to_owned()).filter(|text| !text.is_empty());
    let tried = object::list(&body, "/dryRun").iter().any(|word| word == "All");
    let policy = optional("/propagationPolicy").or_else(|| request.given("propagationPolicy").map(str::to_owned));
    let orphans = match body.get("orphanDependents").and_then(Value::as_bool) {
        Some(orphans) => Some(orphans),
        None => request.given("orphanDependents").map(|_| request.says("orphanDependents")),
    };
    let grace = object::number(&body, "/gracePeriodSeconds").or(request.number("gracePeriodSeconds")?);
    let options = DeleteOptions {
        grace_seconds: grace,
        uid: optional("/preconditions/uid"),
        version: optional("/preconditions/resourceVersion"),
        propagation: propagation(policy.as_deref(), orphans)?,
    };
    Ok((options, tried || dry(request, "DeleteOptions")?))
}

fn propagation(policy: Option<&str>, orphans: Option<bool>) -> Result<Option<Propagation>, Failure> {
    let refuse = |why: String| Err(refused("DeleteOptions", &[("propagationPolicy", why)]));
    match (policy, orphans) {
        (Some(policy), Some(_)) => {
            refuse(format!("Invalid value: {policy:?}: orphanDependents and deletionPropagation cannot be both set"))
        }
        (Some("Background"), None) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some("Orphan"), None) | (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (None, Some(false)) => Ok(Some(Propagation::Background)),
        (None, None) => Ok(None),
        (Some(other), None) => {
            let supported = r#"supported values: "Foreground", "Background", "Orphan", "nil""#;
            refuse(format!("Unsupported value: {other:?}: {supported}"))
        }
    }
}
