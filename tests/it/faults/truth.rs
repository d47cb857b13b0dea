//! What was true in Kubernetes at which moment, independent of what the API showed.

use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{Event, Key};
use kaa::clock;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A change is noted within this time.
const LATE_MS: u64 = 250;

/// The states of an object, oldest first, each with the time from which it held; `None`: the object did not exist.
type Line = Vec<(u64, Option<Arc<Value>>)>;

/// Records every change from the call of `begin` on.
#[derive(Clone, Default)]
pub struct Truth {
    lines: Arc<Mutex<BTreeMap<Key, Line>>>,
}

impl Truth {
    /// Begins to record. Continues as long as the runtime lives in which this is called.
    pub fn begin(instance: Arc<Instance>) -> Self {
        let truth = Self::default();
        let (noting, mut bell) = (truth.clone(), instance.bell());
        let mut seen = instance.look(|store| {
            for kind in [Kind::StatefulSet, Kind::PersistentVolumeClaim, Kind::Pod] {
                for found in store.list(kind, None) {
                    noting.note(Key::of(kind, found), Some(found.clone()));
                }
            }
            store.version()
        });
        tokio::spawn(async move {
            while bell.changed().await.is_ok() {
                seen = instance.look(|store| {
                    for change in store.changes_since(seen).expect("nothing is forgotten so soon") {
                        let there = change.event != Event::Deleted;
                        noting.note(change.key.clone(), there.then(|| change.object.clone()));
                    }
                    store.version()
                });
            }
        });
        truth
    }

    fn note(&self, key: Key, object: Option<Arc<Value>>) {
        self.lines.lock().unwrap().entry(key).or_default().push((clock::now().0, object));
    }

    /// The states of an object at all moments between `from` and `to`, in milliseconds of the wall clock. Before its
    /// first record the object did not exist.
    fn between(&self, kind: Kind, name: &str, from: u64, to: u64) -> Vec<Option<Arc<Value>>> {
        let lines = self.lines.lock().unwrap();
        let mut was = vec![None];
        for (_, line) in lines.iter().filter(|(key, _)| key.kind == kind && key.name == name) {
            for (at, object) in line.iter().filter(|(at, _)| *at <= to + LATE_MS) {
                if *at <= from {
                    was.clear();
                }
                was.push(object.clone());
            }
        }
        was
    }

    /// Whether there was a moment at which no object of this name existed.
    pub fn was_absent(&self, kind: Kind, name: &str, from: u64, to: u64) -> bool {
        self.between(kind, name, from, to).iter().any(Option::is_none)
    }

    /// Whether there was a moment at which the StatefulSet had this UID and generation and wanted this number of
    /// replicas.
    pub fn wanted(&self, name: &str, uid: &str, generation: i64, replicas: i64, from: u64, to: u64) -> bool {
        self.between(Kind::StatefulSet, name, from, to).iter().flatten().any(|set| {
            object::uid(set) == uid
                && object::number(set, "/metadata/generation") == Some(generation)
                && object::number(set, "/spec/replicas") == Some(replicas)
        })
    }

    /// Whether at this time the pod was being deleted, or was gone.
    pub fn is_going(&self, pod: &str, uid: &str, at: u64) -> bool {
        let stays = |pod: &Arc<Value>| object::uid(pod) == uid && !object::is_deleting(pod);
        !self.between(Kind::Pod, pod, at + LATE_MS, at + LATE_MS).iter().flatten().any(stays)
    }

    /// Whether at this time the object with this UID still existed.
    pub fn is_there(&self, uid: &str, at: u64) -> bool {
        let lines = self.lines.lock().unwrap();
        let then =
            |line: &Line| line.iter().rfind(|(noted, _)| *noted <= at + LATE_MS).and_then(|(_, object)| object.clone());
        lines.values().filter_map(then).any(|object| object::uid(&object) == uid)
    }
}
