//! Watches that keep [`Observed`] up to date.
//!
//! Nothing is narrowed by selector, since an object that stops matching one looks like a deleted one. A kind that may
//! not be listed or watched becomes unknown, and known again when the right comes back. Any other trouble leaves what
//! was known as it is, and is retried. The objects are cut down to their slim form on arrival.

use super::permissions::Permissions;
use super::{Asked, Error, Kubernetes, asked, convert};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kaa_core::observed::objects::{Claim, Deployment, Named, Pod, StatefulSet};
use kaa_core::observed::{Listing, Observed};
use kube::core::Status;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long one watch request lasts before it is recreated. A watch continues where the last one ended, so that costs a
/// request and no list. A connection that died silently is noticed sooner, by the bookmarks that do not come
/// ([`super::READ_TIMEOUT`]).
const WATCH_SECONDS: u32 = 290;

/// How long to wait before a kind that is forbidden is listed again: permissions are granted by people.
const FORBIDDEN_RETRY: Duration = Duration::from_secs(10);

/// How long to wait after any other error, and by how much several agents are spread.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_SPREAD_MS: u64 = 500;

/// A watch that failed is tried again at the same pace, however often it fails: the library's own pause grows to 30 s, and
/// for so long an agent would not see that an API server is back.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(steady())
    }
}

/// One such pause.
fn steady() -> Duration {
    RETRY + Duration::from_millis(crate::clock::random_below(RETRY_SPREAD_MS))
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

/// What the watches show, shared with its readers.
pub type Shared = Arc<RwLock<Observed>>;

/// Watches under way.
#[derive(Debug)]
pub struct Watching {
    /// Grows with each event that changed something which is kept.
    pub changed: watch::Receiver<u64>,
    /// One task for each kind; they end when they are aborted.
    pub handles: Vec<JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.handles.iter().for_each(JoinHandle::abort);
    }
}

/// Starts to watch every kind of object that decisions look at.
pub fn start(kubernetes: &Kubernetes, observed: Shared) -> Watching {
    let (bump, changed) = watch::channel(0);
    let sink = Sink { observed, bump: Arc::new(bump), permissions: kubernetes.permissions.clone() };
    let (prefix, again) = (kubernetes.annotation_prefix.clone(), kubernetes.annotation_prefix.clone());
    let sets = Kind::new(stateful_sets, move |object| convert::stateful_set(object, &prefix));
    let deployments = Kind::new(deployments, move |object| convert::deployment(object, &again));
    let handles = vec![
        tokio::spawn(sets.follow(kubernetes, &sink)),
        tokio::spawn(deployments.follow(kubernetes, &sink)),
        tokio::spawn(Kind::new(pods, convert::pod).follow(kubernetes, &sink)),
        tokio::spawn(Kind::new(claims, convert::claim).follow(kubernetes, &sink)),
    ];
    Watching { changed, handles }
}

fn stateful_sets(observed: &mut Observed) -> &mut Listing<StatefulSet> {
    &mut observed.stateful_sets
}

fn deployments(observed: &mut Observed) -> &mut Listing<Deployment> {
    &mut observed.deployments
}

fn pods(observed: &mut Observed) -> &mut Listing<Pod> {
    &mut observed.pods
}

fn claims(observed: &mut Observed) -> &mut Listing<Claim> {
    &mut observed.claims
}

/// Where events go.
#[derive(Clone)]
struct Sink {
    observed: Shared,
    bump: Arc<watch::Sender<u64>>,
    permissions: Permissions,
}

/// How a kind of object becomes what is kept of it.
struct Kind<K, T> {
    pick: fn(&mut Observed) -> &mut Listing<T>,
    convert: Box<dyn Fn(&K) -> T + Send + Sync>,
}

impl<K, T> Kind<K, T>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send,
    K: 'static,
    T: Named + PartialEq + 'static,
{
    fn new(pick: fn(&mut Observed) -> &mut Listing<T>, convert: impl Fn(&K) -> T + Send + Sync + 'static) -> Self {
        Self { pick, convert: Box::new(convert) }
    }

    /// Feeds the events of this kind to the sink, forever.
    fn follow(self, kubernetes: &Kubernetes, sink: &Sink) -> impl Future<Output = ()> + Send + use<K, T> {
        let (api, sink) = (kubernetes.api::<K>(), sink.clone());
        async move {
            let mut last_error = String::new();
            loop {
                let pause = self.follow_once(api.clone(), &sink, &mut last_error).await;
                // From the start: a watch that merely continues after a 403 would never list what became unknown.
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Feeds the events of one list and the watches after it, until it has to begin again; returns how long to wait before.
    async fn follow_once(&self, api: Api<K>, sink: &Sink, last_error: &mut String) -> Duration {
        let mut withdrawn = sink.permissions.withdrawn();
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let mut events = pin!(watcher::watcher(api, config).backoff(Steady));
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                // The API server lets a running watch continue without the permission. A new one shows what is missing.
                Ok(()) = withdrawn.changed() => match sink.permissions.may_watch(&asked::<K>("list", None).resource) {
                    true => continue,
                    false => return Duration::ZERO,
                },
            };
            match event {
                Some(Ok(event)) => {
                    // The first event of a list comes before the request for it.
                    if !matches!(event, watcher::Event::Init) {
                        last_error.clear();
                    }
                    self.apply(sink, event);
                }
                Some(Err(error)) if self.fail(sink, &error, last_error) => return FORBIDDEN_RETRY,
                Some(Err(_)) => {}
                None => return RETRY,
            }
        }
    }

    fn apply(&self, sink: &Sink, event: watcher::Event<K>) {
        sink.update(|observed| {
            let listing = (self.pick)(observed);
            match event {
                watcher::Event::Init => {
                    listing.restart();
                    false
                }
                watcher::Event::InitApply(object) => {
                    listing.list((self.convert)(&object));
                    false
                }
                watcher::Event::InitDone => listing.complete(),
                watcher::Event::Apply(object) => listing.apply((self.convert)(&object)),
                watcher::Event::Delete(object) => listing.delete((self.convert)(&object).name()),
            }
        });
    }

    /// Notes an error. Returns whether a right is missing.
    fn fail(&self, sink: &Sink, error: &watcher::Error, last_error: &mut String) -> bool {
        let line = describe(asked::<K>(verb(error), None), error);
        if *last_error != line {
            tracing::warn!("{line}");
            last_error.clone_from(&line);
        }
        let forbidden = status(error).is_some_and(|status| status.code == 403);
        if forbidden {
            let asked = asked::<K>(verb(error), None);
            sink.permissions
                .judge::<()>(&asked, &Err(Error::Forbidden { asked: asked.clone(), message: line.clone() }));
            sink.update(|observed| (self.pick)(observed).forbid(line));
        }
        forbidden
    }
}

impl Sink {
    /// Changes what is observed, and says so if the change returns true.
    fn update(&self, change: impl FnOnce(&mut Observed) -> bool) {
        let mut observed = self.observed.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut observed);
        drop(observed);
        if changed {
            self.bump.send_modify(|count| *count += 1);
        }
    }
}

/// What is seen of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It may have changed since it was read last.
    Changed,
    /// It is not watched now: why.
    Unwatched(String),
}

/// Follows one object by its name, and tells what is seen of it. A Role that names the object is enough. Runs until it is dropped.
pub async fn follow_one<K>(kubernetes: Kubernetes, name: String, tell: impl Fn(Seen) + Send)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send,
    K: 'static,
{
    let config = watcher::Config::default().timeout(WATCH_SECONDS).fields(&format!("metadata.name={name}"));
    loop {
        // Each begins with a list, which shows what was missed.
        let mut events = pin!(watcher::watcher(kubernetes.api::<K>(), config.clone()));
        let pause = loop {
            match events.next().await {
                Some(Ok(watcher::Event::Init | watcher::Event::InitApply(_))) => {}
                // Also that the first list is complete: it is of a later moment than the last read.
                Some(Ok(_)) => tell(Seen::Changed),
                Some(Err(error)) => {
                    tell(Seen::Unwatched(describe(asked::<K>(verb(&error), Some(&name)), &error)));
                    let refused = status(&error).is_some_and(|status| matches!(status.code, 403 | 404));
                    break if refused { FORBIDDEN_RETRY } else { steady() };
                }
                None => break steady(),
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn verb(error: &watcher::Error) -> &'static str {
    match error {
        watcher::Error::InitialListFailed(_) => "list",
        watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => "watch",
    }
}

/// What the API server answered, if it did.
fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

fn describe(asked: Asked, error: &watcher::Error) -> String {
    match status(error) {
        Some(status) => Error::of(asked, kube::Error::Api(Box::new(status.clone()))).to_line(),
        None => format!("cannot {asked}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::body::Body;
    use axum::extract::Query;
    use axum::response::IntoResponse;
    use axum::routing::get;
    use axum::{Json, Router};
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use kaa_core::observed::Unknown;
    use kube::core::PartialObjectMeta;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tokio::sync::mpsc;
    use watcher::Event;

    fn kind() -> Kind<PersistentVolumeClaim, Claim> {
        Kind::new(claims, convert::claim)
    }

    fn sink() -> (Sink, watch::Receiver<u64>) {
        let (bump, changed) = watch::channel(0);
        (Sink { observed: Shared::default(), bump: Arc::new(bump), permissions: Permissions::default() }, changed)
    }

    fn claim(name: &str, note: &str) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        (claim.metadata.name, claim.metadata.uid) = (Some(name.to_owned()), Some("u".to_owned()));
        claim.metadata.annotations = Some([("note".to_owned(), note.to_owned())].into());
        claim
    }

    fn names(sink: &Sink) -> Result<Vec<String>, Unknown> {
        sink.observed.read().expect("observed").claims.known().map(|claims| claims.keys().cloned().collect())
    }

    #[test]
    fn only_what_is_kept_wakes_those_who_wait() {
        let (sink, changed) = sink();
        kind().apply(&sink, Event::Init);
        kind().apply(&sink, Event::InitApply(claim("a", "")));
        assert_eq!((names(&sink), *changed.borrow()), (Err(Unknown::Syncing), 0));
        kind().apply(&sink, Event::InitDone);
        assert_eq!((names(&sink), *changed.borrow()), (Ok(vec!["a".to_owned()]), 1));
        kind().apply(&sink, Event::Apply(claim("a", "an annotation is not kept")));
        assert_eq!(*changed.borrow(), 1);
        kind().apply(&sink, Event::Apply(claim("b", "")));
        kind().apply(&sink, Event::Delete(claim("a", "")));
        assert_eq!((names(&sink), *changed.borrow()), (Ok(vec!["b".to_owned()]), 3));
    }

    #[test]
    fn a_missing_right_makes_a_kind_unknown_and_other_trouble_does_not() {
        let (sink, changed) = sink();
        let mut last_error = String::new();
        kind().apply(&sink, Event::Init);
        kind().apply(&sink, Event::InitDone);
        let broken = watcher::Error::WatchError(Status::failure("etcd is slow", "").with_code(500).boxed());
        assert!(!kind().fail(&sink, &broken, &mut last_error));
        assert_eq!((names(&sink), *changed.borrow()), (Ok(vec![]), 1));
        let forbidden = Status::failure("claims are forbidden", "Forbidden").with_code(403).boxed();
        let forbidden = watcher::Error::InitialListFailed(kube::Error::Api(forbidden));
        assert!(kind().fail(&sink, &forbidden, &mut last_error));
        assert_eq!(sink.permissions.missing().len(), 1);
        let why = "no permission to list persistentvolumeclaims: claims are forbidden".to_owned();
        assert_eq!((names(&sink), *changed.borrow()), (Err(Unknown::Forbidden(why)), 2));
        assert!(kind().fail(&sink, &forbidden, &mut last_error));
        assert_eq!(*changed.borrow(), 2, "said once");
        kind().apply(&sink, Event::Init);
        kind().apply(&sink, Event::InitDone);
        assert_eq!((names(&sink), *changed.borrow()), (Ok(vec![]), 3));
    }

    /// An API server lets a watch continue whose permission was withdrawn meanwhile.
    #[tokio::test]
    async fn a_watch_begins_again_when_its_permission_is_withdrawn() {
        let lists = Arc::new(AtomicU64::new(0));
        let listed = lists.clone();
        let answer = async move |Query(query): Query<BTreeMap<String, String>>| {
            if query.contains_key("watch") {
                return Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>()).into_response();
            }
            listed.fetch_add(1, Ordering::Relaxed);
            let metadata = serde_json::json!({"resourceVersion": "1"});
            Json(serde_json::json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": []}))
                .into_response()
        };
        let path = "/api/v1/namespaces/ns/persistentvolumeclaims";
        let kubernetes = fake::kubernetes(Router::new().route(path, get(answer)));
        let (bump, _changed) = watch::channel(0);
        let permissions = kubernetes.permissions.clone();
        let sink = Sink { observed: Shared::default(), bump: Arc::new(bump), permissions: permissions.clone() };
        let following = tokio::spawn(kind().follow(&kubernetes, &sink));
        let listed_times = async |times: u64| {
            let so_often = async {
                while lists.load(Ordering::Relaxed) < times {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(testkit::wait::PATIENCE, so_often).await.expect("a list");
        };
        listed_times(1).await;
        let of = |resource: &str| Asked { verb: "list", resource: resource.to_owned(), name: None };
        for resource in ["pods", "persistentvolumeclaims"] {
            let asked = of(resource);
            let error = Error::Forbidden { asked: asked.clone(), message: "no".to_owned() };
            permissions.judge::<()>(&asked, &Err(error));
        }
        listed_times(2).await;
        following.abort();
    }

    /// What is seen of the EndpointSlice `shop-rw`, at an API server that answers so.
    fn seen<R: IntoResponse + 'static>(answer: fn(&BTreeMap<String, String>) -> R) -> mpsc::Receiver<Seen> {
        let (tell, told) = mpsc::channel(8);
        let answer = async move |Query(query): Query<BTreeMap<String, String>>| {
            assert_eq!(query["fieldSelector"], "metadata.name=shop-rw", "a Role that names it allows no more");
            answer(&query)
        };
        let path = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices";
        let kubernetes = fake::kubernetes(Router::new().route(path, get(answer)));
        let tell = move |seen| drop(tell.try_send(seen));
        tokio::spawn(follow_one::<PartialObjectMeta<EndpointSlice>>(kubernetes, "shop-rw".to_owned(), tell));
        told
    }

    #[tokio::test]
    async fn one_object_is_seen_when_its_list_is_complete_and_with_each_change() {
        let mut told = seen(|query| {
            let meta = |version| serde_json::json!({"name": "shop-rw", "namespace": "ns", "resourceVersion": version});
            let object = |version| serde_json::json!({"metadata": meta(version)});
            if !query.contains_key("watch") {
                let list = serde_json::json!({"metadata": {"resourceVersion": "1"}, "items": [object("1")]});
                return Json(list).into_response();
            }
            let line = |kind, version| format!("{}\n", serde_json::json!({"type": kind, "object": object(version)}));
            let lines = [line("MODIFIED", "2"), line("DELETED", "3")].map(Ok::<_, std::io::Error>);
            let rest = futures::stream::pending();
            Body::from_stream(futures::stream::iter(lines).chain(rest)).into_response()
        });
        for _ in 0..3 {
            assert_eq!(told.recv().await, Some(Seen::Changed));
        }
        assert!(told.try_recv().is_err());
    }

    #[tokio::test]
    async fn one_object_that_may_not_be_watched_says_so() {
        let mut told = seen(|_| fake::status(403, "Forbidden", "discovery.k8s.io", "endpointslices", "shop-rw"));
        let Some(Seen::Unwatched(why)) = told.recv().await else { panic!("not refused") };
        assert!(why.starts_with("no permission to list endpointslices.discovery.k8s.io shop-rw"), "{why}");
    }
}
