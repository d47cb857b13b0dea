//! Addresses that stay, in front of servers whose pods come and go: one for the REST API, and one for each Service of a database.
//!
//! On a real cluster Services or a port-forward do this.

use crate::demo::stage::Stage;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{Key, Store};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The REST API's port.
const PORT: u16 = 8888;
/// How many connections are handed on at once; those beyond wait.
const MAX_CONNECTIONS: usize = 256;
/// How long to wait when no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Where a door leads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    /// To the admin servers of a namespace, those that are ready first.
    Admins(&'static str),
    /// To where the EndpointSlice of this namespace and name leads.
    Slice(&'static str, &'static str),
}

/// A door, open until it is dropped.
pub(super) struct Door {
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Door {
    /// Opens the one of the REST API.
    pub(super) async fn open(stage: &Stage, namespace: &'static str) -> io::Result<Self> {
        Self::open_at(stage, PORT, Behind::Admins(namespace)).await
    }

    /// Opens one at this port of the address that no pod has.
    pub(super) async fn open_at(stage: &Stage, port: u16, behind: Behind) -> io::Result<Self> {
        let listener = TcpListener::bind((stage.host(), port)).await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, stage.instance().clone(), behind));
        Ok(Self { address, _serving: serving })
    }

    /// Where it is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is, for the REST API.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(listener: TcpListener, instance: Arc<Instance>, behind: Behind) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut visits = JoinSet::new();
    loop {
        while visits.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((mut visitor, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let servers = instance.look(|store| behind.found(store));
        visits.spawn(async move {
            for server in servers {
                if let Ok(mut agent) = TcpStream::connect(server).await {
                    let _ = (visitor.set_nodelay(true), agent.set_nodelay(true));
                    // How it ended is the visitor's own affair.
                    let _ = tokio::io::copy_bidirectional(&mut visitor, &mut agent).await;
                    break;
                }
            }
            drop(place);
        });
    }
}

impl Behind {
    fn found(self, store: &Store) -> Vec<SocketAddr> {
        match self {
            Self::Admins(namespace) => admins(store, namespace),
            Self::Slice(namespace, name) => {
                let slice = store.find(&Key::new(Kind::EndpointSlice, namespace, name));
                slice.map(|slice| endpoints(slice)).unwrap_or_default()
            }
        }
    }
}

/// The addresses of the admin servers, those that are ready first.
fn admins(store: &Store, namespace: &str) -> Vec<SocketAddr> {
    let pods = store.list(Kind::Pod, Some(namespace)).filter(|pod| object::name(pod).starts_with("kaa-admin-"));
    let mut found: Vec<(bool, Ipv4Addr)> = pods
        .filter_map(|pod| {
            let conditions = object::list(pod, "/status/conditions");
            let ready = conditions.iter().any(|is| is["type"] == "Ready" && is["status"] == "True");
            let unready = !ready || object::is_deleting(pod);
            Some((unready, object::text(pod, "/status/podIP").parse().ok()?))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, address)| (address, PORT).into()).collect()
}

/// Where an EndpointSlice leads.
fn endpoints(slice: &serde_json::Value) -> Vec<SocketAddr> {
    let port = slice["ports"][0]["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let addresses = object::list(slice, "/endpoints").iter().flat_map(|endpoint| object::list(endpoint, "/addresses"));
    let addresses = addresses.filter_map(|address| address.as_str()?.parse().ok());
    port.map(|port| addresses.map(|address: Ipv4Addr| (address, port).into()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::endpoints;
    use serde_json::json;

    #[test]
    fn a_slice_leads_to_its_addresses_at_its_port() {
        let slice = json!({"ports": [{"port": 5432}], "endpoints": [{"addresses": ["127.1.1.2"]}, {"addresses": ["127.1.1.3"]}]});
        assert_eq!(endpoints(&slice), ["127.1.1.2:5432".parse().unwrap(), "127.1.1.3:5432".parse().unwrap()]);
        assert_eq!(endpoints(&json!({"endpoints": []})), [], "no primary");
    }
}
