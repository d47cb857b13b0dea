//! What the watches show of Kubernetes, for `get kubernetes-config` of the published client: in the shape of Kubernetes' own objects,
//! and only what decisions rest on. The objects themselves, with the environment of their containers, are not even kept.

use super::error::Error;
use super::{Face, large};
use axum::extract::State;
use axum::response::Response;
use kaa_core::domain::ids::DatabaseName;
use kaa_core::observed::objects::{
    ARCHIVE_TEMPLATE, Claim, Container, DATABASE_LABEL, Deployment, HOLD_PURGE, PAUSE_RESYNC, Pod, StatefulSet,
    ZONE_LABEL,
};
use kaa_core::observed::{Listing, Observed, Unknown};
use serde_json::{Map, Value, json};

pub(super) async fn kube(State(face): State<Face>) -> Result<Response, Error> {
    let (source, prefix) = (face.source.clone(), face.source.annotation_prefix());
    large::answer(move || Ok((None, shown(&source.observed(), &prefix)))).await
}

/// All that is watched. A kind that may not be listed is empty, and `unknown` says why.
fn shown(observed: &Observed, prefix: &str) -> Value {
    let mut unknown = Map::new();
    let stateful_sets = listed(&observed.stateful_sets, "statefulsets", &mut unknown, |set| stateful_set(set, prefix));
    let deployments = listed(&observed.deployments, "deployments", &mut unknown, |found| deployment(found, prefix));
    let pods = listed(&observed.pods, "pods", &mut unknown, pod);
    let volumes = listed(&observed.claims, "volumes", &mut unknown, claim);
    json!({
        "statefulsets": stateful_sets,
        "deployments": deployments,
        "daemonSets": {},
        "pods": pods,
        "volumes": volumes,
        "unknown": unknown,
    })
}

fn listed<T: kaa_core::observed::objects::Named + PartialEq>(
    listing: &Listing<T>,
    kind: &str,
    unknown: &mut Map<String, Value>,
    show: impl Fn(&T) -> Value,
) -> Map<String, Value> {
    match listing.known() {
        Ok(objects) => objects.iter().map(|(name, object)| (name.clone(), show(object))).collect(),
        Err(why) => {
            let why = match why {
                Unknown::Syncing => "not listed completely yet".to_owned(),
                Unknown::Forbidden(why) => why,
            };
            unknown.insert(kind.to_owned(), Value::String(why));
            Map::new()
        }
    }
}

fn metadata(name: &str, uid: &str, database: Option<&DatabaseName>) -> Value {
    let mut metadata = json!({"name": name, "uid": uid});
    if let Some(database) = database {
        metadata["labels"] = json!({ DATABASE_LABEL: database.as_str() });
    }
    metadata
}

/// The annotations that are in force.
fn annotated(metadata: &mut Value, prefix: &str, annotations: &[(&str, bool)]) {
    let set = annotations.iter().filter(|(_, set)| *set);
    let set: Map<String, Value> = set.map(|(name, _)| (format!("{prefix}{name}"), "true".into())).collect();
    if !set.is_empty() {
        metadata["annotations"] = Value::Object(set);
    }
}

fn stateful_set(set: &StatefulSet, prefix: &str) -> Value {
    let mut metadata = metadata(&set.name, set.uid.as_str(), set.database.as_ref());
    metadata["generation"] = set.generation.into();
    annotated(&mut metadata, prefix, &[(HOLD_PURGE, set.holds_purge), (PAUSE_RESYNC, set.paused)]);
    let templates: Vec<Value> = set.templates.iter().map(|name| json!({"metadata": {"name": name}})).collect();
    json!({
        "metadata": metadata,
        "spec": {
            "replicas": set.replicas,
            "ordinals": {"start": set.first_ordinal},
            "podManagementPolicy": if set.ordered { "OrderedReady" } else { "Parallel" },
            "persistentVolumeClaimRetentionPolicy": {
                "whenScaled": if set.deletes_claims_when_scaled { "Delete" } else { "Retain" },
            },
            "volumeClaimTemplates": templates,
        },
    })
}

fn deployment(deployment: &Deployment, prefix: &str) -> Value {
    let mut metadata = metadata(&deployment.name, deployment.uid.as_str(), deployment.database.as_ref());
    annotated(&mut metadata, prefix, &[(PAUSE_RESYNC, deployment.paused)]);
    json!({"metadata": metadata, "spec": {"replicas": deployment.replicas}})
}

fn pod(pod: &Pod) -> Value {
    let mut metadata = metadata(&pod.name, pod.uid.as_str(), pod.database.as_ref());
    if let Some(zone) = &pod.zone {
        metadata["labels"][ZONE_LABEL] = zone.as_str().into();
    }
    if let Some(owner) = &pod.owner {
        let (kind, name, uid) = (&owner.kind, &owner.name, owner.uid.as_str());
        metadata["ownerReferences"] = json!([{"kind": kind, "name": name, "uid": uid, "controller": true}]);
    }
    // When it is to be gone is not kept, so that it has no field of Kubernetes' own.
    metadata["deleting"] = pod.deleting.into();
    let claim = |name: &String| json!({"name": ARCHIVE_TEMPLATE, "persistentVolumeClaim": {"claimName": name}});
    let volumes: Vec<Value> = pod.archive_claim.iter().map(claim).collect();
    let statuses: Vec<Value> = pod.containers.iter().map(container).collect();
    json!({"metadata": metadata, "spec": {"volumes": volumes}, "status": {"containerStatuses": statuses}})
}

fn container(container: &Container) -> Value {
    let mut status = json!({"name": container.name});
    let mut ended = container.ended.iter().map(|ended| {
        let mut terminated = json!({"containerID": ended.id.as_str()});
        if let Some(code) = ended.exit_code {
            terminated["exitCode"] = code.into();
        }
        json!({ "terminated": terminated })
    });
    if let Some(running) = &container.running {
        status["containerID"] = running.id.as_str().into();
        status["state"] = json!({"running": {"startedAt": running.started.to_string()}});
    } else if let Some(ended) = ended.next() {
        status["state"] = ended;
    }
    if let Some(before) = ended.next() {
        status["lastState"] = before;
    }
    status
}

fn claim(claim: &Claim) -> Value {
    let mut metadata = metadata(&claim.name, claim.uid.as_str(), claim.database.as_ref());
    metadata["deleting"] = claim.deleting.into();
    json!({ "metadata": metadata })
}
