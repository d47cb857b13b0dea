//! What an operator creates, shuts down and deletes by hand, as the published client asks for it, and what it cannot have.

use super::writes::{Domain, ELSEWHERE, POD};
use super::*;
use kaa_core::domain::ids::{ArchiveId, StartId};
use kaa_core::domain::process::Stop;
use serde_json::json;

fn request(method: &str, path: &str, body: &Value) -> Request {
    let request = Request::builder().method(method).uri(format!("/api/1/{path}"));
    request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap()
}

async fn send(domain: &Domain, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    domain.send(POD, request(method, path, &body)).await
}

fn refusal(status: StatusCode, why: &str) -> (StatusCode, Value) {
    (status, json!({"code": status.as_u16(), "messages": [why]}))
}

/// As `nuocmd create database` sends it.
fn new_database() -> Value {
    json!({
        "databaseDbaUser": "dba",
        "databaseDbaPassword": "s3cret",
        "hostAssignments": {},
        "smHosts": {},
        "defaultOptions": {"ping-timeout": "60", "ext-start": true},
    })
}

#[tokio::test]
async fn a_database_is_created_with_options_and_its_password_is_kept_nowhere() {
    let domain = Domain::new(fake::source());
    let create = |name: &str, body: Value| request("PUT", &format!("databases/{name}?mayExist=False"), &body);
    assert_eq!(domain.send(ELSEWHERE, create("b", new_database())).await.0, StatusCode::FORBIDDEN);
    let nothing = json!({"processes": [], "incremental": false});
    assert_eq!(domain.send(POD, create("b", new_database())).await, (StatusCode::OK, nothing.clone()));
    let again = refusal(StatusCode::CONFLICT, "there is a database b");
    assert_eq!(domain.send(POD, create("b", new_database())).await, again);
    assert_eq!(send(&domain, "PUT", "databases/b?mayExist=True", new_database()).await, (StatusCode::OK, nothing));
    let (_, row) = send(&domain, "GET", "databases/b?maskPassword=False", json!({})).await;
    assert_eq!(row["databaseOptions"], json!({"ping-timeout": "60", "ext-start": "true"}));
    let (_, everything) = send(&domain, "GET", "diagnostics/captureDomainState", json!({})).await;
    assert!(!format!("{row}{everything}").contains("s3cret"));
    assert!(!format!("{:?}", domain.source.domain.lock().unwrap()).contains("s3cret"));

    let mut with = new_database();
    with["teHosts"] = json!(["admin-0"]);
    let (status, answer) = domain.send(POD, create("c", with)).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(answer["messages"][0].as_str().unwrap().starts_with("engines are started by Kubernetes"), "{answer}");
    let mut with = new_database();
    with["hostAssignments"] = json!({"admin-0": 1});
    assert_eq!(domain.send(POD, create("c", with)).await.0, StatusCode::NOT_IMPLEMENTED);
    for options in [json!({"a": null}), json!({"a": {}}), json!(["a"])] {
        let (status, answer) = domain.send(POD, create("c", json!({"defaultOptions": options}))).await;
        assert!(status.is_client_error(), "{status} {answer}");
    }
    assert_eq!(domain.send(POD, create("-c", new_database())).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn an_option_that_seems_to_be_a_secret_is_refused() {
    let domain = Domain::new(fake::source());
    for option in ["dba-password", "keystorePassword", "api_token", "client-secret"] {
        let mut with = new_database();
        with["defaultOptions"] = json!({"mem": "1G", option: "s3cret"});
        for (method, path, body) in
            [("PUT", "databases/b?mayExist=False", with), ("POST", "databases/demo/options", json!({option: "s3cret"}))]
        {
            let (status, answer) = send(&domain, method, path, body).await;
            let said = answer["messages"][0].as_str().unwrap();
            assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
            assert!(said.contains(option) && !said.contains("s3cret"), "{said}");
        }
    }
    assert_eq!(send(&domain, "GET", "databases/b", json!({})).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn options_are_merged_or_replaced() {
    let domain = Domain::new(fake::source());
    let options = |answer: &Value| answer["databaseOptions"].clone();
    for (query, given, then) in [
        ("replaceAll=False", json!({"a": "1"}), json!({"a": "1"})),
        ("replaceAll=False", json!({"b": 2}), json!({"a": "1", "b": "2"})),
        ("replaceAll=True", json!({"b": "3"}), json!({"b": "3"})),
    ] {
        let done = send(&domain, "POST", &format!("databases/demo/options?{query}"), given).await;
        assert_eq!(done, (StatusCode::OK, Value::Null));
        assert_eq!(options(&send(&domain, "GET", "databases/demo", json!({})).await.1), then);
    }
    assert_eq!(domain.last("database/demo"), "loopback: its options are b");
    let unknown = send(&domain, "POST", "databases/x/options", json!({})).await;
    assert_eq!(unknown, refusal(StatusCode::NOT_FOUND, "there is no database x"));
}

#[tokio::test]
async fn a_database_is_deleted_once_nothing_of_it_is_left_and_the_way_there_is_said() {
    let domain = Domain::new(fake::source());
    send(&domain, "PUT", "databases/b", new_database()).await;
    let (status, answer) = send(&domain, "DELETE", "databases/demo?purge=False", json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    assert!(answer["messages"][0].as_str().unwrap().contains("kubectl scale"), "{answer}");
    domain.source.domain.lock().unwrap().processes.clear();
    let (status, answer) = send(&domain, "DELETE", "databases/demo?purge=False", json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    assert!(answer["messages"][0].as_str().unwrap().contains("kubectl delete pvc"), "{answer}");

    assert_eq!(domain.send(ELSEWHERE, request("DELETE", "databases/b", &json!({}))).await.0, StatusCode::FORBIDDEN);
    assert_eq!(send(&domain, "DELETE", "databases/b?purge=False", json!({})).await, (StatusCode::OK, Value::Null));
    assert_eq!(send(&domain, "GET", "databases/b", json!({})).await.1["state"], "TOMBSTONE");
    assert_eq!(send(&domain, "DELETE", "databases/b?purge=True", json!({})).await, (StatusCode::OK, Value::Null));
    let gone = refusal(StatusCode::NOT_FOUND, "there is no database b");
    assert_eq!(send(&domain, "DELETE", "databases/b?purge=True", json!({})).await, gone);
}

#[tokio::test]
async fn an_archive_is_created_without_a_claim_and_a_removed_one_counts_again() {
    let domain = Domain::new(fake::source());
    let wanted = json!({"dbName": "demo", "host": null, "remoteStart": true, "path": "/archive", "restored": false});
    let with = |name: &str, value: Value| {
        let mut body = wanted.clone();
        body[name] = value;
        body
    };
    assert_eq!(domain.send(ELSEWHERE, request("POST", "archives", &wanted)).await.0, StatusCode::FORBIDDEN);
    let (status, row) = send(&domain, "POST", "archives", with("host", json!("admin-1"))).await;
    assert_eq!(status, StatusCode::OK, "{row}");
    assert_eq!((&row["claim"], &row["state"], &row["path"]), (&Value::Null, &json!("PROVISIONED"), &json!("/archive")));
    let id = row["id"].as_u64().unwrap();
    let (_, found) = send(&domain, "GET", &format!("archives/{id}"), json!({})).await;
    assert_eq!(found, row);
    for (body, expected) in [
        (with("dbName", json!("x")), StatusCode::NOT_FOUND),
        (with("host", json!("admin-7")), StatusCode::NOT_FOUND),
        (with("journalPath", json!("/journal")), StatusCode::NOT_IMPLEMENTED),
        (with("storageGroupObservers", json!(["*"])), StatusCode::NOT_IMPLEMENTED),
        (json!({}), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(send(&domain, "POST", "archives", body.clone()).await.0, expected, "{body}");
    }

    let resurrect = |database: &str| with("dbName", json!(database));
    let (status, row) = send(&domain, "PUT", "archives/2", resurrect("demo")).await;
    assert_eq!((status, &row["removedAt"]), (StatusCode::OK, &Value::Null), "{row}");
    assert_eq!(domain.last("archive/2"), "loopback: archive 2 resurrected");
    let another = refusal(StatusCode::CONFLICT, "archive 2 is of database demo");
    assert_eq!(send(&domain, "PUT", "archives/2", resurrect("x")).await, another);
    let unknown = refusal(StatusCode::NOT_FOUND, "there is no archive 99");
    assert_eq!(send(&domain, "PUT", "archives/99", resurrect("demo")).await, unknown);

    // It is the operator's to take back, though it has no claim that could be gone.
    let deleted = send(&domain, "DELETE", &format!("archives/{id}?purge=False"), json!({})).await;
    assert_eq!(deleted.0, StatusCode::OK, "{deleted:?}");
    let purged = send(&domain, "DELETE", &format!("archives/{id}?purge=True"), json!({})).await;
    assert_eq!(purged, (StatusCode::OK, Value::Null));
    assert!(!domain.source.domain.lock().unwrap().archives.contains_key(&ArchiveId(id)));
}

#[tokio::test]
async fn all_processes_of_a_database_are_asked_to_end_and_those_of_a_server() {
    let domain = Domain::new(fake::source());
    let asked = || {
        let domain = domain.source.domain.lock().unwrap();
        let asked = domain.processes.values().filter(|process| process.stop == Some(Stop::Gracefully));
        asked.map(|process| process.id).collect::<Vec<_>>()
    };
    let all: Vec<StartId> = domain.source.domain.lock().unwrap().processes.keys().copied().collect();
    let shutdown = |path: &str| request("POST", path, &json!({}));
    assert_eq!(domain.send(ELSEWHERE, shutdown("databases/demo/shutdown")).await.0, StatusCode::FORBIDDEN);
    let unknown = refusal(StatusCode::NOT_FOUND, "there is no database x");
    assert_eq!(send(&domain, "POST", "databases/x/shutdown", json!({})).await, unknown);
    assert!(asked().is_empty());
    let of_server = send(&domain, "POST", "peers/admin-0/shutdown?evictLocal=False", json!({})).await;
    assert_eq!(of_server, (StatusCode::OK, Value::Null));
    assert_eq!(asked(), [StartId(1)], "the others have their sessions elsewhere");
    assert_eq!(send(&domain, "POST", "peers/admin-77/shutdown", json!({})).await.0, StatusCode::NOT_FOUND);
    let of_database = send(&domain, "POST", "databases/demo/shutdown", json!({})).await;
    assert_eq!((of_database, asked()), ((StatusCode::OK, Value::Null), all));
    let evicted = send(&domain, "POST", "peers/admin-1/shutdown?evictLocal=True", json!({})).await;
    assert_eq!(evicted, (StatusCode::OK, Value::Null));
    assert!(!domain.source.domain.lock().unwrap().processes.contains_key(&StartId(4)));
}

/// The rows of `docs/nuocmd.md`: method, path, status.
fn documented() -> Vec<(String, String, u16)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/nuocmd.md")).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (method, path) = cells.next()?.strip_suffix('`')?.split_once(' ')?;
        let status = cells.nth(1)?.parse().ok()?;
        Some((method.to_owned(), path.to_owned(), status))
    };
    text.lines().filter_map(row).collect()
}

#[tokio::test]
async fn what_is_documented_of_each_request_is_so() {
    let rows = documented();
    assert!(rows.len() > 70, "{}", rows.len());
    let domain = Domain::new(fake::source());
    for (method, path, status) in rows {
        let names = [("{name}", "demo"), ("{group}", "g"), ("{key}", "k"), ("{policy}", "p")];
        let asked = names.iter().fold(path.replace("{id}", "1"), |path, (name, by)| path.replace(name, by));
        let mut request = request(&method, &asked, &json!({}));
        request.extensions_mut().insert(From(POD.parse().unwrap()));
        request.headers_mut().insert("host", "localhost:8888".parse().unwrap());
        let answer = answer_by(domain.face.clone(), request).await;
        let given = answer.status();
        // The answer that no engine was found is empty.
        let answer: Value = serde_json::from_str(&text(answer).await).unwrap_or_default();
        let says = answer["messages"][0].as_str().unwrap_or_default();
        match status {
            409 | 501 => assert_eq!(given.as_u16(), status, "{method} {path}: {answer}"),
            _ => assert!(given != StatusCode::NOT_IMPLEMENTED, "{method} {path}: {answer}"),
        }
        assert!(!says.contains("the API of this agent has no"), "{method} {path}: {says}");
    }
}

#[tokio::test]
async fn a_sort_by_anything_has_one_order() {
    let values = ["9", "10", "1a", "", "x"].map(|text| json!({ "v": text }));
    let others = [json!({}), json!({"v": null}), json!({"v": 3}), json!({"v": []}), json!({"v": {"a": "1a"}})];
    let more = [json!({"v": {}}), json!({"v": {"a": "9"}}), json!({"v": {"b": 1}}), json!({"v": true})];
    let rows: Vec<Value> = values.into_iter().chain(others).chain(more).cycle().take(200).collect();
    let asked = vec![("orderBy".to_owned(), "v".to_owned())];
    let sorted = page::Selection::parse(&asked).unwrap().page(rows);
    let mut texts: Vec<String> = sorted.data.iter().map(|row| row["v"].to_string()).collect();
    texts.dedup();
    let expected = [
        "null",
        "[]",
        "3",
        "\"9\"",
        "\"10\"",
        "\"\"",
        "\"1a\"",
        "true",
        "\"x\"",
        "{}",
        "{\"a\":\"9\"}",
        "{\"a\":\"1a\"}",
        "{\"b\":1}",
    ];
    assert_eq!(texts, expected);
}
