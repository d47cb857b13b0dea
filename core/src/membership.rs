//! Who may start, found and vote: the pure part of the membership protocol (docs/membership.md).
//!
//! [`gate`] says what an agent does before its Raft starts, [`seen`] what one does whose Raft runs, when they look at the
//! anchor; [`change`] what the Raft leader does about who votes, [`leaving`] what one waits for that ends; [`quorum_override`] when,
//! and by whom, a new epoch is begun without a majority of the old one; [`recover`] the same by an operator's command, where
//! something may be lost, and [`retired`] where nothing but logs of earlier epochs is left. [`warnings`], [`scaling`] and
//! [`standing`] say to people what is so. `model/` explores all that can happen with these same functions.

pub mod change;
pub mod clusters;
pub mod leaving;
pub mod logs;
pub mod quorum_override;
pub mod recover;
pub mod retired;
pub mod scaling;
pub mod standing;
pub mod warnings;

pub use change::{Change, Member, Membership, next_change, takes_a_vote};

use crate::domain::ids::{DomainId, MembershipEpoch, RaftId, ServerId};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// What the anchor says: which domain this is, which founding it descends from, and which log founds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The domain.
    pub domain: DomainId,
    /// Its membership epoch; 1 at the bootstrap.
    pub epoch: MembershipEpoch,
    /// The log that founds this epoch.
    pub founder: RaftId,
    /// Whether an operator gave up what only others had: then the founder waits until their processes are gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
}

/// What a volume says of the log on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalLog {
    /// The domain it belongs to; `None` if it is empty.
    pub domain: Option<DomainId>,
    /// The epoch it belongs to; 0 if it is empty.
    pub epoch: MembershipEpoch,
    /// Its id, durable before anything is sent.
    pub raft_id: RaftId,
    /// Whether it takes part in an override: nothing is appended to it, and it grants no vote.
    pub sealed: bool,
}

/// What an agent does at the gate, once per pod UID, before its Raft starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Create the anchor with a new domain, epoch 1 and this log as founder; then pass the gate again.
    CreateAnchor,
    /// Write the epoch and the membership of this log alone, then start.
    Found(Anchor),
    /// Start on the log as it is.
    Start,
    /// The log is sealed: continue with the override until the epoch moves.
    Override,
    /// Retire the log if it holds anything. If the anchor names a log that was retired here, bring that back
    /// ([`retired::brings_back`]) and pass the gate again; else take a new raft id, and ask to join.
    Join(Anchor),
    /// Create the anchor of this cluster, which is not the entry point, as a copy of the entry point's; then pass the gate again.
    CopyAnchor(Anchor),
    /// The entry point has founded a later epoch: have the anchor of this cluster name it; then pass the gate again.
    FollowAnchor(Anchor),
    /// Do not start; read again later.
    Wait(Waiting),
    /// Do not start; an operator has to look.
    Refuse(Refusal),
}

/// Why an agent does not start yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// There is no domain yet, and the first server founds it.
    ForTheFirst,
    /// This cluster is not the entry point, whose agents do not answer with one domain and a quorum.
    EntryPoint,
    /// This server held a log of a domain whose anchor is gone.
    AnchorMissing(DomainId, MembershipEpoch),
    /// There is no anchor, but a Lease that only agents with a domain make: a domain was here.
    Lease(String),
    /// There is no anchor, but another agent of the StatefulSet has a log of a domain.
    Answered(ServerId, DomainId),
}

/// What speaks for a domain that was here before, though there is no anchor; and whether this server may found one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Whether this is the server with the first ordinal.
    pub first: bool,
    /// The resync Lease, if there is one.
    pub lease: Option<String>,
    /// Agents of the StatefulSet that have a log of a domain.
    pub answered: Vec<(ServerId, DomainId)>,
}

/// Why an agent will not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The volume belongs to another domain.
    AnotherDomain {
        /// The volume's.
        mine: DomainId,
        /// The anchor's.
        anchor: DomainId,
    },
    /// The volume is of a later epoch than the anchor: the anchor was set back.
    AnchorBehind {
        /// The volume's.
        mine: MembershipEpoch,
        /// The anchor's.
        anchor: MembershipEpoch,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForTheFirst => f.write_str("there is no domain yet: the server with the first ordinal founds it"),
            Self::EntryPoint => f.write_str(
                "this cluster is not the domain's entry point, and its agents do not answer, have no quorum, or name different \
                 domains (--entrypoint)",
            ),
            Self::AnchorMissing(domain, epoch) => {
                write!(f, "this volume holds a log of epoch {epoch} of domain {domain}, whose anchor is gone")
            }
            Self::Lease(lease) => write!(
                f,
                "there is no anchor, but the lease {lease} belongs to an earlier domain: restore its volumes, or delete that \
                 lease as well to found a new domain"
            ),
            Self::Answered(server, domain) => {
                write!(f, "there is no anchor, but {server} has a log of domain {domain}")
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnotherDomain { mine, anchor } => {
                write!(f, "this volume belongs to domain {mine}, but the anchor names domain {anchor}")
            }
            Self::AnchorBehind { mine, anchor } => {
                write!(f, "this volume is of epoch {mine}, but the anchor is of epoch {anchor}: it was set back")
            }
        }
    }
}

/// Decides at the gate. `anchor` is what a fresh read showed: `None` means that there is none, for certain.
pub fn gate(anchor: Option<&Anchor>, local: &LocalLog, traces: &Traces) -> Gate {
    let Some(anchor) = anchor else { return without_anchor(local, traces) };
    match seen(Some(anchor), local) {
        Seen::Mine if local.sealed => Gate::Override,
        Seen::Mine => Gate::Start,
        Seen::Newer if anchor.founder == local.raft_id => Gate::Found(anchor.clone()),
        Seen::Newer => Gate::Join(anchor.clone()),
        Seen::Contradiction(why) => Gate::Refuse(why),
        // There is one.
        Seen::Missing => without_anchor(local, traces),
    }
}

/// A domain begins only where nothing speaks for another one, and at one server only.
fn without_anchor(local: &LocalLog, traces: &Traces) -> Gate {
    if let Some(domain) = &local.domain {
        return Gate::Wait(Waiting::AnchorMissing(domain.clone(), local.epoch));
    }
    if let Some((server, domain)) = traces.answered.first() {
        return Gate::Wait(Waiting::Answered(server.clone(), domain.clone()));
    }
    if !traces.first {
        return Gate::Wait(Waiting::ForTheFirst);
    }
    match &traces.lease {
        Some(lease) => Gate::Wait(Waiting::Lease(lease.clone())),
        None => Gate::CreateAnchor,
    }
}

/// What the anchor says to an agent with a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is of this log's domain and epoch.
    Mine,
    /// A later epoch was founded: the log is of no use any more, unless the anchor names it.
    Newer,
    /// It is gone. A server that runs keeps running, and reports it.
    Missing,
    /// It is another domain's, or was set back. A server that runs keeps running, and reports it.
    Contradiction(Refusal),
}

/// Judges the anchor; also when Raft runs, where [`Seen::Newer`] stops it.
pub fn seen(anchor: Option<&Anchor>, local: &LocalLog) -> Seen {
    let Some(anchor) = anchor else { return Seen::Missing };
    if let Some(mine) = &local.domain
        && *mine != anchor.domain
    {
        return Seen::Contradiction(Refusal::AnotherDomain { mine: mine.clone(), anchor: anchor.domain.clone() });
    }
    match anchor.epoch.cmp(&local.epoch) {
        Ordering::Equal => Seen::Mine,
        Ordering::Greater => Seen::Newer,
        Ordering::Less => Seen::Contradiction(Refusal::AnchorBehind { mine: local.epoch, anchor: anchor.epoch }),
    }
}
