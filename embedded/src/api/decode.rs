//! Reads bodies: which object it is, whether its fields have the right types, and which fields are unknown.
//!
//! An object is read into its type and written again: what is lost thereby is unknown. Kubernetes drops such fields, so
//! they are dropped here, and the caller is told or refused, as it wishes. The types are those of the newest Kubernetes
//! that `k8s-openapi` knows: a field that is younger than the imitated one is let through.

use super::options::Validation;
use crate::failure::Failure;
use crate::object::text;
use crate::resource::Kind;
use k8s_openapi::api::{apps, coordination, core, discovery, rbac};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads JSON.
pub fn json(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::bad_request(not_json(&error)))
}

/// Why something is not JSON; in the words of Kubernetes if it is only a part.
pub fn not_json(error: &serde_json::Error) -> String {
    if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() }
}

/// Reads an object of a kind, and says which of its fields are unknown.
pub fn object(kind: Kind, body: &[u8], validation: Validation) -> Result<(Value, Vec<String>), Failure> {
    let name = kind.resource().name;
    let mut object: Value = serde_json::from_slice(body).map_err(|error| {
        let begin: String = String::from_utf8_lossy(body).chars().take(32).collect();
        let begin = if begin.is_empty() { "<empty>".to_owned() } else { begin };
        let why = format!("couldn't get version/kind; json parse error: {} ({begin})", not_json(&error));
        Failure::bad_request(format!("the object provided is unrecognized (must be of type {name}): {why}"))
    })?;
    belongs(kind, &object)?;
    let unknown = read(kind, &mut object).map_err(|why| cannot(kind, name, &why))?;
    if validation == Validation::Strict && !unknown.is_empty() {
        return Err(cannot(kind, name, &strict(&unknown)));
    }
    Ok((object, warnings(&unknown, validation)))
}

/// What the caller is told of unknown fields.
pub fn warnings(unknown: &[String], validation: Validation) -> Vec<String> {
    let told = unknown.iter().filter(|_| validation == Validation::Warn);
    told.map(|path| format!("unknown field {path:?}")).collect()
}

/// `strict decoding error: …`
pub fn strict(unknown: &[String]) -> String {
    format!("strict decoding error: {}", warnings(unknown, Validation::Warn).join(", "))
}

fn cannot(kind: Kind, given: &str, why: &str) -> Failure {
    let name = kind.resource().name;
    Failure::bad_request(format!("{given} in version \"v1\" cannot be handled as a {name}: {why}"))
}

/// Checks that it is an object of the kind, as far as it says.
fn belongs(kind: Kind, object: &Value) -> Result<(), Failure> {
    let resource = kind.resource();
    let (name, api_version) = (text(object, "/kind"), text(object, "/apiVersion"));
    let expected = resource.api_version();
    if (name.is_empty() || name == resource.name) && (api_version.is_empty() || api_version == expected) {
        return Ok(());
    }
    let of = if api_version.is_empty() { &expected } else { api_version };
    let why = match Kind::of(of, name) {
        Some(_) => {
            let group = resource.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
            format!("converting (v1.{name}) to ({group}.{}): unknown conversion", resource.name)
        }
        None => format!("no kind {name:?} is registered for version {of:?} in scheme \"pkg/runtime/scheme.go:110\""),
    };
    Err(cannot(kind, name, &why))
}

/// Checks an object's types and drops unknown fields; says where they were.
pub fn read(kind: Kind, object: &mut Value) -> Result<Vec<String>, String> {
    if !object.is_object() {
        return Err("json: cannot unmarshal into an object".to_owned());
    }
    without_nothing(object);
    let resource = kind.resource();
    object["kind"] = resource.name.into();
    object["apiVersion"] = resource.api_version().into();
    let known = match kind {
        Kind::Namespace => again::<core::v1::Namespace>(object),
        Kind::Node => again::<core::v1::Node>(object),
        Kind::Event => again::<core::v1::Event>(object),
        Kind::ConfigMap => again::<core::v1::ConfigMap>(object),
        Kind::Secret => again::<core::v1::Secret>(object),
        Kind::Service => again::<core::v1::Service>(object),
        Kind::ServiceAccount => again::<core::v1::ServiceAccount>(object),
        Kind::PersistentVolumeClaim => again::<core::v1::PersistentVolumeClaim>(object),
        Kind::Pod => again::<core::v1::Pod>(object),
        Kind::ControllerRevision => again::<apps::v1::ControllerRevision>(object),
        Kind::Deployment => again::<apps::v1::Deployment>(object),
        Kind::ReplicaSet => again::<apps::v1::ReplicaSet>(object),
        Kind::StatefulSet => again::<apps::v1::StatefulSet>(object),
        Kind::Lease => again::<coordination::v1::Lease>(object),
        Kind::EndpointSlice => again::<discovery::v1::EndpointSlice>(object),
        Kind::Role => again::<rbac::v1::Role>(object),
        Kind::RoleBinding => again::<rbac::v1::RoleBinding>(object),
        Kind::SelfSubjectAccessReview => Ok(object.clone()),
    }?;
    let mut unknown = Vec::new();
    drop_unknown(object, &known, "", &mut unknown);
    Ok(unknown)
}

fn again<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let read = T::deserialize(object).map_err(|error| format!("json: cannot unmarshal: {error}"))?;
    serde_json::to_value(read).map_err(|error| error.to_string())
}

/// Maps of texts that are not written when they are empty.
const MAPS: [&str; 6] = ["labels", "annotations", "data", "binaryData", "matchLabels", "nodeSelector"];

/// To Kubernetes, null and absent are the same, and so are most lists and maps that are empty. A quantity may be written
/// as a number.
fn without_nothing(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, field| match field {
                Value::Null => false,
                Value::Array(items) => !items.is_empty() || matches!(key.as_str(), "rules" | "finalizers"),
                Value::Object(map) => !map.is_empty() || !MAPS.contains(&key.as_str()),
                _ => true,
            });
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata
                    .retain(|key, field| key != "finalizers" || field.as_array().is_some_and(|all| !all.is_empty()));
            }
            for (key, field) in fields {
                if matches!(key.as_str(), "limits" | "requests" | "capacity" | "allocatable") {
                    for quantity in field.as_object_mut().into_iter().flatten().map(|(_, quantity)| quantity) {
                        if quantity.is_number() {
                            *quantity = Value::String(quantity.to_string());
                        }
                    }
                }
                without_nothing(field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_nothing),
        _ => {}
    }
}

fn drop_unknown(value: &mut Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (value, known) {
        (Value::Object(fields), Value::Object(known)) => {
            fields.retain(|key, field| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match known.get(key) {
                    Some(known) => drop_unknown(field, known, &path, unknown),
                    None => unknown.push(path),
                }
                known.contains_key(key)
            });
        }
        (Value::Array(items), Value::Array(known)) => {
            for (at, (item, known)) in items.iter_mut().zip(known).enumerate() {
                drop_unknown(item, known, &format!("{path}[{at}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Validation, object};
    use crate::resource::Kind;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_dropped_and_told() {
        let body = json!({"metadata": {"name": "p"}, "spec": {
            "replicass": 1, "template": {"spec": {"containers": [{"name": "c", "imag": "x"}], "volumes": [{"name": "v", "emptyDir": {}}]}},
        }});
        let body = body.to_string();
        let told = ["unknown field \"spec.replicass\"", "unknown field \"spec.template.spec.containers[0].imag\""];
        let (read, unknown) = object(Kind::StatefulSet, body.as_bytes(), Validation::Warn).unwrap();
        assert_eq!(unknown, told);
        let spec = &read["spec"]["template"]["spec"];
        assert_eq!(*spec, json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]}));
        let refused = object(Kind::StatefulSet, body.as_bytes(), Validation::Strict).unwrap_err().message;
        let why = format!("strict decoding error: {}", told.join(", "));
        assert_eq!(refused, format!("StatefulSet in version \"v1\" cannot be handled as a StatefulSet: {why}"));
    }

    #[test]
    fn a_field_of_another_type_is_refused() {
        let body = json!({"spec": {"replicas": "x"}}).to_string();
        let refused = object(Kind::Deployment, body.as_bytes(), Validation::Ignore).unwrap_err();
        assert_eq!(refused.code, 400);
        assert!(refused.message.ends_with("invalid type: string \"x\", expected i32"), "{}", refused.message);
    }

    #[test]
    fn another_kind_is_refused() {
        let body = json!({"apiVersion": "v1", "kind": "Secret"}).to_string();
        let refused = object(Kind::ConfigMap, body.as_bytes(), Validation::Ignore).unwrap_err().message;
        let why = "converting (v1.Secret) to (core.ConfigMap): unknown conversion";
        assert_eq!(refused, format!("Secret in version \"v1\" cannot be handled as a ConfigMap: {why}"));
    }

    #[test]
    fn quantities_may_be_numbers() {
        let body = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 1}}}]}}).to_string();
        let (read, unknown) = object(Kind::Pod, body.as_bytes(), Validation::Strict).unwrap();
        assert_eq!(read["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
        assert_eq!(unknown, [""; 0]);
    }
}
