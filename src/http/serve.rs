//! Accepts connections and keeps them within bounds: how many there are, how long they live, how long they may take to
//! say what they want.
//!
//! One port serves both HTTP and HTTPS: a TLS session begins with a byte that no request begins with. So probes and scripts
//! that read go on in clear, and whoever has something to show (a password, a certificate) need not show it to the network.

use super::writer::From;
use crate::net::{Entrance, Socket};
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Connections that are served at once; a connection has one request at a time. Some hundred kilobytes each at worst.
const MAX_CONNECTIONS: u32 = 256;

/// Connections that are told at once that there is no room; those beyond are closed without a word.
const MAX_REFUSALS: usize = 64;

/// How long a connection may take to say what it wants, or stay idle. Longer than probes are apart.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// The greatest head of a request.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How old a connection gets: a client that never reads its answer holds it no longer than this.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// How long a request that is being answered may go on when the server stops or the connection is too old.
const LINGER: Duration = Duration::from_secs(5);

/// How long to wait after a connection could not be accepted: there is no file descriptor left, or no memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 67\r\n\r\n\
    {\"code\":503,\"messages\":[\"this agent serves too many connections\"]}\n";

/// The first byte of a TLS session.
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves until `stop`, then until every request is answered, but not for long. Without an entrance there is no HTTPS.
pub async fn serve(listener: TcpListener, router: Router, entrance: Option<Entrance>, stop: impl Future<Output = ()>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
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
        if let Ok(permit) = room.clone().try_acquire_owned() {
            let (router, entrance, stopped) = (router.clone(), entrance.clone(), stopped.clone());
            tokio::spawn(async move {
                if let Some(socket) = enter(stream, entrance.as_ref()).await {
                    converse(socket, From(peer), router, stopped).await;
                }
                drop(permit);
            });
        } else if let Ok(permit) = refusals.clone().try_acquire_owned() {
            tokio::spawn(async move {
                // Whether the client hears it is its own business.
                let _ = timeout(LINGER, refuse(stream)).await;
                drop(permit);
            });
        }
    }
    drop(listener);
    stopping.send_replace(true);
    if timeout(LINGER, room.acquire_many(MAX_CONNECTIONS)).await.is_err() {
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

async fn converse(stream: Socket, from: From, router: Router, mut stopped: watch::Receiver<bool>) {
    let caller = stream.caller();
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        request.extensions_mut().insert(caller.clone());
        router.call(request)
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

/// Says that there is no room. The request is read first: closing a socket with unread data makes the client see a
/// reset instead of the answer.
async fn refuse(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).await?;
    stream.write_all(NO_ROOM).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;

    #[test]
    fn the_refusal_has_the_length_it_says() {
        let text = std::str::from_utf8(NO_ROOM).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "the body has {} bytes", body.len());
    }

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 1024];
        let length = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn beyond_the_limit_connections_are_told_so_and_stopping_is_graceful() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let slow = get(|| async {
            sleep(Duration::from_millis(300)).await;
            "done"
        });
        let router = Router::new().route("/", get(|| async { "here" })).route("/slow", slow);
        let server = tokio::spawn(serve(listener, router, None, async { stopped.await.unwrap() }));

        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(held.last_mut().unwrap()).await.starts_with("HTTP/1.1 200"));
        let mut refused = TcpStream::connect(address).await.unwrap();
        let answer = ask(&mut refused).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"messages\""), "{answer}");

        let slow = held.first_mut().unwrap();
        slow.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        sleep(Duration::from_millis(50)).await;
        stop.send(()).unwrap();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("done"), "{answer}");
        server.await.unwrap();
    }
}
