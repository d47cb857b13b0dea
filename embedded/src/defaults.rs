//! What Kubernetes writes into an object where its author left something out.

use crate::resource::Kind;
use serde_json::{Value, json};

/// Holds a claim that a pod uses.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Fills in what is left out.
pub fn fill(kind: Kind, object: &mut Value) {
    if kind == Kind::Namespace {
        object["spec"]["finalizers"] = json!(["kubernetes"]);
        object["status"]["phase"] = json!("Active");
    }
}
