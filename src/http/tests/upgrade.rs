//! The protocol version of a database and its task, as the published client and our own ask for them.

use super::writes::{Domain, ELSEWHERE, POD};
use super::*;
use serde_json::json;

fn get(path: &str) -> Request {
    Request::get(format!("/api/1/{path}")).body(Body::empty()).unwrap()
}

fn post(path: &str, body: &Value) -> Request {
    let request = Request::post(format!("/api/1/{path}")).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

#[tokio::test]
async fn the_versions_have_the_shape_that_clients_read() {
    let domain = Domain::new(fake::upgradable(false));
    let (status, versions) = domain.send(ELSEWHERE, get("databases/demo/versions")).await;
    let expected = json!({
        "dbName": "demo",
        "effectiveVersion": "1376256",
        "version": "4.2",
        "maxVersion": "1441792",
        "availableVersions": [{"versionId": 1_441_792, "name": "4.3|4.3.1"}],
        "allVersions": {"4.3.2": {"versionId": "1441792", "version": "4.3|4.3.1"}},
        "processVersions": {"4.3.2": ["1", "4"]},
    });
    assert_eq!((status, versions), (StatusCode::OK, expected));
    assert_eq!(domain.send(POD, get("databases/none/versions")).await.0, StatusCode::NOT_FOUND);
    let old = Domain::new(fake::source()).send(POD, get("databases/demo/versions")).await.1;
    assert_eq!((&old["effectiveVersion"], &old["availableVersions"]), (&Value::Null, &json!([])), "{old}");
    assert_eq!(old["allVersions"], json!({"7.0.2": {"versionId": "unknown", "version": "unknown"}}));
}

#[tokio::test]
async fn a_version_is_raised_by_hand_to_one_that_is_available() {
    let domain = Domain::new(fake::upgradable(false));
    let ask =
        |query: &str| Request::post(format!("/api/1/databases/demo/upgrade?{query}")).body(Body::empty()).unwrap();
    assert_eq!(domain.send(ELSEWHERE, ask("maxVersion=True")).await.0, StatusCode::FORBIDDEN);
    for wrong in ["maxVersion=False", "version=4.4&maxVersion=False", "version=1441792&maxVersion=True"] {
        assert_eq!(domain.send(POD, ask(wrong)).await.0, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let (status, answer) = domain.send(POD, ask("version=1500000&maxVersion=False")).await;
    let why = "protocol version 1500000 is not available for database demo";
    assert_eq!((status, answer), (StatusCode::CONFLICT, json!({"code": 409, "messages": [why]})));
    let (status, answer) = domain.send(POD, ask("version=4.3.1&maxVersion=False")).await;
    assert_eq!((status, &answer["effectiveVersion"]), (StatusCode::OK, &json!("1441792")), "{answer}");
    let (from, to) = ("1376256 (4.2)", "1441792 (4.3|4.3.1)");
    assert_eq!(domain.last("database/demo"), format!("loopback: its protocol version was raised from {from} to {to}"));
    assert_eq!(domain.send(POD, ask("maxVersion=True")).await.0, StatusCode::CONFLICT, "nothing later is available");
    assert_eq!(domain.send(POD, ask("version=1441792")).await.0, StatusCode::OK, "it is in effect");
    let none = Request::post("/api/1/databases/none/upgrade?maxVersion=True").body(Body::empty()).unwrap();
    assert_eq!(domain.send(POD, none).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_task_is_shown_and_cancelled() {
    let domain = Domain::new(fake::upgradable(true));
    let (_, tasks) = domain.send(ELSEWHERE, get("kaa/tasks")).await;
    let (_, task) = domain.send(ELSEWHERE, get("kaa/tasks/1")).await;
    assert_eq!(tasks["tasks"], json!([task]));
    assert_eq!((&task["state"], &task["startId"], &task["of"]), (&json!("BLOCKED"), &json!(4), &json!(3)));
    let steps: Vec<_> = task["steps"].as_array().unwrap().iter().map(|step| &step["what"]).collect();
    assert_eq!(steps, ["raise-version", "stop-engine", "await-engine"]);
    let why = json!({"why": "the engine does not come back"});
    assert_eq!(domain.send(ELSEWHERE, post("kaa/tasks/1/cancel", &why)).await.0, StatusCode::FORBIDDEN);
    assert_eq!(domain.send(POD, post("kaa/tasks/1/cancel", &json!({"why": ""}))).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(domain.send(POD, post("kaa/tasks/2/cancel", &why)).await.0, StatusCode::NOT_FOUND);
    let (status, task) = domain.send(POD, post("kaa/tasks/1/cancel", &why)).await;
    assert_eq!((status, &task["state"]), (StatusCode::OK, &json!("CANCELLED")), "{task}");
    let explained = domain.send(POD, get("kaa/explain/task/1")).await.1;
    let state = explained["state"].as_str().unwrap();
    assert!(state.starts_with("CANCELLED, 2 of 3 steps: upgrade database demo"), "{state}");
    assert_eq!(
        domain.last("task/1"),
        "loopback: task 1 cancelled with 2 of its steps done: the engine does not come back"
    );
}
