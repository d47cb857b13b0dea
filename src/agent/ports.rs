//! The ports of an agent: probes and the REST API, the other agents, the engines.

use super::{Door, Guards, sessions};
use crate::config::{Config, MAX_AGENT_CONNECTIONS, MAX_ENGINES};
use crate::http::{self, Face};
use crate::net::refusals::Port;
use crate::net::{self, Entrance};
use crate::proto::engine::engine_server::EngineServer;
use crate::raft::{self, Host};
use anyhow::Context;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The greatest message of an engine: a registration with many labels.
const MAX_ENGINE_MESSAGE: usize = 256 * 1024;

/// The gRPC service that engines are served by, while there is a running agent behind the door.
pub fn engine_service(door: Arc<Door>) -> EngineServer<sessions::Service> {
    EngineServer::new(sessions::Service(door)).max_decoding_message_size(MAX_ENGINE_MESSAGE)
}

async fn bind(address: std::net::SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} for {what}"))
}

pub(super) type Servers = JoinSet<anyhow::Result<()>>;

pub(super) async fn serve_http(
    servers: &mut Servers,
    config: &Config,
    face: Face,
    entrance: Entrance,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let listener = bind(config.listen_http, "the REST API").await?;
    servers.spawn(async move {
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        http::serve(listener, http::router(face), Some(entrance), stopped).await;
        // The API ends with the agent, not before it.
        std::future::pending().await
    });
    Ok(())
}

/// Served until the process ends: leadership is handed over through it.
pub(super) async fn serve_peers(
    servers: &mut Servers,
    config: &Config,
    host: &Host,
    guards: &Guards,
) -> anyhow::Result<()> {
    let listener = bind(config.listen_peers, "other agents").await?;
    let incoming = net::incoming(listener, MAX_AGENT_CONNECTIONS, Some(guards.entrance(Port::Peers)));
    let service = raft::Service::serve(host.clone(), guards.admission(config));
    let router = net::server().add_service(service);
    servers.spawn(async move { router.serve_with_incoming(incoming).await.context("the port for other agents") });
    Ok(())
}

pub(super) async fn serve_engines(
    servers: &mut Servers,
    config: &Config,
    door: &Arc<Door>,
    guards: &Guards,
) -> anyhow::Result<()> {
    let listener = bind(config.listen_engines, "engines").await?;
    let incoming = net::incoming(listener, MAX_ENGINES, Some(guards.entrance(Port::Engines)));
    let router = net::engine_server().add_service(engine_service(door.clone()));
    servers.spawn(async move { router.serve_with_incoming(incoming).await.context("the port for engines") });
    Ok(())
}
