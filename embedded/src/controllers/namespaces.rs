//! Namespaces: what each has from its beginning, and that all in it goes with it.

use super::Due;
use crate::failure::Failure;
use crate::object::{self, name};
use crate::resource::{Kind, RESOURCES};
use crate::store::{DeleteOptions, Key, Part, Store};
use serde_json::{Value, json};

/// The ConfigMap by which pods know the API server. The one of [`SYSTEM`] is made where the certificate is; all
/// others are copies of it.
pub const ROOT_CA: &str = "kube-root-ca.crt";
/// The namespace of what belongs to Kubernetes itself.
pub const SYSTEM: &str = "kube-system";

/// Looks after a namespace.
pub fn act(store: &mut Store, namespace: &Value, _: &mut Due) -> Result<(), Failure> {
    if object::is_deleting(namespace) { empty(store, namespace) } else { furnish(store, name(namespace)) }
}

fn furnish(store: &mut Store, namespace: &str) -> Result<(), Failure> {
    if store.find(&Key::new(Kind::ServiceAccount, namespace, "default")).is_none() {
        store.create(Kind::ServiceAccount, json!({"metadata": {"name": "default", "namespace": namespace}}))?;
    }
    let Some(root) = store.find(&Key::new(Kind::ConfigMap, SYSTEM, ROOT_CA)).cloned() else { return Ok(()) };
    let copy = Key::new(Kind::ConfigMap, namespace, ROOT_CA);
    if store.find(&copy).is_some() {
        store.edit(&copy, Part::Main, |map| map["data"] = root["data"].clone())?;
    } else {
        let metadata = json!({
            "name": ROOT_CA, "namespace": namespace,
            "annotations": {
                "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when \
                    using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage \
                    is guaranteed across distributions of Kubernetes clusters.",
            },
        });
        store.create(Kind::ConfigMap, json!({"metadata": metadata, "data": root["data"]}))?;
    }
    Ok(())
}

/// Deletes what is in a namespace, each in the time that it takes, and lets go of the namespace when that is done.
fn empty(store: &mut Store, namespace: &Value) -> Result<(), Failure> {
    let inside = |store: &Store| -> Vec<Key> {
        let namespaced = RESOURCES.iter().filter(|resource| resource.namespaced);
        let keys = namespaced.flat_map(|resource| {
            store.list(resource.kind, Some(name(namespace))).map(|object| Key::of(resource.kind, object))
        });
        keys.collect()
    };
    for key in inside(store) {
        store.delete(&key, &DeleteOptions::default())?;
    }
    if inside(store).is_empty() {
        store.finalize(&Key::new(Kind::Namespace, "", name(namespace)))?;
    }
    Ok(())
}
