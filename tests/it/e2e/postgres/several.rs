//! Two databases in one domain.

use super::*;
use k8s_openapi::api::core::v1::Pod;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The other database. Everything of it is named as that of the manifests, with this name.
const ORDERS: &str = "orders";

/// What a server without Kaa left on a volume.
const KEPT: &str = "CREATE TABLE kept AS SELECT 42 AS id;\nGRANT SELECT ON kept TO PUBLIC;\n";

/// Makes a data directory as docs/from-other-operators.md asks for it, with a table.
fn make_foreign(bin: &Path, user: Option<(u32, u32)>, volume: &Path) {
    let pgdata = volume.join("pgdata");
    std::fs::create_dir_all(volume).unwrap();
    let run = |program: &str, arguments: &[&str], input: &str| {
        let mut command = Command::new(bin.join(program));
        command.args(arguments).arg("-D").arg(&pgdata).current_dir("/").env("LC_ALL", "C");
        if let Some((user, group)) = user {
            std::os::unix::fs::chown(volume, Some(user), Some(group)).unwrap();
            command.uid(user).gid(group);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("initdb", &["-U", "kaa", "-A", "trust", "-E", "UTF8", "--no-instructions"], "");
    run("postgres", &["--single", "postgres"], &format!("CREATE DATABASE {ORDERS};\n"));
    run("postgres", &["--single", ORDERS], KEPT);
}

/// The objects of the other database, and the user of its servers.
fn objects(installed: &Installed, namespace: &str, roles: &Roles) -> (Vec<Value>, Option<(u32, u32)>) {
    let objects = Value::from(installed.objects(namespace, roles).unwrap());
    let renamed: Value = serde_json::from_str(&objects.to_string().replace(DATABASE, ORDERS)).unwrap();
    let set = renamed.as_array().unwrap().iter().find(|object| object["kind"] == "StatefulSet").expect("a StatefulSet");
    let environment = set.pointer("/spec/template/spec/containers/0/env").and_then(Value::as_array).expect("env");
    let user = environment.iter().find(|variable| variable["name"] == "KAA_POSTGRES_USER");
    let user = user.and_then(|variable| variable["value"].as_str()?.split_once(':'));
    let user = user.map(|(user, group)| (user.parse().unwrap(), group.parse().unwrap()));
    (renamed.as_array().cloned().unwrap_or_default(), user)
}

/// The archives of a database, the first one first: pods and ids.
fn archives(cluster: &Cluster, database: &str) -> Vec<(String, u64)> {
    let answer = cluster.rest(&format!("kaa/replication/{database}")).unwrap_or_default();
    let rows = answer["archives"].as_array().cloned().unwrap_or_default();
    rows.iter().filter_map(|row| Some((row["pod"].as_str()?.to_owned(), row["archive"].as_u64()?))).collect()
}

fn generation(cluster: &Cluster, database: &str) -> u64 {
    let answer = cluster.rest(&format!("kaa/replication/{database}")).unwrap_or_default();
    answer["generation"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// The pod of the primary that lets clients in.
fn leader(cluster: &Cluster, database: &str) -> String {
    eventually(&format!("a primary of {database}"), || {
        let answer = cluster.rest(&format!("kaa/replication/{database}")).unwrap_or_default();
        let primary = &answer["primary"];
        let pod = primary["pod"].as_str().filter(|_| primary["open"] == true);
        pod.map(str::to_owned).ok_or_else(|| answer.to_string())
    })
}

/// What was on the adopted volume is at every server of its database.
fn has_kept(cluster: &Cluster, roles: &Roles) {
    for (pod, _) in archives(cluster, ORDERS) {
        cluster.run(eventually_async(&format!("the kept row at {pod}"), async || {
            let pods: Api<Pod> = Api::namespaced(cluster.client(), cluster.namespace());
            let found = pods.get(&pod).await.map_err(|error| error.to_string())?;
            let address = found.status.and_then(|status| status.pod_ip).ok_or("no address")?;
            let url = roles.url(&[&address]).replace(DATABASE, ORDERS);
            let connected = timeout(PATIENCE, tokio_postgres::connect(&url, NoTls)).await;
            let (client, connection) = connected.map_err(|_| "no answer")?.map_err(|error| format!("{error:?}"))?;
            tokio::spawn(connection);
            let row = client.query_one("SELECT id FROM kept", &[]).await.map_err(|error| format!("{error:?}"))?;
            assert_eq!(row.get::<_, i32>(0), 42);
            Ok::<_, String>(())
        }));
    }
}

/// While one database serves, the data of another one is adopted, as docs/from-other-operators.md says. Then the primary of each moves, and the
/// other one's stays.
pub fn two_databases() {
    let Some((installed, mut cluster, roles, dir)) = installed("postgres_two_databases") else { return };
    cluster.put(&installed.objects(cluster.namespace(), &roles).unwrap());
    cluster.wait("the servers to run", |c| c.running() == SERVERS);
    let writer = Writer::start(&cluster, &roles);
    writer.writes();

    let (objects, user) = objects(&installed, cluster.namespace(), &roles);
    let claim = format!("archive-volume-{ORDERS}-0");
    cluster.put(&[json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": cluster.namespace(), "labels": {"database": ORDERS}},
        "spec": {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}},
    })]);
    make_foreign(&testkit::postgres().unwrap(), user, &volume(&cluster, dir.path(), &claim));
    cluster.put(&objects);
    cluster.says(&format!("show database {ORDERS}"), "holds data that the domain knows nothing of");
    let adopted = format!("{ORDERS}-0");
    let id = archives(&cluster, ORDERS).into_iter().find(|(pod, _)| *pod == adopted).expect("its archive").1;
    cluster.kaa(&format!("database adopt {ORDERS} --archive {id} --reason test"));
    assert_eq!(leader(&cluster, ORDERS), adopted);
    cluster.wait("all servers to run", |c| c.running() == 2 * SERVERS);
    has_kept(&cluster, &roles);
    cluster.says(&format!("explain database/{ORDERS}"), "is in the sync set");

    let shops = generation(&cluster, DATABASE);
    cluster.kaa(&format!("switchover {ORDERS} --wait --reason test"));
    let second = leader(&cluster, ORDERS);
    assert_ne!(second, adopted);
    let moved = generation(&cluster, ORDERS);
    cluster.kill_wrapper(&second);
    cluster.wait("another generation", |c| generation(c, ORDERS) > moved);
    cluster.wait("all servers to run again", |c| c.running() == 2 * SERVERS);
    assert_eq!(generation(&cluster, DATABASE), shops, "nothing of it concerns the other database");
    writer.writes();

    let orders = generation(&cluster, ORDERS);
    cluster.delete_pod(&primary(&cluster, &roles));
    cluster.wait("another primary", |c| generation(c, DATABASE) > shops);
    writer.writes();
    cluster.wait("all servers to run in the end", |c| c.running() == 2 * SERVERS);
    assert_eq!(generation(&cluster, ORDERS), orders, "nor the other way round");
    let acknowledged = writer.stop(&cluster);
    for server in servers(&cluster) {
        cluster.run(has_all(&roles, &server, &acknowledged));
    }
    has_kept(&cluster, &roles);
    cluster.passed();
}
