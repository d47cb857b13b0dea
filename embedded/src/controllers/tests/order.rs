//! The end does not depend on the order in which the kubelet finds time for its pods.

use super::{World, stateful_set, with_claims, workload};
use crate::hollow;
use crate::object::{is_deleting, text};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Ids};
use serde_json::json;

/// What a busy quarter of an hour asks for, each with a few steps of the kubelet in between.
fn story(seed: u64) -> String {
    let mut world = World::new();
    let mut chance = Ids::new(seed);
    let steps = |world: &mut World, chance: &mut Ids| {
        for _ in 0..chance.number() % 6 {
            let due = hollow::due(&world.store);
            if due.is_empty() {
                return;
            }
            let any = usize::try_from(chance.number()).unwrap() % due.len();
            hollow::act(&mut world.store, &due[any]);
            never_two_on_one_claim(world);
        }
    };
    world.create(Kind::StatefulSet, with_claims(stateful_set(3, "Parallel"), "Delete", "Retain"));
    world.create(Kind::Deployment, workload("te", 3));
    steps(&mut world, &mut chance);
    world.scale(Kind::StatefulSet, "web", 1);
    world.scale(Kind::Deployment, "te", 5);
    steps(&mut world, &mut chance);
    world.edit(Kind::Deployment, "te", |te| te["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two"));
    world.scale(Kind::StatefulSet, "web", 4);
    steps(&mut world, &mut chance);
    let pods: Vec<String> = world.pods().split(' ').map(|pod| pod.trim_end_matches('!').to_owned()).collect();
    for pod in &pods {
        let grace = [None, Some(0), Some(30)][usize::try_from(chance.number() % 3).unwrap()];
        let force = DeleteOptions { grace_seconds: grace, ..DeleteOptions::default() };
        if chance.number().is_multiple_of(2) && world.store.find(&super::key(Kind::Pod, pod)).is_some() {
            world.store.delete(&super::key(Kind::Pod, pod), &force).unwrap();
        }
        steps(&mut world, &mut chance);
    }
    world
        .edit(Kind::StatefulSet, "web", |web| web["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two"));
    steps(&mut world, &mut chance);
    world.scale(Kind::StatefulSet, "web", 2);
    while let Some(due) = hollow::due(&world.store).last().cloned() {
        hollow::act(&mut world.store, &due);
    }
    summary(&world)
}

fn never_two_on_one_claim(world: &World) {
    let mut running: Vec<&str> = Vec::new();
    for pod in world.store.list(Kind::Pod, None).filter(|pod| !text(pod, "/spec/nodeName").is_empty()) {
        running.extend(crate::controllers::pods::claims(pod));
    }
    let pods = running.len();
    running.dedup();
    assert_eq!(running.len(), pods, "{running:?}");
}

/// What is there in the end, without names that are made by chance.
fn summary(world: &World) -> String {
    let mut lines = Vec::new();
    for kind in [Kind::PersistentVolumeClaim, Kind::StatefulSet, Kind::Deployment, Kind::ReplicaSet, Kind::Pod] {
        for object in world.store.list(kind, None) {
            assert!(!is_deleting(object), "{object}");
            let name = text(object, "/metadata/generateName");
            let name = if name.starts_with("te-") { name } else { crate::object::name(object) };
            let image = text(object, "/spec/containers/0/image");
            let counts = ["replicas", "readyReplicas", "updatedReplicas", "availableReplicas"];
            let counts = counts.map(|field| object["status"][field].as_i64().unwrap_or(0));
            lines.push(format!("{kind} {name} {image} {counts:?}"));
        }
    }
    lines.join("\n")
}

#[test]
fn every_order_ends_the_same() {
    let first = story(0);
    assert!(first.contains("Pod web-1 two") && !first.contains("web-2"), "{first}");
    for seed in 1..30 {
        assert_eq!(story(seed), first, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_story() {
    assert_eq!(story(5), story(5));
}
