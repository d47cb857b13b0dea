//! Who may start, found and vote: the pure part of the membership protocol (docs/membership.md).

use crate::domain::ids::{DomainId, MembershipEpoch, RaftId, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Set the log aside if it holds anything, take a new raft id, and ask to join.
    Join(Anchor),
    /// Do not start; read again later.
    Wait(Waiting),
    /// Do not start; a person has to look.
    Refuse(Refusal),
}

/// Why an agent does not start yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// There is no domain yet, and the first server founds it.
    ForTheFirst,
    /// This server held a log of a domain whose anchor is gone.
    AnchorMissing(DomainId),
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
    /// The volume is of a later epoch than the anchor: the anchor was turned back.
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
            Self::AnchorMissing(domain) => {
                write!(f, "this volume holds a log of domain {domain}, whose anchor is gone")
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
                write!(f, "this volume is of epoch {mine}, but the anchor is of epoch {anchor}: it was turned back")
            }
        }
    }
}

/// Decides at the gate. `anchor` is what a fresh read showed: `None` means that there is none, for certain.
pub fn gate(anchor: Option<&Anchor>, local: &LocalLog, first: bool) -> Gate {
    let Some(anchor) = anchor else {
        return match &local.domain {
            Some(domain) => Gate::Wait(Waiting::AnchorMissing(domain.clone())),
            None if first => Gate::CreateAnchor,
            None => Gate::Wait(Waiting::ForTheFirst),
        };
    };
    if let Some(mine) = &local.domain
        && *mine != anchor.domain
    {
        return Gate::Refuse(Refusal::AnotherDomain { mine: mine.clone(), anchor: anchor.domain.clone() });
    }
    match anchor.epoch.cmp(&local.epoch) {
        std::cmp::Ordering::Equal => Gate::Start,
        std::cmp::Ordering::Less => Gate::Refuse(Refusal::AnchorBehind { mine: local.epoch, anchor: anchor.epoch }),
        std::cmp::Ordering::Greater if anchor.founder == local.raft_id => Gate::Found(anchor.clone()),
        std::cmp::Ordering::Greater => Gate::Join(anchor.clone()),
    }
}

/// A log that Raft replicates to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Whose it is.
    pub server: ServerId,
    /// Whether it has (nearly) everything that is committed.
    pub caught_up: bool,
}

/// Raft's membership as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The voter sets: one, or two while a change is under way. The last is where it goes.
    pub halves: Vec<BTreeSet<RaftId>>,
    /// Every log that is replicated to, voter or not.
    pub members: BTreeMap<RaftId, Member>,
}

/// What the leader changes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Make exactly these the voters.
    Voters(BTreeSet<RaftId>),
    /// Forget these logs, which do not vote: their server came back with another one.
    Forget(BTreeSet<RaftId>),
}

/// Decides the next step of the membership. `current` names each server's log of today, `wanted` the servers that
/// shall vote; a server that votes already is not taken out by this function, unless its log was replaced.
///
/// A change under way is always finished forward, with the last half as its goal: going back could commit two
/// memberships that share no majority.
pub fn next_change(
    membership: &Membership,
    current: &BTreeMap<ServerId, RaftId>,
    wanted: &BTreeSet<ServerId>,
) -> Change {
    if let [_, .., last] = membership.halves.as_slice() {
        return Change::Voters(last.clone());
    }
    let voters = membership.halves.first().cloned().unwrap_or_default();
    let is_current = |id: &RaftId| {
        let server = membership.members.get(id).map(|member| &member.server);
        server.is_none_or(|server| current.get(server).is_none_or(|log| log == id))
    };
    let joins = |id: &RaftId, member: &Member| member.caught_up && wanted.contains(&member.server) && is_current(id);
    let mut goal: BTreeSet<RaftId> = voters.iter().filter(|id| is_current(id)).copied().collect();
    goal.extend(membership.members.iter().filter(|(id, member)| joins(id, member)).map(|(id, _)| *id));
    if !goal.is_empty() && goal != voters {
        return Change::Voters(goal);
    }
    let stale: BTreeSet<RaftId> =
        membership.members.keys().filter(|id| !voters.contains(id) && !is_current(id)).copied().collect();
    if stale.is_empty() { Change::None } else { Change::Forget(stale) }
}
