//! The environment of a container, and what a pod may know of itself (the downward API).
//!
//! Variables for services are not made, whatever `enableServiceLinks` says, nor `KUBERNETES_SERVICE_HOST`: a program
//! that follows it would look for its token at a path that is not its own here. `KUBECONFIG` leads to the API instead.

use crate::object::{label, list, name, namespace, text};
use crate::resource::Kind;
use crate::store::{Key, Store};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a pod is told that does not stand in its object.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Its address.
    pub address: String,
    /// The machine's.
    pub host: String,
}

/// Adds the variables that a container's spec asks for to those it has from its image.
pub(super) fn add(
    variables: &mut BTreeMap<String, String>,
    store: &Store,
    pod: &Value,
    place: &Place,
    container: &Value,
) -> Result<(), String> {
    for source in list(container, "/envFrom") {
        let prefix = text(source, "/prefix");
        let (kind, of) = if source.get("configMapRef").is_some() {
            (Kind::ConfigMap, "/configMapRef")
        } else {
            (Kind::Secret, "/secretRef")
        };
        let reference = source.pointer(of).unwrap_or(&Value::Null);
        for (key, value) in data(store, kind, namespace(pod), reference)?.unwrap_or_default() {
            variables.insert(format!("{prefix}{key}"), into_text(value)?);
        }
    }
    for variable in list(container, "/env") {
        let value = match variable.get("valueFrom").filter(|from| from.is_object()) {
            None => Some(expand(text(variable, "/value"), variables)),
            Some(from) => value_from(store, pod, place, container, from)?,
        };
        if let Some(value) = value {
            variables.insert(text(variable, "/name").to_owned(), value);
        }
    }
    Ok(())
}

fn value_from(
    store: &Store,
    pod: &Value,
    place: &Place,
    container: &Value,
    from: &Value,
) -> Result<Option<String>, String> {
    if let Some(reference) = from.get("fieldRef") {
        return field(pod, place, text(reference, "/fieldPath")).map(Some);
    }
    if let Some(reference) = from.get("resourceFieldRef") {
        return resource(pod, container, reference).map(Some);
    }
    let (kind, reference) = match (from.get("configMapKeyRef"), from.get("secretKeyRef")) {
        (Some(reference), _) => (Kind::ConfigMap, reference),
        (None, Some(reference)) => (Kind::Secret, reference),
        (None, None) => return Err(format!("no source of a value is known in {from}")),
    };
    let key = text(reference, "/key");
    let found = data(store, kind, namespace(pod), reference)?.and_then(|mut data| data.remove(key));
    match found {
        Some(value) => into_text(value).map(Some),
        None if reference["optional"] == true => Ok(None),
        None => Err(format!("couldn't find key {key} in {kind} {}/{}", namespace(pod), name_of(reference))),
    }
}

fn name_of(reference: &Value) -> &str {
    let name = text(reference, "/name");
    if name.is_empty() { text(reference, "/secretName") } else { name }
}

fn into_text(value: Vec<u8>) -> Result<String, String> {
    String::from_utf8(value).map_err(|_| "the value is no text".to_owned())
}

/// What a ConfigMap or Secret holds; `None` if it is not there and need not be.
pub(super) fn data(
    store: &Store,
    kind: Kind,
    namespace: &str,
    reference: &Value,
) -> Result<Option<BTreeMap<String, Vec<u8>>>, String> {
    let named = name_of(reference);
    let Some(object) = store.find(&Key::new(kind, namespace, named)) else {
        if reference["optional"] == true {
            return Ok(None);
        }
        return Err(format!("{} {named:?} not found", kind.resource().singular()));
    };
    let mut data = BTreeMap::new();
    for (field, encoded) in [("data", kind == Kind::Secret), ("binaryData", true)] {
        for (key, value) in object.get(field).and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let value = if encoded { decode(value) } else { Some(value.as_bytes().to_vec()) };
            let value =
                value.ok_or_else(|| format!("key {key} of {} {named:?} is no base64", kind.resource().singular()))?;
            data.insert(key.clone(), value);
        }
    }
    Ok(Some(data))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    let text: String = text.split_whitespace().collect();
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// A field of a pod, by the path that the downward API has for it.
pub(super) fn field(pod: &Value, place: &Place, path: &str) -> Result<String, String> {
    let of_metadata = |field: &str| text(pod, &format!("/metadata/{field}")).to_owned();
    let all = |field: &str| {
        let pairs = pod.pointer(&format!("/metadata/{field}")).and_then(Value::as_object);
        let lines = pairs.into_iter().flatten().map(|(key, value)| format!("{key}={value}"));
        lines.collect::<Vec<String>>().join("\n")
    };
    let account = match text(pod, "/spec/serviceAccountName") {
        "" => "default",
        account => account,
    };
    Ok(match path {
        "metadata.name" => name(pod).to_owned(),
        "metadata.namespace" => namespace(pod).to_owned(),
        "metadata.uid" => of_metadata("uid"),
        "metadata.labels" => all("labels"),
        "metadata.annotations" => all("annotations"),
        "spec.nodeName" => text(pod, "/spec/nodeName").to_owned(),
        "spec.serviceAccountName" => account.to_owned(),
        "status.podIP" | "status.podIPs" => place.address.clone(),
        "status.hostIP" | "status.hostIPs" => place.host.clone(),
        _ => {
            let key = |of: &str| path.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']");
            let annotation = |key: &str| pod.pointer("/metadata/annotations").and_then(|all| all.get(key)?.as_str());
            match (key("metadata.labels"), key("metadata.annotations")) {
                (Some(key), _) => label(pod, key).unwrap_or_default().to_owned(),
                (None, Some(key)) => annotation(key).unwrap_or_default().to_owned(),
                (None, None) => return Err(format!("unsupported fieldPath: {path}")),
            }
        }
    })
}

/// A limit or request of a container, in units of the divisor, rounded up. One without a limit has the machine's,
/// which nothing here keeps it to: 0 stands for that.
pub(super) fn resource(pod: &Value, container: &Value, reference: &Value) -> Result<String, String> {
    let wanted = text(reference, "/containerName");
    let container = list(pod, "/spec/containers").iter().find(|one| name_of(one) == wanted).unwrap_or(container);
    let path = text(reference, "/resource");
    let value = container.pointer(&format!("/resources/{}", path.replacen('.', "/", 1)));
    let value = value.map_or(Some(0.0), quantity).ok_or_else(|| format!("{path} is no quantity"))?;
    let divisor = reference.get("divisor").and_then(quantity).filter(|divisor| *divisor > 0.0).unwrap_or(1.0);
    Ok(format!("{:.0}", (value / divisor).ceil()))
}

/// The number that a quantity stands for.
fn quantity(value: &Value) -> Option<f64> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let units =
        [("Ki", 1024.0), ("Mi", 1_048_576.0), ("Gi", 1_073_741_824.0), ("m", 1e-3), ("k", 1e3), ("M", 1e6), ("G", 1e9)];
    let unit = units.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, factor) = unit.copied().unwrap_or(("", 1.0));
    text.strip_suffix(unit)?.parse::<f64>().ok().map(|number| number * factor)
}

/// Puts in the variables that a text names as `$(NAME)`. One that is not known stays as it is; `$$` is a `$`.
pub(super) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let named = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((value, after)) = named.and_then(|(name, after)| Some((variables.get(name)?, after))) {
            expanded.push_str(value);
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
#[path = "tests/environment.rs"]
mod tests;
