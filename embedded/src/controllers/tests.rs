//! What the controllers do, told over a store with a hollow kubelet.

mod claims;
mod deployment;
mod garbage;
mod order;
mod statefulset;

use super::settle;
use crate::hollow;
use crate::object::{self, list, name, text};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Event, Key, Part, Propagation, Store};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// A store with a node and the namespace `default`.
struct World {
    store: Store,
    seen: u64,
}

impl World {
    fn new() -> Self {
        let mut store = Store::new(7, Timestamp::UNIX_EPOCH);
        store.create(Kind::Namespace, json!({"metadata": {"name": "default"}})).unwrap();
        hollow::node(&mut store, "node");
        settle(&mut store);
        let seen = store.version();
        Self { store, seen }
    }

    fn create(&mut self, kind: Kind, mut object: Value) {
        object["metadata"]["namespace"] = json!("default");
        self.store.create(kind, object).unwrap();
        settle(&mut self.store);
    }

    fn edit(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) {
        self.store.edit(&key(kind, name), Part::Main, change).unwrap();
        settle(&mut self.store);
    }

    fn status(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) {
        self.store.edit(&key(kind, name), Part::Status, change).unwrap();
        settle(&mut self.store);
    }

    fn scale(&mut self, kind: Kind, name: &str, replicas: i64) {
        self.edit(kind, name, |object| object["spec"]["replicas"] = json!(replicas));
    }

    fn delete(&mut self, kind: Kind, name: &str, propagation: Option<Propagation>) {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        self.store.delete(&key(kind, name), &options).unwrap();
        settle(&mut self.store);
    }

    /// Lets the kubelet start or end one pod.
    fn step(&mut self, pod: &str) {
        let pod = key(Kind::Pod, pod);
        assert!(hollow::due(&self.store).contains(&pod), "nothing to be done for {pod:?}");
        hollow::act(&mut self.store, &pod);
    }

    /// Lets the kubelet start and end pods until there is nothing to be done.
    fn run(&mut self) {
        hollow::run_all(&mut self.store);
    }

    fn pass(&mut self, seconds: i64) {
        self.store.set_now(self.store.now() + SignedDuration::from_secs(seconds));
        settle(&mut self.store);
    }

    fn get(&self, kind: Kind, name: &str) -> &Value {
        self.store.get(&key(kind, name)).unwrap()
    }

    /// The names of a kind's objects; `web-1!` is one that is being deleted.
    fn names(&self, kind: Kind) -> String {
        let shown = |object: &Value| {
            let mark = if object::is_deleting(object) { "!" } else { "" };
            format!("{}{mark}", name(object))
        };
        let all: Vec<String> = self.store.list(kind, Some("default")).map(|object| shown(object)).collect();
        all.join(" ")
    }

    fn pods(&self) -> String {
        self.names(Kind::Pod)
    }

    /// What came (`+`), began to be deleted (`!`) and went (`-`) of a kind since this was asked last, in order.
    fn told(&mut self, kind: Kind) -> String {
        let mut told = Vec::new();
        for change in self.store.changes_since(self.seen).unwrap().filter(|change| change.key.kind == kind) {
            let began = object::is_deleting(&change.object)
                && !change.before.as_ref().is_some_and(|before| object::is_deleting(before));
            match change.event {
                Event::Added => told.push(format!("+{}", change.key.name)),
                Event::Modified if began => told.push(format!("!{}", change.key.name)),
                Event::Modified => {}
                Event::Deleted => told.push(format!("-{}", change.key.name)),
            }
        }
        self.seen = self.store.version();
        told.join(" ")
    }

    /// What the Events about objects of a kind say, as `REASON: MESSAGE`.
    fn events(&self, kind: &str) -> Vec<String> {
        let about = |event: &&std::sync::Arc<Value>| text(event, "/involvedObject/kind") == kind;
        let mut events: Vec<_> = self.store.list(Kind::Event, None).filter(about).collect();
        events.sort_by_key(|event| text(event, "/metadata/resourceVersion").parse::<u64>().unwrap());
        events.iter().map(|event| format!("{}: {}", text(event, "/reason"), text(event, "/message"))).collect()
    }
}

fn key(kind: Kind, name: &str) -> Key {
    let namespace = if kind.resource().namespaced { "default" } else { "" };
    Key::new(kind, namespace, name)
}

fn template(app: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "one"}], "terminationGracePeriodSeconds": 30},
    })
}

fn workload(name: &str, replicas: i64) -> Value {
    let selector = json!({"matchLabels": {"app": name}});
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": template(name)},
    })
}

fn stateful_set(replicas: i64, policy: &str) -> Value {
    let mut set = workload("web", replicas);
    set["spec"]["serviceName"] = json!("web");
    set["spec"]["podManagementPolicy"] = json!(policy);
    set
}

/// A set with a claim for each pod, and what becomes of them.
fn with_claims(mut set: Value, when_scaled: &str, when_deleted: &str) -> Value {
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": {"name": "data", "labels": {"database": "demo"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }]);
    let policy = json!({"whenScaled": when_scaled, "whenDeleted": when_deleted});
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = policy;
    set
}

fn claim(name: &str, mode: &str) -> Value {
    json!({
        "metadata": {"name": name, "finalizers": [crate::defaults::CLAIM_PROTECTION]},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn pod_with_claim(name: &str, claim: &str) -> Value {
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}})
}

#[test]
fn leases_and_events_wake_no_controller() {
    let mut world = World::new();
    world.create(Kind::Lease, json!({"metadata": {"name": "lease"}}));
    let settled = world.store.settled();
    world.edit(Kind::Lease, "lease", |lease| lease["spec"] = json!({"holderIdentity": "me"}));
    assert_eq!(world.store.settled(), settled, "no controller ran");
    world.create(Kind::ConfigMap, json!({"metadata": {"name": "map"}}));
    assert_ne!(world.store.settled(), settled);
}

#[test]
fn a_namespace_has_what_pods_need_and_goes_with_all_that_is_in_it() {
    let mut world = World::new();
    assert_eq!(world.names(Kind::ServiceAccount), "default");
    let root = json!({"metadata": {"name": "kube-root-ca.crt", "namespace": "kube-system"}, "data": {"ca.crt": "PEM"}});
    world.store.create(Kind::Namespace, json!({"metadata": {"name": "kube-system"}})).unwrap();
    world.store.create(Kind::ConfigMap, root).unwrap();
    settle(&mut world.store);
    assert_eq!(world.get(Kind::ConfigMap, "kube-root-ca.crt")["data"]["ca.crt"], "PEM");

    world.create(Kind::StatefulSet, with_claims(stateful_set(1, "Parallel"), "Retain", "Retain"));
    world.step("web-0");
    world.delete(Kind::Namespace, "default", None);
    assert_eq!(world.pods(), "web-0!", "a pod has its time to end");
    assert!(world.store.find(&key(Kind::Namespace, "default")).is_some());
    world.step("web-0");
    assert!(world.store.find(&key(Kind::Namespace, "default")).is_none());
    let left = |kind| world.store.list(kind, Some("default")).count();
    assert_eq!([Kind::PersistentVolumeClaim, Kind::ConfigMap, Kind::Event].map(left), [0, 0, 0]);
}

#[test]
fn what_is_said_again_is_counted_and_after_an_hour_forgotten() {
    let mut world = World::new();
    world.create(Kind::ConfigMap, json!({"metadata": {"name": "map"}}));
    let map = world.get(Kind::ConfigMap, "map").clone();
    for _ in 0..2 {
        crate::events::record(&mut world.store, &map, crate::events::Type::Normal, "Seen", "It was seen", "test");
        world.pass(1);
    }
    let events: Vec<_> = world.store.list(Kind::Event, Some("default")).cloned().collect();
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["count"], &events[0]["lastTimestamp"]), (&json!(2), &json!("1970-01-01T00:00:01Z")));
    world.pass(3599);
    world.create(Kind::ConfigMap, json!({"metadata": {"name": "other"}}));
    assert_eq!(world.store.list(Kind::Event, None).count(), 1, "an hour is not over yet");
    world.pass(2);
    world.create(Kind::ConfigMap, json!({"metadata": {"name": "third"}}));
    assert_eq!(world.store.list(Kind::Event, None).count(), 0);
}

#[test]
fn a_pod_without_a_fit_node_waits_and_says_why() {
    let mut world = World::new();
    let mut pod = pod_with_claim("one", "nowhere");
    pod["spec"]["nodeSelector"] = json!({"disk": "fast"});
    world.create(Kind::Pod, pod);
    world.create(Kind::PersistentVolumeClaim, claim("nowhere", "ReadWriteOnce"));
    let said = world.events("Pod");
    let help = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(
        said,
        [
            format!("FailedScheduling: 0/1 nodes are available: persistentvolumeclaim \"nowhere\" not found. {help}"),
            format!(
                "FailedScheduling: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. {help}"
            ),
        ]
    );
    let scheduled = |world: &World| list(world.get(Kind::Pod, "one"), "/status/conditions")[0]["status"].clone();
    assert_eq!(scheduled(&world), "False");
    world.edit(Kind::Node, "node", |node| node["metadata"]["labels"]["disk"] = json!("fast"));
    assert_eq!(world.get(Kind::Pod, "one")["spec"]["nodeName"], "node");
    assert_eq!(scheduled(&world), "True");
}

#[test]
fn a_node_that_is_not_ready_or_cordoned_gets_no_pod() {
    let mut world = World::new();
    world.status(Kind::Node, "node", |node| node["status"]["conditions"][0]["status"] = json!("False"));
    world.edit(Kind::Node, "node", |node| node["spec"] = json!({"unschedulable": true}));
    world
        .create(Kind::Pod, json!({"metadata": {"name": "one"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    world.status(Kind::Node, "node", |node| node["status"]["conditions"][0]["status"] = json!("True"));
    let why = |pod: &Value| text(pod, "/status/conditions/0/message").to_owned();
    assert!(why(world.get(Kind::Pod, "one")).contains("1 node(s) were unschedulable"));
    assert!(world.events("Pod")[0].contains("untolerated taint {node.kubernetes.io/not-ready: }"));
    world.edit(Kind::Node, "node", |node| node["spec"] = json!({}));
    assert_eq!(world.get(Kind::Pod, "one")["spec"]["nodeName"], "node");
}

#[test]
fn a_claim_of_one_pod_only_keeps_the_next_waiting() {
    let mut world = World::new();
    world.create(Kind::PersistentVolumeClaim, claim("log", "ReadWriteOncePod"));
    world.create(Kind::Pod, pod_with_claim("one", "log"));
    world.create(Kind::Pod, pod_with_claim("two", "log"));
    world.run();
    assert_eq!(text(world.get(Kind::Pod, "one"), "/status/phase"), "Running");
    assert_eq!(text(world.get(Kind::Pod, "two"), "/spec/nodeName"), "");
    world.delete(Kind::Pod, "one", None);
    assert_eq!(text(world.get(Kind::Pod, "two"), "/spec/nodeName"), "", "one that is ending still has it");
    world.step("one");
    assert_eq!(text(world.get(Kind::Pod, "two"), "/spec/nodeName"), "node");
}

#[test]
fn of_two_pods_that_wait_for_a_claim_of_one_pod_only_one_gets_it_and_then_the_other() {
    let mut world = World::new();
    world.create(Kind::Pod, pod_with_claim("one", "log"));
    world.create(Kind::Pod, pod_with_claim("two", "log"));
    world.create(Kind::PersistentVolumeClaim, claim("log", "ReadWriteOncePod"));
    world.run();
    let phase = |world: &World, pod| text(world.get(Kind::Pod, pod), "/status/phase").to_owned();
    assert_eq!([phase(&world, "one"), phase(&world, "two")], ["Running", "Pending"]);
    world.status(Kind::Pod, "one", |pod| pod["status"]["phase"] = json!("Succeeded"));
    world.run();
    assert_eq!(phase(&world, "two"), "Running");
}

#[test]
fn a_pod_that_is_held_by_a_finalizer_ends_and_stays() {
    let mut world = World::new();
    world.create(Kind::ReplicaSet, workload("te", 1));
    let pod = world.pods();
    world.edit(Kind::Pod, &pod, |pod| pod["metadata"]["finalizers"] = json!(["example.com/hold"]));
    world.run();
    world.delete(Kind::Pod, &pod, None);
    world.run();
    assert!(world.pods().contains(&format!("{pod}!")), "{}", world.pods());
    world.edit(Kind::Pod, &pod, |pod| pod["metadata"]["finalizers"] = json!([]));
    assert!(!world.pods().contains(&pod), "{}", world.pods());
}

#[test]
fn a_short_history_does_not_hide_what_is_to_be_done() {
    let mut world = World::new();
    let mut set = stateful_set(1, "Parallel");
    set["metadata"]["namespace"] = json!("default");
    world.store.create(Kind::StatefulSet, set).unwrap();
    world.store.forget_history();
    settle(&mut world.store);
    assert_eq!(world.pods(), "web-0");
}
