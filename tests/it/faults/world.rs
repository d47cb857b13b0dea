//! A domain on a stage, and the faults and changes that are applied to it.

use super::audit::Trail;
use super::engines::{Causes, Watcher};
use super::schedule::{Act, Schedule};
use super::truth::Truth;
use crate::domain::clients::{Agents, Clients, Pace};
use crate::domain::cluster::Cluster;
use crate::domain::processes::{self, Process, Role};
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::server::Faults;
use embedded_kubernetes::store::{Key, Part, Store};
use k8s_openapi::api::core::v1::Pod;
use kaa_engine::marker::MARKER;
use kube::Api;
use kube::api::LogParams;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::eventually;
use testkit::wait::is;

/// How often the audit trail is collected.
const COLLECT: Duration = Duration::from_secs(5);

/// The clients, for faults that last up to a minute each.
const PACE: Pace =
    Pace { writers: 4, readers: 2, patience: Duration::from_secs(3), most_pause_ms: 600, operator: None };

/// How often a condition is checked.
const LOOK: Duration = Duration::from_millis(20);

/// The server that has the resync Lease, and how many transitions the Lease had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub holder: String,
    pub transitions: i64,
}

pub struct World {
    pub cluster: Cluster,
    pub instance: Arc<Instance>,
    pub agents: Agents,
    pub causes: Causes,
    /// Where the containers' files are.
    pub dir: PathBuf,
}

impl World {
    pub fn new(cluster: Cluster) -> Self {
        let dir = cluster.files().join("kubernetes").canonicalize().unwrap();
        let instance = cluster.stage().instance().clone();
        Self { agents: Agents::of(instance.clone()), causes: Causes::default(), instance, cluster, dir }
    }

    fn key(&self, kind: Kind, name: &str) -> Key {
        Key::new(kind, self.cluster.namespace(), name)
    }

    /// The names of a workload's pods, in order.
    fn pods(&self, workload: &str) -> Vec<String> {
        let prefix = format!("{workload}-");
        self.instance.look(|store| {
            let pods = store.list(Kind::Pod, Some(self.cluster.namespace()));
            pods.map(|pod| object::name(pod).to_owned()).filter(|name| name.starts_with(&prefix)).collect()
        })
    }

    /// Changes an object as an operator would with `kubectl`, but regardless of the faults of the API. Does nothing if
    /// the object does not exist.
    fn edit(&self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) {
        let key = self.key(kind, name);
        drop(self.instance.with(|store: &mut Store| store.edit(&key, Part::Main, change)));
    }

    fn delete(&self, kind: Kind, name: &str) {
        let key = self.key(kind, name);
        drop(self.instance.with(|store| store.delete(&key, &Default::default())));
    }

    pub fn scale(&self, workload: &str, replicas: u64) {
        let kind = if workload.starts_with("te-") { Kind::Deployment } else { Kind::StatefulSet };
        self.edit(kind, workload, |object| object["spec"]["replicas"] = json!(replicas));
    }

    /// Makes a StatefulSet want this number of replicas, from this ordinal on.
    pub fn scale_from(&self, set: &str, start: u64, replicas: u64) {
        self.edit(Kind::StatefulSet, set, |object| {
            object["spec"]["ordinals"] = json!({"start": start});
            object["spec"]["replicas"] = json!(replicas);
        });
    }

    /// The marker on a claim's volume.
    fn marker(&self, claim: &str) -> PathBuf {
        let claim = self.instance.look(|store| store.find(&self.key(Kind::PersistentVolumeClaim, claim)).cloned());
        let claim = claim.expect("a claim of a StatefulSet that was scaled up");
        self.dir.join("volumes").join(object::uid(&claim)).join(MARKER)
    }

    /// Has the same effect on the marker as a copy of one volume onto another.
    pub fn copy_marker(&self, from: &str, to: &str) {
        std::fs::copy(self.marker(from), self.marker(to)).unwrap();
    }

    pub fn remove_marker(&self, claim: &str) {
        std::fs::remove_file(self.marker(claim)).unwrap();
    }

    /// The process with the number `nth` among those of a role, modulo their number; `None` if there is none.
    fn process(&self, role: Role, nth: usize) -> Option<Process> {
        let found = processes::of(&self.dir, role);
        let which = nth.checked_rem(found.len())?;
        found.into_iter().nth(which)
    }

    /// SIGKILL to a process of a container.
    pub fn kill(&self, process: &Process) {
        self.causes.note(&process.pod_uid);
        process.signal(Signal::SIGKILL);
    }

    fn act(&self, act: &Act, paused: &mut Vec<(Instant, Process)>) {
        match act {
            Act::Api(faults) => self.cluster.stage().injector().set(*faults),
            Act::Kill(role, nth) => {
                if let Some(process) = self.process(*role, *nth) {
                    self.kill(&process);
                }
            }
            Act::Pause(role, nth, seconds) => {
                if let Some(process) = self.process(*role, *nth) {
                    process.signal(Signal::SIGSTOP);
                    paused.push((Instant::now() + Duration::from_secs(*seconds), process));
                }
            }
            Act::Scale(workload, replicas) => self.scale(workload, *replicas),
            Act::DeletePod(workload, nth) => {
                if let Some(pod) = self.pods(workload).get(*nth) {
                    self.delete(Kind::Pod, pod);
                }
            }
            Act::DeleteClaim(nth) => {
                self.delete(Kind::PersistentVolumeClaim, &format!("archive-volume-sm-demo-{nth}"));
                self.delete(Kind::Pod, &format!("sm-demo-{nth}"));
            }
        }
    }

    /// Runs a schedule to its end, until every paused process continues and the API has no fault.
    pub fn play(&self, schedule: &Schedule, trail: &mut Trail, mut each_round: impl FnMut(&Faults)) {
        let (began, mut collected, mut paused) = (Instant::now(), Instant::now(), Vec::new());
        let mut now = Faults::default();
        for step in &schedule.0 {
            while began.elapsed() < Duration::from_millis(step.at_ms) {
                std::thread::sleep(LOOK);
                resume(&mut paused, Instant::now());
                if collected.elapsed() > COLLECT {
                    self.cluster.run(trail.collect(&self.agents));
                    collected = Instant::now();
                }
            }
            if let Act::Api(faults) = &step.act {
                if *faults == Faults::default() {
                    each_round(&now);
                }
                now = *faults;
            }
            eprintln!("{:>6.1} s: {}", began.elapsed().as_secs_f64(), step.act);
            self.act(&step.act, &mut paused);
        }
        while !paused.is_empty() {
            std::thread::sleep(LOOK);
            resume(&mut paused, Instant::now());
        }
        self.cluster.stage().injector().set(Faults::default());
    }

    /// Waits until the condition holds. Returns how long that took.
    #[track_caller]
    pub fn wait(&self, what: &str, mut until: impl FnMut() -> bool) -> Duration {
        let began = Instant::now();
        eventually(what, || is(until()));
        began.elapsed()
    }

    /// Whether every pod that Kubernetes wants runs and is ready, and no other is there.
    pub fn is_settled(&self) -> bool {
        let wanted = [("kaa-admin", 3), ("sm-demo", 2), ("te-demo", 2)];
        let of = |workload: &str| self.pods(workload).len();
        wanted.iter().all(|(workload, pods)| of(workload) == *pods)
            && self.instance.look(|store| {
                store.list(Kind::Pod, Some(self.cluster.namespace())).all(|pod| {
                    let conditions = object::list(pod, "/status/conditions");
                    let ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
                    ready && !object::is_deleting(pod)
                })
            })
    }

    /// The server that has the resync Lease, once there is one.
    pub fn leader(&self) -> Leader {
        let key = self.key(Kind::Lease, "kaa-default-resync");
        let mut leader = None;
        self.wait("a resync leader", || {
            leader = self.instance.look(|store| {
                let lease = store.find(&key)?;
                let (holder, _) = object::text(lease, "/spec/holderIdentity").rsplit_once('_')?;
                let transitions = object::number(lease, "/spec/leaseTransitions")?;
                Some(Leader { holder: holder.to_owned(), transitions })
            });
            leader.is_some()
        });
        leader.expect("waited for")
    }

    /// Waits until an agent has acquired the Lease after `before`, and the domain knows of it.
    pub fn led_after(&self, before: &Leader) -> Leader {
        self.wait("another acquisition of the Lease", || self.leader().transitions > before.transitions);
        let after = self.leader();
        let known = format!("led by {} since epoch", after.holder);
        let acquired = format!("lease acquisition {}", after.transitions);
        self.wait("the domain to know who leads", || {
            let said = self.get("kaa/explain/resync/default");
            said.iter()
                .filter_map(|said| said["state"].as_str())
                .any(|s| s.starts_with(&known) && s.ends_with(&acquired))
        });
        after
    }

    /// The process of an agent.
    pub fn agent(&self, name: &str) -> Process {
        let found = processes::of(&self.dir, Role::Agent).into_iter().find(|process| process.pod == name);
        found.unwrap_or_else(|| panic!("{name} does not run"))
    }

    /// The answers of the agents that answer.
    fn get(&self, path: &str) -> Vec<Value> {
        self.cluster.run(async {
            let http = reqwest::Client::builder().timeout(Duration::from_secs(2)).build().unwrap();
            let mut answers = Vec::new();
            for (_, address) in self.agents.all() {
                let answer =
                    async { http.get(format!("{address}/{path}")).send().await?.error_for_status()?.json().await };
                answers.extend(answer.await.ok().into_iter().collect::<Vec<Value>>());
            }
            answers
        })
    }

    /// For each archive that is not removed: whether its claim is known. Empty if the agents that answer disagree.
    pub fn claims(&self) -> Vec<bool> {
        let known = |answer: &Value| -> Vec<bool> { rows(answer).iter().map(|row| !row["claim"].is_null()).collect() };
        let mut answers = self.get("archives").into_iter().map(|answer| known(&answer));
        let first = answers.next().unwrap_or_default();
        if answers.all(|other| other == first) { first } else { Vec::new() }
    }

    /// Whether all three agents answer that the next pass would do nothing, and exactly one leads.
    pub fn plans_nothing(&self) -> bool {
        let plans = self.get("kaa/plan");
        let idle = |plan: &Value| plan["synced"] == true && plan["findings"] == json!([]);
        plans.len() == 3 && plans.iter().all(idle) && plans.iter().filter(|plan| plan["leading"] == true).count() == 1
    }

    /// Whether every agent reports the same running engines as Kubernetes.
    pub fn agrees(&self) -> bool {
        let mut pods = [self.pods("sm-demo"), self.pods("te-demo")].concat();
        pods.sort();
        let runs = |row: &&Value| row["state"] == "RUNNING" && row["durableState"] == "MONITORED";
        let answers = self.get("processes");
        answers.len() == 3
            && answers.iter().all(|answer| {
                let rows = rows(answer).iter().filter(runs);
                let mut said: Vec<&str> = rows.filter_map(|row| row["labels"]["pod-name"].as_str()).collect();
                said.sort_unstable();
                said == pods
            })
    }

    /// Whether no engine's pod exists, and all agents report the same.
    pub fn runs_no_engine(&self) -> bool {
        self.pods("sm-demo").is_empty() && self.pods("te-demo").is_empty() && self.agrees()
    }

    /// The reasons of all waiting changes, from the agents that answer.
    pub fn waits(&self) -> Vec<String> {
        let plans = self.get("kaa/plan");
        let waits = plans.iter().flat_map(|plan| plan["waiting"].as_array().cloned().unwrap_or_default());
        waits.filter_map(|wait| wait["reason"].as_str().map(str::to_owned)).collect()
    }

    /// The output of a pod's container since its start; empty if there is no container.
    pub fn log(&self, pod: &str) -> String {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), self.cluster.namespace());
        self.cluster.run(pods.logs(pod, &LogParams::default())).unwrap_or_default()
    }

    /// The pods of admin servers whose container restarted more often than the test killed it.
    pub fn restarts_without_a_cause(&self) -> Vec<String> {
        self.instance.look(|store| {
            let mut wrong = Vec::new();
            for pod in store.list(Kind::Pod, Some(self.cluster.namespace())) {
                let restarts: i64 = object::list(pod, "/status/containerStatuses")
                    .iter()
                    .filter_map(|status| object::number(status, "/restartCount"))
                    .sum();
                let killed = self.causes.of(object::uid(pod)) as i64;
                if restarts > killed && object::name(pod).starts_with("kaa-admin-") {
                    wrong.push(format!(
                        "{} restarted {restarts} times and was killed {killed} times",
                        object::name(pod)
                    ));
                }
            }
            wrong
        })
    }
}

fn rows(answer: &Value) -> &[Value] {
    answer.as_array().or_else(|| answer["data"].as_array()).map_or(&[], Vec::as_slice)
}

/// Sends SIGCONT to the processes whose pause is over.
fn resume(paused: &mut Vec<(Instant, Process)>, now: Instant) {
    paused.retain(|(until, process)| {
        if *until <= now {
            process.signal(Signal::SIGCONT);
        }
        *until > now
    });
}

/// Everything that observes the domain.
pub struct Witnesses {
    pub truth: Truth,
    pub watcher: Watcher,
    pub clients: Clients,
}

impl Witnesses {
    pub fn begin(world: &World) -> Self {
        world.cluster.run(async {
            let truth = Truth::begin(world.instance.clone());
            let watcher = Watcher::begin(world.dir.clone());
            Self { watcher, clients: Clients::start(world.agents.clone(), PACE), truth }
        })
    }
}
