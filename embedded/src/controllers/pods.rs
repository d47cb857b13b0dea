//! What the workloads' controllers want to know of a pod, and how they make one.

use super::{Due, ownership};
use crate::object::{self, list, metadata, number, text};
use crate::resource::Kind;
use crate::store::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// Letters that make no words; as many as a digit is turned into one of.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Where a pod is in its life.
pub fn phase(pod: &Value) -> &str {
    match text(pod, "/status/phase") {
        "" => "Pending",
        phase => phase,
    }
}

/// A condition of an object's status.
pub fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|condition| condition["type"] == name)
}

/// Whether it runs and is ready.
pub fn is_ready(pod: &Value) -> bool {
    phase(pod) == "Running" && condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// Whether it has been ready for as long as its owner wants it to be.
pub fn is_available(store: &Store, owner: &Value, pod: &Value, due: &mut Due) -> bool {
    let seconds = number(owner, "/spec/minReadySeconds").unwrap_or(0);
    if !is_ready(pod) || seconds == 0 {
        return is_ready(pod);
    }
    let Some(since) = time_of(condition(pod, "Ready").map_or("", |ready| text(ready, "/lastTransitionTime"))) else {
        return true;
    };
    let at = since.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    if at > store.now() {
        due.at(at);
    }
    at <= store.now()
}

/// A time as objects hold it.
pub fn time_of(written: &str) -> Option<Timestamp> {
    written.parse().ok()
}

/// Whether it has ended for good.
pub fn has_ended(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether it counts as one that runs or is going to.
pub fn is_active(pod: &Value) -> bool {
    !has_ended(pod) && !object::is_deleting(pod)
}

/// The names of the claims it uses.
pub fn claims(pod: &Value) -> impl Iterator<Item = &str> {
    list(pod, "/spec/volumes").iter().filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// A pod as a template wants it, controlled by an owner. It has no name yet.
pub fn from_template(owner_kind: Kind, owner: &Value, template: &Value) -> Value {
    let mut pod = json!({"metadata": {}, "spec": template["spec"]});
    let of_pod = metadata(&mut pod);
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template["metadata"].get(field) {
            of_pod.insert(field.to_owned(), value.clone());
        }
    }
    of_pod.insert("namespace".to_owned(), json!(object::namespace(owner)));
    of_pod.insert("generateName".to_owned(), json!(format!("{}-", object::name(owner))));
    ownership::refer(&mut pod, &ownership::reference(owner_kind, owner), true);
    pod
}

/// Sets labels.
pub fn label<const N: usize>(object: &mut Value, labels: [(&str, &str); N]) {
    let known = metadata(object).entry("labels").or_insert_with(|| Value::Object(Map::new()));
    for (key, value) in labels {
        known[key] = json!(value);
    }
}

/// A short name for a template, in the form in which Kubernetes hashes one (FNV-1a, in letters). It differs from the one
/// that Kubernetes finds for the same template, which does no harm: templates are compared, never hashes.
pub fn hash(template: &Value, collisions: i64) -> String {
    let text = if collisions == 0 { template.to_string() } else { format!("{template}{collisions}") };
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    let number = text.bytes().fold(2_166_136_261, fnv);
    number.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

/// Writes a count into a status, which leaves out those that are zero.
pub fn count(status: &mut Map<String, Value>, field: &str, count: i64) {
    if count == 0 {
        status.remove(field);
    } else {
        status.insert(field.to_owned(), json!(count));
    }
}
