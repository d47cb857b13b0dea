//! The work of kubelets: pods start and end after a while, with their engines, and ended containers start again.

use crate::sim::engine::{Engine, Facts, Ground};
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object::{name, text, uid};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{Key, Part, Store};
use embedded_kubernetes::{hollow, object};
use kaa::clock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How long a container may take to end before it is killed.
const GRACE_MS: u64 = 8_000;

/// The kubelets of all nodes.
pub struct Kubelet {
    pub ground: Ground,
    pub instance: Arc<Instance>,
    /// The containers that run, or that ran last, by the UID of their pod.
    pods: BTreeMap<String, Container>,
    /// When an action is due, by the UID of the pod and the name of the action.
    due: BTreeMap<(String, &'static str), u64>,
}

struct Container {
    nonce: u64,
    stop: watch::Sender<bool>,
    task: AbortHandle,
    /// By when the container must have ended.
    kill_ms: Option<u64>,
}

impl Kubelet {
    pub fn new(ground: Ground, instance: Arc<Instance>) -> Self {
        Self { ground, instance, pods: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// Does the work that is due.
    pub fn step(&mut self, runtime: &Runtime, now_ms: u64) {
        for key in self.instance.look(hollow::due) {
            let Some(pod) = self.instance.look(|store| store.find(&key).cloned()) else { continue };
            if is_admin(&pod) && text(&pod, "/status/phase") == "Running" {
                // `tend` ends these pods.
            } else if object::is_deleting(&pod) {
                self.end(&key, &pod, now_ms);
            } else if self.is_due(uid(&pod), "start", 50, 400, now_ms) {
                self.instance.with(|store| hollow::act(store, &key));
                self.begin(runtime, &key, now_ms);
            }
        }
        self.restart(runtime, now_ms);
    }

    pub fn is_due(&mut self, uid: &str, what: &'static str, least_ms: u64, most_ms: u64, now_ms: u64) -> bool {
        let after = least_ms + clock::random_below(most_ms);
        *self.due.entry((uid.to_owned(), what)).or_insert(now_ms + after) <= now_ms
    }

    fn ended(&self, nonce: u64) -> bool {
        self.ground.truth.lock().unwrap().engines[&nonce].ended
    }

    fn kill(&self, container: &Container) {
        container.task.abort();
        let mut truth = self.ground.truth.lock().unwrap();
        let facts = truth.engines.get_mut(&container.nonce).expect("it was started");
        (facts.running, facts.ended) = (false, true);
    }

    /// Kills the engine of a pod, as a kernel would. If `restart_ms` is set, its container starts again at that time.
    pub fn kill_engine(&mut self, pod_uid: &str, restart_ms: Option<u64>) {
        if let Some(container) = self.pods.get(pod_uid) {
            self.kill(container);
            if let Some(at) = restart_ms {
                self.due.insert((pod_uid.to_owned(), "restart"), at);
            }
        }
    }

    fn end(&mut self, key: &Key, pod: &Value, now_ms: u64) {
        let uid = uid(pod).to_owned();
        if let Some(container) = self.pods.get_mut(&uid) {
            container.stop.send_replace(true);
            let kill_ms = *container.kill_ms.get_or_insert(now_ms + GRACE_MS);
            let container = &self.pods[&uid];
            if now_ms >= kill_ms {
                self.kill(container);
            }
            if !self.ended(container.nonce) {
                return;
            }
        }
        if self.is_due(&uid, "end", 20, 300, now_ms) {
            self.pods.remove(&uid);
            self.instance.with(|store| hollow::act(store, key));
        }
    }

    /// Starts the engine of a pod that has one.
    fn begin(&mut self, runtime: &Runtime, key: &Key, now_ms: u64) {
        let Some(pod) = self.instance.look(|store| store.find(key).cloned()) else { return };
        let component = text(&pod, "/metadata/labels/component");
        if component.is_empty() {
            return;
        }
        let claim = Key::new(Kind::PersistentVolumeClaim, "default", &format!("archive-volume-{}", key.name));
        let claim = self.instance.look(|store| store.find(&claim).map(|claim| uid(claim).to_owned()));
        // What is on a volume of a database with roles is in the model of its servers.
        let databases = self.ground.databases.clone().zip(claim.clone());
        let facts = Facts {
            pod: key.name.clone(),
            pod_uid: uid(&pod).to_owned(),
            claim_uid: claim.filter(|_| component == "sm" && databases.is_none()),
            running: false,
            ended: false,
            start_id: 0,
            heard_ms: now_ms,
            started_with: 0,
        };
        let nonce = clock::random_u64();
        self.ground.truth.lock().unwrap().engines.insert(nonce, facts.clone());
        let (stop, stopped) = watch::channel(false);
        let started_ms = clock::now().0;
        let pod_uid = facts.pod_uid.clone();
        let ground = self.ground.clone();
        if let Some((databases, claim)) = databases {
            let stream = databases.begin(ground, nonce, (&facts.pod, &pod_uid), &claim, stopped);
            let task = runtime.spawn(stream).abort_handle();
            self.pods.insert(pod_uid, Container { nonce, stop, task, kill_ms: None });
            return;
        }
        let engine = Engine {
            ground,
            nonce,
            facts,
            started_ms,
            stop: stopped,
            farewell: None,
            ran: false,
            applied: 0,
            held: None,
        };
        let task = runtime.spawn(engine.run()).abort_handle();
        self.pods.insert(pod_uid, Container { nonce, stop, task, kill_ms: None });
    }

    /// Containers that ended start again in their pods; those whose pods are gone are killed after a while.
    fn restart(&mut self, runtime: &Runtime, now_ms: u64) {
        let pods: BTreeMap<String, Arc<Value>> = self
            .instance
            .look(|store| store.list(Kind::Pod, None).map(|pod| (uid(pod).to_owned(), pod.clone())).collect());
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            let ended = self.ended(self.pods[&uid].nonce);
            match pods.get(&uid) {
                None if self.is_due(&uid, "gone", 500, 6_000, now_ms) => {
                    self.kill(&self.pods[&uid]);
                    self.pods.remove(&uid);
                }
                Some(pod) if ended && !object::is_deleting(pod) => {
                    let key = Key::of(Kind::Pod, pod);
                    let runs = !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
                    if runs && self.is_due(&uid, "noticed", 50, 1_000, now_ms) {
                        self.instance.with(|store| container_ended(store, &key));
                    }
                    if self.is_due(&uid, "restart", 100, 3_000, now_ms) {
                        self.due.remove(&(uid.clone(), "restart"));
                        self.due.remove(&(uid.clone(), "noticed"));
                        self.ground.trace.line(&format!("the container of {} starts again", name(pod)));
                        self.instance.with(|store| new_container(store, &key));
                        self.begin(runtime, &key, now_ms);
                    }
                }
                Some(_) | None => {}
            }
        }
    }
}

/// Whether this is the pod of an admin server.
pub fn is_admin(pod: &Value) -> bool {
    text(pod, "/metadata/labels/app") == "kaa"
}

/// Sets the status of a pod after the kubelet noticed that its container has ended.
fn container_ended(store: &mut Store, key: &Key) {
    let at = object::time(store.now());
    let edited = store.edit(key, Part::Status, |pod| {
        let status = &mut pod["status"]["containerStatuses"][0];
        let ended = json!({
            "containerID": status["containerID"], "exitCode": 137, "reason": "Error", "finishedAt": at,
            "startedAt": status["state"]["running"]["startedAt"],
        });
        (status["ready"], status["started"]) = (json!(false), json!(false));
        status["state"] = json!({"terminated": ended});
    });
    edited.expect("a kubelet may write a status");
}

/// Sets the status of a pod after its container was restarted.
fn new_container(store: &mut Store, key: &Key) {
    let running = |pod: &Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
    if store.find(key).is_some_and(|pod| running(pod)) {
        // The restart was so fast that the status never showed the end of the previous container.
        container_ended(store, key);
    }
    let at = object::time(store.now());
    let id = format!("hollow://{:016x}{:016x}", store.ids().number(), store.ids().number());
    let edited = store.edit(key, Part::Status, |pod| {
        let status = &mut pod["status"]["containerStatuses"][0];
        status["lastState"] = status["state"].clone();
        (status["ready"], status["started"]) = (json!(true), json!(true));
        status["state"] = json!({"running": {"startedAt": at}});
        status["restartCount"] = json!(status["restartCount"].as_u64().unwrap_or(0) + 1);
        status["containerID"] = json!(id);
    });
    edited.expect("a kubelet may write a status");
}
