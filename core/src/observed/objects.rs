//! Slim forms of the Kubernetes objects that decisions look at. Label and annotation keys live here only.

use super::annotations::Annotations;
use super::replication::Annotated;
use crate::domain::evidence::{Fact, wants};
use crate::domain::ids::{ContainerId, DatabaseName, Millis, Uid};

/// The label that names the database of an object.
pub const DATABASE_LABEL: &str = "database";
/// The volume claim template of a storage manager's archive.
pub const ARCHIVE_TEMPLATE: &str = "archive-volume";
/// The volume claim template of an admin server's Raft log: it also marks a StatefulSet as one of admin servers.
pub const RAFT_LOG_TEMPLATE: &str = "raftlog";

/// The label with the zone of a node. From 1.35 on Kubernetes copies it to the pods; before that it is there where people set it.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The default prefix of the annotations that the agents read.
pub const ANNOTATION_PREFIX: &str = "nuodb.com/";
/// The annotation, behind the prefix, that holds the purge of the archives of a StatefulSet.
pub const HOLD_PURGE: &str = "hold-purge";
/// The annotation, behind the prefix, that pauses what the resync removes of a StatefulSet or Deployment.
pub const PAUSE_RESYNC: &str = "pause-resync";

/// The annotation, behind the prefix, that marks the Deployment of a secondary release.
pub const SECONDARY_RELEASE: &str = "database-secondary-release";
/// The annotation, behind the prefix, that asks for automatic upgrades of the protocol version of the database.
pub const UPGRADE_PROTOCOL: &str = "automatic-database-protocol-upgrade";
/// The annotation, behind the prefix, with the query for the transaction engine that is restarted then.
pub const TE_PREFERENCE: &str = "automatic-database-protocol-upgrade.te-preference-query";

/// Whether an annotation is switched on. Anything else than "true" leaves off what cannot be undone.
pub fn is_on(value: Option<&str>) -> bool {
    value.is_some_and(|value| value.trim() == "true")
}

/// Whether an annotation asks for something to be held back. Whatever it says that is not plainly "no" does: a slip of the
/// pen shall not have anything removed.
pub fn asks_to_hold(value: Option<&str>) -> bool {
    value.is_some_and(|value| !value.trim().eq_ignore_ascii_case("false"))
}

/// Something with a name that is unique in its namespace.
pub trait Named {
    /// The name.
    fn name(&self) -> &str;
}

macro_rules! named {
    ($($kind:ty),*) => {$(
        impl Named for $kind {
            fn name(&self) -> &str {
                &self.name
            }
        }
    )*};
}

named!(StatefulSet, Deployment, Pod, Claim);

/// A StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatefulSet {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// Its `metadata.generation`.
    pub generation: i64,
    /// Its `spec.replicas`.
    pub replicas: u32,
    /// Its `spec.ordinals.start`.
    pub first_ordinal: u32,
    /// Its label `database`, or that of its pods.
    pub database: Option<DatabaseName>,
    /// The names of its volume claim templates.
    pub templates: Vec<String>,
    /// Whether it deletes the claims of the pods that it is scaled down by: its `persistentVolumeClaimRetentionPolicy`
    /// says `whenScaled: Delete`.
    pub deletes_claims_when_scaled: bool,
    /// Whether it starts its pods one after the other, as `podManagementPolicy: OrderedReady` has it.
    pub ordered: bool,
    /// Whether an annotation holds the purge of its archives.
    pub holds_purge: bool,
    /// Whether an annotation pauses what the resync removes of it.
    pub paused: bool,
    /// What its annotations say of load balancing, if it is one of admin servers.
    pub annotations: Annotations,
    /// What its annotations say of replication.
    pub replication: Annotated,
    /// Whether a rollout is in progress, or its pods are not all there and ready.
    pub rolling: bool,
}

/// A Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// Its `spec.replicas`.
    pub replicas: u32,
    /// Its label `database`, or that of its pods.
    pub database: Option<DatabaseName>,
    /// Whether an annotation pauses what the resync removes of it.
    pub paused: bool,
    /// What its annotations say of load balancing.
    pub annotations: Annotations,
    /// Whether a rollout is in progress, or its pods are not all there and ready.
    pub rolling: bool,
    /// Whether it is of a secondary release, which does not speak for its database.
    pub secondary: bool,
    /// Whether an annotation asks for the automatic upgrade of the protocol version of its database.
    pub upgrades_protocol: bool,
    /// The query of the annotation that says which transaction engine is restarted then.
    pub te_preference: Option<String>,
}

/// A Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// Whether it has a deletion timestamp: it still exists.
    pub deleting: bool,
    /// Whether all its containers have ended, and none is started again: its phase is Succeeded or Failed.
    pub ended: bool,
    /// Its label `database`.
    pub database: Option<DatabaseName>,
    /// Its controlling owner.
    pub owner: Option<Owner>,
    /// The claim behind its volume `archive-volume`.
    pub archive_claim: Option<String>,
    /// Its label with the zone of its node.
    pub zone: Option<String>,
    /// What its containers' statuses tell.
    pub containers: Vec<Container>,
}

/// An object's controlling owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its kind, such as `StatefulSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
}

/// What the status of one container tells: the run now, and the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The container's name in the pod.
    pub name: String,
    /// The run under way.
    pub running: Option<Running>,
    /// Runs that have ended: of `state` and of `lastState`.
    pub ended: Vec<Ended>,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Its id, without the `runtime://`.
    pub id: ContainerId,
    /// When it started, by its node's clock, cut to a second.
    pub started: Millis,
}

/// A container that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Its id, without the `runtime://`.
    pub id: ContainerId,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// The last words of its termination message; empty if it left none. They prove nothing.
    pub said: String,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// Whether it has a deletion timestamp: it still exists.
    pub deleting: bool,
    /// Its label `database`.
    pub database: Option<DatabaseName>,
}

impl Claim {
    /// What a fresh read of this claim proves.
    pub fn facts(&self) -> Vec<Fact> {
        vec![Fact::ClaimIs { name: self.name.clone(), uid: self.uid.clone() }]
    }
}

impl Pod {
    /// The status of one of its containers.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// What a fresh read of this pod proves.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::PodIs { name: self.name.clone(), uid: self.uid.clone() }];
        let owner = self.owner.as_ref().filter(|owner| owner.kind == "StatefulSet");
        facts.extend(owner.map(|owner| Fact::PodOwnedBy {
            pod_uid: self.uid.clone(),
            stateful_set: owner.name.clone(),
            uid: owner.uid.clone(),
        }));
        for container in &self.containers {
            let (pod_uid, name) = (&self.uid, &container.name);
            facts.extend(container.ended.iter().map(|ended| Fact::ContainerEnded {
                pod_uid: pod_uid.clone(),
                container: name.clone(),
                id: ended.id.clone(),
                exit_code: ended.exit_code,
            }));
            facts.extend(container.running.iter().map(|running| Fact::ContainerRuns {
                pod_uid: pod_uid.clone(),
                container: name.clone(),
                id: running.id.clone(),
                started: running.started,
            }));
        }
        facts
    }

    /// The ordinal in its name, if a StatefulSet owns it: the integer behind the owner's name and a dash.
    pub fn ordinal(&self) -> Option<u32> {
        let owner = self.owner.as_ref().filter(|owner| owner.kind == "StatefulSet")?;
        ordinal_of(&self.name, &owner.name)
    }
}

/// The ordinal in the name of a pod, if it is one of this StatefulSet's: the integer behind the set's name and a dash.
pub fn ordinal_of(pod: &str, stateful_set: &str) -> Option<u32> {
    let number = pod.strip_prefix(stateful_set)?.strip_prefix('-')?;
    let canonical = number == "0" || (!number.starts_with('0') && number.bytes().all(|byte| byte.is_ascii_digit()));
    if canonical { number.parse().ok() } else { None }
}

impl StatefulSet {
    /// Whether it wants a pod of this ordinal.
    pub fn wants(&self, ordinal: u32) -> bool {
        wants(self.first_ordinal, self.replicas, ordinal)
    }

    /// What a fresh read of this StatefulSet proves.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::StatefulSetIs {
            name: self.name.clone(),
            uid: self.uid.clone(),
            generation: self.generation,
            replicas: self.replicas,
            first_ordinal: self.first_ordinal,
        }];
        let stateful_set = || self.name.clone();
        facts.extend(self.holds_purge.then(|| Fact::PurgeHeld { stateful_set: stateful_set() }));
        facts.extend(self.paused.then(|| Fact::WorkloadPaused { stateful_set: stateful_set() }));
        facts.extend(self.annotations.full_sync.then(|| Fact::SyncsFully { stateful_set: stateful_set() }));
        facts.extend(self.replication_fact());
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::{Owner, Pod, asks_to_hold};

    #[test]
    fn only_a_plain_no_lets_go() {
        assert!(!asks_to_hold(None) && !asks_to_hold(Some("false")) && !asks_to_hold(Some("False ")));
        assert!(asks_to_hold(Some("true")) && asks_to_hold(Some("")) && asks_to_hold(Some("until monday")));
    }

    #[test]
    fn an_ordinal_is_an_integer_behind_the_owners_name() {
        let ordinal = |owner: &str, pod: &str| {
            let owner = Owner { kind: "StatefulSet".into(), name: owner.into(), uid: "u".into() };
            Pod { name: pod.into(), owner: Some(owner), ..Pod::default() }.ordinal()
        };
        assert_eq!(ordinal("sm", "sm-0"), Some(0));
        assert_eq!(ordinal("sm", "sm-12"), Some(12));
        assert_eq!(ordinal("sm-x", "sm-x-hotcopy-1"), None, "another StatefulSet's prefix is not ours");
        assert_eq!(ordinal("sm", "sm-01"), None);
        assert_eq!(ordinal("sm", "sm-+1"), None);
        assert_eq!(ordinal("sm", "sm-"), None);
    }
}
