//! What the Raft leader does about who votes: towards the servers that are wanted, one step at a time, and never back.

use super::logs::{self, Logs};
use crate::domain::ids::{RaftId, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A membership as its leader sees it, in sets of logs.
#[derive(Clone, Debug)]
pub struct View<L> {
    /// The voter sets of the last membership in its log: one, or two while a change is under way.
    pub halves: Vec<L>,
    /// Whether that membership is committed, and an entry of the leader's own term as well.
    pub settled: bool,
    /// The leader's own log, alone.
    pub me: L,
    /// The logs of today of the servers that the StatefulSet wants; `None` while that is not known.
    pub wanted: Option<L>,
    /// The logs that have (nearly) everything that is committed, and answer.
    pub caught_up: L,
}

/// What the leader does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<L> {
    /// Make exactly these the voters.
    Voters(L, Reason),
    /// Let one of these lead, and leave the rest to it.
    HandOver(L),
    /// Nothing now.
    Wait(Reason),
}

/// Why a step is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The voters are those that are wanted.
    AsWanted,
    /// The voters do not yet follow from what is wanted: this step goes there.
    Wanted,
    /// A change is under way, and it is finished forward whatever is wanted now.
    Forward,
    /// This leader is not wanted, and no wanted server votes yet: they get a vote before it hands over.
    BesideMe,
    /// The last change, or this leader's own first entry, is not committed.
    Unsettled,
    /// It is not known what is wanted.
    Unknown,
    /// The StatefulSet wants no server, or none of those that it wants votes or has caught up.
    NoneReady,
    /// Those that would vote do not answer in a majority: they could commit nothing.
    Silent,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsWanted => "the voters are the servers that are wanted",
            Self::Wanted => "the voters follow the servers that are wanted",
            Self::Forward => "a change that was begun is finished",
            Self::BesideMe => "the wanted servers get a vote before the departing leader hands over the lead",
            Self::Unsettled => "the last change of the voters is not committed yet",
            Self::Unknown => "it is not known which servers the StatefulSet wants",
            Self::NoneReady => "no wanted server votes or has caught up, so the voters stay as they are",
            Self::Silent => "most of the servers that would vote do not answer",
        })
    }
}

/// Decides the next step.
///
/// - A change under way is finished forward, with the last half as its goal: of two leaders one of whom goes back, both
///   could commit a membership without the other's majority.
/// - The goal is the wanted servers that vote already or have caught up, each by its log of today. An empty goal changes
///   nothing: with zero replicas the last voters keep their place.
/// - A leader that is not in the goal hands over before it is voted out: it may not stand any more once the membership
///   without it is appended, and no other server may have that entry.
pub fn step<L: Logs>(view: &View<L>) -> Step<L> {
    if !view.settled {
        return Step::Wait(Reason::Unsettled);
    }
    if let [_, .., last] = view.halves.as_slice() {
        return if leads_within(view, last) {
            Step::Voters(last.clone(), Reason::Forward)
        } else {
            Step::HandOver(last.clone())
        };
    }
    let Some(voters) = view.halves.first() else { return Step::Wait(Reason::NoneReady) };
    let Some(wanted) = &view.wanted else { return Step::Wait(Reason::Unknown) };
    let goal = wanted.common(&voters.union(&view.caught_up));
    if goal.count() == 0 {
        return Step::Wait(Reason::NoneReady);
    }
    if goal == *voters {
        return Step::Wait(Reason::AsWanted);
    }
    if goal.common(&view.caught_up).count() < logs::majority(&goal) {
        return Step::Wait(Reason::Silent);
    }
    if leads_within(view, &goal) {
        return Step::Voters(goal, Reason::Wanted);
    }
    let heirs = goal.common(voters);
    if heirs.count() == 0 { Step::Voters(goal.union(&view.me), Reason::BesideMe) } else { Step::HandOver(heirs) }
}

fn leads_within<L: Logs>(view: &View<L>, voters: &L) -> bool {
    voters.common(&view.me).count() > 0
}

/// A log that Raft replicates to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Whose it is.
    pub server: ServerId,
    /// Whether it has (nearly) everything that is committed, and answers.
    pub caught_up: bool,
}

/// Raft's membership as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The leader's own log.
    pub leader: RaftId,
    /// The voter sets: one, or two while a change is under way. The last is where it goes.
    pub halves: Vec<BTreeSet<RaftId>>,
    /// Every log that is replicated to, voter or not.
    pub members: BTreeMap<RaftId, Member>,
    /// Whether the last membership is committed, and an entry of the leader's own term.
    pub settled: bool,
}

/// What the leader changes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A step of the voters.
    Step(Step<BTreeSet<RaftId>>),
    /// Forget these logs, which do not vote: their server has another one now, or was removed from the domain.
    Forget(BTreeSet<RaftId>),
}

/// Decides the next change. `current` names each server's log of today, as the domain has it; `wanted` the servers that
/// shall vote, if that is known. `ending` are about to end, wanted or not: none of them becomes a voter now, only to be
/// missed in a moment; the voters keep their votes.
pub fn next_change(
    membership: &Membership,
    current: &BTreeMap<ServerId, RaftId>,
    wanted: Option<&BTreeSet<ServerId>>,
    ending: &BTreeSet<ServerId>,
) -> Change {
    let of_today = |server: &ServerId| current.get(server).copied();
    let votes = |id: &RaftId| membership.halves.iter().any(|half| half.contains(id));
    let caught_up = membership
        .members
        .iter()
        .filter(|(id, member)| member.caught_up && (votes(id) || !ending.contains(&member.server)));
    let view = View {
        halves: membership.halves.clone(),
        settled: membership.settled,
        me: BTreeSet::from([membership.leader]),
        wanted: wanted.map(|wanted| wanted.iter().filter_map(of_today).collect()),
        caught_up: caught_up.map(|(id, _)| *id).collect(),
    };
    let step = step(&view);
    if !matches!(step, Step::Wait(_)) || !membership.settled {
        return Change::Step(step);
    }
    let gone = |(id, member): &(&RaftId, &Member)| !votes(id) && of_today(&member.server) != Some(**id);
    let stale: BTreeSet<RaftId> = membership.members.iter().filter(gone).map(|(id, _)| *id).collect();
    if stale.is_empty() { Change::Step(step) } else { Change::Forget(stale) }
}

/// Whether a change takes a vote away, or leads to that, because of what is wanted: then that has to be read afresh, since what
/// the watches show may be old. A change that was begun is finished whatever is wanted.
pub fn takes_a_vote(membership: &Membership, change: &Change) -> bool {
    let [voters] = membership.halves.as_slice() else { return false };
    match change {
        Change::Step(Step::Voters(next, _)) => !voters.is_subset(next),
        Change::Step(Step::HandOver(_)) => true,
        Change::Step(Step::Wait(_)) | Change::Forget(_) => false,
    }
}
