//! Fresh reads: what a removal, or a registration, rests on.
//!
//! Each object is read by name and without a resource version, which the API server answers from its storage. An
//! answer proves something or it does not; "forbidden", "no answer" and a 404 of unclear origin prove nothing.

use super::{Error, Kubernetes, asked, convert};
use futures::future::{join, join_all};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use kaa_core::domain::archive::{Claim, Ordinal};
use kaa_core::domain::balancing::{Item, Object};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{DatabaseName, Uid};
use kaa_core::domain::replicated::Settings;
use kaa_core::observed::Observed;
use kaa_core::observed::annotations::{deployment_facts, set_facts};
use kaa_core::observed::objects::{Pod, StatefulSet};
use kaa_core::resync::Readings;
use kaa_core::resync::databases::wanted_by;
use kaa_core::resync::plan::Need;
use kaa_core::tasks::workloads;
use kube::Resource;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Up to so many objects of a kind are read one by one; more of them by one list, which is one request to the API
/// server instead of a burst.
const MOST_SINGLE_READS: usize = 20;

/// How many objects a page of such a list has: what kubectl and the watches ask for.
const PAGE: u32 = 500;

/// What each read of one kind showed: the object, or that there is none, or why it is not known.
type Found<T> = BTreeMap<String, Result<Option<T>, String>>;

/// Reads everything that is needed, all at once.
pub async fn gather(kubernetes: &Kubernetes, anchor: &str, needs: &BTreeSet<Need>) -> Readings {
    let names = |pick: fn(&Need) -> Option<&String>| needs.iter().filter_map(pick).cloned().collect::<Vec<_>>();
    let claims = names(|need| if let Need::Claim(name) = need { Some(name) } else { None });
    let pods = names(|need| if let Need::Pod(name) = need { Some(name) } else { None });
    let sets = names(|need| if let Need::StatefulSet(name) = need { Some(name) } else { None });
    let anchors = if needs.contains(&Need::Anchor) { vec![anchor.to_owned()] } else { Vec::new() };
    let ((claims, pods), (sets, anchors)) = join(
        join(find::<core::PersistentVolumeClaim>(kubernetes, claims), find::<core::Pod>(kubernetes, pods)),
        join(find::<apps::StatefulSet>(kubernetes, sets), find::<Lease>(kubernetes, anchors)),
    )
    .await;
    let mut readings = Readings::default();
    readings.answers.extend(answers(claims, Need::Claim, |name, claim| match claim {
        Some(claim) => claim_is(name, claim).into_iter().collect(),
        None => vec![Fact::ClaimAbsent { name: name.to_owned() }],
    }));
    readings.answers.extend(answers(pods, Need::Pod, |name, pod| match pod {
        Some(pod) => convert::pod(&pod).facts(),
        None => vec![Fact::PodAbsent { name: name.to_owned() }],
    }));
    // A StatefulSet that is missing is not one with zero replicas.
    readings.answers.extend(answers(sets, Need::StatefulSet, |_, set| {
        let set = set.map(|set| convert::stateful_set(&set, &kubernetes.annotation_prefix));
        set.as_ref().map(StatefulSet::facts).unwrap_or_default()
    }));
    readings.answers.extend(answers(
        anchors,
        |_| Need::Anchor,
        |_, lease| {
            let uid = lease.and_then(|lease| lease.metadata.uid);
            uid.map(|uid| Fact::AnchorIs { uid: Uid::new(uid) }).into_iter().collect()
        },
    ));
    readings.answers.extend(replication(kubernetes, needs).await);
    readings.answers.extend(annotations(kubernetes, needs).await);
    for need in needs {
        let lists = match need {
            Need::WantersOf(database) => wanters(kubernetes, database).await,
            Need::WorkloadsOf { database, pods } => workloads_of(kubernetes, database, pods).await,
            Need::Claim(_) | Need::Pod(_) | Need::StatefulSet(_) | Need::Anchor => continue,
            Need::Replication { .. } | Need::LoadBalancer { .. } => continue,
        };
        readings.answers.insert(need.clone(), lists);
    }
    readings.at = crate::clock::now();
    readings
}

/// What StatefulSets ask for of databases with one primary.
async fn replication(kubernetes: &Kubernetes, needs: &BTreeSet<Need>) -> Vec<(Need, Result<Vec<Fact>, String>)> {
    let asked = needs.iter().filter_map(|need| match need {
        Need::Replication { stateful_set, last } => Some((need, stateful_set, last.as_deref())),
        _ => None,
    });
    let sets = find::<apps::StatefulSet>(kubernetes, asked.clone().map(|(_, name, _)| name.clone()).collect()).await;
    let answer = |(need, name, last): (&Need, &String, Option<&Settings>)| {
        let found = sets.get(name).cloned().unwrap_or(Err("it was not read".to_owned()));
        let set = found.map(|set| set.map(|set| convert::stateful_set(&set, &kubernetes.annotation_prefix)));
        (need.clone(), set.map(|set| set.map(|set| set.facts_after(last)).unwrap_or_default()))
    };
    asked.map(answer).collect()
}

/// What objects say of load-balancer entries. An object is read once, whatever is asked of it.
async fn annotations(kubernetes: &Kubernetes, needs: &BTreeSet<Need>) -> Vec<(Need, Result<Vec<Fact>, String>)> {
    let (mut sets, mut deployments) = (BTreeSet::new(), BTreeSet::new());
    let asked = needs.iter().filter_map(|need| match need {
        Need::LoadBalancer { object, item } => Some((need, object, item)),
        _ => None,
    });
    for (_, object, _) in asked.clone() {
        match object {
            Object::StatefulSet(name) => sets.insert(name.clone()),
            Object::Deployment(name) => deployments.insert(name.clone()),
        };
    }
    let (sets, deployments) = join(
        find::<apps::StatefulSet>(kubernetes, sets.into_iter().collect()),
        find::<apps::Deployment>(kubernetes, deployments.into_iter().collect()),
    )
    .await;
    let prefix = &kubernetes.annotation_prefix;
    let not_read = "it was not read";
    let answer = |(need, object, item): (&Need, &Object, &Item)| {
        let facts = match object {
            Object::StatefulSet(name) => sets.get(name).cloned().unwrap_or(Err(not_read.to_owned())).map(|read| {
                let set = read.map(|set| convert::stateful_set(&set, prefix));
                set_facts(object, item, set.as_ref())
            }),
            Object::Deployment(name) => {
                deployments.get(name).cloned().unwrap_or(Err(not_read.to_owned())).map(|read| {
                    let deployment = read.map(|deployment| convert::deployment(&deployment, prefix));
                    deployment_facts(object, item, deployment.as_ref())
                })
            }
        };
        (need.clone(), facts)
    };
    asked.map(answer).collect()
}

fn claim_is(name: &str, claim: core::PersistentVolumeClaim) -> Option<Fact> {
    Some(Fact::ClaimIs { name: name.to_owned(), uid: Uid::new(claim.metadata.uid?) })
}

/// Whether anything wants a database, by complete lists of all that may: there is no name to ask for.
async fn wanters(kubernetes: &Kubernetes, database: &DatabaseName) -> Result<Vec<Fact>, String> {
    let mut observed = Observed::default();
    let line = |error: Error| error.to_line();
    let prefix = &kubernetes.annotation_prefix;
    let sets = list::<apps::StatefulSet>(kubernetes).await.map_err(line)?;
    sets.values().for_each(|set| observed.stateful_sets.list(convert::stateful_set(set, prefix)));
    let deployments = list::<apps::Deployment>(kubernetes).await.map_err(line)?;
    deployments.values().for_each(|object| observed.deployments.list(convert::deployment(object, prefix)));
    let claims = list::<core::PersistentVolumeClaim>(kubernetes).await.map_err(line)?;
    claims.values().for_each(|claim| observed.claims.list(convert::claim(claim)));
    let pods = list::<core::Pod>(kubernetes).await.map_err(line)?;
    pods.values().for_each(|pod| observed.pods.list(convert::pod(pod)));
    observed.stateful_sets.complete();
    observed.deployments.complete();
    observed.claims.complete();
    observed.pods.complete();
    let by = wanted_by(&observed, database).map_err(|_| "not everything was listed".to_owned())?;
    let database = database.clone();
    Ok(vec![match by {
        Some(by) => Fact::DatabaseWanted { database, by },
        None => Fact::DatabaseUnwanted { database },
    }])
}

/// What the workloads of a database do, by complete lists: there is no name to ask for.
async fn workloads_of(
    kubernetes: &Kubernetes,
    database: &DatabaseName,
    registered: &BTreeSet<Uid>,
) -> Result<Vec<Fact>, String> {
    let mut observed = Observed::default();
    let (line, prefix) = (|error: Error| error.to_line(), &kubernetes.annotation_prefix);
    let sets = list::<apps::StatefulSet>(kubernetes).await.map_err(line)?;
    sets.values().for_each(|set| observed.stateful_sets.list(convert::stateful_set(set, prefix)));
    let deployments = list::<apps::Deployment>(kubernetes).await.map_err(line)?;
    deployments.values().for_each(|object| observed.deployments.list(convert::deployment(object, prefix)));
    let pods = list::<core::Pod>(kubernetes).await.map_err(line)?;
    pods.values().for_each(|pod| observed.pods.list(convert::pod(pod)));
    observed.stateful_sets.complete();
    observed.deployments.complete();
    observed.pods.complete();
    workloads::facts(&observed, database, registered).map_err(|_| "not everything was listed".to_owned())
}

fn answers<T>(
    found: Found<T>,
    need: impl Fn(String) -> Need,
    facts: impl Fn(&str, Option<T>) -> Vec<Fact>,
) -> Vec<(Need, Result<Vec<Fact>, String>)> {
    let answer = |(name, read): (String, Result<Option<T>, String>)| {
        let proven = read.map(|object| facts(&name, object));
        (need(name), proven)
    };
    found.into_iter().map(answer).collect()
}

async fn find<K>(kubernetes: &Kubernetes, names: Vec<String>) -> Found<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if names.len() <= MOST_SINGLE_READS {
        let read = async |name: String| {
            let read = kubernetes.read::<K>(&name).await.map_err(|error| error.to_line());
            (name, read)
        };
        return join_all(names.into_iter().map(read)).await.into_iter().collect();
    }
    match list::<K>(kubernetes).await {
        Ok(mut all) => names.into_iter().map(|name| (name.clone(), Ok(all.remove(&name)))).collect(),
        Err(error) => {
            let why = error.to_line();
            names.into_iter().map(|name| (name, Err(why.clone()))).collect()
        }
    }
}

/// Everything of one kind, by one list without a resource version; complete, or an error.
async fn list<K>(kubernetes: &Kubernetes) -> Result<BTreeMap<String, K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let asked = asked::<K>("list", None);
    let api = kubernetes.api::<K>();
    let mut objects = BTreeMap::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let request = async { api.list(&page).await.map_err(|error| Error::of(asked.clone(), error)) };
        let list = kubernetes.within(&asked, request).await?;
        if list.metadata.resource_version.is_none() {
            return Err(Error::Unproven { asked, why: "answered with something that is not a list".to_owned() });
        }
        objects.extend(list.items.into_iter().filter_map(|object| Some((object.meta().name.clone()?, object))));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// What a fresh read tells of a pod whose engine registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// The pod.
    pub pod: Pod,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// The claim behind its volume `archive-volume`, and the ordinal that mounts it.
    pub claim: Option<Claim>,
    /// Why there is no claim, if the pod names one.
    pub claim_unknown: Option<String>,
    /// What was read.
    pub evidence: Evidence,
}

/// Why a pod could not be identified.
#[derive(Debug, thiserror::Error)]
pub enum Unidentified {
    /// There is no pod of this name.
    #[error("there is no pod {0}")]
    PodGone(String),
    /// The pod of this name is another one.
    #[error("pod {pod} was recreated: its uid is {uid} now")]
    AnotherPod {
        /// Its name.
        pod: String,
        /// The UID it has now.
        uid: Uid,
    },
    /// The pod has no container of this name.
    #[error(
        "pod {pod} has no container {container}; it has {has}: set --container to the name of the wrapper's container"
    )]
    NoContainer {
        /// Its name.
        pod: String,
        /// What the wrapper calls its container.
        container: String,
        /// The containers that it has.
        has: String,
    },
    /// A right is missing.
    #[error(transparent)]
    Forbidden(Error),
    /// Kubernetes gave no answer to go by.
    #[error(transparent)]
    Unreachable(Error),
}

/// The wrapper that registers, as it names itself.
#[derive(Clone, Copy, Debug)]
pub struct Wrapper<'a> {
    /// Its pod's name.
    pub pod: &'a str,
    /// Its pod's UID.
    pub uid: &'a Uid,
    /// The name of its container.
    pub container: &'a str,
}

/// Reads a pod, the claim behind its archive, and the anchor Lease of this name, without which nothing is superseded. A claim or
/// an anchor that cannot be read does not stop it: the marker on the volume may suffice, and what is unbound is bound later.
pub async fn identify(kubernetes: &Kubernetes, wrapper: Wrapper<'_>, anchor: &str) -> Result<Identified, Unidentified> {
    let Wrapper { pod, uid, container } = wrapper;
    let anchor_alone = BTreeSet::from([Need::Anchor]);
    let (read, readings) = join(kubernetes.read::<core::Pod>(pod), gather(kubernetes, anchor, &anchor_alone)).await;
    let read = read.map_err(|error| match error {
        Error::Forbidden { .. } => Unidentified::Forbidden(error),
        _ => Unidentified::Unreachable(error),
    })?;
    let mut object = read.ok_or_else(|| Unidentified::PodGone(pod.to_owned()))?;
    let labels = object.metadata.labels.take().unwrap_or_default();
    object.metadata.labels = Some(labels.clone());
    let pod = convert::pod(&object);
    if pod.uid != *uid {
        return Err(Unidentified::AnotherPod { pod: pod.name, uid: pod.uid });
    }
    let containers = container_names(&object);
    if !containers.contains(&container) {
        let (container, has) = (container.to_owned(), containers.join(", "));
        return Err(Unidentified::NoContainer { pod: pod.name, container, has });
    }
    let (claim, claim_unknown) = match &pod.archive_claim {
        Some(name) => match read_claim(kubernetes, &pod, name).await {
            Ok(claim) => (Some(claim), None),
            Err(why) => (None, Some(why)),
        },
        None => (None, None),
    };
    let anchored = readings.answers.into_values().flatten().flatten();
    let facts = pod.facts().into_iter().chain(anchored).collect();
    let evidence = Evidence { read_at: crate::clock::now(), facts };
    Ok(Identified { pod, labels, claim, claim_unknown, evidence })
}

/// The names of a pod's containers, sidecars among them.
fn container_names(pod: &core::Pod) -> Vec<&str> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(init).map(|container| container.name.as_str()).collect()
}

async fn read_claim(kubernetes: &Kubernetes, pod: &Pod, name: &str) -> Result<Claim, String> {
    let read = kubernetes.read::<core::PersistentVolumeClaim>(name).await.map_err(|error| error.to_line())?;
    let object = read.ok_or_else(|| format!("there is no persistentvolumeclaim {name}"))?;
    let ordinal = |ordinal| {
        let owner = pod.owner.as_ref()?;
        Some(Ordinal { stateful_set: owner.name.clone(), uid: owner.uid.clone(), ordinal })
    };
    Ok(Claim {
        namespace: kubernetes.namespace().to_owned(),
        name: name.to_owned(),
        uid: convert::claim(&object).uid,
        owner: pod.ordinal().and_then(ordinal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::Router;
    use axum::extract::{Path, Query};
    use axum::http::StatusCode;
    use axum::response::{Html, IntoResponse, Response};
    use axum::routing::get;
    use serde_json::{Value, json};
    use std::time::Duration;

    const PODS: &str = "/api/v1/namespaces/ns/pods/{name}";
    const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/{name}";
    const SETS: &str = "/apis/apps/v1/namespaces/ns/statefulsets/{name}";
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/{name}";

    fn object(name: &str, uid: &str) -> Value {
        json!({"metadata": {"name": name, "uid": uid, "resourceVersion": "1"}})
    }

    /// Answers as named by the claim that is asked for.
    async fn claim(Path(name): Path<String>) -> Response {
        match name.as_str() {
            "present" => axum::Json(object("present", "u1")).into_response(),
            "absent" => fake::status(404, "NotFound", "", "persistentvolumeclaims", "absent"),
            "html" => (StatusCode::NOT_FOUND, Html("<html>404\nnot found</html>")).into_response(),
            "no-details" => {
                let body = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
                (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
            }
            "other-kind" => fake::status(404, "NotFound", "", "namespaces", "other-kind"),
            "other-name" => fake::status(404, "NotFound", "", "persistentvolumeclaims", "absent"),
            "other-group" => fake::status(404, "NotFound", "x.io", "persistentvolumeclaims", "other-group"),
            "other-object" => axum::Json(object("present", "u1")).into_response(),
            "forbidden" => fake::status(403, "Forbidden", "", "persistentvolumeclaims", "forbidden"),
            "broken" => fake::status(500, "InternalError", "", "persistentvolumeclaims", "broken"),
            _ => std::future::pending().await,
        }
    }

    async fn read_claim(name: &str) -> Result<Vec<Fact>, String> {
        let kubernetes = fake::kubernetes(Router::new().route(CLAIMS, get(claim)));
        let need = Need::Claim(name.to_owned());
        let mut readings = gather(&kubernetes, "anchor", &BTreeSet::from([need.clone()])).await;
        assert!(readings.at > kaa_core::domain::ids::Millis(0));
        readings.answers.remove(&need).expect("an answer to every need")
    }

    #[tokio::test]
    async fn absence_is_a_404_that_names_the_object_and_its_kind() {
        assert_eq!(read_claim("absent").await, Ok(vec![Fact::ClaimAbsent { name: "absent".to_owned() }]));
        assert_eq!(
            read_claim("present").await,
            Ok(vec![Fact::ClaimIs { name: "present".to_owned(), uid: "u1".into() }])
        );
    }

    #[tokio::test]
    async fn any_other_answer_proves_nothing() {
        for name in ["html", "no-details", "other-kind", "other-name", "other-group", "other-object"] {
            let why = read_claim(name).await.expect_err(name);
            assert!(why.starts_with(&format!("cannot get persistentvolumeclaims {name}: ")), "{why}");
        }
        let line = |name: &'static str| async move { read_claim(name).await.expect_err("no answer") };
        assert_eq!(
            line("forbidden").await,
            "no permission to get persistentvolumeclaims forbidden: persistentvolumeclaims \"forbidden\" Forbidden"
        );
        assert_eq!(
            line("broken").await,
            "cannot get persistentvolumeclaims broken: answered 500: persistentvolumeclaims \"broken\" InternalError"
        );
        assert_eq!(line("silent").await, "cannot get persistentvolumeclaims silent: no answer within 1 s");
    }

    #[tokio::test]
    async fn each_kind_proves_what_it_can() {
        let pod = |Path(name): Path<String>| async move {
            match name.as_str() {
                "gone" => fake::status(404, "NotFound", "", "pods", "gone"),
                _ => axum::Json(object(&name, "p1")).into_response(),
            }
        };
        let missing_set =
            |Path(name): Path<String>| async move { fake::status(404, "NotFound", "apps", "statefulsets", &name) };
        let lease = |Path(name): Path<String>| async move { axum::Json(object(&name, "l1")) };
        let router = Router::new().route(PODS, get(pod)).route(SETS, get(missing_set)).route(LEASES, get(lease));
        let needs = [Need::Pod("gone".into()), Need::Pod("there".into()), Need::StatefulSet("sm".into()), Need::Anchor];
        let readings = gather(&fake::kubernetes(router), "anchor", &BTreeSet::from(needs.clone())).await;
        let facts = needs.map(|need| readings.answers[&need].clone().expect("an answer"));
        assert_eq!(facts[0], vec![Fact::PodAbsent { name: "gone".into() }]);
        assert_eq!(facts[1], vec![Fact::PodIs { name: "there".into(), uid: "p1".into() }]);
        assert_eq!(facts[2], vec![], "a StatefulSet that is missing is not one with zero replicas");
        assert_eq!(facts[3], vec![Fact::AnchorIs { uid: "l1".into() }]);
    }

    #[tokio::test]
    async fn many_objects_are_read_by_one_complete_list() {
        let list = |Query(query): Query<BTreeMap<String, String>>| async move {
            assert!(!query.contains_key("resourceVersion"), "a list with a resource version may be old");
            let (continue_, name) = match query.get("continue").map(String::as_str) {
                None => ("more", "c-0"),
                Some(_) => ("", "c-1"),
            };
            axum::Json(json!({"kind": "PersistentVolumeClaimList", "apiVersion": "v1",
                "metadata": {"resourceVersion": "9", "continue": continue_}, "items": [object(name, "u")]}))
        };
        let router = Router::new().route("/api/v1/namespaces/ns/persistentvolumeclaims", get(list));
        let needs: BTreeSet<Need> = (0..=MOST_SINGLE_READS).map(|i| Need::Claim(format!("c-{i}"))).collect();
        let readings = gather(&fake::kubernetes(router), "anchor", &needs).await;
        assert_eq!(readings.answers.len(), needs.len());
        assert_eq!(
            readings.answers[&Need::Claim("c-1".into())],
            Ok(vec![Fact::ClaimIs { name: "c-1".into(), uid: "u".into() }])
        );
        let absent = Fact::ClaimAbsent { name: "c-2".into() };
        assert_eq!(readings.answers[&Need::Claim("c-2".into())], Ok(vec![absent]));
    }

    /// An API server with these objects of each kind, by path; a kind that is not named is forbidden.
    fn lists(kinds: Vec<(&'static str, Vec<Value>)>) -> Router {
        kinds.into_iter().fold(Router::new(), |router, (kind, items)| {
            let group = if kind.ends_with('s') && ["pods", "persistentvolumeclaims"].contains(&kind) {
                "/api/v1"
            } else {
                "/apis/apps/v1"
            };
            let answer =
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items});
            router.route(&format!("{group}/namespaces/ns/{kind}"), get(move || async move { axum::Json(answer) }))
        })
    }

    async fn wanted(kinds: Vec<(&'static str, Vec<Value>)>) -> Result<Vec<Fact>, String> {
        let need = Need::WantersOf("demo".into());
        let kubernetes = fake::kubernetes(lists(kinds));
        let mut readings = gather(&kubernetes, "anchor", &BTreeSet::from([need.clone()])).await;
        readings.answers.remove(&need).expect("an answer to every need")
    }

    #[tokio::test]
    async fn a_database_is_unwanted_only_by_complete_lists_of_everything() {
        let labelled = |name: &str, database: &str| json!({"metadata": {"name": name, "uid": "u", "labels": {"database": database}}});
        let kinds = |claims: Vec<Value>| {
            vec![("pods", vec![labelled("te", "other")]), ("persistentvolumeclaims", claims), ("statefulsets", vec![])]
        };
        let with_deployments = |claims| [kinds(claims), vec![("deployments", vec![])]].concat();
        let unwanted = Fact::DatabaseUnwanted { database: "demo".into() };
        assert_eq!(wanted(with_deployments(vec![])).await, Ok(vec![unwanted]));
        let by = "persistentvolumeclaim data".to_owned();
        let claimed = Fact::DatabaseWanted { database: "demo".into(), by };
        assert_eq!(wanted(with_deployments(vec![labelled("data", "demo")])).await, Ok(vec![claimed]));
        let why = wanted(kinds(vec![])).await.expect_err("deployments cannot be listed");
        assert!(why.starts_with("cannot list deployments.apps"), "{why}");
    }

    fn engine_pod() -> Value {
        json!({"metadata": {"name": "sm-1", "uid": "p1", "labels": {"zone": "a"}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "sm", "uid": "s1", "controller": true}]},
            "spec": {"containers": [{"name": "engine"}], "volumes": [
                {"name": "archive-volume", "persistentVolumeClaim": {"claimName": "present"}}]}})
    }

    #[tokio::test]
    async fn a_registering_pod_is_identified_with_its_claim_and_ordinal() {
        let lease = |Path(name): Path<String>| async move { axum::Json(object(&name, "l1")) };
        let router = Router::new().route(PODS, get(|| async { axum::Json(engine_pod()) })).route(CLAIMS, get(claim));
        let kubernetes = fake::kubernetes(router.route(LEASES, get(lease)));
        let identified = identified(&kubernetes, "sm-1", "p1", "engine").await.expect("a pod");
        assert!(identified.evidence.anchored_by(&"l1".into()));
        let owner = Ordinal { stateful_set: "sm".into(), uid: "s1".into(), ordinal: 1 };
        let claim = Claim { namespace: "ns".into(), name: "present".into(), uid: "u1".into(), owner: Some(owner) };
        assert_eq!(identified.claim, Some(claim));
        assert_eq!(identified.labels.get("zone").map(String::as_str), Some("a"));
        let another = identify(&kubernetes, Wrapper { pod: "sm-1", uid: &"p0".into(), container: "engine" }, "anchor")
            .await
            .expect_err("another pod");
        assert!(matches!(another, Unidentified::AnotherPod { .. }), "{another}");
    }

    #[tokio::test]
    async fn a_wrapper_that_calls_itself_by_another_containers_name_is_told_which_there_are() {
        let router = Router::new().route(PODS, get(|| async { axum::Json(engine_pod()) })).route(CLAIMS, get(claim));
        let error = identified(&fake::kubernetes(router), "sm-1", "p1", "nuodb").await.expect_err("no such container");
        assert!(matches!(error, Unidentified::NoContainer { .. }), "{error}");
        assert!(error.to_string().starts_with("pod sm-1 has no container nuodb; it has engine: "), "{error}");
    }

    async fn identified(
        kubernetes: &Kubernetes,
        pod: &str,
        uid: &str,
        container: &str,
    ) -> Result<Identified, Unidentified> {
        identify(kubernetes, Wrapper { pod, uid: &uid.into(), container }, "anchor").await
    }

    #[tokio::test]
    async fn a_claim_that_may_not_be_read_leaves_the_pod_identified() {
        let forbidden = || async { fake::status(403, "Forbidden", "", "persistentvolumeclaims", "present") };
        let router =
            Router::new().route(PODS, get(|| async { axum::Json(engine_pod()) })).route(CLAIMS, get(forbidden));
        let identified = identified(&fake::kubernetes(router), "sm-1", "p1", "engine").await.expect("a pod");
        assert!(!identified.evidence.anchored_by(&"l1".into()), "the anchor cannot be read either");
        assert_eq!(identified.claim, None);
        assert!(identified.claim_unknown.is_some_and(|why| why.starts_with("no permission to get")));
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_read_is_told_from_one_that_is_gone() {
        let pod = |Path(name): Path<String>| async move {
            match name.as_str() {
                "gone" => fake::status(404, "NotFound", "", "pods", "gone"),
                "secret" => fake::status(403, "Forbidden", "", "pods", "secret"),
                _ => {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    StatusCode::OK.into_response()
                }
            }
        };
        let kubernetes = fake::kubernetes(Router::new().route(PODS, get(pod)));
        let identify = async |name| identified(&kubernetes, name, "p1", "engine").await.expect_err(name);
        assert!(matches!(identify("gone").await, Unidentified::PodGone(_)));
        assert!(matches!(identify("secret").await, Unidentified::Forbidden(_)));
        assert!(matches!(identify("slow").await, Unidentified::Unreachable(_)));
    }
}
