//! Fresh reads: what a taking-away, or a registration, rests on.
//!
//! Each object is read by name and without a resource version, which the API server answers from its storage. An
//! answer proves something or it does not; "forbidden", "no answer" and a 404 of unclear origin prove nothing.

use super::{Error, Kubernetes, asked, convert, wall_time};
use futures::future::{join, join_all};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use kaa_core::domain::archive::{Claim, Ordinal};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::Uid;
use kaa_core::observed::objects::{Pod, StatefulSet};
use kaa_core::resync::Readings;
use kaa_core::resync::plan::Need;
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
        Some(_) => Vec::new(),
        None => vec![Fact::ClaimAbsent { name: name.to_owned() }],
    }));
    readings.answers.extend(answers(pods, Need::Pod, |name, pod| match pod {
        Some(pod) => convert::pod(&pod).facts(),
        None => vec![Fact::PodAbsent { name: name.to_owned() }],
    }));
    // A StatefulSet that is missing is not one with zero replicas.
    readings.answers.extend(answers(sets, Need::StatefulSet, |_, set| {
        set.as_ref().map(convert::stateful_set).as_ref().map(StatefulSet::facts).unwrap_or_default()
    }));
    readings.answers.extend(answers(
        anchors,
        |_| Need::Anchor,
        |_, lease| {
            let uid = lease.and_then(|lease| lease.metadata.uid);
            uid.map(|uid| Fact::AnchorIs { uid: Uid::new(uid) }).into_iter().collect()
        },
    ));
    readings.at = wall_time();
    readings
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
    #[error("pod {pod} is another one now: {uid}")]
    AnotherPod {
        /// Its name.
        pod: String,
        /// The UID it has now.
        uid: Uid,
    },
    /// A right is missing.
    #[error(transparent)]
    Forbidden(Error),
    /// Kubernetes gave no answer to go by.
    #[error(transparent)]
    Unreachable(Error),
}

/// Reads a pod, and the claim behind its archive. A claim that cannot be read does not stop it: the marker on the
/// volume may suffice, and what is unbound is bound later.
pub async fn identify(kubernetes: &Kubernetes, pod: &str, uid: &Uid) -> Result<Identified, Unidentified> {
    let read = kubernetes.read::<core::Pod>(pod).await.map_err(|error| match error {
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
    let (claim, claim_unknown) = match &pod.archive_claim {
        Some(name) => match read_claim(kubernetes, &pod, name).await {
            Ok(claim) => (Some(claim), None),
            Err(why) => (None, Some(why)),
        },
        None => (None, None),
    };
    let evidence = Evidence { read_at: wall_time(), facts: pod.facts() };
    Ok(Identified { pod, labels, claim, claim_unknown, evidence })
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
