//! The rows of all kinds but pods.

use super::age;
use crate::object::{self, list, name, number, text};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// A text, or `<none>`.
pub fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

fn count(object: &Value, pointer: &str) -> i64 {
    number(object, pointer).unwrap_or(0)
}

fn size(object: &Value, field: &str) -> usize {
    object[field].as_object().map_or(0, Map::len)
}

fn joined<'a>(texts: impl Iterator<Item = &'a str>, separator: &str) -> String {
    texts.collect::<Vec<_>>().join(separator)
}

/// The names or the images of a template's containers.
fn containers(object: &Value, field: &str) -> String {
    joined(list(object, "/spec/template/spec/containers").iter().map(|container| text(container, field)), ",")
}

fn labels(labels: Option<&Value>) -> String {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let labels: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    or_none(&labels.join(",")).to_owned()
}

fn selector(object: &Value) -> String {
    labels(object.pointer("/spec/selector/matchLabels"))
}

fn ready(object: &Value) -> String {
    format!("{}/{}", count(object, "/status/readyReplicas"), count(object, "/spec/replicas"))
}

pub fn stateful_set(set: &Value, now: Timestamp) -> Value {
    json!([name(set), ready(set), age::of(set, now), containers(set, "/name"), containers(set, "/image")])
}

pub fn deployment(deployment: &Value, now: Timestamp) -> Value {
    json!([
        name(deployment),
        ready(deployment),
        count(deployment, "/status/updatedReplicas"),
        count(deployment, "/status/availableReplicas"),
        age::of(deployment, now),
        containers(deployment, "/name"),
        containers(deployment, "/image"),
        selector(deployment),
    ])
}

pub fn replica_set(set: &Value, now: Timestamp) -> Value {
    json!([
        name(set),
        count(set, "/spec/replicas"),
        count(set, "/status/replicas"),
        count(set, "/status/readyReplicas"),
        age::of(set, now),
        containers(set, "/name"),
        containers(set, "/image"),
        selector(set),
    ])
}

pub fn controller_revision(revision: &Value, now: Timestamp) -> Value {
    let owner = object::controller(revision).map_or_else(
        || "<none>".to_owned(),
        |owner| {
            let kind = text(owner, "/kind").to_lowercase();
            let group =
                text(owner, "/apiVersion").split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
            format!("{kind}{group}/{}", text(owner, "/name"))
        },
    );
    json!([name(revision), owner, count(revision, "/revision"), age::of(revision, now)])
}

pub fn claim(claim: &Value, now: Timestamp) -> Value {
    let phase = if object::is_deleting(claim) { "Terminating" } else { text(claim, "/status/phase") };
    let volume = text(claim, "/spec/volumeName");
    let short = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    let bound = !volume.is_empty();
    let modes = joined(list(claim, "/status/accessModes").iter().filter(|_| bound).map(short), ",");
    let capacity = if bound { text(claim, "/status/capacity/storage") } else { "" };
    json!([
        name(claim),
        phase,
        volume,
        capacity,
        modes,
        text(claim, "/spec/storageClassName"),
        "<unset>",
        age::of(claim, now),
        text(claim, "/spec/volumeMode"),
    ])
}

pub fn service(service: &Value, now: Timestamp) -> Value {
    let port = |port: &Value| format!("{}/{}", count(port, "/port"), text(port, "/protocol"));
    let ports: Vec<String> = list(service, "/spec/ports").iter().map(port).collect();
    json!([
        name(service),
        text(service, "/spec/type"),
        or_none(text(service, "/spec/clusterIP")),
        "<none>",
        or_none(&ports.join(",")),
        age::of(service, now),
        labels(service.pointer("/spec/selector")),
    ])
}

pub fn node(node: &Value, now: Timestamp) -> Value {
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    let ready = if list(node, "/status/conditions").iter().any(is_ready) { "Ready" } else { "NotReady" };
    let cordoned = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    let internal = list(node, "/status/addresses").iter().find(|address| address["type"] == "InternalIP");
    json!([
        name(node),
        format!("{ready}{cordoned}"),
        "<none>",
        age::of(node, now),
        text(node, "/status/nodeInfo/kubeletVersion"),
        or_none(internal.map_or("", |address| text(address, "/address"))),
        "<none>",
        text(node, "/status/nodeInfo/osImage"),
        text(node, "/status/nodeInfo/kernelVersion"),
        text(node, "/status/nodeInfo/containerRuntimeVersion"),
    ])
}

pub fn namespace(namespace: &Value, now: Timestamp) -> Value {
    json!([name(namespace), text(namespace, "/status/phase"), age::of(namespace, now)])
}

pub fn event(event: &Value, now: Timestamp) -> Value {
    let first = match text(event, "/firstTimestamp") {
        "" => text(event, "/eventTime"),
        first => first,
    };
    let last = age::later(first, text(event, "/lastTimestamp"));
    let about =
        format!("{}/{}", text(event, "/involvedObject/kind").to_lowercase(), text(event, "/involvedObject/name"));
    let source = match (text(event, "/source/component"), text(event, "/source/host")) {
        ("", _) => text(event, "/reportingComponent").to_owned(),
        (component, "") => component.to_owned(),
        (component, host) => format!("{component}, {host}"),
    };
    json!([
        age::since(last, now),
        text(event, "/type"),
        text(event, "/reason"),
        about,
        text(event, "/involvedObject/fieldPath"),
        source,
        text(event, "/message").trim(),
        age::since(first, now),
        number(event, "/count").unwrap_or(1),
        name(event),
    ])
}

pub fn lease(lease: &Value, now: Timestamp) -> Value {
    json!([name(lease), text(lease, "/spec/holderIdentity"), age::of(lease, now)])
}

pub fn endpoint_slice(slice: &Value, now: Timestamp) -> Value {
    let ports: Vec<String> = list(slice, "/ports").iter().map(|port| port["port"].to_string()).collect();
    let endpoints = list(slice, "/endpoints").iter().flat_map(|endpoint| list(endpoint, "/addresses"));
    let addresses: Vec<&str> = endpoints.filter_map(Value::as_str).collect();
    let joined = |words: String| if words.is_empty() { "<unset>".to_owned() } else { words };
    let (ports, addresses) = (joined(ports.join(",")), joined(addresses.join(",")));
    json!([name(slice), text(slice, "/addressType"), ports, addresses, age::of(slice, now)])
}

pub fn service_account(account: &Value, now: Timestamp) -> Value {
    json!([name(account), list(account, "/secrets").len(), age::of(account, now)])
}

pub fn config_map(map: &Value, now: Timestamp) -> Value {
    json!([name(map), size(map, "data") + size(map, "binaryData"), age::of(map, now)])
}

pub fn secret(secret: &Value, now: Timestamp) -> Value {
    json!([name(secret), text(secret, "/type"), size(secret, "data"), age::of(secret, now)])
}

pub fn role(role: &Value) -> Value {
    json!([name(role), text(role, "/metadata/creationTimestamp")])
}

pub fn role_binding(binding: &Value, now: Timestamp) -> Value {
    let role = format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
    let of = |kind: &'static str| list(binding, "/subjects").iter().filter(move |subject| subject["kind"] == kind);
    let accounts: Vec<String> = of("ServiceAccount")
        .map(|subject| format!("{}/{}", text(subject, "/namespace"), text(subject, "/name")))
        .collect();
    json!([
        name(binding),
        role,
        age::of(binding, now),
        joined(of("User").map(|subject| text(subject, "/name")), ", "),
        joined(of("Group").map(|subject| text(subject, "/name")), ", "),
        accounts.join(", "),
    ])
}
