//! Every route, asked in process; the answers are in `tests/data/api`.

use super::fake::{self, Fake};
use super::*;
use axum::body::{Body, to_bytes};
use axum::http::{Response, StatusCode};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;

mod balancer;
mod by_hand;
mod crowd;
mod https;
mod replication;
mod seen_wrong;
mod snapshot;
mod upgrade;
mod writes;

async fn answer(fake: Fake, request: Request) -> Response<Body> {
    let face = Face::new(Arc::new(fake), Arc::new(Metrics::new()));
    answer_by(face, request).await
}

async fn answer_by(face: Face, request: Request) -> Response<Body> {
    TowerToHyperService::new(router(face)).call(request).await.unwrap()
}

async fn text(answer: Response<Body>) -> String {
    String::from_utf8(to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

async fn ask(fake: Fake, path: &str) -> (StatusCode, String) {
    let answer = answer(fake, Request::get(path).body(Body::empty()).unwrap()).await;
    (answer.status(), text(answer).await)
}

async fn json(path: &str) -> Value {
    let (status, body) = ask(fake::source(), path).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The messages of an error, after a look at its shape.
async fn refused(fake: Fake, path: &str, expected: StatusCode) -> Vec<String> {
    let (status, body) = ask(fake, path).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["code"]), (expected, &Value::from(expected.as_u16())), "{body}");
    body["messages"].as_array().unwrap().iter().map(|message| message.as_str().unwrap().to_owned()).collect()
}

async fn golden(name: &str, path: &str) {
    let answer = serde_json::to_string_pretty(&json(path).await).unwrap();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../tests/data/api");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, answer));
}

#[tokio::test]
async fn every_collection_has_the_shape_that_clients_read() {
    for (name, path) in [
        ("peers", "/api/1/peers?offset=0&limit=20&orderBy=id"),
        ("processes", "/api/1/processes?offset=0&limit=20&orderBy=startId"),
        ("exited", "/api/1/processes/exited?orderBy=databaseIncarnation"),
        ("archives", "/api/1/archives?removed=False&orderBy=id"),
        ("archives-removed", "/api/1/archives?removed=True"),
        ("databases", "/api/1/databases"),
        ("storage-groups", "/api/1/databases/demo/storageGroups?orderBy=sgName"),
        ("capture-database", "/api/1/databases/demo/capture?checkState=True"),
        ("kube", "/api/1/diagnostics/kube"),
        ("config", "/api/1/diagnostics/config"),
        ("config-of-another", "/api/1/diagnostics/config/admin-1"),
        ("license", "/api/1/policies/license"),
        ("capture", "/api/1/diagnostics/captureDomainState"),
        ("plan", "/api/1/kaa/plan"),
        ("what-if", "/api/1/kaa/plan?scale=statefulset/sm-demo=1&delete=pvc/archive-volume-sm-demo-1"),
        ("explain", "/api/1/kaa/explain/archive/2"),
    ] {
        golden(name, path).await;
    }
}

#[tokio::test]
async fn one_thing_is_the_row_of_its_collection() {
    for (all, one, id) in [
        ("/api/1/peers", "/api/1/peers/admin-1", "id"),
        ("/api/1/processes", "/api/1/processes/3", "startId"),
        ("/api/1/archives", "/api/1/archives/1", "id"),
        ("/api/1/databases", "/api/1/databases/demo", "name"),
    ] {
        let (all, one) = (json(all).await, json(one).await);
        let row = all["data"].as_array().unwrap().iter().find(|row| row[id] == one[id]);
        assert_eq!(row, Some(&one));
    }
}

#[tokio::test]
async fn an_exited_process_answers_with_its_tombstone() {
    let (status, body) = ask(fake::source(), "/api/1/processes/2").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["code"]), (StatusCode::NOT_FOUND, &Value::from(404)));
    assert_eq!(body["process"]["startId"], "2");
    assert!(body["messages"].is_array() && body["databaseIncarnation"]["major"].is_number(), "{body}");
}

#[tokio::test]
async fn collections_are_filtered_ordered_and_paged() {
    let ids = |page: &Value| {
        let rows = page["data"].as_array().unwrap().iter();
        rows.map(|row| row["startId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let page = json("/api/1/processes?filterBy=type&filterBy=archiveId&type=SM&archiveId=1").await;
    assert_eq!(ids(&page), ["1"]);
    let page = json("/api/1/processes?orderBy=startId&descendingFields=startId&limit=2").await;
    assert_eq!((ids(&page), &page["hasNext"]), (vec!["5".to_owned(), "4".to_owned()], &Value::Bool(true)));
    let page = json("/api/1/processes?orderBy=startId&offset=2&limit=2").await;
    assert_eq!((ids(&page), &page["hasNext"]), (vec!["4".to_owned(), "5".to_owned()], &Value::Bool(false)));
    let page = json("/api/1/processes/exited?filterBy=process.dbName&process.dbName=de.*").await;
    assert_eq!(page["data"].as_array().unwrap().len(), 1);
    let page = json("/api/1/processes?filterBy=dbName&dbName=dem").await;
    assert_eq!(ids(&page), Vec::<String>::new());
}

#[tokio::test]
async fn a_key_may_hold_slashes_encoded_or_not() {
    for path in ["/api/1/kvstore/nuodb%2Fnuosm%2Freadiness", "/api/1/kvstore/nuodb/nuosm/readiness"] {
        assert_eq!(json(path).await["value"], "yes");
    }
    let absent = json("/api/1/kvstore/%2Fnuodb%2Fnuobackup").await;
    assert_eq!((&absent["key"], &absent["value"]), (&Value::from("/nuodb/nuobackup"), &Value::Null));
    assert_eq!(json("/api/1/kvstore//nuodb/nuobackup").await["key"], "/nuodb/nuobackup");
}

#[tokio::test]
async fn without_a_quorum_only_consistent_reads_fail() {
    let fake = || Fake { quorum: false, ..fake::source() };
    let messages = refused(fake(), "/api/1/kvstore/some-key", StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(messages[1].contains("admin-1 and admin-2 are silent"), "{messages:?}");
    let path = "/api/1/kaa/explain/domain?consistency=linearizable";
    refused(fake(), path, StatusCode::SERVICE_UNAVAILABLE).await;
    assert_eq!(ask(fake(), "/api/1/kaa/explain/domain").await.0, StatusCode::OK);
    assert_eq!(ask(fake(), "/api/1/peers").await.0, StatusCode::OK);
}

#[tokio::test]
async fn what_is_not_understood_is_named() {
    for (path, name) in [
        ("/api/1/peers?limit=many", "limit"),
        ("/api/1/peers?limit=0", "limit"),
        ("/api/1/archives?removed=maybe", "removed"),
        ("/api/1/processes?filterBy=type", "filterBy"),
        ("/api/1/processes?filterBy=type&type=%28", "type"),
        ("/api/1/processes?filterBy=type&type=SM)|(.*", "type"),
        ("/api/1/processes?filterBy=type&type=(SM)\\1", "type"),
        ("/api/1/processes?filterBy=type&type=(?:(?:S{0,1000}){0,1000}){0,1000}", "type"),
        (&format!("/api/1/processes?type=SM&{}", "filterBy=type&".repeat(17)), "filterBy"),
        (&format!("/api/1/processes?orderBy={}", "type,".repeat(17)), "orderBy"),
        ("/api/1/processes?filterQuery=all", "filterQuery"),
        ("/api/1/archives/first", "archive id"),
        ("/api/1/kvstore/%FF", "key"),
        ("/api/1/kaa/explain/nonsense", "subject"),
        ("/api/1/kaa/plan?consistency=eventual", "consistency"),
        ("/api/1/kaa/plan?scale=sm-demo", "scale"),
        ("/api/1/kaa/plan?scale=statefulset/sm-demo=1&delete=sm-demo-1", "delete"),
    ] {
        let messages = refused(fake::source(), path, StatusCode::BAD_REQUEST).await;
        assert!(messages[0].contains(&format!("'{name}'")), "{path}: {messages:?}");
    }
}

#[tokio::test]
async fn a_what_if_that_cannot_be_told_says_why() {
    let path = "/api/1/kaa/plan?scale=statefulset/sm-demo=1";
    let twice = format!("{path}&scale=statefulset/sm-demo=2");
    assert_eq!(refused(fake::source(), &twice, StatusCode::BAD_REQUEST).await, ["statefulset/sm-demo is named twice"]);
    let many: String = (0..17).map(|n| format!("&delete=pod/sm-{n}")).collect();
    let many = refused(fake::source(), &format!("/api/1/kaa/plan?{many}"), StatusCode::BAD_REQUEST).await;
    assert_eq!(many, ["17 changes are more than the 16 that can be asked about at once"]);
    let unknown = refused(fake::source(), "/api/1/kaa/plan?delete=pod/sm-demo-1", StatusCode::NOT_FOUND).await;
    assert!(unknown[0].starts_with("there is no sm-demo-1 among the pods; there are: sm-demo-0, "), "{unknown:?}");
    let mut forbidden = fake::source();
    forbidden.observed.pods.forbid("pods is forbidden".to_owned());
    assert_eq!(
        refused(forbidden, path, StatusCode::SERVICE_UNAVAILABLE).await,
        ["no preview is possible: pods may not be listed: pods is forbidden"]
    );
}

#[tokio::test]
async fn what_does_not_exist_is_said() {
    for path in ["/api/1/archives/77", "/api/1/peers/admin-9", "/api/1/processes/77", "/api/1/kaa/explain/process/77"] {
        let messages = refused(fake::source(), path, StatusCode::NOT_FOUND).await;
        assert!(messages[0].starts_with("there is no") || messages[0].starts_with("nothing is known"), "{messages:?}");
    }
    let messages = refused(fake::source(), "/api/1/policies/licenses", StatusCode::NOT_IMPLEMENTED).await;
    assert_eq!(messages, ["the API of this agent has no GET /api/1/policies/licenses"]);
    for path in ["/api/1/peers/certificates", "/api/1/processes/availableOptions", "/api/1/databases/hotCopyStatus"] {
        refused(fake::source(), path, StatusCode::NOT_IMPLEMENTED).await;
    }
    refused(fake::source(), "/favicon.ico", StatusCode::NOT_FOUND).await;
    let delete = Request::delete("/api/1/databases").body(Body::empty()).unwrap();
    assert_eq!(answer(fake::source(), delete).await.status(), StatusCode::NOT_IMPLEMENTED);
}

#[tokio::test]
async fn answers_say_how_far_the_log_is_applied() {
    let request = Request::get("/api/1/peers").body(Body::empty()).unwrap();
    let answer = answer(fake::source(), request).await;
    assert_eq!(answer.headers()[APPLIED_INDEX], fake::domain().index.to_string());
}

#[tokio::test]
async fn a_line_is_logged_and_a_body_that_is_no_line_is_not() {
    let log = |body: Vec<u8>| {
        let request = Request::post("/api/1/diagnostics/log").header("content-type", "application/json");
        answer(fake::source(), request.body(Body::from(body)).unwrap())
    };
    let logged: Value = serde_json::from_str(&text(log(br#"{"message":"hello"}"#.to_vec()).await).await).unwrap();
    assert!(logged["serverTimeMillis"].is_number() && logged["serverVersion"].is_string(), "{logged}");
    assert_eq!(log(b"{}".to_vec()).await.status(), StatusCode::BAD_REQUEST);
    let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(MAX_BODY_BYTES));
    let answer = log(long.into_bytes()).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert!(text(answer).await.contains("messages"));
}

#[tokio::test]
async fn probes_name_what_fails() {
    let mut sick = fake::source();
    sick.health.ready[1].failure = Some("2 MB are left".to_owned());
    assert_eq!(ask(fake::source(), "/livez").await, (StatusCode::OK, "ok".to_owned()));
    let verbose = "[+]raft ok\n[+]disk ok\nreadyz check passed\n".to_owned();
    assert_eq!(ask(fake::source(), "/readyz?verbose").await, (StatusCode::OK, verbose));
    let mut noted = fake::source();
    noted.health.notes.push(source::Note { name: "certificates", words: "tls.crt expires soon".to_owned() });
    let text = "[+]raft ok\n[+]disk ok\n[!]certificates: tls.crt expires soon\nreadyz check passed\n".to_owned();
    assert_eq!(ask(noted, "/readyz?verbose").await, (StatusCode::OK, text));
    let failed = "[+]raft ok\n[-]disk failed: 2 MB are left\nreadyz check failed\n".to_owned();
    assert_eq!(ask(sick, "/readyz").await, (StatusCode::SERVICE_UNAVAILABLE, failed));
}

#[tokio::test]
async fn metrics_mirror_the_domain() {
    let (_, text) = ask(fake::source(), "/metrics").await;
    for line in [
        "kaa_build_info{version=\"0.1.0\"} 1",
        "kaa_raft_is_leader 1",
        "kaa_raft_term 2",
        "kaa_raft_commit_index 20",
        "kaa_raft_applied_index 20",
        "kaa_membership_epoch 1",
        "kaa_raft_voters 2",
        "kaa_raft_learners 1",
        "kaa_membership_waiting{reason=\"evicted\"} 1",
        "kaa_membership_waiting{reason=\"no_leader\"} 0",
        "kaa_membership_warnings{warning=\"even_voters\"} 1",
        "kaa_membership_warnings{warning=\"zone_majority\"} 0",
        "kaa_resync_is_leader 1",
        "kaa_resync_findings 1",
        "kaa_resync_waiting{reason=\"container_unknown\"} 1",
        "kaa_resync_waiting{reason=\"session_live\"} 0",
        "kaa_resync_passes_total 0",
        "kaa_resync_pass_duration_seconds_bucket{le=\"0.001\"} 0",
        "kaa_proposals_refused_total 0",
        "kaa_sessions 1",
        "kaa_archives{state=\"removed\"} 1",
        "kaa_archives{state=\"running\"} 2",
        "kaa_processes{state=\"unreachable\"} 1",
        "kaa_processes{state=\"running\"} 2",
        "kaa_kubernetes_synced 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}
