//! Where the variables of a container come from.

use super::{Place, add, expand, resource};
use crate::resource::Kind;
use crate::store::Store;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn store() -> Store {
    let mut store = Store::new(1, Timestamp::UNIX_EPOCH);
    store.create(Kind::Namespace, json!({"metadata": {"name": "n"}})).unwrap();
    let map = json!({"metadata": {"name": "map", "namespace": "n"}, "data": {"color": "blue", "size": "2"}});
    store.create(Kind::ConfigMap, map).unwrap();
    let secret = json!({"metadata": {"name": "secret", "namespace": "n"}, "data": {"word": "b3Blbg=="}});
    store.create(Kind::Secret, secret).unwrap();
    store
}

fn variables(container: &Value) -> Result<BTreeMap<String, String>, String> {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}},
        "spec": {"nodeName": "node"},
    });
    let place = Place { address: "127.77.0.2".to_owned(), host: "127.77.0.1".to_owned() };
    let mut variables = BTreeMap::from([("HOME".to_owned(), "/home".to_owned())]);
    add(&mut variables, &store(), &pod, &place, container).map(|()| variables)
}

fn variable(value: Value) -> Result<BTreeMap<String, String>, String> {
    variables(&json!({"env": [{"name": "V", "valueFrom": value}]}))
}

#[test]
fn variables_refer_to_what_stands_before_them() {
    let found = variables(&json!({
        "envFrom": [{"configMapRef": {"name": "map"}, "prefix": "MAP_"}, {"secretRef": {"name": "secret"}}],
        "env": [
            {"name": "A", "value": "$(MAP_color) $(HOME) $(B) $$(A)"},
            {"name": "B", "value": "$(A)!"},
            {"name": "word", "value": "mine"},
        ],
    }))
    .unwrap();
    let wanted = [
        ("A", "blue /home $(B) $(A)"),
        ("B", "blue /home $(B) $(A)!"),
        ("HOME", "/home"),
        ("MAP_color", "blue"),
        ("MAP_size", "2"),
        ("word", "mine"),
    ];
    assert_eq!(found, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

#[test]
fn a_pod_knows_itself() {
    let cases = [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['other']", ""),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.77.0.2"),
        ("status.hostIP", "127.77.0.1"),
    ];
    for (path, value) in cases {
        assert_eq!(variable(json!({"fieldRef": {"fieldPath": path}})).unwrap()["V"], value, "{path}");
    }
}

#[test]
fn what_is_missing_is_named_as_kubernetes_does() {
    let key = |kind: &str, name: &str, key: &str| variable(json!({kind: {"name": name, "key": key}})).unwrap_err();
    assert_eq!(key("configMapKeyRef", "none", "a"), "configmap \"none\" not found");
    assert_eq!(key("configMapKeyRef", "map", "a"), "couldn't find key a in ConfigMap n/map");
    assert_eq!(key("secretKeyRef", "secret", "a"), "couldn't find key a in Secret n/secret");
    let optional = variable(json!({"secretKeyRef": {"name": "none", "key": "a", "optional": true}})).unwrap();
    assert!(!optional.contains_key("V"));
    let all = variables(&json!({"envFrom": [{"secretRef": {"name": "none"}}]}));
    assert_eq!(all.unwrap_err(), "secret \"none\" not found");
}

#[test]
fn a_limit_is_told_in_units_of_the_divisor() {
    let container = json!({"resources": {"limits": {"memory": "1Gi", "cpu": "1500m"}}});
    let told = |resource_name: &str, divisor: &str| {
        resource(&Value::Null, &container, &json!({"resource": resource_name, "divisor": divisor})).unwrap()
    };
    assert_eq!(told("limits.memory", "1Mi"), "1024");
    assert_eq!(told("limits.cpu", "1"), "2");
    assert_eq!(told("limits.cpu", "1m"), "1500");
    assert_eq!(told("requests.cpu", "1"), "0");
}

#[test]
fn a_dollar_that_names_nothing_stays() {
    assert_eq!(expand("$ $x $( $() $(x", &BTreeMap::new()), "$ $x $( $() $(x");
    assert_eq!(expand("kill $$; $$$$", &BTreeMap::new()), "kill $; $$", "as Kubernetes has it, for better or worse");
}
