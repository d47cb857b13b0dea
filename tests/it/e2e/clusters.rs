//! Two Kubernetes clusters share a domain: the use cases in each, the loss of the API server of one, a database that is
//! deleted once neither cluster wants it, and the loss of a cluster. On two embedded Kubernetes; in two namespaces of a real
//! one, since agents read and write only in their own namespace; or on a real and an embedded one.

use super::nodes::Nodes;
use crate::domain::cluster::{Cluster, Disturb, Site};
use embedded_kubernetes::server::Faults;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kaa::certificates::{Authority, Made, Pair};
use kaa::demo::install;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::eventually;
use tokio::runtime::Runtime;

/// Two clusters, each of which finds the names of the other.
struct Two {
    _names: Names,
    east: Cluster,
    west: Cluster,
}

/// What the clusters are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Both embedded, or both namespaces of a real one.
    Equal,
    /// The first is real. The second is embedded, and its pods have addresses that the first reaches.
    RealAndEmbedded,
}

/// The network of the embedded cluster's pods next to a real one: `EMBEDDED_NET` of `tests/cluster/lib.sh`.
const POD_NETWORK: [u8; 3] = [10, 90, 0];

/// Keeps the names of both clusters known in both, again and again until it is dropped.
struct Names {
    over: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
}

impl Names {
    fn follow(mut round: impl FnMut() + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let follower = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                round();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Self { over, follower: Some(follower) }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.follower.take().is_none_or(|follower| follower.join().is_ok());
        if !ended {
            eprintln!("the thread that follows the names of both clusters failed");
        }
    }
}

/// Writes a hosts(5) file that agents read now and then.
fn write(file: &Path, text: &str) {
    let next = file.with_extension("next");
    if std::fs::write(&next, text).is_ok() {
        // The directory may be gone already.
        let _ = std::fs::rename(&next, file);
    }
}

/// Copies the hosts(5) entries of both clusters to one file.
fn copied(files: [PathBuf; 2], both: PathBuf) -> Names {
    Names::follow(move || {
        let text: String = files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
        write(&both, &text);
    })
}

/// The admin pods of a real cluster become entries of a hosts(5) file, after those of an embedded one, whose admin pods
/// become hosts of a headless Service of the real cluster, in a namespace of the same name.
struct Mirror {
    runtime: Runtime,
    client: Client,
    /// The namespace in the real cluster, and the one in the embedded cluster.
    spaces: [String; 2],
    /// The hosts(5) files of the embedded cluster, and of both.
    files: [PathBuf; 2],
    shown: Vec<(String, String)>,
}

impl Mirror {
    fn new(spaces: [String; 2], files: [PathBuf; 2]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let client = runtime.block_on(Client::try_default()).expect("KUBECONFIG names a cluster");
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kaa-west", "namespace": spaces[1]},
            "spec": {"clusterIP": "None", "ports": [{"port": 48005}]},
        });
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": spaces[1]}});
        let applied = runtime.block_on(install::apply(&client, &[namespace, service]));
        applied.unwrap_or_else(|error| panic!("{error:?}"));
        Self { runtime, client, spaces, files, shown: Vec::new() }
    }

    /// Does nothing while the API server does not answer: the names that were known stay.
    fn round(&mut self) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.spaces[0]);
        let Ok(pods) = self.runtime.block_on(pods.list(&ListParams::default())) else { return };
        let embedded = std::fs::read_to_string(&self.files[0]).unwrap_or_default();
        let real = pods.items.into_iter().filter_map(|pod| {
            let name = pod.metadata.name.filter(|name| name.starts_with("kaa-admin-"))?;
            Some(format!("{} {name}.kaa-admin.{}.svc\n", pod.status?.pod_ip?, self.spaces[0]))
        });
        write(&self.files[1], &(embedded.clone() + &real.collect::<String>()));
        let name = format!(".kaa-west.{}.svc", self.spaces[1]);
        let host = |line: &str| {
            let mut words = line.split(' ');
            let address = words.next()?.to_owned();
            Some((words.find_map(|word| word.strip_suffix(&name))?.to_owned(), address))
        };
        let hosts: Vec<_> = embedded.lines().filter_map(host).collect();
        if hosts == self.shown {
            return;
        }
        let endpoint = |(host, address): &(String, String)| json!({"hostname": host, "addresses": [address]});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kaa-west", "labels": {"kubernetes.io/service-name": "kaa-west"}},
            "addressType": "IPv4", "ports": [{"port": 48005}],
            "endpoints": hosts.iter().map(endpoint).collect::<Vec<_>>(),
        });
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.spaces[1]);
        let (params, slice) = (PatchParams::apply("test").force(), Patch::Apply(slice));
        match self.runtime.block_on(slices.patch("kaa-west", &params, &slice)) {
            Ok(_) => self.shown = hosts,
            Err(error) => eprintln!("the names of the embedded cluster are not known in the real one: {error}"),
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if let Err(error) = self.runtime.block_on(namespaces.delete(&self.spaces[1], &DeleteParams::default())) {
            eprintln!("namespace {} stays: {error}", self.spaces[1]);
        }
    }
}

/// The certificates of a cluster's agents: only the authority and the URI are the same in both clusters.
fn certificates(authority: &Authority, set: &str, namespace: &str) -> Made {
    let names = [set.to_owned(), format!("*.{set}.{namespace}.svc")];
    let Pair { certificate, key } = authority.agents(&names, Some("kaa"), 30).expect("certificates");
    Made { ca_certificate: authority.certificate.clone(), ca_key: authority.key.clone(), certificate, key }
}

impl Two {
    /// Creates the clusters for these cases.
    fn new(cases: [&str; 2], kind: Kind) -> Self {
        let authority = Authority::new(30).expect("an authority");
        let spaces = cases.map(|case| Cluster::namespace_of(case, Disturb::Nothing));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e");
        let both = root.join(format!("{}.hosts", spaces[0]));
        let hosts = |space: &String| root.join(space).join("kubernetes/hosts").join(space);
        let env = |cluster: &str, is_embedded: bool| {
            let mut env = vec![("KAA_CLUSTER", cluster.to_owned())];
            if is_embedded {
                env.push(("KAA_HOSTS_FILE", both.display().to_string()));
            }
            env
        };
        let pod_network = (kind == Kind::RealAndEmbedded).then_some(POD_NETWORK);
        let east = Site {
            name: "east",
            set: "kaa-admin",
            made: certificates(&authority, "kaa-admin", &spaces[0]),
            env: env("east", Cluster::are_embedded()),
            pod_network: None,
        };
        let entrypoint: Vec<String> =
            (0..2).map(|ordinal| format!("kaa-admin-{ordinal}.kaa-admin.{}.svc:48005", spaces[0])).collect();
        let west = Site {
            name: "west",
            set: "kaa-west",
            made: certificates(&authority, "kaa-west", &spaces[1]),
            env: [
                env("west", Cluster::are_embedded() || pod_network.is_some()),
                vec![("KAA_ENTRYPOINT_CLUSTER", "east".to_owned()), ("KAA_ENTRYPOINT", entrypoint.join(","))],
            ]
            .concat(),
            pod_network,
        };
        let (east, west) = (Cluster::of_several(cases[0], east), Cluster::of_several(cases[1], west));
        let files = [hosts(&spaces[0]), hosts(&spaces[1])];
        let names = match kind {
            Kind::Equal => copied(files, both),
            Kind::RealAndEmbedded => {
                let [_, embedded] = files;
                let mut mirror = Mirror::new(spaces, [embedded, both]);
                Names::follow(move || mirror.round())
            }
        };
        Self { _names: names, east, west }
    }

    fn each(&self) -> [(&'static str, &Cluster); 2] {
        [("east", &self.east), ("west", &self.west)]
    }
}

fn api<K>(cluster: &Cluster) -> Api<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(cluster.client(), cluster.namespace())
}

/// What `kaa ARGUMENTS` prints in the pod of a server that is ready.
fn within(cluster: &Cluster, server: &str, arguments: &str) -> Result<String, String> {
    let ready = cluster.run(cluster.admin_addresses());
    let Some((_, url)) = ready.into_iter().find(|(name, _)| name == server) else {
        return Err(format!("{server} is not ready"));
    };
    let host = url.trim_start_matches("http://").trim_end_matches(":8888");
    cluster.kaa_within(server, host, arguments)
}

fn within_says(cluster: &Cluster, server: &str, arguments: &str, what: &str) {
    eventually(&format!("'{what}' in `kaa {arguments}`"), || match within(cluster, server, arguments) {
        Ok(text) | Err(text) if text.contains(what) => Ok(()),
        Ok(text) | Err(text) => Err(text),
    });
}

fn servers(cluster: &Cluster, membership: &str) -> usize {
    cluster.rows("peers").iter().filter(|peer| peer["membership"] == membership).count()
}

fn archives(cluster: &Cluster, of: &str) -> Vec<Value> {
    cluster.rows("archives").into_iter().filter(|archive| archive["cluster"] == of).collect()
}

fn database(cluster: &Cluster) -> Value {
    cluster.rest("databases/demo").unwrap_or_default()["state"].clone()
}

pub fn two_clusters() {
    played(Two::new(["clusters_east", "clusters_west"], Kind::Equal));
}

/// A real cluster, the entry point, and an embedded one share a domain.
pub fn real_and_embedded() {
    played(Two::new(["mixed_east", "mixed_west"], Kind::RealAndEmbedded));
}

fn played(mut two: Two) {
    joined(&two);
    for (name, cluster) in two.each() {
        scaled(name, cluster);
        engine_lost(cluster);
    }
    configured_by_the_entry_point(&two);
    for (without, (name, with)) in [(&two.west, ("east", &two.east)), (&two.east, ("west", &two.west))] {
        without_an_api_server(without, name, with);
    }
    no_scale_down_removes_a_vote(&two);
    deleted_when_neither_wants_it(&two);
    lost(&two);
    two.east.passed();
    two.west.passed();
}

/// The second cluster waits for the first, joins, and its engines serve the same database.
fn joined(two: &Two) {
    let Two { east, west, .. } = two;
    west.start_admins(1);
    eventually("what the agent of the second cluster waits for", || {
        let pods: Api<Pod> = api(west);
        let log = west.run(pods.logs("kaa-west-0", &kube::api::LogParams::default())).map_err(|why| why.to_string())?;
        if log.contains("its agents do not answer, have no quorum") { Ok(()) } else { Err(log) }
    });
    east.start_admins(2);
    east.example(1, 1);
    for (name, cluster) in two.each() {
        cluster.wait(&format!("three voters, as {name} sees it"), |c| servers(c, "VOTER") == 3);
    }
    east.wait("the engines of the first", |c| c.running() == 2);
    west.example(1, 1);
    for (name, cluster) in two.each() {
        cluster.wait(&format!("four engines, as {name} sees it"), |c| c.running() == 4);
        assert_eq!(archives(cluster, name).len(), 1);
    }
    assert_eq!(east.rows("archives").len(), 2, "of two clusters");
    for name in ["east", "west"] {
        east.says(&format!("explain resync/{name}"), &format!("leads the resync of cluster {name}"));
    }
    east.says("explain domain", "cluster west takes part");
}

/// The archives of a cluster follow the StatefulSet and the claims of their own cluster.
fn scaled(name: &str, cluster: &Cluster) {
    let claims: Api<PersistentVolumeClaim> = api(cluster);
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.wait("another archive", |c| archives(c, name).len() == 2 && c.running() == 5);
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.wait("its removal", |c| archives(c, name).len() == 1);
    cluster.says("show archives --removed", "REMOVED(NOT_RUNNING)");
    cluster.run(claims.delete("archive-volume-sm-demo-1", &DeleteParams::default())).expect("deleted");
    cluster.wait("its purge", |c| !c.kaa("show archives --removed").contains("REMOVED"));
    cluster.wait("the other engines", |c| c.running() == 4);
}

/// The cluster of a process removes it after its pod is gone, and another process replaces it.
fn engine_lost(cluster: &Cluster) {
    let pods: Api<Pod> = api(cluster);
    let engines = cluster.run(pods.list(&ListParams::default().labels("component=te"))).expect("pods").items;
    let pod = engines[0].metadata.name.clone().expect("a name");
    let of_pod = |c: &Cluster| c.rows("processes").iter().any(|process| process["labels"]["pod-name"] == pod.as_str());
    assert!(of_pod(cluster));
    cluster.lose_pod(&pod);
    cluster.wait("the process to be removed", |c| !of_pod(c));
    cluster.wait("another engine", |c| c.running() == 4);
}

/// The annotations of the entry point count, those of another cluster do not.
fn configured_by_the_entry_point(two: &Two) {
    let annotate = |cluster: &Cluster, set: &str, query: &str| {
        let sets: Api<StatefulSet> = api(cluster);
        let patch = json!({"metadata": {"annotations": {"nuodb.com/load-balancer-default": query}}});
        cluster.run(sets.patch(set, &PatchParams::default(), &Patch::Merge(patch))).expect("annotated");
    };
    annotate(&two.west, "kaa-west", "random(label(cluster west))");
    annotate(&two.east, "kaa-admin", "round_robin(any)");
    two.west.says("explain load-balancer/global/default", "round_robin(any)");
    let history = two.west.kaa("explain load-balancer/global/default");
    assert!(!history.contains("cluster west"), "{history}");
}

/// The loss of one API server stops nothing in the other cluster, and loses nothing in its own.
fn without_an_api_server(without: &Cluster, name: &str, with: &Cluster) {
    if without.is_embedded() {
        without.stage().injector().set(Faults { down: true, ..Faults::default() });
    } else if with.is_embedded() {
        Nodes::of(without).kill_api_server();
    } else {
        return; // Both have the same one.
    }
    scaled(name, with);
    engine_lost(with);
    assert_eq!(with.running(), 4, "the engines of the other cluster run");
    if without.is_embedded() {
        without.stage().injector().set(Faults::default());
    } else {
        Nodes::of(without).up();
    }
    // An API server that is up again needs a moment until it listens.
    let pods: Api<Pod> = api(without);
    eventually("its API server to answer", || {
        without.run(pods.list(&ListParams::default())).map(drop).map_err(|error| error.to_string())
    });
}

/// A scale-down of the admin servers leaves them their votes, and the plan says so.
fn no_scale_down_removes_a_vote(two: &Two) {
    let Two { east, west, .. } = two;
    east.scale("statefulsets", "kaa-admin", 1);
    east.pod_gone("kaa-admin-1");
    east.says("plan", "no scale-down removes one while several clusters share the domain");
    assert_eq!(servers(west, "VOTER"), 3);
    within_says(west, "kaa-west-0", "recover --dry-run", "this cluster is not the domain's entry point");
    within_says(east, "kaa-admin-0", "recover --dry-run", "of another cluster votes");
    east.scale("statefulsets", "kaa-admin", 2);
    east.wait("the server to be back", |c| c.connected() == 3);
}

fn delete_database(cluster: &Cluster) {
    let (sets, deployments): (Api<StatefulSet>, Api<Deployment>) = (api(cluster), api(cluster));
    let claims: Api<PersistentVolumeClaim> = api(cluster);
    cluster.run(sets.delete("sm-demo", &DeleteParams::default())).expect("deleted");
    cluster.run(deployments.delete("te-demo", &DeleteParams::default())).expect("deleted");
    cluster.run(claims.delete("archive-volume-sm-demo-0", &DeleteParams::default())).expect("deleted");
}

/// A database is deleted once no cluster has an archive of it, and none wants it.
fn deleted_when_neither_wants_it(two: &Two) {
    let Two { east, west, .. } = two;
    delete_database(west);
    west.wait("the archive of the second cluster to be purged", |c| archives(c, "west").is_empty() && c.running() == 2);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(database(west), "RUNNING", "the first cluster has an archive of it");
    delete_database(east);
    east.wait("the database to be deleted", |c| database(c) == "TOMBSTONE");
}

/// An operator removes a cluster that is lost.
fn lost(two: &Two) {
    let Two { east, west, .. } = two;
    west.scale("statefulsets", "kaa-west", 0);
    west.pod_gone("kaa-west-0");
    let said = within(east, "kaa-admin-0", "cluster remove east --reason burnt").expect_err("it is the first");
    assert!(said.contains("the domain was founded in cluster east"), "{said}");
    let said = within(east, "kaa-admin-0", "cluster remove west --reason burnt").unwrap_or_else(|why| panic!("{why}"));
    assert!(said.contains("Cluster west is removed."), "{said}");
    east.wait("two servers, which vote", |c| c.rows("peers").len() == 2 && servers(c, "VOTER") == 2);
    east.says("explain domain", "cluster west is lost");
    // The cluster was not lost: its server joins again with the log that it has.
    west.scale("statefulsets", "kaa-west", 1);
    east.wait("three servers, which vote", |c| servers(c, "VOTER") == 3);
    west.wait("the server that is back to be connected", |c| c.connected() == 3);
}

/// Each cluster has half of the voters, and those of the second do not answer. The entry point continues alone in a new
/// epoch; the other voters join that epoch when they run again.
pub fn half_in_another_cluster() {
    let mut two = Two::new(["half_east", "half_west"], Kind::Equal);
    let Two { east, west, .. } = &two;
    east.start_admins(1);
    east.wait("the first server to vote", |c| c.connected() == 1 && servers(c, "VOTER") == 1);
    west.start_admins(1);
    east.wait("a voter in each cluster", |c| servers(c, "VOTER") == 2);
    east.says("show domain", "epoch=1");
    let agent = west.agent_of("kaa-west-0");
    west.agent_of("kaa-west-0").signal("STOP");
    east.says("show domain", "epoch=2");
    east.says("explain domain", "membership epoch 2 began");
    east.wait("the first server to vote alone", |c| servers(c, "VOTER") == 1);
    agent.signal("CONT");
    for (name, cluster) in two.each() {
        cluster.wait(&format!("a voter in each cluster again, as {name} sees it"), |c| servers(c, "VOTER") == 2);
        cluster.says("show domain", "epoch=2");
    }
    two.east.passed();
    two.west.passed();
}
