//! What becomes of the domain as a whole: its founding, its anchor, its voters, its resync.

use crate::domain::ids::{ArchiveId, ClusterName, DomainId, MembershipEpoch, Millis, ResyncEpoch, ServerId, Uid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of the domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum DomainEvent {
    /// It was founded.
    Founded {
        /// Its name.
        name: String,
        /// Its id.
        domain: DomainId,
    },
    /// It took over what a snapshot of another domain holds.
    Restored(RestoredFrom),
    /// Another Kubernetes is its own from now on.
    AnchorAdopted {
        /// The UID of its anchor.
        anchor: Uid,
        /// The UID of the anchor before.
        before: Uid,
        /// Why.
        why: String,
    },
    /// Another cluster takes part in the domain.
    ClusterAnchored {
        /// The cluster.
        cluster: ClusterName,
        /// The UID of its anchor.
        anchor: Uid,
    },
    /// An operator said that a cluster is lost.
    ClusterForgotten {
        /// The cluster.
        cluster: ClusterName,
        /// Why.
        why: String,
    },
    /// An operator gave up what only lost servers may have held.
    LossAccepted {
        /// The epoch that began with it.
        epoch: MembershipEpoch,
        /// With whose log it began.
        founder: ServerId,
        /// When the operator said so.
        at: Millis,
        /// What was lost.
        lost: String,
    },
    /// Other servers vote.
    VotersChanged {
        /// The membership epoch, if it is a new one.
        epoch: Option<MembershipEpoch>,
        /// Who does not vote any more.
        left: BTreeSet<ServerId>,
        /// Who votes since.
        came: BTreeSet<ServerId>,
        /// Who votes.
        voters: BTreeSet<ServerId>,
        /// How many servers the StatefulSet wants, if that was known.
        wanted: Option<u32>,
    },
    /// An agent leads the resync.
    ResyncBegun {
        /// Who.
        holder: ServerId,
        /// Of which cluster.
        cluster: ClusterName,
        /// Under which epoch.
        epoch: ResyncEpoch,
    },
    /// The resync removes nothing for a while.
    ResyncPaused {
        /// Why.
        why: String,
    },
    /// It does again.
    ResyncResumed {
        /// Who had paused it.
        by: String,
        /// Why.
        why: String,
    },
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredFrom {
    /// The name of the other domain.
    pub name: String,
    /// Its id.
    pub domain: DomainId,
    /// Up to which of its entries.
    pub index: u64,
    /// When that entry was made.
    pub time: Millis,
    /// The SHA-256 of the snapshot.
    pub checksum: String,
    /// How many databases came.
    pub databases: u64,
    /// How many archives.
    pub archives: u64,
    /// How many values.
    pub values: u64,
    /// The archives that were left out.
    pub without: BTreeSet<ArchiveId>,
}

impl DomainEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Founded { name, domain } => name.len() + domain.as_str().len(),
            Self::Restored(RestoredFrom { name, domain, checksum, without, .. }) => {
                name.len() + domain.as_str().len() + checksum.len() + 16 * without.len()
            }
            Self::AnchorAdopted { anchor, before, why } => anchor.as_str().len() + before.as_str().len() + why.len(),
            Self::ClusterAnchored { cluster, anchor } => cluster.as_str().len() + anchor.as_str().len(),
            Self::ClusterForgotten { cluster, why } => cluster.as_str().len() + why.len(),
            Self::LossAccepted { epoch: _, founder, at: _, lost } => founder.as_str().len() + lost.len(),
            Self::VotersChanged { epoch: _, left, came, voters, wanted: _ } => {
                [left, came, voters].into_iter().flatten().map(|server| 32 + server.as_str().len()).sum()
            }
            Self::ResyncBegun { holder, cluster, epoch: _ } => holder.as_str().len() + cluster.as_str().len(),
            Self::ResyncPaused { why } => why.len(),
            Self::ResyncResumed { by, why } => by.len() + why.len(),
        }
    }
}

impl fmt::Display for DomainEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Founded { name, domain } => write!(f, "domain {name} founded as {domain}"),
            Self::Restored(from) => from.fmt(f),
            Self::AnchorAdopted { anchor, before, why } => {
                write!(f, "anchored to the cluster whose anchor lease has uid {anchor}, before: {before}: {why}")
            }
            Self::ClusterAnchored { cluster, anchor } => {
                write!(f, "cluster {cluster} takes part; its anchor lease has uid {anchor}")
            }
            Self::ClusterForgotten { cluster, why } => {
                write!(f, "cluster {cluster} is lost, and all that the domain knows of it is removed: {why}")
            }
            Self::LossAccepted { epoch, founder, at, lost } => {
                write!(f, "epoch {epoch} begins with the log of {founder}; given up at {at}: {lost}")
            }
            Self::VotersChanged { epoch, left, came, voters, wanted } => {
                if let Some(epoch) = epoch {
                    write!(f, "membership epoch {epoch} began; ")?;
                }
                match left.len() {
                    0 => {}
                    1 => write!(f, "{} does not vote any more; ", listed(left))?,
                    _ => write!(f, "{} do not vote any more; ", listed(left))?,
                }
                match came.len() {
                    0 => {}
                    1 => write!(f, "{} votes; ", listed(came))?,
                    _ => write!(f, "{} vote; ", listed(came))?,
                }
                write!(f, "the voters are {}", listed(voters))?;
                match wanted {
                    Some(1) => f.write_str("; the StatefulSet wants 1 server"),
                    Some(wanted) => write!(f, "; the StatefulSet wants {wanted} servers"),
                    None => Ok(()),
                }
            }
            Self::ResyncBegun { holder, cluster, epoch } => {
                write!(f, "{holder} leads the resync of cluster {cluster} from epoch {epoch} on")
            }
            Self::ResyncPaused { why } => write!(f, "resync paused: {why}"),
            Self::ResyncResumed { by, why } => write!(f, "resync resumed, which {by} had paused: {why}"),
        }
    }
}

impl fmt::Display for RestoredFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, domain, index, time, checksum, databases, archives, values, without } = self;
        write!(
            f,
            "restored from a snapshot of domain {name} ({domain}) up to entry {index} of {time}, sha256 {checksum}: "
        )?;
        write!(f, "databases {databases}, archives {archives}, values {values}")?;
        let without: Vec<String> = without.iter().map(ToString::to_string).collect();
        if without.is_empty() { Ok(()) } else { write!(f, "; without archive {}", without.join(", ")) }
    }
}

fn listed(servers: &BTreeSet<ServerId>) -> String {
    servers.iter().map(ServerId::as_str).collect::<Vec<_>>().join(", ")
}
