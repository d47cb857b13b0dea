//! Which permissions are missing: what the API server refused, and what it says when asked whether it would.
//!
//! Nothing is decided by it: decisions rest on the answers themselves. It is for people, who have to be told which verb on
//! which kind was withdrawn, before it is missed. Every refused request notes its permission at once; a
//! SelfSubjectRulesReview, which every account may make by default, notes what was not tried and clears what is granted again.
//! Where an authorizer cannot list its rules, a SelfSubjectAccessReview asks for each permission that the list does not show.

use super::{Asked, Error, Kubernetes, asked};
use crate::metrics::Metrics;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, ResourceRule, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SelfSubjectRulesReview,
    SelfSubjectRulesReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How often the agent asks which permissions it has: one request. A refusal brings the next one forward.
const PERIOD: Duration = Duration::from_secs(60);
/// The rounds are at least this far apart, however much is refused.
const SPACING: Duration = Duration::from_secs(5);

/// What an agent does without, and leaves out.
const OPTIONAL: [&str; 2] = ["events", "endpointslices.discovery.k8s.io"];

/// The permissions that are missing; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Permissions(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    missing: Mutex<BTreeSet<Permission>>,
    /// The optional kinds of which it was said that a permission is missing.
    optional_missing: Mutex<BTreeSet<String>>,
    refused: Notify,
    /// Announces each permission that turned out to be missing.
    withdrawn: watch::Sender<()>,
}

/// A verb on a kind; on one object of it, where Roles name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// Such as `get`.
    pub verb: &'static str,
    /// Such as `statefulsets.apps`, or `leases.coordination.k8s.io/kaa-default-resync`.
    pub resource: String,
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

impl Permission {
    fn of(asked: &Asked) -> Self {
        let Asked { verb, resource, name } = asked;
        // Roles name Leases, since agents make them; what people make they do not.
        let named = name.as_ref().filter(|_| resource.starts_with("leases.") && *verb != "create");
        let resource = named.map_or_else(|| resource.clone(), |name| format!("{resource}/{name}"));
        Self { verb, resource }
    }

    /// The plural name, the API group, and the name of the one object that it is about.
    fn parts(&self) -> (&str, &str, Option<&str>) {
        let (kind, name) = self.resource.split_once('/').map_or((&*self.resource, None), |(kind, n)| (kind, Some(n)));
        let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
        (plural, group, name)
    }

    /// Whether a rule grants it.
    fn is_in(&self, rule: &ResourceRule) -> bool {
        let (plural, group, name) = self.parts();
        let has = |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|it| it == "*" || it == word);
        let names = rule.resource_names.as_deref().unwrap_or_default();
        let named = names.is_empty() || name.is_some_and(|name| names.iter().any(|it| it == name));
        named
            && rule.verbs.iter().any(|verb| verb == "*" || verb == self.verb)
            && has(&rule.api_groups, group)
            && has(&rule.resources, plural)
    }

    fn attributes(&self, namespace: &str) -> ResourceAttributes {
        let (plural, group, name) = self.parts();
        ResourceAttributes {
            verb: Some(self.verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(plural.to_owned()),
            name: name.map(str::to_owned),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        }
    }
}

impl Permissions {
    /// The missing ones.
    pub fn missing(&self) -> Vec<Permission> {
        self.lock().iter().cloned().collect()
    }

    /// Announces each permission that turns out to be missing from now on.
    pub(super) fn withdrawn(&self) -> watch::Receiver<()> {
        self.0.withdrawn.subscribe()
    }

    /// Whether a resource may be listed and watched, as far as is known.
    pub(super) fn may_watch(&self, resource: &str) -> bool {
        !self.lock().iter().any(|it| it.resource == resource && matches!(it.verb, "list" | "watch"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<Permission>> {
        self.0.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an answer shows of the permission to it: that it is missing, that it is there, or nothing.
    pub(super) fn judge<T>(&self, asked: &Asked, answer: &Result<T, Error>) {
        if OPTIONAL.contains(&asked.resource.as_str()) {
            if self.is_news(asked, matches!(answer, Err(Error::Forbidden { .. }))) {
                tracing::info!("the optional permission to {asked} is missing: nothing is done there");
            }
            return;
        }
        match answer {
            Err(Error::Forbidden { .. }) => {
                if self.set(Permission::of(asked), true) {
                    self.0.refused.notify_one();
                }
            }
            Ok(_) | Err(Error::Exists { .. } | Error::Conflict { .. }) => drop(self.set(Permission::of(asked), false)),
            Err(_) => {}
        }
    }

    /// Notes whether the permission to something optional is missing. Returns whether it was not known to be missing, and is.
    fn is_news(&self, asked: &Asked, missing: bool) -> bool {
        let mut known = self.0.optional_missing.lock().unwrap_or_else(PoisonError::into_inner);
        if missing {
            known.insert(asked.resource.clone())
        } else {
            known.remove(&asked.resource);
            false
        }
    }

    /// Returns whether that is new. It is logged then.
    fn set(&self, permission: Permission, missing: bool) -> bool {
        let mut known = self.lock();
        let changed = if missing { known.insert(permission.clone()) } else { known.remove(&permission) };
        drop(known);
        if changed && missing {
            self.0.withdrawn.send_replace(());
        }
        match (changed, missing) {
            (true, true) => {
                tracing::warn!("the permission to {permission} is missing: removals that need it are blocked")
            }
            (true, false) => tracing::info!("the permission to {permission} is granted again"),
            (false, _) => {}
        }
        changed
    }
}

/// What the agent may need, its Leases included.
fn needed(leases: &[String; 2]) -> Vec<Permission> {
    let kinds = ["pods", "persistentvolumeclaims", "statefulsets.apps", "deployments.apps"];
    let mut permissions = Vec::new();
    for verb in ["get", "list", "watch"] {
        permissions.extend(kinds.map(|kind| Permission { verb, resource: kind.to_owned() }));
    }
    for name in leases {
        let resource = format!("leases.coordination.k8s.io/{name}");
        permissions.extend(["get", "update"].map(|verb| Permission { verb, resource: resource.clone() }));
    }
    permissions.push(Permission { verb: "create", resource: "leases.coordination.k8s.io".to_owned() });
    permissions
}

/// Asks again and again which permissions there are, and mirrors what is missing; `anchor` and `resync` name the Leases. Runs
/// until the process ends.
pub async fn watch(kubernetes: Kubernetes, anchor: String, resync: String, metrics: Arc<Metrics>) {
    let needed = needed(&[anchor, resync]);
    let mut trouble = None;
    loop {
        let failed = review(&kubernetes, &needed).await.err().map(|error| error.to_line());
        if failed != trouble
            && let Some(why) = &failed
        {
            tracing::warn!("cannot read this agent's permissions: {why}");
        }
        trouble = failed;
        mirror(&kubernetes.permissions, &needed, &metrics);
        tokio::time::sleep(SPACING).await;
        tokio::select! {
            () = kubernetes.permissions.0.refused.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Sets the metric of every permission that may be needed, those that are there too.
pub fn mirror(permissions: &Permissions, needed: &[Permission], metrics: &Metrics) {
    let missing = permissions.missing();
    for permission in needed.iter().chain(&missing) {
        metrics.mirror_permission(permission.verb, &permission.resource, missing.contains(permission));
    }
}

/// One round: asks for the rules, and for each permission that they do not show although they may have it. A permission that
/// cannot be asked for stays as it was known.
async fn review(kubernetes: &Kubernetes, needed: &[Permission]) -> Result<(), Error> {
    let spec = SelfSubjectRulesReviewSpec { namespace: Some(kubernetes.namespace.clone()) };
    let rules = create(kubernetes, SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() }).await?;
    let rules = rules.status.unwrap_or_default();
    // Without a status nothing is known.
    let complete = !rules.incomplete && !rules.resource_rules.is_empty();
    for permission in needed {
        let shown = rules.resource_rules.iter().any(|rule| permission.is_in(rule));
        let allowed = match shown || complete {
            true => Some(shown),
            false => is_allowed(kubernetes, permission).await?,
        };
        if let Some(allowed) = allowed {
            kubernetes.permissions.set(permission.clone(), !allowed);
        }
    }
    Ok(())
}

async fn is_allowed(kubernetes: &Kubernetes, permission: &Permission) -> Result<Option<bool>, Error> {
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(permission.attributes(&kubernetes.namespace)),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = create(kubernetes, SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }).await?;
    Ok(review.status.map(|status| status.allowed))
}

/// Has the API server answer a review.
async fn create<K>(kubernetes: &Kubernetes, review: K) -> Result<K, Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let asked = asked::<K>("create", None);
    let request = async {
        let answer = Api::all(kubernetes.client.clone()).create(&PostParams::default(), &review).await;
        answer.map_err(|error| Error::of(asked.clone(), error))
    };
    kubernetes.within(&asked, request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::Router;
    use axum::extract::Json;
    use axum::routing::post;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn asked(verb: &'static str, resource: &str, name: &str) -> Asked {
        Asked { verb, resource: resource.to_owned(), name: Some(name.to_owned()) }
    }

    fn forbidden(asked: &Asked) -> Result<(), Error> {
        Err(Error::Forbidden { asked: asked.clone(), message: "no".to_owned() })
    }

    fn names(permissions: &Permissions) -> Vec<String> {
        permissions.missing().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_refusal_names_the_verb_and_an_answer_clears_it() {
        let permissions = Permissions::default();
        let (claim, lease) = (asked("get", "persistentvolumeclaims", "c"), asked("get", "leases.x", "l"));
        permissions.judge(&claim, &forbidden(&claim));
        permissions.judge(&lease, &forbidden(&lease));
        assert_eq!(names(&permissions), ["get leases.x/l", "get persistentvolumeclaims"]);
        let silent = Err::<(), _>(Error::Silent { asked: claim.clone(), after: Duration::from_secs(1) });
        permissions.judge(&claim, &silent);
        assert_eq!(names(&permissions).len(), 2, "silence shows nothing");
        permissions.judge(&asked("get", "persistentvolumeclaims", "d"), &Ok(()));
        assert_eq!(names(&permissions), ["get leases.x/l"], "a permission to claims is one to any claim");
        permissions.judge(&asked("get", "leases.x", "m"), &Ok(()));
        assert_eq!(names(&permissions), ["get leases.x/l"], "another Lease is another permission");
    }

    #[test]
    fn what_is_known_of_an_optional_kind_says_nothing_of_another() {
        let permissions = Permissions::default();
        let (event, slice) = (asked("create", "events", "e"), asked("get", "endpointslices.discovery.k8s.io", "s"));
        assert!(permissions.is_news(&slice, true));
        assert!(!permissions.is_news(&event, false));
        assert!(!permissions.is_news(&slice, true), "it was said");
        assert!(!permissions.is_news(&slice, false) && permissions.is_news(&slice, true), "withdrawn again");
    }

    fn rule(verbs: &str, group: &str, resources: &str, names: &str) -> ResourceRule {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        ResourceRule {
            verbs: list(verbs),
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(list(resources)),
            resource_names: Some(list(names)),
        }
    }

    #[test]
    fn a_rule_grants_what_it_names() {
        let lease = |verb, name: &str| Permission { verb, resource: format!("leases.coordination.k8s.io{name}") };
        let pods = Permission { verb: "list", resource: "pods".to_owned() };
        assert!(pods.is_in(&rule("get list", "", "claims pods", "")));
        assert!(pods.is_in(&rule("*", "*", "*", "")));
        assert!(!pods.is_in(&rule("get", "", "pods", "")), "another verb");
        assert!(!pods.is_in(&rule("list", "apps", "pods", "")), "another group");
        assert!(!pods.is_in(&rule("list", "", "pods/log", "")), "a subresource");
        assert!(!pods.is_in(&rule("list", "", "pods", "one")), "one pod of many");
        let named = rule("get create", "coordination.k8s.io", "leases", "resync");
        assert!(lease("get", "/resync").is_in(&named));
        assert!(!lease("get", "/anchor").is_in(&named), "another Lease");
        assert!(!lease("create", "").is_in(&named), "an object that is created has no name yet");
    }

    /// An API server that grants all that is needed, but `get pods` only if told so, and that may not know all its rules.
    fn server(grants_pods: Arc<AtomicBool>, incomplete: bool) -> Router {
        let pods = grants_pods.clone();
        let rules = async move |Json(mut review): Json<Value>| {
            assert_eq!(review["spec"]["namespace"], "ns");
            let verbs = if pods.load(Ordering::Relaxed) { vec!["get", "list", "watch"] } else { vec!["list", "watch"] };
            review["status"] = json!({"incomplete": incomplete, "nonResourceRules": [], "resourceRules": [
                {"verbs": verbs, "apiGroups": [""], "resources": ["pods"]},
                {"verbs": ["get", "list", "watch"], "apiGroups": ["", "apps"],
                    "resources": ["persistentvolumeclaims", "statefulsets", "deployments"]},
                {"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
            ]});
            Json(review)
        };
        let access = async move |Json(mut review): Json<Value>| {
            assert!(incomplete, "asked although the rules are complete");
            let of = &review["spec"]["resourceAttributes"];
            assert_eq!((&of["verb"], &of["resource"], &of["namespace"]), (&json!("get"), &json!("pods"), &json!("ns")));
            review["status"] = json!({"allowed": grants_pods.load(Ordering::Relaxed)});
            Json(review)
        };
        let path = |plural: &str| format!("/apis/authorization.k8s.io/v1/{plural}");
        Router::new()
            .route(&path("selfsubjectrulesreviews"), post(rules))
            .route(&path("selfsubjectaccessreviews"), post(access))
    }

    #[tokio::test]
    async fn a_review_finds_what_is_missing_before_it_is_missed() {
        for incomplete in [false, true] {
            let granted = Arc::new(AtomicBool::new(false));
            let kubernetes = fake::kubernetes(server(granted.clone(), incomplete));
            let (needed, metrics) = (needed(&["anchor".to_owned(), "resync".to_owned()]), Metrics::new());
            let series = |value| format!("kaa_kubernetes_permission_missing{{verb=\"get\",resource=\"pods\"}} {value}");
            for (grant, names_missing, value) in [(false, vec!["get pods"], 1), (true, vec![], 0)] {
                granted.store(grant, Ordering::Relaxed);
                review(&kubernetes, &needed).await.unwrap();
                mirror(&kubernetes.permissions, &needed, &metrics);
                assert_eq!(names(&kubernetes.permissions), names_missing);
                assert!(metrics.text().contains(&series(value)), "{}", metrics.text());
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_asked_stays_as_it_was_known() {
        let kubernetes = fake::kubernetes(Router::new());
        let asked = asked("get", "pods", "p");
        kubernetes.permissions.judge(&asked, &forbidden(&asked));
        assert!(review(&kubernetes, &needed(&["a".to_owned(), "r".to_owned()])).await.is_err());
        assert_eq!(names(&kubernetes.permissions), ["get pods"]);
    }
}
