//! Leads the clients of databases with one primary to its servers, by the EndpointSlices of the Services `NAME-rw` and `NAME-ro`.
//!
//! The resync leader writes at once. The other agents of the cluster write what still disagrees a moment later: its agent may be away,
//! while the API server is not. Without the permission nothing is written, and nothing else changes: clients find the primary by
//! `target_session_attrs`.

use super::Shared;
use crate::config::BACKOFF;
use crate::http::source::Routing;
use crate::kubernetes::slices::{self, Known, Published};
use crate::kubernetes::watch::{Seen, follow_one};
use crate::kubernetes::{Error, Kubernetes};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kaa_core::domain::ids::DatabaseName;
use kaa_core::replication::route::{AsOf, Purpose, Route, routes};
use kube::core::PartialObjectMeta;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// How long an agent that does not lead the resync waits for the one that does. That one may be lost with the primary, and until the slice
/// leads to the next one, clients connect to an address that does not answer.
const OTHERS_AFTER: Duration = Duration::from_millis(250);
/// How often the agent reads a slice that it does not watch: another writer may have changed it.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// How long after it has read a slice the agent reads it again because it was changed: another writer that does not give up costs little.
const CHANGED: Duration = Duration::from_secs(1);
/// The pause after another failure.
const FAILED: Duration = Duration::from_secs(5);
/// How long nothing is tried after the API server has refused.
const REFUSED: Duration = Duration::from_secs(60);

/// What was last published of a route.
struct Last {
    route: Route,
    /// Since when the domain says it.
    since: Instant,
    next: Next,
    /// Once it was published.
    watch: Option<Watch>,
}

/// When the agent reads a slice next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// As soon as it is its turn.
    AtOnce,
    At(Instant),
    /// It was read at that time: once another writer may have changed it, or after a while if it is not watched.
    Changed(Instant),
}

/// A slice that is followed.
struct Watch {
    seen: watch::Receiver<Option<Seen>>,
    /// Ends with this.
    task: AbortHandle,
}

impl Watch {
    fn begin(kubernetes: &Kubernetes, name: &str, wake: &Arc<Notify>) -> Self {
        let ((tell, seen), wake) = (watch::channel(None), wake.clone());
        let tell = move |what| {
            tell.send_replace(Some(what));
            wake.notify_one();
        };
        let follow = follow_one::<PartialObjectMeta<EndpointSlice>>(kubernetes.clone(), name.to_owned(), tell);
        Self { seen, task: tokio::spawn(follow).abort_handle() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Last {
    fn new(route: &Route, now: Instant, watch: Option<Watch>) -> Self {
        Self { route: route.clone(), since: now, next: Next::AtOnce, watch }
    }

    /// Takes note of what was seen of the slice.
    fn look(&mut self, name: &str) {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.seen.has_changed().is_ok_and(|changed| changed))
        else {
            return;
        };
        match (watch.seen.borrow_and_update().as_ref(), self.next) {
            (Some(Seen::Unwatched(why)), _) => debug!("endpointslice {name} is read every {LOOK_AGAIN:?}: {why}"),
            (Some(Seen::Changed), Next::Changed(read)) => self.next = Next::At(read + CHANGED),
            _ => {}
        }
    }

    /// When it is to be read; `None` if only once it has changed.
    fn due(&self, leads: bool, now: Instant) -> Option<Instant> {
        let is_watched = || self.watch.as_ref().is_some_and(|watch| *watch.seen.borrow() == Some(Seen::Changed));
        match self.next {
            Next::AtOnce => Some(if leads { now } else { self.since + OTHERS_AFTER }),
            Next::At(at) => Some(at),
            Next::Changed(read) => (!is_watched()).then_some(read + LOOK_AGAIN),
        }
    }
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
            [Routing::Refused(why), _] | [_, Routing::Refused(why)] => Routing::Refused(why),
            [Routing::Kept, Routing::Kept] => Routing::Kept,
            _ => Routing::Unknown,
        }
    }

    fn note(&self, name: &str, published: &Result<Published, Error>) {
        let routing = match published {
            Ok(Published::Written | Published::Same) => Routing::Kept,
            // It leads elsewhere, and this agent does not know yet who is right.
            Ok(Published::Later(_)) => Routing::Unknown,
            // An admission plugin refuses with the same code: its words say which rule it asks for.
            Err(error @ Error::Forbidden { .. }) => Routing::Refused(error.to_line()),
            Err(error) if is_refused(error) => Routing::Refused(error.to_line()),
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
        let (mut forbidden, wake) = (false, Arc::new(Notify::new()));
        loop {
            applied.mark_unchanged();
            let epoch = shared.raft.status().epoch;
            let (index, routes) = shared.raft.read(|domain| (domain.index, routes(domain, &shared.config.cluster)));
            known.retain(|name, _| routes.iter().any(|route| route.name() == *name));
            let leads = shared.other_resync_leader().is_none();
            let mut next: Option<Instant> = None;
            for route in routes {
                let (name, now) = (route.name(), Instant::now());
                let entry = known.entry(name.clone()).or_insert_with(|| Last::new(&route, now, None));
                if entry.route != route {
                    *entry = Last::new(&route, now, entry.watch.take());
                }
                entry.look(&name);
                let mut due = entry.due(leads, now);
                if due.is_some_and(|due| due <= now) {
                    let published = shared.publish_route(&route, AsOf { epoch, index }).await;
                    shared.slices.note(&name, &published);
                    entry.next = report(&name, &route, &published, &mut forbidden);
                    if published.is_ok() && entry.watch.is_none() {
                        entry.watch = Some(Watch::begin(&shared.kubernetes, &name, &wake));
                    }
                    due = entry.due(leads, now);
                }
                next = [next, due].into_iter().flatten().min();
            }
            tokio::select! {
                changed = applied.changed() => if changed.is_err() { return },
                () = wake.notified() => {}
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
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
        // One state of the domain has one route: what says another one as of the same state is not of an agent.
        let known = Known { domain: &domain, as_of, never_was: Some(found).filter(|found| *found >= as_of) };
        slices::publish(&self.kubernetes, route, known).await
    }
}

/// Whether the API server would refuse it again: a database whose name is not one for a Service, or addresses of another family than the
/// slice was created with.
fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Refused { code: 400 | 422, .. })
}

/// Says what came of publishing a route, and gives when the slice is read next.
fn report(name: &str, route: &Route, published: &Result<Published, Error>, forbidden: &mut bool) -> Next {
    let now = Instant::now();
    match published {
        Ok(Published::Written) => {
            let pods: Vec<&str> = route.endpoints.iter().map(|endpoint| endpoint.pod.as_str()).collect();
            info!(
                "endpointslice {name}: clients are led to {}",
                if pods.is_empty() { "no pod".to_owned() } else { pods.join(", ") }
            );
            *forbidden = false;
            Next::Changed(now)
        }
        Ok(Published::Same) => Next::Changed(now),
        Ok(Published::Later(found)) => {
            debug!("endpointslice {name} was written as of entry {found}, which is not before what is known here");
            Next::At(now + BACKOFF)
        }
        // An API server that does not know the kind, as the embedded one, says so too.
        Err(error @ (Error::Forbidden { .. } | Error::Unproven { .. })) => {
            if !std::mem::replace(forbidden, true) {
                info!(
                    "{}: clients find the primary by target_session_attrs; Service {name} leads nowhere",
                    error.to_line()
                );
            }
            Next::At(now + REFUSED)
        }
        Err(error) if is_refused(error) => {
            warn!("endpointslice {name} was not written: {}", error.to_line());
            Next::At(now + REFUSED)
        }
        Err(Error::Conflict { .. } | Error::Exists { .. }) => Next::At(now + BACKOFF),
        Err(error) => {
            warn!("endpointslice {name} was not written: {}", error.to_line());
            Next::At(now + FAILED)
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
        let why = "no permission to get endpointslices.discovery.k8s.io shop-ro: no".to_owned();
        assert_eq!(shop(), Routing::Refused(why.clone()));
        slices.note("shop-ro", &Err(Error::Silent { asked: asked.clone(), after: FAILED }));
        assert_eq!(shop(), Routing::Refused(why), "silence shows nothing");
        slices.note("shop-ro", &Ok(Published::Same));
        assert_eq!((shop(), slices.of(&"other".into())), (Routing::Kept, Routing::Unknown));
        let found = AsOf { epoch: MembershipEpoch(1), index: 900 };
        slices.note("shop-ro", &Ok(Published::Later(found)));
        assert_eq!(shop(), Routing::Unknown, "it leads elsewhere");
    }

    #[tokio::test]
    async fn a_slice_is_read_when_another_writer_may_have_changed_it() {
        let (tell, seen) = watch::channel(None);
        let watch = Watch { seen, task: tokio::spawn(std::future::pending::<()>()).abort_handle() };
        let route = Route { database: "shop".into(), purpose: Purpose::ReadWrite, endpoints: Vec::new() };
        let began = Instant::now();
        let mut last = Last::new(&route, began, Some(watch));
        assert_eq!(last.due(true, began), Some(began));
        assert_eq!(last.due(false, began), Some(began + OTHERS_AFTER), "the resync leader writes");
        let later = began + LOOK_AGAIN;
        last.next = Next::Changed(began);
        last.look("shop-rw");
        assert_eq!(last.due(true, later), Some(later), "no watch has begun yet");
        tell.send_replace(Some(Seen::Changed));
        last.look("shop-rw");
        assert_eq!(last.due(true, later), Some(began + CHANGED));
        last.next = Next::Changed(began);
        last.look("shop-rw");
        assert_eq!(last.due(true, later), None, "it was read since");
        tell.send_replace(Some(Seen::Unwatched("no".to_owned())));
        last.look("shop-rw");
        assert_eq!(last.due(true, began), Some(later), "it may not be watched");
        last.next = Next::At(later);
        tell.send_replace(Some(Seen::Changed));
        last.look("shop-rw");
        assert_eq!(last.due(true, began), Some(later), "the API server has refused to write it");
    }
}
