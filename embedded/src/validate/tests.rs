//! What is refused, and in which words.

use super::{created, updated};
use crate::defaults;
use crate::resource::Kind;
use crate::store::Part;
use serde_json::{Value, json};

fn filled(kind: Kind, mut object: Value) -> Value {
    object["metadata"] = json!({"name": "x", "namespace": "n"});
    defaults::fill(kind, &mut object);
    object
}

/// The causes, each as `field: why`.
fn refused(kind: Kind, object: Value) -> Vec<String> {
    causes(created(kind, &filled(kind, object)))
}

fn causes(outcome: Result<(), crate::failure::Failure>) -> Vec<String> {
    let Err(failure) = outcome else { return Vec::new() };
    let causes = failure.details["causes"].as_array().cloned().unwrap_or_default();
    let cause = |cause: &Value| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap());
    causes.iter().map(cause).collect()
}

fn pod(spec: Value) -> Vec<String> {
    refused(Kind::Pod, json!({"spec": spec}))
}

fn template(label: &str) -> Value {
    json!({"metadata": {"labels": {"a": label}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn set() -> Value {
    filled(
        Kind::StatefulSet,
        json!({"spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template("b")}}),
    )
}

/// What is refused of an object that becomes another.
fn refused_change(kind: Kind, before: &Value, pointer: &str, value: Value) -> Vec<String> {
    let mut object = before.clone();
    *object.pointer_mut(pointer).unwrap() = value;
    causes(updated(kind, Part::Main, before, &object))
}

#[test]
fn a_pod_has_to_be_whole() {
    assert_eq!(pod(json!({})), ["spec.containers: Required value"]);
    let required = ["spec.containers[0].name: Required value", "spec.containers[0].image: Required value"];
    assert_eq!(pod(json!({"containers": [{}]})), required);
    let twice = json!([{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]);
    assert_eq!(pod(json!({"containers": twice})), ["spec.containers[1].name: Duplicate value: \"a\""]);
    let mounts = json!([{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    assert_eq!(pod(json!({"containers": mounts})), ["spec.containers[0].volumeMounts[0].name: Not found: \"v\""]);
    let policy = "Unsupported value: \"Foo\": supported values: \"Always\", \"OnFailure\", \"Never\"";
    let spec = json!({"restartPolicy": "Foo", "containers": [{"name": "a", "image": "i"}]});
    assert_eq!(pod(spec), [format!("spec.restartPolicy: {policy}")]);
}

#[test]
fn what_is_not_done_is_said() {
    let with = |field: &str, value: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        spec[field] = value;
        pod(spec).join("; ")
    };
    let why = "Forbidden: not done by this embedded Kubernetes";
    let network = format!("spec.hostNetwork: {why}: containers are processes of this machine");
    assert_eq!(with("hostNetwork", json!(true)), network);
    let volumes = "volumes are emptyDir, configMap, secret, projected, downwardAPI, persistentVolumeClaim";
    let path = json!([{"name": "v", "hostPath": {"path": "/"}}]);
    assert_eq!(with("volumes", path), format!("spec.volumes[0].hostPath: {why}: {volumes}"));
    let sidecar = json!([{"name": "s", "image": "i", "restartPolicy": "Always"}]);
    assert!(with("initContainers", sidecar).contains("initContainers[0].restartPolicy: Forbidden: not done"));
    assert_eq!(
        with("securityContext", json!({"runAsUser": 1, "fsGroup": 1})),
        "",
        "it means nothing, and does no harm"
    );
    let mut set = set();
    set["spec"]["template"]["spec"]["hostPID"] = json!(true);
    assert!(causes(created(Kind::StatefulSet, &set))[0].starts_with("spec.template.spec.hostPID: Forbidden: not done"));
}

#[test]
fn a_selector_has_to_choose_its_own_pods() {
    let mismatch = "`selector` does not match template `labels`";
    let bare = refused(Kind::StatefulSet, json!({}));
    let labels = "spec.template.metadata.labels: Invalid value";
    let nil = format!("{labels}: map[string]string(nil): {mismatch}");
    assert_eq!(bare, ["spec.selector: Required value".to_owned(), nil]);
    let spec = json!({"replicas": -1, "selector": {"matchLabels": {"a": "b"}}, "template": template("c")});
    let negative = "spec.replicas: Invalid value: -1: must be greater than or equal to 0".to_owned();
    let other = format!("{labels}: map[string]string{{\"a\":\"c\"}}: {mismatch}");
    assert_eq!(refused(Kind::Deployment, json!({"spec": spec})), [negative, other]);
}

#[test]
fn what_is_fixed_stays() {
    let set = set();
    assert_eq!(refused_change(Kind::StatefulSet, &set, "/spec/replicas", json!(5)), [""; 0]);
    let forbidden = refused_change(Kind::StatefulSet, &set, "/spec/serviceName", json!("other"));
    assert_eq!(forbidden.len(), 1);
    assert!(
        forbidden[0].starts_with("spec: Forbidden: updates to statefulset spec for fields other than 'replicas', ")
    );
    let deployment = filled(Kind::Deployment, json!({"spec": set["spec"]}));
    let changed = refused_change(Kind::Deployment, &deployment, "/spec/selector/matchLabels", json!({}));
    assert!(
        changed.last().unwrap().ends_with("MatchExpressions:[]v1.LabelSelectorRequirement(nil)}: field is immutable")
    );
    let pod = filled(Kind::Pod, json!({"spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": ""}}));
    assert_eq!(refused_change(Kind::Pod, &pod, "/spec/nodeName", json!("node")), [""; 0]);
    assert_eq!(refused_change(Kind::Pod, &pod, "/spec/containers/0/image", json!("j")), [""; 0]);
    let forbidden = refused_change(Kind::Pod, &pod, "/spec/terminationGracePeriodSeconds", json!(3));
    assert!(forbidden[0].starts_with("spec: Forbidden: pod updates may not change fields other than"));
}

#[test]
fn a_claim_is_bound_once_and_never_grows() {
    let resources = json!({"requests": {"storage": "1Gi"}});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": resources, "volumeName": ""});
    let claim = filled(Kind::PersistentVolumeClaim, json!({"spec": spec}));
    let change = |pointer: &str, value: Value| refused_change(Kind::PersistentVolumeClaim, &claim, pointer, value);
    assert_eq!(change("/spec/volumeName", json!("v")), [""; 0]);
    assert!(change("/spec/accessModes", json!(["ReadWriteMany"]))[0].starts_with("spec: Forbidden: spec is immutable"));
    let mut larger = claim.clone();
    larger["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    let refused = updated(Kind::PersistentVolumeClaim, Part::Main, &claim, &larger).unwrap_err();
    assert_eq!((refused.code, refused.reason), (403, "Forbidden"));
    let bare = [
        "spec.accessModes: Required value: at least 1 access mode is required",
        "spec.resources[storage]: Required value",
    ];
    assert_eq!(refused_claim(), bare);
}

fn refused_claim() -> Vec<String> {
    refused(Kind::PersistentVolumeClaim, json!({}))
}

#[test]
fn names_labels_and_keys_have_their_forms() {
    let named = |kind: Kind, name: &str| {
        let mut object = filled(kind, json!({"spec": {"ports": [{"port": 1}]}}));
        object["metadata"]["name"] = json!(name);
        causes(created(kind, &object)).first().map(|why| why.chars().take(60).collect::<String>())
    };
    let shown = |text: &str| Some(text.to_owned());
    assert_eq!(named(Kind::ConfigMap, "a.b-c"), None);
    assert_eq!(named(Kind::ConfigMap, "X_y"), shown("metadata.name: Invalid value: \"X_y\": a lowercase RFC 1123 su"));
    assert_eq!(named(Kind::Service, "1p"), shown("metadata.name: Invalid value: \"1p\": a DNS-1035 label must co"));
    assert_eq!(named(Kind::Namespace, "a.b"), shown("metadata.name: Invalid value: \"a.b\": must not contain dots"));
    let mut object = json!({"metadata": {"name": "m", "labels": {"a b": "c d"}, "annotations": {"-": "x"}}});
    assert_eq!(causes(created(Kind::ConfigMap, &object)).len(), 3);
    object = json!({"metadata": {"name": "m", "labels": {"a.b/c": "d", "e": ""}, "annotations": {"K/x": " any "}}});
    assert_eq!(causes(created(Kind::ConfigMap, &object)), [""; 0]);
    object = json!({"metadata": {"name": "m"}, "data": {"a b": ""}});
    assert!(
        causes(created(Kind::ConfigMap, &object))[0]
            .starts_with("data[a b]: Invalid value: \"a b\": a valid config key")
    );
}

#[test]
fn a_finalizer_cannot_be_added_to_what_is_to_go() {
    let before = json!({"metadata": {"name": "m", "deletionTimestamp": "t", "finalizers": ["a/b"]}});
    let refused = refused_change(Kind::ConfigMap, &before, "/metadata/finalizers", json!(["a/b", "c/d"]));
    let why = "no new finalizers can be added if the object is being deleted, found new finalizers []string{\"c/d\"}";
    assert_eq!(refused, vec![format!("metadata.finalizers: Forbidden: {why}"); 2], "a real one finds it twice");
}
