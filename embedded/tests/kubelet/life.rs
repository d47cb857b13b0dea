//! Starting, failing, restarting, being ready.

use crate::world::{World, container, is_ready, runs, shell, status};
use embedded_kubernetes::resource::Kind;
use serde_json::json;

#[tokio::test]
async fn a_pod_runs_to_its_end() {
    let world = World::start();
    let mut spec = shell("echo out; echo err >&2; exit 3");
    spec["restartPolicy"] = json!("Never");
    spec["initContainers"] = json!([container("first", "echo init", &json!({}))]);
    world.run("p", spec);
    let pod = world.until_is("p", |pod| pod["status"]["phase"] == "Failed").await;
    let ended = &status(&pod, "main")["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(3), &json!("Error")));
    assert!(ended["message"].is_null(), "its policy is to take a file");
    assert_eq!(status(&pod, "first")["state"]["terminated"]["reason"], "Completed");
    let id = status(&pod, "main")["containerID"].as_str().unwrap();
    assert_eq!((id.starts_with("embedded://"), id.len()), (true, "embedded://".len() + 64));
    let log = world.log("p", |_| ()).await;
    assert!(log == "out\nerr\n" || log == "err\nout\n", "{log}");
    assert_eq!(world.log("p", |request| request.container = Some("first".to_owned())).await, "init\n");
    assert_eq!(world.told("p", "Started"), ["Started container first", "Started container main"]);
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_container_that_fails_leaves_the_end_of_its_log_if_it_is_to() {
    let world = World::start();
    let mut spec = shell("echo begins; echo it is damaged >&2; exit 3");
    spec["restartPolicy"] = json!("Never");
    spec["containers"][0]["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    world.run("p", spec);
    let pod = world.until_is("p", |pod| pod["status"]["phase"] == "Failed").await;
    let message = status(&pod, "main")["state"]["terminated"]["message"].as_str().unwrap();
    let mut lines: Vec<_> = message.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["begins", "it is damaged"]);
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_container_that_ends_is_started_again_under_another_id() {
    let world = World::start();
    let pod =
        world.run("p", shell("echo run >>../../runs; wc -l <../../runs; kill -9 $(cut -d' ' -f4 </proc/self/stat)"));
    let pod_at =
        |restarts: u64| move |pod: &serde_json::Value| status(pod, "main")["restartCount"].as_u64() >= Some(restarts);
    let second = world.until_is("p", pod_at(1)).await;
    let third = world.until_is("p", pod_at(2)).await;
    let last = &status(&third, "main")["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{last}");
    assert_ne!(status(&third, "main")["containerID"], status(&second, "main")["containerID"]);
    let held = world.until_is("p", |pod| status(pod, "main")["state"]["waiting"]["reason"] == "CrashLoopBackOff").await;
    let message = status(&held, "main")["state"]["waiting"]["message"].as_str().unwrap();
    let end = format!("restarting failed container=main pod=p_default({})", pod["metadata"]["uid"].as_str().unwrap());
    assert!(message.starts_with("back-off ") && message.ends_with(&end), "{message}");
    assert_eq!(world.told("p", "BackOff").len(), 1, "it is counted, not repeated");
    world.kubelet.stop().await;
}

#[tokio::test]
async fn what_cannot_be_started_says_why_and_starts_once_it_can() {
    let world = World::start();
    let reference =
        json!({"env": [{"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "color"}}}]});
    world.run("env", json!({"containers": [container("main", "echo $COLOR; sleep 1000", &reference)]}));
    let mut spec = shell("sleep 1000");
    spec["containers"][0]["image"] = json!("nothing:1");
    world.run("image", spec);
    let mut spec = shell("");
    spec["containers"][0]["command"] = json!(["no-such-program"]);
    spec["restartPolicy"] = json!("Never");
    world.run("program", spec);
    let volumes = json!([{"name": "v", "configMap": {"name": "map"}}]);
    world.run("volume", json!({"containers": [container("main", "sleep 1000", &json!({}))], "volumes": volumes}));

    let waits = |reason: &'static str| {
        move |pod: &serde_json::Value| status(pod, "main")["state"]["waiting"]["reason"] == reason
    };
    let pod = world.until_is("env", waits("CreateContainerConfigError")).await;
    assert_eq!(status(&pod, "main")["state"]["waiting"]["message"], "configmap \"map\" not found");
    let pod = world.until_is("image", waits("ImagePullBackOff")).await;
    let message = &status(&pod, "main")["state"]["waiting"]["message"];
    assert_eq!(message, "image \"nothing:1\" is not known here: known are [\"shell\"]");
    let pod = world.until_is("program", |pod| pod["status"]["phase"] == "Failed").await;
    let ended = &status(&pod, "main")["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(128), &json!("StartError")));
    let message = "unable to start container process: exec: \"no-such-program\": executable file not found in $PATH";
    assert_eq!(ended["message"], message);
    world.until_is("volume", waits("ContainerCreating")).await;
    let why = "MountVolume.SetUp failed for volume \"v\" : configmap \"map\" not found";
    assert_eq!(world.told("volume", "FailedMount"), [why]);
    assert_eq!(
        world.log("volume", |_| ()).await,
        "400: container \"main\" in pod \"volume\" is waiting to start: ContainerCreating"
    );

    world.create(Kind::ConfigMap, "map", json!({"data": {"color": "blue"}}));
    world.until_is("env", |pod| runs(pod, "main")).await;
    world.until_says("env", "blue").await;
    world.until_is("volume", |pod| runs(pod, "main")).await;
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_pod_is_ready_when_its_probe_says_so_and_only_as_long() {
    let world = World::start();
    let probe = json!({"exec": {"command": ["test", "-e", "/state/ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    let more = json!({"readinessProbe": probe, "volumeMounts": [{"name": "state", "mountPath": "/state"}]});
    let volumes = json!([{"name": "state", "emptyDir": {}}]);
    world.run("p", json!({"containers": [container("main", "sleep 1000", &more)], "volumes": volumes}));
    let pod = world.until_is("p", |pod| runs(pod, "main")).await;
    assert!(!is_ready(&pod) && status(&pod, "main")["started"] == true, "{pod:#}");
    let file = world.directory_of(&pod).join("volumes/state/ready");
    std::fs::write(&file, "").unwrap();
    world.until_is("p", is_ready).await;
    std::fs::remove_file(&file).unwrap();
    let pod = world.until_is("p", |pod| !is_ready(pod)).await;
    assert!(runs(&pod, "main"));
    assert_eq!(world.told("p", "Unhealthy"), ["Readiness probe failed: command terminated with exit code 1"]);
    world.kubelet.stop().await;
}

#[tokio::test]
async fn a_container_that_does_not_live_is_killed_and_started_again() {
    let world = World::start();
    let more = json!({
        "ports": [{"name": "http", "containerPort": 9}],
        "startupProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
    });
    world.run(
        "p",
        json!({"containers": [container("main", "trap 'exit 5' TERM; while :; do sleep 0.01; done", &more)]}),
    );
    let pod = world.until_is("p", |pod| status(pod, "main")["restartCount"].as_u64() >= Some(1)).await;
    assert_eq!(status(&pod, "main")["lastState"]["terminated"]["exitCode"], 5, "{pod:#}");
    let address = pod["status"]["podIP"].as_str().unwrap();
    let why = format!("Liveness probe failed: dial tcp {address}:9: connect: connection refused");
    assert_eq!(world.told("p", "Unhealthy"), [why]);
    assert_eq!(world.told("p", "Killing"), ["Container main failed liveness probe, will be restarted"]);
    world.kubelet.stop().await;
}

#[tokio::test]
async fn http_answers_decide_by_their_code() {
    let world = World::start();
    // One server for both pods: a probe may name a host.
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut head = vec![0; 1024];
            let count = stream.read(&mut head).await.unwrap();
            let code = if head[..count].starts_with(b"GET /good HTTP/1.1\r\n") { "200 OK" } else { "503 No" };
            stream.write_all(format!("HTTP/1.1 {code}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
        }
    });
    for path in ["good", "bad"] {
        let probe = json!({"httpGet": {"path": path, "port": port, "host": "127.0.0.1"}, "periodSeconds": 1});
        let spec = json!({"containers": [container("main", "sleep 1000", &json!({"readinessProbe": probe}))]});
        world.run(path, spec);
    }
    world.until_is("good", is_ready).await;
    world.until_is("bad", |_| !world.told("bad", "Unhealthy").is_empty()).await;
    assert_eq!(world.told("bad", "Unhealthy"), ["Readiness probe failed: HTTP probe failed with statuscode: 503"]);
    assert_eq!(world.told("good", "Unhealthy"), [] as [&str; 0]);
    world.kubelet.stop().await;
}
