//! What a fresh read of Kubernetes showed, kept with the command that rests on it.
//!
//! A fact is positive: "the API server answered that there is no such claim" is one, "no answer" and "forbidden" are
//! none. Who gathers them is not this module's business; what they prove is.

use super::balancing::{Item, Object};
use super::ids::{ContainerId, DatabaseName, Millis, Uid};
use super::replicated::Settings;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Facts that were read together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// When the last of them was read, by the reader's clock.
    pub read_at: Millis,
    /// What was read.
    pub facts: Vec<Fact>,
}

/// Something to read by name, without a resource version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A PersistentVolumeClaim.
    Claim(String),
    /// A Pod.
    Pod(String),
    /// A StatefulSet.
    StatefulSet(String),
    /// What a StatefulSet asks for of a database with one primary.
    Replication {
        /// Its name.
        stateful_set: String,
        /// What was set last, which stays where an annotation cannot be followed.
        last: Option<Box<Settings>>,
    },
    /// Everything that may want a database: complete lists of StatefulSets, Deployments, claims and pods.
    WantersOf(DatabaseName),
    /// The Lease that anchors the domain.
    Anchor,
    /// The annotation of an object that sets a load-balancer entry.
    LoadBalancer {
        /// The object.
        object: Object,
        /// The entry.
        item: Item,
    },
    /// What runs a database: complete lists of StatefulSets, Deployments and pods.
    WorkloadsOf {
        /// The database.
        database: DatabaseName,
        /// The pods of its processes: their owners are its workloads, whatever their labels.
        pods: BTreeSet<Uid>,
    },
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "persistentvolumeclaim {name}"),
            Self::Pod(name) => write!(f, "pod {name}"),
            Self::StatefulSet(name) | Self::Replication { stateful_set: name, last: _ } => {
                write!(f, "statefulset {name}")
            }
            Self::WantersOf(name) => write!(f, "everything labelled database={name}"),
            Self::Anchor => f.write_str("the anchor lease"),
            Self::LoadBalancer { object, item: _ } => object.fmt(f),
            Self::WorkloadsOf { database, pods: _ } => write!(f, "the workloads of database {database}"),
        }
    }
}

/// One thing that the API server said, asked by name and without a resource version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Fact {
    /// The Lease that anchors the domain has this UID.
    AnchorIs {
        /// Its UID.
        uid: Uid,
    },
    /// The Lease of the resync leader has this UID, and nothing else can bear its name.
    LeaseIs {
        /// Its name.
        name: String,
        /// Its UID.
        uid: Uid,
    },
    /// There is no claim of this name.
    ClaimAbsent {
        /// The name.
        name: String,
    },
    /// There is no pod of this name.
    PodAbsent {
        /// The name.
        name: String,
    },
    /// The pod of this name has this UID.
    PodIs {
        /// The name.
        name: String,
        /// Its UID.
        uid: Uid,
    },
    /// A StatefulSet is the controlling owner of a pod.
    PodOwnedBy {
        /// The pod's UID.
        pod_uid: Uid,
        /// The StatefulSet's name.
        stateful_set: String,
        /// The StatefulSet's UID.
        uid: Uid,
    },
    /// The pod mounts no claim for an archive.
    PodWithoutArchive {
        /// The pod's UID.
        pod_uid: Uid,
    },
    /// The claim of this name has this UID.
    ClaimIs {
        /// The name.
        name: String,
        /// Its UID.
        uid: Uid,
    },
    /// A container of a pod has ended.
    ContainerEnded {
        /// The pod's UID.
        pod_uid: Uid,
        /// The container's name.
        container: String,
        /// Which of the containers that bore the name.
        id: ContainerId,
        /// Its exit code.
        exit_code: Option<i32>,
    },
    /// A container of a pod runs under this id.
    ContainerRuns {
        /// The pod's UID.
        pod_uid: Uid,
        /// The container's name.
        container: String,
        /// Its id.
        id: ContainerId,
        /// When it started, by its node's clock, cut to a second.
        started: Millis,
    },
    /// A StatefulSet wants these ordinals.
    StatefulSetIs {
        /// Its name.
        name: String,
        /// Its UID.
        uid: Uid,
        /// Its `metadata.generation`.
        generation: i64,
        /// Its `spec.replicas`.
        replicas: u32,
        /// Its `spec.ordinals.start`.
        first_ordinal: u32,
    },
    /// A StatefulSet asks for this of a database with one primary.
    AsksForReplication(Box<Settings>),
    /// Complete lists held no StatefulSet, Deployment, claim or pod of this database.
    DatabaseUnwanted {
        /// The database.
        database: DatabaseName,
    },
    /// Something is there that wants this database.
    DatabaseWanted {
        /// The database.
        database: DatabaseName,
        /// What, as `kubectl` names it.
        by: String,
    },
    /// Complete lists held no StatefulSet or Deployment of this database that is being rolled out.
    Settled {
        /// The database.
        database: DatabaseName,
        /// All pods of the database that have not ended.
        pods: BTreeMap<String, Uid>,
    },
    /// A workload of this database is being rolled out.
    RollingOut {
        /// The database.
        database: DatabaseName,
        /// The workload, as `kubectl` names it.
        workload: String,
    },
    /// An annotation on a Deployment asks for the automatic upgrade of the protocol version of its database.
    UpgradeAsked {
        /// The database.
        database: DatabaseName,
        /// The Deployment.
        deployment: String,
        /// Its UID.
        uid: Uid,
        /// The query of its annotation.
        query: Option<String>,
    },
    /// An annotation on a workload of this database pauses what the resync does with it.
    UpgradePaused {
        /// The database.
        database: DatabaseName,
        /// The workload, as `kubectl` names it.
        workload: String,
    },
    /// An annotation on a StatefulSet holds the purge of its archives. Never in a command: it stands against one.
    PurgeHeld {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// An annotation on a StatefulSet pauses what the resync removes of it. Never in a command either.
    WorkloadPaused {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// What an object says of a load-balancer entry by an annotation.
    AnnotationSays {
        /// The object.
        object: Object,
        /// The entry.
        item: Item,
        /// The text; `None` if it says nothing, or if there is no such object.
        text: Option<String>,
    },
    /// An annotation on a StatefulSet says that nothing else shall be set for load balancing than what annotations set.
    SyncsFully {
        /// The StatefulSet.
        stateful_set: String,
    },
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnchorIs { uid } => write!(f, "anchor has uid {uid}"),
            Self::LeaseIs { name, uid } => write!(f, "lease {name} has uid {uid}"),
            Self::ClaimAbsent { name } => write!(f, "persistentvolumeclaim {name} not found"),
            Self::PodAbsent { name } => write!(f, "pod {name} not found"),
            Self::PodIs { name, uid } => write!(f, "pod {name} has uid {uid}"),
            Self::PodOwnedBy { stateful_set, uid, .. } => write!(f, "statefulset {stateful_set} ({uid}) owns the pod"),
            Self::PodWithoutArchive { .. } => f.write_str("the pod mounts no claim for an archive"),
            Self::ClaimIs { name, uid } => write!(f, "persistentvolumeclaim {name} has uid {uid}"),
            Self::ContainerEnded { container, id, exit_code: Some(code), .. } => {
                write!(f, "container {container} {id} ended with {code}")
            }
            Self::ContainerEnded { container, id, exit_code: None, .. } => {
                write!(f, "container {container} {id} ended")
            }
            Self::ContainerRuns { container, id, .. } => write!(f, "container {container} runs as {id}"),
            Self::AsksForReplication(settings) => {
                write!(f, "statefulset {} asks for {}", settings.stateful_set, settings.asked())
            }
            Self::DatabaseUnwanted { database } => write!(f, "nothing is labelled database={database}"),
            Self::DatabaseWanted { database, by } => write!(f, "{by} is labelled database={database}"),
            Self::Settled { database, pods } => {
                let pods: Vec<&str> = pods.keys().map(String::as_str).collect();
                write!(f, "no workload of database {database} is being rolled out; its pods: {}", pods.join(", "))
            }
            Self::RollingOut { database: _, workload } => write!(f, "{workload} is being rolled out"),
            Self::UpgradeAsked { database, deployment, uid: _, query: None } => {
                write!(f, "deployment {deployment} asks for the protocol upgrade of database {database}")
            }
            Self::UpgradeAsked { database, deployment, uid: _, query: Some(query) } => {
                write!(
                    f,
                    "deployment {deployment} asks for the protocol upgrade of database {database}, with '{query}'"
                )
            }
            Self::UpgradePaused { database: _, workload } => write!(f, "{workload} pauses the resync"),
            Self::PurgeHeld { stateful_set } => write!(f, "statefulset {stateful_set} holds purges"),
            Self::WorkloadPaused { stateful_set } => write!(f, "statefulset {stateful_set} pauses the resync"),
            Self::AnnotationSays { object, item, text: Some(text) } => write!(f, "{object} sets {item} to {text}"),
            Self::AnnotationSays { object, item, text: None } => write!(f, "{object} does not set {item}"),
            Self::SyncsFully { stateful_set } => write!(f, "statefulset {stateful_set} syncs fully"),
            Self::StatefulSetIs { name, uid, generation, replicas, first_ordinal } => write!(
                f,
                "statefulset {name} (uid {uid}, generation {generation}) wants {replicas} replicas from ordinal {first_ordinal}"
            ),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fact) in self.facts.iter().enumerate() {
            write!(f, "{}{fact}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Whether ordinal `ordinal` is one of `replicas` from `first` on.
pub fn wants(first: u32, replicas: u32, ordinal: u32) -> bool {
    ordinal >= first && ordinal - first < replicas
}

impl Evidence {
    /// Whether the anchor was seen with this UID.
    pub fn anchored_by(&self, anchor: &Uid) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::AnchorIs { uid } if uid == anchor))
    }

    /// Whether the Lease that now bears its name has this UID.
    pub fn lease_is(&self, lease: &Uid) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::LeaseIs { uid, .. } if uid == lease))
    }

    /// Whether the claim is gone. A claim of the same name with another UID is not absence.
    pub fn claim_is_gone(&self, claim: &str) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::ClaimAbsent { name } if name == claim))
    }

    /// Whether the claim of an archive is gone: its name is free, or the claim that another archive is on bears it.
    pub fn claim_is_lost(&self, claim: &str, taken_by: Option<&Uid>) -> bool {
        self.claim_is_gone(claim) || taken_by.is_some_and(|uid| self.claim_exists(claim, uid))
    }

    /// Whether the claim with this UID is gone: its name is free, or another claim bears it.
    pub fn claim_with_uid_is_gone(&self, claim: &str, expected: &Uid) -> bool {
        self.facts.iter().any(|fact| match fact {
            Fact::ClaimAbsent { name } => name == claim,
            Fact::ClaimIs { name, uid } => name == claim && uid != expected,
            _ => false,
        })
    }

    /// Whether the claim of this name and UID exists.
    pub fn claim_exists(&self, claim: &str, expected: &Uid) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::ClaimIs { name, uid } if name == claim && uid == expected))
    }

    /// Whether the pod mounts no claim for an archive.
    pub fn pod_has_no_archive(&self, pod: &Uid) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::PodWithoutArchive { pod_uid } if pod_uid == pod))
    }

    /// Whether the pod is controlled by the StatefulSet of this place.
    pub fn pod_is_owned_by(&self, pod: &Uid, owner: &super::archive::Ordinal) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::PodOwnedBy { pod_uid, stateful_set, uid }
                if pod_uid == pod && *stateful_set == owner.stateful_set && *uid == owner.uid)
        })
    }

    /// Whether there is no pod of this name.
    pub fn no_pod(&self, pod: &str) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::PodAbsent { name } if name == pod))
    }

    /// Whether the pod with this UID is gone: its name is free, or borne by another.
    pub fn pod_is_gone(&self, pod: &str, expected: &Uid) -> bool {
        self.facts.iter().any(|fact| match fact {
            Fact::PodAbsent { name } => name == pod,
            Fact::PodIs { name, uid } => name == pod && uid != expected,
            _ => false,
        })
    }

    /// The exit code with which this container ended, if it has ended.
    pub fn container_ended(&self, pod: &Uid, expected: &ContainerId) -> Option<Option<i32>> {
        self.facts.iter().find_map(|fact| match fact {
            Fact::ContainerEnded { pod_uid, id, exit_code, .. } if pod_uid == pod && id == expected => Some(*exit_code),
            _ => None,
        })
    }

    /// Whether a wrapper that started at `wrapper` is in another container than the `expected` one: a container runs that
    /// began no later, and there is one of a name at a time. Both clocks are the node's.
    pub fn is_in_another(&self, pod: &Uid, name: &str, expected: &ContainerId, wrapper: Millis) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::ContainerRuns { pod_uid, container, id, started }
                if pod_uid == pod && container == name && id != expected && *started <= wrapper)
        })
    }

    /// Whether this container runs.
    pub fn container_runs(&self, pod: &Uid, name: &str, expected: &ContainerId) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::ContainerRuns { pod_uid, container, id, .. }
                if pod_uid == pod && container == name && id == expected)
        })
    }

    /// Whether another container runs under the name.
    pub fn container_replaced(&self, pod: &Uid, name: &str, expected: &ContainerId) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::ContainerRuns { pod_uid, container, id, .. }
                if pod_uid == pod && container == name && id != expected)
        })
    }

    /// Whether complete lists showed that nothing wants the database.
    pub fn database_unwanted(&self, wanted: &DatabaseName) -> bool {
        let of_it = |fact: &Fact| matches!(fact, Fact::DatabaseUnwanted { database } if database == wanted);
        let against = |fact: &Fact| matches!(fact, Fact::DatabaseWanted { database, .. } if database == wanted);
        self.facts.iter().any(of_it) && !self.facts.iter().any(against)
    }

    /// Whether an object sets a load-balancer entry to exactly this; `None`: not at all.
    pub fn annotation_says(&self, by: &Object, of: &Item, expected: Option<&str>) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::AnnotationSays { object, item, text }
                if object == by && item == of && text.as_deref() == expected)
        })
    }

    /// Whether a StatefulSet asks for a full sync of load balancing.
    pub fn syncs_fully(&self, name: &str) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::SyncsFully { stateful_set } if stateful_set == name))
    }

    /// The pods of the database, if complete lists showed no workload of it that is being rolled out.
    pub fn settled(&self, name: &DatabaseName) -> Option<&BTreeMap<String, Uid>> {
        let against = |fact: &Fact| matches!(fact, Fact::RollingOut { database, .. } if database == name);
        let settled = self.facts.iter().find_map(|fact| match fact {
            Fact::Settled { database, pods } if database == name => Some(pods),
            _ => None,
        });
        settled.filter(|_| !self.facts.iter().any(against))
    }

    /// Whether an annotation pauses a workload of the database.
    pub fn upgrade_paused(&self, name: &DatabaseName) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::UpgradePaused { database, .. } if database == name))
    }

    /// Whether a workload of the database asks for its upgrade.
    pub fn upgrade_asked(&self, name: &DatabaseName) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::UpgradeAsked { database, .. } if database == name))
    }

    /// Whether a StatefulSet asks for exactly this.
    pub fn asks_for_replication(&self, settings: &Settings) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::AsksForReplication(asked) if **asked == *settings))
    }

    /// Whether the StatefulSet with this UID does not want this ordinal.
    pub fn ordinal_unwanted(&self, owner: &super::archive::Ordinal) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::StatefulSetIs { name, uid, replicas, first_ordinal, .. }
                if *name == owner.stateful_set && *uid == owner.uid && !wants(*first_ordinal, *replicas, owner.ordinal))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::wants;

    #[test]
    fn ordinals_count_from_the_first() {
        assert!(wants(0, 2, 0) && wants(0, 2, 1) && !wants(0, 2, 2));
        assert!(!wants(5, 2, 4) && wants(5, 2, 5) && wants(5, 2, 6) && !wants(5, 2, 7));
        assert!(!wants(0, 0, 0));
    }
}
