//! What a task waits for, or the beginning of one: in words, and as one table of what it means and what ends it.

use crate::domain::ids::{ClusterName, ProtocolId, StartId, TaskId};
use crate::wait::Wait;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// Why a task does not begin, or does not continue.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum TaskWait {
    /// Engines support a later protocol version, but the database does not run.
    UpgradeNotRunning,
    /// The protocol version of the database shall be upgraded, but a process reports none.
    UpgradeVersionsUnknown(StartId),
    /// The protocol version of the database shall be upgraded, but a process does not run.
    UpgradeProcessUnready(StartId),
    /// The protocol version of the database shall be upgraded, but its processes are of different releases.
    UpgradeMixedReleases {
        /// One of them.
        one: String,
        /// Another one.
        other: String,
    },
    /// The protocol version of the database shall be upgraded, but a process of it runs in another cluster.
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
    /// The task waits for a transaction engine that started after the upgrade.
    UpgradeEngineAwaited(TaskId),
}

impl fmt::Display for TaskWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpgradeNotRunning => {
                f.write_str("a later protocol version is there, but the database is not RUNNING")
            }
            Self::UpgradeVersionsUnknown(process) => {
                write!(f, "its protocol version is to be upgraded, but process {process} reports no protocol versions")
            }
            Self::UpgradeProcessUnready(process) => write!(
                f,
                "a later protocol version is there, but process {process} is not MONITORED:RUNNING with a live session"
            ),
            Self::UpgradeMixedReleases { one, other } => write!(
                f,
                "a later protocol version is there, but its processes run release '{one}' and release '{other}'"
            ),
            Self::UpgradeOtherCluster(cluster) => {
                write!(f, "a later protocol version is there, but a process of it runs in cluster {cluster}")
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
                write!(f, "a later protocol version is there, but '{query}' finds no transaction engine to restart")
            }
            Self::UpgradeNoEngine { query: None } => {
                f.write_str("a later protocol version is there, but there is no transaction engine to restart")
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
pub const TASK_WAITS: [Wait; 10] = [
    Wait {
        code: "upgrade_not_running",
        means: "the protocol version of the database is to be upgraded ([upgrade](tasks.md#the-protocol-upgrade)), and the database is not RUNNING",
        ends: "start its storage managers: `kubectl scale`",
    },
    Wait {
        code: "upgrade_versions_unknown",
        means: "the protocol version of the database is to be upgraded, and a process reports no protocol versions",
        ends: "`--protocol ID=NAME` (`KAA_PROTOCOL`) at its wrapper; or remove the annotation `nuodb.com/automatic-database-protocol-upgrade` from the Deployment",
    },
    Wait {
        code: "upgrade_process_unready",
        means: "a later protocol version is there, and a process is not MONITORED:RUNNING, or its session is lost",
        ends: "ends by itself when it runs; else look at its pod, `kubectl delete pod NAME`, `kaa process evict ID`",
    },
    Wait {
        code: "upgrade_mixed_releases",
        means: "a later protocol version is there, and the processes of the database are of different releases",
        ends: "ends by itself when all workloads have the same image: `kubectl set image`, `kubectl rollout status`",
    },
    Wait {
        code: "upgrade_other_cluster",
        means: "a later protocol version is there, and a process of the database runs in another cluster, whose rollouts no agent here sees",
        ends: "by hand, once no rollout is in progress in any cluster: `nuocmd upgrade database-version --db-name NAME --max-version`",
    },
    Wait {
        code: "upgrade_declined",
        means: "an operator cancelled the upgrade to this protocol version (`kaa task list`)",
        ends: "by hand: `nuocmd upgrade database-version --db-name NAME --max-version`; or remove the annotation. A later version is upgraded to again",
    },
    Wait {
        code: "upgrade_rollout",
        means: "a later protocol version is there, and a rollout of a workload of the database is in progress, or not all of its pods are ready",
        ends: "ends by itself; `kubectl rollout status`. A rollout that is stopped (`partition`, `OnDelete`, `kubectl rollout pause`) has to be finished",
    },
    Wait {
        code: "upgrade_query_invalid",
        means: "the annotation `nuodb.com/automatic-database-protocol-upgrade.te-preference-query` is no query",
        ends: "`kubectl annotate --overwrite` the Deployment, or remove the annotation: then one is chosen at random",
    },
    Wait {
        code: "upgrade_no_engine",
        means: "no transaction engine qualifies for the restart that ends the upgrade: none is MONITORED:RUNNING, or the query finds none",
        ends: "`kubectl scale` the Deployment up, or change the annotation `nuodb.com/automatic-database-protocol-upgrade.te-preference-query`",
    },
    Wait {
        code: "upgrade_engine_awaited",
        means: "the protocol version was raised, and no transaction engine that started after that runs yet",
        ends: "ends by itself; `kubectl get pods`, or `kubectl scale` the Deployment up; `kaa task cancel ID --reason WHY`",
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
