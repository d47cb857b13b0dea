//! What a container finds, and what can be asked of it.

use crate::world::{World, container, ended, runs, shell, status};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{DeleteOptions, Key, Part};
use serde_json::json;

#[tokio::test]
async fn a_container_knows_where_it_is() {
    let world = World::start();
    let more = json!({"env": [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "DATA", "value": "/data/x:$(NAME)"},
    ], "args": ["echo \"$NAME $IP $LISTEN $HOSTNAME $DATA $0 $1\"; cat \"$HOSTS\"; sleep 1000", "/data", "$(NAME)"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    world.run("p", json!({"containers": [container("main", "", &more)], "volumes": volumes}));
    let pod = world.until_is("p", |pod| runs(pod, "main")).await;
    let address = pod["status"]["podIP"].as_str().unwrap();
    let data = world.directory_of(&pod).join("volumes/data");
    let data = data.display();
    world.until_says("p", &format!("p {address} {address}:80 p {data}/x:p {data} p")).await;
    world.until_says("p", "127.0.0.1 localhost").await;
    world.kubelet.stop().await;
}

#[tokio::test]
async fn files_follow_what_they_are_made_from() {
    let world = World::start();
    world.create(Kind::ConfigMap, "map", json!({"data": {"a": "1", "b": "2"}}));
    world.create(Kind::Secret, "secret", json!({"data": {"word": "b3Blbg=="}}));
    let volumes = json!([
        {"name": "map", "configMap": {"name": "map"}},
        {"name": "all", "projected": {"defaultMode": 0o440, "sources": [
            {"secret": {"name": "secret", "items": [{"key": "word", "path": "deep/word"}]}},
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"serviceAccountToken": {"audience": "me", "path": "token"}},
        ]}},
    ]);
    let pod = world.create(Kind::Pod, "p", json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"nodeName": "embedded", "containers": [container("main", "sleep 1000", &json!({}))], "volumes": volumes},
    }));
    world.until_is("p", |pod| runs(pod, "main")).await;
    let directory = world.directory_of(&pod).join("volumes");
    let read = |path: &str| std::fs::read_to_string(directory.join(path)).unwrap();
    assert_eq!((read("map/a"), read("map/b"), read("all/deep/word")), ("1".into(), "2".into(), "open".into()));
    assert_eq!(read("all/labels"), "app=\"web\"");
    assert_eq!(read("all/token").split('.').count(), 3);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&directory.join("all/deep/word").metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o440);
    assert!(read("kube.api.access/kubeconfig").contains("tokenFile"));

    let map = Key::new(Kind::ConfigMap, "default", "map");
    world.instance.with(|store| store.edit(&map, Part::Main, |map| map["data"] = json!({"a": "3"}))).unwrap();
    let follows = async {
        while read("map/a") != "3" || directory.join("map/b").exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), follows).await.unwrap();
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_pod_that_wants_no_token_has_none() {
    let world = World::start();
    let mut spec = shell("echo \"<$KUBECONFIG>\"; sleep 1000");
    spec["automountServiceAccountToken"] = json!(false);
    world.run("p", spec);
    world.until_is("p", |pod| runs(pod, "main")).await;
    world.until_says("p", "<>").await;
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_volume_stays_with_its_claim_and_goes_with_it() {
    let world = World::start();
    let claim = Key::new(Kind::PersistentVolumeClaim, "default", "claim");
    let spec = || {
        json!({
            "restartPolicy": "Never",
            "containers": [container("main", "cat /archive/old; echo new >/archive/old",
                &json!({"volumeMounts": [{"name": "v", "mountPath": "/archive"}]}))],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}],
        })
    };
    let succeeds = |pod: &serde_json::Value| pod["status"]["phase"] == "Succeeded";
    let first = world.claim();
    world.run("one", spec());
    world.until_is("one", succeeds).await;
    world.run("two", spec());
    world.until_is("two", succeeds).await;
    assert_eq!(world.log("two", |_| ()).await, "new\n", "another pod finds what the first one left");

    world
        .instance
        .with(|store| {
            store.edit(&claim, Part::Main, |claim| claim["metadata"]["finalizers"] = json!([]))?;
            store.delete(&claim, &DeleteOptions::default())
        })
        .unwrap();
    let second = world.claim();
    world.run("three", spec());
    world.until_is("three", succeeds).await;
    let log = world.log("three", |_| ()).await;
    assert!(log.contains("No such file"), "a claim that was recreated is empty: {log}");
    let directory = |claim: &serde_json::Value| {
        world.directory.path().join("volumes").join(claim["metadata"]["uid"].as_str().unwrap())
    };
    assert_eq!((directory(&first).exists(), directory(&second).exists()), (false, true));
    world.kubelet.stop().await;
}

#[tokio::test]
async fn logs_are_those_of_this_run_or_the_one_before() {
    let world = World::start();
    let script = "if [ -e ../again ]; then echo second; sleep 1000; else touch ../again; echo first; exit 1; fi";
    world.run("p", shell(script));
    world.until_is("p", |pod| status(pod, "main")["restartCount"] == 1 && runs(pod, "main")).await;
    world.until_says("p", "second").await;
    assert_eq!(world.log("p", |_| ()).await, "second\n");
    assert_eq!(world.log("p", |request| request.previous = true).await, "first\n");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn refusals_are_in_the_words_of_kubernetes() {
    let world = World::start();
    let containers = json!([container("a", "sleep 1000", &json!({})), container("b", "true", &json!({}))]);
    let inits = json!([container("i", "true", &json!({}))]);
    world.run("p", json!({"containers": containers, "initContainers": inits, "restartPolicy": "Never"}));
    world.until_is("p", |pod| status(pod, "b")["state"].get("terminated").is_some()).await;
    let named = |container: &'static str| world.log("p", move |request| request.container = Some(container.to_owned()));
    assert_eq!(
        world.log("p", |_| ()).await,
        "400: a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
    );
    assert_eq!(named("c").await, "400: container c is not valid for pod p");
    assert_eq!(
        world.log("p", |request| (request.container, request.previous) = (Some("b".to_owned()), true)).await,
        "400: previous terminated container \"b\" in pod \"p\" not found"
    );
    assert_eq!(world.log("q", |_| ()).await, "404: pods \"q\" not found");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_command_in_a_container_has_its_environment_and_says_how_it_ended() {
    let world = World::start();
    let more = json!({"env": [{"name": "COLOR", "value": "blue"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    world.run(
        "p",
        json!({"containers": [container("main", "echo in >/v/file; echo up; sleep 1000", &more)], "volumes": volumes}),
    );
    world.until_is("p", |pod| runs(pod, "main")).await;
    world.until_says("p", "up").await;
    let run = |command: &[&str]| ended(world.exec("p", command, false).unwrap());
    assert_eq!(run(&["sh", "-c", "echo $COLOR; cat /v/file >&2; exit 7"]).await, ("blue\n".into(), "in\n".into(), 7));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).await, (String::new(), String::new(), 137));
    let execution = world.exec("p", &["cat"], true).unwrap();
    execution.stdin.as_ref().unwrap().send(b"hello".to_vec()).await.unwrap();
    assert_eq!(ended(execution).await, ("hello".into(), String::new(), 0));
    let error = world.exec("p", &["no-such-program"], false).unwrap_err();
    let end = "unable to start container process: exec: \"no-such-program\": executable file not found in $PATH";
    assert!(error.starts_with("500: Internal error occurred: ") && error.ends_with(end), "{error}");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_any_more_is_killed() {
    let world = World::start();
    world.run("p", shell("echo up; sleep 1000"));
    world.until_is("p", |pod| runs(pod, "main")).await;
    let mut execution = world.exec("p", &["sh", "-c", "echo $$; exec sleep 1000"], false).unwrap();
    let Some(embedded_kubernetes::runtime::Output::Stdout(pid)) = execution.output.recv().await else { panic!() };
    let path = format!("/proc/{}", String::from_utf8(pid).unwrap().trim());
    assert!(std::fs::exists(&path).unwrap());
    drop(execution);
    let gone = async {
        while std::fs::exists(&path).unwrap() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), gone).await.unwrap();
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_command_needs_a_container_that_runs() {
    let world = World::start();
    let mut spec = shell("exit 0");
    spec["restartPolicy"] = json!("Never");
    world.run("p", spec);
    world.until_is("p", |pod| pod["status"]["phase"] == "Succeeded").await;
    let error = world.exec("p", &["true"], false).unwrap_err();
    assert_eq!(error, "500: Internal error occurred: unable to upgrade connection: container not found (\"main\")");
    world.kubelet.stop().await;
}
