//! Deletion, and that nothing is left running.

use crate::world::{World, config, container, ends, processes, runs, shell, status};
use embedded_kubernetes::kubelet::Kubelet;
use embedded_kubernetes::tokens::Tokens;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Says that it runs, then does not care for SIGTERM.
const STUBBORN: &str = "trap 'echo heard' TERM; echo up; while :; do sleep 0.01; done";

#[tokio::test]
async fn a_deleted_pod_is_asked_to_end_and_gone_once_it_has() {
    let world = World::start();
    world.run("p", shell("trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done"));
    world.until_says("p", "up").await;
    world.delete("p", None);
    let last = world.until_gone("p").await;
    assert!(ends(&last));
    assert_eq!(status(&last, "main")["state"]["terminated"]["exitCode"], 7, "{last:#}");
    assert_eq!(last["status"]["phase"], "Failed");
    assert_eq!(world.told("p", "Killing"), ["Stopping container main"]);
    assert!(!world.directory_of(&last).exists());
    world.kubelet.stop().await;
}

#[tokio::test]
async fn one_that_does_not_listen_is_killed_after_its_grace() {
    let world = World::start();
    world.run("p", shell(STUBBORN));
    world.until_says("p", "up").await;
    world.delete("p", Some(1));
    world.until_says("p", "heard").await;
    let last = world.until_gone("p").await;
    assert_eq!(status(&last, "main")["state"]["terminated"]["exitCode"], 137, "{last:#}");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_grace_can_be_made_shorter() {
    let world = World::start();
    world.run("p", shell(STUBBORN));
    world.until_says("p", "up").await;
    world.delete("p", Some(1_000));
    world.until_says("p", "heard").await;
    world.delete("p", Some(1));
    world.until_gone("p").await;
    world.kubelet.stop().await;
}

#[tokio::test]
async fn what_a_container_started_ends_with_it() {
    let world = World::start();
    // In the session, out of it with the environment, in it without: three ways to be left behind. Their directory, as
    // an argument, tells whose they are.
    let orphans =
        "sh -c 'sleep 1000; :' $HOME & setsid sh -c 'sleep 1000; :' $HOME & env -i sh -c 'sleep 1000; :' $HOME &";
    world.run("p", shell(&format!("{orphans} echo up; sleep 1000; :")));
    world.until_says("p", "up").await;
    let directory = world.directory.path().canonicalize().unwrap().display().to_string();
    let left = || {
        let entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("cmdline"));
        entries.filter(|path| std::fs::read_to_string(path).is_ok_and(|command| command.contains(&directory))).count()
    };
    let started = async {
        while left() != 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), started).await.unwrap();
    world.delete("p", Some(0));
    world.until_gone("p").await;
    world.kubelet.stop().await;
    assert_eq!(left(), 0);
}

#[tokio::test]
async fn a_hook_runs_before_the_signal() {
    let world = World::start();
    let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >>/shared/order"]}}},
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]});
    let script =
        "trap 'echo signal >>/shared/order; cat /shared/order; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let volumes = json!([{"name": "shared", "emptyDir": {}}]);
    world.run("p", json!({"containers": [container("main", script, &hook)], "volumes": volumes}));
    world.until_says("p", "up").await;
    let log = world.log("p", |request| request.follow = true);
    world.delete("p", None);
    assert_eq!(log.await, "up\nhook\nsignal\n");
    let last = world.until_gone("p").await;
    assert_eq!(last["status"]["phase"], "Succeeded");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_pod_of_the_same_name_waits_until_the_one_before_has_ended() {
    let world = World::start();
    let volumes = json!([{"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}}]);
    let mounts = json!({"volumeMounts": [{"name": "claim", "mountPath": "/claim"}]});
    let script = "trap 'rmdir /claim/alone; exit' TERM; mkdir /claim/alone && echo up; while :; do sleep 0.01; done";
    world.claim();
    let spec =
        || json!({"containers": [container("main", script, &mounts)], "volumes": volumes, "restartPolicy": "Never"});
    let first = world.run("p", spec());
    world.until_says("p", "up").await;
    world.delete("p", Some(0));
    let second = world.run("p", spec());
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    world.until_is("p", |pod| runs(pod, "main")).await;
    world.until_says("p", "up").await;
    assert_eq!(world.log("p", |_| ()).await, "up\n", "it had the volume to itself");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn nothing_is_left_when_the_node_stops() {
    let world = World::start();
    for name in ["a", "b"] {
        world.run(name, shell("sleep 1000 & echo up; sleep 1000; true"));
        world.until_says(name, "up").await;
    }
    assert!(processes(world.directory.path()).len() >= 4);
    world.kubelet.stop().await;
    assert_eq!(processes(world.directory.path()), [] as [&str; 0]);
    let pod = world.until_is("a", |_| true).await;
    assert!(runs(&pod, "main"), "the objects are left as they are");
}

#[tokio::test]
async fn nothing_is_left_when_the_node_is_dropped() {
    let world = World::start();
    world.run("p", shell("sleep 1000 & echo up; sleep 1000; true"));
    world.until_says("p", "up").await;
    let World { kubelet, directory, .. } = world;
    drop(kubelet);
    let gone = async {
        while !processes(directory.path()).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
}

#[tokio::test]
async fn what_a_former_node_left_running_is_ended() {
    let world = World::start();
    let directory = world.directory.path();
    let mark = format!("{}#former", directory.canonicalize().unwrap().display());
    let mut left = tokio::process::Command::new("sleep").arg("1000").env("EMBEDDED_CONTAINER", mark).spawn().unwrap();
    let other = format!("{}2#other", directory.canonicalize().unwrap().display());
    let mut other = tokio::process::Command::new("sleep").arg("1000").env("EMBEDDED_CONTAINER", other).spawn().unwrap();
    world.kubelet.stop().await;
    let again = Kubelet::start(world.instance.clone(), Arc::new(Tokens::new().unwrap()), config(directory)).unwrap();
    assert_eq!(left.wait().await.unwrap().code(), None, "it was killed");
    assert_eq!(other.try_wait().unwrap(), None, "it belongs to another node");
    other.kill().await.unwrap();
    again.stop().await;
}
