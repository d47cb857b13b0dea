//! The anchor or a volume is lost or has an earlier state, a second set of agents or a second process starts, and
//! servers whose logs were given up still run. There is never a second domain, no server mixes with those of another
//! domain, and each server reports what is wrong.

use super::group::{Group, server};
use super::{UNDONE, overridden};
use crate::domain::cluster::Cluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kaa::demo::install;
use kaa::demo::manifests::{self, Part};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How soon an agent that cannot use its volume must report that and end.
const SOON: Duration = Duration::from_secs(20);

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.client(), cluster.namespace())
}

/// The annotations of an anchor, if it exists.
fn anchor_of(cluster: &Cluster, domain: &str) -> Option<BTreeMap<String, String>> {
    let named = kube::api::ListParams::default().fields(&format!("metadata.name={domain}-default-anchor"));
    let found = cluster.run(leases(cluster).list(&named)).expect("the leases");
    found.items.into_iter().next().map(|lease| lease.metadata.annotations.unwrap_or_default())
}

fn anchor(cluster: &Cluster) -> Option<BTreeMap<String, String>> {
    anchor_of(cluster, "kaa")
}

fn rewrite_anchor(cluster: &Cluster, annotations: &BTreeMap<String, String>) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let asked = async { leases(cluster).patch("kaa-default-anchor", &PatchParams::default(), &patch).await };
    cluster.run(asked).expect("the anchor is rewritten");
}

/// Deletes a server's claim and pod: the pod starts again with an empty volume.
fn wipe(cluster: &Cluster, server: &str) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), cluster.namespace());
    let name = format!("raftlog-{server}");
    let uid = |claim: PersistentVolumeClaim| claim.metadata.uid;
    let before = uid(cluster.run(claims.get(&name)).expect("the claim"));
    let pod = cluster.pod_uid(server);
    cluster.run(claims.delete(&name, &DeleteParams::default())).expect("deleted");
    cluster.force_delete_pod(server);
    cluster
        .wait(&format!("claim {name} to be another one"), |c| c.run(claims.get(&name)).is_ok_and(|c| uid(c) != before));
    cluster.pod_replaced(server, &pod);
}

/// Waits until the readiness probe of a server reports this.
fn says(group: &Group<'_>, server: &str, what: &str) {
    group.until(&format!("{server} to say '{what}'"), || {
        let said = group.readiness(server).ok_or("no answer")?;
        if said.contains(what) { Ok(()) } else { Err(said) }
    });
}

fn writes_go_on(group: &Group<'_>) {
    let writes = group.acknowledged();
    group.until("more writes", || if group.acknowledged() > writes + 5 { Ok(()) } else { Err("none".to_owned()) });
}

/// The first server starts with an empty volume. That is how a domain begins, but a domain exists already.
pub fn first_wiped(cluster: &mut Cluster) {
    let group = Group::watched(cluster, 3);
    let (founded, first) = (anchor(cluster), group.logs()[&server(0)].clone());
    let change = group.begin("kaa-admin-0 wiped");
    wipe(cluster, &server(0));
    group.whole(change, 3);
    let second = group.logs()[&server(0)].clone();
    assert_ne!(second, first, "it is a new member");
    let change = group.begin("kaa-admin-0 wiped, all others down");
    let others = [server(1), server(2)];
    let processes: Vec<_> = others.iter().map(|other| cluster.agent_of(other)).collect();
    group.stop(&others);
    wipe(cluster, &server(0));
    says(&group, &server(0), "not a member yet");
    let writes = group.acknowledged();
    nobody_founds(cluster, &founded);
    assert_eq!(group.acknowledged(), writes, "nobody commits");
    processes.into_iter().for_each(|process| process.signal("CONT"));
    group.whole(change, 3);
    assert_ne!(group.logs()[&server(0)], second, "it is a new member");
    group.judge();
}

/// Checks for a while that the anchor does not change.
fn nobody_founds(cluster: &Cluster, anchor_is: &Option<BTreeMap<String, String>>) {
    let began = Instant::now();
    while began.elapsed() < UNDONE {
        assert_eq!(anchor(cluster), *anchor_is, "nobody founds");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Running agents report the missing anchor and continue. An empty first server founds no domain while another server
/// answers, nor while the resync Lease exists. An operator creates the anchor again.
pub fn anchor_deleted(cluster: &mut Cluster) {
    let group = Group::watched(cluster, 3);
    let change = group.begin("the anchor deleted");
    let first = group.logs()[&server(0)].clone();
    let deleted = async { leases(cluster).delete("kaa-default-anchor", &DeleteParams::default()).await };
    cluster.run(deleted).expect("deleted");
    (0..3).for_each(|ordinal| says(&group, &server(ordinal), "the lease kaa-default-anchor is gone"));
    writes_go_on(&group);
    wipe(cluster, &server(0));
    says(&group, &server(0), "there is no anchor, but kaa-admin-");
    nobody_founds(cluster, &None);
    writes_go_on(&group);
    let others = [server(1), server(2)];
    let processes: Vec<_> = others.iter().map(|other| cluster.agent_of(other)).collect();
    group.stop(&others);
    says(&group, &server(0), "there is no anchor, but the lease kaa-default-resync belongs to an earlier domain");
    nobody_founds(cluster, &None);
    processes.into_iter().for_each(|process| process.signal("CONT"));
    writes_go_on(&group);
    group.within(&server(1), "adopt --reason deleted-by-hand").expect("the anchor is made again");
    group.whole(change, 3);
    assert_ne!(group.logs()[&server(0)], first, "it is a new member");
    group.judge();
}

/// The anchor is deleted, and then every pod: no server starts, and none founds another domain. The procedure in
/// docs/troubleshooting.md ends that.
pub fn anchor_written_by_hand(cluster: &mut Cluster) {
    let group = Group::watched(cluster, 3);
    let was = anchor(cluster).expect("an anchor");
    let change = group.begin("the anchor and all pods deleted");
    let deleted = async { leases(cluster).delete("kaa-default-anchor", &DeleteParams::default()).await };
    cluster.run(deleted).expect("deleted");
    let before: Vec<_> = (0..3).map(|ordinal| cluster.pod_uid(&server(ordinal))).collect();
    (0..3).for_each(|ordinal| cluster.force_delete_pod(&server(ordinal)));
    for (ordinal, uid) in (0..3).zip(&before) {
        cluster.pod_replaced(&server(ordinal), uid);
    }
    let domain = &was["kaa.dev/domain"];
    let missing = format!("this volume holds a log of epoch 1 of domain {domain}, whose anchor is gone");
    (0..3).for_each(|ordinal| says(&group, &server(ordinal), &missing));
    nobody_founds(cluster, &None);
    let annotations = json!({"kaa.dev/domain": domain, "kaa.dev/epoch": "1", "kaa.dev/founder": "0"});
    let lease = json!({"metadata": {"name": "kaa-default-anchor", "annotations": annotations}});
    let lease: Lease = serde_json::from_value(lease).expect("a Lease");
    cluster.run(async { leases(cluster).create(&PostParams::default(), &lease).await }).expect("created");
    group.until("the domain to be adopted", || group.within(&server(1), "adopt --reason by-hand").map(drop));
    group.whole(change, 3);
    group.judge();
}

/// As after an API server was restored from a copy: running servers continue. A server that restarts does not start
/// Raft, and an empty one is not admitted, until the anchor is corrected.
pub fn anchor_turned_back(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 2);
    let old = anchor(cluster).expect("an anchor");
    overridden(group.lose(1).overridden(&group));
    group.scale(3);
    let now = anchor(cluster).expect("an anchor");
    let change = group.begin("the anchor set back");
    rewrite_anchor(cluster, &old);
    (0..3).for_each(|ordinal| says(&group, &server(ordinal), "the anchor was set back to epoch 1"));
    writes_go_on(&group);
    let pod = cluster.pod_uid(&server(2));
    cluster.delete_pod(&server(2));
    cluster.pod_replaced(&server(2), &pod);
    says(&group, &server(2), "the anchor is of epoch 1: it was set back");
    writes_go_on(&group);
    wipe(cluster, &server(2));
    says(&group, &server(2), "not a member yet");
    nobody_founds(cluster, &Some(old));
    writes_go_on(&group);
    rewrite_anchor(cluster, &now);
    group.whole(change, 3);
    group.judge();
}

/// A second process on a volume reports who uses the volume, and ends; the first process continues.
pub fn two_processes_on_one_volume(cluster: &mut Cluster) {
    let group = Group::watched(cluster, 1);
    let change = group.begin("a second process on the volume of kaa-admin-0");
    let mut second = Command::new(env!("CARGO_BIN_EXE_kaa"));
    let mut second = second.arg("agent").env_clear().envs(cluster.environment_of(&server(0))).spawn().unwrap();
    let began = Instant::now();
    let ended = loop {
        match second.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > SOON => {
                second.kill().unwrap();
                panic!("two agents run on one volume");
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    assert!(!ended.success(), "{ended}");
    writes_go_on(&group);
    group.whole(change, 1);
    group.judge();
}

/// The manifests of the first set of agents under other names, for this domain.
fn other_agents(cluster: &Cluster, domain: &str) -> Vec<Value> {
    let objects = manifests::objects(Part::Base, cluster.namespace()).unwrap();
    let renamed = objects.into_iter().map(|object| {
        let text = object.to_string().replace("kaa-admin", "kaa-other");
        let text = text.replace(r#"name":"kaa""#, r#"name":"kaa-other""#);
        let text = text.replace("kaa-default-", &format!("{domain}-default-"));
        let mut object: Value = serde_json::from_str(&text).unwrap();
        if object["kind"] == "StatefulSet" {
            object["spec"]["replicas"] = json!(1);
            let pod = &mut object["spec"]["template"]["spec"];
            pod["securityContext"] = json!({"runAsUser": 0});
            pod["containers"][0]["image"] = json!(cluster.image());
            pod["containers"][0]["env"].as_array_mut().unwrap().push(json!({"name": "KAA_DOMAIN", "value": domain}));
            for volume in pod["volumes"].as_array_mut().unwrap() {
                if let Some(secret) = volume.get_mut("secret") {
                    secret["secretName"] = json!("kaa-admin-tls");
                }
            }
        }
        object
    });
    renamed.collect()
}

/// Two StatefulSets in one namespace, with certificates of one authority. If the second set uses the same domain name,
/// it is not admitted. If it uses another domain name, it founds that domain, and neither domain has a server of the
/// other.
pub fn two_sets_of_agents(cluster: &mut Cluster) {
    const OTHER: &str = "kaa-other-0";
    let mut group = Group::watched(cluster, 1);
    let founded = anchor(cluster);
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client(), cluster.namespace());
    for domain in ["kaa", "other"] {
        let change = group.begin(&format!("a second statefulset for domain {domain}"));
        cluster.run(install::apply(&cluster.client(), &other_agents(cluster, domain))).expect("applied");
        if domain == "kaa" {
            says(&group, OTHER, "not a member yet");
            nobody_founds(cluster, &founded);
        } else {
            says(&group, OTHER, "readyz check passed");
            let theirs = anchor_of(cluster, "other").expect("an anchor of their own");
            assert_ne!(theirs["kaa.dev/domain"], founded.as_ref().expect("an anchor")["kaa.dev/domain"]);
            assert_eq!(group.known_to(OTHER), [OTHER]);
        }
        assert_eq!(group.logs().into_keys().collect::<Vec<_>>(), [server(0)]);
        group.whole(change, 1);
        if domain == "kaa" {
            cluster.run(sets.delete("kaa-other", &DeleteParams::default())).expect("deleted");
            cluster.pod_gone(OTHER);
            cluster.delete_claim(&format!("raftlog-{OTHER}"));
        }
    }
    // Each StatefulSet scales only its own domain.
    group.scale(2);
    assert_eq!(group.known_to(OTHER), [OTHER]);
    assert_eq!(anchor(cluster), founded);
    group.judge();
}

/// Asks the first server to continue without the others, until it does.
pub(super) fn recovered(group: &Group<'_>, from: u64) {
    group.until("the next epoch, however often an operator has to ask", || {
        if group.epoch() == from {
            group.recover(&server(0), "--accept-data-loss --yes").map(drop)?;
        }
        if group.epoch() > from { Ok(()) } else { Err("it is said to be done".to_owned()) }
    });
}

/// An operator gives up the logs of two servers that were only stopped. They continue while the founder waits for their
/// end, and retire their logs, which is as good as their end.
pub fn given_up_and_continued(cluster: &mut Cluster) {
    let group = Group::watched(cluster, 3);
    // What this server has acknowledged is in its own log, so no acknowledged write is lost, and the test can check
    // that.
    group.lead_by(0);
    let before = group.logs();
    let change = group.begin("two of three stopped, recover, and going on later");
    let lost = [server(1), server(2)];
    let processes: Vec<_> = lost.iter().map(|lost| cluster.agent_of(lost)).collect();
    group.stop(&lost);
    recovered(&group, change.epoch());
    says(&group, &server(0), "is still there");
    let writes = group.acknowledged();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(group.acknowledged(), writes, "nobody commits while an old process may");
    processes.into_iter().for_each(|process| process.signal("CONT"));
    change.overridden(&group);
    let now = group.logs();
    for server in &lost {
        assert_ne!(now[server], before[server], "{server} has a new log");
        let kept = group.retired(server);
        assert!(kept.iter().any(|kept| kept.ends_with(&format!("-{}", before[server]))), "{server}: {kept:?}");
    }
    group.judge();
}

/// A process of which Kubernetes does not know.
struct Unseen(Child);

impl Unseen {
    fn start(environment: BTreeMap<String, String>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
        Self(command.arg("agent").env_clear().envs(environment).spawn().unwrap())
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// After an operator gave up a server's log, a process of this server starts again on its old volume, although
/// Kubernetes reports its pod as gone. It has passed the gate as that pod, so it starts Raft at once: it learns of the
/// later epoch and retires its log.
pub fn given_up_and_brought_back(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    // What this server has acknowledged is in its own log, so no acknowledged write is lost, and the test can check
    // that.
    group.lead_by(0);
    let (old, log) = (server(2), group.logs()[&server(2)].clone());
    let mut environment: BTreeMap<String, String> = cluster.environment_of(&old).into_iter().collect();
    // The files of the pod are deleted with it, so the process uses those of kaa-admin-0.
    for (name, value) in cluster.environment_of(&server(0)) {
        if ["HOME", "KAA_CREDENTIALS_FILE", "KAA_POD_TOKEN_FILE", "KAA_TLS_DIR", "KUBECONFIG"].contains(&name.as_str())
        {
            environment.insert(name, value);
        }
    }
    environment.remove("EMBEDDED_CONTAINER");
    let volume = cluster.files().join("old-volume");
    group.stop(&[server(1), server(2)]);
    copy(&group.volume(&old), &volume);
    environment.insert("KAA_DATA_DIR".to_owned(), volume.display().to_string());
    let change = group.lose(1);
    recovered(&group, change.epoch());
    change.overridden(&group);
    let began = group.begin("a process of the past");
    // Kubernetes reports that the pod is gone before its process has ended. Until then the process uses the addresses.
    let address = environment["KAA_LISTEN_HTTP"].clone();
    group.until("the process of the pod that is gone to end", || {
        std::net::TcpListener::bind(&address).map(drop).map_err(|error| format!("{address}: {error}"))
    });
    let mut unseen = Unseen::start(environment);
    let kept = volume.join(format!("retired-{}-{log}", began.epoch() - 1));
    group.until("its log to be retired", || match unseen.0.try_wait().unwrap() {
        _ if kept.is_dir() => Ok(()),
        Some(ended) => panic!("it ended: {ended}"),
        None => Err("it is not".to_owned()),
    });
    writes_go_on(&group);
    group.whole(began, 1);
    drop(unseen);
    group.scale(3);
    let kept = group.retired(&old);
    assert!(kept.iter().any(|kept| kept.ends_with(&format!("-{log}"))), "{old}: {kept:?}");
    group.judge();
}
