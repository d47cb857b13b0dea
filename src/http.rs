//! The REST API, the probes and the metrics: every route on one screen.
//!
//! GETs answer from what this server has applied, also without a quorum; the header `kaa-applied-index` says how far
//! that is. Only `kvstore` is linearizable, since clients use it as proof of a quorum. Paths, field names and error
//! bodies are those of the published client; what is ours alone lives under `/api/1/kaa/`. What changes the domain asks
//! who calls (`writer`).

mod archives;
mod balancer;
mod clusters;
mod databases;
mod diagnostics;
mod domain;
mod drain;
mod error;
mod explain;
mod extract;
mod health;
mod kube;
mod large;
mod membership;
mod offers;
mod own;
mod page;
mod pause;
mod recover;
mod replication;
pub mod rows;
mod serve;
mod servers;
mod snapshot;
pub mod source;
mod stop;
mod tasks;
mod versions;
mod whatif;
mod writer;
mod writes;

pub use balancer::{Balancer, RouteAnswer, VerdictRow};
pub use drain::DrainAnswer;
pub use error::Error;
pub use explain::{Change, Explanation};
pub use membership::{MembershipAnswer, SaidRow};
pub use own::{PlanAnswer, WaitingRow};
pub use page::{MAX_LIMIT, Page};
pub use pause::{AdoptAnswer, PauseAnswer};
pub use recover::{RecoverAnswer, RecoverServer, Retired};
pub use replication::{
    ChangeRow, Coded, MoveAnswer, PlaceRow, PrimaryRow, ReplicationAnswer, ServerRow, SurvivalRow, SwitchoverRow,
    SyncSetRow, WarningRow,
};
pub use serve::{CONNECTIONS, serve};
pub use snapshot::{BroughtArchive, Document, MAX_DOCUMENT_BYTES, RestoreAnswer, TakenFrom, Unreadable};
pub use tasks::{TaskRow, TaskStepRow, TasksAnswer};
pub use versions::VersionsRow;
pub use whatif::{StepRow, WhatIfAnswer};
pub use writer::{From, OwnPod};

use crate::auth::credentials::Credentials;
use crate::auth::throttle::Throttle;
use crate::metrics::Metrics;
use crate::net::Tls;
use crate::net::refusals::Refusals;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, Method, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use axum::{Json, Router};
use serde::Serialize;
use source::Source;
use std::sync::Arc;
use std::time::Duration;

/// The header that says how far the answering server has applied the log.
pub const APPLIED_INDEX: HeaderName = HeaderName::from_static("kaa-applied-index");

/// The greatest body of a request that changes nothing: a line for the log.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The longest that one request may take, reading its body included. Published clients wait for 30 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// What the handlers share.
#[derive(Clone)]
pub struct Face {
    /// What the agent knows.
    pub source: Arc<dyn Source>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Who may change the domain from outside the pod by name and password. Without it, no operator can.
    pub credentials: Option<Arc<Credentials>>,
    /// Whose client certificates are accepted. None if the agent serves in clear only.
    pub people: Option<People>,
    /// How callers in its own pod are known.
    pub own_pod: OwnPod,
    /// Who was refused.
    pub refusals: Refusals,
    /// How often a caller may fail to authenticate.
    pub throttle: Arc<Throttle>,
    /// What decisions of load balancing share.
    pub balancer: Arc<Balancer>,
}

/// What people's certificates are judged by.
#[derive(Clone)]
pub struct People {
    /// The certificate in use, whose authority vouches.
    pub tls: Tls,
    /// The domain's name, which theirs have to bear.
    pub domain: String,
}

impl Face {
    /// A face that only the agent's own pod may write to, which is known by its loopback address.
    pub fn new(source: Arc<dyn Source>, metrics: Arc<Metrics>) -> Self {
        let (refusals, throttle) = (Refusals::new(metrics.clone()), Arc::default());
        let own_pod = OwnPod { by_address: true, token: None };
        let balancer = Arc::default();
        Self { source, metrics, credentials: None, people: None, own_pod, refusals, throttle, balancer }
    }
}

/// Every route.
pub fn router(face: Face) -> Router {
    Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/api/1/peers", get(domain::peers))
        .route("/api/1/peers/{id}", get(domain::peer).delete(servers::delete))
        .route("/api/1/peers/{id}/shutdown", post(servers::shutdown))
        .route("/api/1/processes", get(domain::processes))
        .route("/api/1/processes/exited", get(domain::exited))
        .route("/api/1/processes/{id}", get(domain::process))
        .route("/api/1/processes/{id}/options", get(domain::process_options))
        .route("/api/1/archives", get(domain::archives).post(archives::create))
        .route("/api/1/archives/{id}", get(domain::archive).put(archives::resurrect).delete(archives::delete))
        .route("/api/1/databases", get(domain::databases))
        .route("/api/1/databases/{name}", get(domain::database).put(databases::create).delete(databases::delete))
        .route("/api/1/databases/{name}/options", post(databases::configure))
        .route("/api/1/databases/{name}/shutdown", post(databases::shutdown))
        .route("/api/1/databases/{name}/capture", get(databases::capture))
        .route("/api/1/databases/{name}/storageGroups", get(databases::storage_groups))
        .route("/api/1/databases/{name}/sqlConnection", get(balancer::sql_connection))
        .route("/api/1/databases/loadBalancerPolicies", get(balancer::policies))
        .route("/api/1/databases/loadBalancerConfigs", get(balancer::configs))
        .route("/api/1/databases/loadBalancerConfig", post(balancer::set_config))
        .route("/api/1/databases/loadBalancerPolicy/{name}", post(balancer::set_policy).delete(balancer::delete_policy))
        .route("/api/1/databases/{name}/versions", get(versions::shown))
        .route("/api/1/databases/{name}/upgrade", post(versions::upgrade))
        .route("/api/1/kvstore/{*key}", put(writes::set_value).layer(DefaultBodyLimit::max(writes::MAX_BODY_BYTES)))
        .route("/api/1/kvstore/{*key}", get(domain::value))
        .route("/api/1/diagnostics/log", post(domain::log))
        .route("/api/1/diagnostics/config", get(diagnostics::this_config))
        .route("/api/1/diagnostics/config/{id}", get(diagnostics::config_of))
        .route("/api/1/diagnostics/kube", get(kube::kube))
        .route("/api/1/diagnostics/captureDomainState", get(diagnostics::capture))
        .route("/api/1/policies/license", get(diagnostics::license))
        // Requests that are not there yet, and would be taken for names.
        .route("/api/1/peers/certificates", any(unknown))
        .route("/api/1/processes/availableOptions", any(unknown))
        .route("/api/1/databases/hotCopyStatus", any(unknown))
        .route("/api/1/kaa/plan", get(own::plan))
        .route("/api/1/kaa/route/{name}", get(balancer::route))
        .route("/api/1/kaa/membership", get(membership::membership))
        .route("/api/1/kaa/pause", get(pause::shown).put(pause::pause).delete(pause::resume))
        .route("/api/1/kaa/adopt", post(pause::adopt))
        .route("/api/1/kaa/clusters/{name}", delete(clusters::forget))
        .route("/api/1/kaa/drain", post(drain::drain))
        .route("/api/1/kaa/recover", get(recover::shown).post(recover::recover))
        .route("/api/1/kaa/replication/{name}", get(replication::shown))
        .route("/api/1/kaa/replication/{name}/switchover", post(replication::switch_over))
        .route("/api/1/kaa/replication/{name}/failover", post(replication::fail_over))
        .route("/api/1/kaa/replication/{name}/adopt", post(replication::adopt))
        .route("/api/1/kaa/replication/{name}/discard", post(replication::discard))
        .route("/api/1/kaa/snapshot", post(snapshot::restore).layer(DefaultBodyLimit::max(snapshot::MAX_BODY_BYTES)))
        .route("/api/1/kaa/snapshot", get(snapshot::save))
        .route("/api/1/kaa/tasks", get(tasks::list))
        .route("/api/1/kaa/tasks/{id}", get(tasks::shown))
        .route("/api/1/kaa/tasks/{id}/cancel", post(tasks::cancel))
        .route("/api/1/kaa/explain/{*subject}", get(explain::explain))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(within_time))
        // It has a limit of its own, since it may be asked to wait.
        .route("/api/1/processes/{id}", delete(writes::end_process))
        .with_state(face)
}

async fn unknown(method: Method, uri: Uri) -> Error {
    let path = uri.path();
    if let Some(refusal) = offers::refusal(&method, path) {
        return refusal;
    }
    if path.starts_with("/api/") {
        Error::NotImplemented { method, path: path.to_owned() }
    } else {
        Error::NotFound(format!("there is nothing at {path}: the API is below /api/1"))
    }
}

async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Error::TimedOut(REQUEST_TIMEOUT.as_secs()).into_response(),
    }
}

/// An answer, and how far the log was applied when it was read.
pub struct Answer<T> {
    index: u64,
    body: T,
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        ([(APPLIED_INDEX, self.index.to_string())], Json(self.body)).into_response()
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
