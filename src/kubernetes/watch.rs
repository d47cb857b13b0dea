//! Watches that keep [`Observed`] up to date.
//!
//! Nothing is narrowed by selector, since an object that stops matching one looks like a deleted one. A kind that may
//! not be listed or watched becomes unknown, and known again when the right comes back. Any other trouble leaves what
//! was known as it is, and is retried. The objects are cut down to their slim form on arrival.

use super::{Asked, Kubernetes, asked, convert};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kaa_core::observed::objects::{Claim, Deployment, Named, Pod, StatefulSet};
use kaa_core::observed::{Listing, Observed};
use kube::Resource;
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long one watch request lasts before it is made anew: with it a connection that died silently is noticed within
/// about a minute (the library waits five seconds longer). A watch goes on where the last one ended, so a short one
/// costs a request and no list.
pub const WATCH_SECONDS: u32 = 60;

/// How long to wait before a kind that is forbidden is listed again: rights are granted by people.
const FORBIDDEN_RETRY: Duration = Duration::from_secs(10);

/// What is watched, by whoever shares it.
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
    let sink = Sink { observed, bump: Arc::new(bump) };
    let handles = vec![
        tokio::spawn(Kind { pick: stateful_sets, convert: convert::stateful_set }.follow(kubernetes, &sink)),
        tokio::spawn(Kind { pick: deployments, convert: convert::deployment }.follow(kubernetes, &sink)),
        tokio::spawn(Kind { pick: pods, convert: convert::pod }.follow(kubernetes, &sink)),
        tokio::spawn(Kind { pick: claims, convert: convert::claim }.follow(kubernetes, &sink)),
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
}

/// How a kind of object becomes what is kept of it.
struct Kind<K, T> {
    pick: fn(&mut Observed) -> &mut Listing<T>,
    convert: fn(&K) -> T,
}

impl<K, T> Kind<K, T>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send,
    K: 'static,
    T: Named + PartialEq + 'static,
{
    /// Feeds the events of this kind to the sink, for ever.
    fn follow(self, kubernetes: &Kubernetes, sink: &Sink) -> impl Future<Output = ()> + Send + use<K, T> {
        let (api, sink) = (kubernetes.api::<K>(), sink.clone());
        async move {
            let mut last_error = String::new();
            loop {
                let config = watcher::Config::default().timeout(WATCH_SECONDS);
                let mut events = std::pin::pin!(watcher::watcher(api.clone(), config).default_backoff());
                while let Some(event) = events.next().await {
                    let forbidden = match event {
                        Ok(event) => {
                            // The first event of a list comes before the request for it.
                            if !matches!(event, watcher::Event::Init) {
                                last_error.clear();
                            }
                            self.apply(&sink, event);
                            continue;
                        }
                        Err(error) => self.fail(&sink, &error, &mut last_error),
                    };
                    if forbidden {
                        break;
                    }
                }
                // From the start: a watch that merely goes on after a 403 would never list what became unknown.
                tokio::time::sleep(FORBIDDEN_RETRY).await;
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
        let line = describe(&asked::<K>(verb(error), None), error);
        if *last_error != line {
            tracing::warn!("{line}");
            last_error.clone_from(&line);
        }
        let forbidden = code(error) == Some(403);
        if forbidden {
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

fn verb(error: &watcher::Error) -> &'static str {
    match error {
        watcher::Error::InitialListFailed(_) => "list",
        watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => "watch",
    }
}

/// The HTTP status that the API server answered with.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

fn describe(asked: &Asked, error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => format!("cannot {asked}: {} ({})", super::told(status), status.code),
        other => format!("cannot {asked}: {other}"),
    }
}
