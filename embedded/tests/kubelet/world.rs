//! A node of its own for each test, in a directory of its own.

use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::kubelet::{Config, Image, Kubelet};
use embedded_kubernetes::object::{is_deleting, text};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::runtime::{ExecRequest, Execution, LogRequest, Output, Runtime};
use embedded_kubernetes::store::{BEGINNING, DeleteOptions, Key, Store};
use embedded_kubernetes::tokens::Tokens;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::timeout;

/// Nothing here takes long; whoever waits longer waits forever.
const LIMIT: Duration = Duration::from_secs(30);

/// A node.
pub struct World {
    pub instance: Arc<Instance>,
    pub kubelet: Kubelet,
    pub directory: TempDir,
}

/// The key of a pod.
pub fn pod(name: &str) -> Key {
    Key::new(Kind::Pod, "default", name)
}

/// A container that runs a script, with more fields.
pub fn container(name: &str, script: &str, more: &Value) -> Value {
    let mut container = json!({"name": name, "image": "shell", "args": [script]});
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    container
}

/// A pod of one container `main` that runs a script.
pub fn shell(script: &str) -> Value {
    json!({"containers": [container("main", script, &json!({}))]})
}

/// How a container is, from its pod's status.
pub fn status<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let all = ["initContainerStatuses", "containerStatuses"].map(|field| &pod["status"][field]);
    let mut all = all.into_iter().filter_map(Value::as_array).flatten();
    all.find(|status| status["name"] == container).unwrap_or(&Value::Null)
}

/// Whether a container of a pod runs.
pub fn runs(pod: &Value, container: &str) -> bool {
    status(pod, container)["state"].get("running").is_some()
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// The processes that a kubelet in this directory is responsible for.
pub fn processes(directory: &Path) -> Vec<String> {
    let mark = format!("EMBEDDED_CONTAINER={}#", directory.canonicalize().unwrap().display());
    let entries = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let marked = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).split('\0').any(|variable| variable.starts_with(&mark))
    };
    let command = |path: PathBuf| fs::read_to_string(path.join("cmdline")).unwrap_or_default().replace('\0', " ");
    entries.filter(marked).map(command).collect()
}

/// How a kubelet is set up for tests.
pub fn config(directory: &Path) -> Config {
    static SUBNETS: AtomicU8 = AtomicU8::new(0);
    let shell = Image { entrypoint: ["sh", "-c"].map(str::to_owned).into() };
    Config {
        dir: directory.to_owned(),
        subnet: [127, 99, SUBNETS.fetch_add(1, Ordering::Relaxed)],
        node: "embedded".to_owned(),
        images: [("shell".to_owned(), shell)].into(),
        env: [("LISTEN", "$(POD_IP):80"), ("HOSTS", "$(HOSTS_FILE)")].map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
        shim: vec![env!("CARGO_BIN_EXE_container-shim").to_owned()],
        api_server: "https://127.99.0.1:6443".to_owned(),
        api_ca_pem: "no certificate".to_owned(),
        backoff: Duration::from_millis(10),
        stop_grace: Duration::from_secs(5),
    }
}

impl World {
    /// Starts a node.
    pub fn start() -> Self {
        Self::start_with(|_| ())
    }

    /// Starts a node that is set up in another way.
    pub fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::new(1, Timestamp::now());
        store.create(Kind::Namespace, json!({"metadata": {"name": "default"}})).unwrap();
        let account = json!({"metadata": {"name": "default", "namespace": "default"}});
        store.create(Kind::ServiceAccount, account).unwrap();
        let instance = Arc::new(Instance::new(store, Timestamp::now));
        let mut config = config(directory.path());
        change(&mut config);
        let kubelet = Kubelet::start(instance.clone(), Arc::new(Tokens::new().unwrap()), config).unwrap();
        Self { instance, kubelet, directory }
    }

    /// Creates an object.
    pub fn create(&self, kind: Kind, name: &str, rest: Value) -> Arc<Value> {
        let mut object = rest;
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!("default");
        self.instance.with(|store| store.create(kind, object)).unwrap()
    }

    /// Creates a claim called `claim`.
    pub fn claim(&self) -> Arc<Value> {
        let resources = json!({"requests": {"storage": "1Gi"}});
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": resources});
        self.create(Kind::PersistentVolumeClaim, "claim", json!({"spec": spec}))
    }

    /// Creates a pod on the node.
    pub fn run(&self, name: &str, mut spec: Value) -> Arc<Value> {
        spec["nodeName"] = json!("embedded");
        self.create(Kind::Pod, name, json!({"spec": spec}))
    }

    /// Waits until a pod is as it should be; `None`: it is gone.
    pub async fn until(&self, name: &str, holds: impl Fn(Option<&Value>) -> bool) -> Option<Arc<Value>> {
        let mut bell = self.instance.bell();
        let mut last = None;
        let waiting = async {
            loop {
                bell.borrow_and_update();
                last = self.instance.look(|store| store.find(&pod(name)).cloned());
                if holds(last.as_deref()) {
                    return;
                }
                bell.changed().await.unwrap();
            }
        };
        if timeout(LIMIT, waiting).await.is_err() {
            panic!("{name} does not become what it should: {:#}", last.as_deref().unwrap_or(&Value::Null));
        }
        last
    }

    /// Waits until a pod that is there is as it should be.
    pub async fn until_is(&self, name: &str, holds: impl Fn(&Value) -> bool) -> Arc<Value> {
        self.until(name, |pod| pod.is_some_and(&holds)).await.unwrap()
    }

    /// Begins to delete a pod.
    pub fn delete(&self, name: &str, grace_seconds: Option<i64>) {
        let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
        self.instance.with(|store| store.delete(&pod(name), &options)).unwrap();
    }

    /// Waits until a pod is gone; gives the last that was told of it.
    pub async fn until_gone(&self, name: &str) -> Arc<Value> {
        self.until(name, |pod| pod.is_none()).await;
        let last = |store: &Store| {
            let changes = store.changes_since(BEGINNING).unwrap().filter(|change| change.key == pod(name));
            changes.last().unwrap().object.clone()
        };
        self.instance.look(last)
    }

    /// What a container wrote.
    pub async fn log(&self, name: &str, change: impl FnOnce(&mut LogRequest)) -> String {
        let mut request = LogRequest {
            pod: pod(name),
            container: None,
            follow: false,
            previous: false,
            tail_lines: None,
            limit_bytes: None,
            since_seconds: None,
            timestamps: false,
        };
        change(&mut request);
        let mut pieces = match self.kubelet.logs(request) {
            Ok(pieces) => pieces,
            Err(failure) => return format!("{}: {failure}", failure.code),
        };
        let mut text = Vec::new();
        while let Some(piece) = timeout(LIMIT, pieces.recv()).await.unwrap() {
            text.extend(piece);
        }
        String::from_utf8(text).unwrap()
    }

    /// Waits until the only container of a pod has written a line.
    pub async fn until_says(&self, name: &str, line: &str) {
        self.until_is(name, |pod| status(pod, "main").get("containerID").is_some()).await;
        let request = LogRequest {
            pod: pod(name),
            container: None,
            follow: true,
            previous: false,
            tail_lines: None,
            limit_bytes: None,
            since_seconds: None,
            timestamps: false,
        };
        let mut pieces = self.kubelet.logs(request).unwrap();
        let mut text = String::new();
        while !text.lines().any(|known| known == line) {
            let piece = timeout(LIMIT, pieces.recv()).await.unwrap_or_else(|_| panic!("only: {text}"));
            text.push_str(&String::from_utf8(piece.unwrap_or_else(|| panic!("it ended after: {text}"))).unwrap());
        }
    }

    /// Starts a command in a container.
    pub fn exec(&self, name: &str, command: &[&str], stdin: bool) -> Result<Execution, String> {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecRequest { pod: pod(name), container: None, command, stdin };
        self.kubelet.exec(request).map_err(|failure| format!("{}: {failure}", failure.code))
    }

    /// The Events of a kind about a pod: the sentences.
    pub fn told(&self, name: &str, reason: &str) -> Vec<String> {
        let about = |event: &&Arc<Value>| text(event, "/involvedObject/name") == name && event["reason"] == reason;
        self.instance.look(|store| {
            let events = store.list(Kind::Event, Some("default")).filter(about);
            let mut told: Vec<String> = events.map(|event| text(event, "/message").to_owned()).collect();
            told.sort();
            told
        })
    }

    /// Where the directory of a pod is.
    pub fn directory_of(&self, pod: &Value) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("pods").join(text(pod, "/metadata/uid"))
    }
}

/// Waits for a command: what it wrote to standard output and standard error, and its exit code.
pub async fn ended(mut execution: Execution) -> (String, String, i32) {
    drop(execution.stdin.take());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(output) = timeout(LIMIT, execution.output.recv()).await.unwrap() {
        match output {
            Output::Stdout(piece) => stdout.extend(piece),
            Output::Stderr(piece) => stderr.extend(piece),
        }
    }
    let code = timeout(LIMIT, execution.exit).await.unwrap().unwrap();
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), code)
}

/// Whether a pod is being deleted.
pub fn ends(pod: &Value) -> bool {
    is_deleting(pod)
}
