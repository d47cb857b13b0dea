//! The server as its clients see it: over a real socket, judged by its own authority.

use super::{Callers, Door, Faults, Server};
use crate::failure::Failure;
use crate::instance::Instance;
use crate::object::uid;
use crate::resource::Kind;
use crate::runtime::{ExecRequest, Execution, LogRequest, Output, Runtime};
use crate::store::{Key, Store};
use crate::tokens::{Bound, Tokens};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tower::{Service, ServiceExt};

/// Logs in three pieces; a command that repeats what it reads, says something on stderr, and exits with 3.
struct Echo;

impl Runtime for Echo {
    fn logs(&self, request: LogRequest) -> Result<mpsc::Receiver<Vec<u8>>, Failure> {
        let (pieces, log) = mpsc::channel(1);
        tokio::spawn(async move {
            for line in ["one\n", "two\n", &format!("{} is up\n", request.pod.name)] {
                pieces.send(line.as_bytes().to_vec()).await.unwrap();
            }
        });
        Ok(log)
    }

    fn exec(&self, request: ExecRequest) -> Result<Execution, Failure> {
        if request.command != ["cat"] {
            return Err(Failure::bad_request(format!("{:?} is not there", request.command)));
        }
        let (stdin, mut read) = mpsc::channel::<Vec<u8>>(1);
        let (write, output) = mpsc::channel(1);
        let (code, exit) = oneshot::channel();
        tokio::spawn(async move {
            while let Some(text) = read.recv().await {
                write.send(Output::Stdout(text)).await.unwrap();
            }
            write.send(Output::Stderr(b"end of file".to_vec())).await.unwrap();
            code.send(3).unwrap();
        });
        Ok(Execution { stdin: Some(stdin), output, exit })
    }
}

/// A server with one pod, and the directory of its kubeconfig.
async fn started() -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let instance = Arc::new(Instance::new(Store::new(1, Timestamp::UNIX_EPOCH), || Timestamp::UNIX_EPOCH));
    let server = Server::start(instance.clone(), Arc::new(Tokens::new().unwrap()), dir.path()).await.unwrap();
    let containers = json!([{"name": "till", "image": "till"}]);
    let pod = json!({"metadata": {"name": "till-0", "namespace": "default"}, "spec": {"containers": containers}});
    instance.with(|store| store.create(Kind::Pod, pod)).unwrap();
    server.set_runtime(Arc::new(Echo));
    (server, dir)
}

async fn connect(server: &Server) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.ca_pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = server.url().trim_start_matches("https://").to_owned();
    let stream = TcpStream::connect(&address).await.unwrap();
    let name = ServerName::try_from(address.split(':').next().unwrap().to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// The admin's token, as the kubeconfig has it.
fn token(server: &Server) -> String {
    let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    line.trim_matches('"').to_owned()
}

/// Sends the first line and more headers, and reads until the server closes.
async fn ask(server: &Server, line: &str, headers: &str) -> String {
    let mut stream = connect(server).await;
    let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn only_who_shows_a_token_learns_more_than_that_the_server_lives() {
    let (server, _dir) = started().await;
    assert!(ask(&server, "GET /livez", "").await.starts_with("HTTP/1.1 200 "));
    assert!(ask(&server, "GET /api", "").await.starts_with("HTTP/1.1 401 "));
    assert!(ask(&server, "GET /api", "authorization: Bearer x\r\n").await.starts_with("HTTP/1.1 401 "));
    let admin = format!("authorization: Bearer {}\r\n", token(&server));
    let pod = "GET /api/v1/namespaces/default/pods/till-0";
    assert!(ask(&server, pod, &admin).await.contains("\"name\":\"till-0\""));
    let on_behalf = format!("{admin}impersonate-user: ann\r\n");
    let asked = ask(&server, "GET /metrics", &on_behalf).await;
    assert!(asked.contains(r#"User \"ann\" cannot get path"#), "{asked}");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let (server, _dir) = started().await;
    let headers = format!("content-length: {}\r\n", super::MAX_BODY_BYTES + 1);
    let answer = ask(&server, "POST /api/v1/namespaces/default/pods", &headers).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("RequestEntityTooLarge"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn two_instances_have_a_network_each() {
    let ((one, _dir), (other, _other_dir)) = (started().await, started().await);
    assert_ne!(one.subnet(), other.subnet());
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_log_comes_in_pieces() {
    let (server, _dir) = started().await;
    let admin = format!("authorization: Bearer {}\r\n", token(&server));
    let answer = ask(&server, "GET /api/v1/namespaces/default/pods/till-0/log", &admin).await;
    for line in ["one", "two", "till-0 is up"] {
        assert!(answer.contains(&format!("\r\n{line}\n")), "a piece of its own: {answer}");
    }
    server.stop().await;
}

/// Begins a command, and answers with what the server said to that.
async fn begin(server: &Server, query: &str) -> (String, WebSocketStream<TlsStream<TcpStream>>) {
    let mut stream = connect(server).await;
    let request = format!(
        "GET /api/v1/namespaces/default/pods/till-0/exec?{query} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: v5.channel.k8s.io\r\nauthorization: Bearer {}\r\n\r\n",
        token(server)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    (String::from_utf8(head).unwrap(), socket)
}

/// The channel and the text of the next message.
async fn heard(socket: &mut WebSocketStream<TlsStream<TcpStream>>) -> (u8, String) {
    let message = socket.next().await.unwrap().unwrap().into_data();
    (message[0], String::from_utf8(message[1..].to_vec()).unwrap())
}

#[tokio::test]
async fn a_command_reads_writes_and_ends_with_a_code() {
    let (server, _dir) = started().await;
    let (head, mut socket) = begin(&server, "command=cat&stdin=true&stdout=true&stderr=true").await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    socket.send(Message::binary(b"\0hello".to_vec())).await.unwrap();
    assert_eq!(heard(&mut socket).await, (1, "hello".to_owned()));
    socket.send(Message::binary(vec![255, 0])).await.unwrap();
    assert_eq!(heard(&mut socket).await, (2, "end of file".to_owned()));
    let (channel, status) = heard(&mut socket).await;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((channel, &status["details"]["causes"][0]["message"]), (3, &json!("3")));
    server.stop().await;
}

#[tokio::test]
async fn a_command_that_cannot_be_run_says_why() {
    let (server, _dir) = started().await;
    let (_, mut socket) = begin(&server, "command=dog&stdout=true").await;
    let (channel, status) = heard(&mut socket).await;
    assert!(channel == 3 && status.contains(r#"[\"dog\"] is not there"#), "{status}");
    let (head, _socket) = begin(&server, "command=cat&stdout=true&tty=true").await;
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn stopping_ends_a_command_that_runs() {
    let (server, _dir) = started().await;
    let (_, mut socket) = begin(&server, "command=cat&stdin=true&stdout=true").await;
    server.stop().await;
    assert!(socket.next().await.is_none_or(|last| last.is_err()), "the connection has ended");
}

#[tokio::test]
async fn who_comes_in_by_the_door_needs_no_socket() {
    let (server, _dir) = started().await;
    let service = server.door().clone().service(super::admin());
    let request = |path: &str| hyper::Request::get(path).body(Full::new(Bytes::new())).unwrap();
    let answer = service.clone().oneshot(request("/api/v1/namespaces/default/pods/till-0")).await.unwrap();
    assert_eq!(answer.status(), 200);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["metadata"]["name"], "till-0");
    let refused = service.oneshot(request("/api/v1/namespaces/default/pods/till-0/portforward")).await.unwrap();
    assert_eq!(refused.status(), 405);
    server.stop().await;
}

#[tokio::test]
async fn a_watch_tells_a_change_when_it_comes_and_ends_with_the_server() {
    let (server, _dir) = started().await;
    let mut service = server.door().clone().service(super::admin());
    let path = "/api/v1/namespaces/default/pods?watch=true";
    let request = hyper::Request::get(path).body(Full::new(Bytes::new())).unwrap();
    let mut lines = service.call(request).await.unwrap().into_body().into_data_stream();
    let line = lines.next().await.unwrap().unwrap();
    assert!(line.starts_with(b"{") && line.ends_with(b"\n"), "{line:?}");
    let removed = hyper::Request::delete("/api/v1/namespaces/default/pods/till-0");
    let (told, removed) = tokio::join!(lines.next(), service.call(removed.body(Full::new(Bytes::new())).unwrap()));
    assert_eq!(removed.unwrap().status(), 200);
    let event: Value = serde_json::from_slice(&told.unwrap().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("till-0")));
    let (ended, ()) = tokio::join!(lines.next(), server.stop());
    assert!(ended.is_none(), "a watch would hold up the end");
}

#[tokio::test]
async fn while_it_is_down_it_does_not_listen_connections_are_cut_and_afterwards_it_is_where_it_was() {
    let (server, _dir) = started().await;
    let address = server.url().trim_start_matches("https://").to_owned();
    let mut held = connect(&server).await;
    let faults = server.door().injector();
    faults.set(Faults { down: true, ..Faults::default() });
    let mut rest = Vec::new();
    // How a cut looks to the one at its end is not said: an error, or nothing more.
    drop(held.read_to_end(&mut rest).await);
    let refused = loop {
        match TcpStream::connect(&address).await {
            // It was accepted by the kernel before the server looked.
            Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let (other, _other_dir) = started().await;
    assert_ne!(other.subnet(), server.subnet(), "the network is still taken");
    faults.set(Faults::default());
    while TcpStream::connect(&address).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(ask(&server, "GET /livez", "").await.starts_with("HTTP/1.1 200 "));
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn faults_meet_those_who_come_without_a_socket_too() {
    let (server, _dir) = started().await;
    let service = server.door().clone().service(super::admin());
    let request = || hyper::Request::get("/api/v1/pods").body(Full::new(Bytes::new())).unwrap();
    server.door().injector().set(Faults { errors_percent: 100, ..Faults::default() });
    assert!(service.clone().oneshot(request()).await.unwrap().status().as_u16() >= 429);
    server.door().injector().set(Faults { down: true, ..Faults::default() });
    assert!(service.oneshot(request()).await.is_err());
    server.stop().await;
}

#[test]
fn a_token_dies_with_its_pod_and_with_its_account() {
    let instance = Arc::new(Instance::new(Store::new(1, Timestamp::UNIX_EPOCH), || Timestamp::UNIX_EPOCH));
    let tokens = Arc::new(Tokens::new().unwrap());
    let door = Door::new(instance.clone(), tokens.clone(), Callers::new("secret"));
    let make = |kind, object| instance.with(|store| store.create(kind, object)).unwrap();
    make(Kind::Namespace, json!({"metadata": {"name": "shop"}}));
    let account = make(Kind::ServiceAccount, json!({"metadata": {"name": "till", "namespace": "shop"}}));
    let containers = json!([{"name": "till", "image": "till"}]);
    let pod = json!({"metadata": {"name": "till-0", "namespace": "shop"}, "spec": {"containers": containers}});
    let pod = make(Kind::Pod, pod);
    let bound = |pod: Option<(String, String)>| Bound {
        namespace: "shop".to_owned(),
        service_account: "till".to_owned(),
        service_account_uid: uid(&account).to_owned(),
        pod,
        node: None,
    };
    let issue = |bound: &Bound| tokens.issue(bound, &[], 600, Timestamp::UNIX_EPOCH);
    let of_account = issue(&bound(None));
    let of_pod = issue(&bound(Some(("till-0".to_owned(), uid(&pod).to_owned()))));
    let of_another_pod = issue(&bound(Some(("till-0".to_owned(), "former".to_owned()))));
    let code = |token: &str| {
        let request = hyper::Request::get("/api").header("authorization", format!("Bearer {token}"));
        door.answer(request.body(Bytes::new()).unwrap()).status().as_u16()
    };
    assert_eq!([&of_account, &of_pod, &of_another_pod].map(|token| code(token)), [200, 200, 401]);
    let delete = |kind, name| instance.with(|store| store.delete(&Key::new(kind, "shop", name), &Default::default()));
    delete(Kind::Pod, "till-0").unwrap();
    assert_eq!([&of_account, &of_pod].map(|token| code(token)), [200, 401]);
    delete(Kind::ServiceAccount, "till").unwrap();
    assert_eq!(code(&of_account), 401);
    assert_eq!(code("secret"), 200);
}
