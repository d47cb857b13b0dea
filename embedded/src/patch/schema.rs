//! Which lists are sets or maps in truth, by the names of their fields.
//!
//! Kubernetes says it per type. For the kinds that there are here the name of the field is enough.

use serde_json::{Value, json};

/// What a list is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Of things that these fields tell apart.
    Map(&'static [&'static str]),
    /// Of values of which each counts once.
    Set,
    /// One value.
    Atomic,
}

/// What the list in a field is; ports are told apart by what they contain.
pub fn list(field: &str, items: &[Value]) -> List {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets"
        | "claims"
        | "schedulingGates"
        | "resourceClaims" => List::Map(&["name"]),
        "ports" if items.iter().any(|port| port.get("containerPort").is_some()) => {
            List::Map(&["containerPort", "protocol"])
        }
        "ports" => List::Map(&["port", "protocol"]),
        "volumeMounts" => List::Map(&["mountPath"]),
        "volumeDevices" => List::Map(&["devicePath"]),
        "conditions" | "addresses" => List::Map(&["type"]),
        "ownerReferences" => List::Map(&["uid"]),
        "hostAliases" | "podIPs" | "hostIPs" => List::Map(&["ip"]),
        "topologySpreadConstraints" => List::Map(&["topologyKey", "whenUnsatisfiable"]),
        "finalizers" | "podCIDRs" => List::Set,
        _ => List::Atomic,
    }
}

/// Whether an object in a field has one owner as a whole.
pub fn is_atomic(field: &str) -> bool {
    matches!(
        field,
        "selector"
            | "nodeSelector"
            | "fieldRef"
            | "resourceFieldRef"
            | "configMapKeyRef"
            | "secretKeyRef"
            | "roleRef"
            | "involvedObject"
            | "labelSelector"
            | "objectRef"
            | "targetRef"
            | "dataSource"
            | "dataSourceRef"
    )
}

/// Whether two items are about the same thing. Only the first of the fields that tell has to be there.
pub fn same(keys: &[&str], one: &Value, other: &Value) -> bool {
    keys.iter().enumerate().all(|(at, key)| match (one.get(*key), other.get(*key)) {
        (Some(one), Some(other)) => one == other,
        _ => at > 0,
    })
}

/// Writes the defaults of the fields by which items are told apart.
pub fn fill_keys(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                if let ("ports", Value::Array(ports)) = (field.as_str(), &mut *value) {
                    for port in ports.iter_mut().filter_map(Value::as_object_mut) {
                        port.entry("protocol").or_insert_with(|| json!("TCP"));
                    }
                }
                fill_keys(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(fill_keys),
        _ => {}
    }
}
