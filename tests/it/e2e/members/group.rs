//! The group of the admin servers while its StatefulSet changes: clients that write all the time, what every agent says
//! of the members, and what is on their volumes.

use crate::domain::clients::{Agents, Clients, Pace};
use crate::domain::cluster::{Cluster, OPERATOR, rows};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::eventually;

/// Enough writes that a time without one means something, and no client that waits long for an agent that is gone.
const PACE: Pace =
    Pace { writers: 4, readers: 1, patience: Duration::from_millis(700), most_pause_ms: 60, operator: Some(OPERATOR) };

/// How long an agent may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// How often one of the first servers may become the leader before the test fails: more often would not be chance.
const HAND_OVERS: u32 = 8;

/// How often the test looks up the addresses of the admin servers on a cluster.
const LOOK: Duration = Duration::from_millis(200);

/// Name and address of each admin server, ready or not.
type Addresses = Vec<(String, String)>;

/// The group, and the clients that write meanwhile.
pub struct Group<'a> {
    cluster: &'a Cluster,
    clients: Clients,
    domain: String,
    replicas: u32,
    engines: usize,
}

/// One change, and the state at its beginning. The time without a commit counts from there.
pub struct Change {
    what: String,
    began: Instant,
    writes: u64,
    epoch: u64,
}

/// The name of an admin server.
pub fn server(ordinal: u32) -> String {
    format!("kaa-admin-{ordinal}")
}

/// The names of the first `replicas` servers.
fn servers(replicas: u32) -> BTreeSet<String> {
    (0..replicas).map(server).collect()
}

impl<'a> Group<'a> {
    /// Starts clients on a group of this number of servers, and waits until the group is whole.
    pub fn watched(cluster: &'a Cluster, replicas: u32) -> Self {
        let clients = Clients::start_in(cluster);
        let (domain, _) = eventually("an anchor", || anchor(cluster).ok_or("there is none, or no answer"));
        let group = Self { cluster, clients, domain, replicas, engines: cluster.running() };
        group.whole(group.begin("at first"), replicas);
        group
    }

    /// Begins to measure a change.
    pub fn begin(&self, what: &str) -> Change {
        let epoch = self.epoch();
        Change { what: what.to_owned(), began: Instant::now(), writes: self.writes(), epoch }
    }

    /// `kubectl scale`, without waiting for anything.
    pub fn ask_for(&mut self, replicas: u32) {
        self.cluster.scale("statefulsets", "kaa-admin", replicas);
        self.replicas = replicas;
    }

    /// Scales, and waits until the group is whole. Returns the longest time without a commit.
    pub fn scale(&mut self, replicas: u32) -> Duration {
        let from = self.replicas;
        let change = self.begin(&format!("{from} -> {replicas}, led by {}", self.cluster.raft_leader()));
        self.ask_for(replicas);
        self.whole(change, from)
    }

    /// Waits until the group is whole after an ordinary change from this number of servers: in the same epoch as
    /// before.
    pub fn whole(&self, change: Change, from: u32) -> Duration {
        let epoch = change.epoch;
        let silence = change.whole(self, epoch);
        (self.replicas..from).for_each(|leaver| self.shown_evicted(&server(leaver)));
        silence
    }

    /// Scales up. The servers that come back have logs of an earlier epoch: they retire these and join with empty ones,
    /// under new log ids.
    pub fn back_from_the_past(&mut self, replicas: u32) {
        let before = self.logs();
        self.back_without(&before, replicas);
    }

    /// The same if these servers may have seen the new epoch before their pods ended: none still has a log of `before`.
    pub fn back_without(&mut self, before: &BTreeMap<String, String>, replicas: u32) {
        let from = self.replicas;
        self.scale(replicas);
        let now = self.logs();
        for name in (from..replicas).map(server) {
            assert_ne!(now[&name], before[&name], "{name} has a new log");
            let kept = self.retired(&name);
            let old = format!("-{}", before[&name]);
            assert!(kept.iter().any(|directory| directory.ends_with(&old)), "{name}: no log{old} among {kept:?}");
        }
    }

    /// The last servers of the group, down to `replicas`, stop at one moment, as when their nodes lose power. Then
    /// Kubernetes learns of it: the StatefulSet is scaled, and the pods are deleted by force. The change begins with
    /// the stop.
    pub fn lose(&mut self, replicas: u32) -> Change {
        let lost: Vec<String> = (replicas..self.replicas).map(server).collect();
        let change = self.begin(&format!("{} -> {replicas}, {} lost", self.replicas, lost.join(" and ")));
        self.stop(&lost);
        self.ask_for(replicas);
        lost.iter().for_each(|pod| self.cluster.force_delete_pod(pod));
        change
    }

    /// SIGSTOP to servers.
    pub fn stop(&self, servers: &[String]) {
        let processes: Vec<_> = servers.iter().map(|pod| self.cluster.agent_of(pod)).collect();
        processes.into_iter().for_each(|process| process.signal("STOP"));
    }

    /// Makes the clients rest, or continue.
    pub fn rest(&self, resting: bool) {
        self.clients.rest(resting);
    }

    /// How many servers are wanted.
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Waits for the next epoch and a commit in it. Returns the longest time without one.
    pub fn epoch_after(&self, change: &Change) -> Duration {
        let reached = || self.epoch() > change.epoch;
        self.until("the next epoch", || if reached() { Ok(()) } else { Err("it is the same".to_owned()) });
        self.written();
        self.clients.longest_silence(change.began, Instant::now())
    }

    /// Waits until another write has been acknowledged.
    fn written(&self) {
        let writes = self.writes();
        self.until("a write", || if self.writes() > writes { Ok(()) } else { Err("nobody commits".to_owned()) });
    }

    /// Judges the whole case: the answers to the clients are linearizable, and every acknowledged write still exists.
    pub fn judge(self) {
        let name = self.cluster.namespace();
        self.cluster.run(async {
            self.clients.stop().await;
            self.clients.read_all().await;
        });
        self.clients.check().unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("members: {name}: {:?}", self.clients.counts());
    }

    /// The anchor's epoch.
    pub fn epoch(&self) -> u64 {
        eventually("an anchor", || anchor(self.cluster).ok_or("there is none, or no answer")).1
    }

    /// The log id of each server, as a ready server reports it.
    pub fn logs(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.cluster.rows("peers").iter().map(|row| (text(&row["id"]), text(&row["raftId"]))).collect()
    }

    /// How long ago the last write was acknowledged.
    pub fn silence_now(&self) -> Duration {
        self.clients.silence_now()
    }

    /// Whether exactly the first `replicas` servers vote, as a ready server reports it.
    pub fn vote(&self, replicas: u32) -> Result<(), String> {
        let votes = |row: &&Value| row["isEvicted"] == false && row["isPassive"] == false;
        let peers = self.cluster.rows("peers");
        let voters: BTreeSet<&str> = peers.iter().filter(votes).filter_map(|row| row["id"].as_str()).collect();
        if servers(replicas).iter().eq(voters.iter().copied()) { Ok(()) } else { Err(format!("{voters:?}")) }
    }

    /// How many writes were acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.writes()
    }

    fn writes(&self) -> u64 {
        self.clients.counts().acknowledged
    }

    fn shown_evicted(&self, leaver: &str) {
        self.until(&format!("{leaver} to be shown as evicted"), || {
            let shown = self.cluster.kaa("show domain");
            let line = shown.lines().find(|line| line.trim_start().starts_with(&format!("[{leaver}]")));
            let is_evicted = line.is_some_and(|line| line.trim_end_matches(" *").ends_with("Evicted"));
            if is_evicted { Ok(()) } else { Err(shown) }
        });
    }

    /// Deletes the pod of the leader for as long as the leader is one of the first servers: a leader transfers the
    /// leadership to any other server.
    pub fn lead_by_one_beyond(&self, first: u32) {
        for _ in 0..HAND_OVERS {
            let leader = self.cluster.raft_leader();
            if !servers(first).contains(&leader) {
                return;
            }
            let change = self.begin(&format!("{leader} restarts, which leads"));
            self.restart(&leader);
            self.whole(change, self.replicas);
        }
        panic!("none beyond the first {first} comes to lead");
    }

    /// Deletes the pod of the leader until this server leads.
    pub fn lead_by(&self, ordinal: u32) {
        while self.cluster.raft_leader() != server(ordinal) {
            let leader = self.cluster.raft_leader();
            let change = self.begin(&format!("{leader} restarts, which leads"));
            self.restart(&leader);
            self.whole(change, self.replicas);
        }
    }

    /// `kaa recover ARGUMENTS` on a server, ready or not, from within its pod.
    pub fn recover(&self, server: &str, arguments: &str) -> Result<String, String> {
        self.within(server, &format!("recover {arguments}"))
    }

    /// The same for `kaa ARGUMENTS`.
    pub fn within(&self, server: &str, arguments: &str) -> Result<String, String> {
        let address = self.address(server).ok_or_else(|| format!("{server} has no address"))?;
        self.cluster.kaa_within(server, &address, arguments)
    }

    /// The address of a pod.
    pub fn address(&self, pod: &str) -> Option<String> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), self.cluster.namespace());
        self.cluster.run(pods.get(pod)).ok()?.status?.pod_ip
    }

    /// The servers that this server knows. It need not be ready.
    pub fn known_to(&self, server: &str) -> Vec<String> {
        let address = self.address(server).expect("an address");
        let peers = self.ask(&format!("http://{address}:8888"), "/api/1/peers").expect("an answer");
        let mut known: Vec<_> = rows(peers).iter().filter_map(|row| Some(row["id"].as_str()?.to_owned())).collect();
        known.sort();
        known
    }

    fn restart(&self, pod: &str) {
        self.restart_together(&[pod.to_owned()]);
    }

    /// Deletes pods at one moment, and waits until all have been replaced.
    fn restart_together(&self, pods: &[String]) {
        let replaced: Vec<_> = pods.iter().map(|pod| (pod, self.cluster.pod_uid(pod))).collect();
        pods.iter().for_each(|pod| self.cluster.delete_pod(pod));
        replaced.iter().for_each(|(pod, uid)| self.cluster.pod_replaced(pod, uid));
    }

    /// Deletes the last pods of the group, this number of them, at one moment, and waits until the group is whole.
    pub fn restart_last(&self, count: u32) -> Duration {
        let pods: Vec<String> = (self.replicas - count..self.replicas).map(server).collect();
        let change = self.begin(&format!("{} of {} deleted at one moment", pods.join(" and "), self.replicas));
        self.restart_together(&pods);
        self.whole(change, self.replicas)
    }

    /// The messages of Kubernetes about preStop hooks that it could not run.
    pub fn failed_hooks(&self) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.cluster.client(), self.cluster.namespace());
        let events = self.cluster.run(events.list(&ListParams::default())).expect("events");
        let failed = events.items.into_iter().filter(|event| event.reason.as_deref() == Some("FailedPreStopHook"));
        failed.map(|event| event.message.unwrap_or_default()).collect()
    }

    /// `kubectl rollout restart`, and waits until all have been replaced.
    pub fn roll(&self) -> Duration {
        let change = self.begin(&format!("rolling restart of {}", self.replicas));
        let sets: Api<StatefulSet> = Api::namespaced(self.cluster.client(), self.cluster.namespace());
        let annotations = json!({"kubectl.kubernetes.io/restartedAt": "now"});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        let asked = async { sets.patch("kaa-admin", &PatchParams::default(), &Patch::Merge(patch)).await };
        let generation = self.cluster.run(asked).expect("restarted").metadata.generation;
        self.until("the restart to be through", || {
            let set = self.cluster.run(sets.get("kaa-admin")).map_err(|error| error.to_string())?;
            let status = set.status.unwrap_or_default();
            let through = status.observed_generation >= generation
                && status.current_revision == status.update_revision
                && status.updated_replicas == Some(self.replicas.cast_signed());
            if through { Ok(()) } else { Err(format!("{status:?}")) }
        });
        self.whole(change, self.replicas)
    }

    /// Waits until the condition holds.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl FnMut() -> Result<(), String>) {
        eventually(what, is_so);
    }

    /// Whether exactly the wanted servers vote, as each of them reports, and all engines have sessions.
    fn is_whole(&self, epoch: u64) -> Result<(), String> {
        let wanted = servers(self.replicas);
        let pods: BTreeSet<String> = self.cluster.run(admin_pods(self.cluster)).ok_or("no pods")?.into_keys().collect();
        let ready = self.cluster.run(self.cluster.admin_addresses());
        let names: BTreeSet<String> = ready.iter().map(|(name, _)| name.clone()).collect();
        if pods != wanted || names != wanted {
            return Err(format!("there are {pods:?}, of these ready {names:?}"));
        }
        let mut leaders = 0;
        for (name, address) in &ready {
            let peers = rows(self.ask(address, "/api/1/peers").ok_or(format!("{name} does not answer"))?);
            leaders += usize::from(peers.iter().any(|row| row["isLocal"] == true && leads(row)));
            peers
                .iter()
                .try_for_each(|row| is_in_place(row, &wanted, epoch).map_err(|why| format!("{name}: {why}")))?;
            let missing = wanted.iter().find(|id| !peers.iter().any(|row| row["id"] == id.as_str()));
            missing.map_or(Ok(()), |missing| Err(format!("{name} does not know {missing}")))?;
        }
        if leaders != 1 {
            return Err(format!("{leaders} lead"));
        }
        let engines = self.cluster.rows("processes");
        let served = |row: &Value| {
            row["state"] == "RUNNING"
                && row["sessionLost"].is_null()
                && wanted.iter().any(|id| row["host"] == id.as_str())
        };
        match engines.iter().find(|row| !served(row)) {
            Some(row) => Err(format!("not served: {row}")),
            None if engines.len() != self.engines => Err(format!("{} engines", engines.len())),
            None => Ok(()),
        }
    }

    /// The answer to `GET PATH` as JSON, if there is one.
    fn ask(&self, address: &str, path: &str) -> Option<Value> {
        let asked = async { reqwest::get(format!("{address}{path}")).await?.json::<Value>().await };
        self.cluster.run(async { tokio::time::timeout(ANSWER, asked).await.ok()?.ok() })
    }

    /// The answer of a server to `/readyz?verbose`. The server need not be ready.
    pub fn readiness(&self, server: &str) -> Option<String> {
        let address = self.address(server)?;
        let asked = async { reqwest::get(format!("http://{address}:8888/readyz?verbose")).await?.text().await };
        self.cluster.run(async { tokio::time::timeout(ANSWER, asked).await.ok()?.ok() })
    }

    /// The directories on a server's volume that hold a retired log.
    pub fn retired(&self, server: &str) -> Vec<String> {
        let volume = self.volume(server);
        let entries = std::fs::read_dir(&volume).unwrap_or_else(|error| panic!("{}: {error}", volume.display()));
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("retired-")).collect()
    }

    /// The directory of a server's volume on this machine.
    pub fn volume(&self, server: &str) -> PathBuf {
        let cluster = self.cluster;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), cluster.namespace());
        let claim = cluster.run(claims.get(&format!("raftlog-{server}"))).expect("the claim");
        let Ok(dir) = std::env::var("KAA_CLUSTER_DIR") else {
            return cluster.files().join("kubernetes/volumes").join(claim.metadata.uid.expect("a UID"));
        };
        let volumes: Api<PersistentVolume> = Api::all(cluster.client());
        let volume = claim.spec.and_then(|spec| spec.volume_name).expect("a volume");
        let path = cluster.run(volumes.get(&volume)).expect("the volume").spec.and_then(|spec| spec.host_path);
        let path = PathBuf::from(path.expect("a directory of tests/cluster").path);
        PathBuf::from(dir).join("volumes").join(path.file_name().expect("a name"))
    }
}

impl Change {
    /// The epoch in which the change began.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Waits until the group is whole after a quorum override: one epoch later.
    pub fn overridden(self, group: &Group<'_>) -> Duration {
        let epoch = self.epoch + 1;
        self.whole(group, epoch)
    }

    /// The same, this number of epochs later.
    pub fn founded_in(self, group: &Group<'_>, epochs: u64) -> Duration {
        let epoch = self.epoch + epochs;
        self.whole(group, epoch)
    }

    /// Waits until the group is whole in an epoch. Prints how long that took and the longest time without a commit, and
    /// returns the latter.
    fn whole(self, group: &Group<'_>, epoch: u64) -> Duration {
        group.until(&format!("the group to be whole after {}", self.what), || group.is_whole(epoch));
        let took = self.began.elapsed();
        // A group is whole only if it commits.
        group.written();
        self.told(group, took)
    }

    fn told(self, group: &Group<'_>, took: Duration) -> Duration {
        let now = Instant::now();
        let silence = group.clients.longest_silence(self.began, now);
        let (domain, epoch) = eventually("an anchor", || anchor(group.cluster).ok_or("there is none, or no answer"));
        assert_eq!(domain, group.domain, "the domain is the same");
        println!(
            "members: {}: {}: whole after {:.1} s, {} writes, longest time without a commit {:.2} s, epoch {epoch}",
            group.cluster.namespace(),
            self.what,
            took.as_secs_f64(),
            group.writes() - self.writes,
            silence.as_secs_f64()
        );
        silence
    }
}

fn leads(row: &Value) -> bool {
    row["localRoleInfo"]["role"] == "LEADER"
}

/// Whether the row of a server is as it must be.
fn is_in_place(row: &Value, wanted: &BTreeSet<String>, epoch: u64) -> Result<(), String> {
    let is_wanted = row["id"].as_str().is_some_and(|id| wanted.contains(id));
    let right = if is_wanted {
        row["isEvicted"] == false
            && row["isPassive"] == false
            && row["connectedState"]["state"] == "Connected"
            && row["localRoleInfo"]["lifeCycle"] == "ACTIVE"
            && row["quorum"] == true
            && row["epoch"] == epoch
    } else {
        row["isEvicted"] == true
    };
    if right { Ok(()) } else { Err(format!("wanted {is_wanted} in epoch {epoch}: {row}")) }
}

/// The domain and the epoch that the anchor names.
fn anchor(cluster: &Cluster) -> Option<(String, u64)> {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), cluster.namespace());
    let annotations = cluster.run(leases.get("kaa-default-anchor")).ok()?.metadata.annotations?;
    Some((annotations.get("kaa.dev/domain")?.clone(), annotations.get("kaa.dev/epoch")?.parse().ok()?))
}

/// The address of each pod of the admin StatefulSet, if it has one; `None` if the API server does not answer.
async fn admin_pods(cluster: &Cluster) -> Option<BTreeMap<String, Option<String>>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), cluster.namespace());
    pods.list(&ListParams::default()).await.ok().map(|list| list.items.into_iter().filter_map(of_admin).collect())
}

fn of_admin(pod: Pod) -> Option<(String, Option<String>)> {
    let name = pod.metadata.name.filter(|name| name.starts_with("kaa-admin-"))?;
    Some((name, pod.status.and_then(|status| status.pod_ip)))
}

impl Clients {
    /// Clients of all admin servers, ready or not, and of the ready ones through the Service. The addresses stay as
    /// they were while the API server does not answer.
    fn start_in(cluster: &Cluster) -> Self {
        let (all, ready) = (Arc::new(Mutex::new(Addresses::new())), Arc::new(Mutex::new(Addresses::new())));
        let pods: Api<Pod> = Api::namespaced(cluster.client(), cluster.namespace());
        let learned = (all.clone(), ready.clone());
        cluster.run(async move {
            tokio::spawn(async move {
                loop {
                    if let Ok(list) = pods.list(&ListParams::default()).await {
                        *learned.1.lock().unwrap() = addresses(list.items.iter().filter(|pod| is_served(pod)));
                        *learned.0.lock().unwrap() = addresses(list.items.iter());
                    }
                    tokio::time::sleep(LOOK).await;
                }
            });
            let agents = Agents::told_by(move || all.lock().unwrap().clone());
            Self::start(agents.served(move || ready.lock().unwrap().clone()), PACE)
        })
    }
}

fn addresses<'a>(pods: impl Iterator<Item = &'a Pod>) -> Addresses {
    let address = |(name, ip): (String, Option<String>)| Some((name, format!("http://{}:8888/api/1", ip?)));
    pods.cloned().filter_map(of_admin).filter_map(address).collect()
}

/// Whether a Service leads to this pod.
fn is_served(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}
