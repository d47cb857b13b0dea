//! StatefulSets: order, identity, revisions.

use super::{World, stateful_set, with_claims};
use crate::object::{label, list, text};
use crate::resource::Kind;
use crate::store::DeleteOptions;
use serde_json::{Value, json};

#[test]
fn an_ordered_set_waits_for_each_pod() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(3, "OrderedReady"));
    assert_eq!(world.told(Kind::Pod), "+web-0");
    world.step("web-0");
    assert_eq!(world.told(Kind::Pod), "+web-1");
    world.run();
    assert_eq!(world.told(Kind::Pod), "+web-2");

    world.scale(Kind::StatefulSet, "web", 0);
    assert_eq!(world.told(Kind::Pod), "!web-2", "the highest first, and no other before it is gone");
    world.step("web-2");
    assert_eq!(world.told(Kind::Pod), "-web-2 !web-1");
    world.run();
    assert_eq!(world.told(Kind::Pod), "-web-1 !web-0 -web-0");
}

#[test]
fn an_ordered_set_does_not_shrink_past_a_pod_that_is_not_ready() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(4, "OrderedReady"));
    world.run();
    world.told(Kind::Pod);
    let unready = |pod: &mut Value| {
        for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = json!("False");
        }
    };
    world.status(Kind::Pod, "web-2", unready);
    world.status(Kind::Pod, "web-3", unready);
    world.scale(Kind::StatefulSet, "web", 2);
    assert_eq!(world.told(Kind::Pod), "", "web-3 might get ready, and web-2 is below it");
    world.delete(Kind::Pod, "web-3", None);
    world.run();
    assert_eq!(world.told(Kind::Pod), "!web-3 -web-3 !web-2 -web-2", "nothing below web-2 is worth waiting for it");
}

#[test]
fn a_parallel_set_waits_for_none() {
    let mut world = World::new();
    let mut set = stateful_set(3, "Parallel");
    set["spec"]["ordinals"] = json!({"start": 5});
    world.create(Kind::StatefulSet, set);
    assert_eq!(world.told(Kind::Pod), "+web-5 +web-6 +web-7");
    world.run();
    world.scale(Kind::StatefulSet, "web", 1);
    assert_eq!(world.told(Kind::Pod), "!web-7 !web-6");
    world.edit(Kind::StatefulSet, "web", |set| set["spec"]["ordinals"]["start"] = json!(6));
    assert_eq!(world.told(Kind::Pod), "!web-5", "its range moved away");
    world.step("web-6");
    assert_eq!(world.told(Kind::Pod), "-web-6 +web-6", "wanted again, but only once the old one is gone");
}

#[test]
fn a_pod_has_the_identity_of_its_ordinal() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, with_claims(stateful_set(1, "OrderedReady"), "Retain", "Retain"));
    let (pod, set) = (world.get(Kind::Pod, "web-0"), world.get(Kind::StatefulSet, "web"));
    assert_eq!(label(pod, "statefulset.kubernetes.io/pod-name"), Some("web-0"));
    assert_eq!(label(pod, "apps.kubernetes.io/pod-index"), Some("0"));
    assert_eq!(label(pod, "controller-revision-hash"), Some(text(set, "/status/updateRevision")));
    assert_eq!((text(pod, "/spec/hostname"), text(pod, "/spec/subdomain")), ("web-0", "web"));
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}]));
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], set["metadata"]["uid"]);
    let claim = world.get(Kind::PersistentVolumeClaim, "data-web-0");
    assert_eq!(claim["metadata"]["labels"], json!({"app": "web", "database": "demo"}));
    assert_eq!(
        world.events("StatefulSet"),
        [
            "SuccessfulCreate: create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "SuccessfulCreate: create Pod web-0 in StatefulSet web successful",
        ]
    );
}

#[test]
fn a_pod_that_ended_or_was_deleted_is_recreated() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(2, "OrderedReady"));
    world.run();
    world.told(Kind::Pod);
    world.status(Kind::Pod, "web-0", |pod| pod["status"]["phase"] = json!("Failed"));
    assert_eq!(world.told(Kind::Pod), "-web-0 +web-0", "nothing runs in it that could take time to end");
    world.run();
    world.delete(Kind::Pod, "web-0", None);
    assert_eq!(world.pods(), "web-0! web-1");
    world.run();
    assert_eq!(world.told(Kind::Pod), "!web-0 -web-0 +web-0");
    let force = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
    world.store.delete(&super::key(Kind::Pod, "web-1"), &force).unwrap();
    world.run();
    assert_eq!(world.told(Kind::Pod), "-web-1 +web-1");
}

#[test]
fn an_update_goes_from_the_highest_down_to_the_partition_and_can_be_undone() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(3, "OrderedReady"));
    world.run();
    let first = text(world.get(Kind::StatefulSet, "web"), "/status/currentRevision").to_owned();
    world.told(Kind::Pod);
    world.edit(Kind::StatefulSet, "web", |set| {
        set["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}});
        set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two");
    });
    assert_eq!(world.told(Kind::Pod), "!web-2");
    world.step("web-2");
    assert_eq!(world.told(Kind::Pod), "-web-2 +web-2", "the next waits until it is ready");
    world.run();
    assert_eq!(world.told(Kind::Pod), "!web-1 -web-1 +web-1");
    let status = &world.get(Kind::StatefulSet, "web")["status"];
    assert_eq!((&status["currentReplicas"], &status["updatedReplicas"]), (&json!(1), &json!(2)));
    assert_eq!(status["currentRevision"], first.as_str());

    world.delete(Kind::Pod, "web-0", None);
    world.run();
    let image = |world: &World, pod| world.get(Kind::Pod, pod)["spec"]["containers"][0]["image"].clone();
    assert_eq!(image(&world, "web-0"), "one", "below the partition it is what it was");
    assert_eq!(world.names(Kind::ControllerRevision).split(' ').count(), 2);

    world.edit(Kind::StatefulSet, "web", |set| set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(0));
    world.run();
    let status = &world.get(Kind::StatefulSet, "web")["status"];
    assert_eq!(status["currentRevision"], status["updateRevision"], "it is through");
    world.edit(Kind::StatefulSet, "web", |set| {
        set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("one");
    });
    world.run();
    assert_eq!(image(&world, "web-2"), "one");
    assert_eq!(text(world.get(Kind::StatefulSet, "web"), "/status/currentRevision"), first);
    assert_eq!(world.names(Kind::ControllerRevision).split(' ').count(), 2, "the first revision is the newest again");
}

#[test]
fn old_revisions_are_forgotten_beyond_the_limit() {
    let mut world = World::new();
    let mut set = stateful_set(1, "Parallel");
    set["spec"]["revisionHistoryLimit"] = json!(1);
    world.create(Kind::StatefulSet, set);
    for image in ["two", "three", "four"] {
        world.run();
        world.edit(Kind::StatefulSet, "web", |set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        });
    }
    world.run();
    let numbers =
        world.store.list(Kind::ControllerRevision, None).map(|revision| revision["revision"].as_i64().unwrap());
    let mut numbers: Vec<i64> = numbers.collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [3, 4]);
}

#[test]
fn a_set_that_updates_on_delete_replaces_nothing_by_itself() {
    let mut world = World::new();
    let mut set = stateful_set(2, "Parallel");
    set["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    world.create(Kind::StatefulSet, set);
    world.run();
    world.told(Kind::Pod);
    world.edit(Kind::StatefulSet, "web", |set| {
        set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two");
    });
    world.run();
    assert_eq!(world.told(Kind::Pod), "");
    world.delete(Kind::Pod, "web-0", None);
    world.run();
    assert_eq!(world.get(Kind::Pod, "web-0")["spec"]["containers"][0]["image"], "two");
    assert_eq!(world.get(Kind::StatefulSet, "web")["status"]["updatedReplicas"], 1);
}

#[test]
fn the_status_is_what_kubectl_waits_for() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(2, "Parallel"));
    world.run();
    let set = world.get(Kind::StatefulSet, "web");
    let revision = &set["status"]["updateRevision"];
    assert_eq!(
        set["status"],
        json!({
            "observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "currentReplicas": 2,
            "updatedReplicas": 2, "collisionCount": 0, "currentRevision": revision, "updateRevision": revision,
        })
    );
}

#[test]
fn a_pod_that_stays_ready_for_a_while_is_available() {
    let mut world = World::new();
    let mut set = stateful_set(2, "OrderedReady");
    set["spec"]["minReadySeconds"] = json!(10);
    world.create(Kind::StatefulSet, set);
    world.run();
    assert_eq!(world.pods(), "web-0", "ready, but not for long enough");
    assert_eq!(world.store.settled().1, Some("1970-01-01T00:00:10Z".parse().unwrap()));
    world.pass(10);
    assert_eq!(world.pods(), "web-0 web-1");
}

#[test]
fn the_pods_of_a_set_that_was_deleted_alone_are_taken_over_by_the_next() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(2, "Parallel"));
    world.run();
    world.told(Kind::Pod);
    world.delete(Kind::StatefulSet, "web", Some(crate::store::Propagation::Orphan));
    world.run();
    assert_eq!(world.names(Kind::StatefulSet), "");
    assert!(list(world.get(Kind::Pod, "web-0"), "/metadata/ownerReferences").is_empty());
    world.create(Kind::StatefulSet, stateful_set(2, "Parallel"));
    world.run();
    assert_eq!(world.told(Kind::Pod), "", "the same pods");
    let set = world.get(Kind::StatefulSet, "web");
    assert_eq!(world.get(Kind::Pod, "web-1")["metadata"]["ownerReferences"][0]["uid"], set["metadata"]["uid"]);
    assert_eq!(set["status"]["updatedReplicas"], 2);
}

#[test]
fn a_set_does_not_take_over_the_pods_of_its_predecessor() {
    let mut world = World::new();
    world.create(Kind::StatefulSet, stateful_set(1, "Parallel"));
    world.run();
    let before = world.get(Kind::Pod, "web-0")["metadata"]["uid"].clone();
    world.delete(Kind::StatefulSet, "web", None);
    world.create(Kind::StatefulSet, stateful_set(1, "Parallel"));
    assert_eq!(world.pods(), "web-0!", "the predecessor's; its name is not free yet");
    world.run();
    assert_eq!(world.pods(), "web-0");
    assert_ne!(world.get(Kind::Pod, "web-0")["metadata"]["uid"], before);
}
