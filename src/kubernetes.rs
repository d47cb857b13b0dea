//! Kubernetes as input and as the keeper of two Leases: everything that talks to its API server.
//!
//! [`watch`] feeds the index of what is observed, [`evidence`] reads afresh what a decision rests on, [`lease`] elects
//! the resync leader, [`anchor`] names the domain. [`convert`] is pure. Only calls of one namespace are made, and
//! nothing but Leases and [`events`] is written.
//!
//! What is *not* here: any decision about what was read.

pub mod anchor;
pub mod convert;
pub mod events;
pub mod evidence;
pub mod lease;
pub mod permissions;
mod requests;
pub mod slices;
pub mod watch;

use crate::metrics::Metrics;
use k8s_openapi::NamespaceResourceScope;
use kaa_core::observed::objects::ANNOTATION_PREFIX;
use kube::api::GetParams;
use kube::client::ClientBuilder;
use kube::core::Status;
use kube::{Api, Client, Resource};
use permissions::Permissions;
use serde::de::DeserializeOwned;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take to be made: an API server that is there answers in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection with an open request may be silent: longer than the time between two bookmarks, which the API server
/// sends every minute or so on a quiet watch (75 s at most), and short enough to notice a half-dead connection.
const READ_TIMEOUT: Duration = Duration::from_secs(95);

/// How long a single read of the API server may take. A read that takes longer proves nothing; the next pass reads
/// again.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The API server of one namespace.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    namespace: String,
    /// How long a single request may take.
    timeout: Duration,
    /// Which permissions are missing, as far as it came out.
    pub permissions: Permissions,
    /// The prefix of the annotations that the agent reads.
    annotation_prefix: String,
}

/// What was asked for, in the words of a Role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Such as `get`.
    pub verb: &'static str,
    /// Such as `statefulsets.apps`.
    pub resource: String,
    /// The name of the object, if one was meant.
    pub name: Option<String>,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

/// Why Kubernetes gave no answer to go by.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is neither a kubeconfig nor a service account.
    #[error("cannot load the Kubernetes client configuration")]
    Configuration(#[source] kube::config::InferConfigError),
    /// The client could not be made.
    #[error("cannot set up the Kubernetes client")]
    Client(#[source] kube::Error),
    /// A right is missing.
    #[error("no permission to {asked}: {message}")]
    Forbidden {
        /// What was asked.
        asked: Asked,
        /// The API server's words.
        message: String,
    },
    /// The object exists already.
    #[error("cannot {asked}: it exists already")]
    Exists {
        /// What was asked.
        asked: Asked,
    },
    /// The object is not as it was when it was read.
    #[error("cannot {asked}: it was changed meanwhile")]
    Conflict {
        /// What was asked.
        asked: Asked,
    },
    /// The API server answered with an error.
    #[error("cannot {asked}: answered {code}: {message}")]
    Refused {
        /// What was asked.
        asked: Asked,
        /// The HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// The answer neither shows the object nor proves that there is none.
    #[error("cannot {asked}: {why}")]
    Unproven {
        /// What was asked.
        asked: Asked,
        /// What came.
        why: String,
    },
    /// There was no answer in time.
    #[error("cannot {asked}: no answer within {} s", .after.as_secs_f32())]
    Silent {
        /// What was asked.
        asked: Asked,
        /// How long it was waited for.
        after: Duration,
    },
    /// Anything else: no connection, an answer that is not understood.
    #[error("cannot {asked}")]
    Failed {
        /// What was asked.
        asked: Asked,
        /// Why.
        source: Box<kube::Error>,
    },
}

impl Error {
    /// The whole chain as one line.
    pub fn to_line(&self) -> String {
        use std::error::Error as _;
        let mut line = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            let text = error.to_string();
            // kube's errors repeat their source in their own text.
            if !line.contains(&text) {
                line = format!("{line}: {text}");
            }
            source = error.source();
        }
        line
    }

    fn of(asked: Asked, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden { asked, message: told(&status) },
            kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists" => {
                Self::Exists { asked }
            }
            kube::Error::Api(status) if status.code == 409 => Self::Conflict { asked },
            kube::Error::Api(status) => Self::Refused { asked, code: status.code, message: told(&status) },
            source => Self::Failed { asked, source: Box::new(source) },
        }
    }
}

/// What a Status says, cut to a line: an HTML page of a proxy may be long.
fn told(status: &Status) -> String {
    const SHOWN: usize = 300;
    let line = status.message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN).collect()
}

/// Finds the API server by kubeconfig (`KUBECONFIG`, for people) or by the pod's service account, and the namespace:
/// the one given, else the configuration's. Every request is counted in `metrics`.
pub async fn connect(namespace: Option<String>, metrics: Arc<Metrics>) -> Result<Kubernetes, Error> {
    let mut config = kube::Config::infer().await.map_err(Error::Configuration)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Else a connection that idled in the pool would be cut in the middle of its next request.
    config.reset_reader_on_write = true;
    // The next pass is the retry; a retry inside a request would outlive what the request was made for.
    config.default_retry = false;
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    let builder = ClientBuilder::try_from(config).map_err(Error::Client)?;
    let client = builder.with_layer(&requests::Count(metrics)).build();
    Ok(Kubernetes::new(client, namespace))
}

impl Kubernetes {
    /// Wraps a client, which may as well be a simulated one.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        let annotation_prefix = ANNOTATION_PREFIX.to_owned();
        let permissions = Permissions::default();
        Self { client, namespace: namespace.into(), timeout: REQUEST_TIMEOUT, permissions, annotation_prefix }
    }

    /// The same with another limit on how long a single request may take.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same, looking at annotations with another prefix.
    #[must_use]
    pub fn with_annotation_prefix(self, annotation_prefix: String) -> Self {
        Self { annotation_prefix, ..self }
    }

    /// The namespace that everything here is about.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Reads an object by name from the API server's storage (no resource version). `None` means that there is none,
    /// for certain: see [`is_absent`].
    async fn read<K>(&self, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
    {
        let asked = asked::<K>("get", Some(name));
        let request = async {
            match self.api::<K>().get(name).await {
                Ok(object) if object.meta().name.as_deref() == Some(name) => Ok(Some(object)),
                Ok(_) => Err(Error::Unproven { asked: asked.clone(), why: "answered with another object".to_owned() }),
                Err(kube::Error::Api(status)) if is_absent::<K>(&status, name) => Ok(None),
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    let why = format!("a 404 that proves no absence: {}", told(&status));
                    Err(Error::Unproven { asked: asked.clone(), why })
                }
                Err(error) => Err(Error::of(asked.clone(), error)),
            }
        };
        self.within(&asked, request).await
    }

    /// Reads something that is no object, by the path of its directory and its name.
    pub(crate) async fn raw<T: DeserializeOwned>(&self, directory: &str, name: &str) -> Result<T, Error> {
        let asked = Asked { verb: "get", resource: format!("{directory}/{name}"), name: None };
        let request = async {
            let request = kube::core::Request::new(directory).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest);
            let answer = async { self.client.request::<T>(request?).await };
            answer.await.map_err(|error| Error::of(asked.clone(), error))
        };
        self.within(&asked, request).await
    }

    /// Gives a request its time limit.
    async fn within<T>(&self, asked: &Asked, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let silent = |_| Error::Silent { asked: asked.clone(), after: self.timeout };
        let answer = tokio::time::timeout(self.timeout, request).await.map_err(silent)?;
        self.permissions.judge(asked, &answer);
        answer
    }
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubernetes({})", self.namespace)
    }
}

fn asked<K: Resource<DynamicType = ()>>(verb: &'static str, name: Option<&str>) -> Asked {
    let group = K::group(&());
    let dot = if group.is_empty() { "" } else { "." };
    Asked { verb, resource: format!("{}{dot}{group}", K::plural(&())), name: name.map(str::to_owned) }
}

/// Whether a Status proves that there is no such object: a 404 whose reason is NotFound and whose details name the
/// object and its kind. A 404 that a proxy made up, or that is about another kind or another path, proves nothing.
/// (kube's `get_opt` and `is_not_found` accept more than that.)
fn is_absent<K: Resource<DynamicType = ()>>(status: &Status, name: &str) -> bool {
    let about = |details: &kube::core::response::StatusDetails| {
        details.name == name && details.kind == K::plural(&()) && details.group == K::group(&())
    };
    status.is_failure()
        && status.code == 404
        && status.reason == "NotFound"
        && status.details.as_ref().is_some_and(about)
}

/// An API server for tests: routes that answer as a real one does.
#[cfg(test)]
pub(crate) mod fake {
    use super::Kubernetes;
    use axum::extract::State;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use axum::routing::{get, post};
    use axum::{Json, Router};
    use k8s_openapi::api::coordination::v1::Lease;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// Stands in for an API server whose namespace is `ns`.
    pub(crate) fn kubernetes(router: Router) -> Kubernetes {
        let client = kube::Client::new(router, "ns");
        Kubernetes::new(client, "ns").with_timeout(Duration::from_secs(1))
    }

    /// A Status as the API server words it.
    pub(crate) fn status(code: u16, reason: &str, group: &str, kind: &str, name: &str) -> Response {
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("{kind} \"{name}\" {reason}"), "reason": reason,
            "details": {"name": name, "group": group, "kind": kind}, "code": code,
        });
        (StatusCode::from_u16(code).expect("a status code"), Json(body)).into_response()
    }

    /// The one Lease of an API server, and how often it was written.
    pub(crate) type Stored = Arc<Mutex<(Option<Lease>, u64)>>;

    async fn read(State(stored): State<Stored>) -> Response {
        match &stored.lock().expect("the lease").0 {
            Some(lease) => Json(lease.clone()).into_response(),
            None => status(404, "NotFound", "coordination.k8s.io", "leases", "resync"),
        }
    }

    async fn create(State(stored): State<Stored>, Json(mut lease): Json<Lease>) -> Response {
        let mut stored = stored.lock().expect("the lease");
        if stored.0.is_some() {
            return status(409, "AlreadyExists", "coordination.k8s.io", "leases", "resync");
        }
        lease.metadata.uid = Some("l1".to_owned());
        store(&mut stored, lease)
    }

    async fn update(State(stored): State<Stored>, Json(lease): Json<Lease>) -> Response {
        let mut stored = stored.lock().expect("the lease");
        let version = stored.0.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        if version != lease.metadata.resource_version {
            return status(409, "Conflict", "coordination.k8s.io", "leases", "resync");
        }
        store(&mut stored, lease)
    }

    fn store(stored: &mut (Option<Lease>, u64), mut lease: Lease) -> Response {
        stored.1 += 1;
        lease.metadata.resource_version = Some(stored.1.to_string());
        stored.0 = Some(lease.clone());
        Json(lease).into_response()
    }

    /// Stands in for an API server that keeps one Lease, whatever its name.
    pub(crate) fn lease_server() -> (Kubernetes, Stored) {
        let stored = Stored::default();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
        let router = Router::new()
            .route(leases, post(create))
            .route(&format!("{leases}/{{name}}"), get(read).put(update))
            .with_state(stored.clone());
        (kubernetes(router), stored)
    }
}
