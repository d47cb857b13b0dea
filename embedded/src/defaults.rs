//! What Kubernetes writes into an object where its author left something out.
//!
//! It is written when an object is created and when it is replaced: a client that leaves a field out does not mean to
//! remove its default. What depends on the object being new looks for its UID.

mod pod;

use crate::object::{self, entry, metadata};
use crate::resource::Kind;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// Holds a claim that a pod uses.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Fills in what is left out.
pub fn fill(kind: Kind, object: &mut Value) {
    match kind {
        Kind::Pod => pod::fill(object),
        Kind::StatefulSet => stateful_set(object),
        Kind::Deployment => deployment(object),
        Kind::ReplicaSet => {
            let spec = entry(object, "spec");
            otherwise(spec, "replicas", json!(1));
            template(spec);
        }
        Kind::PersistentVolumeClaim => claim(object),
        Kind::Service => service(object),
        Kind::Namespace => namespace(object),
        Kind::Secret => secret(object),
        Kind::RoleBinding => role_binding(object),
        Kind::Lease => drop(entry(object, "spec")),
        Kind::Node
        | Kind::Event
        | Kind::ConfigMap
        | Kind::EndpointSlice
        | Kind::ServiceAccount
        | Kind::ControllerRevision
        | Kind::Role
        | Kind::SelfSubjectAccessReview => {}
    }
}

/// Sets a field that is not set.
fn otherwise(fields: &mut Map<String, Value>, field: &str, value: Value) {
    fields.entry(field).or_insert(value);
}

/// The object in a field, made if it is not there.
fn below<'a>(fields: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    fields.entry(field).or_insert_with(|| json!({})).as_object_mut()
}

/// The objects in a list, if there is one.
fn items<'a>(fields: &'a mut Map<String, Value>, field: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    fields.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn template(spec: &mut Map<String, Value>) {
    if let Some(template) = below(spec, "template")
        && let Some(spec) = below(template, "spec")
    {
        pod::fill_spec(spec);
    }
}

fn stateful_set(object: &mut Value) {
    let spec = entry(object, "spec");
    otherwise(spec, "replicas", json!(1));
    otherwise(spec, "podManagementPolicy", json!("OrderedReady"));
    otherwise(spec, "revisionHistoryLimit", json!(10));
    if let Some(strategy) = below(spec, "updateStrategy") {
        otherwise(strategy, "type", json!("RollingUpdate"));
        if strategy["type"] == "RollingUpdate"
            && let Some(rolling) = below(strategy, "rollingUpdate")
        {
            otherwise(rolling, "partition", json!(0));
        }
    }
    if let Some(policy) = below(spec, "persistentVolumeClaimRetentionPolicy") {
        otherwise(policy, "whenDeleted", json!("Retain"));
        otherwise(policy, "whenScaled", json!("Retain"));
    }
    for claim in items(spec, "volumeClaimTemplates") {
        otherwise(claim, "apiVersion", json!("v1"));
        otherwise(claim, "kind", json!("PersistentVolumeClaim"));
        otherwise(claim, "status", json!({"phase": "Pending"}));
        if let Some(spec) = below(claim, "spec") {
            otherwise(spec, "volumeMode", json!("Filesystem"));
        }
    }
    template(spec);
}

fn deployment(object: &mut Value) {
    let spec = entry(object, "spec");
    otherwise(spec, "replicas", json!(1));
    otherwise(spec, "revisionHistoryLimit", json!(10));
    otherwise(spec, "progressDeadlineSeconds", json!(600));
    if let Some(strategy) = below(spec, "strategy") {
        otherwise(strategy, "type", json!("RollingUpdate"));
        if strategy["type"] == "RollingUpdate"
            && let Some(rolling) = below(strategy, "rollingUpdate")
        {
            otherwise(rolling, "maxUnavailable", json!("25%"));
            otherwise(rolling, "maxSurge", json!("25%"));
        }
    }
    template(spec);
}

fn claim(object: &mut Value) {
    if object::uid(object).is_empty() && !object::has_finalizer(object, CLAIM_PROTECTION) {
        let finalizers = metadata(object).entry("finalizers").or_insert_with(|| json!([]));
        if let Some(finalizers) = finalizers.as_array_mut() {
            finalizers.push(json!(CLAIM_PROTECTION));
        }
    }
    let spec = entry(object, "spec");
    otherwise(spec, "volumeMode", json!("Filesystem"));
    otherwise(spec, "storageClassName", json!("standard"));
    otherwise(entry(object, "status"), "phase", json!("Pending"));
}

fn service(object: &mut Value) {
    let address = address(object::namespace(object), object::name(object));
    let spec = entry(object, "spec");
    otherwise(spec, "type", json!("ClusterIP"));
    otherwise(spec, "sessionAffinity", json!("None"));
    otherwise(spec, "internalTrafficPolicy", json!("Cluster"));
    otherwise(spec, "ipFamilies", json!(["IPv4"]));
    otherwise(spec, "ipFamilyPolicy", json!("SingleStack"));
    otherwise(spec, "clusterIP", json!(address));
    let address = spec["clusterIP"].clone();
    otherwise(spec, "clusterIPs", json!([address]));
    for port in items(spec, "ports") {
        otherwise(port, "protocol", json!("TCP"));
        let number = port.get("port").cloned().unwrap_or_default();
        otherwise(port, "targetPort", number);
    }
    otherwise(entry(object, "status"), "loadBalancer", json!({}));
}

/// A cluster address, which nothing answers at: it follows from the name, so that it needs no book of those in use.
fn address(namespace: &str, name: &str) -> String {
    // FNV-1a.
    let hash = format!("{namespace}/{name}")
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("10.96.{}.{}", (hash >> 8) & 0xff, hash % 254 + 1)
}

fn namespace(object: &mut Value) {
    let name = object::name(object).to_owned();
    if let Some(labels) = below(metadata(object), "labels") {
        labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
    }
    otherwise(entry(object, "spec"), "finalizers", json!(["kubernetes"]));
    otherwise(entry(object, "status"), "phase", json!("Active"));
}

fn secret(object: &mut Value) {
    let Some(secret) = object.as_object_mut() else { return };
    otherwise(secret, "type", json!("Opaque"));
    if let Some(Value::Object(texts)) = secret.remove("stringData")
        && let Some(data) = below(secret, "data")
    {
        for (key, value) in &texts {
            data.insert(key.clone(), json!(STANDARD.encode(value.as_str().unwrap_or_default())));
        }
    }
}

fn role_binding(object: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    otherwise(entry(object, "roleRef"), "apiGroup", json!(GROUP));
    let Some(binding) = object.as_object_mut() else { return };
    for subject in items(binding, "subjects") {
        if subject.get("kind").is_some_and(|kind| kind == "User" || kind == "Group") {
            otherwise(subject, "apiGroup", json!(GROUP));
        }
    }
}

#[cfg(test)]
mod tests;
