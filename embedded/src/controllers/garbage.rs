//! The garbage collector: what becomes of objects whose owners go.
//!
//! An object whose owners are all gone is deleted. An owner that is deleted in the foreground waits for those that say
//! that they hold it; one that orphans what it owns waits until they have forgotten it.

use super::ownership;
use crate::events;
use crate::failure::Failure;
use crate::object::{self, has_finalizer, list, metadata, namespace, uid};
use crate::resource::{Kind, RESOURCES};
use crate::store::{DeleteOptions, FOREGROUND, Key, ORPHAN, Part, Propagation, Store};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name in Events.
const COMPONENT: &str = "garbage-collector-controller";

/// How an owner is.
#[derive(PartialEq, Eq)]
enum Owner {
    Stays,
    /// Waits for those it owns.
    Waits,
    Gone,
}

/// All objects that own, are owned, or are going.
struct Graph {
    by_uid: BTreeMap<String, Arc<Value>>,
    concerned: Vec<(Key, Arc<Value>)>,
}

/// Deletes objects whose owners are all gone, and releases owners that need not wait any longer.
pub fn collect(store: &mut Store) {
    let mut graph = Graph { by_uid: BTreeMap::new(), concerned: Vec::new() };
    for resource in &RESOURCES {
        for object in store.list(resource.kind, None) {
            if object::has_owner(object) || object::is_deleting(object) {
                graph.concerned.push((Key::of(resource.kind, object), object.clone()));
            }
            graph.by_uid.insert(uid(object).to_owned(), object.clone());
        }
    }
    for (key, object) in &graph.concerned {
        let done = if object::is_deleting(object) {
            graph.let_go(store, key, object)
        } else {
            graph.judge(store, key, object)
        };
        if let Err(failure) = done {
            let message = failure.to_string();
            events::record(store, object, events::Type::Warning, "FailedSync", &message, COMPONENT);
        }
    }
}

impl Graph {
    /// The objects that name an object as their owner.
    fn dependents(&self, owner: &Value) -> impl Iterator<Item = (&Key, &Value, &Value)> {
        self.concerned.iter().filter_map(move |(key, object)| {
            let mut references = list(object, "/metadata/ownerReferences").iter();
            let reference = references.find(|reference| reference["uid"] == uid(owner))?;
            Some((key, &**object, reference))
        })
    }

    /// How the owner is that a reference of an object names. One of a kind that is not known here is left to others
    /// that know it.
    fn owner(&self, reference: &Value, object: &Value) -> Owner {
        let (version, kind) = (object::text(reference, "/apiVersion"), object::text(reference, "/kind"));
        if Kind::of(version, kind).is_none() {
            return Owner::Stays;
        }
        let found = self.by_uid.get(object::text(reference, "/uid"));
        let found = found.filter(|owner| namespace(owner).is_empty() || namespace(owner) == namespace(object));
        match found {
            None => Owner::Gone,
            Some(owner) if object::is_deleting(owner) && has_finalizer(owner, FOREGROUND) => Owner::Waits,
            Some(_) => Owner::Stays,
        }
    }

    /// Takes off the garbage collector's finalizers of an object that is going, once what they wait for is done.
    fn let_go(&self, store: &mut Store, key: &Key, object: &Value) -> Result<(), Failure> {
        if has_finalizer(object, ORPHAN) {
            for (dependent, _, reference) in self.dependents(object) {
                change(store, dependent, |dependent| ownership::refer(dependent, reference, false))?;
            }
            take_off(store, key, ORPHAN)?;
        }
        if has_finalizer(object, FOREGROUND)
            && !self.dependents(object).any(|(_, _, reference)| reference["blockOwnerDeletion"] == true)
        {
            take_off(store, key, FOREGROUND)?;
        }
        Ok(())
    }

    /// Deletes an object that no owner keeps, and makes it forget owners that are gone.
    fn judge(&self, store: &mut Store, key: &Key, object: &Value) -> Result<(), Failure> {
        let references = list(object, "/metadata/ownerReferences");
        let are = |owner: Owner| references.iter().filter(move |reference| self.owner(reference, object) == owner);
        if are(Owner::Stays).next().is_some() {
            let lost: Vec<&Value> = are(Owner::Gone).chain(are(Owner::Waits)).collect();
            if !lost.is_empty() {
                let forget = |object: &mut Value| {
                    lost.iter().for_each(|reference| ownership::refer(object, reference, false));
                };
                change(store, key, forget)?;
            }
            return Ok(());
        }
        let holds = |(_, _, reference): (&Key, &Value, &Value)| reference["blockOwnerDeletion"] == true;
        let foreground = are(Owner::Waits).next().is_some() && self.dependents(object).any(holds);
        let propagation = match foreground || has_finalizer(object, FOREGROUND) {
            true => Some(Propagation::Foreground),
            false if has_finalizer(object, ORPHAN) => Some(Propagation::Orphan),
            false => Some(Propagation::Background),
        };
        let only_this = DeleteOptions { uid: Some(uid(object).to_owned()), propagation, ..DeleteOptions::default() };
        match store.delete(key, &only_this) {
            // What went before it may have taken it along.
            Err(failure) if failure.code == 404 => Ok(()),
            done => done.map(drop),
        }
    }
}

/// Changes an object that may be gone by now: what was done for others may have ended it.
fn change(store: &mut Store, key: &Key, act: impl FnOnce(&mut Value)) -> Result<(), Failure> {
    if store.find(key).is_some() {
        store.edit(key, Part::Main, act)?;
    }
    Ok(())
}

fn take_off(store: &mut Store, key: &Key, finalizer: &str) -> Result<(), Failure> {
    change(store, key, |object| {
        let others = list(object, "/metadata/finalizers").iter().filter(|known| *known != finalizer);
        let others: Vec<Value> = others.cloned().collect();
        metadata(object).insert("finalizers".to_owned(), json!(others));
    })
}
