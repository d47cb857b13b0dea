//! An archive: the storage behind one storage manager.

use super::ids::{ArchiveId, ClusterName, DatabaseName, Millis, ResyncEpoch, Uid};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The storage behind one storage manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// Its name in the domain.
    pub id: ArchiveId,
    /// The database it belongs to.
    pub database: DatabaseName,
    /// Where its claim lives.
    pub cluster: ClusterName,
    /// The claim that holds it; `None` until one is known. An archive without a claim is never judged.
    pub claim: Option<Claim>,
    /// The log entry with which it was bound to that claim.
    #[serde(default)]
    pub bound: u64,
    /// Where the engine finds it, in its own file system.
    pub path: String,
    /// Whether there may be data on it: an engine on it has reported that it runs, or that its data is not new, or its volume was
    /// an archive before.
    pub ever_ran: bool,
    /// The log entry up to which it is proven to hold all data of its database; 0 if nothing is proven.
    #[serde(default)]
    pub holds_to: u64,
    /// The log entry after which no engine has written to it; `None` if no such entry is known.
    #[serde(default)]
    pub written_to: Option<u64>,
    /// Set while it is removed: kept, but not counted, and resurrected by the next registration.
    pub removed: Option<Removal>,
    /// When it was created.
    pub created: Millis,
    /// Set while an operator has created it and no engine has registered on it: nothing is known of a volume.
    #[serde(default)]
    pub by_hand: bool,
}

/// A PersistentVolumeClaim, and who wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which another claim may bear later.
    pub name: String,
    /// Its UID, which no other ever bears.
    pub uid: Uid,
    /// The StatefulSet and ordinal whose pod mounted it when it last registered.
    pub owner: Option<Ordinal>,
}

/// One place in a StatefulSet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ordinal {
    /// The StatefulSet's name.
    pub stateful_set: String,
    /// The StatefulSet's UID.
    pub uid: Uid,
    /// The number at the end of the pod's name.
    pub ordinal: u32,
}

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stateful_set, self.ordinal)
    }
}

/// When and why an archive was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// The moment.
    pub at: Millis,
    /// The reason.
    pub because: RemovalReason,
    /// Since when its claim is known to be gone, if it was removed for another reason before.
    #[serde(default)]
    pub claim_gone: Option<Millis>,
    /// For how long its claim was seen to be gone.
    #[serde(default)]
    pub watched: Option<Watched>,
}

/// A resync leader reads again whether a claim is gone when this has passed since the last time, in milliseconds.
pub const WATCH_PERIOD_MS: u64 = 60_000;

/// The most that counts between two reads of a claim, in milliseconds: the period, and some passes that came late. A clock that
/// is set forward in between adds no more than the difference.
pub const WATCH_MOST_MS: u64 = 90_000;

/// For how long the claim of a removed archive was seen to be gone. Each resync leader measures by its own clock alone, from one
/// read to the next, so that it does not matter what the clocks say, only that they run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Who read it last.
    pub epoch: ResyncEpoch,
    /// When, by that leader's clock.
    pub at: Millis,
    /// What all leaders have measured, in milliseconds.
    pub total_ms: u64,
}

impl Watched {
    /// The total, in milliseconds, if the leader of this epoch read the claim now, at `at` by its clock.
    pub fn total_at(&self, epoch: ResyncEpoch, at: Millis) -> u64 {
        let more = if epoch == self.epoch { at.since(self.at).min(WATCH_MOST_MS) } else { 0 };
        self.total_ms.saturating_add(more)
    }

    /// Whether the leader of this epoch has to restart the measurement: another leader read it last, or the clock was set back since.
    pub fn is_interrupted(&self, epoch: ResyncEpoch, at: Millis) -> bool {
        epoch != self.epoch || self.at.since(at) > WATCH_MOST_MS
    }
}

impl Removal {
    /// Notes that the leader of an epoch has read at `at`, by its clock, that the claim is gone. Returns whether that is new.
    pub fn watch(&mut self, epoch: ResyncEpoch, at: Millis) -> bool {
        let total_ms = match &self.watched {
            // A read that arrives late, or twice, counts for nothing; the next one counts from the latest.
            Some(watched) if !watched.is_interrupted(epoch, at) && at <= watched.at => return false,
            Some(watched) => watched.total_at(epoch, at),
            None => 0,
        };
        self.watched = Some(Watched { epoch, at, total_ms });
        true
    }

    /// Since when the archive's claim is known to be gone.
    pub fn claim_gone_since(&self) -> Option<Millis> {
        match self.because {
            RemovalReason::ClaimDeleted => Some(self.at),
            RemovalReason::ScaledDown | RemovalReason::GivenUp => self.claim_gone,
        }
    }
}

/// Why an archive is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemovalReason {
    /// Its StatefulSet no longer wants its ordinal.
    ScaledDown,
    /// An operator gave up its data: no cold start waits for it.
    GivenUp,
    /// Its claim was deleted.
    ClaimDeleted,
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ScaledDown => "its StatefulSet was scaled down",
            Self::GivenUp => "an operator gave up its data",
            Self::ClaimDeleted => "its claim was deleted",
        })
    }
}

/// What an archive does, as far as its processes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveState {
    /// No engine on it has ever run.
    Provisioned,
    /// A process of the domain is on it, whatever the process does.
    Running,
    /// No process of the domain is on it.
    NotRunning,
}

impl fmt::Display for ArchiveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Provisioned => "PROVISIONED",
            Self::Running => "RUNNING",
            Self::NotRunning => "NOT_RUNNING",
        })
    }
}

/// The file on an archive's volume that says whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marker {
    /// The domain that made it.
    pub domain: super::ids::DomainId,
    /// The archive.
    pub archive: ArchiveId,
}
