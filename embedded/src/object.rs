//! What all objects have, read from their JSON.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// What is at a JSON pointer whose keys have no escapes in them: `Value::pointer`, which looks for escapes, makes two
/// strings of each key, and objects are read all the time.
fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(object, |value, key| match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    })
}

/// The text at a JSON pointer; empty if there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a JSON pointer.
pub fn number(object: &Value, pointer: &str) -> Option<i64> {
    at(object, pointer).and_then(Value::as_i64)
}

/// The list at a JSON pointer; empty if there is none.
pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    at(object, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Its name.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Its namespace; empty for one that is in none.
pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// Its UID.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// A label's value.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, "/metadata/labels")?.get(key)?.as_str()
}

/// Whether its deletion has begun.
pub fn is_deleting(object: &Value) -> bool {
    at(object, "/metadata/deletionTimestamp").is_some()
}

/// Whether it says that others own it.
pub fn has_owner(object: &Value) -> bool {
    !list(object, "/metadata/ownerReferences").is_empty()
}

/// The reference to the controller that owns it.
pub fn controller(object: &Value) -> Option<&Value> {
    list(object, "/metadata/ownerReferences").iter().find(|owner| owner["controller"] == true)
}

/// Whether it has a finalizer.
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    list(object, "/metadata/finalizers").iter().any(|known| known == finalizer)
}

/// The object at a key of another, made if it is not there.
///
/// # Panics
/// If something else than an object is there.
pub fn entry<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let entry = object.as_object_mut().expect("an object").entry(key.to_owned());
    entry.or_insert_with(|| Value::Object(Map::new())).as_object_mut().expect("an object")
}

/// Its metadata.
///
/// # Panics
/// If it has none that is an object: what comes from outside is checked before.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    entry(object, "metadata")
}

/// A time as objects hold it: to the second.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time as Leases and Events hold it: to the microsecond.
pub fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
