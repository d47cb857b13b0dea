//! What is left out of pods and of the templates of pods.

use super::{below, items, otherwise};
use crate::object::{entry, list};
use serde_json::{Map, Value, json};

/// Fills in a pod: what a template has too, and what only a pod has.
pub fn fill(pod: &mut Value) {
    let spec = entry(pod, "spec");
    fill_spec(spec);
    let account = spec.get("serviceAccountName").or(spec.get("serviceAccount")).cloned();
    let account = account.unwrap_or_else(|| json!("default"));
    otherwise(spec, "serviceAccountName", account.clone());
    otherwise(spec, "serviceAccount", account);
    otherwise(spec, "enableServiceLinks", json!(true));
    otherwise(spec, "priority", json!(0));
    otherwise(spec, "preemptionPolicy", json!("PreemptLowerPriority"));
    let tolerated = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    otherwise(spec, "tolerations", json!([tolerated("not-ready"), tolerated("unreachable")]));
    for containers in ["containers", "initContainers"] {
        for container in items(spec, containers) {
            requests(container);
        }
    }
    let class = quality(pod);
    let status = entry(pod, "status");
    otherwise(status, "phase", json!("Pending"));
    otherwise(status, "qosClass", json!(class));
}

/// Fills in what both pods and their templates specify.
pub fn fill_spec(spec: &mut Map<String, Value>) {
    otherwise(spec, "restartPolicy", json!("Always"));
    otherwise(spec, "terminationGracePeriodSeconds", json!(30));
    otherwise(spec, "dnsPolicy", json!("ClusterFirst"));
    otherwise(spec, "securityContext", json!({}));
    otherwise(spec, "schedulerName", json!("default-scheduler"));
    for containers in ["containers", "initContainers"] {
        for fields in items(spec, containers) {
            container(fields);
        }
    }
    for fields in items(spec, "volumes") {
        volume(fields);
    }
}

fn container(container: &mut Map<String, Value>) {
    otherwise(container, "terminationMessagePath", json!("/dev/termination-log"));
    otherwise(container, "terminationMessagePolicy", json!("File"));
    otherwise(container, "resources", json!({}));
    let policy = pull_policy(container.get("image").and_then(Value::as_str).unwrap_or_default());
    otherwise(container, "imagePullPolicy", json!(policy));
    for port in items(container, "ports") {
        otherwise(port, "protocol", json!("TCP"));
    }
    for variable in items(container, "env") {
        if let Some(Value::Object(from)) = variable.get_mut("valueFrom") {
            field(from);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(probe) {
            for (field, value) in [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1)] {
                otherwise(probe, field, json!(value));
            }
            otherwise(probe, "failureThreshold", json!(3));
            http(probe);
        }
    }
    if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
        lifecycle.values_mut().filter_map(Value::as_object_mut).for_each(http);
    }
}

/// An image without a tag may be another one each time.
fn pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map_or("latest", |(_, tag)| tag);
    if tag == "latest" && !last.contains('@') { "Always" } else { "IfNotPresent" }
}

fn http(handler: &mut Map<String, Value>) {
    if let Some(Value::Object(get)) = handler.get_mut("httpGet") {
        otherwise(get, "path", json!("/"));
        otherwise(get, "scheme", json!("HTTP"));
    }
}

fn field(from: &mut Map<String, Value>) {
    if let Some(Value::Object(reference)) = from.get_mut("fieldRef") {
        otherwise(reference, "apiVersion", json!("v1"));
    }
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.len() == 1 && volume.contains_key("name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for kind in ["configMap", "secret", "downwardAPI", "projected"] {
        let Some(Value::Object(source)) = volume.get_mut(kind) else { continue };
        otherwise(source, "defaultMode", json!(0o644));
        items(source, "items").for_each(field);
        for source in items(source, "sources") {
            if let Some(Value::Object(token)) = source.get_mut("serviceAccountToken") {
                otherwise(token, "expirationSeconds", json!(3600));
            }
            if let Some(Value::Object(downward)) = source.get_mut("downwardAPI") {
                items(downward, "items").for_each(field);
            }
        }
    }
}

/// A container with a limit and no request for a resource requests as much as its limit.
fn requests(container: &mut Map<String, Value>) {
    let Some(resources) = below(container, "resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    let Some(requests) = below(resources, "requests") else { return };
    for (resource, limit) in limits {
        otherwise(requests, &resource, limit);
    }
}

fn quality(pod: &Value) -> &'static str {
    let containers = || list(pod, "/spec/containers").iter().chain(list(pod, "/spec/initContainers"));
    let amount = |container: &Value, kind: &str, resource: &str| {
        container.pointer(&format!("/resources/{kind}/{resource}")).cloned().unwrap_or_default()
    };
    let resources = ["cpu", "memory"];
    let none = |container: &Value| {
        resources.iter().all(|of| ["limits", "requests"].iter().all(|kind| amount(container, kind, of).is_null()))
    };
    let equal = |container: &Value| {
        let limit = |of: &&str| amount(container, "limits", of);
        resources.iter().all(|of| !limit(of).is_null() && limit(of) == amount(container, "requests", of))
    };
    match () {
        () if containers().all(none) => "BestEffort",
        () if containers().all(equal) => "Guaranteed",
        () => "Burstable",
    }
}
