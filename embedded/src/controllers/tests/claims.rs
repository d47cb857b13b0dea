//! Claims: whom they belong to, and how long they stay.

use super::{World, claim, pod_with_claim, stateful_set, with_claims};
use crate::object::{list, text, uid};
use crate::resource::Kind;
use serde_json::{Value, json};

fn claims(world: &World) -> String {
    world.names(Kind::PersistentVolumeClaim)
}

/// A set of two pods that run, and then one.
fn scaled_down(when_scaled: &str, when_deleted: &str) -> World {
    let mut world = World::new();
    world.create(Kind::StatefulSet, with_claims(stateful_set(2, "OrderedReady"), when_scaled, when_deleted));
    world.run();
    assert_eq!(claims(&world), "data-web-0 data-web-1");
    world.scale(Kind::StatefulSet, "web", 1);
    world.run();
    world
}

#[test]
fn a_claim_is_bound_at_once_to_a_volume_named_for_its_uid() {
    let mut world = World::new();
    world.create(Kind::PersistentVolumeClaim, claim("c", "ReadWriteOnce"));
    let claim = world.get(Kind::PersistentVolumeClaim, "c");
    assert_eq!(text(claim, "/spec/volumeName"), format!("pvc-{}", uid(claim)));
    let status = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
    assert_eq!(claim["status"], status);
}

#[test]
fn a_claim_outlives_its_ordinal_and_its_set() {
    let mut world = scaled_down("Retain", "Retain");
    assert_eq!(claims(&world), "data-web-0 data-web-1");
    let before = uid(world.get(Kind::PersistentVolumeClaim, "data-web-1")).to_owned();
    world.delete(Kind::StatefulSet, "web", None);
    world.run();
    assert_eq!(claims(&world), "data-web-0 data-web-1");
    world.create(Kind::StatefulSet, with_claims(stateful_set(2, "OrderedReady"), "Retain", "Retain"));
    world.run();
    assert_eq!(uid(world.get(Kind::PersistentVolumeClaim, "data-web-1")), before, "the same data for the same ordinal");
}

#[test]
fn a_claim_goes_with_its_ordinal() {
    let mut world = scaled_down("Delete", "Retain");
    assert_eq!(claims(&world), "data-web-0");
    assert!(list(world.get(Kind::PersistentVolumeClaim, "data-web-0"), "/metadata/ownerReferences").is_empty());
    world.delete(Kind::StatefulSet, "web", None);
    world.run();
    assert_eq!(claims(&world), "data-web-0");
}

#[test]
fn a_claim_goes_with_its_set() {
    let mut world = scaled_down("Retain", "Delete");
    assert_eq!(claims(&world), "data-web-0 data-web-1");
    world.edit(Kind::StatefulSet, "web", |set| {
        set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = json!("Retain");
    });
    let updated = "SuccessfulUpdate: update Pod web-0 in StatefulSet web successful".to_owned();
    assert_eq!(world.events("StatefulSet").last(), Some(&updated), "its claim stays now");
    world.edit(Kind::StatefulSet, "web", |set| {
        set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = json!("Delete");
    });
    world.delete(Kind::StatefulSet, "web", None);
    world.run();
    assert_eq!(claims(&world), "", "also that of the ordinal that is not wanted: without a pod no change reaches it");
}

/// Whether the claim of an ordinal is the same as before, when the ordinal is wanted again while its pod still ends.
fn is_kept_by_coming_back(policy: &str) -> bool {
    let mut world = World::new();
    world.create(Kind::StatefulSet, protected(with_claims(stateful_set(2, policy), "Delete", "Retain")));
    world.run();
    let before = uid(world.get(Kind::PersistentVolumeClaim, "data-web-1")).to_owned();
    world.scale(Kind::StatefulSet, "web", 1);
    let owner = &world.get(Kind::PersistentVolumeClaim, "data-web-1")["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("Pod"), &json!("web-1")));
    world.scale(Kind::StatefulSet, "web", 2);
    world.run();
    assert_eq!((world.pods().as_str(), claims(&world).as_str()), ("web-0 web-1", "data-web-0 data-web-1"));
    uid(world.get(Kind::PersistentVolumeClaim, "data-web-1")) == before
}

#[test]
fn an_ordinal_that_is_wanted_again_keeps_its_claim_only_if_the_set_waits_for_nothing() {
    assert!(is_kept_by_coming_back("Parallel"));
    assert!(!is_kept_by_coming_back("OrderedReady"), "it waits for the pod to end, and the claim ends with the pod");
}

#[test]
fn a_claim_in_use_goes_with_its_pod_and_comes_back_another() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, protected(with_claims(stateful_set(1, "OrderedReady"), "Retain", "Retain")));
    world.run();
    let before = uid(world.get(Kind::PersistentVolumeClaim, "data-web-0")).to_owned();
    world.delete(Kind::PersistentVolumeClaim, "data-web-0", None);
    assert_eq!(claims(&world), "data-web-0!", "its pod uses it");
    world.delete(Kind::Pod, "web-0", None);
    assert_eq!(claims(&world), "data-web-0!", "the pod still ends");
    world.run();
    assert_eq!((world.pods().as_str(), claims(&world).as_str()), ("web-0", "data-web-0"));
    assert_ne!(uid(world.get(Kind::PersistentVolumeClaim, "data-web-0")), before);
    assert_eq!(text(world.get(Kind::Pod, "web-0"), "/status/phase"), "Running");
}

/// The finalizer that defaults give each claim, in the template.
fn protected(mut set: Value) -> Value {
    set["spec"]["volumeClaimTemplates"][0]["metadata"]["finalizers"] = json!([crate::defaults::CLAIM_PROTECTION]);
    set
}

#[test]
fn a_pod_that_ended_protects_its_claim_and_one_without_a_node_does_not() {
    let mut world = World::new();
    world.create(Kind::PersistentVolumeClaim, claim("c", "ReadWriteOnce"));
    world.create(Kind::Pod, pod_with_claim("one", "c"));
    world.run();
    world.status(Kind::Pod, "one", |pod| pod["status"]["phase"] = json!("Succeeded"));
    world.delete(Kind::PersistentVolumeClaim, "c", None);
    assert_eq!(claims(&world), "c!");
    world.create(Kind::Pod, pod_with_claim("two", "c"));
    assert_eq!(text(world.get(Kind::Pod, "two"), "/spec/nodeName"), "", "the claim is on its way out");
    world.delete(Kind::Pod, "one", None);
    assert_eq!(claims(&world), "");
}
