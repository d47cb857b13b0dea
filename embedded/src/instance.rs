//! One Kubernetes: the store behind one lock, and a bell that rings after every change.
//!
//! Whoever changes something, changes it here, and the controllers act before the lock is let go: what a request left
//! to be done is done when the bell rings.

use crate::store::Store;
use jiff::Timestamp;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// One Kubernetes.
#[derive(Debug)]
pub struct Instance {
    store: Mutex<Store>,
    bell: watch::Sender<u64>,
    clock: fn() -> Timestamp,
}

impl Instance {
    /// Makes one from a store, and the clock that it goes by.
    pub fn new(store: Store, clock: fn() -> Timestamp) -> Self {
        let bell = watch::Sender::new(store.version());
        Self { store: Mutex::new(store), bell, clock }
    }

    /// Looks at the store or changes it; then the controllers act, and the bell rings if anything changed.
    pub fn with<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.set_now((self.clock)());
        let done = act(&mut store);
        let version = store.version();
        drop(store);
        self.bell.send_if_modified(|known| std::mem::replace(known, version) != version);
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
}
