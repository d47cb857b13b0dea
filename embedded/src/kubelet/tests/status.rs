//! What a status says, compared with what a kubelet of Kubernetes 1.33 wrote for the same.

use super::{Member, Policy, Report};
use crate::object::{list, text};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn member(name: &str, init: bool) -> Member {
    Member::new(name, "image", init, SignedDuration::from_secs(10))
}

fn ran(name: &str, init: bool, code: i32) -> Member {
    let mut member = member(name, init);
    member.start(format!("{name}1"), at(1));
    member.end(code, String::new(), at(2));
    member
}

fn runs(name: &str, ready: bool) -> Member {
    let mut member = member(name, false);
    member.start(format!("{name}1"), at(1));
    (member.started, member.ready) = (true, ready);
    member
}

fn written(members: &[Member], policy: Policy, over: bool) -> Value {
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{}]}});
    let mut status = json!({"conditions": [
        {"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": "1970-01-01T00:00:00Z"},
        {"type": "example.com/gate", "status": "True"},
    ]});
    let (host, address) = (Ipv4Addr::new(127, 77, 0, 1), Some(Ipv4Addr::new(127, 77, 0, 2)));
    Report { members, policy, pod: &pod, host, address, started_at: at(0), over, now: at(5) }.write(&mut status);
    status
}

/// The phase, each condition, and each container: a status in a few lines.
fn told(members: &[Member], policy: Policy, over: bool) -> String {
    let status = written(members, policy, over);
    let mut lines = vec![text(&status, "/phase").to_owned()];
    for condition in list(&status, "/conditions") {
        let [kind, holds, reason, message] =
            ["type", "status", "reason", "message"].map(|field| text(condition, &format!("/{field}")));
        lines.push(format!("{kind}={holds} {reason} {message}").trim_end().to_owned());
    }
    for container in list(&status, "/initContainerStatuses").iter().chain(list(&status, "/containerStatuses")) {
        let (name, ready) = (&container["name"], &container["ready"]);
        lines.push(format!("{name} ready={ready} {} last {}", container["state"], container["lastState"]));
    }
    lines.join("\n")
}

#[test]
fn a_pod_whose_init_container_runs() {
    let mut first = member("first", true);
    first.start("first1".to_owned(), at(1));
    assert_eq!(
        told(&[first, member("main", false), member("side", false)], Policy::Always, false),
        r#"Pending
PodReadyToStartContainers=True
Initialized=False ContainersNotInitialized containers with incomplete status: [first]
Ready=False ContainersNotReady containers with unready status: [main side]
ContainersReady=False ContainersNotReady containers with unready status: [main side]
PodScheduled=True
example.com/gate=True
"first" ready=false {"running":{"startedAt":"1970-01-01T00:00:01Z"}} last {}
"main" ready=false {"waiting":{"reason":"PodInitializing"}} last {}
"side" ready=false {"waiting":{"reason":"PodInitializing"}} last {}"#
    );
}

#[test]
fn a_pod_that_crashes_and_one_that_is_not_ready() {
    let mut crashing = ran("main", false, 3);
    crashing.start("main2".to_owned(), at(2));
    crashing.end(3, String::new(), at(3));
    assert_eq!(
        told(&[crashing, runs("side", false)], Policy::Always, false),
        r#"Running
PodReadyToStartContainers=True
Initialized=True
Ready=False ContainersNotReady containers with unready status: [main side]
ContainersReady=False ContainersNotReady containers with unready status: [main side]
PodScheduled=True
example.com/gate=True
"main" ready=false {"waiting":{"message":"back-off 10s restarting failed container=main pod=p_n(u)","reason":"CrashLoopBackOff"}} last {"terminated":{"containerID":"embedded://main2","exitCode":3,"finishedAt":"1970-01-01T00:00:03Z","reason":"Error","startedAt":"1970-01-01T00:00:02Z"}}
"side" ready=false {"running":{"startedAt":"1970-01-01T00:00:01Z"}} last {}"#
    );
}

#[test]
fn a_pod_that_failed() {
    assert_eq!(
        told(&[ran("first", true, 0), ran("main", false, 1), ran("ok", false, 0)], Policy::Never, false),
        r#"Failed
PodReadyToStartContainers=False
Initialized=True
Ready=False PodFailed
ContainersReady=False PodFailed
PodScheduled=True
example.com/gate=True
"first" ready=true {"terminated":{"containerID":"embedded://first1","exitCode":0,"finishedAt":"1970-01-01T00:00:02Z","reason":"Completed","startedAt":"1970-01-01T00:00:01Z"}} last {}
"main" ready=false {"terminated":{"containerID":"embedded://main1","exitCode":1,"finishedAt":"1970-01-01T00:00:02Z","reason":"Error","startedAt":"1970-01-01T00:00:01Z"}} last {}
"ok" ready=false {"terminated":{"containerID":"embedded://ok1","exitCode":0,"finishedAt":"1970-01-01T00:00:02Z","reason":"Completed","startedAt":"1970-01-01T00:00:01Z"}} last {}"#
    );
}

#[test]
fn the_phase_is_that_of_all_containers_together() {
    let phase = |members: &[Member], policy, over| super::phase(members, policy, over);
    assert_eq!(phase(&[runs("a", true), member("b", false)], Policy::Always, false), "Pending");
    assert_eq!(phase(&[runs("a", true), ran("b", false, 1)], Policy::Never, false), "Running");
    assert_eq!(phase(&[ran("a", false, 0), ran("b", false, 0)], Policy::OnFailure, false), "Succeeded");
    assert_eq!(phase(&[ran("a", false, 0)], Policy::Always, false), "Running");
    assert_eq!(phase(&[ran("a", false, 0)], Policy::Always, true), "Succeeded", "it was deleted");
    assert_eq!(phase(&[ran("a", false, 143)], Policy::Always, true), "Failed", "it was deleted");
    assert_eq!(phase(&[ran("a", true, 1), member("b", false)], Policy::Never, false), "Failed");
    assert_eq!(phase(&[ran("a", true, 1), member("b", false)], Policy::Always, false), "Pending");
}

#[test]
fn a_condition_that_stays_keeps_its_time() {
    let status = written(&[runs("a", true)], Policy::Always, false);
    let time_of = |kind: &str| {
        let all = list(&status, "/conditions");
        all.iter().find(|one| one["type"] == kind).map(|one| text(one, "/lastTransitionTime").to_owned())
    };
    assert_eq!(time_of("PodScheduled").as_deref(), Some("1970-01-01T00:00:00Z"));
    assert_eq!(time_of("Ready").as_deref(), Some("1970-01-01T00:00:05Z"));
}

#[test]
fn a_delay_is_written_as_go_writes_it() {
    let cases = [(200, "200ms"), (1_000, "1s"), (10_000, "10s"), (80_000, "1m20s"), (300_000, "5m0s"), (1_500, "1.5s")];
    for (millis, text) in cases {
        assert_eq!(super::go_duration(SignedDuration::from_millis(millis)), text);
    }
}

#[test]
fn the_quality_follows_from_requests_and_limits() {
    let quality = |resources: Value| super::quality(&json!({"spec": {"containers": [{"resources": resources}]}}));
    assert_eq!(quality(json!({})), "BestEffort");
    assert_eq!(quality(json!({"requests": {"cpu": "1"}})), "Burstable");
    let both = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(quality(json!({"limits": both})), "Guaranteed");
    assert_eq!(quality(json!({"limits": both, "requests": {"cpu": "500m"}})), "Burstable");
}
