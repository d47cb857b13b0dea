//! Claims: each gets a volume of its own at once, named for its UID, and stays for as long as a pod uses it.
//!
//! There are no volumes as objects. What a claim is bound to is a directory that the kubelet makes.

use super::{Due, pods};
use crate::defaults::CLAIM_PROTECTION;
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{self, metadata, name, namespace, text};
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use serde_json::{Value, json};

/// Its name in Events.
pub const COMPONENT: &str = "persistentvolume-controller";

/// Looks after a claim.
pub fn act(store: &mut Store, claim: &Value, _: &mut Due) -> Result<(), Failure> {
    let key = Key::new(Kind::PersistentVolumeClaim, namespace(claim), name(claim));
    if object::is_deleting(claim) {
        let held = object::has_finalizer(claim, CLAIM_PROTECTION);
        // As in Kubernetes: a pod that has ended holds its claim for as long as its object exists, one that was not
        // bound to a node yet does not.
        let uses =
            |pod: &Value| !text(pod, "/spec/nodeName").is_empty() && pods::claims(pod).any(|used| used == name(claim));
        if held && !store.list(Kind::Pod, Some(namespace(claim))).any(|pod| uses(pod)) {
            store.edit(&key, Part::Main, |claim| {
                let others =
                    object::list(claim, "/metadata/finalizers").iter().filter(|known| *known != CLAIM_PROTECTION);
                let others: Vec<Value> = others.cloned().collect();
                metadata(claim).insert("finalizers".to_owned(), json!(others));
            })?;
        }
        return Ok(());
    }
    if text(claim, "/status/phase") != "Bound" {
        bind(store, &key, claim)?;
    }
    Ok(())
}

fn bind(store: &mut Store, key: &Key, claim: &Value) -> Result<(), Failure> {
    let volume = format!("pvc-{}", object::uid(claim));
    store.edit(key, Part::Main, |claim| {
        claim["spec"]["volumeName"] = json!(volume);
        let annotations = metadata(claim).entry("annotations").or_insert_with(|| json!({}));
        annotations["pv.kubernetes.io/bind-completed"] = json!("yes");
        annotations["pv.kubernetes.io/bound-by-controller"] = json!("yes");
    })?;
    store.edit(key, Part::Status, |claim| {
        claim["status"] = json!({
            "phase": "Bound", "accessModes": claim["spec"]["accessModes"],
            "capacity": claim["spec"]["resources"]["requests"],
        });
    })?;
    let message = format!("Successfully provisioned volume {volume} using a directory");
    events::record(store, claim, Type::Normal, "ProvisioningSucceeded", &message, COMPONENT);
    Ok(())
}
