//! The domain as its agents show it, asked as an operator would ask.

use crate::cli::Cli;
use crate::cli::client::{self, Client as Agent};
use crate::demo::stage::Stage;
use crate::http::ReplicationAnswer;
use axum::http::Method;
use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use std::time::{Duration, Instant};
use url::Url;

/// How long anything may take to come about; on an idle machine it is seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is checked.
const LOOK: Duration = Duration::from_millis(20);

/// Why the domain is not as it is meant to be.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    #[error("{what}: not within {} s; at last {last}", PATIENCE.as_secs())]
    Waited { what: String, last: String },
    #[error("cannot ask Kubernetes")]
    Kubernetes(#[from] kube::Error),
    #[error("an agent does not answer")]
    Agent(#[from] client::Error),
    #[error("no admin server is ready")]
    NoAgent,
    #[error("not as expected: {0}")]
    Unexpected(String),
    #[error("cannot print: {0}")]
    Print(#[from] std::io::Error),
    #[error("'kaa {line}': {why}")]
    Command { line: String, why: String },
}

/// The domain of one namespace.
pub(super) struct Domain {
    client: Client,
    namespace: String,
}

impl Domain {
    pub(super) fn new(stage: &Stage, namespace: &str) -> Self {
        Self { client: stage.client(), namespace: namespace.to_owned() }
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The REST API of an admin server that is ready.
    pub(super) async fn address(&self) -> Result<String, Error> {
        let pods = self.api::<Pod>().list(&ListParams::default()).await?;
        pods.items.iter().find_map(address).ok_or(Error::NoAgent)
    }

    /// The REST API of the agent that leads the resync: what it shows is what it has applied.
    pub(super) async fn leader(&self) -> Result<String, Error> {
        let lease = self.api::<Lease>().get("kaa-default-resync").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let (server, _run) = holder.rsplit_once('_').ok_or(Error::NoAgent)?;
        let pod = self.api::<Pod>().get(server).await?;
        address(&pod).ok_or(Error::NoAgent)
    }

    /// `GET BASE/api/1/PATH`, as text: callers search in it.
    pub(super) async fn text(&self, base: &str, path: &str) -> Result<String, Error> {
        let url = format!("{base}/api/1/{path}");
        let url = Url::parse(&url).map_err(|error| Error::Unexpected(format!("{url}: {error}")))?;
        let agent = Agent::new(&url, &client::Tls::default())?;
        Ok(agent.send(Method::GET, &url, None, None).await?.text)
    }

    /// The rows of a collection.
    pub(super) async fn rows(&self, path: &str) -> Result<Vec<Value>, Error> {
        let text = self.text(&self.address().await?, path).await?;
        let page = serde_json::from_str(&text).map_err(|error| Error::Unexpected(format!("{path}: {error}: {text}")));
        let mut page: Value = page?;
        Ok(match page["data"].take() {
            Value::Array(rows) => rows,
            _ => Vec::new(),
        })
    }

    /// The living processes of a type.
    pub(super) async fn processes(&self, kind: &str) -> Result<Vec<Value>, Error> {
        let mut rows = self.rows("processes?orderBy=startId").await?;
        rows.retain(|row| row["type"] == kind);
        Ok(rows)
    }

    /// What `kaa LINE` prints.
    pub(super) async fn kaa(&self, line: &str) -> Result<String, Error> {
        let address = self.address().await?;
        let words = ["kaa"].into_iter().chain(line.split_whitespace()).chain(["--api-server", &address]);
        let failed = |why: String| Error::Command { line: line.to_owned(), why };
        let cli = Cli::try_parse_from(words).map_err(|error| failed(error.to_string()))?;
        cli.text().await.map_err(|error| failed(error.to_string()))
    }

    /// Waits until `look` finds something; it says what it sees instead.
    pub(super) async fn until<T>(
        &self,
        what: &str,
        mut look: impl AsyncFnMut() -> Result<T, String>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        loop {
            match look().await {
                Ok(found) => return Ok(found),
                Err(last) if began.elapsed() > PATIENCE => return Err(Error::Waited { what: what.to_owned(), last }),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Waits for so many connected servers.
    pub(super) async fn servers(&self, wanted: u32) -> Result<(), Error> {
        self.until(&format!("{wanted} admin servers"), async || {
            let rows = self.rows("peers").await.map_err(|error| error.to_string())?;
            let connected = rows.iter().filter(|row| row["connectedState"]["state"] == "Connected").count();
            if connected == wanted as usize { Ok(()) } else { Err(format!("{connected} are connected")) }
        })
        .await
    }

    /// Waits until a server leads the resync and has made a first pass: a new leader waits for its watches.
    pub(super) async fn led(&self) -> Result<(), Error> {
        self.until("a first pass of the resync", async || {
            let leader = self.leader().await.map_err(|error| error.to_string())?;
            let plan = self.text(&leader, "kaa/plan").await.map_err(|error| error.to_string())?;
            let plan: Value = serde_json::from_str(&plan).map_err(|error| error.to_string())?;
            if plan["leading"] == true && !plan["lastPass"].is_null() { Ok(()) } else { Err(format!("{plan}")) }
        })
        .await
    }

    /// Waits for so many processes of a type, whatever they do.
    pub(super) async fn registered(&self, kind: &str, wanted: usize) -> Result<(), Error> {
        self.until(&format!("{wanted} registered {kind}s"), async || {
            let known = self.processes(kind).await.map_err(|error| error.to_string())?.len();
            if known == wanted { Ok(()) } else { Err(format!("{known} are known")) }
        })
        .await
    }

    /// Waits until `found` finds something in what `kaa show database` shows.
    pub(super) async fn shown<T>(
        &self,
        database: &str,
        what: &str,
        found: impl Fn(&ReplicationAnswer) -> Option<T>,
    ) -> Result<T, Error> {
        self.until(&format!("{what} of {database}"), async || {
            let address = self.address().await.map_err(|error| error.to_string())?;
            let shown = self.text(&address, &format!("kaa/replication/{database}")).await;
            let shown = shown.map_err(|error| error.to_string())?;
            let answer = serde_json::from_str(&shown).map_err(|error| error.to_string())?;
            found(&answer).ok_or(shown)
        })
        .await
    }

    /// Waits for so many running processes of a type.
    pub(super) async fn running(&self, kind: &str, wanted: usize) -> Result<(), Error> {
        self.until(&format!("{wanted} running {kind}s"), async || {
            let rows = self.processes(kind).await.map_err(|error| error.to_string())?;
            let running = rows.iter().filter(|row| row["state"] == "RUNNING" && row["durableState"] == "MONITORED");
            let running = running.count();
            if running == wanted && rows.len() == wanted {
                Ok(())
            } else {
                Err(format!("{running} run, {} are known", rows.len()))
            }
        })
        .await
    }
}

/// The REST API of a pod, if it is a ready admin server's.
fn address(pod: &Pod) -> Option<String> {
    pod.metadata.name.as_deref().filter(|name| name.starts_with("kaa-admin-"))?;
    let status = pod.status.as_ref()?;
    let ready = status.conditions.iter().flatten().any(|is| is.type_ == "Ready" && is.status == "True");
    let here = ready && pod.metadata.deletion_timestamp.is_none();
    Some(format!("http://{}:8888", status.pod_ip.as_ref().filter(|_| here)?))
}
