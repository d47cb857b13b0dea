//! Which rights are missing: what the API server refused, and what it says when asked whether it would.
//!
//! Nothing is decided by it: decisions rest on the answers themselves. It is for people, who have to be told which verb on
//! which kind they took away, before it is missed. Every refused request notes its right at once; a round of
//! SelfSubjectAccessReviews, which everybody may make by default, notes what was not tried and clears what is granted again.

use super::{Asked, Error, Kubernetes};
use crate::metrics::Metrics;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often it is asked which rights there are: some twenty cheap requests. A refusal brings the next round forward.
const PERIOD: Duration = Duration::from_secs(60);
/// The rounds are at least this far apart, however much is refused.
const SPACING: Duration = Duration::from_secs(5);

/// What an agent does without, and leaves out: `create` on it.
const OPTIONAL: &str = "events";

/// The rights that are missing; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Rights(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    missing: Mutex<BTreeSet<Right>>,
    /// Whether it was said that an optional one is missing.
    optional_missing: AtomicBool,
    refused: Notify,
}

/// A verb on a kind; on one object of it, where Roles name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Such as `get`.
    pub verb: &'static str,
    /// Such as `statefulsets.apps`, or `leases.coordination.k8s.io/kaa-default-resync`.
    pub resource: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

impl Right {
    fn of(asked: &Asked) -> Self {
        let Asked { verb, resource, name } = asked;
        // Roles name Leases, since agents make them; what people make they do not.
        let named = name.as_ref().filter(|_| resource.starts_with("leases.") && *verb != "create");
        let resource = named.map_or_else(|| resource.clone(), |name| format!("{resource}/{name}"));
        Self { verb, resource }
    }

    fn attributes(&self, namespace: &str) -> ResourceAttributes {
        let (kind, name) = self.resource.split_once('/').map_or((&*self.resource, None), |(kind, n)| (kind, Some(n)));
        let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
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

impl Rights {
    /// The missing ones.
    pub fn missing(&self) -> Vec<Right> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<Right>> {
        self.0.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an answer shows of the right to it: that it is missing, that it is there, or nothing.
    pub(super) fn judge<T>(&self, asked: &Asked, answer: &Result<T, Error>) {
        if asked.resource == OPTIONAL {
            let missing = matches!(answer, Err(Error::Forbidden { .. }));
            if !self.0.optional_missing.swap(missing, Ordering::Relaxed) && missing {
                tracing::info!("the right to {} {OPTIONAL} is missing: none are made", asked.verb);
            }
            return;
        }
        match answer {
            Err(Error::Forbidden { .. }) => {
                if self.set(Right::of(asked), true) {
                    self.0.refused.notify_one();
                }
            }
            Ok(_) | Err(Error::Exists { .. } | Error::Conflict { .. }) => drop(self.set(Right::of(asked), false)),
            Err(_) => {}
        }
    }

    /// Returns whether that is new. It is logged then.
    fn set(&self, right: Right, missing: bool) -> bool {
        let mut known = self.lock();
        let changed = if missing { known.insert(right.clone()) } else { known.remove(&right) };
        drop(known);
        match (changed, missing) {
            (true, true) => tracing::warn!("the right to {right} is missing: nothing is taken away for want of it"),
            (true, false) => tracing::info!("the right to {right} is there again"),
            (false, _) => {}
        }
        changed
    }
}

/// What the agent may need, its Leases included.
fn needed(leases: &[String; 2]) -> Vec<Right> {
    let kinds = ["pods", "persistentvolumeclaims", "statefulsets.apps", "deployments.apps"];
    let mut rights = Vec::new();
    for verb in ["get", "list", "watch"] {
        rights.extend(kinds.map(|kind| Right { verb, resource: kind.to_owned() }));
    }
    for name in leases {
        let resource = format!("leases.coordination.k8s.io/{name}");
        rights.extend(["get", "update"].map(|verb| Right { verb, resource: resource.clone() }));
    }
    rights.push(Right { verb: "create", resource: "leases.coordination.k8s.io".to_owned() });
    rights
}

/// Asks again and again which rights there are, and mirrors what is missing; `anchor` and `resync` name the Leases. Runs
/// until the process ends.
pub async fn watch(kubernetes: Kubernetes, anchor: String, resync: String, metrics: Arc<Metrics>) {
    let needed = needed(&[anchor, resync]);
    let mut trouble = None;
    loop {
        let failed = review(&kubernetes, &needed).await.err().map(|error| error.to_line());
        if failed != trouble
            && let Some(why) = &failed
        {
            tracing::warn!("it is not known which rights there are: {why}");
        }
        trouble = failed;
        mirror(&kubernetes.rights, &needed, &metrics);
        tokio::time::sleep(SPACING).await;
        tokio::select! {
            () = kubernetes.rights.0.refused.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Sets the metric of every right that may be needed, those that are there too.
pub fn mirror(rights: &Rights, needed: &[Right], metrics: &Metrics) {
    let missing = rights.missing();
    for right in needed.iter().chain(&missing) {
        metrics.mirror_right(right.verb, &right.resource, missing.contains(right));
    }
}

/// One round: asks for each right. What cannot be asked stays as it was known.
async fn review(kubernetes: &Kubernetes, needed: &[Right]) -> Result<(), Error> {
    let api: Api<SelfSubjectAccessReview> = Api::all(kubernetes.client.clone());
    for right in needed {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(right.attributes(&kubernetes.namespace)),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let resource = "selfsubjectaccessreviews.authorization.k8s.io".to_owned();
        let asked = Asked { verb: "create", resource, name: None };
        let request = async {
            let answer = api.create(&PostParams::default(), &review).await;
            answer.map_err(|error| Error::of(asked.clone(), error))
        };
        let answer = kubernetes.within(&asked, request).await?;
        if let Some(status) = answer.status {
            kubernetes.rights.set(right.clone(), !status.allowed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::Router;
    use axum::extract::Json;
    use axum::routing::post;
    use serde_json::{Value, json};

    fn asked(verb: &'static str, resource: &str, name: &str) -> Asked {
        Asked { verb, resource: resource.to_owned(), name: Some(name.to_owned()) }
    }

    fn forbidden(asked: &Asked) -> Result<(), Error> {
        Err(Error::Forbidden { asked: asked.clone(), message: "no".to_owned() })
    }

    fn names(rights: &Rights) -> Vec<String> {
        rights.missing().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_refusal_names_the_verb_and_an_answer_clears_it() {
        let rights = Rights::default();
        let (claim, lease) = (asked("get", "persistentvolumeclaims", "c"), asked("get", "leases.x", "l"));
        rights.judge(&claim, &forbidden(&claim));
        rights.judge(&lease, &forbidden(&lease));
        assert_eq!(names(&rights), ["get leases.x/l", "get persistentvolumeclaims"]);
        let silent = Err::<(), _>(Error::Silent { asked: claim.clone(), after: Duration::from_secs(1) });
        rights.judge(&claim, &silent);
        assert_eq!(names(&rights).len(), 2, "silence shows nothing");
        rights.judge(&asked("get", "persistentvolumeclaims", "d"), &Ok(()));
        assert_eq!(names(&rights), ["get leases.x/l"], "a right to claims is one to any claim");
        rights.judge(&asked("get", "leases.x", "m"), &Ok(()));
        assert_eq!(names(&rights), ["get leases.x/l"], "another Lease is another right");
    }

    #[tokio::test]
    async fn a_review_finds_what_is_missing_before_it_is_missed() {
        let granted = Arc::new(AtomicBool::new(false));
        let all = granted.clone();
        let answer = async move |Json(mut review): Json<Value>| {
            let of = review["spec"]["resourceAttributes"].clone();
            let missing =
                (&of["verb"], &of["resource"], &of["namespace"]) == (&json!("get"), &json!("pods"), &json!("ns"));
            review["status"] = json!({"allowed": all.load(Ordering::Relaxed) || !missing});
            Json(review)
        };
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let kubernetes = fake::kubernetes(Router::new().route(path, post(answer)));
        let (needed, metrics) = (needed(&["anchor".to_owned(), "resync".to_owned()]), Metrics::new());
        let series = |value| format!("kaa_kubernetes_right_missing{{verb=\"get\",resource=\"pods\"}} {value}");
        for (grant, names_missing, value) in [(false, vec!["get pods"], 1), (true, vec![], 0)] {
            granted.store(grant, Ordering::Relaxed);
            review(&kubernetes, &needed).await.unwrap();
            mirror(&kubernetes.rights, &needed, &metrics);
            assert_eq!(names(&kubernetes.rights), names_missing);
            assert!(metrics.text().contains(&series(value)), "{}", metrics.text());
        }
    }

    #[tokio::test]
    async fn what_cannot_be_asked_stays_as_it_was_known() {
        let kubernetes = fake::kubernetes(Router::new());
        let asked = asked("get", "pods", "p");
        kubernetes.rights.judge(&asked, &forbidden(&asked));
        assert!(review(&kubernetes, &needed(&["a".to_owned(), "r".to_owned()])).await.is_err());
        assert_eq!(names(&kubernetes.rights), ["get pods"]);
    }
}
