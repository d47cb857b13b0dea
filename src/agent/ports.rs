//! The ports of an agent: probes and the REST API, the other agents, the engines.

use super::{Door, Guards, sessions};
use crate::config::{AGENT_CONNECTIONS, Config, ENGINE_CONNECTIONS, OWN_DESCRIPTORS};
use crate::http::{self, Face};
use crate::net::places::Limits;
use crate::net::refusals::Port;
use crate::net::{self, Entrance, descriptors};
use crate::proto::engine::engine_server::EngineServer;
use crate::raft::{self, Host};
use anyhow::Context;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

/// The greatest message of an engine: a registration with many labels.
const MAX_ENGINE_MESSAGE: usize = 256 * 1024;

/// The gRPC service that engines are served by, while there is a running agent behind the door.
pub fn engine_service(door: Arc<Door>) -> EngineServer<sessions::Service> {
    EngineServer::new(sessions::Service(door)).max_decoding_message_size(MAX_ENGINE_MESSAGE)
}

/// However few files may be open, so many engines are served: a smaller number would serve no database.
const FEWEST_ENGINES: usize = 64;

/// The connections of engines: as many as there are descriptors for, besides those of everything else.
fn engines() -> Limits {
    let wanted = OTHER_DESCRIPTORS + ENGINE_CONNECTIONS.calls;
    let allowed = match descriptors::raise(wanted as u64) {
        Ok(allowed) => usize::try_from(allowed).unwrap_or(usize::MAX),
        Err(error) => {
            warn!("cannot read the limit of open files: {error}");
            return ENGINE_CONNECTIONS;
        }
    };
    let limits = within(allowed);
    if limits.calls < ENGINE_CONNECTIONS.calls {
        let engines = limits.calls;
        warn!(
            "the limit of open files is {allowed}: this agent serves at most {engines} engines, and needs {wanted} to serve all"
        );
    }
    limits
}

/// What may be open besides the connections of engines that are attached.
const OTHER_DESCRIPTORS: usize =
    OWN_DESCRIPTORS + http::CONNECTIONS.most() + AGENT_CONNECTIONS.most() + ENGINE_CONNECTIONS.idle;

fn within(allowed: usize) -> Limits {
    let calls = allowed.saturating_sub(OTHER_DESCRIPTORS).clamp(FEWEST_ENGINES, ENGINE_CONNECTIONS.calls);
    Limits { calls, calls_remote: calls, calls_each: calls, ..ENGINE_CONNECTIONS }
}

async fn bind(address: std::net::SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    net::listen(address).await.with_context(|| format!("cannot listen on {address} for {what}"))
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
    let incoming = net::incoming(listener, AGENT_CONNECTIONS, Some(guards.entrance(Port::Peers)));
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
    let incoming = net::incoming(listener, engines(), Some(guards.entrance(Port::Engines)));
    let router = net::engine_server().add_service(engine_service(door.clone()));
    servers.spawn(async move { router.serve_with_incoming(incoming).await.context("the port for engines") });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_together_stay_below_the_limit_of_open_files() {
        let all =
            |engines: Limits| OWN_DESCRIPTORS + http::CONNECTIONS.most() + AGENT_CONNECTIONS.most() + engines.most();
        for allowed in [2048, 4096, 65_536, usize::MAX] {
            assert!(all(within(allowed)) <= allowed, "{allowed}");
        }
        assert_eq!(within(65_536).calls, ENGINE_CONNECTIONS.calls);
        assert_eq!(within(1024).calls, FEWEST_ENGINES);
    }
}
