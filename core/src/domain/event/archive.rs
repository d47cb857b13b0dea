//! What becomes of an archive.

use super::ClaimName;
use crate::domain::archive::{Ordinal, RemovalReason};
use crate::domain::ids::{ArchiveId, DatabaseName};
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum ArchiveEvent {
    /// It was created.
    Created {
        /// The archive.
        archive: ArchiveId,
        /// Its database.
        database: DatabaseName,
        /// Its claim.
        claim: Option<ClaimName>,
    },
    /// It was removed and counts again, or it is on another claim.
    Bound {
        /// The archive.
        archive: ArchiveId,
        /// Whether it had been removed.
        resurrected: bool,
        /// The claim, if it is another one.
        claim: Option<ClaimName>,
    },
    /// It belongs to another place in a StatefulSet.
    Owned {
        /// The archive.
        archive: ArchiveId,
        /// The place.
        owner: Option<Ordinal>,
    },
    /// The volume of its claim turned out to hold another archive.
    Displaced {
        /// The archive.
        archive: ArchiveId,
        /// The other one.
        by: ArchiveId,
        /// Whether it is kept, since an engine on it ran.
        kept: bool,
    },
    /// Its claim was replaced by an empty one.
    Superseded {
        /// The archive.
        archive: ArchiveId,
        /// The archive on the empty claim.
        by: ArchiveId,
        /// Whether it had been removed before.
        was_removed: bool,
    },
    /// It was removed.
    Removed {
        /// The archive.
        archive: ArchiveId,
        /// Why.
        reason: RemovalReason,
        /// The operator's reason.
        why: Option<String>,
    },
    /// It is removed, and its claim is gone.
    ClaimGone {
        /// The archive.
        archive: ArchiveId,
        /// The claim's name.
        claim: String,
    },
    /// It was purged, since its claim is gone.
    Purged {
        /// The archive.
        archive: ArchiveId,
        /// The claim.
        claim: ClaimName,
    },
    /// An operator purged it.
    Forgotten {
        /// The archive.
        archive: ArchiveId,
        /// Why.
        why: String,
    },
}

impl ArchiveEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Created { archive: _, database, claim } => {
                database.as_str().len() + claim.as_ref().map_or(0, ClaimName::bytes)
            }
            Self::Bound { archive: _, resurrected: _, claim } => claim.as_ref().map_or(0, ClaimName::bytes),
            Self::Owned { archive: _, owner } => {
                owner.as_ref().map_or(0, |owner| owner.stateful_set.len() + owner.uid.as_str().len())
            }
            Self::Removed { archive: _, reason: _, why } => why.as_ref().map_or(0, String::len),
            Self::ClaimGone { archive: _, claim } => claim.len(),
            Self::Purged { archive: _, claim } => claim.bytes(),
            Self::Forgotten { archive: _, why } => why.len(),
            Self::Displaced { archive: _, by: _, kept: _ } | Self::Superseded { archive: _, by: _, was_removed: _ } => {
                0
            }
        }
    }
}

impl fmt::Display for ArchiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created { archive, database, claim: Some(claim) } => {
                write!(f, "archive {archive} created for database {database} on {claim}")
            }
            Self::Created { archive, database, claim: None } => {
                write!(f, "archive {archive} created for database {database} on no known claim")
            }
            Self::Bound { archive, resurrected: true, claim: None } => write!(f, "archive {archive} resurrected"),
            Self::Bound { archive, resurrected: true, claim: Some(claim) } => {
                write!(f, "archive {archive} resurrected, bound to {claim}")
            }
            Self::Bound { archive, resurrected: false, claim: Some(claim) } => {
                write!(f, "archive {archive} bound to {claim}")
            }
            Self::Bound { archive, resurrected: false, claim: None } => write!(f, "archive {archive} stays as it was"),
            Self::Owned { archive, owner: Some(owner) } => {
                let Ordinal { stateful_set, uid, .. } = owner;
                write!(f, "archive {archive} belongs to {owner} of statefulset {stateful_set} ({uid}) now")
            }
            Self::Owned { archive, owner: None } => write!(f, "archive {archive} belongs to no StatefulSet now"),
            Self::Displaced { archive, by, kept } => {
                let fate = if *kept { "unbound" } else { "removed and purged, having never run" };
                write!(f, "archive {archive} {fate}: the volume of its claim holds archive {by}")
            }
            Self::Superseded { archive, by, was_removed } => {
                let fate = if *was_removed { "purged" } else { "removed and purged" };
                write!(f, "archive {archive} {fate}: its claim was replaced by an empty one, now archive {by}")
            }
            Self::Removed { archive, reason, why: None } => write!(f, "archive {archive} removed: {reason}"),
            Self::Removed { archive, reason, why: Some(why) } => {
                write!(f, "archive {archive} removed: {reason}: {why}")
            }
            Self::ClaimGone { archive, claim } => write!(f, "claim {claim} of archive {archive} is gone"),
            Self::Purged { archive, claim: ClaimName { name, uid } } => {
                write!(f, "archive {archive} purged: its claim {name} ({uid}) was deleted")
            }
            Self::Forgotten { archive, why } => write!(f, "archive {archive} purged: {why}"),
        }
    }
}
