//! What becomes of the replication of a database with one primary.

use crate::domain::change::{GrantReason, Progress};
use crate::domain::ids::{ArchiveId, Generation, Permission, SetVersion, StartId, SystemId};
use crate::domain::process::Handicap;
use crate::domain::replicated::{Begins, Data, Ended, Position, Settings};
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of the replication of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum ReplicationEvent {
    /// Its StatefulSet asks for something else.
    Set {
        /// For what.
        settings: Settings,
    },
    /// An engine said what is on its volume.
    DataReported {
        /// The archive.
        archive: ArchiveId,
        /// What is there.
        data: Data,
    },
    /// An archive makes the first data.
    Initializes {
        /// The archive.
        archive: ArchiveId,
    },
    /// An operator took the data of an archive for that of the database.
    Adopted {
        /// The archive.
        archive: ArchiveId,
        /// The system identifier of the data.
        system: SystemId,
        /// Why, in the operator's words.
        why: String,
    },
    /// A generation was granted.
    Granted {
        /// The generation.
        generation: Generation,
        /// The archive of the primary.
        archive: ArchiveId,
        /// That of the one before, if it is another one.
        from: Option<ArchiveId>,
        /// The sync set.
        sync_set: Vec<ArchiveId>,
        /// Why.
        reason: GrantReason,
    },
    /// The server of a primary was promoted, is open, or has ended.
    Progressed {
        /// The generation.
        generation: Generation,
        /// The archive of the primary.
        archive: ArchiveId,
        /// What became of its server.
        what: Progress,
    },
    /// The server of a standby does not hear its primary, or hears it again.
    Heard {
        /// The generation of the primary.
        generation: Generation,
        /// The archive of the standby.
        archive: ArchiveId,
        /// The end of the log that its server has, if it does not hear the primary.
        silent: Option<Position>,
    },
    /// What speaks against a server as the next primary has changed.
    Handicap {
        /// Its archive.
        archive: ArchiveId,
        /// All of it.
        handicap: Handicap,
    },
    /// An archive is asked to join the sync set.
    Joins {
        /// The archive.
        archive: ArchiveId,
        /// The version of the sync set since.
        version: SetVersion,
    },
    /// An archive has joined it.
    Joined {
        /// The archive.
        archive: ArchiveId,
        /// The version of the sync set.
        version: SetVersion,
    },
    /// An archive has left it.
    Left {
        /// The archive.
        archive: ArchiveId,
        /// The version of the sync set since.
        version: SetVersion,
        /// Why.
        why: String,
    },
    /// The data of an archive may be replaced.
    MayBeOverwritten {
        /// The archive.
        archive: ArchiveId,
        /// By which permission.
        permission: Permission,
        /// Why it cannot be kept.
        why: String,
    },
    /// The data of an archive is whole, and its permission is spent.
    Whole {
        /// The archive.
        archive: ArchiveId,
        /// The permission.
        permission: Permission,
    },
    /// A volume remembers an earlier start than the last one: it was set back, and is not used.
    SetBack {
        /// The archive.
        archive: ArchiveId,
        /// The start that the volume remembers.
        start: StartId,
        /// The last one that it had confirmed.
        confirmed: StartId,
    },
    /// An operator gave up data that the domain knows nothing of.
    Discarded {
        /// The archive.
        archive: ArchiveId,
        /// Why, in the operator's words.
        why: String,
    },
    /// An operator wants the primary elsewhere.
    SwitchoverRequested {
        /// The archive; `None`: any other one.
        to: Option<ArchiveId>,
        /// Why, in the operator's words.
        why: String,
    },
    /// The primary stays where it is.
    SwitchoverCancelled {
        /// Why.
        why: String,
    },
}

impl ReplicationEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Set { settings } => settings.stateful_set.len() + settings.uid.as_str().len(),
            Self::Adopted { why, .. }
            | Self::Discarded { archive: _, why }
            | Self::Left { why, .. }
            | Self::MayBeOverwritten { why, .. }
            | Self::SwitchoverRequested { to: _, why }
            | Self::SwitchoverCancelled { why } => why.len(),
            Self::Progressed { what, .. } => match what {
                Progress::Promoted { begins: _, before, keeps_lease: _ } => 24 * before.len(),
                Progress::Opened | Progress::Ended(_) => 0,
            },
            Self::Granted { sync_set, reason, .. } => {
                let why = match reason {
                    GrantReason::Switchover(why) | GrantReason::Failover { why, may_run: _ } => why.len(),
                    GrantReason::LossAccepted { why, lost, is_off: _ } => why.len() + 8 * lost.len(),
                    GrantReason::Silent { by, held_back_ms: _ } => 8 * by.len(),
                    GrantReason::First | GrantReason::Returned | GrantReason::Ended | GrantReason::HandedOver => 0,
                };
                8 * sync_set.len() + why
            }
            Self::DataReported { archive: _, data: _ }
            | Self::Initializes { archive: _ }
            | Self::SetBack { .. }
            | Self::Heard { .. }
            | Self::Handicap { archive: _, handicap: _ }
            | Self::Joins { archive: _, version: _ }
            | Self::Joined { archive: _, version: _ }
            | Self::Whole { archive: _, permission: _ } => 0,
        }
    }
}

fn set_back(archive: ArchiveId, start: StartId, confirmed: StartId) -> String {
    let remembers = match start {
        StartId(0) => format!("no start, or its data is older than at its last one, {confirmed}"),
        _ => format!("start {start}, and its last one was {confirmed}"),
    };
    format!("the volume of archive {archive} remembers {remembers}: it was set back, and is not used")
}

impl fmt::Display for ReplicationEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { settings } => write!(f, "StatefulSet {} asks for {}", settings.stateful_set, settings.asked()),
            Self::DataReported { archive, data: Data::Empty } => write!(f, "archive {archive} is empty"),
            Self::DataReported { archive, data: Data::Initialized { system, highest } } => {
                write!(f, "archive {archive} holds data of system {system}, up to generation {highest}")
            }
            Self::Initializes { archive } => write!(f, "archive {archive} makes the first data"),
            Self::Adopted { archive, system, why } => {
                write!(f, "the data of archive {archive}, system {system}, was adopted: {why}")
            }
            Self::Granted { generation, archive, from, sync_set, reason } => {
                let set: Vec<String> = sync_set.iter().map(ToString::to_string).collect();
                write!(f, "generation {generation} granted to archive {archive}")?;
                if let Some(from) = from {
                    write!(f, ", after archive {from}")?;
                }
                write!(f, ", sync set {}: {reason}", set.join(", "))
            }
            Self::Progressed { generation, archive, what } => {
                write!(f, "generation {generation}: the server of archive {archive} ")?;
                match what {
                    Progress::Promoted { begins: Begins { parent, at, generation: _ }, before: _, keeps_lease: _ } => {
                        write!(f, "was promoted; its log continues that of generation {parent} at {at}")
                    }
                    Progress::Opened => f.write_str("is open"),
                    Progress::Ended(Ended::StoodDown) => f.write_str("stood down"),
                    Progress::Ended(Ended::Failed) => f.write_str("has ended by itself"),
                }
            }
            Self::Heard { generation, archive, silent: Some(end) } => {
                write!(
                    f,
                    "the server of archive {archive} does not hear the primary of generation {generation}; it has {end}"
                )
            }
            Self::Heard { generation, archive, silent: None } => {
                write!(f, "the server of archive {archive} hears the primary of generation {generation} again")
            }
            Self::Handicap { archive, handicap } => {
                write!(f, "what speaks against archive {archive} as the next primary: {handicap}")
            }
            Self::Joins { archive, version } => write!(f, "archive {archive} joins the sync set, version {version}"),
            Self::Joined { archive, version } => {
                write!(f, "archive {archive} is in the sync set: version {version} is in force")
            }
            Self::Left { archive, version, why } => {
                write!(f, "archive {archive} left the sync set, version {version}: {why}")
            }
            Self::MayBeOverwritten { archive, permission, why } => {
                write!(f, "the data of archive {archive} may be overwritten, permission {permission}: {why}")
            }
            Self::Whole { archive, permission } => {
                write!(f, "the data of archive {archive} is whole; permission {permission} is spent")
            }
            Self::SetBack { archive, start, confirmed } => f.write_str(&set_back(*archive, *start, *confirmed)),
            Self::Discarded { archive, why } => {
                write!(f, "the data on archive {archive} is given up and may be overwritten: {why}")
            }
            Self::SwitchoverRequested { to: Some(to), why } => write!(f, "switchover to archive {to} requested: {why}"),
            Self::SwitchoverRequested { to: None, why } => write!(f, "switchover requested: {why}"),
            Self::SwitchoverCancelled { why } => write!(f, "the switchover was cancelled: {why}"),
        }
    }
}
