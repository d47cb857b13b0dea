//! The `scale` subresource: how many there should be, for clients that know nothing else of a workload.

use super::options::{Options, perform};
use super::path::Target;
use super::{Method, Reply, Request, decode};
use crate::failure::Failure;
use crate::object::{entry, number, text};
use crate::patch::{self, Format, managed};
use crate::store::{Part, Store};
use serde_json::{Value, json};

/// GET, PUT and PATCH of a scale.
pub fn answer(store: &mut Store, request: &Request, target: &Target) -> Result<Reply, Failure> {
    let before = store.get(&target.key())?.clone();
    let now = scale_of(&before);
    let (wanted, options) = match request.method {
        Method::Put => (decode::json(&request.body)?, Options::of(request, "UpdateOptions")?),
        Method::Patch => {
            let format = Format::of(&request.content_type)?;
            (patch::patched(format, &now, &request.body)?, Options::of(request, "PatchOptions")?)
        }
        Method::Get | Method::Post | Method::Delete => return Ok(Reply::object(200, now)),
    };
    let name = target.name.as_deref().unwrap_or_default();
    let replicas = wanted.pointer("/spec/replicas").map_or(Some(0), Value::as_i64);
    let Some(replicas) = replicas.filter(|replicas| i32::try_from(*replicas).is_ok()) else {
        let why = "json: cannot unmarshal into Go struct field ScaleSpec.spec.replicas of type int32";
        return Err(Failure::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: {why}")));
    };
    if replicas < 0 {
        let why = format!("Invalid value: {replicas}: must be greater than or equal to 0");
        return Err(Failure::invalid_named("Scale", "autoscaling", name, &[("spec.replicas", why)]));
    }
    let mut object = Value::clone(&before);
    entry(&mut object, "spec").insert("replicas".to_owned(), json!(replicas));
    for field in ["resourceVersion", "uid"] {
        if let Some(given) = wanted["metadata"].get(field).filter(|given| given.is_string()) {
            object["metadata"][field] = given.clone();
        }
    }
    managed::track(Some(&before), &mut object, &options.manager, "scale", store.now());
    let updated = perform(store, options.dry, |store| store.update(&target.key(), Part::Main, object))?;
    Ok(Reply::object(200, scale_of(&updated)))
}

fn scale_of(object: &Value) -> Value {
    let labels = object.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let selector: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata[field] = json!(text(object, &format!("/metadata/{field}")));
    }
    let count = |pointer: &str| number(object, pointer).unwrap_or(0);
    // As a real one does, a zero is left out of what is wanted, but not of what is.
    let spec = if count("/spec/replicas") == 0 { json!({}) } else { json!({"replicas": count("/spec/replicas")}) };
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec,
        "status": {"replicas": count("/status/replicas"), "selector": selector.join(",")},
    })
}
