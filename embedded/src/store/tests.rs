//! What the store promises.

use super::{DeleteOptions, Deleted, Event, Key, Part, Propagation, Store};
use crate::failure::Failure;
use crate::object;
use crate::resource::Kind;
use jiff::Timestamp;
use serde_json::{Value, json};

fn store() -> Store {
    let mut store = Store::new(1, Timestamp::UNIX_EPOCH);
    store.create(Kind::Namespace, json!({"metadata": {"name": "default"}})).unwrap();
    store
}

fn map(name: &str, data: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": {"key": data}})
}

fn key(name: &str) -> Key {
    Key::new(Kind::ConfigMap, "default", name)
}

#[test]
fn a_version_that_is_not_the_last_is_refused() {
    let mut store = store();
    let first = store.create(Kind::ConfigMap, map("m", "1")).unwrap();
    let mut second = Value::clone(&first);
    second["data"]["key"] = json!("2");
    store.update(&key("m"), Part::Main, second.clone()).unwrap();
    second["data"]["key"] = json!("3");
    assert_eq!(store.update(&key("m"), Part::Main, second).unwrap_err(), Failure::stale(Kind::ConfigMap, "m"));
    let anyhow = store.update(&key("m"), Part::Main, map("m", "4")).unwrap();
    assert_eq!(anyhow["data"]["key"], "4", "without a version the last writer wins");
}

#[test]
fn writing_what_is_there_changes_nothing() {
    let mut store = store();
    store.create(Kind::ConfigMap, map("m", "1")).unwrap();
    let version = store.version();
    store.update(&key("m"), Part::Main, map("m", "1")).unwrap();
    assert_eq!(store.version(), version);
}

#[test]
fn changes_are_told_from_any_version_that_is_remembered() {
    let mut store = store();
    let from = store.version();
    store.create(Kind::ConfigMap, map("m", "1")).unwrap();
    store.edit(&key("m"), Part::Main, |map| map["data"]["key"] = json!("2")).unwrap();
    store.delete(&key("m"), &DeleteOptions::default()).unwrap();
    let told: Vec<_> = store.changes_since(from).unwrap().map(|change| (change.version, change.event)).collect();
    assert_eq!(told, [(from + 1, Event::Added), (from + 2, Event::Modified), (from + 3, Event::Deleted)]);
    store.forget_history();
    assert_eq!(store.changes_since(from).err().map(|failure| failure.code), Some(410));
    assert_eq!(store.changes_since(store.version()).unwrap().count(), 0);
}

#[test]
fn a_finalizer_holds_an_object_until_it_is_taken_off() {
    let mut store = store();
    let mut held = map("m", "1");
    held["metadata"]["finalizers"] = json!(["kaa.io/hold"]);
    store.create(Kind::ConfigMap, held).unwrap();
    assert!(matches!(store.delete(&key("m"), &DeleteOptions::default()), Ok(Deleted::Begun(_))));
    assert!(object::is_deleting(store.get(&key("m")).unwrap()));
    store.edit(&key("m"), Part::Main, |map| map["metadata"]["finalizers"] = json!([])).unwrap();
    assert!(store.find(&key("m")).is_none());
}

#[test]
fn a_precondition_names_what_is_meant() {
    let mut store = store();
    store.create(Kind::ConfigMap, map("m", "1")).unwrap();
    let other = DeleteOptions { uid: Some("other".to_owned()), ..DeleteOptions::default() };
    assert_eq!(store.delete(&key("m"), &other).unwrap_err().code, 409);
    assert!(store.find(&key("m")).is_some());
}

#[test]
fn orphaning_waits_for_the_garbage_collector() {
    let mut store = store();
    store.create(Kind::ConfigMap, map("m", "1")).unwrap();
    let orphan = DeleteOptions { propagation: Some(Propagation::Orphan), ..DeleteOptions::default() };
    assert!(matches!(store.delete(&key("m"), &orphan), Ok(Deleted::Begun(_))));
    assert!(object::has_finalizer(store.get(&key("m")).unwrap(), super::ORPHAN));
}

#[test]
fn nothing_is_created_in_a_namespace_that_is_not_there() {
    let mut map = map("m", "1");
    map["metadata"]["namespace"] = json!("nowhere");
    assert_eq!(store().create(Kind::ConfigMap, map).unwrap_err(), Failure::not_found(Kind::Namespace, "nowhere"));
}
