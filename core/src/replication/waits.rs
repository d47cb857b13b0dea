//! What a database with one primary waits for, and why it survives less than it should: in words, and as one table of what it means
//! and what ends it.

use super::grants;
use super::lost::NotLost;
use crate::domain::Domain;
use crate::domain::ids::{ArchiveId, DatabaseName, Generation, Millis, SystemId};
use crate::domain::process::{Process, SessionState};
use crate::domain::replicated::{Data, Replicated};
use crate::wait::Wait;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// Why a database with one primary is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ReplicationWait {
    /// Not all pods that are wanted have registered with an empty volume, so none makes the first data.
    PodsAwaited {
        /// How many are wanted; `None` if that is not known yet.
        wanted: Option<u32>,
        /// How many are there.
        there: usize,
    },
    /// A volume holds data, and the domain knows nothing of it.
    DataNotAdopted {
        /// Its archive.
        archive: ArchiveId,
        /// The pod of that.
        pod: String,
        /// The system that it is of, and the highest generation on it.
        of: (SystemId, Generation),
        /// Whether the database has no data yet that could take its place.
        first: bool,
    },
    /// A volume held data of a database that has none yet, and does not show it now.
    DataMissing {
        /// Its archive.
        archive: ArchiveId,
        /// The pod of that.
        pod: String,
        /// Whether its server is there, and says that the volume is empty.
        empty: bool,
    },
    /// The archive that makes the first data has not made it yet.
    FirstDataAwaited(ArchiveId),
    /// The primary has no server that is connected, or its server has ended and no grant follows.
    PrimaryAway {
        /// Its archive.
        archive: ArchiveId,
        /// Whether its wrapper is connected: then it is its server that has ended.
        ended: bool,
        /// The archives of the sync set that could take over.
        successors: Vec<ArchiveId>,
        /// Whether these hold every acknowledged commit, as far as the record is right.
        hold_all: bool,
        /// Why none does by itself; `None` if one is about to.
        holds: Option<NotLost>,
    },
    /// The primary does not let clients in yet.
    PrimaryNotOpen {
        /// Its archive.
        archive: ArchiveId,
        /// Whether it is alone, and waits until a standby has joined.
        blocked: bool,
    },
    /// The rule of the current version of the sync set is not in force at the primary, which is on this archive: commits may wait.
    RuleAwaited(ArchiveId),
    /// Fewer standbys confirm each commit than are asked for.
    FewStandbys {
        /// How many do.
        confirm: usize,
        /// How many are asked for.
        wanted: usize,
        /// Whether commits wait until one does.
        blocked: bool,
    },
    /// The record may be wrong.
    RecordUncertain(String),
    /// A switchover was requested, and the primary has not stood down.
    SwitchoverAwaited {
        /// Whether its target is ready.
        ready: bool,
    },
}

impl fmt::Display for ReplicationWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodsAwaited { wanted: None, there: _ } => {
                f.write_str("no data yet: it is not known yet how many pods its StatefulSet wants")
            }
            Self::PodsAwaited { wanted: Some(wanted), there } => write!(
                f,
                "no data yet: {there} of {wanted} pods have registered with an empty volume; all have to, before one makes the \
                 first data"
            ),
            Self::DataNotAdopted { archive, pod, of: (system, highest), first } => {
                write!(
                    f,
                    "archive {archive} holds data that the domain knows nothing of (pod {pod}, system {system}, up to generation \
                     {highest}): it is not touched"
                )?;
                if *first { f.write_str(", and no pod makes the first data meanwhile") } else { Ok(()) }
            }
            Self::DataMissing { archive, pod, empty } => {
                let now = if *empty { "its volume is empty now" } else { "its server is away" };
                write!(
                    f,
                    "archive {archive} held data when its server was last there (pod {pod}), and {now}: no pod makes the first data \
                     meanwhile"
                )
            }
            Self::FirstDataAwaited(archive) => {
                write!(f, "archive {archive} makes the first data and has not reported any yet")
            }
            Self::PrimaryAway { archive, ended, successors, hold_all, holds } => {
                let what = if *ended { "has ended" } else { "is away" };
                write!(f, "the server of the primary, on archive {archive}, {what}")?;
                if successors.is_empty() {
                    f.write_str(", and no other archive of the sync set has a server")?;
                    return match holds {
                        Some(why) if *ended => write!(f, ". It does not return by itself: {why}"),
                        _ => Ok(()),
                    };
                }
                match hold_all {
                    true => write!(f, "; nothing would be lost with archive {}", listed(successors))?,
                    false => write!(f, "; archive {} may lack commits", listed(successors))?,
                }
                match holds {
                    Some(why) => write!(f, ". No failover begins by itself: {why}"),
                    None => Ok(()),
                }
            }
            Self::PrimaryNotOpen { archive, blocked } => {
                let yet = if *blocked { "before a standby joins (kaa.dev/when-alone: block)" } else { "yet" };
                write!(f, "the server on archive {archive} is to be the primary, and does not let clients in {yet}")
            }
            Self::RuleAwaited(_) => f.write_str(
                "the primary has not reported yet that it waits for the archives of the sync set as recorded",
            ),
            Self::FewStandbys { confirm, wanted, blocked } => {
                let waits = if *blocked { ": commits wait until one does (kaa.dev/when-alone: block)" } else { "" };
                write!(f, "{confirm} of {wanted} standbys confirm each commit{waits}")
            }
            Self::RecordUncertain(why) => write!(f, "no other primary is granted: {why}"),
            Self::SwitchoverAwaited { ready: false } => f.write_str("a switchover was requested and has not begun"),
            Self::SwitchoverAwaited { ready: true } => f.write_str(
                "a switchover was requested, and its target is ready: the primary writes a checkpoint before it closes",
            ),
        }
    }
}

/// What a database with one primary waits for.
pub fn of(domain: &Domain, name: &DatabaseName, replicated: &Replicated, now: Millis) -> Vec<ReplicationWait> {
    let Some(record) = &replicated.record else {
        return without_data(domain, name, replicated);
    };
    let mut waits = Vec::new();
    let wanted = replicated.synchronous();
    if let Some(why) = &replicated.uncertain {
        waits.push(ReplicationWait::RecordUncertain(why.clone()));
    }
    let blocked = replicated.waits_alone();
    let confirm = record.sync_set.len().saturating_sub(1);
    waits.extend(strange(domain, name, replicated, false));
    let on_it = domain.process_on(record.primary);
    let is_away = on_it.is_none_or(|on_it| on_it.session.state != SessionState::Live);
    let over = domain.primary_is_over(replicated);
    let holds = match over {
        Some(over) => grants::holds_after_end(domain, name, replicated, over, now.into()),
        None => domain.lost_primary(replicated, now).err(),
    };
    if is_away || (over.is_some() && holds.is_some()) {
        let (archive, successors) = (record.primary, domain.any_successors(replicated));
        let hold_all = replicated.uncertain.is_none();
        waits.push(ReplicationWait::PrimaryAway { archive, ended: !is_away, successors, hold_all, holds });
    } else if !domain.is_open(replicated) {
        waits.push(ReplicationWait::PrimaryNotOpen { archive: record.primary, blocked });
    } else if blocked {
        waits.push(ReplicationWait::FewStandbys { confirm, wanted, blocked });
    } else if replicated.in_force != record.version {
        waits.push(ReplicationWait::RuleAwaited(record.primary));
    } else if confirm < wanted {
        waits.push(ReplicationWait::FewStandbys { confirm, wanted, blocked });
    }
    if replicated.switchover.is_some() {
        waits.push(ReplicationWait::SwitchoverAwaited { ready: domain.can_hand_over(replicated) });
    }
    waits
}

/// `4 or 5`.
pub(super) fn listed(archives: &[ArchiveId]) -> String {
    archives.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

/// The archives whose servers report data that is not of the record.
fn strange(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    first: bool,
) -> impl Iterator<Item = ReplicationWait> {
    let of_it = domain.processes.values().filter(move |process| process.database == *name);
    let with_data = of_it.filter_map(|process| match process.data {
        Some(Data::Initialized { system, highest }) => Some((process.archive?, (system, highest))),
        _ => None,
    });
    let strange = with_data.filter(|(it, _)| !replicated.own.contains(it) && replicated.initializes != Some(*it));
    strange.map(move |(archive, of)| {
        let pod = domain.pod_of(archive);
        ReplicationWait::DataNotAdopted { archive, pod, of, first }
    })
}

/// The archives that held data, none of which is strange: their servers do not report any.
fn missing(domain: &Domain, name: &DatabaseName) -> impl Iterator<Item = ReplicationWait> {
    let held = domain.archives.values().filter(move |archive| archive.database == *name && archive.ever_ran);
    let on_it = held.map(|archive| (archive.id, domain.process_on(archive.id)));
    // What a server that has just registered finds on its volume is known in a moment.
    let known = on_it.filter(|(_, process)| process.is_none_or(|process| process.data.is_some()));
    known.map(|(archive, process)| {
        let (pod, empty) = (domain.pod_of(archive), process.is_some());
        ReplicationWait::DataMissing { archive, pod, empty }
    })
}

fn without_data(domain: &Domain, name: &DatabaseName, replicated: &Replicated) -> Vec<ReplicationWait> {
    let strange: Vec<_> = strange(domain, name, replicated, true).collect();
    if !strange.is_empty() {
        return strange;
    }
    if let Some(archive) = replicated.initializes {
        return vec![ReplicationWait::FirstDataAwaited(archive)];
    }
    let missing: Vec<_> = missing(domain, name).collect();
    if !missing.is_empty() {
        return missing;
    }
    let of_it = |process: &&Process| process.database == *name;
    let there = domain.processes.values().filter(of_it).filter(|process| process.data == Some(Data::Empty)).count();
    vec![ReplicationWait::PodsAwaited { wanted: replicated.settings.as_ref().map(|settings| settings.replicas), there }]
}

impl ReplicationWait {
    /// What ends it, where that is not what its row says of all of its kind.
    pub fn ends(&self) -> Option<&'static str> {
        match self {
            // Until there is a primary, nothing is there that data could be overwritten with: that command is refused.
            Self::DataNotAdopted { first: true, .. } => Some(
                "if it is the database's data: `kaa database adopt {database} --archive {archive} --reason WHY`; if it is not needed: \
                 `kubectl delete pvc/archive-volume-{pod} pod/{pod}`, and the pod comes back with an empty volume",
            ),
            Self::PrimaryNotOpen { blocked: true, .. } | Self::FewStandbys { blocked: true, .. } => Some(
                "ends by itself when a standby has joined: `kubectl get pods`; or, with commits that no standby has: `kubectl annotate \
                 --overwrite statefulset {set} kaa.dev/when-alone=degrade`",
            ),
            _ => None,
        }
    }

    /// The archive that it is about, and the pod of that if it is known here.
    pub fn place(&self) -> Option<(ArchiveId, Option<&str>)> {
        match self {
            Self::DataNotAdopted { archive, pod, .. } | Self::DataMissing { archive, pod, .. } => {
                Some((*archive, Some(pod.as_str())))
            }
            Self::FirstDataAwaited(archive)
            | Self::RuleAwaited(archive)
            | Self::PrimaryAway { archive, .. }
            | Self::PrimaryNotOpen { archive, .. } => Some((*archive, None)),
            Self::PodsAwaited { .. }
            | Self::FewStandbys { .. }
            | Self::RecordUncertain(_)
            | Self::SwitchoverAwaited { .. } => None,
        }
    }
}

/// Every reason: in the order of the variants.
pub const REPLICATION_WAITS: [Wait; 10] = [
    Wait {
        code: "pods_awaited",
        means: "a database with one primary has no data yet, and not all pods of its StatefulSet have registered with an empty volume: one that is late may have data",
        ends: "ends by itself when the pods are up; `kubectl scale` to the number of pods that there are",
    },
    Wait {
        code: "data_not_adopted",
        means: "a volume holds data that the domain knows nothing of: of a server that ran without Kaa, of another database or domain, an old state of it from a snapshot; or what a failover with `--accept-data-loss` left behind, perhaps all that is left of the lost commits. It is neither used nor overwritten",
        ends: "if it is the database's data, and that has had no primary: `kaa database adopt {database} --archive {archive} --reason WHY`; if it is to continue in place of a primary that is lost: `kaa failover {database} --to {pod} --accept-data-loss {database} --reason WHY`; if it is not needed: `kaa database discard {database} --archive {archive} --reason WHY`; as long as the database has no primary, `kubectl delete pvc/archive-volume-{pod} pod/{pod}` instead, and the pod comes back with an empty volume",
    },
    Wait {
        code: "data_missing",
        means: "a database with one primary has no data yet; a volume of it held data when its server was last there, and that is away or finds none now: data that may be needed is not replaced by an empty database",
        ends: "start its pod, with the volume that has the data: `kubectl scale`; if the data is not needed: `kubectl delete pvc/archive-volume-{pod} pod/{pod}`",
    },
    Wait {
        code: "first_data_awaited",
        means: "one archive was chosen to make the first data, and its server has not made it yet",
        ends: "look at the log of its pod: `kubectl logs {pod}`; if its volume is lost, delete its claim and the pod: `kubectl delete pvc/archive-volume-{pod} pod/{pod}`",
    },
    Wait {
        code: "primary_away",
        means: "the server of the primary is not connected to any agent: it may run. With `kaa.dev/failover: automatic` another server of the sync set takes over once none of those that are connected hears it. Or its server has ended, and no server is granted the next generation; the line says what that waits for",
        ends: "start its pod: `kubectl get pods`; or `kaa failover {database} --reason WHY`",
    },
    Wait {
        code: "primary_not_open",
        means: "the server that is to be the primary is being promoted, replays its log, or waits until all archives of the sync set hold its first record; with `kaa.dev/when-alone: block` it also waits until a standby has joined",
        ends: "ends by itself when the servers of the sync set are up: `kubectl get pods`; what holds up the server is in its log: `kubectl logs {pod}`. Alone with `block`: `kubectl annotate --overwrite statefulset {set} kaa.dev/when-alone=degrade` lets it open without a standby",
    },
    Wait {
        code: "rule_awaited",
        means: "the sync set has changed, and the primary does not wait for its archives as recorded yet; commits may wait meanwhile",
        ends: "ends by itself; if it stays, look at the log of the primary: `kubectl logs {pod}`",
    },
    Wait {
        code: "few_standbys",
        means: "fewer standbys confirm each commit than `kaa.dev/synchronous` asks for",
        ends: "ends by itself when a standby has caught up; with fewer pods: `kubectl annotate --overwrite statefulset {set} kaa.dev/synchronous=N`. Where commits wait until one does: `kubectl annotate --overwrite statefulset {set} kaa.dev/when-alone=degrade`",
    },
    Wait {
        code: "record_uncertain",
        means: "the domain lost entries, so the recorded sync set may be too large: nothing is granted, and the sync set does not change",
        ends: "while the primary is open: `kaa failover {database} --to {pod} --old-primary-may-run --reason WHY` with its own pod, which restarts its server; else with the pod of the server that has the newest data, and `--accept-data-loss {database}`",
    },
    Wait {
        code: "switchover_awaited",
        means: "a switchover was requested, and the primary has not stood down yet: its target has to join the sync set first, or the primary writes its checkpoint, for minutes if it has much memory and a slow disk",
        ends: "ends by itself: after 60 s at the latest if the target is not ready, and after 10 minutes if it is; `kaa switchover {database} --cancel --reason WHY`",
    },
];

#[cfg(test)]
mod tests {
    use super::{REPLICATION_WAITS, ReplicationWait};
    use strum::VariantNames;

    #[test]
    fn every_reason_has_its_row() {
        assert_eq!(REPLICATION_WAITS.map(|wait| wait.code), ReplicationWait::VARIANTS);
    }
}
