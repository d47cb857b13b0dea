//! The names of pods and services, as a hosts(5) file for each namespace: what DNS is on a cluster.
//!
//! There is no proxying: the name of a Service stands for the addresses of its pods, whether it has an address of its
//! own or not. So its ports have to be those of the pods.

use crate::object::{self, is_deleting, list, name, namespace, number, text};
use crate::resource::Kind;
use crate::store::Store;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// What is known by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Of each namespace, the text of its file.
    pub files: BTreeMap<String, String>,
    /// The services that cannot be served, and why.
    pub refused: Vec<(Arc<Value>, String)>,
}

/// Gathers all names.
pub(super) fn names(store: &Store) -> Names {
    let mut names = Names::default();
    // Namespace, name within it, address.
    let mut lines: Vec<(&str, String, &str)> = Vec::new();
    for service in store.list(Kind::Service, None) {
        let pods: Vec<&Arc<Value>> =
            store.list(Kind::Pod, Some(namespace(service))).filter(|pod| serves(service, pod)).collect();
        if let Some(why) = pods.iter().find_map(|pod| other_port(service, pod)) {
            names.refused.push((service.clone(), why));
            continue;
        }
        for pod in pods {
            let address = text(pod, "/status/podIP");
            lines.push((namespace(service), name(service).to_owned(), address));
            if text(pod, "/spec/subdomain") == name(service) && !text(pod, "/spec/hostname").is_empty() {
                let named = format!("{}.{}", text(pod, "/spec/hostname"), name(service));
                lines.push((namespace(service), named, address));
            }
        }
    }
    for here in store.list(Kind::Namespace, None) {
        let mut file = String::from("127.0.0.1 localhost\n");
        for (of, named, address) in &lines {
            let short = if *of == name(here) { format!("{named} ") } else { String::new() };
            writeln!(file, "{address} {short}{named}.{of} {named}.{of}.svc {named}.{of}.svc.cluster.local")
                .expect("writing to a text does not fail");
        }
        names.files.insert(name(here).to_owned(), file);
    }
    names
}

/// Whether a service leads to a pod now.
fn serves(service: &Value, pod: &Value) -> bool {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    let selected = selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| object::label(pod, key) == value.as_str())
    });
    let early = service.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
    let ready = || list(pod, "/status/conditions").iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
    let ended = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    selected && !ended && !text(pod, "/status/podIP").is_empty() && (early || (ready() && !is_deleting(pod)))
}

/// What is wrong with a port that is not the same at the pod.
fn other_port(service: &Value, pod: &Value) -> Option<String> {
    let containers = list(pod, "/spec/containers");
    list(service, "/spec/ports").iter().find_map(|port| {
        let own = number(port, "/port")?;
        let target = match &port["targetPort"] {
            Value::String(wanted) => {
                let mut ports = containers.iter().flat_map(|container| list(container, "/ports"));
                ports.find(|port| port["name"] == wanted.as_str()).and_then(|port| number(port, "/containerPort"))
            }
            Value::Number(target) => target.as_i64(),
            _ => Some(own),
        };
        let at = target.map_or_else(|| port["targetPort"].to_string(), |target| target.to_string());
        (target != Some(own)).then(|| {
            format!("port {own} leads to port {at} of pod {}: there is no proxy here, both have to be equal", name(pod))
        })
    })
}

#[cfg(test)]
#[path = "tests/hosts.rs"]
mod tests;
