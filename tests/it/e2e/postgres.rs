//! A database of PostgreSQL servers whose primary changes while a client writes.

mod commands;
mod several;

use crate::domain::cluster::Cluster;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::Key;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kaa::demo::postgres::{self, DATABASE, Installed, Roles, SERVERS};
use kube::api::Api;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::{eventually, eventually_async};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

pub use commands::by_command;
pub use several::two_databases;

/// How long a client waits for an answer before it connects again.
const PATIENCE: Duration = Duration::from_secs(5);
/// A client that found no primary tries again after this time.
const PAUSE: Duration = Duration::from_millis(50);
/// How many acknowledged rows show that clients can write.
const ENOUGH: usize = 100;

/// A Service that was left behind by a deleted domain leads to the primary. The pod of that is deleted: another server takes over, and
/// has every row that the client was told is there. Then the wrapper of the new primary is killed with its server, which becomes the
/// primary again. In the end a scale-down stops this server and the standby that confirms its commits at once, and the one that is left
/// takes over.
pub fn primary_deleted() {
    let Some((installed, mut cluster, roles, _dir)) = installed("postgres_primary_deleted") else { return };
    cluster.put(&[left_behind(cluster.namespace())]);
    cluster.put(&installed.objects(cluster.namespace(), &roles).unwrap());
    cluster.wait("the servers to run", |c| c.running() == SERVERS);
    cluster.says(&format!("explain database/{DATABASE}"), "is in the sync set");
    leads(&cluster, "shop-rw", &[&primary(&cluster, &roles)]);

    let writer = Writer::start(&cluster, &roles);
    writer.writes();
    let first = primary(&cluster, &roles);
    let began = Instant::now();
    cluster.delete_pod(&first);
    let second = eventually("another primary", || match primary(&cluster, &roles) {
        second if second == first => Err(second),
        second => Ok(second),
    });
    writer.writes();
    eprintln!("{first} was deleted, {second} has {ENOUGH} more rows after {:.1} s", began.elapsed().as_secs_f64());
    cluster.wait("the deleted server to be back", |c| c.running() == SERVERS);
    leads(&cluster, "shop-rw", &[&second]);
    leads(
        &cluster,
        "shop-ro",
        &["shop-0", "shop-1", "shop-2"].map(str::to_owned).iter().filter(|it| **it != second).collect::<Vec<_>>(),
    );

    cluster.kill_wrapper(&second);
    writer.writes();
    cluster.wait("the killed server to be back", |c| c.running() == SERVERS);
    writer.writes();

    for server in servers(&cluster) {
        cluster.run(has_all(&roles, &server, &writer.acknowledged()));
    }

    assert_ne!(second, "shop-0", "the scale-down is to stop the primary");
    cluster.scale("statefulsets", DATABASE, 1);
    cluster.pod_gone("shop-1");
    cluster.pod_gone("shop-2");
    writer.writes();
    assert_eq!(primary(&cluster, &roles), "shop-0");
    leads(&cluster, "shop-rw", &[&"shop-0".to_owned()]);
    leads(&cluster, "shop-ro", &[]);
    let acknowledged = writer.stop(&cluster);
    for server in servers(&cluster) {
        cluster.run(has_all(&roles, &server, &acknowledged));
    }
    cluster.passed();
}

/// The programs of PostgreSQL, if there are any, a domain of three agents, the roles of a database, and the directory of it all.
fn installed(case: &str) -> Option<(Installed, Cluster, Arc<Roles>, TempDir)> {
    let bin = testkit::postgres()?;
    let installed = Installed::find(Some(&bin)).unwrap_or_else(|error| panic!("{}: {error}", bin.display()));
    let dir = tempfile::Builder::new().prefix("kaa-pg.").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let cluster = Cluster::in_directory(case, 3, dir.path());
    Some((installed, cluster, Arc::new(Roles::new().unwrap()), dir))
}

/// The directory of the volume that a claim is bound to.
fn volume(cluster: &Cluster, dir: &Path, claim: &str) -> PathBuf {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), cluster.namespace());
    dir.join("volumes").join(cluster.run(claims.get(claim)).unwrap().metadata.uid.expect("a UID"))
}

/// A slice of a domain that was deleted, by an agent that named no domain: as of an entry that this one does not get to.
fn left_behind(namespace: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "shop-rw", "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "shop-rw", "endpointslice.kubernetes.io/managed-by": "kaa"},
            "annotations": {"kaa.dev/applied": "1.1000000"},
        },
        "addressType": "IPv4", "ports": [{"name": "postgres", "port": 5432, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["192.0.2.1"], "targetRef": {"kind": "Pod", "name": "shop-0", "namespace": namespace, "uid": "gone"}}],
    })
}

/// Waits until a Service leads to these pods.
fn leads(cluster: &Cluster, service: &str, pods: &[&String]) {
    let key = Key::new(Kind::EndpointSlice, cluster.namespace(), service);
    eventually(&format!("{service} leads to {pods:?}"), || {
        let found: Vec<String> = cluster.stage().instance().look(|store| {
            let endpoints = store.find(&key).map_or(&[][..], |slice| object::list(slice, "/endpoints"));
            endpoints.iter().map(|endpoint| object::text(endpoint, "/targetRef/name").to_owned()).collect()
        });
        if found.iter().collect::<Vec<_>>() == pods { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// The servers' pods and addresses.
fn servers(cluster: &Cluster) -> Vec<(String, String)> {
    cluster.stage().instance().look(|store| postgres::servers(store, cluster.namespace()))
}

/// A client of the server that accepts writes, or of the only one.
async fn connect(roles: &Roles, servers: &[(String, String)]) -> Result<Client, String> {
    let addresses: Vec<&str> = servers.iter().map(|(_, address)| address.as_str()).collect();
    let connected = timeout(PATIENCE, tokio_postgres::connect(&roles.url(&addresses), NoTls)).await;
    let (client, connection) = connected.map_err(|_| "no answer")?.map_err(|error| format!("{error:?}"))?;
    tokio::spawn(connection);
    Ok(client)
}

/// The pod of the server that accepts writes.
fn primary(cluster: &Cluster, roles: &Roles) -> String {
    cluster.run(eventually_async("a primary", async || {
        let client = connect(roles, &servers(cluster)).await?;
        let row = client.query_one("SELECT host(inet_server_addr())", &[]).await.map_err(|error| error.to_string())?;
        let address: String = row.get(0);
        let pod = servers(cluster).into_iter().find(|(_, known)| *known == address);
        Ok::<_, String>(pod.ok_or(address)?.0)
    }))
}

/// Waits until a server, also one that follows, has all of these rows.
async fn has_all(roles: &Roles, server: &(String, String), acknowledged: &BTreeSet<i64>) {
    eventually_async(&format!("{} acknowledged rows at {}", acknowledged.len(), server.0), async || {
        let client = connect(roles, std::slice::from_ref(server)).await?;
        let rows = client.query("SELECT id FROM rows", &[]).await.map_err(|error| error.to_string())?;
        let there: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        let missing: Vec<_> = acknowledged.difference(&there).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("missing: {missing:?}")) }
    })
    .await;
}

/// A client that inserts one row after another, and connects again when it has to.
struct Writer {
    /// The rows that were acknowledged. Others may be there as well.
    acknowledged: Arc<Mutex<BTreeSet<i64>>>,
    task: JoinHandle<()>,
}

impl Writer {
    fn start(cluster: &Cluster, roles: &Arc<Roles>) -> Self {
        Self::start_after(cluster, roles, 0)
    }

    /// The same, with rows after this one.
    fn start_after(cluster: &Cluster, roles: &Arc<Roles>, last: i64) -> Self {
        let acknowledged: Arc<Mutex<BTreeSet<i64>>> = Arc::default();
        let (instance, namespace) = (cluster.stage().instance().clone(), cluster.namespace().to_owned());
        let (roles, noted) = (roles.clone(), acknowledged.clone());
        let write = async move {
            let mut id = last;
            loop {
                let servers = instance.look(|store| postgres::servers(store, &namespace));
                let Ok(client) = connect(&roles, &servers).await else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                // The table is there, or two connections make it at once, or the server ends: an insert shows it.
                let _ = client.batch_execute("CREATE TABLE IF NOT EXISTS rows (id bigint PRIMARY KEY)").await;
                loop {
                    // A row whose insertion was not acknowledged may be there: it is not tried again.
                    id += 1;
                    match timeout(PATIENCE, client.execute("INSERT INTO rows VALUES ($1)", &[&id])).await {
                        Ok(Ok(_)) => drop(noted.lock().unwrap_or_else(PoisonError::into_inner).insert(id)),
                        Ok(Err(_)) | Err(_) => break,
                    }
                }
            }
        };
        let task = cluster.spawn(write);
        Self { acknowledged, task }
    }

    fn acknowledged(&self) -> BTreeSet<i64> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until more rows are acknowledged.
    fn writes(&self) {
        let before = self.count();
        eventually(&format!("{ENOUGH} acknowledged rows"), || match self.count() - before {
            ENOUGH.. => Ok(()),
            more => Err(more),
        });
    }

    fn stop(mut self, cluster: &Cluster) -> BTreeSet<i64> {
        self.task.abort();
        // It notes nothing any more.
        let _ = cluster.run(&mut self.task);
        self.acknowledged()
    }
}
