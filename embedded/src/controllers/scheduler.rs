//! The scheduler: gives a pod its node, or says why there is none for it.
//!
//! There is one node as a rule. What is for choosing among many (affinity, tolerations, spreading, resources) means
//! nothing here; a `nodeSelector` does, since it says where a pod must not run.

use super::{Due, pods};
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{self, name, namespace, text, time};
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// Its name in Events.
pub const COMPONENT: &str = "default-scheduler";

/// Looks after a pod until it has a node.
pub fn act(store: &mut Store, pod: &Value, _: &mut Due) -> Result<(), Failure> {
    if !text(pod, "/spec/nodeName").is_empty() || object::is_deleting(pod) || pods::has_ended(pod) {
        return Ok(());
    }
    match node_for(store, pod) {
        Ok(node) => bind(store, pod, &node),
        Err(why) => refuse(store, pod, &why),
    }
}

/// The node for a pod, or in the words of Kubernetes why there is none.
fn node_for(store: &Store, pod: &Value) -> Result<String, String> {
    let nodes: Vec<&Arc<Value>> = store.list(Kind::Node, None).collect();
    let count = nodes.len();
    if count == 0 {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let no_help = format!("{count} Preemption is not helpful for scheduling");
    let refusal = |why: &str, help: &str| {
        Err(format!("0/{count} nodes are available: {why}. preemption: 0/{count} nodes are available: {help}."))
    };
    if let Some(why) = pods::claims(pod).find_map(|claim| unusable(store, pod, claim)) {
        return refusal(&why, &no_help);
    }
    if pods::claims(pod).any(|claim| is_taken(store, pod, claim)) {
        let why = format!(
            "{count} node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
        );
        return refusal(&why, &format!("{count} No preemption victims found for incoming pod"));
    }
    let selected = |node: &&&Arc<Value>| {
        let mut wanted = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
        wanted.all(|(key, value)| object::label(node, key) == value.as_str())
    };
    if !nodes.iter().any(|node| selected(&node)) {
        return refusal(&format!("{count} node(s) didn't match Pod's node affinity/selector"), &no_help);
    }
    let ready = |node: &&&Arc<Value>| pods::condition(node, "Ready").is_some_and(|ready| ready["status"] == "True");
    let free = |node: &&&Arc<Value>| node["spec"]["unschedulable"] != true;
    let fit = nodes.iter().filter(selected);
    // The one with the fewest pods: with several nodes, they take turns.
    let load = |node: &&&Arc<Value>| {
        store.list(Kind::Pod, None).filter(|other| text(other, "/spec/nodeName") == name(node)).count()
    };
    match fit.clone().filter(|node| ready(node) && free(node)).min_by_key(load) {
        Some(node) => Ok(name(node).to_owned()),
        None if fit.clone().any(|node| ready(&node)) => {
            refusal(&format!("{count} node(s) were unschedulable"), &no_help)
        }
        None => refusal(&format!("{count} node(s) had untolerated taint {{node.kubernetes.io/not-ready: }}"), &no_help),
    }
}

/// Why a claim cannot be used.
fn unusable(store: &Store, pod: &Value, claim: &str) -> Option<String> {
    match store.find(&Key::new(Kind::PersistentVolumeClaim, namespace(pod), claim)) {
        None => Some(format!("persistentvolumeclaim {claim:?} not found")),
        Some(found) if object::is_deleting(found) => Some(format!("persistentvolumeclaim {claim:?} is being deleted")),
        Some(found) if text(found, "/status/phase") != "Bound" => {
            Some("pod has unbound immediate PersistentVolumeClaims".to_owned())
        }
        Some(_) => None,
    }
}

/// Whether a claim is for one pod only, and another has it.
fn is_taken(store: &Store, pod: &Value, claim: &str) -> bool {
    let found = store.find(&Key::new(Kind::PersistentVolumeClaim, namespace(pod), claim));
    let single = found
        .is_some_and(|claim| object::list(claim, "/spec/accessModes").iter().any(|mode| mode == "ReadWriteOncePod"));
    let has_it = |other: &Value| {
        let runs = !text(other, "/spec/nodeName").is_empty() && !pods::has_ended(other);
        runs && object::uid(other) != object::uid(pod) && pods::claims(other).any(|used| used == claim)
    };
    single && store.list(Kind::Pod, Some(namespace(pod))).any(|other| has_it(other))
}

fn bind(store: &mut Store, pod: &Value, node: &str) -> Result<(), Failure> {
    let key = Key::of(Kind::Pod, pod);
    store.edit(&key, Part::Main, |pod| pod["spec"]["nodeName"] = json!(node))?;
    let at = time(store.now());
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": at,
    });
    store.edit(&key, Part::Status, |pod| set(pod, scheduled))?;
    let message = format!("Successfully assigned {}/{} to {node}", namespace(pod), name(pod));
    events::record(store, pod, Type::Normal, "Scheduled", &message, COMPONENT);
    Ok(())
}

fn refuse(store: &mut Store, pod: &Value, why: &str) -> Result<(), Failure> {
    if pods::condition(pod, "PodScheduled").is_some_and(|known| known["message"] == why) {
        return Ok(());
    }
    let at = time(store.now());
    let refused = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
        "lastProbeTime": null, "lastTransitionTime": at,
    });
    store.edit(&Key::of(Kind::Pod, pod), Part::Status, |pod| {
        object::entry(pod, "status").entry("phase").or_insert_with(|| json!("Pending"));
        set(pod, refused);
    })?;
    events::record(store, pod, Type::Warning, "FailedScheduling", why, COMPONENT);
    Ok(())
}

/// Puts a condition in the place of the one of its type.
fn set(pod: &mut Value, condition: Value) {
    let mut conditions = object::list(pod, "/status/conditions").to_vec();
    conditions.retain(|known| known["type"] != condition["type"]);
    conditions.push(condition);
    object::entry(pod, "status").insert("conditions".to_owned(), Value::Array(conditions));
}
