//! The controllers: what a change leaves to be done is done at once.
//!
//! Each looks at the objects as they are and does what is missing; none remembers anything or is told what changed.
//! They take turns until none finds anything to do, so that the next reader sees the end of it, or the point from
//! where it depends on something else: on the kubelet, or on time.

mod claims;
mod deployment;
mod garbage;
mod namespaces;
mod ownership;
mod pods;
mod replicaset;
mod scheduler;
mod statefulset;

use crate::events;
use crate::failure::Failure;
use crate::object;
use crate::resource::Kind;
use crate::store::{Key, Store};
use jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;

/// How often the controllers take turns at most. A handful of turns is what any change needs; should they ever disagree
/// forever, requests are still answered, and they continue from here after the next change.
const TURNS: usize = 200;

/// When time alone makes something due.
#[derive(Debug, Default)]
struct Due(Option<Timestamp>);

impl Due {
    fn at(&mut self, at: Timestamp) {
        self.0 = Some(self.0.map_or(at, |known| known.min(at)));
    }
}

/// Looks after one object of its kind.
type Act = fn(&mut Store, &Value, &mut Due) -> Result<(), Failure>;

/// Which controller looks after which kind, and its name in Events. Owners come before what they own.
const CONTROLLERS: [(Kind, &str, Act); 6] = [
    (Kind::Namespace, "namespace-controller", namespaces::act),
    (Kind::Deployment, deployment::COMPONENT, deployment::act),
    (Kind::ReplicaSet, replicaset::COMPONENT, replicaset::act),
    (Kind::StatefulSet, statefulset::COMPONENT, statefulset::act),
    (Kind::PersistentVolumeClaim, claims::COMPONENT, claims::act),
    (Kind::Pod, scheduler::COMPONENT, scheduler::act),
];

/// Lets the controllers act until there is nothing left to do. Tells when time alone will make something due.
///
/// It costs next to nothing if only Leases and Events changed since the last time.
pub fn settle(store: &mut Store) -> Option<Timestamp> {
    let (seen, due) = store.settled();
    if !matters(store, seen) && due.is_none_or(|due| due > store.now()) {
        return due;
    }
    for _ in 0..TURNS {
        let before = store.version();
        let due = turn(store).0;
        if !matters(store, before) {
            store.set_settled(store.version(), due);
            return due;
        }
    }
    debug_assert!(false, "the controllers find no end");
    Some(store.now())
}

/// Whether anything changed since a version that a controller could act upon.
fn matters(store: &Store, since: u64) -> bool {
    let Ok(mut changes) = store.changes_since(since) else { return true };
    changes.any(|change| {
        let of_itself = !matches!(change.key.kind, Kind::Lease | Kind::Event);
        of_itself || object::is_deleting(&change.object) || object::has_owner(&change.object)
    })
}

fn turn(store: &mut Store) -> Due {
    let mut due = Due::default();
    for (kind, component, act) in CONTROLLERS {
        let all: Vec<Arc<Value>> = store.list(kind, None).cloned().collect();
        for before in all {
            // What was done for one object may have changed the next.
            let Some(object) = store.find(&Key::of(kind, &before)).cloned() else { continue };
            if let Err(failure) = act(store, &object, &mut due) {
                let message = failure.to_string();
                events::record(store, &object, events::Type::Warning, "FailedSync", &message, component);
            }
        }
    }
    garbage::collect(store);
    events::forget(store);
    due
}

#[cfg(test)]
mod tests;
