//! What changes the domain, and who may: each request as the published client sends it.

use super::*;
use crate::auth::pod_token::PodToken;
use axum::http::{HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kaa_core::domain::audit::Subject;
use kaa_core::domain::ids::MembershipEpoch;
use kaa_core::domain::voters::Voters;
use serde_json::json;
use std::net::SocketAddr;

pub(super) const POD: &str = "127.0.0.1:4711";
pub(super) const ELSEWHERE: &str = "10.0.0.9:4711";

/// A face whose source is kept, so that what was written can be read.
pub(super) struct Domain {
    pub(super) face: Face,
    pub(super) source: Arc<Fake>,
}

impl Domain {
    pub(super) fn new(fake: Fake) -> Self {
        let source = Arc::new(fake);
        Self { face: Face::new(source.clone(), Arc::new(Metrics::new())), source }
    }

    pub(super) async fn send(&self, from: &str, mut request: Request) -> (StatusCode, Value) {
        let from: SocketAddr = from.parse().unwrap();
        request.extensions_mut().insert(From(from));
        request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("localhost:8888"));
        let answer = answer_by(self.face.clone(), request).await;
        (answer.status(), serde_json::from_str(&text(answer).await).unwrap())
    }

    async fn put(&self, key: &str, body: &Value) -> (StatusCode, Value) {
        self.send(POD, put(key, body)).await
    }

    async fn delete(&self, process: &str, query: &str) -> (StatusCode, Value) {
        let path = format!("/api/1/processes/{process}?{query}");
        self.send(POD, Request::delete(path).body(Body::empty()).unwrap()).await
    }

    /// What the audit trail says of a subject at last.
    pub(super) fn last(&self, subject: &str) -> String {
        let subject: Subject = subject.parse().unwrap();
        let domain = self.source.domain.lock().unwrap();
        let record = domain.audit.of(&subject).last().unwrap();
        format!("{}: {}", record.actor, record.text())
    }

    fn value(&self, key: &str) -> Option<String> {
        self.source.domain.lock().unwrap().values.get(key).cloned()
    }
}

fn put(key: &str, body: &Value) -> Request {
    let request = Request::put(format!("/api/1/kvstore/{key}")).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

/// As `nuocmd set value` writes it.
pub(super) fn body(new: &str, expected: Option<&str>, absent: bool) -> Value {
    json!({"key": "a/b", "newValue": new, "expectedValue": expected, "expectedAbsent": absent})
}

#[tokio::test]
async fn only_who_may_write_pauses_adopts_or_drains() {
    let domain = Domain::new(fake::source());
    let ask = |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        request.body(Body::from(json!({"why": "because"}).to_string())).unwrap()
    };
    let index = domain.source.domain.lock().unwrap().index;
    let asked = [("PUT", "pause"), ("DELETE", "pause"), ("POST", "adopt"), ("POST", "drain")];
    for (method, path) in asked {
        let path = format!("/api/1/kaa/{path}");
        assert_eq!(domain.send(ELSEWHERE, ask(method, &path)).await.0, StatusCode::FORBIDDEN, "{method} {path}");
    }
    assert_eq!(domain.source.domain.lock().unwrap().index, index);
    let blank = Request::put("/api/1/kaa/pause").header("content-type", "application/json");
    let (status, answer) = domain.send(POD, blank.body(Body::from(r#"{"why": " "}"#)).unwrap()).await;
    assert_eq!(
        (status, &answer["messages"][0]),
        (StatusCode::BAD_REQUEST, &json!("parameter 'why' needs a reason: it is recorded in the audit trail"))
    );
    for (method, path) in asked {
        assert_eq!(
            domain.send(POD, ask(method, &format!("/api/1/kaa/{path}"))).await.0,
            StatusCode::OK,
            "{method} {path}"
        );
    }
    assert!(domain.last("domain").starts_with("loopback: anchored to the cluster whose anchor lease has uid anchor-2"));
}

#[tokio::test]
async fn only_who_may_write_removes_a_server_and_none_that_speaks_with_an_engine() {
    let domain = Domain::new(fake::source());
    let ask = |server: &str| Request::delete(format!("/api/1/peers/{server}")).body(Body::empty()).unwrap();
    let speaks = domain.source.domain.lock().unwrap().processes.values().next().unwrap().session.server.to_string();
    assert_eq!(domain.send(ELSEWHERE, ask(&speaks)).await.0, StatusCode::FORBIDDEN);
    let (status, answer) = domain.send(POD, ask(&speaks)).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    assert_eq!(domain.send(POD, ask("admin-77")).await.0, StatusCode::NOT_FOUND);
    let voters = |servers: &[&str]| {
        let servers = servers.iter().map(|server| (*server).into()).collect();
        domain.source.domain.lock().unwrap().voters = Some(Voters { epoch: MembershipEpoch(1), since: 1, servers });
    };
    domain.source.domain.lock().unwrap().processes.clear();
    voters(&[&speaks]);
    assert_eq!(domain.send(POD, ask(&speaks)).await.0, StatusCode::CONFLICT);
    voters(&[]);
    assert_eq!(domain.send(POD, ask("a%2Fb")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(domain.send(POD, ask(&speaks)).await, (StatusCode::OK, Value::Null));
    let removed = format!("loopback: server {speaks} removed: its claim raftlog-{speaks} was deleted");
    assert_eq!(domain.last(&format!("server/{speaks}")), removed);
}

#[tokio::test]
async fn a_server_without_a_quorum_adopts_nothing_and_creates_no_anchor() {
    let domain = Domain::new(Fake { quorum: false, ..fake::source() });
    let request = Request::post("/api/1/kaa/adopt").header("content-type", "application/json");
    let (status, answer) = domain.send(POD, request.body(Body::from(r#"{"why": "restored"}"#)).unwrap()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
}

#[tokio::test]
async fn a_value_is_set_if_it_is_what_was_expected() {
    let domain = Domain::new(fake::source());
    let (status, answer) = domain.put("a%2Fb", &body("one", None, true)).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({"key": "a/b", "value": "one"})));
    assert_eq!(domain.last("value/a/b"), "loopback: set");

    for (expected, absent) in [(None, true), (Some("two"), false)] {
        let (status, answer) = domain.put("a%2Fb", &body("three", expected, absent)).await;
        let why = "key 'a/b' has another value than expected: 'one'";
        assert_eq!((status, answer), (StatusCode::CONFLICT, json!({"code": 409, "messages": [why]})));
    }
    assert_eq!(domain.put("a%2Fb", &body("two", Some("one"), false)).await.0, StatusCode::OK);
    assert_eq!(domain.put("a%2Fb", &body("two", Some("two"), false)).await.0, StatusCode::OK, "as it is already");
    assert_eq!(domain.put("a%2Fb", &body("three", None, false)).await.0, StatusCode::OK);
    assert_eq!(domain.value("a/b").as_deref(), Some("three"));

    assert_eq!(domain.put("a%2Fb", &json!({"newValue": null})).await.0, StatusCode::OK);
    assert_eq!(domain.value("a/b"), None);
    let (_, answer) = domain.put("a%2Fb", &body("four", Some("three"), false)).await;
    assert_eq!(answer["messages"][0], "key 'a/b' has another value than expected: it is absent");
}

#[tokio::test]
async fn a_value_that_is_not_understood_changes_nothing() {
    let domain = Domain::new(fake::source());
    domain.put("a%2Fb", &body("one", None, false)).await;
    for (key, body, name) in [
        ("a%2Fb", json!({"key": "a/b", "value": "two"}), "newValue"),
        ("a%2Fb", json!({"newValue": 2}), "newValue"),
        ("a%2Fb", json!({"key": "a/c", "newValue": "two"}), "'key'"),
        ("a%2Fb", body("two", Some("one"), true), "'expectedValue'"),
        ("a%2Fb", body(&"x".repeat(70_000), None, false), "'newValue'"),
        (&"k".repeat(1025), json!({"newValue": "two"}), "'key'"),
        ("%FF", json!({"newValue": "two"}), "'key'"),
    ] {
        let (status, answer) = domain.put(key, &body).await;
        let message = answer["messages"][0].as_str().unwrap();
        assert!(status == StatusCode::BAD_REQUEST && message.contains(name), "{name}: {status} {message}");
    }
    assert_eq!(domain.value("a/b").as_deref(), Some("one"));
}

#[tokio::test]
async fn what_is_not_certain_to_be_written_is_no_success() {
    let domain = Domain::new(Fake { quorum: false, ..fake::source() });
    let (status, answer) = domain.put("a%2Fb", &body("one", None, false)).await;
    let why = "it is unknown whether the change was made: admin-1 and admin-2 are silent";
    assert_eq!((status, answer), (StatusCode::GATEWAY_TIMEOUT, json!({"code": 504, "messages": [why]})));
}

/// As `nuocmd shutdown process` writes it.
fn query(evict: bool, kill: bool, core: bool) -> String {
    let python = |flag: bool| if flag { "True" } else { "False" };
    format!("evict={}&kill={}&killWithCore={}&timeout=0", python(evict), python(kill), python(core))
}

#[tokio::test]
async fn a_process_is_asked_to_end() {
    let domain = Domain::new(fake::source());
    for (kill, what) in [(false, "asked to stop"), (true, "asked to be killed")] {
        let (status, answer) = domain.delete("1", &query(false, kill, false)).await;
        assert_eq!((status, &answer["durableState"]), (StatusCode::OK, &json!("REQUESTED_SHUTDOWN")), "{answer}");
        assert_eq!(domain.last("process/1"), format!("loopback: {what}"));
    }
    let (status, answer) = domain.delete("1", &query(true, false, false)).await;
    assert_eq!((status, answer), (StatusCode::OK, Value::Null), "evicted, it is gone at once");
    assert_eq!(domain.last("process/1"), "loopback: process 1 exited: Evicted on request");
    let (status, answer) = domain.delete("1", "").await;
    assert_eq!(
        (status, &answer["reason"]),
        (StatusCode::NOT_FOUND, &json!("(2026-11-21T16:31:00.000Z) Evicted on request"))
    );
}

#[tokio::test]
async fn a_process_that_cannot_be_asked_to_end_like_this_is_not() {
    let domain = Domain::new(fake::source());
    let core = query(false, false, true);
    let long = "timeout=3600";
    for (process, query, status, words) in [
        ("77", "", StatusCode::NOT_FOUND, "there is no process 77"),
        ("2", "", StatusCode::NOT_FOUND, "process 2 has exited"),
        ("x", "", StatusCode::BAD_REQUEST, "'start id'"),
        ("1", core.as_str(), StatusCode::NOT_IMPLEMENTED, "core dumps of engines are not supported"),
        ("1", "evict=True&kill=True", StatusCode::BAD_REQUEST, "'evict'"),
        ("1", "evict=yes", StatusCode::BAD_REQUEST, "'evict'"),
        ("1", "timeout=soon", StatusCode::BAD_REQUEST, "'timeout'"),
        ("1", long, StatusCode::BAD_REQUEST, "at most 120 seconds"),
    ] {
        let (answered, answer) = domain.delete(process, query).await;
        let message = answer["messages"][0].as_str().unwrap();
        assert!(answered == status && message.contains(words), "{process} {query}: {answered} {message}");
    }
    assert_eq!(domain.source.domain.lock().unwrap().processes[&kaa_core::domain::ids::StartId(1)].stop, None);
    let put = Request::put("/api/1/processes/1").body(Body::empty()).unwrap();
    assert_eq!(domain.send(POD, put).await.0, StatusCode::NOT_IMPLEMENTED);
}

#[tokio::test]
async fn a_request_waits_for_the_end_of_the_process_as_long_as_it_says() {
    use kaa_core::domain::change::{self, Command};
    use kaa_core::domain::command::{Actor, Role};
    use kaa_core::domain::ids::{SessionNumber, StartId};
    use kaa_core::domain::process::ExitReason;
    let domain = Domain::new(fake::source());
    let (_, answer) = domain.delete("1", "timeout=1").await;
    assert_eq!(answer["startId"], "1", "it has not ended");
    let ends = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (process, session, reason) = (StartId(1), SessionNumber(1), ExitReason::Graceful);
        let actor = Actor { role: Role::Agent, name: "admin-0".to_owned() };
        domain
            .source
            .write(actor, Command::ReportExit(change::ReportExit { process, session, exit_code: Some(0), reason }))
            .await
            .unwrap();
    };
    let ((status, answer), ()) = tokio::join!(domain.delete("1", "timeout=120"), ends);
    assert_eq!((status, answer), (StatusCode::OK, Value::Null));
}

#[tokio::test]
async fn without_credentials_only_the_agents_own_pod_may_write() {
    let domain = Domain::new(fake::source());
    let request = || put("a%2Fb", &body("one", None, false));
    for from in [POD, "127.9.8.7:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(domain.send(from, request()).await.0, StatusCode::OK, "{from}");
    }
    for from in [ELSEWHERE, "[::ffff:10.0.0.9]:1", "[fd00::1]:1", "0.0.0.0:1"] {
        let (status, answer) = domain.send(from, request()).await;
        let message = answer["messages"][0].as_str().unwrap();
        assert!(status == StatusCode::FORBIDDEN && message.contains("--credentials-file"), "{from}: {message}");
    }
    // Over loopback, but on behalf of another caller.
    for name in [
        "origin",
        "via",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "x-real-ip",
        "x-request-id",
        "x-envoy-attempt-count",
        "x-envoy-external-address",
        "l5d-client-id",
        "l5d-dst-canonical",
    ] {
        let mut request = request();
        request.headers_mut().insert(name, "http://example.com".parse().unwrap());
        assert_eq!(domain.send(POD, request).await.0, StatusCode::FORBIDDEN, "{name}");
    }
    let unknown = answer_by(domain.face.clone(), request()).await;
    assert_eq!(unknown.status(), StatusCode::FORBIDDEN, "it is not known from where");
    let delete = Request::delete("/api/1/processes/1?evict=True").body(Body::empty()).unwrap();
    assert_eq!(domain.send(ELSEWHERE, delete).await.0, StatusCode::FORBIDDEN);
    assert_eq!(
        domain.send(ELSEWHERE, Request::get("/api/1/peers").body(Body::empty()).unwrap()).await.0,
        StatusCode::OK
    );
}

/// A page of a web site whose name resolves to 127.0.0.1 reads and writes with the site's name as `Host`, and without `Origin` where it
/// only reads.
#[tokio::test]
async fn over_loopback_a_request_is_for_loopback() {
    let domain = Domain::new(fake::source());
    let ask = async |uri: &str, hosts: &[&str]| {
        let mut request = Request::get(uri).body(Body::empty()).unwrap();
        for host in hosts {
            request.headers_mut().append(header::HOST, host.parse().unwrap());
        }
        request.extensions_mut().insert(From(POD.parse().unwrap()));
        answer_by(domain.face.clone(), request).await.status()
    };
    let path = "/api/1/kaa/snapshot";
    for host in ["localhost", "LocalHost:8888", "127.0.0.1:8888", "127.9.8.7", "[::1]:8888", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(ask(path, &[host]).await, StatusCode::OK, "{host}");
    }
    for host in
        ["evil.example:8888", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.9", "[::2]:1", "a b", ""]
    {
        assert_eq!(ask(path, &[host]).await, StatusCode::FORBIDDEN, "{host}");
    }
    assert_eq!(ask(path, &[]).await, StatusCode::FORBIDDEN);
    assert_eq!(ask(path, &["localhost", "evil.example"]).await, StatusCode::FORBIDDEN);
    assert_eq!(ask(&format!("http://evil.example{path}"), &["localhost"]).await, StatusCode::FORBIDDEN);
    assert_eq!(ask(&format!("http://localhost:8888{path}"), &["localhost:8888"]).await, StatusCode::OK);
}

/// As in a pod with a proxy that adds nothing to what it passes on: everybody's address is a loopback one.
#[tokio::test]
async fn where_a_loopback_address_proves_nothing_the_token_of_the_pod_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut domain = Domain::new(fake::source());
    let token = PodToken::make(&path).unwrap();
    domain.face.own_pod = OwnPod { by_address: false, token: Some(Arc::new(token)) };
    let shown = |given: &str| Some(format!("Basic {}", BASE64.encode(given)));
    let good = std::fs::read_to_string(&path).unwrap();
    let ask = async |from: &str, authorization: Option<String>| {
        let mut request = put("a%2Fb", &body("one", None, false));
        if let Some(authorization) = authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.parse().unwrap());
        }
        domain.send(from, request).await
    };
    let (status, answer) = ask(POD, None).await;
    let message = answer["messages"][0].as_str().unwrap();
    assert!(status == StatusCode::FORBIDDEN && message.contains("kaa pod-token"), "{status} {message}");
    assert_eq!(ask(POD, shown(&good)).await.0, StatusCode::OK);
    assert_eq!(domain.last("value/a/b"), "loopback: set");
    assert_eq!(ask(POD, shown("pod:guess")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(ELSEWHERE, shown(&good)).await.0, StatusCode::UNAUTHORIZED, "it is of use in the pod only");
    for _ in 0..20 {
        ask(POD, shown("pod:guess")).await;
    }
    assert_eq!(ask(POD, shown("pod:guess")).await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        ask(POD, shown(&good)).await.0,
        StatusCode::OK,
        "callers that guess passwords share the address, and lock no other caller out"
    );
    let read = Request::get("/api/1/kaa/snapshot").body(Body::empty()).unwrap();
    assert_eq!(domain.send(POD, read).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn an_operator_with_credentials_writes_under_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("credentials");
    std::fs::write(&path, "ann:p:w\nloopback:x\n").unwrap();
    let mut domain = Domain::new(fake::source());
    domain.face.credentials = Some(Arc::new(Credentials::new(path.clone()).await.unwrap()));
    let ask = async |domain: &Domain, from: &str, shown: Option<&str>| {
        let mut request = put("a%2Fb", &body(from, None, false));
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
        if let Some(shown) = shown {
            request.headers_mut().insert(header::AUTHORIZATION, shown.parse().unwrap());
        }
        request.extensions_mut().insert(From(from.parse().unwrap()));
        answer_by(domain.face.clone(), request).await
    };
    // ann:p:w, loopback:x, ann:nonsense
    let (ann, loopback, wrong) = ("Basic YW5uOnA6dw==", "basic bG9vcGJhY2s6eA==", "Basic YW5uOm5vbnNlbnNl");
    for (from, shown, name) in [
        (ELSEWHERE, Some(ann), "user ann"),
        ("10.0.0.8:1", Some(loopback), "user loopback"),
        (POD, Some(ann), "user ann"),
        ("127.0.0.2:1", None, "loopback"),
    ] {
        assert_eq!(ask(&domain, from, shown).await.status(), StatusCode::OK, "{from} {shown:?}");
        assert_eq!(domain.last("value/a/b"), format!("{name}: set"));
    }
    for (from, shown) in [
        (ELSEWHERE, None),
        (ELSEWHERE, Some(wrong)),
        (ELSEWHERE, Some("Basic !")),
        (ELSEWHERE, Some("Bearer YW5uOnA6dw==")),
        (POD, Some(wrong)),
    ] {
        let answer = ask(&domain, from, shown).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{from} {shown:?}");
        assert_eq!(answer.headers()[header::WWW_AUTHENTICATE], "Basic realm=\"kaa\"");
    }
    // A wrong guess costs one of a few attempts; it locks no other address out.
    let mut answer = ask(&domain, "10.0.0.7:1", Some(wrong)).await;
    for _ in 0..20 {
        answer = ask(&domain, "10.0.0.7:1", Some(wrong)).await;
    }
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(answer.headers().contains_key(header::RETRY_AFTER));
    let right = ask(&domain, "10.0.0.7:1", Some(ann)).await;
    assert_eq!(right.status(), StatusCode::TOO_MANY_REQUESTS, "else a right guess would tell");
    assert_eq!(ask(&domain, "10.0.0.8:1", Some(ann)).await.status(), StatusCode::OK);
    let text = domain.face.metrics.text();
    let counted = |line: &str| assert!(text.contains(line), "{line}\n{text}");
    counted("kaa_callers_refused_total{port=\"http\",reason=\"no_credentials\"} 1");
    counted("kaa_callers_refused_total{port=\"http\",reason=\"throttled\"}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ask(&domain, ELSEWHERE, Some(ann)).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn it_is_the_socket_that_says_where_a_request_comes_from() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/api/1/kvstore/a%2Fb", listener.local_addr().unwrap());
    let domain = Domain::new(fake::source());
    let server = tokio::spawn(serve(listener, router(domain.face.clone()), None, std::future::pending()));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.put(url).json(&body("one", None, true)).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(domain.last("value/a/b"), "loopback: set");
    server.abort();
}

#[tokio::test]
async fn a_loss_is_accepted_by_whom_and_for_which_domain_it_is_meant() {
    let domain = Domain::new(fake::source());
    let ask = |method: &str, body: Value| {
        let request =
            Request::builder().method(method).uri("/api/1/kaa/recover").header("content-type", "application/json");
        request.body(Body::from(body.to_string())).unwrap()
    };
    let word = || json!({"acceptDataLoss": true, "domain": "nuodb"});
    for method in ["GET", "POST"] {
        assert_eq!(domain.send(ELSEWHERE, ask(method, word())).await.0, StatusCode::FORBIDDEN, "{method}");
    }
    for wrong in
        [json!({"acceptDataLoss": true, "domain": "other"}), json!({"acceptDataLoss": false, "domain": "nuodb"})]
    {
        let (status, answer) = domain.send(POD, ask("POST", wrong.clone())).await;
        assert_eq!((status, &answer["begun"]), (StatusCode::BAD_REQUEST, &Value::Null), "{wrong}");
    }
    let (status, answer) = domain.send(POD, ask("GET", Value::Null)).await;
    assert_eq!((status, &answer["begun"], &answer["founder"]), (StatusCode::OK, &Value::Null, &json!("admin-0")));
    let (status, answer) = domain.send(POD, ask("POST", word())).await;
    assert_eq!(
        (status, &answer["begun"], &answer["waits"]),
        (StatusCode::OK, &json!(4), &json!("accepted by loopback"))
    );
    // From a retired log, and that has to be named as one.
    for (place, expected) in [("admin-1/retired-2-77", StatusCode::OK), ("retired-2-77", StatusCode::BAD_REQUEST)] {
        let word = json!({"acceptDataLoss": true, "domain": "nuodb", "fromRetiredLog": place});
        let (status, answer) = domain.send(POD, ask("POST", word)).await;
        assert_eq!((status, answer["fromRetiredLog"].as_str()), (expected, Some(place).filter(|_| expected == 200)));
    }
    let mut fake = fake::source();
    fake.recover.as_mut().unwrap().refusal = Some("a majority answers".to_owned());
    let (status, answer) = Domain::new(fake).send(POD, ask("POST", word())).await;
    assert_eq!((status, &answer["messages"][0]), (StatusCode::CONFLICT, &json!("a majority answers")));
}
