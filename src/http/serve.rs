//! Accepts connections and keeps them within bounds: how many there are, how long they live, how long they may take to
//! say what they want.
//!
//! A probe takes none of the places for requests, and no idle connection keeps a new one out ([`Places`]): so the kubelet is
//! answered whatever other callers hold, and does not restart an agent because it is asked a lot.
//!
//! One port serves both HTTP and HTTPS: a TLS session begins with a byte that no request begins with. So probes and scripts
//! that read keep working in clear, and a client with credentials (a password, a certificate) can send them encrypted.

use super::error::Error;
use super::writer::From;
use crate::net::places::{Handle, Limits, Places};
use crate::net::{Entrance, Socket};
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// Connections at once, each with one request at a time; some hundred kilobytes each at worst. The pod itself has places of its own:
/// `kaa drain`, and an operator with `kubectl exec`, do not wait for other clients. One address has as many as a node's
/// whole traffic needs, where a Service hides the pods behind its address.
pub const CONNECTIONS: Limits = Limits { calls_remote: 224, calls_each: 32, ..Limits::new(256, 256) };

/// What the kubelet asks: it is answered at once, from memory, and takes no place.
const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// How long a connection may take to say what it wants, or stay idle. Longer than probes are apart.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// The greatest head of a request.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How old a connection gets: a client that never reads its answer holds it no longer than this.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// How long a request that is being answered may still take when the server stops or the connection is too old.
const LINGER: Duration = Duration::from_secs(5);

/// How long to wait after a connection could not be accepted: there is no file descriptor left, or no memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// The first byte of a TLS session.
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves until `stop`, then until every request is answered, but not for long. Without an entrance there is no HTTPS.
pub async fn serve(listener: TcpListener, router: Router, entrance: Option<Entrance>, stop: impl Future<Output = ()>) {
    let noted = entrance.as_ref().map(|entrance| (entrance.port, entrance.refusals.clone()));
    let places = Places::new(CONNECTIONS, noted);
    let (serving, mut served) = mpsc::channel::<Infallible>(1);
    let (stopping, stopped) = watch::channel(false);
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        // An answer that is held back for an acknowledgement costs 40 ms; one that cannot be hurried is still an answer.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "small answers will be slow");
        }
        let (mut place, serving) = (places.enter(peer, stream.local_addr().ok()), serving.clone());
        let (router, entrance, stopped) = (router.clone(), entrance.clone(), stopped.clone());
        tokio::spawn(async move {
            let handle = place.handle();
            let visit = async {
                if let Some(socket) = enter(stream, entrance.as_ref()).await {
                    converse(socket, From(peer), router, handle, stopped).await;
                }
            };
            tokio::select! {
                () = visit => {}
                () = place.closed() => {}
            }
            drop(serving);
        });
    }
    drop((listener, serving));
    stopping.send_replace(true);
    // Nothing is ever sent: it ends when the last connection has.
    if timeout(LINGER, served.recv()).await.is_err() {
        tracing::warn!("some requests were not answered before the server stopped");
    }
}

/// Begins a TLS session if the client does; nothing if that comes to nothing.
async fn enter(stream: TcpStream, entrance: Option<&Entrance>) -> Option<Socket> {
    let Some(entrance) = entrance else { return Some(Socket::Plain(stream)) };
    let mut first = [0];
    match timeout(HEADER_TIMEOUT, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == TLS_HANDSHAKE => entrance.shake_hands(stream).await.ok(),
        Ok(Ok(_)) => Some(Socket::Plain(stream)),
        Ok(Err(_)) | Err(_) => None,
    }
}

async fn converse(stream: Socket, from: From, router: Router, place: Handle, mut stopped: watch::Receiver<bool>) {
    let caller = stream.caller();
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        request.extensions_mut().insert(caller.clone());
        respond(router.clone(), request, place.clone())
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        _ = stopped.wait_for(|stopped| *stopped) => None,
        () = sleep(CONNECTION_LIFETIME) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(LINGER, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended in the middle of a request");
    }
}

async fn respond(
    router: TowerToHyperService<Router>,
    request: Request<Incoming>,
    place: Handle,
) -> Result<Response, Infallible> {
    if PROBES.contains(&request.uri().path()) {
        return router.call(request).await;
    }
    let Ok(mut call) = place.call() else { return Ok(Error::NoPlace.into_response()) };
    call.admit();
    let answer = router.call(request).await?;
    Ok(answer.map(|body| Body::new(call.until_sent(body))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 1024];
        let length = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn beyond_the_limit_requests_are_told_so_and_stopping_is_graceful() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (go, going) = watch::channel(false);
        let (arrive, mut arrived) = watch::channel(0);
        let slow = get(move || {
            let mut going = going.clone();
            arrive.send_modify(|count| *count += 1);
            async move {
                going.wait_for(|go| *go).await.unwrap();
                "done"
            }
        });
        let router = Router::new().route("/", get(|| async { "here" })).route("/slow", slow);
        let server = tokio::spawn(serve(listener, router, None, async { stopped.await.unwrap() }));

        let mut held = Vec::new();
        for _ in 0..CONNECTIONS.calls {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            held.push(stream);
        }
        arrived.wait_for(|count| *count == CONNECTIONS.calls).await.unwrap();
        let mut refused = TcpStream::connect(address).await.unwrap();
        let answer = ask(&mut refused).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"messages\""), "{answer}");
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");

        stop.send(()).unwrap();
        sleep(Duration::from_millis(50)).await;
        go.send_replace(true);
        let mut answer = String::new();
        held.swap_remove(0).read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("done"), "{answer}");
        assert!(ask(&mut refused).await.is_empty(), "it was told to end");
        server.await.unwrap();
    }
}
