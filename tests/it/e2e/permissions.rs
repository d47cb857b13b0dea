//! Permissions are removed from running agents, one after another. The agents do not do what needs them, and report
//! which verb is missing. Once it is granted again, the domain catches up.

use crate::domain::cluster::Cluster;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use kube::Api;
use kube::api::{LogParams, PostParams};
use std::process::Command;
use std::time::Duration;
use testkit::eventually;

/// The agents' Role, and its rules at the beginning.
struct Permissions<'a> {
    cluster: &'a Cluster,
    rules: Vec<PolicyRule>,
}

impl<'a> Permissions<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let roles: Api<Role> = Api::namespaced(cluster.client(), cluster.namespace());
        let role = cluster.run(roles.get("kaa-admin")).expect("the agents' Role");
        Self { cluster, rules: role.rules.expect("rules") }
    }

    /// Leaves the agents all permissions but these: a resource, or the name of a Lease, and a verb.
    fn without(&self, withdrawn: &[(&str, &str)]) {
        let mut rules = Vec::new();
        for rule in &self.rules {
            for resource in rule.resources.iter().flatten() {
                // One rule for each name, so that one name can lose a verb which the others keep.
                let names = rule.resource_names.iter().flatten().map(Some);
                let objects = if rule.resource_names.is_some() { names.collect() } else { vec![None] };
                for name in objects {
                    let object = name.unwrap_or(resource);
                    let gone = |verb: &String| withdrawn.contains(&(object.as_str(), verb.as_str()));
                    let verbs: Vec<String> = rule.verbs.iter().filter(|verb| !gone(verb)).cloned().collect();
                    if !verbs.is_empty() {
                        let resource_names = name.map(|name| vec![name.clone()]);
                        rules.push(PolicyRule {
                            resources: Some(vec![resource.clone()]),
                            resource_names,
                            verbs,
                            ..rule.clone()
                        });
                    }
                }
            }
        }
        let roles: Api<Role> = Api::namespaced(self.cluster.client(), self.cluster.namespace());
        let mut role = self.cluster.run(roles.get("kaa-admin")).expect("the agents' Role");
        role.rules = Some(rules);
        self.cluster.run(roles.replace("kaa-admin", &PostParams::default(), &role)).expect("the Role is changed");
    }

    fn all(&self) {
        self.without(&[]);
    }
}

/// The resync leader and its address.
fn leader(cluster: &Cluster) -> (String, String) {
    let server = cluster.run(cluster.lease_holder());
    eventually("the leader to be ready", || {
        let addresses = cluster.run(cluster.admin_addresses());
        addresses.iter().find(|(name, _)| *name == server).cloned().ok_or(format!("{server} of {addresses:?}"))
    })
}

fn get(cluster: &Cluster, address: &str, path: &str) -> String {
    let answer = async { reqwest::get(format!("{address}{path}")).await?.text().await };
    cluster.run(answer).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn plan(address: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
    let output = command.args(["plan", "--api-server", address]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until the plan of the leader contains these words, and returns the whole plan.
fn planned(address: &str, words: &str) -> String {
    eventually(&format!("'{words}' in the plan of {address}"), || {
        let plan = plan(address);
        if plan.contains(words) { Ok(plan) } else { Err(plan) }
    })
}

/// The missing permission is named everywhere that an operator may look.
fn is_told(cluster: &Cluster, verb: &str, resource: &str) {
    let (server, address) = leader(cluster);
    planned(&address, &format!("Missing permission: {verb} {resource}."));
    let missing = format!("the permission to {verb} {resource} is missing");
    eventually(&format!("'{missing}' at the readiness probe"), || {
        let ready = get(cluster, &address, "/readyz?verbose");
        let told = ready.contains(&format!("[!]permissions: {missing}")) && ready.contains("readyz check passed");
        if told { Ok(()) } else { Err(ready) }
    });
    let pods: Api<Pod> = Api::namespaced(cluster.client(), cluster.namespace());
    eventually(&format!("'{missing}' in the log of {server}"), || {
        let log = cluster.run(pods.logs(&server, &LogParams::default())).map_err(|error| error.to_string())?;
        if log.contains(&missing) { Ok(()) } else { Err(format!("{} lines without it", log.lines().count())) }
    });
    metric(cluster, &address, verb, resource, 1);
}

fn metric(cluster: &Cluster, address: &str, verb: &str, resource: &str, value: u8) {
    let series = format!("kaa_kubernetes_permission_missing{{verb=\"{verb}\",resource=\"{resource}\"}} {value}\n");
    eventually(&format!("{series} among the metrics of {address}"), || {
        let metrics = get(cluster, address, "/metrics");
        let permissions: String = metrics.lines().filter(|line| line.contains("permission_missing")).collect();
        if metrics.contains(&series) { Ok(()) } else { Err(permissions) }
    });
}

/// Withdraws the fresh reads on which removals rest, one kind after another.
pub fn fresh_reads_withdrawn(cluster: &mut Cluster) {
    let (cluster, permissions) = (&*cluster, Permissions::of(cluster));

    permissions.without(&[("statefulsets", "get")]);
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.pod_gone("sm-demo-1");
    is_told(cluster, "get", "statefulsets.apps");
    let held = planned(&leader(cluster).1, "statefulset sm-demo could not be read: no permission to get");
    assert!(!cluster.kaa("explain archive/2").contains("archive 2 removed"), "{held}");
    permissions.all();
    cluster.says("explain archive/2", "archive 2 removed: its StatefulSet was scaled down");

    permissions.without(&[("persistentvolumeclaims", "get"), ("kaa-default-anchor", "get")]);
    cluster.delete_claim("archive-volume-sm-demo-1");
    is_told(cluster, "get", "persistentvolumeclaims");
    is_told(cluster, "get", "leases.coordination.k8s.io/kaa-default-anchor");
    permissions.without(&[("kaa-default-anchor", "get")]);
    let held = planned(&leader(cluster).1, "the anchor lease could not be read: no permission to get");
    assert!(!cluster.kaa("explain archive/2").contains("archive 2 purged"), "{held}");
    permissions.all();
    cluster.says("explain archive/2", "archive 2 purged");

    let (pod, start) = cluster.transaction_engine_of(0, 3);
    let (_, latest) = cluster.transaction_engine_of(1, 3);
    permissions.without(&[("pods", "get")]);
    cluster.lose_pod(&pod);
    is_told(cluster, "get", "pods");
    planned(&leader(cluster).1, &format!("pod {pod} could not be read: no permission to get"));
    assert!(!cluster.kaa(&format!("explain process/{start}")).contains("exited"), "it was removed without a read");
    // Everything else continues: meanwhile another engine registers.
    cluster.runs_after(latest);
    permissions.all();
    cluster.exited(start, "");
    let address = leader(cluster).1;
    metric(cluster, &address, "get", "pods", 0);
}

/// Withdraws the permissions for the index and for the Lease. Running watches are not cut: the agents notice when they
/// start a watch again.
pub fn lists_and_lease_withdrawn(cluster: &mut Cluster) {
    let (cluster, permissions) = (&*cluster, Permissions::of(cluster));
    let kinds = ["pods", "persistentvolumeclaims", "statefulsets", "deployments"];
    let withdrawn: Vec<_> = kinds.iter().flat_map(|kind| [(*kind, "list"), (*kind, "watch")]).collect();
    permissions.without(&withdrawn);
    let address = leader(cluster).1;
    planned(&address, "persistentvolumeclaims may not be listed");
    planned(&address, "statefulsets may not be listed");
    planned(&address, "pods may not be listed");
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.pod_gone("sm-demo-1");
    cluster.delete_claim("archive-volume-sm-demo-1");
    let (pod, start) = cluster.transaction_engine_of(0, 3);
    cluster.lose_pod(&pod);
    is_told(cluster, "watch", "persistentvolumeclaims");
    // Two periods of the resync.
    std::thread::sleep(Duration::from_secs(20));
    let plan = plan(&address);
    assert!(plan.contains("Nothing to propose"), "{plan}");
    assert!(!cluster.kaa("explain archive/2").contains("removed"), "{plan}");
    assert!(!cluster.kaa(&format!("explain process/{start}")).contains("exited"), "{plan}");
    permissions.all();
    cluster.says("explain archive/2", "archive 2 purged");
    cluster.exited(start, "");

    permissions.without(&[("kaa-default-resync", "update"), ("kaa-default-resync", "get")]);
    let address = cluster.run(cluster.admin_addresses()).remove(0).1;
    planned(&address, "Missing permission: update leases.coordination.k8s.io/kaa-default-resync");
    planned(&address, "knows of no server that does");
    cluster.scale("statefulsets", "sm-demo", 2);
    // Everything else continues: the agent to which the new engine connects admits it.
    cluster.transaction_engine_of(0, 4);
    permissions.all();
    cluster.says("plan", ", epoch ");
}
