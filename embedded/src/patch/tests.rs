//! What patches make of objects.

use super::managed::{self, Manager};
use super::{Format, patched, refused};
use crate::failure::Failure;
use jiff::Timestamp;
use serde_json::{Value, json};

fn strategic(object: Value, patch: Value) -> Value {
    patched(Format::Strategic, &object, patch.to_string().as_bytes()).unwrap()
}

#[test]
fn a_merge_patch_replaces_and_removes() {
    let before = json!({"data": {"a": "1", "b": "2"}, "list": [1, 2]});
    let patch = json!({"data": {"a": null, "c": "3"}, "list": [3]}).to_string();
    let after = patched(Format::Merge, &before, patch.as_bytes()).unwrap();
    assert_eq!(after, json!({"data": {"b": "2", "c": "3"}, "list": [3]}));
}

#[test]
fn the_steps_of_a_json_patch_are_done_or_all_refused() {
    let before = json!({"spec": {"replicas": 1}});
    let steps = |steps: Value| patched(Format::Json, &before, steps.to_string().as_bytes());
    let good = json!([
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 2},
    ]);
    assert_eq!(steps(good), Ok(json!({"spec": {"replicas": 2}})));
    let failed = steps(json!([{"op": "test", "path": "/spec/replicas", "value": 7}])).unwrap_err();
    assert_eq!(failed.message, "the server rejected our request due to an error in our request");
    assert_eq!(steps(json!([{"op": "remove", "path": "/spec/none"}])).unwrap_err().code, 422);
    assert_eq!(steps(json!({"op": "test"})).unwrap_err().code, 400);
}

#[test]
fn things_with_names_are_merged_by_name() {
    let before = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
    let patch = json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "1"}]}});
    let containers = json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "1"}]);
    assert_eq!(strategic(before, patch)["spec"]["containers"], containers);
}

#[test]
fn directives_delete_replace_and_retain() {
    let before =
        || json!({"env": [{"name": "A"}, {"name": "B"}], "strategy": {"type": "R", "rollingUpdate": {"m": 1}}});
    let patch = json!({"env": [{"$patch": "delete", "name": "A"}]});
    assert_eq!(strategic(before(), patch)["env"], json!([{"name": "B"}]));
    let patch = json!({"env": [{"name": "C"}, {"$patch": "replace"}]});
    assert_eq!(strategic(before(), patch)["env"], json!([{"name": "C"}]));
    let patch = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
    assert_eq!(strategic(before(), patch)["strategy"], json!({"type": "Recreate"}));
    let patch = json!({"strategy": {"$patch": "replace", "x": 1}});
    assert_eq!(strategic(before(), patch)["strategy"], json!({"x": 1}));
    let unknown = patched(Format::Strategic, &before(), br#"{"$patch": "shuffle"}"#).unwrap_err();
    assert_eq!(unknown.message, "Unknown patch type found: shuffle");
}

#[test]
fn sets_are_joined_and_lists_are_replaced() {
    let before = json!({"finalizers": ["a", "b"], "args": ["1", "2"]});
    let after = strategic(before.clone(), json!({"finalizers": ["b", "c"], "args": ["3"]}));
    assert_eq!(after, json!({"finalizers": ["a", "b", "c"], "args": ["3"]}));
    let after = strategic(before, json!({"$deleteFromPrimitiveList/finalizers": ["a"]}));
    assert_eq!(after["finalizers"], json!(["b"]));
}

#[test]
fn an_order_is_kept_around_what_it_does_not_name() {
    let before = json!({"env": [{"name": "A"}, {"name": "server"}, {"name": "B"}]});
    let patch = json!({"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": [{"name": "B", "value": "1"}]});
    let env = json!([{"name": "B", "value": "1"}, {"name": "server"}, {"name": "A"}]);
    assert_eq!(strategic(before, patch)["env"], env);
}

#[test]
fn ports_are_told_apart_by_what_they_say() {
    let before = json!({"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]});
    let patch = json!({"ports": [{"containerPort": 80, "protocol": "UDP", "name": "u"}]});
    assert_eq!(strategic(before, patch)["ports"][1]["name"], "u");
    let before = json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 1}]});
    let after = strategic(before, json!({"ports": [{"port": 80, "targetPort": 2}]}));
    assert_eq!(after["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 2}]));
}

#[test]
fn a_patch_that_makes_nonsense_is_shown() {
    let patch = json!({"spec": {"replicass": 1}}).to_string();
    let failure =
        refused(Format::Strategic, &json!({}), patch.as_bytes(), "strict decoding error: unknown field \"x\"");
    let shown = " \"\" is invalid: patch: Invalid value: \"map[spec:map[replicass:1]]\"";
    assert_eq!(failure.message, format!("{shown}: strict decoding error: unknown field \"x\""));
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

fn apply(before: Option<&Value>, who: &str, data: Value, force: bool) -> Result<Value, Failure> {
    managed::apply(before, &map(data), &Manager::new(who, ""), force, Timestamp::UNIX_EPOCH)
}

/// Who owns which of the data, as `manager:fields`.
fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let fields = |entry: &Value| {
        let fields = entry["fieldsV1"]["f:data"].as_object().cloned().unwrap_or_default();
        fields.keys().map(|key| key.trim_start_matches("f:").to_owned()).collect::<Vec<_>>().join(",")
    };
    entries.iter().map(|entry| format!("{}:{}", entry["manager"].as_str().unwrap(), fields(entry))).collect()
}

/// `before` after a client that does not apply wrote its data.
fn written(before: &Value, who: &str, data: Value) -> Value {
    let mut object = before.clone();
    object["data"] = data;
    managed::track(Some(before), &mut object, who, "", Timestamp::UNIX_EPOCH);
    object
}

#[test]
fn a_field_that_no_manager_sets_any_more_goes() {
    let first = apply(None, "me", json!({"a": "1", "b": "2"}), false).unwrap();
    let both = apply(Some(&first), "you", json!({"b": "2", "c": "3"}), false).unwrap();
    assert_eq!(owners(&both), ["me:a,b", "you:b,c"]);
    let less = apply(Some(&both), "me", json!({}), false).unwrap();
    assert_eq!(less["data"], json!({"b": "2", "c": "3"}), "b is yours too");
    assert_eq!(owners(&less), ["me:", "you:b,c"]);
    let again = apply(Some(&less), "you", json!({"b": "2", "c": "3"}), false).unwrap();
    assert_eq!(again, less);
}

#[test]
fn another_value_of_another_managers_field_is_a_conflict() {
    let first = apply(None, "me", json!({"a": "1"}), false).unwrap();
    let written = written(&first, "editor", json!({"a": "9", "b": "2"}));
    assert_eq!(owners(&written), ["editor:a,b"]);
    let refused = apply(Some(&written), "me", json!({"a": "1"}), false).unwrap_err();
    let one = "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.a";
    assert_eq!((refused.code, refused.message.as_str()), (409, one));
    let refused = apply(Some(&written), "me", json!({"a": "1", "b": "1"}), false).unwrap_err();
    let two = "Apply failed with 2 conflicts: conflicts with \"editor\" using v1:\n- .data.a\n- .data.b";
    assert_eq!(refused.message, two);
    let forced = apply(Some(&written), "me", json!({"a": "1"}), true).unwrap();
    assert_eq!(
        (&forced["data"], owners(&forced)),
        (&json!({"a": "1", "b": "2"}), vec!["me:a".into(), "editor:b".into()])
    );
}

#[test]
fn the_same_value_is_shared() {
    let first = apply(None, "me", json!({"a": "1"}), false).unwrap();
    let written = written(&first, "editor", json!({"a": "9"}));
    let shared = apply(Some(&written), "me", json!({"a": "9"}), false).unwrap();
    assert_eq!(owners(&shared), ["me:a", "editor:a"]);
}

#[test]
fn items_of_a_list_have_their_owners() {
    let object = |containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}});
    let apply = |before: Option<&Value>, who: &str, containers: Value| {
        managed::apply(before, &object(containers), &Manager::new(who, ""), false, Timestamp::UNIX_EPOCH)
    };
    let port = json!([{"containerPort": 80}]);
    let first = apply(None, "me", json!([{"name": "a", "image": "1", "ports": port}])).unwrap();
    assert_eq!(first["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
    let both = apply(Some(&first), "you", json!([{"name": "b", "image": "1"}])).unwrap();
    assert_eq!(both["spec"]["containers"].as_array().unwrap().len(), 2);
    let refused = apply(Some(&both), "you", json!([{"name": "a", "image": "2"}])).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"me\": .spec.containers[name=\"a\"].image"
    );
    let without = apply(Some(&both), "me", json!([])).unwrap();
    assert_eq!(without["spec"]["containers"], json!([{"name": "b", "image": "1"}]));
}

#[test]
fn a_client_that_writes_managed_fields_sets_them() {
    let first = apply(None, "me", json!({"a": "1"}), false).unwrap();
    let mut object = first.clone();
    object["metadata"]["managedFields"] = json!([]);
    managed::track(Some(&first), &mut object, "editor", "", Timestamp::UNIX_EPOCH);
    assert_eq!(owners(&object), [""; 0]);
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    managed::track(Some(&first), &mut object, "editor", "", Timestamp::UNIX_EPOCH);
    assert_eq!(owners(&object), ["me:a"], "leaving them out says nothing");
}

#[test]
fn kubectl_goes_over_from_the_clients_side_without_a_conflict_with_itself() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let applied = map(json!({"a": "1", "b": "1"}));
    let mut object = applied.clone();
    object["metadata"]["annotations"][LAST] = json!(applied.to_string());
    managed::track(None, &mut object, "kubectl-client-side-apply", "", Timestamp::UNIX_EPOCH);
    assert_eq!(apply(Some(&object), "other", json!({"a": "2"}), false).unwrap_err().code, 409);
    let over = apply(Some(&object), "kubectl", json!({"a": "2"}), false).unwrap();
    assert_eq!(over["data"], json!({"a": "2", "b": "1"}));
    assert_eq!(over["metadata"]["annotations"][LAST], format!("{}\n", map(json!({"a": "2"}))));
    let scaled = written(&object, "kubectl-patch", json!({"a": "7", "b": "1"}));
    let refused = apply(Some(&scaled), "kubectl", json!({"a": "2", "b": "2"}), false).unwrap_err();
    let one = "Apply failed with 1 conflict: conflict with \"kubectl-patch\" using v1: .data.a";
    assert_eq!(refused.message, one, "a was changed since, b was not");
}
