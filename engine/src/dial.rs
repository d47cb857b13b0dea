//! Finds agents and opens connections to them.

use super::config::{Agent, Dial};
use crate::names;
use crate::proto::FromEngine;
use crate::proto::engine_client::EngineClient;
use rand::seq::SliceRandom;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// How long a name may take to be resolved.
const RESOLVE_LIMIT: Duration = Duration::from_secs(3);
/// No domain has more agents; a name that resolves to more is not worth trying all of them.
const TARGETS_MAX: usize = 64;

/// One address of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub address: SocketAddr,
    /// What it was found by, and what its certificate must bear unless --server-name says otherwise.
    pub host: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host == self.address.ip().to_string() {
            self.address.fmt(f)
        } else {
            write!(f, "{} ({})", self.address, self.host)
        }
    }
}

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot resolve its name: {0}")]
    Resolve(std::io::Error),
    #[error("its name took longer than {} s to resolve", RESOLVE_LIMIT.as_secs())]
    ResolveTimeout,
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the token in {path} is not text that a header can carry")]
    Token { path: PathBuf },
    #[error("it is no loopback address, which --plaintext is limited to")]
    NotLoopback,
    #[error("cannot connect: {}", chain(.0))]
    Connect(tonic::transport::Error),
    #[error("not connected after {} s", .0.as_secs())]
    ConnectTimeout(Duration),
}

/// An error with its sources, which tonic leaves out of its own text.
fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = sources.map(ToString::to_string).collect();
    // Many a wrapper repeats what it wraps.
    texts.dedup();
    texts.join(": ")
}

impl Dial {
    /// All addresses of all agents as DNS knows them now, in random order so that engines spread over the agents. Names
    /// that do not resolve come back with the reason.
    pub async fn find(&self) -> (Vec<Target>, BTreeMap<Agent, Error>) {
        let (mut targets, mut failed) = (Vec::new(), BTreeMap::new());
        for agent in &self.agents {
            match tokio::time::timeout(RESOLVE_LIMIT, names::lookup(&agent.host, agent.port)).await {
                Ok(Ok(found)) => {
                    targets.extend(found.into_iter().map(|address| Target { address, host: agent.host.clone() }));
                }
                Ok(Err(error)) => drop(failed.insert(agent.clone(), Error::Resolve(error))),
                Err(_) => drop(failed.insert(agent.clone(), Error::ResolveTimeout)),
            }
        }
        targets.sort();
        targets.dedup_by_key(|target| target.address);
        targets.shuffle(&mut rand::rng());
        targets.truncate(TARGETS_MAX);
        (targets, failed)
    }

    /// Opens a connection within `limit`, TLS included. Certificates and token are read again, since both are replaced while we run.
    pub async fn connect(&self, target: &Target, limit: Duration) -> Result<EngineClient<Channel>, Error> {
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", target.address)).map_err(Error::Connect)?;
        let mut endpoint = endpoint.connect_timeout(limit);
        match &self.ca {
            Some(path) => {
                let name = self.server_name.clone().unwrap_or_else(|| target.host.clone());
                let ca = Certificate::from_pem(read(path).await?);
                let mut tls = ClientTlsConfig::new().ca_certificate(ca).domain_name(name);
                if let Some((cert, key)) = &self.identity {
                    tls = tls.identity(Identity::from_pem(read(cert).await?, read(key).await?));
                }
                endpoint = endpoint.tls_config(tls).map_err(Error::Connect)?;
            }
            None if !target.address.ip().is_loopback() => return Err(Error::NotLoopback),
            None => {}
        }
        // The limit of the endpoint covers TCP only.
        match tokio::time::timeout(limit, endpoint.connect()).await {
            Ok(connected) => connected.map(EngineClient::new).map_err(Error::Connect),
            Err(_) => Err(Error::ConnectTimeout(limit)),
        }
    }

    /// The call that opens the stream, with the token if there is one.
    pub async fn request(
        &self,
        queue: mpsc::Receiver<FromEngine>,
    ) -> Result<tonic::Request<ReceiverStream<FromEngine>>, Error> {
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        if let Some(path) = &self.token_file {
            let token = String::from_utf8_lossy(&read(path).await?).trim().to_owned();
            let bearer: Result<MetadataValue<Ascii>, _> = format!("Bearer {token}").parse();
            let mut bearer = bearer.map_err(|_| Error::Token { path: path.clone() })?;
            bearer.set_sensitive(true);
            request.metadata_mut().insert("authorization", bearer);
        }
        Ok(request)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path).await.map_err(|source| Error::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(agents: &[&str]) -> Dial {
        let agents = agents.iter().map(|agent| agent.parse().unwrap()).collect();
        Dial { agents, ca: None, server_name: None, token_file: None, identity: None }
    }

    #[tokio::test]
    async fn each_address_is_found_once() {
        let (targets, failed) = dial(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:2"]).find().await;
        assert_eq!(3, targets.len());
        assert!(failed.is_empty());
    }

    #[tokio::test]
    async fn plaintext_never_leaves_the_machine() {
        let target = Target { address: "192.0.2.1:48004".parse().unwrap(), host: "agent".to_owned() };
        assert!(matches!(dial(&["agent"]).connect(&target, Duration::from_secs(1)).await, Err(Error::NotLoopback)));
    }
}
