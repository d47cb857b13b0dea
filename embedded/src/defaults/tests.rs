//! What is written where something is left out.

use super::{CLAIM_PROTECTION, fill};
use crate::resource::Kind;
use serde_json::{Value, json};

fn filled(kind: Kind, mut object: Value) -> Value {
    fill(kind, &mut object);
    let once = object.clone();
    fill(kind, &mut object);
    assert_eq!(once, object, "filling twice is filling once");
    object
}

#[test]
fn a_pod_gets_what_a_real_one_gets() {
    let probe = json!({"httpGet": {"port": 80}});
    let pod = filled(
        Kind::Pod,
        json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c", "image": "i:1", "readinessProbe": probe, "ports": [{"containerPort": 80}]}],
            "volumes": [{"name": "v"}, {"name": "c", "configMap": {"name": "m"}}],
        }}),
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    assert_eq!(container["ports"][0]["protocol"], "TCP");
    let probe = json!({
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
    });
    assert_eq!(container["readinessProbe"], probe);
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "m", "defaultMode": 420}}]);
    assert_eq!(pod["spec"]["volumes"], volumes);
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
}

#[test]
fn what_is_said_stays() {
    let spec = json!({
        "replicas": 0, "podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
        "template": {"spec": {"terminationGracePeriodSeconds": 0}},
    });
    let set = filled(Kind::StatefulSet, json!({"spec": spec}));
    assert_eq!(set["spec"]["replicas"], 0);
    assert_eq!(set["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    assert_eq!(set["spec"]["persistentVolumeClaimRetentionPolicy"], policy);
    assert_eq!(set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 0);
    assert_eq!(set["spec"]["template"]["spec"]["serviceAccountName"], Value::Null, "that is for pods only");
}

#[test]
fn a_claim_is_protected_when_it_is_new_only() {
    let new = filled(Kind::PersistentVolumeClaim, json!({"metadata": {"name": "c"}}));
    assert_eq!(new["metadata"]["finalizers"], json!([CLAIM_PROTECTION]));
    let old = filled(Kind::PersistentVolumeClaim, json!({"metadata": {"name": "c", "uid": "u"}}));
    assert_eq!(old["metadata"].get("finalizers"), None);
}

#[test]
fn a_service_gets_an_address_unless_it_wants_none() {
    let address = |name: &str, spec: Value| {
        let service = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        filled(Kind::Service, service)["spec"]["clusterIPs"][0].as_str().unwrap().to_owned()
    };
    assert!(address("a", json!({})).starts_with("10.96."));
    assert_ne!(address("a", json!({})), address("b", json!({})));
    assert_eq!(address("a", json!({"clusterIP": "None"})), "None");
}

#[test]
fn texts_of_a_secret_are_written_as_its_data() {
    let secret = filled(Kind::Secret, json!({"stringData": {"a": "b"}, "data": {"c": "ZA=="}}));
    assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "Yg==", "c": "ZA=="}}));
}

#[test]
fn requests_follow_limits() {
    let pod = |resources: Value| filled(Kind::Pod, json!({"spec": {"containers": [{"resources": resources}]}}));
    let limited = pod(json!({"limits": {"cpu": "1", "memory": "1Gi"}}));
    assert_eq!(limited["spec"]["containers"][0]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(limited["status"]["qosClass"], "Guaranteed");
    assert_eq!(pod(json!({"requests": {"cpu": "1"}}))["status"]["qosClass"], "Burstable");
}
