//! What belongs to whom: owner references, label selectors, and the adoption of what has no owner.

use crate::failure::Failure;
use crate::object::{self, list, metadata, uid};
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// The reference by which an object says that another controls it.
pub fn reference(kind: Kind, owner: &Value) -> Value {
    json!({
        "apiVersion": kind.resource().api_version(), "kind": kind.resource().name,
        "name": object::name(owner), "uid": uid(owner), "controller": true, "blockOwnerDeletion": true,
    })
}

/// Adds a reference to an object's owners, or takes it away.
pub fn refer(object: &mut Value, reference: &Value, wanted: bool) {
    let mut owners = list(object, "/metadata/ownerReferences").to_vec();
    if owners.iter().any(|owner| owner["uid"] == reference["uid"]) == wanted {
        return;
    }
    owners.retain(|owner| owner["uid"] != reference["uid"]);
    if wanted {
        owners.push(reference.clone());
    }
    if owners.is_empty() {
        metadata(object).remove("ownerReferences");
    } else {
        metadata(object).insert("ownerReferences".to_owned(), Value::Array(owners));
    }
}

/// Whether a workload's selector selects an object.
pub fn selects(selector: &Value, object: &Value) -> bool {
    let label = |key: &str| object::label(object, key);
    let mut equal = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = list(selector, "/matchExpressions").iter();
    equal.all(|(key, value)| label(key) == value.as_str())
        && expressions.all(|expression| {
            let found = label(object::text(expression, "/key"));
            let listed = found.is_some_and(|found| list(expression, "/values").iter().any(|value| value == found));
            match object::text(expression, "/operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// The objects of a kind that an owner controls. What its selector selects and no owner controls is adopted, which is how
/// a workload that was deleted with `--cascade=orphan` is taken over; what it does not select any more is let go.
pub fn claim(
    store: &mut Store,
    (owner_kind, owner): (Kind, &Value),
    kind: Kind,
    fits: impl Fn(&Value) -> bool,
) -> Result<Vec<Arc<Value>>, Failure> {
    let near: Vec<Arc<Value>> = store.list(kind, Some(object::namespace(owner))).cloned().collect();
    let reference = reference(owner_kind, owner);
    let mut claimed = Vec::new();
    for object in near {
        let fits = fits(&object) && selects(&owner["spec"]["selector"], &object);
        let change = |store: &mut Store, wanted| {
            store.edit(&Key::of(kind, &object), Part::Main, |object| refer(object, &reference, wanted))
        };
        match object::controller(&object) {
            Some(controller) if controller["uid"] != reference["uid"] => {}
            Some(_) if fits || object::is_deleting(owner) => claimed.push(object),
            Some(_) => drop(change(store, false)?),
            None if fits && !object::is_deleting(owner) && !object::is_deleting(&object) => {
                claimed.push(change(store, true)?);
            }
            None => {}
        }
    }
    Ok(claimed)
}
