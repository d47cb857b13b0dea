//! Events: what a controller or the kubelet tells people about an object.
//!
//! The same thing said again is counted, as client-go does, instead of told twice. The scheduler's are in the same form
//! as all others, although Kubernetes has a newer one for them.

use crate::object::{self, list, number, text, time};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part, Store};
use jiff::SignedDuration;
use serde_json::{Value, json};

/// How long an Event is kept after it was last seen.
const KEPT: SignedDuration = SignedDuration::from_hours(1);

/// Whether it is worth an operator's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// It is as it should be.
    Normal,
    /// It is not.
    Warning,
}

/// Tells something about an object that is stored. In a namespace that is being deleted nothing can be told; the object
/// itself is about to go, and no client waits for its Events.
pub fn record(store: &mut Store, about: &Value, kind: Type, reason: &str, message: &str, component: &str) {
    let kind = match kind {
        Type::Normal => "Normal",
        Type::Warning => "Warning",
    };
    let namespace = match object::namespace(about) {
        "" => "default",
        namespace => namespace,
    };
    let now = time(store.now());
    let involved = |event: &Value| text(event, "/involvedObject/uid") == object::uid(about);
    let says = |event: &Value| event["type"] == kind && event["reason"] == reason && event["message"] == message;
    let by = |event: &Value| text(event, "/source/component") == component;
    let known = store.list(Kind::Event, Some(namespace)).find(|event| involved(event) && says(event) && by(event));
    if let Some(key) = known.map(|event| Key::of(Kind::Event, event)) {
        let again = store.edit(&key, Part::Main, |event| {
            event["count"] = json!(number(event, "/count").unwrap_or(1) + 1);
            event["lastTimestamp"] = json!(now);
        });
        debug_assert!(again.is_ok(), "{again:?}");
        return;
    }
    let name = format!("{}.{:016x}", object::name(about), store.ids().number());
    let event = json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": about["apiVersion"], "kind": about["kind"], "namespace": namespace,
            "name": object::name(about), "uid": object::uid(about), "resourceVersion": about["metadata"]["resourceVersion"],
        },
        "type": kind, "reason": reason, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now, "eventTime": null,
        "source": {"component": component}, "reportingComponent": component, "reportingInstance": "",
    });
    let told = store.create(Kind::Event, event);
    debug_assert!(told.is_ok() || is_closing(store, namespace), "{told:?}");
}

fn is_closing(store: &Store, namespace: &str) -> bool {
    store.find(&Key::new(Kind::Namespace, "", namespace)).is_none_or(|namespace| object::is_deleting(namespace))
}

/// Deletes the Events that were not repeated for an hour.
pub fn forget(store: &mut Store) {
    let since = time(store.now() - KEPT);
    // Times of one form are in the order of their letters. An Event of another client may have another time, or none.
    let last = |event: &Value| {
        let times = ["/lastTimestamp", "/series/lastObservedTime", "/eventTime", "/metadata/creationTimestamp"];
        times.map(|pointer| text(event, pointer).to_owned()).into_iter().max().unwrap_or_default()
    };
    let old: Vec<Key> = store
        .list(Kind::Event, None)
        .filter(|event| last(event) < since && list(event, "/metadata/finalizers").is_empty())
        .map(|event| Key::of(Kind::Event, event))
        .collect();
    for key in old {
        let forgotten = store.delete(&key, &DeleteOptions::default());
        debug_assert!(forgotten.is_ok(), "{forgotten:?}");
    }
}
