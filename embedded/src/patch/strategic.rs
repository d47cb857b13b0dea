//! Strategic merge patches: lists of things with names are merged by name, and `$`-directives say what else to do.

use super::schema::{self, List};
use crate::failure::Failure;
use serde_json::{Map, Value};

const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

/// Merges a patch into an object.
pub fn merge(object: &mut Value, patch: &Map<String, Value>) -> Result<(), Failure> {
    merge_map(object.as_object_mut().expect("what is patched is an object"), patch, false)
}

/// Merges what is applied into an object: as a patch without directives, but what has one owner as a whole is replaced.
pub fn overlay(object: &mut Value, applied: &Value) -> Result<(), Failure> {
    let applied = applied.as_object().expect("what is applied is an object");
    merge_map(object.as_object_mut().expect("what is applied to is an object"), applied, true)
}

fn merge_map(object: &mut Map<String, Value>, patch: &Map<String, Value>, whole: bool) -> Result<(), Failure> {
    match patch.get("$patch").map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("delete") => {
            object.clear();
            return Ok(());
        }
        Some("replace") => object.clear(),
        Some(other) => return Err(Failure::bad_request(format!("Unknown patch type found: {other}"))),
    }
    if let Some(Value::Array(kept)) = patch.get("$retainKeys") {
        object.retain(|key, _| kept.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let (Some(field), Value::Array(gone)) = (key.strip_prefix(DELETE), value) {
            if let Some(Value::Array(items)) = object.get_mut(field) {
                items.retain(|item| !gone.contains(item));
            }
        } else if !key.starts_with('$') {
            merge_field(object, key, value, whole)?;
        }
    }
    for (key, value) in patch {
        if let (Some(field), Value::Array(order)) = (key.strip_prefix(ORDER), value)
            && let Some(Value::Array(items)) = object.get_mut(field)
        {
            sort(field, items, order);
        }
    }
    Ok(())
}

fn merge_field(object: &mut Map<String, Value>, key: &str, value: &Value, whole: bool) -> Result<(), Failure> {
    match value {
        Value::Null => drop(object.remove(key)),
        Value::Object(fields) => {
            let entry = object.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !entry.is_object() || (whole && schema::is_atomic(key)) {
                *entry = Value::Object(Map::new());
            }
            merge_map(entry.as_object_mut().expect("it is an object now"), fields, whole)?;
        }
        Value::Array(items) => {
            let entry = object.entry(key).or_insert_with(|| Value::Array(Vec::new()));
            if !entry.is_array() {
                *entry = Value::Array(Vec::new());
            }
            merge_list(key, entry.as_array_mut().expect("it is a list now"), items, whole)?;
        }
        other => drop(object.insert(key.to_owned(), other.clone())),
    }
    Ok(())
}

fn merge_list(field: &str, list: &mut Vec<Value>, patch: &[Value], whole: bool) -> Result<(), Failure> {
    let sample = if patch.is_empty() { list.as_slice() } else { patch };
    match schema::list(field, sample) {
        List::Atomic => *list = patch.to_vec(),
        List::Set => {
            for item in patch {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
        List::Map(keys) => {
            let replaces = |item: &&Value| item.get("$patch").is_some_and(|directive| directive == "replace");
            if patch.iter().any(|item| replaces(&item)) {
                *list = patch.iter().filter(|item| !replaces(item)).cloned().collect();
                return Ok(());
            }
            for item in patch {
                let fields = item.as_object().ok_or_else(|| {
                    Failure::bad_request(format!("the list {field:?} of a patch has an item that is no object: {item}"))
                })?;
                if !fields.contains_key(keys[0]) {
                    let why = format!("map: {item} does not contain declared merge key: {}", keys[0]);
                    return Err(Failure::bad_request(why));
                }
                if item.get("$patch").is_some_and(|directive| directive == "delete") {
                    list.retain(|known| !schema::same(keys, known, item));
                    continue;
                }
                let at = list.iter().position(|known| schema::same(keys, known, item)).unwrap_or_else(|| {
                    list.push(Value::Object(Map::new()));
                    list.len() - 1
                });
                if let Some(known) = list[at].as_object_mut() {
                    merge_map(known, fields, whole)?;
                }
            }
        }
    }
    Ok(())
}

/// Brings items into an order; those that it does not name keep their place among their neighbours.
fn sort(field: &str, items: &mut [Value], order: &[Value]) {
    let rank = |item: &Value| match schema::list(field, order) {
        List::Map(keys) => order.iter().position(|named| schema::same(keys, named, item)),
        List::Set | List::Atomic => order.iter().position(|named| named == item),
    };
    let mut named: Vec<(usize, Value)> = items.iter().filter_map(|item| Some((rank(item)?, item.clone()))).collect();
    named.sort_by_key(|(rank, _)| *rank);
    let mut named = named.into_iter().map(|(_, item)| item);
    for item in items.iter_mut() {
        if rank(item).is_some()
            && let Some(next) = named.next()
        {
            *item = next;
        }
    }
}
