//! Leads the clients of databases with one primary to its servers, by the EndpointSlices of the Services `NAME-rw` and `NAME-ro`.
//!
//! The resync leader writes at once. The other agents of the cluster write what still disagrees a moment later: its agent may be away,
//! while the API server is not. Without the permission nothing is written, and nothing else changes: clients find the primary by
//! `target_session_attrs`.

use super::Shared;
use crate::config::BACKOFF;
use crate::http::source::Routing;
use crate::kubernetes::Error;
use crate::kubernetes::slices::{self, Known, Published};
use kaa_core::domain::ids::DatabaseName;
use kaa_core::replication::route::{AsOf, Purpose, Route, routes};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
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
struct Last {
    route: Route,
    /// Since when the domain says it.
    since: Instant,
    /// When the agent reads the slice next; `None` at once.
    again: Option<Instant>,
}

/// What came of the slices that this agent published or read last, by their names.
#[derive(Debug, Default)]
pub(super) struct Slices(Mutex<BTreeMap<String, Routing>>);

impl Slices {
    /// Whether the Services of a database are kept.
    pub(super) fn of(&self, database: &DatabaseName) -> Routing {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let both = [Purpose::ReadWrite, Purpose::ReadOnly].map(|purpose| {
            let route = Route { database: database.clone(), purpose, endpoints: Vec::new() };
            known.get(&route.name()).cloned().unwrap_or_default()
        });
        match both {
            [Routing::Forbidden(why), _] | [_, Routing::Forbidden(why)] => Routing::Forbidden(why),
            [Routing::Kept, Routing::Kept] => Routing::Kept,
            _ => Routing::Unknown,
        }
    }

    fn note(&self, name: &str, published: &Result<Published, Error>) {
        let routing = match published {
            Ok(Published::Written | Published::Same) => Routing::Kept,
            // It leads elsewhere, and this agent does not know yet who is right.
            Ok(Published::Later(_)) => Routing::Unknown,
            Err(Error::Forbidden { asked, .. }) => Routing::Forbidden(format!("no permission to {asked}")),
            Err(Error::Unproven { .. }) => Routing::Unknown,
            // That shows nothing.
            Err(_) => return,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), routing);
    }
}

impl Shared {
    /// Publishes the routes of this cluster. Runs until the agent ends.
    pub async fn publish_routes(self: Arc<Self>) {
        let shared = &self;
        let mut applied = shared.raft.applied();
        let mut known: BTreeMap<String, Last> = BTreeMap::new();
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
                let entry =
                    known.entry(name.clone()).or_insert_with(|| Last { route: route.clone(), since: now, again: None });
                if entry.route != route {
                    *entry = Last { route: route.clone(), since: now, again: None };
                }
                let due = entry.again.unwrap_or(if leads { now } else { entry.since + OTHERS_AFTER });
                if due > now {
                    next = next.min(due);
                    continue;
                }
                let published = shared.publish_route(&route, AsOf { epoch, index }).await;
                shared.slices.note(&name, &published);
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

impl Shared {
    /// Publishes one route. What an agent of this domain has applied, a read shows too that a quorum confirms later: so a slice as of a
    /// state that such a read does not reach is no slice of this domain. It outlived a domain that was deleted, or this one was restored
    /// as it was before.
    async fn publish_route(&self, route: &Route, as_of: AsOf) -> Result<Published, Error> {
        let domain = self.raft.status().domain;
        let known = Known { domain: &domain, as_of, never_was: None };
        let published = slices::publish(&self.kubernetes, route, known).await;
        let Ok(Published::Later(found)) = published else { return published };
        // A later epoch is founded by an override: then it is this agent that may be of the past.
        if found.epoch != as_of.epoch || self.raft.linearize().await.is_err() {
            return published;
        }
        let now = self.raft.status();
        if (&now.domain, now.epoch) != (&domain, as_of.epoch) {
            return published;
        }
        let (index, routes) = self.raft.read(|domain| (domain.index, routes(domain, &self.config.cluster)));
        let Some(route) = routes.iter().find(|it| it.name() == route.name()) else { return published };
        let as_of = AsOf { index, ..as_of };
        if found > as_of {
            warn!(
                "endpointslice {} was written as of entry {found}, and this domain has got to {as_of} only: it is of another one, or from \
                 before a restore, and is replaced",
                route.name()
            );
        }
        let known = Known { domain: &domain, as_of, never_was: Some(found).filter(|found| *found > as_of) };
        slices::publish(&self.kubernetes, route, known).await
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
        Ok(Published::Later(found)) => {
            debug!("endpointslice {name} was written as of entry {found}, which is not before what is known here");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::Asked;
    use kaa_core::domain::ids::MembershipEpoch;

    #[test]
    fn services_are_kept_if_both_slices_are_and_a_refusal_names_its_permission() {
        let slices = Slices::default();
        let asked = Asked {
            verb: "get",
            resource: "endpointslices.discovery.k8s.io".to_owned(),
            name: Some("shop-ro".to_owned()),
        };
        let forbidden = || Err(Error::Forbidden { asked: asked.clone(), message: "no".to_owned() });
        let shop = || slices.of(&"shop".into());
        slices.note("shop-rw", &Ok(Published::Written));
        assert_eq!(shop(), Routing::Unknown, "the other one was not read yet");
        slices.note("shop-ro", &forbidden());
        let why = "no permission to get endpointslices.discovery.k8s.io shop-ro".to_owned();
        assert_eq!(shop(), Routing::Forbidden(why.clone()));
        slices.note("shop-ro", &Err(Error::Silent { asked: asked.clone(), after: FAILED }));
        assert_eq!(shop(), Routing::Forbidden(why), "silence shows nothing");
        slices.note("shop-ro", &Ok(Published::Same));
        assert_eq!((shop(), slices.of(&"other".into())), (Routing::Kept, Routing::Unknown));
        let found = AsOf { epoch: MembershipEpoch(1), index: 900 };
        slices.note("shop-ro", &Ok(Published::Later(found)));
        assert_eq!(shop(), Routing::Unknown, "it leads elsewhere");
    }
}
