//! One address for the REST API, whichever admin server is there: pods come and go, and take other addresses.
//!
//! On a real cluster a Service or a port-forward does this.

use crate::demo::stage::Stage;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
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
const MAX_CONNECTIONS: usize = 64;
/// How long to wait when no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The door, open until it is dropped.
pub(super) struct Door {
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Door {
    /// Opens it for the admin servers of a namespace.
    pub(super) async fn open(stage: &Stage, namespace: &'static str) -> io::Result<Self> {
        let listener = TcpListener::bind((stage.host(), PORT)).await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, stage.instance().clone(), namespace));
        Ok(Self { address, _serving: serving })
    }

    /// Where it is.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(listener: TcpListener, instance: Arc<Instance>, namespace: &'static str) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut visits = JoinSet::new();
    loop {
        while visits.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((mut visitor, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let servers = ready(&instance, namespace);
        visits.spawn(async move {
            for server in servers {
                if let Ok(mut agent) = TcpStream::connect((server, PORT)).await {
                    // How it ended is the visitor's own affair.
                    let _ = tokio::io::copy_bidirectional(&mut visitor, &mut agent).await;
                    break;
                }
            }
            drop(place);
        });
    }
}

/// The addresses of the admin servers, those that are ready first.
fn ready(instance: &Instance, namespace: &str) -> Vec<Ipv4Addr> {
    instance.look(|store| {
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
        found.into_iter().map(|(_, address)| address).collect()
    })
}
