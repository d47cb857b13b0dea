//! Leads the clients of databases with one primary to its servers, by the EndpointSlices of the Services `NAME-rw` and `NAME-ro`.
//!
//! The resync leader writes at once. The other agents of the cluster write what still disagrees a moment later: its agent may be away,
//! while the API server is not. Without the permission nothing is written, and nothing else changes: clients find the primary by
//! `target_session_attrs`.

use super::Shared;
use crate::config::BACKOFF;
use crate::kubernetes::Error;
use crate::kubernetes::slices::{self, Published};
use kaa_core::replication::route::{AsOf, Route, routes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// How long an agent that does not lead the resync waits for the one that does.
const OTHERS_AFTER: Duration = Duration::from_secs(2);
/// How often the agent reads a slice again that it has not changed: another writer may have.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The pause after another failure.
const FAILED: Duration = Duration::from_secs(5);
/// How long nothing is tried after the API server has refused.
const REFUSED: Duration = Duration::from_secs(60);

/// What was last published of a route.
struct Known {
    route: Route,
    /// Since when the domain says it.
    since: Instant,
    /// When the agent reads the slice next; `None` at once.
    again: Option<Instant>,
}

impl Shared {
    /// Publishes the routes of this cluster. Runs until the agent ends.
    pub async fn publish_routes(self: Arc<Self>) {
        let shared = &self;
        let mut applied = shared.raft.applied();
        let mut known: BTreeMap<String, Known> = BTreeMap::new();
        let mut forbidden = false;
        loop {
            applied.mark_unchanged();
            let epoch = shared.raft.status().epoch;
            let (index, routes) = shared.raft.read(|domain| (domain.index, routes(domain, &shared.config.cluster)));
            known.retain(|name, _| routes.iter().any(|route| route.name() == *name));
            let leads = shared.other_resync_leader().is_none();
            let mut next = Instant::now() + LOOK_AGAIN;
            for route in routes {
                let name = route.name();
                let now = Instant::now();
                let entry = known.entry(name.clone()).or_insert_with(|| Known {
                    route: route.clone(),
                    since: now,
                    again: None,
                });
                if entry.route != route {
                    *entry = Known { route: route.clone(), since: now, again: None };
                }
                let due = entry.again.unwrap_or(if leads { now } else { entry.since + OTHERS_AFTER });
                if due > now {
                    next = next.min(due);
                    continue;
                }
                let published = slices::publish(&shared.kubernetes, &route, AsOf { epoch, index }).await;
                let pause = report(&name, &route, &published, &mut forbidden);
                entry.again = Some(Instant::now() + pause);
                next = next.min(Instant::now() + pause);
            }
            tokio::select! {
                changed = applied.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(next) => {}
                () = shared.stopping() => return,
            }
        }
    }
}

/// Says what came of publishing a route, and gives for how long nothing more is to be done.
fn report(name: &str, route: &Route, published: &Result<Published, Error>, forbidden: &mut bool) -> Duration {
    match published {
        Ok(Published::Written) => {
            let pods: Vec<&str> = route.endpoints.iter().map(|endpoint| endpoint.pod.as_str()).collect();
            info!(
                "endpointslice {name}: clients are led to {}",
                if pods.is_empty() { "no pod".to_owned() } else { pods.join(", ") }
            );
            *forbidden = false;
            LOOK_AGAIN
        }
        Ok(Published::Same) => LOOK_AGAIN,
        Ok(Published::Later) => {
            debug!("endpointslice {name} was written as of a later state of the domain");
            BACKOFF
        }
        // An API server that does not know the kind, as the embedded one, says so too.
        Err(error @ (Error::Forbidden { .. } | Error::Unproven { .. })) => {
            if !std::mem::replace(forbidden, true) {
                info!(
                    "{}: clients find the primary by target_session_attrs; Service {name} leads nowhere",
                    error.to_line()
                );
            }
            REFUSED
        }
        Err(Error::Conflict { .. } | Error::Exists { .. }) => BACKOFF,
        Err(error) => {
            warn!("endpointslice {name} was not written: {}", error.to_line());
            FAILED
        }
    }
}
