//! A namespace with admin servers and the example database, on the embedded Kubernetes or on a cluster. When a test
//! fails, it prints the state of the namespace, and how to run the test again.

use super::masks::mask;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kaa::certificates;
use kaa::demo::install;
use kaa::demo::manifests::{self, Part, change};
use kaa::demo::postgres::DATABASE;
use kaa::demo::stage::{Settings, Stage};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use testkit::report::{self, Report};
use testkit::wait::is;
use testkit::{eventually, eventually_async};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// The namespaces of the cases that run.
static NAMESPACES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Name and password of the operator who changes the domain from outside the agents' pods.
pub const OPERATOR: (&str, &str) = ("writer", "written in a test");

/// The server whose pod is deleted in the middle of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturb {
    Nothing,
    LeaseHolder,
    RaftLeader,
}

/// One of several Kubernetes clusters that share a domain.
pub struct Site {
    /// Its name.
    pub name: &'static str,
    /// The StatefulSet of its admin servers, and their Service.
    pub set: &'static str,
    /// The certificates of its agents.
    pub made: certificates::Made,
    /// Further environment variables of its agents.
    pub env: Vec<(&'static str, String)>,
    /// `Some` if it is an embedded Kubernetes next to a cluster of `tests/cluster`: the first three numbers of its pods'
    /// addresses, which that cluster reaches.
    pub pod_network: Option<[u8; 3]>,
}

impl Site {
    /// The project's manifests, with the names of this cluster.
    fn name(&self, objects: &[Value]) -> Vec<Value> {
        let text = Value::from(objects.to_vec()).to_string();
        let text = text.replace("kaa-admin", self.set).replace("kaa-default-", &format!("kaa-{}-", self.name));
        // Neither the Secret of the certificates nor the image has the name of the StatefulSet.
        let text = text.replace(&format!("{}-tls", self.set), "kaa-admin-tls");
        let text = text.replace(&format!("/{}/", self.set), "/kaa-admin/");
        let mut objects: Vec<Value> = serde_json::from_str(&text).expect("the manifests");
        change(&mut objects, "StatefulSet", self.set, |workload| {
            for (name, value) in &self.env {
                let env = &mut workload["spec"]["template"]["spec"]["containers"][0]["env"];
                push(env, json!({"name": name, "value": value}));
            }
        });
        objects
    }
}

pub struct Cluster {
    /// The test that uses this namespace, as the test runner names it.
    test: String,
    /// The use case that runs.
    story: String,
    disturb: Disturb,
    namespace: String,
    runtime: Runtime,
    client: Client,
    /// The name of this build's image on that Kubernetes.
    image: String,
    /// A Kubernetes only for this case; `None` if the case runs on a cluster.
    stage: Option<Stage>,
    files: PathBuf,
    /// Set if several clusters share its domain.
    site: Option<Site>,
    /// Whether the test can make the agents end at their fail points.
    mortal: bool,
    passed: bool,
    /// Locked while the case runs: cases run in separate processes.
    _lock: File,
}

/// The wrapper or the agent in a pod, and the command that signals it.
pub struct Process {
    pod: String,
    command: Command,
}

impl Process {
    /// Sends it a signal, such as `KILL`.
    pub fn signal(mut self, signal: &str) {
        let told = output(self.command.arg(signal)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(told.matches("told").count(), 1, "one process of {} gets SIG{signal}: {told}", self.pod);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn push(list: &mut Value, value: Value) {
    list.as_array_mut().expect("a list").push(value);
}

/// Runs a program. Returns its output, or how it failed.
fn output(command: &mut Command) -> Result<String, String> {
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
        Self::up_with(case, disturb, 3)
    }

    /// The same with this number of admin servers.
    pub fn up_with(case: &str, disturb: Disturb, servers: u32) -> Self {
        let began = Instant::now();
        let cluster = Self::empty(case, disturb, false, None);
        cluster.admins(servers);
        cluster.example(1, 0);
        cluster.wait("the first storage manager", |c| c.running() == 1);
        cluster.scale("statefulsets", "sm-demo", 2);
        cluster.wait("the second storage manager", |c| c.running() == 2);
        cluster.scale("deployments", "te-demo", 2);
        cluster.wait("the transaction engines", |c| c.running() == 4);
        eprintln!("{}: up in {:.1} s", cluster.namespace, began.elapsed().as_secs_f64());
        cluster
    }

    /// Starts without any server, on a Kubernetes that restarts ended containers immediately. `admins` starts the first
    /// agents, without a database. The files in `scripts` make them end at their fail points.
    pub fn mortal(case: &str) -> Self {
        Self::empty(case, Disturb::Nothing, true, None)
    }

    /// This number of admin servers, and no database.
    pub fn without_database(case: &str, servers: u32) -> Self {
        let cluster = Self::empty(case, Disturb::Nothing, false, None);
        cluster.admins(servers);
        cluster
    }

    /// One of several clusters of a domain, with no admin server yet.
    pub fn of_several(case: &str, site: Site) -> Self {
        Self::empty(case, Disturb::Nothing, false, Some(site))
    }

    /// This number of admin servers, and no database, on an embedded Kubernetes with its files in this directory. The path of a
    /// PostgreSQL server's socket is short, and the server's user has to be able to enter the directory.
    pub fn in_directory(case: &str, servers: u32, dir: &Path) -> Self {
        let cluster = Self::empty_in(Some(dir), case, Disturb::Nothing, false, None);
        cluster.admins(servers);
        cluster
    }

    /// The namespace of a case.
    pub fn namespace_of(case: &str, disturb: Disturb) -> String {
        let short: String = case.split('_').filter_map(|word| word.chars().next()).collect();
        format!("kaa-e2e-{short}-{disturb:?}").to_lowercase()
    }

    /// Starts this number of admin servers. Does not wait until they have a domain.
    pub fn start_admins(&self, servers: u32) {
        self.apply(Part::Base, &[("StatefulSet", "kaa-admin", servers)]);
    }

    /// The StatefulSet of its admin servers.
    fn admin_set(&self) -> &str {
        self.site.as_ref().map_or("kaa-admin", |site| site.set)
    }

    /// Starts this number of admin servers, and waits until all are ready and connected.
    pub fn admins(&self, servers: u32) {
        self.start_admins(servers);
        self.wait("the admin servers to be ready", |c| c.addresses().len() == servers as usize);
        self.wait("all servers", |c| c.connected() == servers as usize);
    }

    /// Contains a directory for each agent, with the scripts of its fail points.
    pub fn scripts(&self) -> PathBuf {
        self.files.join("failpoints")
    }

    fn empty(case: &str, disturb: Disturb, mortal: bool, site: Option<Site>) -> Self {
        Self::empty_in(None, case, disturb, mortal, site)
    }

    /// The same with the files of the embedded Kubernetes in this directory.
    fn empty_in(dir: Option<&Path>, case: &str, disturb: Disturb, mortal: bool, site: Option<Site>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        report::remember_panics();
        let runtime = Runtime::new().unwrap();
        let namespace = Self::namespace_of(case, disturb);
        let is_new = NAMESPACES.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace.clone());
        assert!(is_new, "{namespace} is another case's that runs: its name has the same initials");
        std::fs::create_dir_all(root().join("target/e2e")).unwrap();
        let lock = File::create(root().join("target/e2e").join(format!("{namespace}.lock"))).unwrap();
        // Another process may play the same case, or one with the same initials.
        lock.lock().unwrap();
        let files = root().join("target/e2e").join(&namespace);
        let _ = std::fs::remove_dir_all(&files);
        std::fs::create_dir_all(files.join("failpoints")).unwrap();
        // A case runs on a cluster only if KAA_IMAGE says which image of this build is there. KUBECONFIG alone may be
        // set for another reason, and does not ask for tests on the cluster that it names.
        let pod_network = site.as_ref().and_then(|site| site.pod_network);
        let (client, stage, image) = match std::env::var("KAA_IMAGE") {
            Ok(image) if !mortal && pod_network.is_none() && dir.is_none() => {
                (runtime.block_on(Client::try_default()).expect("KUBECONFIG names a cluster"), None, image)
            }
            _ => {
                let dir = dir.map_or_else(|| files.join("kubernetes"), Path::to_owned);
                let kaa = Path::new(env!("CARGO_BIN_EXE_kaa"));
                let mut settings = Settings { pods: pod_network, ..Settings::default() };
                if mortal {
                    settings.backoff = Duration::ZERO;
                }
                let opened = runtime.block_on(Stage::open_with(&dir, kaa, settings));
                let stage = opened.unwrap_or_else(|error| panic!("{error:?}"));
                (stage.client(), Some(stage), manifests::image().unwrap())
            }
        };
        let (test, story, passed) = (report::test_name(), String::new(), false);
        let cluster = Self {
            test,
            story,
            disturb,
            namespace,
            runtime,
            client,
            image,
            stage,
            files,
            site,
            mortal,
            passed,
            _lock: lock,
        };
        cluster.prepare();
        cluster
    }

    /// Applies the example database, with this number of engines.
    pub fn example(&self, storage_managers: u32, transaction_engines: u32) {
        let replicas = [("StatefulSet", "sm-demo", storage_managers), ("Deployment", "te-demo", transaction_engines)];
        self.apply(Part::Example, &replicas);
    }

    /// Applies these objects as they are.
    pub fn put(&self, objects: &[Value]) {
        self.run(install::apply(&self.client, objects)).unwrap_or_else(|error| panic!("{error:?}"));
    }

    /// Creates a fresh namespace with certificates.
    fn prepare(&self) {
        let name = self.namespace.clone();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let _ = self.run(namespaces.delete(&name, &DeleteParams::default()));
        self.wait("the namespace of a former run to go", |c| {
            c.run(namespaces.list(&ListParams::default().fields(&format!("metadata.name={name}"))))
                .is_ok_and(|list| list.items.is_empty())
        });
        let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})];
        // The certificates are also valid for a second set of agents.
        let other = ["kaa-other".to_owned(), format!("*.kaa-other.{name}.svc")];
        let shared = || certificates::make(&[install::names(&name), other.into()].concat(), 30).unwrap();
        let own = shared();
        let made = self.site.as_ref().map_or(&own, |site| &site.made);
        std::fs::write(self.files.join("ca.crt"), &made.ca_certificate).unwrap();
        objects.extend(install::certificates(&name, made));
        let line = format!("{}:{}", OPERATOR.0, OPERATOR.1);
        objects.push(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "people", "namespace": name},
            "stringData": {"people": line},
        }));
        self.put(&objects);
    }

    /// Applies the project's own manifests with this build's image. Root owns the volumes of the test cluster.
    fn apply(&self, part: Part, replicas: &[(&str, &str, u32)]) {
        let mut objects = manifests::objects(part, &self.namespace).unwrap();
        // The tests' clients are not in the agents' pods.
        change(&mut objects, "StatefulSet", "kaa-admin", |workload| {
            let pod = &mut workload["spec"]["template"]["spec"];
            push(&mut pod["volumes"], json!({"name": "people", "secret": {"secretName": "people"}}));
            let agent = &mut pod["containers"][0];
            push(&mut agent["volumeMounts"], json!({"name": "people", "mountPath": "/etc/kaa/people"}));
            push(&mut agent["env"], json!({"name": "KAA_CREDENTIALS_FILE", "value": "/etc/kaa/people/people"}));
        });
        for (kind, name, replicas) in replicas {
            change(&mut objects, kind, name, |workload| {
                workload["spec"]["replicas"] = json!(replicas);
                let pod = &mut workload["spec"]["template"]["spec"];
                pod["securityContext"] = json!({"runAsUser": 0});
                for list in ["initContainers", "containers"] {
                    for container in pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                        container["image"] = json!(self.image);
                    }
                }
                if self.mortal {
                    let script = format!("{}/$(KAA_SERVER)", self.scripts().display());
                    let env = pod["containers"][0]["env"].as_array_mut().unwrap();
                    env.push(json!({"name": "KAA_FAILPOINTS", "value": script}));
                }
                // The agents use the log filter of the test.
                if let Ok(filter) = std::env::var("KAA_LOG") {
                    push(&mut pod["containers"][0]["env"], json!({"name": "KAA_LOG", "value": filter}));
                }
            });
        }
        if let Some(site) = &self.site {
            objects = site.name(&objects);
        }
        self.put(&objects);
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The objects of this name: one or none. `None` if the API server did not answer.
    fn named<K>(&self, name: &str) -> Option<Vec<K>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        self.run(self.api::<K>().list(&named)).ok().map(|list| list.items)
    }

    /// `kubectl scale`.
    pub fn scale(&self, plural: &str, name: &str, replicas: u32) {
        let resource = kube::discovery::ApiResource {
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            api_version: "apps/v1".to_owned(),
            kind: String::new(),
            plural: plural.to_owned(),
        };
        let workloads: Api<kube::api::DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let wanted = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.run(workloads.patch_scale(name, &PatchParams::default(), &wanted)).expect("scaled");
    }

    /// `kubectl delete pod --wait=false`.
    pub fn delete_pod(&self, name: &str) {
        self.run(self.api::<Pod>().delete(name, &DeleteParams::default())).expect("deleted");
    }

    /// `kubectl delete pod --now --force` of an engine that cannot report its end, as on a node that is gone. Without
    /// SIGSTOP the wrapper would report the end during the kubelet's own grace period.
    pub fn lose_pod(&self, name: &str) {
        self.wrapper_of(name).signal("STOP");
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.run(self.api::<Pod>().delete(name, &now)).expect("deleted");
    }

    /// `kubectl delete pod --grace-period=0 --force`: the API deletes the pod even if its processes still run.
    pub fn force_delete_pod(&self, name: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        match self.run(self.api::<Pod>().delete(name, &now)) {
            Ok(_) => {}
            // The pod has ended already.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }

    pub fn pod_gone(&self, name: &str) {
        self.wait(&format!("pod {name} to go"), |c| c.named::<Pod>(name).is_some_and(|pods| pods.is_empty()));
    }

    pub fn pod_uid(&self, name: &str) -> String {
        let read = || self.run(self.api::<Pod>().get(name)).map_err(|error| error.to_string());
        eventually(&format!("pod {name}"), read).metadata.uid.expect("a UID")
    }

    /// Waits until another pod of the same name is there.
    pub fn pod_replaced(&self, name: &str, uid: &str) {
        self.wait(&format!("pod {name} to be replaced"), |c| {
            let pods = c.named::<Pod>(name).unwrap_or_default();
            pods.iter().any(|pod| pod.metadata.uid.as_deref() != Some(uid))
        });
    }

    /// `kubectl delete pvc`, and waits until it is gone.
    pub fn delete_claim(&self, name: &str) {
        self.run(self.api::<PersistentVolumeClaim>().delete(name, &DeleteParams::default())).expect("deleted");
        self.wait(&format!("claim {name} to go"), |c| {
            c.named::<PersistentVolumeClaim>(name).is_some_and(|claims| claims.is_empty())
        });
    }

    /// Waits until the condition holds.
    #[track_caller]
    pub fn wait(&self, what: &str, mut until: impl FnMut(&Self) -> bool) {
        eventually(what, || is(until(self)));
    }

    /// The state and logs that show why something did not happen.
    fn report(&self) -> Report {
        let mut state = String::new();
        for pod in self.pods() {
            let status = pod.status.unwrap_or_default();
            let name = pod.metadata.name.unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let ready = containers.iter().filter(|container| container.ready).count();
            let restarts: i32 = containers.iter().map(|container| container.restart_count).sum();
            let phase = status.phase.unwrap_or_default();
            state.push_str(&format!("{name}: {phase}, ready {ready}, restarts {restarts}\n"));
        }
        for command in ["plan", "show domain", "show archives --removed"] {
            state.push_str(&self.try_kaa(command).unwrap_or_else(|why| why));
        }
        let prefix = format!("{}-", self.admin_set());
        // A PostgreSQL server logs by way of its wrapper.
        let logs = |name: &String| name.starts_with(&prefix) || name.starts_with(DATABASE);
        let named = |pod: Pod| pod.metadata.name.filter(logs);
        let log = |server: String| {
            let tail = LogParams { tail_lines: Some(200), ..LogParams::default() };
            let log = self.run(self.api::<Pod>().logs(&server, &tail));
            (server, log.unwrap_or_else(|why| why.to_string()))
        };
        let logs = self.pods().into_iter().filter_map(named).map(log).collect();
        let mut environment = Vec::new();
        for variable in ["KAA_SEED", "KAA_TIER", "KAA_IMAGE", "KAA_CLUSTER_DIR", "KUBECONFIG"] {
            environment.extend(std::env::var(variable).map(|value| format!("{variable}={value}")));
        }
        Report { test: self.test.clone(), why: report::why(), environment: environment.join(" "), state, logs }
    }

    fn pods(&self) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        self.runtime.block_on(pods.list(&ListParams::default())).map(|list| list.items).unwrap_or_default()
    }

    /// Name and address of each admin server that is ready.
    pub async fn admin_addresses(&self) -> Vec<(String, String)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pods = pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let prefix = format!("{}-", self.admin_set());
        let ready = |pod: Pod| {
            let status = pod.status?;
            let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
            let name = pod.metadata.name.filter(|name| name.starts_with(&prefix))?;
            let here = ready && pod.metadata.deletion_timestamp.is_none();
            here.then_some((name, format!("http://{}:8888", status.pod_ip?)))
        };
        pods.into_iter().filter_map(ready).collect()
    }

    fn addresses(&self) -> Vec<String> {
        self.runtime.block_on(self.admin_addresses()).into_iter().map(|(_, address)| address).collect()
    }

    /// Runs the future to its end.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Runs the future in the background, until the case ends.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(future)
    }

    /// A client of the cluster.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether each case has its own Kubernetes, in the process of the test.
    pub fn are_embedded() -> bool {
        std::env::var_os("KAA_IMAGE").is_none()
    }

    /// Whether it has its own Kubernetes, in the process of the test.
    pub fn is_embedded(&self) -> bool {
        self.stage.is_some()
    }

    /// The Kubernetes that only this case uses.
    pub fn stage(&self) -> &Stage {
        self.stage.as_ref().expect("faults are made on the embedded Kubernetes only: unset KAA_IMAGE")
    }

    /// The image of this build.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The namespace of this case.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Where the files of this run are.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// `kaa ARGUMENTS`, or what it fails with.
    pub fn try_kaa(&self, arguments: &str) -> Result<String, String> {
        let address = self.addresses().into_iter().next().ok_or("no admin server is ready\n")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
        output(command.args(arguments.split_whitespace()).args(["--api-server", &address]))
    }

    /// Runs `kaa ARGUMENTS` as from within the pod of an admin server, which need not be ready: an agent accepts
    /// changes of the domain over loopback. On the embedded Kubernetes every pod's address is a loopback address, unless it
    /// is next to a real cluster: then the operator's name and password go with the request.
    pub fn kaa_within(&self, pod: &str, address: &str, arguments: &str) -> Result<String, String> {
        let arguments = arguments.split_whitespace();
        if self.stage.is_some() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
            if self.site.as_ref().is_some_and(|site| site.pod_network.is_some()) {
                command.env("KAA_BASIC_CREDS", format!("{}:{}", OPERATOR.0, OPERATOR.1));
            }
            return output(command.args(arguments).args(["--api-server", &format!("http://{address}:8888")]));
        }
        let mut command = Command::new("kubectl");
        output(command.args(["-n", self.namespace(), "exec", pod, "--", "kaa"]).args(arguments))
    }

    /// `kaa ARGUMENTS` against an admin server that is ready.
    pub fn kaa(&self, arguments: &str) -> String {
        self.wait("a ready admin server", |c| !c.addresses().is_empty());
        self.try_kaa(arguments).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until the output of `kaa ARGUMENTS` contains this text: the watches of an agent may be a moment behind.
    pub fn says(&self, arguments: &str, what: &str) {
        eventually(&format!("'{what}' in `kaa {arguments}`"), || match self.try_kaa(arguments) {
            Ok(text) if text.contains(what) => Ok(()),
            Ok(text) | Err(text) => Err(text),
        });
    }

    /// `GET /api/1/PATH` from an admin server that is ready.
    pub fn rest(&self, path: &str) -> Option<Value> {
        let address = self.addresses().into_iter().next()?;
        let answer = async { reqwest::get(format!("{address}/api/1/{path}")).await?.json::<Value>().await };
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), answer).await.ok()?.ok() })
    }

    /// The rows of `GET /api/1/PATH`, once a server answers. An answer may have no rows.
    pub fn rows(&self, path: &str) -> Vec<Value> {
        let mut answer = None;
        self.wait(&format!("an answer to GET {path}"), |c| {
            answer = c.rest(path);
            answer.is_some()
        });
        rows(answer.expect("an answer"))
    }

    /// How many servers are connected, according to one of them.
    pub fn connected(&self) -> usize {
        self.rest("peers").map_or(0, |peers| connected(&peers))
    }

    /// How many processes run.
    pub fn running(&self) -> usize {
        let runs = |p: &&Value| p["durableState"] == "MONITORED" && p["state"] == "RUNNING";
        self.rows("processes").iter().filter(runs).count()
    }

    /// The pod and the start id of the `n`th transaction engine in the order of start ids, once four processes run.
    pub fn transaction_engine(&self, n: usize) -> (String, u64) {
        self.transaction_engine_of(n, 4)
    }

    /// The same, once this number of processes runs.
    pub fn transaction_engine_of(&self, n: usize, processes: usize) -> (String, u64) {
        self.wait(&format!("{processes} running processes"), |c| c.running() == processes);
        let mut engines: Vec<_> = self.rows("processes").into_iter().filter(|p| p["type"] == "TE").collect();
        engines.sort_by_key(start_id);
        let pod = engines[n]["labels"]["pod-name"].as_str().expect("a label pod-name").to_owned();
        (pod, start_id(&engines[n]))
    }

    /// Waits until an engine runs whose start id is higher than this one.
    pub fn runs_after(&self, start: u64) {
        self.wait(&format!("an engine that started after process {start}"), |c| {
            c.rows("processes").iter().any(|process| start_id(process) > start && process["state"] == "RUNNING")
        });
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

    /// Waits for the tombstone of a process, with this reason.
    pub fn exited(&self, start: u64, reason: &str) {
        self.says(&format!("explain process/{start}"), &format!("process {start} exited: {reason}"));
    }

    /// How often the containers of a pod were restarted.
    pub fn restarts(&self, pod: &str) -> i32 {
        let pods = self.pods();
        let pod = pods.iter().find(|known| known.metadata.name.as_deref() == Some(pod)).expect("the pod is there");
        pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten()).map(|c| c.restart_count).sum()
    }

    /// Whether a pod has been restarted. The pod need not exist yet.
    pub fn has_restarted(&self, pod: &str) -> bool {
        let pods = self.pods();
        let pods = pods.iter().filter(|known| known.metadata.name.as_deref() == Some(pod));
        let statuses = pods.filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.flatten().any(|container| container.restart_count > 0)
    }

    /// Waits until the kubelet also reports that a pod's container was restarted.
    pub fn restarted(&self, pod: &str) {
        self.wait(&format!("one restart of {pod}"), |c| c.restarts(pod) == 1);
    }

    /// Waits until the resync leader has learned the container of a process. If a process is killed before that, its
    /// tombstone says only that a later start took its place.
    pub fn learned(&self, start: u64) {
        self.wait(&format!("the container of process {start} to be learned"), |c| {
            let processes = c.rows("processes");
            processes.iter().any(|process| start_id(process) == start && process["labels"]["container-id"].is_string())
        });
    }

    /// SIGKILL to the wrapper in a pod, from its node.
    pub fn kill_wrapper(&self, pod: &str) {
        self.wrapper_of(pod).signal("KILL");
    }

    /// The wrapper in a pod. The test can signal it later without asking Kubernetes where it is.
    pub fn wrapper_of(&self, pod: &str) -> Process {
        self.process_of(pod, "engine")
    }

    /// The process of an admin server, likewise.
    pub fn agent_of(&self, pod: &str) -> Process {
        self.process_of(pod, "agent")
    }

    fn process_of(&self, pod: &str, verb: &str) -> Process {
        let uid = self.pod_uid(pod);
        let script = format!(
            "for p in /proc/[0-9]*; do \
               tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx KAA_POD_UID={uid} || continue; \
               tr '\\0' ' ' <$p/cmdline | grep -q ' {verb} ' || continue; \
               kill -$1 ${{p#/proc/}} && echo told; \
             done"
        );
        let mut command = if self.stage.is_some() {
            Command::new("sh")
        } else {
            let dir = std::env::var("KAA_CLUSTER_DIR")
                .expect("KAA_CLUSTER_DIR: only a cluster of tests/cluster lets a test onto its nodes");
            let node = self.run(self.api::<Pod>().get(pod)).expect("the pod").spec.and_then(|spec| spec.node_name);
            let node = node.expect("a node");
            let mut command = Command::new(root().join("tests/cluster/node"));
            command.args([&dir, "exec", node.trim_start_matches("node"), "sh"]);
            command
        };
        command.args(["-c", &script, "sh"]);
        Process { pod: pod.to_owned(), command }
    }

    /// The environment of an admin server's process, on the embedded Kubernetes.
    pub fn environment_of(&self, pod: &str) -> Vec<(String, String)> {
        let uid = self.pod_uid(pod);
        let of = |process: std::path::PathBuf| {
            let command = std::fs::read(process.join("cmdline")).ok()?;
            let environment = std::fs::read(process.join("environ")).ok()?;
            let is_agent = command.split(|byte| *byte == 0).any(|word| word == b"agent");
            let text = String::from_utf8(environment).ok().filter(|_| is_agent)?;
            let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
            let pairs: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            pairs.contains(&("KAA_POD_UID".to_owned(), uid.clone())).then_some(pairs)
        };
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        processes.filter_map(of).next().expect("its process")
    }

    /// The server that has the resync Lease, once there is one.
    pub async fn lease_holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually_async("a holder of the resync Lease", async || {
            let lease = leases.get("kaa-default-resync").await.map_err(|error| error.to_string())?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            holder.rsplit_once('_').map(|(server, _run)| server.to_owned()).ok_or(format!("holder '{holder}'"))
        })
        .await
    }

    /// The server that leads Raft, once one does.
    pub fn raft_leader(&self) -> String {
        let leads = |peer: &&Value| peer["localRoleInfo"]["role"] == "LEADER";
        let mut leader = None;
        self.wait("a Raft leader", |c| {
            leader = c.rows("peers").iter().find(leads).and_then(|p| Some(p["id"].as_str()?.to_owned()));
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Deletes the pod of the server that this run disturbs.
    pub fn disturb(&self) {
        let pod = match self.disturb {
            Disturb::Nothing => return,
            Disturb::LeaseHolder => self.runtime.block_on(self.lease_holder()),
            Disturb::RaftLeader => self.raft_leader(),
        };
        eprintln!("{}: deleting {pod}, {:?}", self.namespace, self.disturb);
        self.delete_pod(&pod);
    }

    /// From now on `golden` uses the golden files of this use case.
    pub fn begin_story(&mut self, story: &str) {
        story.clone_into(&mut self.story);
    }

    /// Waits until the output of `kaa show domain` and `kaa show archives` equals the golden file of this step.
    pub fn golden(&self, step: &str) {
        let file = root().join(format!("tests/e2e/golden/{}-{step}.txt", self.story));
        if std::env::var_os("UPDATE").is_some() && self.disturb == Disturb::Nothing {
            std::thread::sleep(Duration::from_secs(12));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, self.shown()).unwrap();
            return;
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let began = Instant::now();
        eventually(&format!("what {} says", file.display()), || {
            let shown = self.shown();
            if shown == golden { Ok(()) } else { Err(differing(&golden, &shown)) }
        });
        eprintln!("{}: {} {step} after {:.1} s", self.namespace, self.story, began.elapsed().as_secs_f64());
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
    /// Prints what helps to see why a case failed. Closes the embedded Kubernetes, or deletes the namespace on a
    /// cluster, which stays if the case failed and KAA_KEEP is set.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.report().shown(&report::directory()));
        }
        let keep = !self.passed && std::env::var_os("KAA_KEEP").is_some();
        if let Some(stage) = self.stage.take() {
            self.runtime.block_on(stage.close());
        } else if !keep {
            let namespaces: Api<Namespace> = Api::all(self.client.clone());
            let _ = self.run(namespaces.delete(&self.namespace, &DeleteParams::default()));
        }
        NAMESPACES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.namespace);
    }
}

/// The lines that only one of the two texts has.
fn differing(golden: &str, shown: &str) -> String {
    let missing = golden.lines().filter(|line| !shown.contains(line)).map(|line| format!("\n- {line}"));
    let more = shown.lines().filter(|line| !golden.contains(line)).map(|line| format!("\n+ {line}"));
    missing.chain(more).collect()
}

pub fn rows(value: Value) -> Vec<Value> {
    match value {
        Value::Array(rows) => rows,
        Value::Object(mut page) => page.remove("data").map(rows).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn connected(peers: &Value) -> usize {
    rows(peers.clone()).iter().filter(|peer| peer["connectedState"]["state"] == "Connected").count()
}

pub fn start_id(process: &Value) -> u64 {
    let id = &process["startId"];
    id.as_u64().or_else(|| id.as_str()?.parse().ok()).expect("a start id")
}
