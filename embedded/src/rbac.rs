//! Who may do what: Roles and RoleBindings, as a real Kubernetes reads them.
//!
//! `system:masters` may do everything. There are no ClusterRoles: what a real Kubernetes grants everybody by them
//! (discovery, reviews of one's own permissions, the public keys) is granted in [`nonresource`] and by the reviews' paths.

use crate::api::User;
use crate::failure::Failure;
use crate::object::{list, name, namespace, text};
use crate::resource::Kind;
use crate::store::{Key, Store};
use serde_json::{Value, json};

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

/// What a caller wants to do. What does not apply is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'a str,
    /// The API group.
    pub group: &'a str,
    /// The kind, as paths name it.
    pub resource: &'a str,
    /// What is below the object.
    pub subresource: &'a str,
    /// The object.
    pub name: &'a str,
    /// The namespace.
    pub namespace: &'a str,
}

/// Whether a caller may do something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether.
    pub allowed: bool,
    /// Why; may be empty.
    pub reason: String,
}

/// Lets through what is allowed.
pub fn authorize(store: &Store, user: &User, wanted: &Attributes<'_>) -> Result<(), Failure> {
    let decision = decide(store, user, wanted);
    if decision.allowed { Ok(()) } else { Err(refusal(user, wanted, &decision.reason)) }
}

/// Looks for a rule that allows it.
pub fn decide(store: &Store, user: &User, wanted: &Attributes<'_>) -> Decision {
    if user.groups.iter().any(|group| group == MASTERS) {
        return Decision { allowed: true, reason: String::new() };
    }
    let mut missing = Vec::new();
    for (binding, subject) in bindings_of(store, user, wanted.namespace) {
        let role = text(binding, "/roleRef/name");
        let Some(found) = store.find(&Key::new(Kind::Role, wanted.namespace, role)) else {
            missing.push(format!("role.rbac.authorization.k8s.io {role:?} not found"));
            continue;
        };
        if list(found, "/rules").iter().any(|rule| covers(rule, wanted)) {
            let binding = format!("{}/{}", name(binding), namespace(binding));
            let reason = format!("RBAC: allowed by RoleBinding {binding:?} of Role {role:?} to {subject}");
            return Decision { allowed: true, reason };
        }
    }
    let reason = match missing.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        several => format!("RBAC: [{}]", several.join(", ")),
    };
    Decision { allowed: false, reason }
}

/// The rules of a namespace that apply to a user.
pub fn rules(store: &Store, user: &User, namespace: &str) -> Vec<Value> {
    if user.groups.iter().any(|group| group == MASTERS) {
        return vec![json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})];
    }
    let roles = bindings_of(store, user, namespace)
        .filter_map(|(binding, _)| store.find(&Key::new(Kind::Role, namespace, text(binding, "/roleRef/name"))));
    roles.flat_map(|role| list(role, "/rules")).cloned().collect()
}

/// Whether a path that is not an object's may be read.
pub fn nonresource(user: &User, verb: &str, path: &str) -> Decision {
    let is = |path: &str, roots: &[&str]| {
        roots.iter().any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let of = |wanted: &str| user.groups.iter().any(|group| group == wanted);
    let public = is(path, &["/healthz", "/livez", "/readyz", "/version"]);
    let discovery = is(path, &["/api", "/apis", "/openapi"]);
    let keys = is(path, &["/.well-known/openid-configuration", "/openid/v1/jwks"]);
    let granted = public || (discovery && of("system:authenticated")) || (keys && of("system:serviceaccounts"));
    Decision { allowed: of(MASTERS) || (verb == "get" && granted), reason: String::new() }
}

/// The RoleBindings of a namespace that name a user, and how they do.
fn bindings_of<'a>(
    store: &'a Store,
    user: &'a User,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a Value, String)> + use<'a> {
    let bindings = store.list(Kind::RoleBinding, Some(namespace)).filter(move |_| !namespace.is_empty());
    bindings.filter_map(|binding| {
        let subjects = list(binding, "/subjects").iter();
        let subject = subjects.filter(|subject| means(subject, user, namespace)).map(named).next()?;
        Some((&**binding, subject))
    })
}

/// Whether a subject is this user.
fn means(subject: &Value, user: &User, own: &str) -> bool {
    let name = text(subject, "/name");
    match text(subject, "/kind") {
        "User" => user.name == name,
        "Group" => user.groups.iter().any(|group| group == name),
        "ServiceAccount" => {
            let namespace = Some(text(subject, "/namespace")).filter(|given| !given.is_empty()).unwrap_or(own);
            user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn named(subject: &Value) -> String {
    let (kind, name) = (text(subject, "/kind"), text(subject, "/name"));
    match text(subject, "/namespace") {
        "" => format!("{kind} {name:?}"),
        namespace => format!("{kind} {:?}", format!("{name}/{namespace}")),
    }
}

/// Whether a rule allows it.
fn covers(rule: &Value, wanted: &Attributes<'_>) -> bool {
    let names = |field: &str, value: &str| list(rule, field).iter().any(|known| known == value);
    let has = |field: &str, value: &str| names(field, "*") || names(field, value);
    let of_every_resource = || names("/resources", &format!("*/{}", wanted.subresource));
    has("/verbs", wanted.verb)
        && has("/apiGroups", wanted.group)
        && (has("/resources", &combined(wanted)) || (!wanted.subresource.is_empty() && of_every_resource()))
        && (list(rule, "/resourceNames").is_empty() || names("/resourceNames", wanted.name))
}

/// `pods/log`.
fn combined(wanted: &Attributes<'_>) -> String {
    let Attributes { resource, subresource, .. } = wanted;
    if subresource.is_empty() { (*resource).to_owned() } else { format!("{resource}/{subresource}") }
}

fn refusal(user: &User, wanted: &Attributes<'_>, reason: &str) -> Failure {
    let Attributes { verb, group, resource, name, namespace, .. } = *wanted;
    let mut details = json!({"kind": resource});
    let mut subject = resource.to_owned();
    if !group.is_empty() {
        details["group"] = json!(group);
        subject = format!("{resource}.{group}");
    }
    if !name.is_empty() {
        details["name"] = json!(name);
        subject = format!("{subject} {name:?}");
    }
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let (who, what) = (&user.name, combined(wanted));
    let mut message =
        format!("{subject} is forbidden: User {who:?} cannot {verb} resource {what:?} in API group {group:?} {place}");
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    Failure { code: 403, reason: "Forbidden", message, details }
}

#[cfg(test)]
mod tests;
