//! From the Kubernetes types to the slim forms that decisions look at. Pure: no client, no clock.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kaa_core::domain::ids::{ContainerId, DatabaseName, Millis, Uid};
use kaa_core::observed::annotations::Annotations;
use kaa_core::observed::objects::{
    ARCHIVE_TEMPLATE, Claim, Container, DATABASE_LABEL, Deployment, Ended, HOLD_PURGE, Owner, PAUSE_RESYNC, Pod,
    RAFT_LOG_TEMPLATE, Running, SECONDARY_RELEASE, StatefulSet, TE_PREFERENCE, UPGRADE_PROTOCOL, ZONE_LABEL,
    asks_to_hold, is_on,
};
use kaa_core::observed::replication::Annotated;
use kaa_core::tasks::preference::MOST_BYTES;

/// How much is kept of a termination message: all pods are kept in memory.
const MESSAGE_CHARS: usize = 500;

/// What is kept of a StatefulSet. `prefix` is that of the annotations that the agent reads.
pub fn stateful_set(object: &apps::StatefulSet, prefix: &str) -> StatefulSet {
    let spec = &object.spec;
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    let retention = spec.persistent_volume_claim_retention_policy.as_ref();
    StatefulSet {
        name: name(&object.metadata),
        uid: uid(&object.metadata),
        generation: object.metadata.generation.unwrap_or_default(),
        replicas: replicas(spec.replicas),
        first_ordinal: first.and_then(|first| u32::try_from(first).ok()).unwrap_or_default(),
        // Pods that are wanted later count as much as the object itself.
        database: database(&object.metadata).or_else(|| database(spec.template.metadata.as_ref()?)),
        templates: templates.iter().map(|template| name(&template.metadata)).collect(),
        deletes_claims_when_scaled: retention.and_then(|policy| policy.when_scaled.as_deref()) == Some("Delete"),
        ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        holds_purge: asks_to_hold(annotation(&object.metadata, prefix, HOLD_PURGE)),
        paused: asks_to_hold(annotation(&object.metadata, prefix, PAUSE_RESYNC)),
        annotations: if templates.iter().any(|template| name(&template.metadata) == RAFT_LOG_TEMPLATE) {
            balancing(&object.metadata, prefix)
        } else {
            Annotations::default()
        },
        replication: Annotated::read(
            object.metadata.annotations.iter().flatten().map(|(name, text)| (name.as_str(), text.as_str())),
            prefix,
        ),
        rolling: set_rolls(object),
    }
}

/// What is kept of a Deployment. `prefix` as above.
pub fn deployment(object: &apps::Deployment, prefix: &str) -> Deployment {
    let template = object.spec.template.metadata.as_ref();
    Deployment {
        name: name(&object.metadata),
        uid: uid(&object.metadata),
        replicas: replicas(object.spec.replicas),
        database: database(&object.metadata).or_else(|| database(template?)),
        paused: asks_to_hold(annotation(&object.metadata, prefix, PAUSE_RESYNC)),
        annotations: balancing(&object.metadata, prefix),
        rolling: deployment_rolls(object),
        secondary: is_on(annotation(&object.metadata, prefix, SECONDARY_RELEASE)),
        upgrades_protocol: is_on(annotation(&object.metadata, prefix, UPGRADE_PROTOCOL)),
        te_preference: annotation(&object.metadata, prefix, TE_PREFERENCE).map(kept_query),
    }
}

/// A query, cut a few bytes after the longest that is read: an annotation must not fill the memory.
fn kept_query(query: &str) -> String {
    query[..query.floor_char_boundary(MOST_BYTES + 4)].to_owned()
}

/// Whether a rollout is in progress, as `kubectl rollout status` judges it, or pods are missing or not ready. A status that the
/// controller has not written yet says that there is one. A pod is current if it has the last template, whatever the strategy.
fn set_rolls(object: &apps::StatefulSet) -> bool {
    let wanted = object.spec.replicas.unwrap_or(1);
    let Some(status) = &object.status else { return true };
    status.observed_generation < object.metadata.generation
        || status.replicas != wanted
        || status.updated_replicas.unwrap_or_default() != wanted
        || status.ready_replicas.unwrap_or_default() != wanted
}

/// The same of a Deployment.
fn deployment_rolls(object: &apps::Deployment) -> bool {
    let wanted = object.spec.replicas.unwrap_or(1);
    let Some(status) = &object.status else { return true };
    status.observed_generation < object.metadata.generation
        || status.replicas.unwrap_or_default() != wanted
        || status.updated_replicas.unwrap_or_default() != wanted
        || status.available_replicas.unwrap_or_default() != wanted
}

/// What is kept of a Pod.
pub fn pod(object: &core::Pod) -> Pod {
    let volumes = object.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let archive = volumes.iter().find(|volume| volume.name == ARCHIVE_TEMPLATE);
    let claim = archive.and_then(|volume| volume.persistent_volume_claim.as_ref());
    let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
    Pod {
        name: name(&object.metadata),
        uid: uid(&object.metadata),
        deleting: object.metadata.deletion_timestamp.is_some(),
        ended: matches!(phase, Some("Succeeded" | "Failed")),
        database: database(&object.metadata),
        owner: owner(&object.metadata),
        archive_claim: claim.map(|claim| claim.claim_name.clone()),
        zone: label(&object.metadata, ZONE_LABEL).filter(|zone| !zone.is_empty()).cloned(),
        containers: object.status.as_ref().map(containers).unwrap_or_default(),
    }
}

/// What is kept of a PersistentVolumeClaim.
pub fn claim(object: &core::PersistentVolumeClaim) -> Claim {
    Claim {
        name: name(&object.metadata),
        uid: uid(&object.metadata),
        deleting: object.metadata.deletion_timestamp.is_some(),
        database: database(&object.metadata),
    }
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

fn uid(metadata: &ObjectMeta) -> Uid {
    Uid::new(metadata.uid.clone().unwrap_or_default())
}

fn database(metadata: &ObjectMeta) -> Option<DatabaseName> {
    label(metadata, DATABASE_LABEL).map(|name| DatabaseName::new(name.clone()))
}

fn label<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    metadata.labels.as_ref()?.get(name)
}

fn annotation<'a>(metadata: &'a ObjectMeta, prefix: &str, name: &str) -> Option<&'a str> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.iter().find(|(key, _)| key.strip_prefix(prefix) == Some(name)).map(|(_, value)| value.as_str())
}

/// What the annotations say of load balancing.
fn balancing(metadata: &ObjectMeta, prefix: &str) -> Annotations {
    let annotations = metadata.annotations.iter().flatten();
    Annotations::read(annotations.filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value.as_str()))))
}

fn owner(metadata: &ObjectMeta) -> Option<Owner> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(Owner { kind: owner.kind.clone(), name: owner.name.clone(), uid: Uid::new(owner.uid.clone()) })
}

/// One is what the API server makes of a missing number. It admits no negative one; if it did, the wrong answer that
/// takes nothing away is "many".
fn replicas(wanted: Option<i32>) -> u32 {
    u32::try_from(wanted.unwrap_or(1)).unwrap_or(u32::MAX)
}

/// Of the init containers too: a sidecar is one that never ends.
fn containers(status: &core::PodStatus) -> Vec<Container> {
    let init = status.init_container_statuses.iter().flatten();
    let all = status.container_statuses.iter().flatten().chain(init);
    all.map(container).collect()
}

fn container(status: &core::ContainerStatus) -> Container {
    let running = status.state.as_ref().and_then(|state| state.running.as_ref());
    let running = running.and_then(|running| {
        let started = millis(running.started_at.as_ref()?)?;
        Some(Running { id: container_id(status.container_id.as_deref()?)?, started })
    });
    let states = [status.state.as_ref(), status.last_state.as_ref()];
    let ended = states.into_iter().flatten().filter_map(|state| ended(state.terminated.as_ref()?));
    Container { name: status.name.clone(), running, ended: ended.collect() }
}

fn ended(terminated: &core::ContainerStateTerminated) -> Option<Ended> {
    let id = container_id(terminated.container_id.as_deref()?)?;
    let said = terminated.message.as_deref().map(last_words).unwrap_or_default();
    Some(Ended { id, exit_code: Some(terminated.exit_code), said })
}

/// How a wrapper and its command line begin what they end with.
const ERRORS: [&str; 2] = ["kaa: ", "error: "];

/// Why a container ended, by its termination message: the paragraph of the last error, or else the last line. It comes from a container, and
/// is shown at terminals.
fn last_words(text: &str) -> String {
    let shown = |line: &str| line.chars().filter(|char| !char.is_control()).collect::<String>().trim().to_owned();
    let lines: Vec<String> = text.lines().map(shown).collect();
    let error = lines.iter().rposition(|line| ERRORS.iter().any(|begin| line.starts_with(begin)));
    let last = lines.iter().rposition(|line| !line.is_empty()).unwrap_or(lines.len());
    let said: Vec<&str> =
        lines[error.unwrap_or(last)..].iter().map(String::as_str).take_while(|line| !line.is_empty()).collect();
    let said = said.join(" ");
    match said.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", &said[..end]),
        None => said,
    }
}

/// The id without its `runtime://`.
fn container_id(id: &str) -> Option<ContainerId> {
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then(|| ContainerId::new(id))
}

fn millis(time: &Time) -> Option<Millis> {
    u64::try_from(time.0.as_millisecond()).ok().map(Millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaa_core::observed::annotations::Says;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn parse<K: DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).expect("a Kubernetes object")
    }

    #[test]
    fn a_stateful_set_keeps_what_it_wants() {
        let object = json!({
            "metadata": {"name": "sm", "uid": "u1", "generation": 7, "labels": {"database": "hockey"}},
            "spec": {"replicas": 3, "ordinals": {"start": 5}, "serviceName": "sm", "selector": {},
                "template": {}, "volumeClaimTemplates": [{"metadata": {"name": "archive-volume"}}],
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"}},
        });
        let expected = StatefulSet {
            name: "sm".into(),
            uid: "u1".into(),
            generation: 7,
            replicas: 3,
            first_ordinal: 5,
            database: Some("hockey".into()),
            templates: vec!["archive-volume".into()],
            deletes_claims_when_scaled: true,
            ordered: true,
            holds_purge: false,
            paused: false,
            annotations: Annotations::default(),
            replication: Annotated::default(),
            rolling: true,
        };
        assert_eq!(stateful_set(&parse(object), "nuodb.com/"), expected);
    }

    #[test]
    fn only_annotations_with_the_prefix_count() {
        let set = |key: &str, value: &str| {
            let object = json!({"metadata": {"name": "sm", "uid": "u", "annotations": {key: value}},
                "spec": {"podManagementPolicy": "Parallel", "selector": {}, "template": {}}});
            let set = stateful_set(&parse(object), "db.example/");
            (set.holds_purge, set.paused, set.ordered)
        };
        assert_eq!(set("db.example/hold-purge", "true"), (true, false, false));
        assert_eq!(set("db.example/pause-resync", "until monday"), (false, true, false));
        assert_eq!(set("db.example/hold-purge", "false"), (false, false, false));
        assert_eq!(set("nuodb.com/hold-purge", "true"), (false, false, false));
        let object = json!({"metadata": {"name": "te", "uid": "u", "annotations": {"nuodb.com/pause-resync": "true"}},
            "spec": {"selector": {}, "template": {"metadata": {"labels": {"database": "hockey"}}}}});
        let deployment = deployment(&parse(object), "nuodb.com/");
        assert!(deployment.paused);
        assert_eq!(deployment.database, Some("hockey".into()), "its pods are what it wants");
    }

    #[test]
    fn annotations_of_load_balancing_are_those_of_admin_servers_and_deployments() {
        let annotations = json!({"db.example/load-balancer-default": "random(any)", "db.example/sync-load-balancer-config": "true",
            "db.example/load-balancer-policy.near": "(".repeat(256 << 10), "nuodb.com/load-balancer-prefilter": "any"});
        let set = |template: &str| {
            let object = json!({"metadata": {"name": "s", "uid": "u", "annotations": annotations},
                "spec": {"selector": {}, "template": {}, "volumeClaimTemplates": [{"metadata": {"name": template}}]}});
            stateful_set(&parse(object), "db.example/").annotations
        };
        assert_eq!(set("archive-volume"), Annotations::default());
        let read = set("raftlog");
        assert_eq!((read.default, read.prefilter, read.full_sync), (Some("random(any)".into()), None, true));
        assert_eq!(read.policies["near"], Says::TooLong(256 << 10));
        let object = json!({"metadata": {"name": "te", "uid": "u", "annotations": {"a/database-secondary-release": "true"}},
            "spec": {"selector": {}, "template": {}}});
        assert!(deployment(&parse(object), "a/").annotations.secondary);
    }

    #[test]
    fn a_deployment_says_whether_it_asks_for_upgrades() {
        let asks = |annotations: Value| {
            let object = json!({"metadata": {"name": "te", "uid": "u", "annotations": annotations},
                "spec": {"selector": {}, "template": {}}});
            let kept = deployment(&parse(object), "db.example/");
            (kept.upgrades_protocol, kept.secondary, kept.te_preference.map(|query| query.len()))
        };
        let key = "db.example/automatic-database-protocol-upgrade";
        let query = "db.example/automatic-database-protocol-upgrade.te-preference-query";
        assert_eq!(asks(json!({key: "true", query: "random(any)"})), (true, false, Some(11)));
        assert_eq!(
            asks(json!({key: "yes"})),
            (false, false, None),
            "what cannot be undone is off unless it is plainly on"
        );
        assert_eq!(asks(json!({"nuodb.com/automatic-database-protocol-upgrade": "true"})), (false, false, None));
        let secondary = json!({key: "true", "db.example/database-secondary-release": "true"});
        assert_eq!(asks(secondary), (true, true, None));
        assert_eq!(asks(json!({key: "true", query: "ä".repeat(200_000)})), (true, false, Some(1028)));
    }

    #[test]
    fn a_rollout_is_over_when_all_pods_are_current_and_ready() {
        let whole = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
            "availableReplicas": 2});
        let rolls = |status: Value| {
            let object = json!({"metadata": {"name": "x", "uid": "u", "generation": 2}, "status": status,
                "spec": {"replicas": 2, "selector": {}, "template": {}}});
            (deployment(&parse(object.clone()), "").rolling, stateful_set(&parse(object), "").rolling)
        };
        assert_eq!(rolls(whole.clone()), (false, false));
        for (key, value) in [("observedGeneration", 1), ("replicas", 3), ("updatedReplicas", 1), ("readyReplicas", 1)] {
            let mut status = whole.clone();
            status[key] = value.into();
            assert_eq!(rolls(status), (key != "readyReplicas", true), "{key}");
        }
        let mut status = whole;
        status["availableReplicas"] = 1.into();
        assert_eq!(rolls(status), (true, false));
        assert_eq!(rolls(json!({"replicas": 0})), (true, true), "the controller has not looked yet");
        let none = json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"selector": {}, "template": {}}});
        assert!(deployment(&parse(none), "").rolling, "unknown is not finished");
    }

    #[test]
    fn missing_replicas_are_one_and_zero_is_zero() {
        let replicas = |spec: Value| {
            deployment(&parse(json!({"metadata": {"name": "te", "uid": "u"}, "spec": spec})), "").replicas
        };
        assert_eq!(replicas(json!({"selector": {}, "template": {}})), 1);
        assert_eq!(replicas(json!({"replicas": 0, "selector": {}, "template": {}})), 0);
    }

    #[test]
    fn a_pod_keeps_its_controlling_owner_its_claim_and_its_containers() {
        let object = json!({
            "metadata": {"name": "sm-0", "uid": "p1", "deletionTimestamp": "2026-11-21T16:30:00Z",
                "labels": {"topology.kubernetes.io/zone": "z1", "zone": "z2"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "o1"},
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "sm", "uid": "o2", "controller": true}]},
            "spec": {"containers": [], "volumes": [
                {"name": "log", "persistentVolumeClaim": {"claimName": "log-sm-0"}},
                {"name": "archive-volume", "persistentVolumeClaim": {"claimName": "archive-volume-sm-0"}}]},
            "status": {"containerStatuses": [{
                "name": "engine", "image": "", "imageID": "", "ready": true, "restartCount": 1,
                "containerID": "containerd://c2",
                "state": {"running": {"startedAt": "2026-11-21T16:30:22Z"}},
                "lastState": {"terminated": {"containerID": "containerd://c1", "exitCode": 137}}}]},
        });
        let pod = pod(&parse(object));
        assert!(pod.deleting);
        assert_eq!(pod.owner.as_ref().map(|owner| owner.uid.as_str()), Some("o2"));
        assert_eq!(pod.ordinal(), Some(0));
        assert_eq!(pod.archive_claim.as_deref(), Some("archive-volume-sm-0"));
        assert_eq!(pod.zone.as_deref(), Some("z1"));
        let engine = pod.container("engine").expect("the container");
        assert_eq!(engine.running, Some(Running { id: "c2".into(), started: Millis(1_795_278_622_000) }));
        assert_eq!(engine.ended, vec![Ended { id: "c1".into(), exit_code: Some(137), said: String::new() }]);
    }

    #[test]
    fn the_last_words_of_a_container_are_kept() {
        for (message, said) in [
            ("INFO starts\nkaa: the volume is damaged\n\n", "kaa: the volume is damaged"),
            ("kaa: initdb exited with 1: no\n  space left\n", "kaa: initdb exited with 1: no space left"),
            (
                "error: these are missing:\n  --pod <POD>\n\nUsage: kaa engine\n\nFor more information, try '--help'.\n",
                "error: these are missing: --pod <POD>",
            ),
            ("begins\nSegmentation fault\n", "Segmentation fault"),
            ("\u{1b}[31mkaa:\tno\u{7}\r\n \n", "[31mkaa:no"),
            (" \n", ""),
            ("", ""),
        ] {
            assert_eq!(last_words(message), said, "{message:?}");
        }
        let long = last_words(&"ä".repeat(5000));
        assert_eq!((long.chars().count(), long.ends_with("ä...")), (503, true));
    }

    #[test]
    fn a_pod_has_ended_when_its_phase_says_so() {
        let ended = |phase: &str| pod(&parse(json!({"metadata": {"name": "te"}, "status": {"phase": phase}}))).ended;
        assert_eq!(
            ["Pending", "Running", "Unknown", "Failed", "Succeeded"].map(ended),
            [false, false, false, true, true]
        );
    }

    #[test]
    fn both_ends_of_a_container_that_failed_twice_are_kept() {
        let object = json!({
            "metadata": {"name": "te", "uid": "p1"},
            "status": {"containerStatuses": [{
                "name": "engine", "image": "", "imageID": "", "ready": false, "restartCount": 2,
                "containerID": "cri-o://c2",
                "state": {"terminated": {"containerID": "cri-o://c2", "exitCode": 1}},
                "lastState": {"terminated": {"containerID": "cri-o://c1", "exitCode": 0}}}]},
        });
        let pod = pod(&parse(object));
        let engine = pod.container("engine").expect("the container");
        assert_eq!(engine.running, None);
        let ids: Vec<&str> = engine.ended.iter().map(|ended| ended.id.as_str()).collect();
        assert_eq!(ids, ["c2", "c1"]);
    }

    #[test]
    fn a_waiting_container_neither_runs_nor_has_ended() {
        let object = json!({
            "metadata": {"name": "te", "uid": "p1"},
            "status": {"containerStatuses": [{
                "name": "engine", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}}}]},
        });
        let pod = pod(&parse(object));
        assert_eq!(pod.containers, vec![Container { name: "engine".into(), ..Container::default() }]);
        assert_eq!(pod.owner, None);
        assert_eq!(pod.archive_claim, None);
    }

    #[test]
    fn a_claim_that_is_being_deleted_still_exists() {
        let object = json!({"metadata": {"name": "c", "uid": "u", "deletionTimestamp": "2026-11-21T16:30:00Z"}});
        let expected = Claim { name: "c".into(), uid: "u".into(), deleting: true, database: None };
        assert_eq!(claim(&parse(object)), expected);
    }
}
