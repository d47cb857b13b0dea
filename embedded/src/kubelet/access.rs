//! How a pod reaches the API: the token of its ServiceAccount and a kubeconfig that uses it.
//!
//! On a cluster the token is at a path that programs know. Without mount namespaces there is no such path, so the
//! variable `KUBECONFIG` leads to it; commands that name the path find it all the same.

use super::Config;
use super::volumes::File;
use crate::kubeconfig;
use crate::object::{namespace, text};
use crate::resource::Kind;
use crate::store::{Key, Store};
use serde_json::{Value, json};
use std::path::Path;

/// Where programs look for it on a cluster.
pub(super) const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The volume's name. No volume of a pod can have it, since a name has no dots.
pub(super) const VOLUME: &str = "kube.api.access";

/// The ServiceAccount of a pod.
pub(super) fn service_account(pod: &Value) -> &str {
    match text(pod, "/spec/serviceAccountName") {
        "" => "default",
        account => account,
    }
}

/// The volume that gives a pod access, unless the pod, or else its ServiceAccount, wants none.
pub(super) fn volume(store: &Store, pod: &Value) -> Option<Value> {
    let account = store.find(&Key::new(Kind::ServiceAccount, namespace(pod), service_account(pod)));
    let says = |pointer: &str, object: &Value| object.pointer(pointer).and_then(Value::as_bool);
    let of_account = || account.and_then(|account| says("/automountServiceAccountToken", account));
    let wanted = says("/spec/automountServiceAccountToken", pod).or_else(of_account).unwrap_or(true);
    wanted.then(|| {
        let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}});
        json!({"name": VOLUME, "projected": {"sources": [token, {"kubeconfig": {}}]}})
    })
}

/// What is beside the token.
pub(super) fn files(config: &Config, namespace: &str, directory: &Path) -> Vec<File> {
    let file = |path: &str, content: &str| File { path: path.to_owned(), mode: 0o644, content: content.into() };
    let beside = |name: &str| directory.join(name).display().to_string();
    let kubeconfig = kubeconfig::pod(&config.api_server, &beside("ca.crt"), &beside("token"), namespace);
    vec![file("ca.crt", &config.api_ca_pem), file("namespace", namespace), file("kubeconfig", &kubeconfig)]
}
