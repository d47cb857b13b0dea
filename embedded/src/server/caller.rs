//! Who is calling: by a token, or on behalf of another user.

use crate::api::User;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::object::{text, uid};
use crate::rbac::{self, Attributes, MASTERS};
use crate::resource::Kind;
use crate::store::{Key, Store};
use crate::tokens::{Tokens, service_account};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use ring::digest::{Digest, SHA256, digest};
use serde_json::Value;

/// The user who started this Kubernetes.
pub fn admin() -> User {
    User { name: "kubernetes-admin".to_owned(), groups: vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()] }
}

const AUTHENTICATED: &str = "system:authenticated";

/// A caller without credentials. It may do very little.
fn anonymous() -> User {
    User { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
}

/// Lets callers in.
#[derive(Debug)]
pub struct Callers {
    /// Of the admin's token only this is kept; that it is compared bit by bit says nothing about the token.
    pub admin: Digest,
}

impl Callers {
    /// Those who show a ServiceAccount's token, or this one.
    pub fn new(admin_token: &str) -> Self {
        Self { admin: digest(&SHA256, admin_token.as_bytes()) }
    }

    /// Who calls. Without a token only the paths are open that say whether the server lives.
    pub fn identify(
        &self,
        instance: &Instance,
        tokens: &Tokens,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<User, Failure> {
        let Some(shown) = headers.get(AUTHORIZATION) else {
            let open = rbac::nonresource(&anonymous(), "get", path).allowed;
            return if open { Ok(anonymous()) } else { Err(Failure::unauthorized()) };
        };
        let token = shown.to_str().ok().and_then(|shown| shown.strip_prefix("Bearer "));
        let token = token.ok_or_else(Failure::unauthorized)?;
        let caller = if digest(&SHA256, token.as_bytes()).as_ref() == self.admin.as_ref() {
            admin()
        } else {
            let bound = tokens.bindings(token, instance.now()).ok_or_else(Failure::unauthorized)?;
            instance.look(|store| known(store, &bound)).ok_or_else(Failure::unauthorized)?
        };
        let Some(meant) = meant(headers)? else { return Ok(caller) };
        let wanted = Attributes { verb: "impersonate", resource: "users", name: &meant.name, ..Attributes::default() };
        instance.look(|store| rbac::authorize(store, &caller, &wanted))?;
        Ok(meant)
    }
}

/// Whom a token means. It dies with its ServiceAccount and with its pod.
fn known(store: &Store, bound: &Value) -> Option<User> {
    let namespace = text(bound, "/namespace");
    let there = |kind, reference: &Value| {
        let found = store.find(&Key::new(kind, namespace, text(reference, "/name")));
        found.is_some_and(|found| reference["uid"] == uid(found))
    };
    let (account, pod) = (&bound["serviceaccount"], &bound["pod"]);
    let alive = there(Kind::ServiceAccount, account) && (pod.is_null() || there(Kind::Pod, pod));
    alive.then(|| service_account(namespace, text(account, "/name")))
}

/// On whose behalf the caller acts (`kubectl --as`).
fn meant(headers: &HeaderMap) -> Result<Option<User>, Failure> {
    let all = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
    };
    let (names, mut groups) = (all("impersonate-user"), all("impersonate-group"));
    let Some(name) = names.into_iter().next() else {
        let other = headers.keys().any(|header| header.as_str().starts_with("impersonate-"));
        let words = "a request on behalf of a group has to name a user too";
        return if other { Err(Failure::bad_request(words)) } else { Ok(None) };
    };
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, account)) if groups.is_empty() => return Ok(Some(service_account(namespace, account))),
        Some(_) | None => groups.push(AUTHENTICATED.to_owned()),
    }
    Ok(Some(User { name, groups }))
}
