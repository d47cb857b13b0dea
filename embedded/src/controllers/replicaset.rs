//! ReplicaSets: so many pods, whichever.

use super::{Due, ownership, pods};
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{self, list, name, namespace, number, text};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part, Store};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::sync::Arc;

/// Its name in Events.
pub const COMPONENT: &str = "replicaset-controller";

/// Looks after a set.
pub fn act(store: &mut Store, set: &Value, due: &mut Due) -> Result<(), Failure> {
    let mut own = ownership::claim(store, (Kind::ReplicaSet, set), Kind::Pod, |_| true)?;
    own.retain(|pod| pods::is_active(pod));
    if !object::is_deleting(set) {
        scale(store, set, &own)?;
    }
    let total = |fits: &mut dyn FnMut(&Value) -> bool| own.iter().map(|pod| i64::from(fits(pod))).sum::<i64>();
    let labels = set["spec"]["template"]["metadata"]["labels"].as_object();
    let labelled =
        |pod: &Value| labels.into_iter().flatten().all(|(key, value)| pod["metadata"]["labels"][key] == *value);
    let (replicas, full, ready) = (total(&mut |_| true), total(&mut |pod| labelled(pod)), total(&mut pods::is_ready));
    let available = total(&mut |pod| pods::is_available(store, set, pod, due));
    store.edit(&Key::new(Kind::ReplicaSet, namespace(set), name(set)), Part::Status, |set| {
        let generation = set["metadata"]["generation"].clone();
        let status = object::entry(set, "status");
        status.insert("observedGeneration".to_owned(), generation);
        status.insert("replicas".to_owned(), json!(replicas));
        pods::count(status, "fullyLabeledReplicas", full);
        pods::count(status, "readyReplicas", ready);
        pods::count(status, "availableReplicas", available);
    })?;
    Ok(())
}

fn scale(store: &mut Store, set: &Value, own: &[Arc<Value>]) -> Result<(), Failure> {
    let wanted = usize::try_from(number(set, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
    for _ in own.len()..wanted {
        let pod = pods::from_template(Kind::ReplicaSet, set, &set["spec"]["template"]);
        match store.create(Kind::Pod, pod) {
            Ok(pod) => tell(store, set, "SuccessfulCreate", &format!("Created pod: {}", name(&pod))),
            Err(failure) => {
                let message = format!("Error creating: {failure}");
                events::record(store, set, Type::Warning, "FailedCreate", &message, COMPONENT);
                break;
            }
        }
    }
    let mut by_worth: Vec<&Arc<Value>> = own.iter().collect();
    by_worth.sort_by_cached_key(|pod| worth(pod));
    for pod in by_worth.into_iter().take(own.len().saturating_sub(wanted)) {
        let only_this = DeleteOptions { uid: Some(object::uid(pod).to_owned()), ..DeleteOptions::default() };
        store.delete(&Key::of(Kind::Pod, pod), &only_this)?;
        tell(store, set, "SuccessfulDelete", &format!("Deleted pod: {}", name(pod)));
    }
    Ok(())
}

fn tell(store: &mut Store, set: &Value, reason: &str, message: &str) {
    events::record(store, set, Type::Normal, reason, message, COMPONENT);
}

/// What a pod is worth; the least goes first: one that is on no node, one that does not run, one that is not ready, one
/// that is cheap by its annotation, one that is ready for a shorter time, one that was restarted more often, one that is
/// younger.
fn worth(pod: &Value) -> impl Ord + use<> {
    let cost = &pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
    let cost: i64 = cost.as_str().and_then(|cost| cost.parse().ok()).unwrap_or(0);
    let since = pods::condition(pod, "Ready").map_or("", |ready| text(ready, "/lastTransitionTime"));
    let restarts =
        list(pod, "/status/containerStatuses").iter().filter_map(|status| number(status, "/restartCount")).max();
    (
        !text(pod, "/spec/nodeName").is_empty(),
        pods::phase(pod) == "Running",
        pods::is_ready(pod),
        cost,
        Reverse(since.to_owned()),
        Reverse(restarts),
        Reverse(text(pod, "/metadata/creationTimestamp").to_owned()),
        object::uid(pod).to_owned(),
    )
}
