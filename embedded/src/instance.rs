//! One Kubernetes: the store behind one lock, and a bell that rings after every change.
//!
//! All changes go through here, and the controllers act before the lock is released: what a request left
//! to be done is done when the bell rings.

use crate::controllers;
use crate::store::Store;
use jiff::Timestamp;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// One Kubernetes.
#[derive(Debug)]
pub struct Instance {
    store: Mutex<Store>,
    bell: watch::Sender<u64>,
    /// When time alone gives the controllers something to do.
    due: watch::Sender<Option<Timestamp>>,
    clock: fn() -> Timestamp,
}

impl Instance {
    /// Makes one from a store, and the clock that it goes by.
    pub fn new(store: Store, clock: fn() -> Timestamp) -> Self {
        let bell = watch::Sender::new(store.version());
        Self { store: Mutex::new(store), bell, due: watch::Sender::new(None), clock }
    }

    /// Looks at the store or changes it; then the controllers act, and the bell rings if anything changed.
    pub fn with<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.set_now((self.clock)());
        let done = act(&mut store);
        let due = controllers::settle(&mut store);
        let version = store.version();
        self.due.send_if_modified(|known| std::mem::replace(known, due) != due);
        self.bell.send_if_modified(|known| std::mem::replace(known, version) != version);
        drop(store);
        done
    }

    /// Only looks.
    pub fn look<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.set_now((self.clock)());
        look(&store)
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Rings with the version of every change.
    pub fn bell(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }

    /// Wakes the controllers whenever time gives them something to do, for as long as it is polled.
    pub async fn run_timers(&self) {
        let mut due = self.due.subscribe();
        loop {
            let next = *due.borrow_and_update();
            // The moment itself is past only when the clock shows a later one: hence one millisecond more.
            let wait = next.map(|at| at.duration_since((self.clock)()).as_millis().max(0) + 1);
            let wait = wait.and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis);
            tokio::select! {
                changed = due.changed() => changed.expect("the sender is a part of what is borrowed here"),
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => self.with(|_| ()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Instance;
    use crate::resource::Kind;
    use crate::store::{Key, Store};
    use crate::{hollow, object};
    use jiff::Timestamp;
    use serde_json::json;
    use std::sync::Arc;

    #[tokio::test]
    async fn what_is_due_by_time_alone_is_done() {
        let mut store = Store::new(1, Timestamp::now());
        store.create(Kind::Namespace, json!({"metadata": {"name": "default"}})).unwrap();
        hollow::node(&mut store, "node");
        let instance = Arc::new(Instance::new(store, Timestamp::now));
        let mut bell = instance.bell();
        let timers = tokio::spawn({
            let instance = instance.clone();
            async move { instance.run_timers().await }
        });
        let set = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 1, "minReadySeconds": 1, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        });
        instance.with(|store| store.create(Kind::ReplicaSet, set)).unwrap();
        instance.with(hollow::run_all);
        let key = Key::new(Kind::ReplicaSet, "default", "web");
        let available = |store: &mut Store| object::number(store.get(&key).unwrap(), "/status/availableReplicas");
        while instance.with(available) != Some(1) {
            bell.changed().await.unwrap();
        }
        timers.abort();
    }
}
