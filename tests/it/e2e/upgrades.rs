//! The automatic upgrade of a protocol version after a rolling update of the example database: exactly one transaction
//! engine is restarted, whichever server leads the resync meanwhile.

use super::members::killed::arm;
use crate::domain::cluster::{Cluster, start_id};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{EnvVar, Pod, PodTemplateSpec};
use kaa::failpoints::Point;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::Value;
use testkit::eventually;

const BEFORE: (&str, &str) = ("4.2.3", "1376256=4.2");
const AFTER: (&str, &str) = ("4.3.1", "1376256=4.2,1441792=4.3");

/// Begin, raise, stop, done.
const COMMANDS: usize = 4;

/// Sets the release of a pod template.
fn run_release(template: &mut PodTemplateSpec, (release, protocols): (&str, &str)) {
    let engine = &mut template.spec.as_mut().expect("a pod").containers[0];
    let env = engine.env.get_or_insert_default();
    env.retain(|variable| !["KAA_ENGINE_VERSION", "KAA_PROTOCOL"].contains(&variable.name.as_str()));
    for (name, value) in [("KAA_ENGINE_VERSION", release), ("KAA_PROTOCOL", protocols)] {
        env.push(EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() });
    }
}

fn change_set(cluster: &Cluster, change: impl Fn(&mut StatefulSet)) {
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client(), cluster.namespace());
    eventually("statefulset sm-demo to be changed", || {
        let mut set = cluster.run(sets.get("sm-demo")).map_err(|error| error.to_string())?;
        change(&mut set);
        cluster.run(sets.replace("sm-demo", &PostParams::default(), &set)).map_err(|error| error.to_string())
    });
}

fn change_deployment(cluster: &Cluster, change: impl Fn(&mut Deployment)) {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), cluster.namespace());
    eventually("deployment te-demo to be changed", || {
        let mut deployment = cluster.run(deployments.get("te-demo")).map_err(|error| error.to_string())?;
        change(&mut deployment);
        let params = PostParams::default();
        cluster.run(deployments.replace("te-demo", &params, &deployment)).map_err(|error| error.to_string())
    });
}

/// Starts three admin servers, two storage managers and two transaction engines of the earlier release. The Deployment
/// asks for automatic upgrades.
fn prepared(cluster: &Cluster) {
    cluster.admins(3);
    cluster.example(0, 0);
    change_set(cluster, |set| run_release(&mut set.spec.template, BEFORE));
    change_deployment(cluster, |deployment| {
        run_release(&mut deployment.spec.template, BEFORE);
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        annotations.insert("nuodb.com/automatic-database-protocol-upgrade".to_owned(), "true".to_owned());
    });
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.wait("the storage managers", |c| c.running() == 2);
    cluster.scale("deployments", "te-demo", 2);
    cluster.wait("the transaction engines", |c| c.running() == 4);
    effective(cluster, "1376256");
    cluster.says("task list", "There are no tasks.");
}

fn effective(cluster: &Cluster, version: &str) {
    eventually(&format!("protocol version {version}"), || {
        let versions = cluster.rest("databases/demo/versions").unwrap_or_default();
        if versions["effectiveVersion"] == version { Ok(()) } else { Err(versions.to_string()) }
    });
}

/// Rolls the new release out.
fn rolled(cluster: &Cluster) {
    change_deployment(cluster, |deployment| {
        run_release(&mut deployment.spec.template, AFTER);
    });
    change_set(cluster, |set| run_release(&mut set.spec.template, AFTER));
}

/// The number in a field of a process's row.
fn number(process: &Value, field: &str) -> u64 {
    process[field].as_u64().expect(field)
}

/// Waits for the end of the task, and checks that every step happened exactly once.
fn judged(cluster: &Cluster) {
    cluster.says("task list", "[DONE] 3 of 3 steps: upgrade database demo");
    effective(cluster, "1441792");
    cluster.wait("four processes that run", |c| c.running() == 4);
    let (tasks, task) = (cluster.kaa("task list"), cluster.kaa("explain task/1"));
    assert_eq!(task.matches("is done").count(), 3, "each step was done once: {task}");
    let database = cluster.kaa("explain database/demo");
    assert_eq!(database.matches("its protocol version was raised from 1376256 (4.2) to 1441792 (4.3)").count(), 1);
    let done = tasks.lines().filter(|line| line.contains("[DONE]")).count();
    assert_eq!((done, tasks.matches("[RUNNING]").count()), (1, 0), "{tasks}");

    // In the pod of the chosen engine, another process with another node id runs now.
    let shown = cluster.kaa("task show 1");
    let words: Vec<&str> = shown.split_whitespace().collect();
    let at = words.windows(2).position(|pair| pair == ["restarts", "process"]).expect("the engine");
    let chosen: u64 = words[at + 2].trim_end_matches(',').parse().expect("a start id");
    let exited = cluster.rows("processes/exited");
    let before = &exited.iter().find(|row| start_id(&row["process"]) == chosen).expect("it has exited")["process"];
    let pod = &before["labels"]["pod-name"];
    let now = cluster.rows("processes").into_iter().find(|row| row["labels"]["pod-name"] == *pod).expect("it is back");
    assert!(start_id(&now) > chosen && number(&now, "nodeId") > number(before, "nodeId"), "{before}\n{now}");
    let restarts = |component: &str| {
        let pods: Api<Pod> = Api::namespaced(cluster.client(), cluster.namespace());
        let of_it = ListParams::default().labels(&format!("database=demo,component={component}"));
        let pods = cluster.run(pods.list(&of_it)).expect("pods").items;
        let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.flatten().map(|status| status.restart_count).sum::<i32>()
    };
    assert_eq!(restarts("te"), 1, "exactly one transaction engine was restarted");
    let asked = exited.iter().filter(|row| {
        let process = format!("explain process/{}", start_id(&row["process"]));
        cluster.kaa(&process).contains("asked to stop")
    });
    assert_eq!(asked.count(), 1, "one process was asked to stop");
}

/// An upgrade without any disturbance.
pub fn upgraded(cluster: &mut Cluster) {
    prepared(cluster);
    rolled(cluster);
    judged(cluster);
    cluster.says("plan", "Nothing to propose");
}

/// The resync leader is killed right after each of its commands.
pub fn leaders_killed(cluster: &mut Cluster) {
    prepared(cluster);
    let lines = format!("{}\n", Point::TaskStep.name()).repeat(COMMANDS);
    servers().iter().for_each(|server| arm(cluster, server, "upgrading", &lines));
    rolled(cluster);
    judged(cluster);
    let left: usize = servers().iter().map(|server| script(cluster, server).lines().count()).sum();
    assert_eq!(left, 3 * COMMANDS - COMMANDS, "one leader has died after each command");
}

/// The resync leader is paused right after each of its commands, until another server leads; then it continues from
/// there.
pub fn leaders_paused(cluster: &mut Cluster) {
    prepared(cluster);
    let line = format!("={}\n", Point::TaskStep.name());
    servers().iter().for_each(|server| arm(cluster, server, "upgrading", &line.repeat(COMMANDS)));
    rolled(cluster);
    let mut left: Vec<usize> = vec![COMMANDS; servers().len()];
    for _ in 0..COMMANDS {
        let paused = eventually("a leader to pause", || {
            let now: Vec<usize> = servers().iter().map(|server| script(cluster, server).lines().count()).collect();
            let paused = (0..left.len()).find(|at| now[*at] < left[*at]);
            paused.ok_or(format!("{now:?}"))
        });
        left[paused] -= 1;
        let server = &servers()[paused];
        eventually(&format!("another leader than {server}"), || {
            let holder = cluster.run(cluster.lease_holder());
            if holder == *server { Err(holder) } else { Ok(()) }
        });
        cluster.agent_of(server).signal("CONT");
    }
    judged(cluster);
    assert_eq!(left.iter().sum::<usize>(), 2 * COMMANDS, "one leader was paused after each command");
}

fn servers() -> [String; 3] {
    [0, 1, 2].map(|ordinal| format!("kaa-admin-{ordinal}"))
}

fn script(cluster: &Cluster, server: &str) -> String {
    std::fs::read_to_string(cluster.scripts().join(server).join("upgrading")).unwrap_or_default()
}
