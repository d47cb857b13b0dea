//! Puts a domain into a namespace of any Kubernetes: the certificates and the objects of `manifests/`.

use crate::certificates::Made;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// Who owns what is applied here.
const MANAGER: &str = "kaa-demo";

/// What was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no Kubernetes object.
    #[error("not a Kubernetes object: {0}")]
    NoObject(#[from] serde_json::Error),
    /// The API server refused it.
    #[error("cannot apply {kind} {name}")]
    Refused {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Applies objects one after another, as `kubectl apply --server-side` does.
pub async fn apply(client: &Client, objects: &[Value]) -> Result<(), Error> {
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let types = object.types.clone().unwrap_or_default();
        let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let name = object.name_any();
        let applied = api.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(&object)).await;
        applied.map_err(|source| Error::Refused { kind: types.kind, name, source: Box::new(source) })?;
    }
    Ok(())
}

/// What the agents show each other.
pub fn certificates(namespace: &str, made: &Made) -> Vec<Value> {
    let meta = |name: &str| json!({"name": name, "namespace": namespace});
    vec![
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": meta("kaa-admin-tls"), "type": "kubernetes.io/tls",
            "stringData": {"ca.crt": made.ca_certificate, "tls.crt": made.certificate, "tls.key": made.key},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("kaa-ca"), "data": {"ca.crt": made.ca_certificate},
        }),
    ]
}

/// The names under which the agents of a namespace are reached.
pub fn names(namespace: &str) -> Vec<String> {
    vec!["kaa-admin".to_owned(), format!("*.kaa-admin.{namespace}.svc")]
}
