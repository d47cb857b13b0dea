//! Faults of the machines: a node is cut off, loses its power, is drained; the API server is killed. Only a cluster of
//! `tests/cluster` lets a test do this (`tests/e2e/run DIR`), so these cases are ignored elsewhere.
//!
//! In some cases something is scaled while the fault lasts. In each case the same holds: nothing is removed that
//! Kubernetes does not confirm, engines continue to run, and afterwards everything is as it was or as it was requested.

use crate::domain::cluster::{Cluster, start_id};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{EvictParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::eventually;

/// What runs on the node with the fault.
#[derive(Clone, Copy, Debug)]
pub enum Host {
    LeaseHolder,
    RaftLeader,
    StorageManager,
}

/// The nodes of a cluster of `tests/cluster`.
pub struct Nodes<'a> {
    cluster: &'a Cluster,
    dir: PathBuf,
}

impl<'a> Nodes<'a> {
    /// The nodes of this cluster.
    pub fn of(cluster: &'a Cluster) -> Self {
        let dir = std::env::var_os("KAA_CLUSTER_DIR").expect("KAA_CLUSTER_DIR: see tests/e2e/run");
        Self { cluster, dir: dir.into() }
    }

    /// Runs a program of `tests/cluster`.
    fn program(&self, name: &str, arguments: &[&str]) {
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(name);
        let done = Command::new(program).arg(&self.dir).args(arguments).output().unwrap();
        assert!(done.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Cuts the node of a pod off the network. Returns the node's name.
    pub fn cut_under(&self, pod: &str) -> String {
        let node = self.of_pod(pod).expect("a node");
        eprintln!("{}: {pod} is on {node}", self.cluster.namespace());
        self.program("node", &["cut", number(&node)]);
        node
    }

    /// Connects a node to the network again.
    pub fn heal(&self, node: &str) {
        self.program("node", &["heal", number(node)]);
    }

    /// SIGKILL to the API server.
    pub fn kill_api_server(&self) {
        let noted = std::fs::read_to_string(self.dir.join("run/kube-apiserver.pid")).expect("a process");
        let id = noted.split(' ').next().expect("its id");
        assert!(Command::new("kill").args(["-KILL", id]).status().unwrap().success());
    }

    /// Starts every part of the cluster that does not run.
    pub fn up(&self) {
        self.program("up", &[]);
    }

    fn under(&self, host: Host) -> String {
        let pod = match host {
            Host::LeaseHolder => self.cluster.run(self.cluster.lease_holder()),
            Host::RaftLeader => self.cluster.raft_leader(),
            Host::StorageManager => "sm-demo-1".to_owned(),
        };
        let node = self.of_pod(&pod).expect("a node");
        eprintln!("{}: {pod} is on {node}", self.cluster.namespace());
        node
    }

    /// The node of a pod, if it has one.
    pub fn of_pod(&self, pod: &str) -> Option<String> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), self.cluster.namespace());
        self.cluster.run(pods.get(pod)).ok()?.spec?.node_name
    }

    /// Waits until Kubernetes reports a node as ready or not ready.
    fn ready(&self, node: &str, ready: bool) {
        let nodes: Api<Node> = Api::all(self.cluster.client());
        self.cluster.wait(&format!("{node} to be ready: {ready}"), |c| {
            let conditions = c.run(nodes.get(node)).ok().and_then(|node| node.status?.conditions).unwrap_or_default();
            conditions.iter().any(|c| c.type_ == "Ready" && (c.status == "True") == ready)
        });
    }

    fn patch(&self, node: &str, spec: Value) {
        let nodes: Api<Node> = Api::all(self.cluster.client());
        let patch = Patch::Merge(json!({"spec": spec}));
        self.cluster.run(nodes.patch(node, &PatchParams::default(), &patch)).expect("the node is changed");
    }

    /// The rows of `processes` whose pods are on the node.
    fn processes_on(&self, node: &str) -> Vec<Value> {
        let mut processes = self.cluster.rows("processes");
        processes.retain(|process| self.of_pod(pod(process)).as_deref() == Some(node));
        processes
    }
}

/// `tests/cluster/node` identifies `node1` by 1.
fn number(node: &str) -> &str {
    node.trim_start_matches("node")
}

fn pod(process: &Value) -> &str {
    process["labels"]["pod-name"].as_str().expect("a label pod-name")
}

/// Whether the session of the process is lost, as the domain knows it.
fn silent(process: &Value) -> bool {
    !process["sessionLost"].is_null()
}

/// How many engines run and are connected.
fn served(cluster: &Cluster) -> usize {
    cluster.rows("processes").iter().filter(|process| process["state"] == "RUNNING" && !silent(process)).count()
}

/// What must be the same before and after a fault.
#[derive(Debug, PartialEq)]
struct Picture {
    /// Archive id and claim.
    archives: Vec<(u64, String)>,
    /// Start id and pod.
    processes: Vec<(u64, String)>,
}

impl Picture {
    fn of(cluster: &Cluster) -> Self {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut archives: Vec<_> =
            cluster.rows("archives").iter().map(|a| (a["id"].as_u64().unwrap(), text(&a["path"]))).collect();
        let mut processes: Vec<_> =
            cluster.rows("processes").iter().map(|p| (start_id(p), pod(p).to_owned())).collect();
        archives.sort();
        processes.sort();
        Self { archives, processes }
    }
}

/// Waits until everything runs and nothing is left to do; no archive was ever removed.
fn whole(cluster: &Cluster, engines: usize, before: &Picture, since: Instant) {
    cluster.wait(&format!("{engines} running engines"), |c| served(c) == engines);
    cluster.wait("three servers", |c| c.connected() == 3);
    cluster.says("plan", "Nothing to propose");
    eprintln!("{}: whole again after {:.1} s", cluster.namespace(), since.elapsed().as_secs_f64());
    let now = Picture::of(cluster);
    assert_eq!(now.archives, before.archives);
    for (archive, _) in &now.archives {
        let history = cluster.kaa(&format!("explain archive/{archive}"));
        assert!(!history.contains("removed") && !history.contains("purged"), "{history}");
    }
}

/// The network of a node is cut: its engines still run but cannot be reached, and no agent knows their state. None of
/// their archives and processes is removed, whichever other pods the node has. The rest of the domain continues.
pub fn cut(cluster: &mut Cluster, host: Host) {
    let (cluster, nodes) = (&*cluster, Nodes::of(cluster));
    let before = Picture::of(cluster);
    let node = nodes.under(host);
    let there = nodes.processes_on(&node);
    nodes.program("node", &["cut", number(&node)]);
    nodes.ready(&node, false);
    for process in &there {
        cluster.wait(&format!("{} to be UNREACHABLE", pod(process)), |c| {
            let now = c.rows("processes");
            now.iter().any(|row| row["startId"] == process["startId"] && silent(row))
        });
    }
    // Two agents of three continue: they admit an engine.
    cluster.scale("deployments", "te-demo", 3);
    cluster.wait("another engine", |c| served(c) == 5 - there.len());
    if there.iter().any(|process| pod(process) == "sm-demo-1") {
        // Kubernetes cannot see the pod end, so its engine may still write to the archive.
        cluster.scale("statefulsets", "sm-demo", 1);
        std::thread::sleep(Duration::from_secs(20));
        assert_eq!(Picture::of(cluster).archives, before.archives);
        nodes.program("node", &["heal", number(&node)]);
        cluster.says("explain archive/2", "archive 2 removed: its StatefulSet was scaled down");
        return;
    }
    nodes.program("node", &["heal", number(&node)]);
    let healed = Instant::now();
    nodes.ready(&node, true);
    whole(cluster, 5, &before, healed);
    for process in &there {
        assert_eq!(cluster.restarts(pod(process)), 0, "{} ran on", pod(process));
    }
}

/// A node loses its power, and comes back: the kubelet restarts the containers of its pods.
pub fn killed(cluster: &mut Cluster) {
    let (cluster, nodes) = (&*cluster, Nodes::of(cluster));
    let before = Picture::of(cluster);
    let node = nodes.under(Host::RaftLeader);
    nodes.program("node", &["kill", number(&node)]);
    nodes.ready(&node, false);
    let now = Picture::of(cluster);
    assert_eq!(now, before, "nobody knows yet what became of them");
    nodes.program("node", &["start", number(&node)]);
    let started = Instant::now();
    nodes.ready(&node, true);
    whole(cluster, 4, &before, started);
}

/// A node is lost for good, and an operator marks it so: its pods move, with their claims.
pub fn lost(cluster: &mut Cluster) {
    let (cluster, nodes) = (&*cluster, Nodes::of(cluster));
    let before = Picture::of(cluster);
    let node = nodes.under(Host::StorageManager);
    nodes.program("node", &["kill", number(&node)]);
    nodes.ready(&node, false);
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    nodes.patch(&node, json!({"taints": taint}));
    let said = Instant::now();
    cluster.wait("sm-demo-1 to move", |_| nodes.of_pod("sm-demo-1").is_some_and(|other| other != node));
    whole(cluster, 4, &before, said);
    nodes.patch(&node, json!({"taints": null}));
    nodes.program("node", &["start", number(&node)]);
    nodes.ready(&node, true);
    whole(cluster, 4, &before, Instant::now());
}

/// `kubectl drain`, and `kubectl uncordon`.
pub fn drained(cluster: &mut Cluster) {
    let (cluster, nodes) = (&*cluster, Nodes::of(cluster));
    let before = Picture::of(cluster);
    let node = nodes.under(Host::LeaseHolder);
    nodes.patch(&node, json!({"unschedulable": true}));
    let pods: Api<Pod> = Api::namespaced(cluster.client(), cluster.namespace());
    let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let began = Instant::now();
    for pod in cluster.run(pods.list(&there)).expect("the pods of the node").items {
        let name = pod.metadata.name.expect("a name");
        cluster.run(pods.evict(&name, &EvictParams::default())).expect("evicted");
    }
    cluster.wait("the node to be empty", |c| c.run(pods.list(&there)).is_ok_and(|left| left.items.is_empty()));
    whole(cluster, 4, &before, began);
    nodes.patch(&node, json!({"unschedulable": null}));
}

/// The API server is killed: agents continue to serve and do not restart. They see that an engine ends, and it
/// restarts.
pub fn api_server_killed(cluster: &mut Cluster) {
    let (cluster, nodes) = (&*cluster, Nodes::of(cluster));
    let before = Picture::of(cluster);
    let (engine, start) = cluster.transaction_engine(0);
    cluster.learned(start);
    let addresses = cluster.run(cluster.admin_addresses());
    let wrapper = cluster.wrapper_of(&engine);
    nodes.kill_api_server();
    let ask = |address: &str| {
        let answer = async { reqwest::get(format!("{address}/api/1/processes")).await?.json::<Value>().await };
        cluster.run(answer).unwrap_or_else(|error| panic!("{address}: {error}"))
    };
    wrapper.signal("KILL");
    // The loss of its session is an entry of the log, so Raft commits.
    for (_, address) in &addresses {
        eventually(&format!("process {start} to be silent at {address}"), || {
            let said = ask(address);
            let rows = crate::domain::cluster::rows(said.clone());
            if rows.iter().any(|p| start_id(p) == start && silent(p)) { Ok(()) } else { Err(said) }
        });
    }
    // Two periods of the resync.
    std::thread::sleep(Duration::from_secs(20));
    for (_, address) in &addresses {
        let processes = crate::domain::cluster::rows(ask(address));
        for (known, pod) in &before.processes {
            let shown = processes.iter().any(|p| start_id(p) == *known);
            assert!(shown || *known == start, "process {known} of {pod} was removed: {processes:?}");
        }
    }
    nodes.up();
    let back = Instant::now();
    cluster.exited(start, "");
    whole(cluster, 4, &before, back);
    for server in 0..3 {
        assert_eq!(cluster.restarts(&format!("kaa-admin-{server}")), 0, "the agents stayed");
    }
}

/// While no agent runs, a storage manager is scaled down and its claim is deleted and recreated.
pub fn claim_recreated_unseen(cluster: &mut Cluster) {
    let (cluster, before) = (&*cluster, Picture::of(cluster));
    cluster.scale("statefulsets", "kaa-admin", 0);
    for server in 0..3 {
        cluster.pod_gone(&format!("kaa-admin-{server}"));
    }
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.pod_gone("sm-demo-1");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), cluster.namespace());
    let name = "archive-volume-sm-demo-1";
    let old = cluster.run(claims.get(name)).expect("the claim");
    cluster.delete_claim(name);
    let mut new = PersistentVolumeClaim::default();
    new.metadata.name = Some(name.to_owned());
    new.metadata.labels = old.metadata.labels;
    let mut spec = old.spec.expect("a spec");
    spec.volume_name = None;
    new.spec = Some(spec);
    cluster.run(claims.create(&PostParams::default(), &new)).expect("the claim is recreated");
    cluster.scale("statefulsets", "kaa-admin", 3);
    cluster.wait("three servers", |c| c.connected() == 3);
    // No agent saw that the claim was deleted, and a claim of that name exists: the agents cannot know what is on it.
    cluster.says("explain archive/2", "archive 2 removed: its StatefulSet was scaled down");
    cluster.says("plan", "claim archive-volume-sm-demo-1 was recreated");
    let history = cluster.kaa("explain archive/2");
    assert!(!history.contains("archive 2 purged"), "{history}");
    // The engine on the claim reports that it is empty.
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.says("explain archive/2", "archive 2 purged: its claim was replaced by an empty one, now archive 3");
    cluster.wait("four running engines", |c| served(c) == 4);
    let now = Picture::of(cluster);
    assert_eq!(now.archives.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
    let stayed = |picture: &Picture| -> Vec<_> {
        picture.processes.iter().filter(|(_, pod)| pod != "sm-demo-1").cloned().collect()
    };
    assert_eq!(stayed(&now), stayed(&before), "engines run on without any agent");
    for (_, pod) in stayed(&now) {
        assert_eq!(cluster.restarts(&pod), 0, "{pod} ran on");
    }
}

/// Repairs the nodes after a failed case.
pub struct Mended(PathBuf);

impl Mended {
    pub fn afterwards() -> Self {
        Self(std::env::var_os("KAA_CLUSTER_DIR").expect("KAA_CLUSTER_DIR: see tests/e2e/run").into())
    }
}

impl Drop for Mended {
    fn drop(&mut self) {
        let up = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/up");
        let done = Command::new(up).arg(&self.0).output();
        if !done.as_ref().is_ok_and(|done| done.status.success()) {
            eprintln!("the cluster could not be mended: {done:?}");
        }
    }
}
