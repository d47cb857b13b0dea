//! Owners and what they own.

use super::{World, key, settle, workload};
use crate::resource::Kind;
use crate::store::Propagation;
use serde_json::{Value, json};

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn owned(world: &World, name: &str, owners: &[&str]) -> Value {
    let reference = |owner: &&str| {
        let uid = &world.get(Kind::ConfigMap, owner)["metadata"]["uid"];
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": true})
    };
    let references: Vec<Value> = owners.iter().map(reference).collect();
    json!({"metadata": {"name": name, "ownerReferences": references}})
}

#[test]
fn what_has_lost_its_owners_goes() {
    let mut world = World::new();
    world.create(Kind::ConfigMap, map("one"));
    world.create(Kind::ConfigMap, map("two"));
    world.create(Kind::Secret, owned(&world, "both", &["one", "two"]));
    world.create(Kind::Secret, owned(&world, "first", &["one"]));
    world.delete(Kind::ConfigMap, "one", None);
    assert_eq!(world.names(Kind::Secret), "both");
    let references = world.get(Kind::Secret, "both")["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(references.len(), 1, "only the one that is left");
    world.delete(Kind::ConfigMap, "two", None);
    assert_eq!(world.names(Kind::Secret), "");
}

#[test]
fn another_object_of_the_same_name_is_no_owner() {
    let mut world = World::new();
    world.create(Kind::ConfigMap, map("one"));
    world.create(Kind::Secret, owned(&world, "first", &["one"]));
    world.store.delete(&key(Kind::ConfigMap, "one"), &Default::default()).unwrap();
    world.create(Kind::ConfigMap, map("one"));
    assert_eq!(world.names(Kind::Secret), "");
}

#[test]
fn an_object_of_another_namespace_is_no_owner() {
    let mut world = World::new();
    world.create(Kind::ConfigMap, map("one"));
    let mut far = owned(&world, "far", &["one"]);
    far["metadata"]["namespace"] = json!("other");
    world.store.create(Kind::Namespace, json!({"metadata": {"name": "other"}})).unwrap();
    world.store.create(Kind::Secret, far).unwrap();
    settle(&mut world.store);
    assert_eq!(world.store.list(Kind::Secret, None).count(), 0);
}

#[test]
fn an_owner_of_a_kind_that_is_not_known_is_left_to_others() {
    let mut world = World::new();
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "u"});
    world.create(Kind::Secret, json!({"metadata": {"name": "s", "ownerReferences": [owner]}}));
    assert_eq!(world.names(Kind::Secret), "s");
}

#[test]
fn in_the_foreground_the_owner_goes_last() {
    let mut world = World::new();
    world.create(Kind::Deployment, workload("te", 1));
    world.run();
    for kind in [Kind::Pod, Kind::ReplicaSet, Kind::Deployment] {
        assert!(!world.names(kind).is_empty());
    }
    world.delete(Kind::Deployment, "te", Some(Propagation::Foreground));
    for kind in [Kind::Pod, Kind::ReplicaSet, Kind::Deployment] {
        let names = world.names(kind);
        assert!(names.ends_with('!') && !names.contains(' '), "{kind}: {names}");
    }
    world.run();
    for kind in [Kind::Pod, Kind::ReplicaSet, Kind::Deployment] {
        assert_eq!(world.names(kind), "");
    }
}

#[test]
fn in_the_foreground_only_those_that_hold_their_owner_delay_it() {
    let mut world = World::new();
    world.create(Kind::ConfigMap, map("one"));
    let mut held = owned(&world, "held", &["one"]);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    held["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(false);
    world.create(Kind::Secret, held);
    world.delete(Kind::ConfigMap, "one", Some(Propagation::Foreground));
    assert_eq!((world.names(Kind::ConfigMap), world.names(Kind::Secret)), (String::new(), "held!".to_owned()));
}

#[test]
fn in_the_background_the_owner_goes_first() {
    let mut world = World::new();
    world.create(Kind::Deployment, workload("te", 1));
    world.run();
    world.delete(Kind::Deployment, "te", None);
    assert_eq!((world.names(Kind::Deployment), world.names(Kind::ReplicaSet)), (String::new(), String::new()));
    assert!(world.pods().ends_with('!'), "its pod has its time to end");
    world.run();
    assert_eq!(world.pods(), "");
}

#[test]
fn an_orphan_stays_and_is_taken_over() {
    let mut world = World::new();
    world.create(Kind::Deployment, workload("te", 2));
    world.run();
    let (sets, pods) = (world.names(Kind::ReplicaSet), world.pods());
    world.delete(Kind::Deployment, "te", Some(Propagation::Orphan));
    assert_eq!(world.names(Kind::Deployment), "");
    assert_eq!((world.names(Kind::ReplicaSet), world.pods()), (sets.clone(), pods.clone()));
    world.create(Kind::Deployment, workload("te", 2));
    world.run();
    assert_eq!((world.names(Kind::ReplicaSet), world.pods()), (sets, pods));
}

#[test]
fn an_orphan_that_is_ending_is_not_taken_over() {
    let mut world = World::new();
    world.create(Kind::ReplicaSet, workload("te", 1));
    world.run();
    let pod = world.pods();
    world.delete(Kind::ReplicaSet, "te", Some(Propagation::Orphan));
    world.delete(Kind::Pod, &pod, None);
    world.create(Kind::ReplicaSet, workload("te", 1));
    assert!(world.get(Kind::Pod, &pod)["metadata"].get("ownerReferences").is_none());
    assert_eq!(world.pods().split(' ').count(), 2, "another is made in its place");
}

#[test]
fn a_replica_set_orphans_a_pod_whose_label_is_changed() {
    let mut world = World::new();
    world.create(Kind::ReplicaSet, workload("te", 1));
    world.run();
    let odd = world.pods();
    world.edit(Kind::Pod, &odd, |pod| pod["metadata"]["labels"]["app"] = json!("debug"));
    settle(&mut world.store);
    assert_eq!(world.pods().split(' ').count(), 2);
    assert!(world.get(Kind::Pod, &odd)["metadata"].get("ownerReferences").is_none());
}
