//! What people are shown.

use super::{Include, of};
use crate::resource::Kind;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

fn now() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().unwrap()
}

fn table(kind: Kind, object: Value) -> Value {
    of(kind, &[Arc::new(object)], &json!({"resourceVersion": "1"}), Include::Metadata, now())
}

/// Ready, status and restarts of a pod with one container that is initialized by another.
fn pod(status: Value, deletion: Option<&str>) -> [String; 3] {
    let mut pod = json!({
        "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{}], "initContainers": [{}]}, "status": status,
    });
    if let Some(at) = deletion {
        pod["metadata"]["deletionTimestamp"] = json!(at);
    }
    let table = table(Kind::Pod, pod);
    [1, 2, 3].map(|at| table["rows"][0]["cells"][at].as_str().unwrap().to_owned())
}

fn running(ready: bool) -> Value {
    json!({"ready": ready, "restartCount": 0, "state": {"running": {}}})
}

fn ended(code: i64, reason: &str) -> Value {
    json!({"ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code, "reason": reason}}})
}

fn waiting(reason: &str) -> Value {
    json!({"ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason}}})
}

#[test]
fn a_pod_is_told_in_one_word() {
    let phase = |phase: &str, init: Value, main: Value| {
        let status = json!({"phase": phase, "initContainerStatuses": [init], "containerStatuses": [main]});
        pod(status, None)
    };
    let done = ended(0, "Completed");
    assert_eq!(pod(json!({"phase": "Pending"}), None), ["0/1", "Pending", "0"]);
    assert_eq!(phase("Pending", waiting("PodInitializing"), waiting("PodInitializing")), ["0/1", "Init:0/1", "0"]);
    assert_eq!(phase("Pending", running(false), waiting("PodInitializing")), ["0/1", "Init:0/1", "0"]);
    assert_eq!(phase("Pending", ended(1, "Error"), waiting("PodInitializing")), ["0/1", "Init:Error", "0"]);
    assert_eq!(phase("Pending", waiting("CrashLoopBackOff"), waiting("")), ["0/1", "Init:CrashLoopBackOff", "0"]);
    assert_eq!(phase("Pending", done.clone(), waiting("ContainerCreating")), ["0/1", "ContainerCreating", "0"]);
    assert_eq!(phase("Running", done.clone(), running(true)), ["1/1", "Running", "0"]);
    assert_eq!(phase("Running", done.clone(), running(false)), ["0/1", "Running", "0"]);
    assert_eq!(phase("Running", done.clone(), waiting("CrashLoopBackOff")), ["0/1", "CrashLoopBackOff", "0"]);
    assert_eq!(phase("Failed", done.clone(), ended(3, "Error")), ["0/1", "Error", "0"]);
    assert_eq!(phase("Failed", done.clone(), ended(3, "")), ["0/1", "ExitCode:3", "0"]);
    assert_eq!(phase("Succeeded", done.clone(), done), ["0/1", "Completed", "0"]);
}

#[test]
fn a_pod_that_is_to_go_is_terminating_until_it_has_ended() {
    let status = |phase: &str| json!({"phase": phase, "containerStatuses": [running(true)]});
    assert_eq!(pod(status("Running"), Some("2026-01-01T00:00:30Z"))[1], "Terminating");
    assert_eq!(pod(status("Failed"), Some("2026-01-01T00:00:30Z"))[1], "Failed");
}

#[test]
fn restarts_are_counted_with_the_time_of_the_last() {
    let mut container = running(true);
    container["restartCount"] = json!(2);
    container["lastState"] = json!({"terminated": {"finishedAt": "2026-01-01T00:00:55Z"}});
    let status = json!({"phase": "Running", "containerStatuses": [container]});
    assert_eq!(pod(status, None), ["1/1", "Running", "2 (5s ago)"]);
}

#[test]
fn every_row_has_a_cell_for_every_column() {
    for resource in &crate::resource::RESOURCES {
        let table = table(resource.kind, json!({"metadata": {"name": "x"}}));
        let cells = table["rows"][0]["cells"].as_array().unwrap().len();
        assert_eq!(cells, table["columnDefinitions"].as_array().unwrap().len(), "{}", resource.name);
    }
}

#[test]
fn an_event_shows_when_it_was_first_and_last() {
    let event = json!({
        "metadata": {"name": "p.1"}, "type": "Warning", "reason": "BackOff", "message": "again\n", "count": 3,
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"},
        "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:50Z",
    });
    let cells = &table(Kind::Event, event)["rows"][0]["cells"];
    let expected =
        json!(["10s", "Warning", "BackOff", "pod/p", "spec.containers{c}", "kubelet, n", "again", "60s", 3, "p.1"]);
    assert_eq!(*cells, expected);
}

#[test]
fn a_claim_shows_its_size_once_it_is_bound() {
    let claim = |volume: &str| {
        json!({
            "metadata": {"name": "c"},
            "spec": {"volumeName": volume, "storageClassName": "standard", "volumeMode": "Filesystem"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
        })
    };
    let cells = |volume: &str| table(Kind::PersistentVolumeClaim, claim(volume))["rows"][0]["cells"].clone();
    assert_eq!(cells("v"), json!(["c", "Bound", "v", "1Gi", "RWO", "standard", "<unset>", "<unknown>", "Filesystem"]));
    assert_eq!(cells("")[3], "");
}
