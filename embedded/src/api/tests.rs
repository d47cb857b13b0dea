//! What requests are answered.

use super::{Method, Reply, Request, User, Watch, answer};
use crate::resource::Kind;
use crate::store::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

fn store() -> Store {
    let mut store = Store::new(1, Timestamp::UNIX_EPOCH);
    store.create(Kind::Namespace, json!({"metadata": {"name": "default"}})).unwrap();
    store
}

fn request(method: Method, path: &str, content_type: &str, body: &Value) -> Request {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.to_owned())
    };
    Request {
        method,
        path: path.to_owned(),
        query: query.split('&').filter(|part| !part.is_empty()).map(pair).collect(),
        content_type: content_type.to_owned(),
        accept: "application/json".to_owned(),
        user_agent: "tester/1".to_owned(),
        body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
        user: User { name: "tester".to_owned(), groups: vec!["system:masters".to_owned()] },
    }
}

fn told(store: &mut Store, request: &Request) -> (u16, Value) {
    match answer(store, request) {
        Reply::Object { code, body, .. } => (code, body),
        other => panic!("no object: {other:?}"),
    }
}

fn get(store: &mut Store, path: &str) -> (u16, Value) {
    told(store, &request(Method::Get, path, "", &Value::Null))
}

fn post(store: &mut Store, path: &str, body: &Value) -> (u16, Value) {
    told(store, &request(Method::Post, path, "application/json", body))
}

fn put(store: &mut Store, path: &str, body: &Value) -> (u16, Value) {
    told(store, &request(Method::Put, path, "application/json", body))
}

fn merge(store: &mut Store, path: &str, body: &Value) -> (u16, Value) {
    told(store, &request(Method::Patch, path, "application/merge-patch+json", body))
}

fn delete(store: &mut Store, path: &str, body: &Value) -> (u16, Value) {
    told(store, &request(Method::Delete, path, "application/json", body))
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": name}}, "data": {"key": "1"}})
}

fn set() -> Value {
    json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 1, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }})
}

fn maps(count: usize) -> Store {
    let mut store = store();
    for at in 0..count {
        assert_eq!(post(&mut store, MAPS, &map(&format!("m{at}"))).0, 201);
    }
    store
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn an_object_is_created_read_changed_and_deleted() {
    let mut store = store();
    let (code, created) = post(&mut store, MAPS, &map("m"));
    assert_eq!(
        (code, &created["kind"], &created["metadata"]["namespace"]),
        (201, &json!("ConfigMap"), &json!("default"))
    );
    assert_eq!(get(&mut store, &format!("{MAPS}/m")), (200, created.clone()));
    let (code, changed) = merge(&mut store, &format!("{MAPS}/m"), &json!({"data": {"key": null, "other": "2"}}));
    assert_eq!((code, &changed["data"]), (200, &json!({"other": "2"})));
    assert_eq!(put(&mut store, &format!("{MAPS}/m"), &created).1["reason"], "Conflict", "it was changed since");
    let (code, gone) = delete(&mut store, &format!("{MAPS}/m"), &Value::Null);
    assert_eq!((code, &gone["status"], &gone["details"]["uid"]), (200, &json!("Success"), &created["metadata"]["uid"]));
    assert_eq!(get(&mut store, &format!("{MAPS}/m")).0, 404);
}

#[test]
fn a_put_of_what_is_not_there_creates_leases_only() {
    let mut store = store();
    let named = json!({"metadata": {"name": "l", "resourceVersion": "77"}});
    assert_eq!(put(&mut store, &format!("{MAPS}/l"), &named).0, 404);
    assert_eq!(put(&mut store, &format!("{LEASES}/l"), &named).0, 201);
    let (code, refused) = put(&mut store, &format!("{LEASES}/l"), &json!({"metadata": {"name": "l"}}));
    let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
    let message = format!("leases.coordination.k8s.io \"l\" is invalid: {why}");
    assert_eq!((code, &refused["message"]), (422, &json!(message)));
}

#[test]
fn what_is_only_tried_leaves_no_trace() {
    let mut store = maps(1);
    let version = store.version();
    let (code, tried) = post(&mut store, &format!("{MAPS}?dryRun=All"), &map("n"));
    assert_eq!((code, tried["metadata"].get("resourceVersion")), (201, None));
    assert_eq!(
        merge(&mut store, &format!("{MAPS}/m0?dryRun=All"), &json!({"data": {"key": "2"}})).1["data"]["key"],
        "2"
    );
    assert_eq!(delete(&mut store, &format!("{MAPS}/m0"), &json!({"dryRun": ["All"]})).0, 200);
    assert_eq!(store.version(), version);
    assert_eq!(names(&get(&mut store, MAPS).1), ["m0"]);
}

#[test]
fn pages_show_the_objects_as_they_were() {
    let mut store = maps(3);
    let (_, first) = get(&mut store, &format!("{MAPS}?limit=2"));
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["m0", "m1"], &json!(1)));
    delete(&mut store, &format!("{MAPS}/m2"), &Value::Null);
    post(&mut store, MAPS, &map("m3"));
    let next = format!("{MAPS}?limit=2&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let (_, second) = get(&mut store, &next);
    assert_eq!(names(&second), ["m2"], "it was there, and m3 was not");
    assert_eq!(second["metadata"], json!({"resourceVersion": first["metadata"]["resourceVersion"]}));
    store.forget_history();
    assert_eq!(get(&mut store, &next).1["reason"], "Expired");
}

#[test]
fn lists_and_deletions_go_by_selectors() {
    let mut store = maps(3);
    assert_eq!(names(&get(&mut store, &format!("{MAPS}?labelSelector=app in (m0,m2)")).1), ["m0", "m2"]);
    assert_eq!(names(&get(&mut store, &format!("{MAPS}?fieldSelector=metadata.name!=m0")).1), ["m1", "m2"]);
    let (_, gone) = delete(&mut store, &format!("{MAPS}?labelSelector=app!=m1"), &Value::Null);
    assert_eq!((&gone["kind"], names(&gone)), (&json!("ConfigMapList"), vec!["m0", "m2"]));
    assert_eq!(names(&get(&mut store, "/api/v1/configmaps").1), ["m1"]);
}

#[test]
fn a_scale_is_written_by_itself() {
    let mut store = store();
    assert_eq!(post(&mut store, SETS, &set()).0, 201);
    let path = format!("{SETS}/web/scale");
    let (code, scale) = merge(&mut store, &path, &json!({"spec": {"replicas": 3}}));
    assert_eq!((code, &scale["kind"], &scale["spec"]["replicas"]), (200, &json!("Scale"), &json!(3)));
    assert_eq!(scale["status"]["selector"], "app=web");
    assert_eq!(get(&mut store, &format!("{SETS}/web")).1["spec"]["replicas"], 3);
    let stale = json!({"metadata": {"name": "web", "resourceVersion": "1"}, "spec": {"replicas": 1}});
    assert_eq!(put(&mut store, &path, &stale).0, 409);
    let (code, refused) = merge(&mut store, &path, &json!({"spec": {"replicas": -1}}));
    let why =
        "Scale.autoscaling \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!((code, &refused["message"]), (422, &json!(why)));
}

#[test]
fn a_status_is_written_by_itself() {
    let mut store = store();
    post(&mut store, SETS, &set());
    let both = json!({"spec": {"replicas": 7}, "status": {"replicas": 4}});
    let (_, written) = merge(&mut store, &format!("{SETS}/web/status"), &both);
    assert_eq!((&written["spec"]["replicas"], &written["status"]), (&json!(1), &json!({"replicas": 4})));
    let (_, written) = merge(&mut store, &format!("{SETS}/web"), &json!({"status": {"replicas": 9}}));
    assert_eq!(written["status"], json!({"replicas": 4}));
}

#[test]
fn methods_and_paths_that_are_not_there_are_told_apart() {
    let mut store = maps(1);
    assert_eq!(post(&mut store, "/api/v1/configmaps", &map("m")).0, 405);
    assert_eq!(post(&mut store, &format!("{MAPS}/m0"), &map("m")).0, 405);
    assert_eq!(get(&mut store, "/api/v1/namespaces/default/gadgets").0, 404);
    assert_eq!(get(&mut store, &format!("{MAPS}/m0/scale")).0, 404);
    let (code, refused) = post(&mut store, "/api/v1/namespaces/nope/configmaps", &map("m"));
    assert_eq!((code, &refused["message"]), (404, &json!("namespaces \"nope\" not found")));
}

#[test]
fn preconditions_and_policies_of_a_deletion_are_heeded() {
    let mut store = maps(1);
    let path = format!("{MAPS}/m0");
    assert_eq!(delete(&mut store, &path, &json!({"preconditions": {"uid": "x"}})).0, 409);
    assert_eq!(delete(&mut store, &path, &json!({"propagationPolicy": "Never"})).0, 422);
    let (_, begun) = delete(&mut store, &path, &json!({"propagationPolicy": "Foreground"}));
    assert_eq!(begun["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(begun["metadata"]["deletionTimestamp"].is_string());
}

#[test]
fn the_namespaces_that_come_with_it_stay() {
    let (code, refused) = delete(&mut store(), "/api/v1/namespaces/default", &Value::Null);
    let message = "namespaces \"default\" is forbidden: this namespace may not be deleted";
    assert_eq!((code, &refused["message"]), (403, &json!(message)));
}

fn watch(store: &mut Store, path: &str) -> Watch {
    match answer(store, &request(Method::Get, path, "", &Value::Null)) {
        Reply::Watch(watch) => watch,
        other => panic!("no watch: {other:?}"),
    }
}

/// What a watch says now, as `TYPE name`, and whether it has ended.
fn heard(watch: &mut Watch, store: &Store) -> (Vec<String>, bool) {
    let polled = watch.poll(store);
    let line = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let about = event["object"]["metadata"]["name"].as_str().or(event["object"]["reason"].as_str());
        format!("{} {}", event["type"].as_str().unwrap(), about.unwrap_or("-"))
    };
    (polled.lines.lines().map(line).collect(), polled.ended)
}

#[test]
fn a_watch_begins_with_what_is_there_and_continues() {
    let mut store = maps(1);
    let mut watch = watch(&mut store, &format!("{MAPS}?watch=true"));
    assert_eq!(heard(&mut watch, &store).0, ["ADDED m0"]);
    merge(&mut store, &format!("{MAPS}/m0"), &json!({"data": {"key": "2"}}));
    post(&mut store, LEASES, &json!({"metadata": {"name": "l"}}));
    delete(&mut store, &format!("{MAPS}/m0"), &Value::Null);
    assert_eq!(heard(&mut watch, &store).0, ["MODIFIED m0", "DELETED m0"]);
    assert_eq!(heard(&mut watch, &store).0, [""; 0]);
}

#[test]
fn what_a_selector_does_not_want_any_more_is_gone() {
    let mut store = maps(1);
    let from = store.version();
    let mut watch = watch(&mut store, &format!("{MAPS}?watch=true&resourceVersion={from}&labelSelector=app=m0"));
    for label in ["x", "y", "m0"] {
        merge(&mut store, &format!("{MAPS}/m0"), &json!({"metadata": {"labels": {"app": label}}}));
    }
    assert_eq!(heard(&mut watch, &store).0, ["DELETED m0", "ADDED m0"]);
}

#[test]
fn a_watch_from_a_forgotten_version_ends_with_an_error() {
    let mut store = maps(1);
    store.forget_history();
    let mut watch = watch(&mut store, &format!("{MAPS}?watch=true&resourceVersion=1"));
    assert_eq!(heard(&mut watch, &store), (vec!["ERROR Expired".to_owned()], true));
}

#[test]
fn bookmarks_come_after_a_minute_and_at_the_end() {
    let mut store = maps(0);
    let from = store.version();
    let query = format!("watch=true&resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut watch = watch(&mut store, &format!("{MAPS}?{query}"));
    let mut at = |seconds: i64| {
        store.set_now(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds));
        heard(&mut watch, &store)
    };
    let bookmark = vec!["BOOKMARK -".to_owned()];
    assert_eq!(at(0), (vec![], false));
    assert_eq!(at(59), (vec![], false));
    assert_eq!(at(60), (bookmark.clone(), false));
    assert_eq!(at(90), (bookmark, true));
}

#[test]
fn a_streamed_list_ends_with_a_mark() {
    let mut store = maps(1);
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let lines = watch(&mut store, &format!("{MAPS}?{query}")).poll(&store).lines;
    let mark: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(mark["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
}

fn accepting(accept: &str, path: &str) -> Request {
    Request { accept: accept.to_owned(), ..request(Method::Get, path, "", &Value::Null) }
}

#[test]
fn the_first_form_that_there_is_is_given() {
    let mut store = maps(1);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut kind = |accept: &str| told(&mut store, &accepting(accept, MAPS)).1["kind"].clone();
    assert_eq!(kind("application/vnd.kubernetes.protobuf,application/json"), "ConfigMapList");
    assert_eq!(kind(&format!("{table},application/json")), "Table");
    assert_eq!(kind("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"), "ConfigMapList");
    assert_eq!(kind("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"), "PartialObjectMetadataList");
    assert_eq!(told(&mut store, &accepting("text/plain", MAPS)).0, 406);
}

#[test]
fn a_watch_of_tables_tells_the_columns_once() {
    let mut store = maps(2);
    let asked = accepting("application/json;as=Table;v=v1;g=meta.k8s.io", &format!("{MAPS}?watch=true"));
    let Reply::Watch(mut watch) = answer(&mut store, &asked) else { panic!("no watch") };
    let lines = watch.poll(&store).lines;
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |event: &Value| {
        (event["object"]["rows"][0]["cells"][0].clone(), event["object"]["columnDefinitions"].is_array())
    };
    assert_eq!(events.iter().map(told).collect::<Vec<_>>(), [(json!("m0"), true), (json!("m1"), false)]);
}

#[test]
fn unknown_fields_are_dropped_with_a_warning_or_refused() {
    let mut store = store();
    let body = json!({"metadata": {"name": "m"}, "daata": {"a": "1"}});
    let (code, refused) = post(&mut store, &format!("{MAPS}?fieldValidation=Strict"), &body);
    assert_eq!((code, &refused["reason"]), (400, &json!("BadRequest")));
    let asked = request(Method::Post, MAPS, "application/json", &body);
    let Reply::Object { code, body, warnings } = answer(&mut store, &asked) else { panic!("no object") };
    assert_eq!((code, body.get("daata"), warnings), (201, None, vec!["unknown field \"daata\"".to_owned()]));
    let ignored = request(
        Method::Patch,
        &format!("{MAPS}/m?fieldValidation=Ignore"),
        "application/merge-patch+json",
        &json!({"x": 1}),
    );
    let Reply::Object { warnings, .. } = answer(&mut store, &ignored) else { panic!("no object") };
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn a_container_need_not_be_named_if_there_is_one() {
    let mut store = store();
    let container = |name: &str| json!({"name": name, "image": "i"});
    for (pod, containers) in [("one", json!([container("a")])), ("two", json!([container("a"), container("b")]))] {
        let pod = json!({"metadata": {"name": pod}, "spec": {"containers": containers}});
        assert_eq!(post(&mut store, "/api/v1/namespaces/default/pods", &pod).0, 201);
    }
    let log = |store: &mut Store, path: &str| match answer(
        store,
        &request(Method::Get, &format!("/api/v1/namespaces/default/pods/{path}"), "", &Value::Null),
    ) {
        Reply::Log(wanted) => wanted.container.unwrap(),
        Reply::Object { body, .. } => body["message"].as_str().unwrap().to_owned(),
        other => panic!("no log: {other:?}"),
    };
    assert_eq!(log(&mut store, "one/log"), "a");
    assert_eq!(log(&mut store, "two/log?container=b"), "b");
    assert_eq!(log(&mut store, "two/log"), "a container name must be specified for pod two, choose one of: [a b]");
    assert_eq!(log(&mut store, "two/log?container=c"), "container c is not valid for pod two");
}
