//! Many connections at port 8888, and a probe among them.

use super::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// More than any limit on connections of the port.
const CROWD: usize = 600;

/// A server whose `/wait` answers as late as a consistent read without a quorum does.
async fn served() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let face = Face::new(Arc::new(fake::source()), Arc::new(Metrics::new()));
    let late = get(|| async {
        sleep(Duration::from_secs(5)).await;
        "late"
    });
    tokio::spawn(serve(listener, router(face).route("/wait", late), None, std::future::pending()));
    address
}

async fn sent(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A connection that is closed at once is one that does not hold anything.
    let _ = stream.write_all(request.as_bytes()).await;
    stream
}

/// The status line of what comes back, if anything does.
async fn status(stream: &mut TcpStream) -> String {
    let mut answer = [0; 1024];
    let read = timeout(Duration::from_secs(1), stream.read(&mut answer)).await;
    let length = read.ok().and_then(Result::ok).unwrap_or_default();
    String::from_utf8_lossy(&answer[..length]).lines().next().unwrap_or_default().to_owned()
}

/// Takes all that can be taken by sending each connection this, and asks for the probes as the kubelet does: by a new
/// connection each time.
async fn probed_among(what: &str, request: &str) -> Vec<String> {
    let address = served().await;
    let mut held = Vec::new();
    for _ in 0..CROWD {
        held.push(sent(address, request).await);
    }
    sleep(Duration::from_millis(200)).await;
    let mut wrong = Vec::new();
    for path in ["/livez", "/readyz", "/livez", "/readyz"] {
        let began = Instant::now();
        let mut probe = sent(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
        let status = status(&mut probe).await;
        if status != "HTTP/1.1 200 OK" {
            wrong.push(format!("{what}: {path} answered '{status}' after {:?}", began.elapsed()));
        }
    }
    wrong
}

#[tokio::test]
async fn probes_are_answered_whatever_others_hold() {
    let head = "PUT /api/1/kvstore/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let wrong = [
        probed_among("silent connections", "").await,
        probed_among("idle connections", "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await,
        probed_among("unfinished heads", "GET /livez HTTP/1.1\r\nhost: x\r\n").await,
        probed_among("unfinished bodies", &format!("{head}content-length: 9\r\n\r\n")).await,
        probed_among("requests that wait", "GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await,
    ]
    .concat();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
