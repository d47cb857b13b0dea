//! Which names lead where.

use super::names;
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use jiff::Timestamp;
use serde_json::{Value, json};

fn store() -> Store {
    let mut store = Store::new(1, Timestamp::UNIX_EPOCH);
    for name in ["n", "other"] {
        store.create(Kind::Namespace, json!({"metadata": {"name": name}})).unwrap();
    }
    store
}

fn service(store: &mut Store, name: &str, spec: Value) {
    store.create(Kind::Service, json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})).unwrap();
}

fn pod(store: &mut Store, name: &str, address: u8, ready: bool) {
    let spec = json!({
        "hostname": name, "subdomain": "web",
        "containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 80}]}],
    });
    let metadata = json!({"name": name, "namespace": "n", "labels": {"app": "web"}});
    store.create(Kind::Pod, json!({"metadata": metadata, "spec": spec})).unwrap();
    let ready = if ready { "True" } else { "False" };
    store
        .edit(&Key::new(Kind::Pod, "n", name), Part::Status, |pod| {
            pod["status"] = json!({
                "phase": "Running", "podIP": format!("127.77.0.{address}"),
                "conditions": [{"type": "Ready", "status": ready}],
            });
        })
        .unwrap();
}

#[test]
fn a_service_stands_for_its_ready_pods_and_a_headless_one_names_each() {
    let mut store = store();
    service(&mut store, "web", json!({"clusterIP": "None", "selector": {"app": "web"}}));
    pod(&mut store, "web-0", 2, true);
    pod(&mut store, "web-1", 3, false);
    let names = names(&store);
    assert_eq!(
        names.files["n"],
        "127.0.0.1 localhost
127.77.0.2 web web.n web.n.svc web.n.svc.cluster.local
127.77.0.2 web-0.web web-0.web.n web-0.web.n.svc web-0.web.n.svc.cluster.local
"
    );
    assert_eq!(
        names.files["other"],
        "127.0.0.1 localhost
127.77.0.2 web.n web.n.svc web.n.svc.cluster.local
127.77.0.2 web-0.web.n web-0.web.n.svc web-0.web.n.svc.cluster.local
"
    );
}

#[test]
fn a_service_may_lead_to_pods_that_are_not_ready() {
    let mut store = store();
    let selector = json!({"app": "web"});
    service(
        &mut store,
        "all",
        json!({"publishNotReadyAddresses": true, "selector": selector, "ports": [{"port": 80}]}),
    );
    service(&mut store, "none", json!({"selector": {"app": "else"}, "ports": [{"port": 80}]}));
    service(&mut store, "by-hand", json!({"ports": [{"port": 80}]}));
    pod(&mut store, "web-1", 3, false);
    let names = names(&store);
    assert_eq!(names.files["n"], "127.0.0.1 localhost\n127.77.0.3 all all.n all.n.svc all.n.svc.cluster.local\n");
}

#[test]
fn a_service_whose_ports_differ_from_those_of_its_pods_is_refused() {
    let mut store = store();
    let selector = json!({"app": "web"});
    let ports = [json!(8080), json!("http"), json!("nonsense")];
    for (number, target) in ports.into_iter().enumerate() {
        let spec = json!({"selector": selector, "ports": [{"port": 80, "targetPort": target}]});
        service(&mut store, &format!("s{number}"), spec);
    }
    pod(&mut store, "web-0", 2, true);
    let names = names(&store);
    let refused: Vec<_> =
        names.refused.iter().map(|(service, why)| format!("{}: {why}", service["metadata"]["name"])).collect();
    assert_eq!(
        refused,
        [
            "\"s0\": port 80 leads to port 8080 of pod web-0: there is no proxy here, both have to be equal",
            "\"s2\": port 80 leads to port \"nonsense\" of pod web-0: there is no proxy here, both have to be equal",
        ]
    );
    assert!(names.files["n"].contains("s1.n.svc"), "{}", names.files["n"]);
}
