//! Ordinals, and the claims that belong to them.
//!
//! A claim outlives its pod: it is named for the ordinal, and the next pod of that ordinal gets its data. Whether it
//! ends with its ordinal or with its set is said by owner references, which the garbage collector acts upon.

use super::super::{ownership, pods};
use super::COMPONENT;
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{self, list, name, namespace, number, text};
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use serde_json::{Value, json};
use std::ops::Range;

/// Whether a pod's claims are there.
#[derive(Debug, PartialEq, Eq)]
pub enum Provided {
    /// They are.
    All,
    /// The one of this name is, but is being deleted.
    Leaving(String),
    /// One is, but belongs to a pod of the same name that is gone: it is about to go too. (Kubernetes 1.33 waits for the
    /// same and may then forget to look again until something else happens to the set. This one looks.)
    Stale,
}

/// The ordinals that a set wants.
pub fn wanted(set: &Value) -> Range<i64> {
    let start = number(set, "/spec/ordinals/start").unwrap_or(0);
    start..start + number(set, "/spec/replicas").unwrap_or(1)
}

/// The ordinal in the name of a set's pod.
pub fn ordinal(set: &Value, pod: &str) -> Option<i64> {
    let written = pod.strip_prefix(name(set))?.strip_prefix('-')?;
    written.parse().ok().filter(|ordinal: &i64| ordinal.to_string() == written)
}

/// The claims of an ordinal: template and name.
fn claims(set: &Value, ordinal: i64) -> impl Iterator<Item = (&Value, String)> {
    let named = move |template: &Value| format!("{}-{}-{ordinal}", name(template), name(set));
    list(set, "/spec/volumeClaimTemplates").iter().map(move |template| (template, named(template)))
}

fn key(set: &Value, claim: &str) -> Key {
    Key::new(Kind::PersistentVolumeClaim, namespace(set), claim)
}

/// Gives an ordinal's pod its claims; each takes the place of a volume of the same name.
pub fn mount(set: &Value, pod: &mut Value, ordinal: i64) {
    let claims: Vec<_> = claims(set, ordinal).collect();
    if claims.is_empty() {
        return;
    }
    let volume = |(template, claim): &(&Value, String)| {
        let claim = json!({"claimName": claim});
        json!({"name": name(template), "persistentVolumeClaim": claim})
    };
    let other = |volume: &&Value| !claims.iter().any(|(template, _)| name(template) == text(volume, "/name"));
    let others = list(pod, "/spec/volumes").iter().filter(other).cloned();
    pod["spec"]["volumes"] = claims.iter().map(volume).chain(others).collect();
}

/// Makes the claims of an ordinal that are not there.
pub fn provide(store: &mut Store, set: &Value, ordinal: i64) -> Result<Provided, Failure> {
    let pod = format!("{}-{ordinal}", name(set));
    let gone = |store: &Store, owner: &Value| {
        let key = Key::new(Kind::Pod, namespace(set), &pod);
        owner["kind"] == "Pod"
            && owner["name"] == pod.as_str()
            && store.find(&key).is_none_or(|pod| object::uid(pod) != owner["uid"])
    };
    let mut provided = Provided::All;
    for (template, claim) in claims(set, ordinal) {
        match store.find(&key(set, &claim)) {
            Some(found) if list(found, "/metadata/ownerReferences").iter().any(|owner| gone(store, owner)) => {
                return Ok(Provided::Stale);
            }
            Some(found) if object::is_deleting(found) => provided = Provided::Leaving(claim),
            Some(_) => {}
            None => create(store, set, template, &claim, &pod)?,
        }
    }
    Ok(provided)
}

fn create(store: &mut Store, set: &Value, template: &Value, claim: &str, pod: &str) -> Result<(), Failure> {
    let mut object = json!({"metadata": template["metadata"], "spec": template["spec"]});
    for (key, value) in set["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten() {
        pods::label(&mut object, [(key, value.as_str().unwrap_or_default())]);
    }
    object["metadata"]["name"] = json!(claim);
    object["metadata"]["namespace"] = json!(namespace(set));
    let made = store.create(Kind::PersistentVolumeClaim, object);
    let set_name = name(set);
    let (kind, reason, message) = match &made {
        Ok(_) => {
            let message = format!("create Claim {claim} Pod {pod} in StatefulSet {set_name} success");
            (Type::Normal, "SuccessfulCreate", message)
        }
        Err(failure) => {
            let message =
                format!("create Claim {claim} for Pod {pod} in StatefulSet {set_name} failed error: {failure}");
            (Type::Warning, "FailedCreate", message)
        }
    };
    events::record(store, set, kind, reason, &message, COMPONENT);
    made.map(drop)
}

/// Says by owner references with whom the claims of a pod go, as `persistentVolumeClaimRetentionPolicy` has it.
pub fn retain(store: &mut Store, set: &Value, ordinal: i64, pod: &Value) -> Result<(), Failure> {
    let deletes = |when: &str| set["spec"]["persistentVolumeClaimRetentionPolicy"][when] == "Delete";
    let with_pod = deletes("whenScaled") && !wanted(set).contains(&ordinal);
    let with_set = deletes("whenDeleted") && !with_pod;
    for (_, claim) in claims(set, ordinal) {
        let key = key(set, &claim);
        if store.find(&key).is_none() {
            continue;
        }
        store.edit(&key, Part::Main, |claim| {
            ownership::refer(claim, &ownership::reference(Kind::StatefulSet, set), with_set);
            ownership::refer(claim, &ownership::reference(Kind::Pod, pod), with_pod);
        })?;
    }
    Ok(())
}
