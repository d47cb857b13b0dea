//! What a set's template was and is: ControllerRevisions, so that an update goes pod by pod and can be undone.

use super::super::{ownership, pods};
use crate::failure::Failure;
use crate::object::{self, name, namespace, number, text};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// The label that says which revision a pod is of.
pub const LABEL: &str = "controller-revision-hash";

/// One revision.
#[derive(Clone, Debug)]
pub struct Revision {
    /// The name of its object.
    pub name: String,
    /// The pod template it stands for.
    pub template: Value,
}

/// The revisions that pods are made of.
#[derive(Debug)]
pub struct Revisions {
    /// What the pods were until the update that is under way.
    pub current: Revision,
    /// What they are to be.
    pub update: Revision,
}

fn revision(object: &Value) -> Revision {
    Revision { name: name(object).to_owned(), template: object["data"]["spec"]["template"].clone() }
}

/// Finds the revisions of a set, makes the newest if its template changed, and forgets those that are too old.
pub fn sync<'a>(
    store: &mut Store,
    set: &Value,
    pods: impl Iterator<Item = &'a Arc<Value>>,
) -> Result<Revisions, Failure> {
    let number_of = |object: &Value| number(object, "/revision").unwrap_or(0);
    let mut known = ownership::claim(store, (Kind::StatefulSet, set), Kind::ControllerRevision, |_| true)?;
    known.sort_by_key(|object| number_of(object));
    let mut template = set["spec"]["template"].clone();
    template["$patch"] = json!("replace");
    let data = json!({"spec": {"template": template}});
    let newest = known.last().map_or(0, |object| number_of(object));
    let update = match known.iter().rev().find(|object| object["data"] == data) {
        Some(found) if number_of(found) == newest => found.clone(),
        // The template is as it was once: that revision is the newest again.
        Some(found) => store.edit(&Key::of(Kind::ControllerRevision, found), Part::Main, |object| {
            object["revision"] = json!(newest + 1);
        })?,
        None => create(store, set, &data, newest + 1)?,
    };
    let current = known.iter().find(|object| name(object) == text(set, "/status/currentRevision")).unwrap_or(&update);
    let revisions = Revisions { current: revision(current), update: revision(&update) };
    let mut live: Vec<&str> = pods.filter_map(|pod| object::label(pod, LABEL)).collect();
    live.extend([revisions.current.name.as_str(), revisions.update.name.as_str()]);
    let old: Vec<_> = known.iter().filter(|object| !live.contains(&name(object))).collect();
    let kept = usize::try_from(number(set, "/spec/revisionHistoryLimit").unwrap_or(10)).unwrap_or(0);
    for object in old.iter().take(old.len().saturating_sub(kept)) {
        store.delete(&Key::of(Kind::ControllerRevision, object), &DeleteOptions::default())?;
    }
    Ok(revisions)
}

fn create(store: &mut Store, set: &Value, data: &Value, number: i64) -> Result<Arc<Value>, Failure> {
    let hash = pods::hash(data, object::number(set, "/status/collisionCount").unwrap_or(0));
    let mut object = json!({
        "metadata": {"name": format!("{}-{hash}", name(set)), "namespace": namespace(set)},
        "data": data, "revision": number,
    });
    for field in ["labels", "annotations"] {
        let from = if field == "labels" { &set["spec"]["template"]["metadata"] } else { &set["metadata"] };
        if let Some(value) = from.get(field) {
            object["metadata"][field] = value.clone();
        }
    }
    pods::label(&mut object, [("controller.kubernetes.io/hash", &hash)]);
    ownership::refer(&mut object, &ownership::reference(Kind::StatefulSet, set), true);
    store.create(Kind::ControllerRevision, object)
}
