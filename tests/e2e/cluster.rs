//! A namespace with admin servers and the example database in it.

use super::masks::mask;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long anything may take to show. Far more than it takes, so that a busy machine does not fail a test.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whose pod is deleted in the middle of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturb {
    Nobody,
    LeaseHolder,
    RaftLeader,
}

pub struct Cluster {
    case: String,
    disturb: Disturb,
    namespace: String,
    runtime: Runtime,
    client: Client,
    files: PathBuf,
    passed: bool,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The image of this build, as the cluster's nodes know it.
fn image() -> (String, String) {
    let image = std::env::var("KAA_IMAGE").expect("KAA_IMAGE names the image to test: run tests/e2e/run");
    let (name, tag) = image.rsplit_once(':').expect("KAA_IMAGE is NAME:TAG");
    (name.to_owned(), tag.to_owned())
}

/// Runs a program and returns what it wrote; its failure is the test's.
fn output(mut command: Command) -> String {
    match try_output(&mut command) {
        Ok(text) => text,
        Err(why) => panic!("{why}"),
    }
}

fn try_output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        Ok(text)
    } else {
        Err(format!("{command:?}: {}\n{text}{}", done.status, String::from_utf8_lossy(&done.stderr)))
    }
}

impl Cluster {
    /// Three admin servers, two storage managers, two transaction engines, all running. They come up in an order that
    /// makes archive and start ids the same in every run.
    pub fn up(case: &str, disturb: Disturb) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(Client::try_default()).expect("KUBECONFIG names a cluster");
        let short: String = case.split('_').filter_map(|word| word.chars().next()).collect();
        let namespace = format!("kaa-e2e-{short}-{:?}", disturb).to_lowercase();
        let files = root().join("target/e2e").join(&namespace);
        let mut cluster = Self { case: case.to_owned(), disturb, namespace, runtime, client, files, passed: false };
        let began = Instant::now();
        cluster.prepare();
        cluster.apply("base", 3);
        cluster.wait("the admin servers to be ready", |c| {
            c.try_kubectl("rollout status statefulset/kaa-admin --timeout=5s").is_ok()
        });
        cluster.wait("three servers", |c| c.rest("peers").is_some_and(|peers| connected(&peers) == 3));
        cluster.apply("example", 1);
        cluster.wait("the first storage manager", |c| c.running() == 1);
        cluster.kubectl("scale statefulset/sm-demo --replicas=2");
        cluster.wait("the second storage manager", |c| c.running() == 2);
        cluster.kubectl("scale deployment/te-demo --replicas=2");
        cluster.wait("the transaction engines", |c| c.running() == 4);
        eprintln!("{}: up in {:.1} s", cluster.namespace, began.elapsed().as_secs_f64());
        cluster
    }

    /// A fresh namespace with certificates.
    fn prepare(&mut self) {
        let namespace = self.namespace.clone();
        self.kubectl(&format!("delete namespace {namespace} --ignore-not-found --wait=true --timeout=120s"));
        self.kubectl(&format!("create namespace {namespace}"));
        let _ = std::fs::remove_dir_all(&self.files);
        std::fs::create_dir_all(&self.files).unwrap();
        let tls = self.files.join("tls");
        let mut certificates = Command::new(env!("CARGO_BIN_EXE_kaa"));
        certificates.arg("certificates").arg(&tls);
        certificates.args(["--dns", "kaa-admin", "--dns", &format!("*.kaa-admin.{namespace}.svc")]);
        output(certificates);
        let tls = tls.display();
        self.kubectl(&format!(
            "create secret generic kaa-admin-tls --from-file={tls}/ca.crt --from-file={tls}/tls.crt --from-file={tls}/tls.key"
        ));
        self.kubectl(&format!("create configmap kaa-ca --from-file={tls}/ca.crt"));
    }

    /// Applies one of the project's own manifests with this build's image. The test cluster's volumes belong to root.
    fn apply(&self, manifests: &str, replicas: u32) {
        let (name, tag) = image();
        let directory = self.files.join(manifests);
        std::fs::create_dir_all(&directory).unwrap();
        let workloads: &[(&str, &str, u32)] = match manifests {
            "base" => &[("StatefulSet", "kaa-admin", replicas)],
            _ => &[("StatefulSet", "sm-demo", replicas), ("Deployment", "te-demo", 0)],
        };
        let mut text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: {}\n\
             resources: [../../../../manifests/{manifests}]\n\
             images: [{{name: ghcr.io/kaa-admin/kaa, newName: {name}, newTag: '{tag}'}}]\npatches:\n",
            self.namespace
        );
        for (kind, name, replicas) in workloads {
            text.push_str(&format!(
                "- target: {{kind: {kind}, name: {name}}}\n  patch: |\n    \
                 - {{op: replace, path: /spec/replicas, value: {replicas}}}\n    \
                 - {{op: replace, path: /spec/template/spec/securityContext, value: {{runAsUser: 0}}}}\n"
            ));
            // What is logged here is logged there.
            if let Ok(filter) = std::env::var("KAA_LOG") {
                let env = "/spec/template/spec/containers/0/env/-";
                text.push_str(&format!(
                    "    - {{op: add, path: {env}, value: {{name: KAA_LOG, value: '{filter}'}}}}\n"
                ));
            }
        }
        std::fs::write(directory.join("kustomization.yaml"), text).unwrap();
        self.kubectl(&format!("apply -k {}", directory.display()));
    }

    pub fn try_kubectl(&self, arguments: &str) -> Result<String, String> {
        let mut command = Command::new("kubectl");
        try_output(command.args(["-n", &self.namespace]).args(arguments.split_whitespace()))
    }

    /// `kubectl ARGUMENTS`, in this namespace.
    pub fn kubectl(&self, arguments: &str) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|why| panic!("{why}"))
    }

    fn wait(&self, what: &str, mut until: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !until(self) {
            assert!(began.elapsed() < PATIENCE, "{}: waited in vain for {what}\n{}", self.namespace, self.state());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Everything that helps to see why something did not happen.
    fn state(&self) -> String {
        let mut text = self.try_kubectl("get pods,pvc -o wide").unwrap_or_else(|why| why);
        for command in ["show domain", "show archives --removed", "plan"] {
            text.push_str(&self.try_kaa(command).unwrap_or_else(|why| why));
        }
        for server in 0..3 {
            let log = self.try_kubectl(&format!("logs kaa-admin-{server} --tail=30"));
            text.push_str(&format!("--- kaa-admin-{server}\n{}", log.unwrap_or_else(|why| why)));
        }
        text
    }

    fn pods(&self) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        self.runtime.block_on(pods.list(&ListParams::default())).map(|list| list.items).unwrap_or_default()
    }

    /// Name and address of each admin server that is ready.
    pub async fn admin_addresses(&self) -> Vec<(String, String)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pods = pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let ready = |pod: Pod| {
            let status = pod.status?;
            let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
            let name = pod.metadata.name.filter(|name| name.starts_with("kaa-admin-"))?;
            let here = ready && pod.metadata.deletion_timestamp.is_none();
            here.then_some((name, format!("http://{}:8888", status.pod_ip?)))
        };
        pods.into_iter().filter_map(ready).collect()
    }

    fn addresses(&self) -> Vec<String> {
        self.runtime.block_on(self.admin_addresses()).into_iter().map(|(_, address)| address).collect()
    }

    /// Runs to the end.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A client of the cluster.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Where the files of this run are.
    pub fn files(&self) -> &Path {
        &self.files
    }

    fn try_kaa(&self, arguments: &str) -> Result<String, String> {
        let address = self.addresses().into_iter().next().ok_or("no admin server is ready\n")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
        try_output(command.args(arguments.split_whitespace()).args(["--api-server", &address]))
    }

    /// `kaa ARGUMENTS` against an admin server that is ready.
    pub fn kaa(&self, arguments: &str) -> String {
        self.wait("a ready admin server", |c| !c.addresses().is_empty());
        self.try_kaa(arguments).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until `kaa ARGUMENTS` says so: the watches of an agent may be a moment behind.
    pub fn says(&self, arguments: &str, what: &str) {
        self.wait(&format!("'{what}' in `kaa {arguments}`"), |c| {
            c.try_kaa(arguments).is_ok_and(|text| text.contains(what))
        });
    }

    /// `GET /api/1/PATH` from an admin server that is ready.
    fn rest(&self, path: &str) -> Option<Value> {
        let address = self.addresses().into_iter().next()?;
        let answer = async { reqwest::get(format!("{address}/api/1/{path}")).await?.json::<Value>().await };
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), answer).await.ok()?.ok() })
    }

    fn rows(&self, path: &str) -> Vec<Value> {
        rows(self.rest(path).unwrap_or_default())
    }

    /// How many processes run.
    fn running(&self) -> usize {
        let runs = |p: &&Value| p["durableState"] == "MONITORED" && p["state"] == "RUNNING";
        self.rows("processes").iter().filter(runs).count()
    }

    /// The pod and the start id of the `n`th transaction engine, by start id, once two run.
    pub fn transaction_engine(&self, n: usize) -> (String, u64) {
        self.wait("two running transaction engines", |c| c.running() == 4);
        let mut engines: Vec<_> = self.rows("processes").into_iter().filter(|p| p["type"] == "TE").collect();
        engines.sort_by_key(start_id);
        let pod = engines[n]["labels"]["pod-name"].as_str().expect("a label pod-name").to_owned();
        (pod, start_id(&engines[n]))
    }

    /// The server that a process is connected with.
    pub fn server_of(&self, start: u64) -> String {
        let process = self.rows("processes").into_iter().find(|process| start_id(process) == start);
        process.expect("the process lives")["host"].as_str().expect("a host").to_owned()
    }

    pub fn moved_away(&self, start: u64, from: &str) {
        self.wait(&format!("process {start} to move away from {from}"), |c| {
            let processes = c.rows("processes");
            processes.iter().any(|process| start_id(process) == start && process["host"] != from)
        });
    }

    /// Waits for a tombstone.
    pub fn exited(&self, start: u64, reason: &str) {
        self.wait(&format!("process {start} to exit: {reason}"), |c| {
            let shown = c.try_kaa(&format!("explain process/{start}")).unwrap_or_default();
            shown.contains(&format!("process {start} exited: {reason}"))
        });
    }

    /// How often a pod's engine was restarted.
    pub fn restarts(&self, pod: &str) -> i32 {
        let pods = self.pods();
        let pod = pods.iter().find(|known| known.metadata.name.as_deref() == Some(pod)).expect("the pod is there");
        pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten()).map(|c| c.restart_count).sum()
    }

    /// Waits until the kubelet, too, says that a pod's container was started anew.
    pub fn restarted(&self, pod: &str) {
        self.wait(&format!("one restart of {pod}"), |c| c.restarts(pod) == 1);
    }

    /// Waits until the resync leader has learned which container a process is: what the tombstone of one that is killed
    /// before can tell is only that a later start took its place.
    pub fn learned(&self, start: u64) {
        self.wait(&format!("the container of process {start} to be learned"), |c| {
            let processes = c.rows("processes");
            processes.iter().any(|process| start_id(process) == start && process["labels"]["container-id"].is_string())
        });
    }

    /// SIGKILL to the wrapper in a pod, from its node.
    pub fn kill_wrapper(&self, pod: &str) {
        let dir = std::env::var("KAA_CLUSTER_DIR")
            .expect("KAA_CLUSTER_DIR: only a cluster of tests/cluster lets a test onto its nodes");
        let node = self.kubectl(&format!("get pod {pod} -o jsonpath={{.spec.nodeName}}"));
        let number = node.trim().trim_start_matches("node").to_owned();
        let script = format!(
            "for p in /proc/[0-9]*; do \
               tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx KAA_POD={pod} || continue; \
               tr '\\0' ' ' <$p/cmdline | grep -q ' engine ' || continue; \
               kill -KILL ${{p#/proc/}} && echo killed; \
             done"
        );
        let mut command = Command::new(root().join("tests/cluster/node"));
        command.args([&dir, "exec", &number, "sh", "-c", &script]);
        let killed = output(command);
        assert_eq!(killed.matches("killed").count(), 1, "one wrapper of {pod} on {node}: {killed}");
    }

    /// The holder of the resync Lease, once there is one.
    pub async fn lease_holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let lease = leases.get("kaa-default-resync").await.expect("the resync Lease");
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            if let Some((server, _run)) = holder.rsplit_once('_') {
                return server.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{}: nobody holds the resync Lease", self.namespace);
    }

    /// Deletes the pod that this run is to be disturbed by.
    pub fn disturb(&self) {
        let pod = match self.disturb {
            Disturb::Nobody => return,
            Disturb::LeaseHolder => self.runtime.block_on(self.lease_holder()),
            Disturb::RaftLeader => {
                let leads = |peer: &&Value| peer["localRoleInfo"]["role"] == "LEADER";
                let mut leader = None;
                self.wait("a Raft leader", |c| {
                    leader = c.rows("peers").iter().find(leads).and_then(|p| Some(p["id"].as_str()?.to_owned()));
                    leader.is_some()
                });
                leader.unwrap()
            }
        };
        eprintln!("{}: deleting {pod}, {:?}", self.namespace, self.disturb);
        self.kubectl(&format!("delete pod {pod} --wait=false"));
    }

    /// Waits until `kaa show domain` and `kaa show archives` print what the golden file of this step says.
    pub fn golden(&self, step: &str) {
        let file = root().join(format!("tests/e2e/golden/{}-{step}.txt", self.case.replace('_', "-")));
        if std::env::var_os("UPDATE").is_some() && self.disturb == Disturb::Nobody {
            std::thread::sleep(Duration::from_secs(12));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, self.shown()).unwrap();
            return;
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (began, mut shown) = (Instant::now(), String::new());
        while began.elapsed() < PATIENCE {
            shown = self.shown();
            if shown == golden {
                eprintln!("{}: {step} after {:.1} s", self.namespace, began.elapsed().as_secs_f64());
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{}: is not as {}:\n{shown}\n{}", self.namespace, file.display(), self.state());
    }

    fn shown(&self) -> String {
        let mut text = String::new();
        for command in ["show domain", "show archives", "show archives --removed"] {
            text.push_str(&format!("$ kaa {command}\n"));
            text.push_str(&self.try_kaa(command).unwrap_or_else(|why| why));
        }
        mask(&text)
    }

    pub fn passed(&mut self) {
        self.passed = true;
    }
}

impl Drop for Cluster {
    /// Takes the namespace away; that of a failed case stays where KAA_KEEP is set.
    fn drop(&mut self) {
        if self.passed || std::env::var_os("KAA_KEEP").is_none() {
            let _ = self.try_kubectl(&format!("delete namespace {} --wait=false", self.namespace));
        }
    }
}

fn rows(value: Value) -> Vec<Value> {
    match value {
        Value::Array(rows) => rows,
        Value::Object(mut page) => page.remove("data").map(rows).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn connected(peers: &Value) -> usize {
    rows(peers.clone()).iter().filter(|peer| peer["connectedState"]["state"] == "Connected").count()
}

fn start_id(process: &Value) -> u64 {
    let id = &process["startId"];
    id.as_u64().or_else(|| id.as_str()?.parse().ok()).expect("a start id")
}
