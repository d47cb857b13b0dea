//! A kubelet without containers: pods start and end as soon as the caller says so.
//!
//! For tests and simulations in which only the objects matter. Each step is one pod's, so that a caller can take them in
//! any order, or leave a pod where it is.

use crate::controllers;
use crate::object::{self, entry, list, number, text, time};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part, Store};
use serde_json::{Value, json};

/// Makes a node that is ready.
///
/// # Panics
/// If there is a node of this name.
pub fn node(store: &mut Store, name: &str) {
    let key = Key::new(Kind::Node, "", name);
    let labels = json!({"kubernetes.io/hostname": name});
    store.create(Kind::Node, json!({"metadata": {"name": name, "labels": labels}})).expect("there is no such node yet");
    let at = time(store.now());
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": at});
    let status = store.edit(&key, Part::Status, |node| node["status"] = json!({"conditions": [ready]}));
    status.expect("the node was just made");
}

/// The pods for which there is something to do: to start, or to end.
pub fn due(store: &Store) -> Vec<Key> {
    let starts = |pod: &Value| matches!(text(pod, "/status/phase"), "" | "Pending");
    // One whose grace is over may still be there, for a finalizer: that is not the kubelet's to do.
    let ends = |pod: &Value| number(pod, "/metadata/deletionGracePeriodSeconds").is_some_and(|grace| grace > 0);
    let waits = |pod: &Value| if object::is_deleting(pod) { ends(pod) } else { starts(pod) };
    let has_node = |pod: &Value| !text(pod, "/spec/nodeName").is_empty();
    let pods = store.list(Kind::Pod, None).filter(|pod| has_node(pod) && waits(pod));
    pods.map(|pod| Key::of(Kind::Pod, pod)).collect()
}

/// Does what is to be done for a pod: starts it, or ends it. Then the controllers act.
///
/// # Panics
/// If the store refuses what a kubelet may do.
pub fn act(store: &mut Store, key: &Key) {
    let Some(pod) = store.find(key).cloned() else { return };
    if object::is_deleting(&pod) {
        let ended = DeleteOptions {
            grace_seconds: Some(0),
            uid: Some(object::uid(&pod).to_owned()),
            ..DeleteOptions::default()
        };
        store.delete(key, &ended).expect("a pod that is there can end");
    } else {
        run(store, key, &pod);
    }
    controllers::settle(store);
}

fn run(store: &mut Store, key: &Key, pod: &Value) {
    let at = time(store.now());
    let address = format!("10.0.{}.{}", store.ids().number() % 256, store.ids().number() % 254 + 1);
    let mut containers = Vec::new();
    for container in list(pod, "/spec/containers") {
        let id = format!("hollow://{:016x}{:016x}", store.ids().number(), store.ids().number());
        containers.push(json!({
            "name": container["name"], "image": container["image"], "imageID": container["image"], "containerID": id,
            "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": at}}, "lastState": {},
        }));
    }
    let mut conditions = list(pod, "/status/conditions").to_vec();
    for kind in ["Initialized", "ContainersReady", "Ready"] {
        conditions.push(json!({"type": kind, "status": "True", "lastTransitionTime": at}));
    }
    let started = store.edit(key, Part::Status, |pod| {
        let status = entry(pod, "status");
        status.insert("phase".to_owned(), json!("Running"));
        status.insert("startTime".to_owned(), json!(at));
        status.insert("podIP".to_owned(), json!(address));
        status.insert("podIPs".to_owned(), json!([{"ip": address}]));
        status.insert("conditions".to_owned(), json!(conditions));
        status.insert("containerStatuses".to_owned(), json!(containers));
    });
    started.expect("a pod that is there can run");
}

/// Starts and ends pods until there is none to start or to end.
///
/// # Panics
/// If the store refuses what a kubelet may do.
pub fn run_all(store: &mut Store) {
    controllers::settle(store);
    while let Some(key) = due(store).first() {
        act(store, key);
    }
}
