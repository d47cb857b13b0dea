//! Connections without a call, and with calls that are refused or admitted, at a server for engines.

use super::incoming;
use crate::net::places::Limits;
use crate::proto::engine::engine_client::EngineClient;
use crate::proto::engine::engine_server::{Engine, EngineServer};
use crate::proto::engine::{FromEngine, ToEngine};
use futures::stream::{BoxStream, StreamExt, pending};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status, Streaming};

const SOON: Duration = Duration::from_secs(5);

/// Admits every caller that presents a credential.
struct Fake;

#[tonic::async_trait]
impl Engine for Fake {
    type AttachStream = BoxStream<'static, Result<ToEngine, Status>>;

    async fn attach(&self, asked: Request<Streaming<FromEngine>>) -> Result<Response<Self::AttachStream>, Status> {
        match asked.metadata().contains_key("authorization") {
            true => Ok(Response::new(pending().boxed())),
            false => Err(Status::unauthenticated("nothing was shown")),
        }
    }
}

async fn served(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = crate::net::engine_server().add_service(EngineServer::new(Fake));
    tokio::spawn(router.serve_with_incoming(incoming(listener, limits, None)));
    address
}

async fn attach(address: SocketAddr, shown: bool) -> Result<Streaming<ToEngine>, Status> {
    let mut request = Request::new(pending());
    if shown {
        request.metadata_mut().insert("authorization", "anything".parse().unwrap());
    }
    let channel = crate::net::channel(&address.to_string(), None).unwrap();
    let mut client = EngineClient::new(channel);
    timeout(SOON, client.attach(request)).await.expect("an answer soon").map(Response::into_inner)
}

/// Whether the server closes it in this time.
async fn closes(stream: &mut TcpStream, within: Duration) -> bool {
    let mut read = Vec::new();
    timeout(within, stream.read_to_end(&mut read)).await.is_ok()
}

#[tokio::test]
async fn connections_without_a_call_keep_no_engine_out() {
    let address = served(Limits::new(4, 2)).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let _first = attach(address, true).await.unwrap();
    let _second = attach(address, true).await.unwrap();
    assert_eq!(attach(address, true).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert!(closes(&mut silent[0], SOON).await, "the oldest had to go");
}

#[tokio::test]
async fn a_connection_is_closed_that_has_no_admitted_stream_in_time() {
    let limits = Limits { idle_time: Some(Duration::from_secs(1)), ..Limits::new(9, 9) };
    let address = served(limits).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut engine = attach(address, true).await.unwrap();
    assert_eq!(attach(address, false).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    assert!(closes(&mut silent, SOON).await);
    sleep(Duration::from_secs(2)).await;
    assert!(timeout(Duration::from_millis(100), engine.next()).await.is_err(), "its stream is up");
}
