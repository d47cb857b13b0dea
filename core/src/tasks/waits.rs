//! What a task waits for, or the beginning of one: in words, and as one table of what it means and what ends it.

use crate::domain::ids::{ArchiveId, ClusterName, ProtocolId, StartId, TaskId};
use crate::wait::Wait;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// Why a task does not begin, or does not continue.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum TaskWait {
    /// Engines support a later protocol version, but the database does not run.
    UpgradeNotRunning,
    /// The protocol version of the database shall be upgraded, but a process reports none, or no release.
    UpgradeVersionsUnknown(StartId),
    /// The protocol version of the database shall be upgraded, but the one in effect is not known.
    UpgradeEffectiveUnknown,
    /// Not all processes support the version that others support.
    UpgradeUnsupported {
        /// The greatest version that any process supports.
        version: ProtocolId,
        /// A process that does not support it.
        process: StartId,
    },
    /// The protocol version of the database shall be upgraded, but a storage manager may start with another release.
    UpgradeArchiveIdle(ArchiveId),
    /// The protocol version of the database shall be upgraded, but an engine may start in a pod with another release.
    UpgradePodUnready {
        /// The pod.
        pod: String,
    },
    /// The protocol version of the database shall be upgraded, but a process does not run.
    UpgradeProcessUnready(StartId),
    /// The protocol version of the database shall be upgraded, but its processes are of different releases.
    UpgradeMixedReleases {
        /// One of them.
        one: String,
        /// Another one.
        other: String,
    },
    /// The protocol version of the database shall be upgraded, but another cluster takes part in the domain.
    UpgradeOtherCluster(ClusterName),
    /// An operator cancelled the upgrade to this protocol version.
    UpgradeDeclined(ProtocolId),
    /// The protocol version of the database shall be upgraded, but a workload of it is being rolled out.
    UpgradeRollout {
        /// The workload, as `kubectl` names it.
        workload: String,
    },
    /// The query for the transaction engine that is to be restarted is not understood.
    UpgradeQueryInvalid {
        /// The Deployment that has it.
        deployment: String,
        /// Why.
        why: String,
    },
    /// No transaction engine qualifies for the restart.
    UpgradeNoEngine {
        /// The query, if there is one.
        query: Option<String>,
    },
    /// The protocol version was raised, but no annotation asks for the restart any more.
    UpgradeNotAsked(TaskId),
    /// The task waits for a transaction engine that started after the upgrade.
    UpgradeEngineAwaited(TaskId),
}

impl fmt::Display for TaskWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpgradeNotRunning => {
                f.write_str("a later protocol version is available, but the database is not RUNNING")
            }
            Self::UpgradeVersionsUnknown(process) => {
                write!(
                    f,
                    "its protocol version is to be upgraded, but process {process} reports no release, or no protocol versions"
                )
            }
            Self::UpgradeEffectiveUnknown => {
                f.write_str("its protocol version is to be upgraded, but the one in effect is not known")
            }
            Self::UpgradeUnsupported { version, process } => {
                write!(f, "not all processes support protocol version {version}: process {process} does not")
            }
            Self::UpgradeArchiveIdle(archive) => write!(
                f,
                "a later protocol version is available, but archive {archive} has no process that is MONITORED:RUNNING"
            ),
            Self::UpgradePodUnready { pod } => {
                write!(
                    f,
                    "a later protocol version is available, but pod {pod} has no process that is MONITORED:RUNNING"
                )
            }
            Self::UpgradeProcessUnready(process) => write!(
                f,
                "a later protocol version is available, but process {process} is not MONITORED:RUNNING with a live session"
            ),
            Self::UpgradeMixedReleases { one, other } => write!(
                f,
                "a later protocol version is available, but its processes run release '{one}' and release '{other}'"
            ),
            Self::UpgradeOtherCluster(cluster) => {
                write!(
                    f,
                    "a later protocol version is available, but cluster {cluster} does not say that all its engines are known"
                )
            }
            Self::UpgradeDeclined(version) => {
                write!(f, "an operator cancelled the upgrade to protocol version {version}")
            }
            Self::UpgradeRollout { workload } => {
                write!(f, "its protocol upgrade waits until {workload} is rolled out")
            }
            Self::UpgradeQueryInvalid { deployment, why } => {
                write!(f, "the te-preference-query of deployment {deployment} is not understood: {why}")
            }
            Self::UpgradeNoEngine { query: Some(query) } => {
                write!(f, "a later protocol version is available, but '{query}' finds no transaction engine to restart")
            }
            Self::UpgradeNoEngine { query: None } => {
                f.write_str("a later protocol version is available, but there is no transaction engine to restart")
            }
            Self::UpgradeNotAsked(task) => {
                write!(f, "task {task} waits to shut down an engine: no Deployment asks for the upgrade any more")
            }
            Self::UpgradeEngineAwaited(task) => {
                write!(f, "task {task} waits for a transaction engine that started after the upgrade to be RUNNING")
            }
        }
    }
}

impl TaskWait {
    /// The same as one word.
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// Every reason to wait, in the order of the variants.
pub const TASK_WAITS: [Wait; 15] = [
    Wait {
        code: "upgrade_not_running",
        means: "the protocol version of the database is to be upgraded ([upgrade](tasks.md#the-protocol-upgrade)), and the database is not RUNNING",
        ends: "start its storage managers: `kubectl scale`",
    },
    Wait {
        code: "upgrade_versions_unknown",
        means: "the protocol version of the database is to be upgraded, and a process reports no release, or no protocol versions",
        ends: "`--engine-version` (`KAA_ENGINE_VERSION`) and `--protocol ID=NAME` (`KAA_PROTOCOL`) at its wrapper; or remove the annotation `nuodb.com/automatic-database-protocol-upgrade` from the Deployment",
    },
    Wait {
        code: "upgrade_effective_unknown",
        means: "the protocol version of the database is to be upgraded, and the one in effect is not known: no storage manager that reports its versions has reached RUNNING",
        ends: "restart a storage manager: `kubectl rollout restart`; or remove the annotation `nuodb.com/automatic-database-protocol-upgrade` from the Deployment",
    },
    Wait {
        code: "upgrade_unsupported",
        means: "some processes support a later protocol version, and one of the same release does not",
        ends: "`--protocol ID=NAME` (`KAA_PROTOCOL`) at the wrapper of that process as at the others, then `kubectl rollout restart` of its workload",
    },
    Wait {
        code: "upgrade_archive_idle",
        means: "a later protocol version is available, and an archive that is not removed has no process: a storage manager of any release may start on it",
        ends: "ends by itself when its storage manager runs; else `kubectl scale` its StatefulSet up, or remove the archive: `kubectl delete pvc NAME`",
    },
    Wait {
        code: "upgrade_pod_unready",
        means: "a later protocol version is available, and a pod of the database has no process that is MONITORED:RUNNING: an engine of any release may start in it",
        ends: "ends by itself when its engine runs; else look at the pod, `kubectl delete pod NAME`; from a pod without an engine remove the label `database`",
    },
    Wait {
        code: "upgrade_process_unready",
        means: "a later protocol version is available, and a process is not MONITORED:RUNNING, or its session is lost",
        ends: "ends by itself when it runs; else look at its pod, `kubectl delete pod NAME`, `kaa process evict ID`",
    },
    Wait {
        code: "upgrade_mixed_releases",
        means: "a later protocol version is available, and the processes of the database are of different releases",
        ends: "ends by itself when all workloads have the same image: `kubectl set image`, `kubectl rollout status`",
    },
    Wait {
        code: "upgrade_other_cluster",
        means: "a later protocol version is available, and another cluster has not said that none of its workloads is being rolled out and all its engines serve",
        ends: "ends by itself when the resync leader of that cluster says so: `kaa plan` at an agent there",
    },
    Wait {
        code: "upgrade_declined",
        means: "an operator cancelled the upgrade to this protocol version (`kaa task list`)",
        ends: "by hand: `nuocmd upgrade database-version --db-name NAME --max-version`; or remove the annotation. A later version is upgraded to again",
    },
    Wait {
        code: "upgrade_rollout",
        means: "a later protocol version is available, and a rollout of a workload of the database is in progress, or not all of its pods are ready",
        ends: "ends by itself; `kubectl rollout status`. A rollout that is stopped (`partition`, `OnDelete`, `kubectl rollout pause`) has to be finished",
    },
    Wait {
        code: "upgrade_query_invalid",
        means: "the annotation `nuodb.com/automatic-database-protocol-upgrade.te-preference-query` is not understood",
        ends: "`kubectl annotate --overwrite` the Deployment, or remove the annotation: then one is chosen at random",
    },
    Wait {
        code: "upgrade_no_engine",
        means: "no transaction engine qualifies for the restart that ends the upgrade: none is MONITORED:RUNNING, or the query finds none",
        ends: "`kubectl scale` the Deployment up, or change the annotation `nuodb.com/automatic-database-protocol-upgrade.te-preference-query`",
    },
    Wait {
        code: "upgrade_not_asked",
        means: "the protocol version was raised, and the annotation that asks for it is gone: no engine is shut down",
        ends: "`kubectl annotate` the Deployment again; or `kaa task cancel ID --reason WHY`",
    },
    Wait {
        code: "upgrade_engine_awaited",
        means: "the protocol version was raised, and no transaction engine that started after that runs yet",
        ends: "ends by itself; `kubectl get pods`, or `kubectl rollout restart` the Deployment; `kaa task cancel ID --reason WHY`",
    },
];

#[cfg(test)]
mod tests {
    use super::{TASK_WAITS, TaskWait};
    use strum::VariantNames;

    #[test]
    fn every_reason_has_its_row() {
        assert_eq!(TASK_WAITS.map(|wait| wait.code).as_slice(), TaskWait::VARIANTS);
    }
}
