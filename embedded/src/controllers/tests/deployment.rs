//! Deployments and ReplicaSets.

use super::{World, workload};
use crate::object::{label, name, text};
use crate::resource::Kind;
use crate::store::Propagation;
use serde_json::{Value, json};

fn deployment(replicas: i64, surge: Value, unavailable: Value) -> Value {
    let mut deployment = workload("te", replicas);
    let rolling = json!({"maxSurge": surge, "maxUnavailable": unavailable});
    deployment["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
    deployment
}

fn running(deployment: Value) -> World {
    let mut world = World::new();
    world.create(Kind::Deployment, deployment);
    world.run();
    world
}

/// What `kubectl rollout restart` does.
fn restart(world: &mut World, at: &str) {
    world.edit(Kind::Deployment, "te", |deployment| {
        deployment["spec"]["template"]["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/restartedAt": at});
    });
}

fn scalings(world: &World) -> Vec<String> {
    let said = world.events("Deployment").into_iter();
    // Names end in a hash: what counts is how many.
    let counts = |said: String| said.replace("ScalingReplicaSet: Scaled ", "").replace("replica set ", "");
    said.map(counts)
        .map(|said| [said.split(' ').next().unwrap(), said.split_once(" from ").unwrap().1].join(" "))
        .collect()
}

fn condition<'a>(world: &'a World, kind: &str) -> &'a Value {
    crate::controllers::pods::condition(world.get(Kind::Deployment, "te"), kind).unwrap()
}

#[test]
fn its_replica_set_and_pods_carry_the_hash_of_the_template() {
    let world = running(deployment(2, json!("25%"), json!("25%")));
    let set = world.store.list(Kind::ReplicaSet, None).next().unwrap();
    let hash = label(set, "pod-template-hash").unwrap();
    assert_eq!(name(set), format!("te-{hash}"));
    assert_eq!(set["spec"]["selector"]["matchLabels"], json!({"app": "te", "pod-template-hash": hash}));
    for pod in world.store.list(Kind::Pod, None) {
        assert_eq!(label(pod, "pod-template-hash"), Some(hash));
        assert!(name(pod).starts_with(&format!("te-{hash}-")), "{}", name(pod));
    }
    let annotations = json!({
        "deployment.kubernetes.io/desired-replicas": "2", "deployment.kubernetes.io/max-replicas": "3",
        "deployment.kubernetes.io/revision": "1",
    });
    assert_eq!(set["metadata"]["annotations"], annotations);
    assert_eq!(set["status"]["availableReplicas"], 2);
}

#[test]
fn the_status_is_what_kubectl_waits_for() {
    let world = running(deployment(2, json!("25%"), json!("25%")));
    let mut status = world.get(Kind::Deployment, "te")["status"].clone();
    status.as_object_mut().unwrap().remove("conditions");
    assert_eq!(
        status,
        json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2})
    );
    assert_eq!(text(condition(&world, "Available"), "/reason"), "MinimumReplicasAvailable");
    let set = world.names(Kind::ReplicaSet);
    let said = format!("ReplicaSet {set:?} has successfully progressed.");
    assert_eq!(text(condition(&world, "Progressing"), "/message"), said);
}

#[test]
fn a_restart_adds_one_and_takes_one_until_all_are_new() {
    let mut world = running(deployment(2, json!("25%"), json!("25%")));
    let before = world.pods();
    restart(&mut world, "now");
    assert_eq!(world.pods().split(' ').count(), 3, "one more, and the old ones stay until it is ready");
    assert!(before.split(' ').all(|old| world.pods().contains(old)));
    world.run();
    assert_eq!(world.pods().split(' ').count(), 2);
    assert!(!before.split(' ').any(|old| world.pods().contains(old)));
    assert_eq!(
        scalings(&world),
        ["up 0 to 2", "up 0 to 1", "down 2 to 1", "up 1 to 2", "down 1 to 0"],
        "as Kubernetes does with the same objects"
    );
    assert_eq!(world.get(Kind::Deployment, "te")["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), "NewReplicaSetAvailable");
}

#[test]
fn without_a_surge_one_goes_first() {
    let mut world = running(deployment(3, json!(0), json!(1)));
    restart(&mut world, "now");
    assert_eq!(world.pods().matches('!').count(), 1);
    world.run();
    let steps = ["up 0 to 3", "down 3 to 2", "up 0 to 1", "down 2 to 1", "up 1 to 2", "down 1 to 0", "up 2 to 3"];
    assert_eq!(scalings(&world), steps);
}

#[test]
fn a_share_that_comes_to_nothing_still_lets_one_go() {
    let mut world = running(deployment(2, json!(0), json!("10%")));
    restart(&mut world, "now");
    world.run();
    assert_eq!(scalings(&world), ["up 0 to 2", "down 2 to 1", "up 0 to 1", "down 1 to 0", "up 1 to 2"]);
}

#[test]
fn a_pod_that_does_not_get_ready_stops_an_update_until_it_is_given_up() {
    let mut world = running(deployment(2, json!(1), json!(0)));
    restart(&mut world, "now");
    let on = "ReplicaSetUpdated";
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), on);
    world.pass(599);
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), on);
    world.pass(1);
    let late = condition(&world, "Progressing");
    assert_eq!((text(late, "/status"), text(late, "/reason")), ("False", "ProgressDeadlineExceeded"));
    world.run();
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), "NewReplicaSetAvailable");
}

#[test]
fn recreating_takes_all_away_before_anything_new() {
    let mut deployment = workload("te", 2);
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    let mut world = running(deployment);
    restart(&mut world, "now");
    assert_eq!(world.pods().matches('!').count(), 2);
    let sets = |world: &World| world.names(Kind::ReplicaSet).split(' ').count();
    assert_eq!(sets(&world), 1, "not even a ReplicaSet");
    world.run();
    assert_eq!((world.pods().split(' ').count(), sets(&world)), (2, 2));
}

#[test]
fn scaling_keeps_what_runs() {
    let mut world = running(deployment(2, json!("25%"), json!("25%")));
    let before = world.pods();
    world.scale(Kind::Deployment, "te", 4);
    world.run();
    assert!(before.split(' ').all(|old| world.pods().contains(old)));
    assert_eq!(world.pods().split(' ').count(), 4);
    world.scale(Kind::Deployment, "te", 0);
    world.run();
    assert_eq!(world.pods(), "");
    assert_eq!(scalings(&world), ["up 0 to 2", "up 2 to 4", "down 4 to 0"]);
}

#[test]
fn what_is_worth_least_goes_first() {
    let mut world = World::new();
    world.create(Kind::ReplicaSet, workload("te", 3));
    world.run();
    let mut names = world.pods();
    let unready = names.split(' ').nth(1).unwrap().to_owned();
    world.status(Kind::Pod, &unready, |pod| {
        for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = json!("False");
        }
    });
    world.scale(Kind::ReplicaSet, "te", 2);
    world.run();
    names = names.replace(&format!("{unready} "), "");
    assert_eq!(world.pods(), names);
    world.pass(60);
    world.scale(Kind::ReplicaSet, "te", 3);
    world.run();
    world.scale(Kind::ReplicaSet, "te", 2);
    world.run();
    assert_eq!(world.pods(), names, "the youngest");
}

#[test]
fn a_template_that_was_there_before_is_taken_from_the_history() {
    let mut world = running(deployment(1, json!(1), json!(0)));
    let first = world.names(Kind::ReplicaSet);
    restart(&mut world, "now");
    world.run();
    world.edit(Kind::Deployment, "te", |deployment| {
        deployment["spec"]["template"]["metadata"].as_object_mut().unwrap().remove("annotations");
    });
    world.run();
    assert_eq!(world.names(Kind::ReplicaSet).split(' ').count(), 2);
    assert!(world.pods().starts_with(&first), "{} is of {first}", world.pods());
    assert_eq!(world.get(Kind::Deployment, "te")["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
}

#[test]
fn a_name_that_is_taken_by_another_template_is_passed_over() {
    let mut world = running(deployment(1, json!(1), json!(0)));
    let taken = world.names(Kind::ReplicaSet);
    world.delete(Kind::Deployment, "te", Some(Propagation::Orphan));
    world.edit(Kind::ReplicaSet, &taken, |set| {
        set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two");
        set["metadata"]["labels"] = json!({"app": "other"});
    });
    world.create(Kind::Deployment, deployment(1, json!(1), json!(0)));
    world.run();
    assert_eq!(world.names(Kind::ReplicaSet).split(' ').count(), 2);
    let status = &world.get(Kind::Deployment, "te")["status"];
    assert_eq!((&status["collisionCount"], &status["updatedReplicas"]), (&json!(1), &json!(1)));
}

#[test]
fn old_templates_are_forgotten_beyond_the_limit() {
    let mut deployment = deployment(1, json!(1), json!(0));
    deployment["spec"]["revisionHistoryLimit"] = json!(1);
    let mut world = running(deployment);
    for at in ["one", "two", "three"] {
        restart(&mut world, at);
        world.run();
    }
    let revisions: Vec<&str> = world
        .store
        .list(Kind::ReplicaSet, None)
        .map(|set| set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str().unwrap())
        .collect();
    assert_eq!(revisions.len(), 2);
    assert!(revisions.contains(&"3") && revisions.contains(&"4"), "{revisions:?}");
}

#[test]
fn a_paused_deployment_is_scaled_but_not_updated() {
    let mut world = running(deployment(1, json!(1), json!(0)));
    world.edit(Kind::Deployment, "te", |deployment| deployment["spec"]["paused"] = json!(true));
    restart(&mut world, "now");
    world.scale(Kind::Deployment, "te", 2);
    world.run();
    assert_eq!(world.names(Kind::ReplicaSet).split(' ').count(), 1);
    assert_eq!(world.pods().split(' ').count(), 2);
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), "DeploymentPaused");
    world.edit(Kind::Deployment, "te", |deployment| deployment["spec"]["paused"] = json!(false));
    world.run();
    assert_eq!(world.names(Kind::ReplicaSet).split(' ').count(), 2);
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), "NewReplicaSetAvailable");
}

#[test]
fn one_that_is_resumed_after_a_pause_does_not_say_that_it_is_paused() {
    let mut world = running(deployment(1, json!(1), json!(0)));
    world.edit(Kind::Deployment, "te", |deployment| deployment["spec"]["paused"] = json!(true));
    world.scale(Kind::Deployment, "te", 2);
    world.edit(Kind::Deployment, "te", |deployment| deployment["spec"]["paused"] = json!(false));
    assert_eq!(text(condition(&world, "Progressing"), "/reason"), "ReplicaSetUpdated", "the second is not ready yet");
}

#[test]
fn an_update_waits_until_each_pod_was_ready_for_a_while() {
    let mut one = deployment(1, json!(1), json!(0));
    one["spec"]["minReadySeconds"] = json!(10);
    let mut world = running(one);
    world.pass(10);
    restart(&mut world, "now");
    world.run();
    assert_eq!(world.pods().split(' ').count(), 2, "the new one is ready, the old one still there");
    world.pass(10);
    world.run();
    assert_eq!(world.pods().split(' ').count(), 1);
}
