//! Why something is not proposed: in words, and as one table of what it means and what ends it.

use super::plan::Need;
use crate::balancer::parse::SyntaxError;
use crate::domain::balancing::Object;
use crate::domain::evidence::Evidence;
use crate::domain::gate::Held;
use crate::domain::ids::{ClusterName, Millis, StartId, Uid};
use crate::observed::Unknown;
use crate::observed::replication::Broken;
use crate::replication::waits::{REPLICATION_WAITS, ReplicationWait};
use crate::tasks::waits::{TASK_WAITS, TaskWait};
use crate::wait::{self, Names, Wait};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `v1` Pods.
    Pods,
    /// `v1` PersistentVolumeClaims.
    Claims,
    /// `apps/v1` StatefulSets.
    StatefulSets,
    /// `apps/v1` Deployments.
    Deployments,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pods => "pods",
            Self::Claims => "persistentvolumeclaims",
            Self::StatefulSets => "statefulsets",
            Self::Deployments => "deployments",
        })
    }
}

/// Why something is not proposed.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum WaitingReason {
    /// An engine is not started yet.
    StartHeld(Held),
    /// At a cold start the storage managers of a StatefulSet wait for each other, and it starts them one after the other.
    OrderedReady {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// A kind of object is not known.
    KindUnknown {
        /// The kind.
        kind: Kind,
        /// Why.
        why: Unknown,
    },
    /// The pod of a process seems to be gone, but the process speaks.
    SessionLive,
    /// A process is silent, but its container is not known to have ended.
    SessionLost,
    /// A process is silent, and it is not known which container it is.
    ContainerUnknown,
    /// The claim of an archive has another UID: the engine that comes up on it will tell what it holds.
    ClaimReplaced {
        /// The claim's name.
        claim: String,
        /// The UID it has now.
        uid: Uid,
    },
    /// All claims of a database are gone, but a StatefulSet still wants them.
    ClaimsVanished {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// An archive whose claim or ordinal is gone is in use.
    ArchiveInUse(StartId),
    /// The StatefulSet that had the archive is gone, which is not a scale-down.
    StatefulSetMissing(String),
    /// The StatefulSet that had the archive is another one of the same name.
    StatefulSetReplaced(String),
    /// The StatefulSet does not want the archive any more, but it is the last one of its database.
    LastArchive,
    /// The StatefulSet does not want the archive any more, but no other active archive of its database is proven to hold
    /// all its data.
    MayBeNewest,
    /// It is not known which claim the archive is on.
    Unbound,
    /// The claim of an archive is gone, and it is purged after the delay that the agents were told.
    PurgeDelayed {
        /// When.
        until: Millis,
    },
    /// An annotation on its StatefulSet holds the purge of an archive.
    PurgeHeld {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// An annotation on a workload pauses what would be removed of it.
    WorkloadPaused {
        /// The workload, as `kubectl` names it.
        workload: String,
    },
    /// An operator has paused the resync.
    Paused {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// A database has no archive, but something wants it.
    DatabaseWanted {
        /// What, as `kubectl` names it.
        by: String,
    },
    /// A database has no archive, but a process.
    DatabaseInUse(StartId),
    /// Nothing wants a database any more, and the agents were told to delete none.
    DatabaseDeletionOff,
    /// Nothing in this cluster wants a database any more, but no agent sees what other clusters want.
    OtherCluster(ClusterName),
    /// A server is not wanted and has no volume any more, but the others have not voted it out yet.
    StillVotes,
    /// More than one StatefulSet of admin servers in the namespace.
    AmbiguousDomain(Vec<String>),
    /// The anchor is missing or another one: this is not the Kubernetes that the domain was founded in.
    RestoredElsewhere,
    /// An annotation that is to set a load-balancer entry does not parse.
    AnnotationBroken {
        /// The object that has it.
        object: Object,
        /// The annotation, without the prefix.
        annotation: String,
        /// Why.
        why: SyntaxError,
    },
    /// An annotation that is to configure replication is not followed.
    SettingBroken {
        /// The object that has it.
        object: Object,
        /// Why.
        why: Broken,
    },
    /// A container of a pod ends with an error, and no engine of the pod has a session.
    ContainerFailed {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// How it ended last.
        exit_code: i32,
        /// The last words of its termination message; empty if it left none.
        said: String,
    },
    /// A fresh read gave no answer that proves anything.
    Unread {
        /// What was read.
        need: Need,
        /// What came.
        why: String,
    },
    /// A fresh read shows otherwise than the watches.
    NotConfirmed {
        /// What it shows.
        read: Evidence,
    },
    /// A database with one primary is not as it should be.
    Replication(ReplicationWait),
    /// A task does not begin, or does not continue.
    Task(TaskWait),
}

impl fmt::Display for WaitingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindUnknown { kind, why: Unknown::Syncing } => write!(f, "{kind} are not listed completely yet"),
            Self::KindUnknown { kind, why: Unknown::Forbidden(why) } => write!(f, "{kind} may not be listed: {why}"),
            Self::StartHeld(held) => write!(f, "its engine is not started yet: {held}"),
            Self::OrderedReady { stateful_set } => write!(
                f,
                "statefulset {stateful_set} starts its pods one after the other, so its storage managers would wait for each \
                 other forever at a cold start: it needs podManagementPolicy Parallel"
            ),
            Self::SessionLive => f.write_str("its pod seems to be gone, but its session is live"),
            Self::SessionLost => f.write_str("its session is lost, but its container is not known to have ended"),
            Self::ContainerUnknown => f.write_str("its session is lost, and its container id was never learned"),
            Self::ClaimReplaced { claim, uid } => {
                write!(f, "claim {claim} was recreated (new uid {uid}); waiting for the engine on it to register")
            }
            Self::ClaimsVanished { stateful_set } => {
                write!(
                    f,
                    "all claims of the database are gone at once, but statefulset {stateful_set} still wants them"
                )
            }
            Self::ArchiveInUse(process) => write!(f, "process {process} is still on it"),
            Self::StatefulSetMissing(name) => write!(f, "statefulset {name} is gone, which is not a scale-down"),
            Self::StatefulSetReplaced(name) => {
                write!(f, "statefulset {name} was recreated; waiting for its engine to register")
            }
            Self::LastArchive => f.write_str("it is not wanted any more, but it is the last archive of its database"),
            Self::MayBeNewest => f.write_str(
                "it is not wanted any more, but it may hold data that no other active archive of its database has: it stays \
                 until the storage manager of one has run since, or an operator gives it up (`kaa archive remove`)",
            ),
            Self::Unbound => f.write_str("its claim is not known"),
            Self::PurgeDelayed { until } => write!(f, "its claim is gone; it is kept until {until} (--purge-delay)"),
            Self::PurgeHeld { stateful_set } => {
                write!(f, "its claim is gone; an annotation on statefulset {stateful_set} holds its purge")
            }
            Self::WorkloadPaused { workload } => write!(f, "an annotation on {workload} pauses the resync of it"),
            Self::Paused { by, why } => write!(f, "the resync is paused by {by}: {why}"),
            Self::DatabaseWanted { by } => write!(f, "it has no archive, but {by} wants it"),
            Self::DatabaseInUse(process) => write!(f, "it has no archive, but process {process} serves it"),
            Self::DatabaseDeletionOff => f.write_str(
                "it has no archive and nothing wants it, but the agents delete no databases (--database-deletion)",
            ),
            Self::OtherCluster(cluster) => {
                write!(f, "it has no archive and this cluster does not want it, but cluster {cluster} may still use it")
            }
            Self::StillVotes => {
                f.write_str("it is not wanted and its volume is gone, but it has not been evicted from the voters yet")
            }
            Self::AmbiguousDomain(names) => {
                write!(f, "several admin statefulsets share the namespace: {}", names.join(", "))
            }
            Self::RestoredElsewhere => {
                f.write_str("the anchor lease is missing or has another uid: the domain was founded in another Kubernetes")
            }
            Self::AnnotationBroken { object, annotation, why } => {
                write!(f, "annotation {annotation} of {object} changes nothing: {why}")
            }
            Self::SettingBroken { object, why } => write!(f, "{object}: {why}"),
            Self::ContainerFailed { pod, container, exit_code, said } => {
                write!(f, "pod {pod} has no engine: its container {container} ended with exit code {exit_code}")?;
                if said.is_empty() { Ok(()) } else { write!(f, ": {said}") }
            }
            Self::Unread { need, why } => write!(f, "{need} could not be read: {why}"),
            Self::NotConfirmed { read } => write!(f, "a fresh read does not confirm it: {read}"),
            Self::Replication(wait) => wait.fmt(f),
            Self::Task(wait) => wait.fmt(f),
        }
    }
}

impl From<TaskWait> for WaitingReason {
    fn from(wait: TaskWait) -> Self {
        Self::Task(wait)
    }
}

impl WaitingReason {
    /// The same as one word.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Task(wait) => wait.code(),
            Self::Replication(wait) => wait.into(),
            _ => self.into(),
        }
    }

    /// What ends it.
    pub fn ends(&self) -> &'static str {
        if let Self::Replication(wait) = self
            && let Some(ends) = wait.ends()
        {
            return ends;
        }
        wait::ends(&WAITS, self.code()).unwrap_or_default()
    }
}

impl WaitingReason {
    /// The names in what ends it that the reason itself knows.
    pub fn names(&self) -> Names<'_> {
        match self {
            Self::Replication(wait) => {
                let place = wait.place();
                Names {
                    archive: place.map(|(archive, _)| archive),
                    pod: place.and_then(|(_, pod)| pod),
                    ..Names::default()
                }
            }
            Self::ContainerFailed { pod, container, .. } => {
                Names { pod: Some(pod), container: Some(container), ..Names::default() }
            }
            _ => Names::default(),
        }
    }
}

/// Every reason to wait: in the order of the variants, then those of replication and of tasks.
pub const WAITS: [Wait; OWN.len() + REPLICATION_WAITS.len() + TASK_WAITS.len()] = {
    let mut all = [OWN[0]; OWN.len() + REPLICATION_WAITS.len() + TASK_WAITS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < OWN.len() {
            OWN[at]
        } else if at < OWN.len() + REPLICATION_WAITS.len() {
            REPLICATION_WAITS[at - OWN.len()]
        } else {
            TASK_WAITS[at - OWN.len() - REPLICATION_WAITS.len()]
        };
        at += 1;
    }
    all
};

/// Those of the variants but the last two, which stand for the reasons of replication and of tasks.
const OWN: [Wait; 30] = [
    Wait {
        code: "start_held",
        means: "the engine is not started yet: archives that may hold newer data have not reported, a storage manager is silent ([cold start](concepts.md#cold-start)), or its pod or a claim could not be read",
        ends: "start the storage managers that are named: `kubectl scale`. One that never comes back: `kaa process evict ID`, then `kaa archive remove ID --reason WHY`. If its pod or a claim cannot be read: `kubectl apply -k manifests/base` (`get pods`, `get persistentvolumeclaims`); in another Kubernetes, or if the anchor is gone: `kaa adopt --reason WHY`",
    },
    Wait {
        code: "ordered_ready",
        means: "the StatefulSet has several archives and is not `podManagementPolicy: Parallel`: at a cold start its pods would wait for each other",
        ends: "`kubectl delete statefulset NAME --cascade=orphan`, then `kubectl apply` with that policy",
    },
    Wait {
        code: "kind_unknown",
        means: "a kind of object is not listed completely, or may not be listed",
        ends: "`kubectl apply -k manifests/base` (list and watch on the kind); a first list ends by itself",
    },
    Wait {
        code: "session_live",
        means: "the pod seems to be gone, but the session of its engine is live",
        ends: "look at the node; `kaa process evict ID`",
    },
    Wait {
        code: "session_lost",
        means: "the session of the process is lost, but its container is not known to have ended",
        ends: "look at the node; `kubectl delete pod NAME`, by force if the node is gone; `kaa process evict ID`",
    },
    Wait {
        code: "container_unknown",
        means: "the session of the process is lost, and its container id is unknown",
        ends: "`kubectl delete pod NAME`; `kaa process evict ID`",
    },
    Wait {
        code: "claim_replaced",
        means: "the archive's claim was recreated under the same name: the engine on it has to say what the volume holds",
        ends: "start the storage manager of that ordinal: `kubectl scale`; if none will start: `kaa archive remove ID --reason WHY`",
    },
    Wait {
        code: "claims_vanished",
        means: "all known claims of a database are gone at once, but a StatefulSet wants them",
        ends: "if that was intended: `kubectl scale statefulset NAME --replicas=0`",
    },
    Wait {
        code: "archive_in_use",
        means: "a process is still on the archive",
        ends: "`kubectl delete pod NAME`; `kaa process evict ID`",
    },
    Wait {
        code: "stateful_set_missing",
        means: "the StatefulSet is gone, which is not a scale-down",
        ends: "`kubectl scale` it up, so that the engine registers; or delete the claim, `kubectl delete pvc NAME`; or `kaa archive remove ID --reason WHY`",
    },
    Wait {
        code: "stateful_set_replaced",
        means: "the StatefulSet was recreated while no engine ran on the archive, which is not a scale-down",
        ends: "`kubectl scale` it up, so that the engine registers; or delete the claim, `kubectl delete pvc NAME`; or `kaa archive remove ID --reason WHY`",
    },
    Wait {
        code: "last_archive",
        means: "a database keeps its last archive",
        ends: "delete its claim if the data is not needed any more: `kubectl delete pvc NAME`",
    },
    Wait {
        code: "may_be_newest",
        means: "the archive is not wanted any more, and no other active archive of its database is proven to hold all its data ([newest data](concepts.md#the-newest-data))",
        ends: "start a storage manager on it or on one with newer data: `kubectl scale`. If its data is lost, or known to be old: `kaa archive remove ID --reason WHY`",
    },
    Wait {
        code: "unbound",
        means: "it is not known which claim the archive is on: its agent could not read the pod, or the anchor Lease is not the domain's. It is read again every 5 s while the engine runs. Of an archive that came with a snapshot ([snapshot](snapshot.md)) or was created by hand ([nuocmd](nuocmd.md#archives-by-hand)): its volume has not shown here yet",
        ends: "if its volume is lost: `kaa archive remove ID --reason WHY`, then `kaa archive purge ID --reason WHY`",
    },
    Wait {
        code: "purge_delayed",
        means: "the claim is gone; the archive is purged when the resync has watched that for `--purge-delay`. The time that is shown is the earliest, by the clock of the agent that is asked",
        ends: "ends by itself; at once: `kaa archive purge ID --reason WHY`",
    },
    Wait {
        code: "purge_held",
        means: "an annotation on the StatefulSet holds the purge of the archive",
        ends: "`kubectl annotate statefulset NAME nuodb.com/hold-purge-`",
    },
    Wait {
        code: "workload_paused",
        means: "an annotation on the workload pauses its removals",
        ends: "`kubectl annotate statefulset NAME nuodb.com/pause-resync-`, or the same of its Deployment",
    },
    Wait { code: "paused", means: "an operator has paused the resync", ends: "`kaa resume`" },
    Wait {
        code: "database_wanted",
        means: "a database has no archive, but an object with its label exists",
        ends: "delete the named object if the database is not needed any more: `kubectl delete`",
    },
    Wait {
        code: "database_in_use",
        means: "a database has no archive, but a process serves it",
        ends: "`kubectl delete pod NAME`; `kaa process evict ID`",
    },
    Wait {
        code: "database_deletion_off",
        means: "nothing wants the database, but the agents delete no databases",
        ends: "`--database-deletion=auto` at the agents",
    },
    Wait {
        code: "other_cluster",
        means: "a database has no archive, but another cluster wants it, or its resync leader has not said that it does not",
        ends: "ends by itself when that cluster has a resync leader and wants the database no more; `nuocmd delete database --db-name NAME`",
    },
    Wait {
        code: "still_votes",
        means: "a server is not wanted and its volume is gone, but it still votes",
        ends: "ends by itself once there is a leader; see `no_leader`",
    },
    Wait {
        code: "ambiguous_domain",
        means: "several admin StatefulSets share the namespace",
        ends: "`kubectl delete statefulset NAME` of the one that does not belong there",
    },
    Wait {
        code: "restored_elsewhere",
        means: "the anchor Lease is missing or has another UID: this is not the Kubernetes in which the domain was founded",
        ends: "`kaa adopt --reason WHY`, if the domain belongs here from now on",
    },
    Wait {
        code: "annotation_broken",
        means: "an annotation that is to set a load-balancer entry does not parse ([grammar](load-balancing.md#grammar)): what was set before stays",
        ends: "`kubectl annotate --overwrite` with a query that parses, or without the annotation: `kubectl annotate statefulset NAME nuodb.com/load-balancer-default-`",
    },
    Wait {
        code: "setting_broken",
        means: "an annotation that is to configure the replication of a database says what it may not, contradicts another one, or is none that is read: what it set last stays, and the others count",
        ends: "`kubectl annotate --overwrite` with a value that is allowed, or without the annotation: `kubectl annotate statefulset NAME kaa.dev/KEY-`",
    },
    Wait {
        code: "container_failed",
        means: "a container of a database's pod ends with an error, and the pod has no engine with a session: the wrapper refuses the data on its volume, its settings or its programs, or an init container fails. Kubernetes starts it again after a pause. Its last words are shown if the container has `terminationMessagePolicy: FallbackToLogsOnError`",
        ends: "what the message names; all of it: `kubectl logs {pod} -c {container}`",
    },
    Wait {
        code: "unread",
        means: "a fresh read failed; it is repeated when the object changes, or after 10 s",
        ends: "ends by itself; if a permission is missing: `kubectl apply -k manifests/base`",
    },
    Wait {
        code: "not_confirmed",
        means: "a fresh read does not confirm what the watches show; it is repeated when the object changes, or after 10 s",
        ends: "ends by itself",
    },
];

#[cfg(test)]
mod tests {
    use super::{OWN, WaitingReason};
    use strum::VariantNames;

    #[test]
    fn every_reason_has_its_row() {
        assert_eq!([&OWN.map(|wait| wait.code)[..], &["replication", "task"]].concat(), WaitingReason::VARIANTS);
    }
}
