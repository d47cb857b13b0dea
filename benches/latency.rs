//! From a change in Kubernetes to `apply` on the resync leader, on a real cluster: `tests/e2e/run DIR` makes the image,
//! then `tests/e2e/bench DIR`.
//!
//! Engines are played by this program: pods that are never scheduled, with tokens of their own, so that what is measured
//! is the agents and the API server. A time begins when the API server has answered the request that changes something,
//! for a claim when a watch of this program shows that it is gone (in brackets: when the request was sent), and ends when
//! the REST API of the lease holder shows the committed change. That is polled every 2 ms, so a millisecond or so is the
//! poll's.
//!
//! `KAA_PODS=10000` creates that many other pods of the database first, each of the size of a real one.

#![allow(clippy::unwrap_used, reason = "a failed step ends the run")]

#[path = "../tests/it/domain/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../tests/it/domain/masks.rs"]
mod masks;

use cluster::{Cluster, Disturb, OPERATOR};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ServiceAccount};
use kaa::proto::engine::engine_client::EngineClient;
use kaa::proto::engine::from_engine::Message as From;
use kaa::proto::engine::to_engine::Message as To;
use kaa::proto::engine::{Exit, FromEngine, Kind, Register, ToEngine};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Request, Streaming};

/// How many of each change.
const CHANGES: usize = 60;
/// How many commits between two measurements of the memory.
const COMMITS: usize = 10_000;
/// How many clients make them.
const WRITERS: usize = 8;
/// How many requests at a time create the other pods.
const CREATORS: usize = 32;

fn main() {
    let cluster = Cluster::up("bench_latency", Disturb::Nothing);
    cluster.run(async {
        let bench = Bench::new(&cluster).await;
        let pods = std::env::var("KAA_PODS").map_or(0, |n| n.parse().expect("KAA_PODS is a number"));
        bench.crowd(pods).await;
        bench.memory("idle").await;
        report("claim gone", bench.claims_gone().await);
        report("pod gone after its wrapper was killed", bench.pods_gone().await);
        report("StatefulSet scaled, its SM exited", bench.scaled().await);
        bench.commits().await;
        bench.memory(&format!("after {COMMITS} commits")).await;
    });
}

/// How long a change took: since it was answered, and since it was asked for.
type Took = (Duration, Duration);

fn report(what: &str, took: Vec<Took>) {
    let (mut answered, mut sent): (Vec<_>, Vec<_>) = took.into_iter().unzip();
    let row = |took: &mut Vec<Duration>| {
        took.sort();
        let ms = |share: usize| took[(took.len() - 1) * share / 100].as_secs_f64() * 1000.0;
        format!("p50 {:.1} ms  p99 {:.1} ms  max {:.1} ms", ms(50), ms(99), ms(100))
    };
    println!("{what:<40} n={} {}  (sent: {})", answered.len(), row(&mut answered), row(&mut sent));
}

struct Bench {
    client: Client,
    namespace: String,
    /// Where the lease holder's REST API is.
    leader: String,
    /// Every agent's pod and address.
    agents: Vec<(String, String)>,
    ca: Vec<u8>,
    http: reqwest::Client,
}

/// A played engine: its stream, and what it is called.
struct Played {
    start: u64,
    archive: u64,
    say: mpsc::Sender<FromEngine>,
    hear: Streaming<ToEngine>,
}

impl Played {
    async fn say(&self, message: From) {
        self.say.send(FromEngine { message: Some(message) }).await.expect("the agent listens");
    }

    async fn exit(mut self) {
        self.say(From::Exit(Exit { code: Some(0), graceful: true, reason: String::new() })).await;
        while let Some(answer) = self.hear.message().await.expect("an answer") {
            if let Some(To::ExitNoted(_)) = answer.message {
                return;
            }
        }
        panic!("the exit of {} was not noted", self.start);
    }
}

impl Bench {
    async fn new(cluster: &Cluster) -> Self {
        let agents = cluster.admin_addresses().await;
        let holder = cluster.lease_holder().await;
        let leader = agents.iter().find(|(name, _)| *name == holder).expect("the lease holder is an agent").1.clone();
        let ca = std::fs::read(cluster.files().join("ca.crt")).expect("ca.crt");
        let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a client");
        println!("lease holder {holder}; {} agents", agents.len());
        Self { client: cluster.client(), namespace: cluster.namespace().to_owned(), leader, agents, ca, http }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn make<K>(&self, object: Value) -> K
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
        K::DynamicType: Default,
    {
        let object: K = serde_json::from_value(object).expect("an object");
        self.api::<K>().create(&PostParams::default(), &object).await.expect("the API server takes it")
    }

    /// Plays the engine of a pod.
    async fn play(&self, pod: &str, kind: Kind) -> Played {
        let object = self.api::<Pod>().get(pod).await.expect("the pod");
        let pod_uid = object.metadata.uid.expect("a uid");
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: Some(pod_uid.clone()),
        };
        let spec = TokenRequestSpec {
            audiences: Some(vec!["kaa".to_owned()]),
            bound_object_ref: Some(bound),
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        };
        let asked = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = self.api();
        let token = accounts.create_token_request("default", &PostParams::default(), &asked).await.expect("a token");
        let token = token.status.and_then(|status| status.token).expect("a token");

        let address = self.leader.replace("http://", "https://").replace(":8888", ":48004");
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca)).domain_name("kaa-admin");
        let channel = Endpoint::from_shared(address).expect("an address").tls_config(tls).expect("tls");
        let mut client = EngineClient::new(channel.connect().await.expect("the agent answers"));
        let (say, said) = mpsc::channel(64);
        let register = Register {
            kind: kind.into(),
            database: "demo".to_owned(),
            namespace: self.namespace.clone(),
            pod: pod.to_owned(),
            pod_uid,
            container: "engine".to_owned(),
            nonce: kaa::clock::random_u64(),
            started_ms: kaa::clock::now().0,
            connection: kaa::clock::random_u64(),
            ..Register::default()
        };
        say.send(FromEngine { message: Some(From::Register(register)) }).await.expect("room");
        let mut request = Request::new(ReceiverStream::new(said));
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        let mut hear = client.attach(request).await.expect("the agent takes it").into_inner();
        match hear.message().await.expect("an answer").and_then(|answer| answer.message) {
            Some(To::Registered(r)) => Played { start: r.start_id, archive: r.archive, say, hear },
            other => panic!("{pod}: {other:?}"),
        }
    }

    /// A pod that is never scheduled, with a claim if it is a storage manager's.
    fn pod(name: &str, claim: Option<&str>) -> Value {
        let volumes = claim.map(|c| json!([{"name": "archive-volume", "persistentVolumeClaim": {"claimName": c}}]));
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"database": "demo"}},
            "spec": {"schedulingGates": [{"name": "kaa.dev/played"}], "volumes": volumes,
                     "containers": [{"name": "engine", "image": "none"}]}
        })
    }

    /// Creates pods of transaction engines that no engine runs in, as large as a Deployment's pods after their start.
    async fn crowd(&self, pods: usize) {
        let began = Instant::now();
        let made = futures::stream::iter(0..pods).for_each_concurrent(CREATORS, async |n| {
            let name = format!("other-{n}");
            self.make::<Pod>(Self::large_pod(&name)).await;
            let (since, image) = ("2026-01-01T00:00:00Z", "registry.example.com/databases/engine:7.1.2");
            let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"]
                .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": since}));
            let status = json!({"status": {
                "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.0.1.1", "podIPs": [{"ip": "10.0.1.1"}],
                "startTime": since, "conditions": conditions, "qosClass": "Burstable",
                "containerStatuses": [{
                    "name": "engine", "ready": true, "started": true, "restartCount": 0, "image": image,
                    "imageID": format!("registry.example.com/databases/engine@sha256:{n:064x}"),
                    "containerID": format!("containerd://{n:064x}"), "state": {"running": {"startedAt": since}}
                }]
            }});
            let running = Patch::Strategic(status);
            self.api::<Pod>().patch_status(&name, &PatchParams::default(), &running).await.expect("a status");
        });
        made.await;
        if pods > 0 {
            println!("{pods} other pods in {:.0} s", began.elapsed().as_secs_f64());
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    }

    /// As [`Self::pod`], with what templates of real databases have.
    fn large_pod(name: &str) -> Value {
        let labels = ["app", "group", "release", "chart", "zone", "team", "pod-template-hash"];
        let labels: serde_json::Map<_, _> =
            labels.iter().map(|label| ((*label).to_owned(), json!("te-demo"))).collect();
        let env: Vec<_> = (0..30).map(|n| json!({"name": format!("SETTING_{n}"), "value": "v".repeat(40)})).collect();
        let probe = json!({"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5, "failureThreshold": 3});
        let mut pod = Self::pod(name, None);
        pod["metadata"]["labels"].as_object_mut().expect("labels").extend(labels);
        pod["metadata"]["labels"]["component"] = json!("te");
        pod["metadata"]["annotations"] = json!({"example.com/settings": "v".repeat(1024)});
        let engine = &mut pod["spec"]["containers"][0];
        engine["image"] = json!("registry.example.com/databases/engine:7.1.2");
        engine["env"] = json!(env);
        engine["readinessProbe"] = probe.clone();
        engine["livenessProbe"] = probe;
        engine["resources"] = json!({"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}});
        pod
    }

    /// Waits until the lease holder shows `what` in the history of a subject.
    async fn shown(&self, subject: &str, what: &str) {
        let (url, began) = (format!("{}/api/1/kaa/explain/{subject}", self.leader), Instant::now());
        loop {
            let answer = self.http.get(&url).send().await.expect("the agent answers").text().await.expect("a body");
            if answer.contains(what) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{subject}: no '{what}' in {answer}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn now(&self) -> DeleteParams {
        // Changes come in everyday life one by one: let the pass before be over.
        tokio::time::sleep(Duration::from_millis(150)).await;
        DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }
    }

    async fn claims_gone(&self) -> Vec<Took> {
        let mut archives = Vec::new();
        for n in 0..CHANGES {
            let name = format!("bench-{n}");
            let claim = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Mi"}}}
            });
            self.make::<PersistentVolumeClaim>(claim).await;
            self.make::<Pod>(Self::pod(&name, Some(&name))).await;
            let engine = self.play(&name, Kind::Sm).await;
            archives.push((name.clone(), engine.archive));
            engine.exit().await;
            self.api::<Pod>().delete(&name, &self.now().await).await.expect("deleted");
        }
        let mut deletions = self.claim_deletions();
        let mut took = Vec::new();
        for (name, archive) in archives {
            let now = self.now().await;
            let began = Instant::now();
            self.api::<PersistentVolumeClaim>().delete(&name, &now).await.expect("deleted");
            let gone = async {
                loop {
                    let (deleted, at) = deletions.recv().await.expect("the watch has not ended");
                    if deleted == name {
                        return at;
                    }
                }
            };
            let subject = format!("archive/{archive}");
            let (gone, shown) = futures::future::join(gone, async {
                self.shown(&subject, "purged").await;
                Instant::now()
            })
            .await;
            took.push((shown.saturating_duration_since(gone), shown.duration_since(began)));
        }
        took
    }

    /// When each claim is really gone: a controller takes its finalizer away some time after it was asked to be deleted.
    fn claim_deletions(&self) -> mpsc::Receiver<(String, Instant)> {
        let (tell, told) = mpsc::channel(1024);
        let claims: Api<PersistentVolumeClaim> = self.api();
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(claims, watcher::Config::default()));
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Delete(claim)) = event {
                    let name = claim.metadata.name.unwrap_or_default();
                    if tell.send((name, Instant::now())).await.is_err() {
                        return;
                    }
                }
            }
        });
        told
    }

    async fn pods_gone(&self) -> Vec<Took> {
        let mut took = Vec::new();
        for n in 0..CHANGES {
            let name = format!("bench-te-{n}");
            self.make::<Pod>(Self::pod(&name, None)).await;
            let engine = self.play(&name, Kind::Te).await;
            let subject = format!("process/{}", engine.start);
            drop(engine);
            self.shown(&subject, "lost").await;
            let now = self.now().await;
            let began = Instant::now();
            self.api::<Pod>().delete(&name, &now).await.expect("deleted");
            let answered = Instant::now();
            self.shown(&subject, "Pod was deleted").await;
            took.push((answered.elapsed(), began.elapsed()));
        }
        took
    }

    async fn scaled(&self) -> Vec<Took> {
        let mut pod = Self::pod("", None);
        pod["metadata"] = json!({"labels": {"database": "demo", "app": "bench"}});
        let claim = json!({
            "metadata": {"name": "archive-volume"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Mi"}}}
        });
        self.make::<StatefulSet>(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "bench", "labels": {"database": "demo"}},
            "spec": {"replicas": CHANGES, "serviceName": "bench", "podManagementPolicy": "Parallel",
                     "selector": {"matchLabels": {"app": "bench"}}, "template": pod, "volumeClaimTemplates": [claim]}
        }))
        .await;
        let mut archives = Vec::new();
        for n in 0..CHANGES {
            let name = format!("bench-{n}");
            while self.api::<Pod>().get(&name).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let engine = self.play(&name, Kind::Sm).await;
            archives.push(engine.archive);
            engine.exit().await;
        }
        let mut took = Vec::new();
        for (n, archive) in archives.iter().enumerate().rev() {
            self.now().await;
            let fewer = json!({"spec": {"replicas": n}});
            let began = Instant::now();
            let sets: Api<StatefulSet> = self.api();
            sets.patch("bench", &PatchParams::default(), &Patch::Merge(fewer)).await.expect("scaled");
            let answered = Instant::now();
            self.shown(&format!("archive/{archive}"), "removed").await;
            took.push((answered.elapsed(), began.elapsed()));
        }
        took
    }

    /// Clients that set a value again and again, each its own: each change is one commit.
    async fn commits(&self) {
        let began = Instant::now();
        let writing = (0..WRITERS).map(async |writer| {
            let url = format!("{}/api/1/kvstore/bench/{writer}", self.leader);
            for n in 0..COMMITS / WRITERS {
                let request = self.http.put(&url).json(&json!({"newValue": n.to_string()}));
                let answer = request.basic_auth(OPERATOR.0, Some(OPERATOR.1)).send().await.expect("the agent answers");
                assert!(answer.status().is_success(), "{}", answer.status());
            }
        });
        futures::future::join_all(writing).await;
        let took = began.elapsed().as_secs_f64();
        println!("{COMMITS} commits by {WRITERS} clients in {took:.1} s: {:.0} a second", COMMITS as f64 / took);
    }

    async fn memory(&self, when: &str) {
        for (name, address) in &self.agents {
            let metrics = self.http.get(format!("{address}/metrics")).send().await.expect("an agent answers");
            let text = metrics.text().await.expect("a body");
            let line = text.lines().find_map(|line| line.strip_prefix("kaa_resident_memory_bytes "));
            let bytes: f64 = line.expect("the metric").parse().expect("a number");
            println!("RSS of {name} {when}: {:.1} MiB", bytes / 1024.0 / 1024.0);
        }
    }
}
