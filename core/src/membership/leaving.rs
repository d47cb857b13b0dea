//! What a server that is told to end waits for: that the others have voted it out, if it is scaled down; that they are a
//! majority without it, if its pod is deleted for another reason.

use super::{Membership, logs};
use crate::domain::ids::RaftId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// What becomes of a server after its pod's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The StatefulSet wants others, and not this one.
    ForGood,
    /// It is wanted.
    Restart,
    /// None is wanted: the last voters keep their votes, since no server would be left that could evict them or miss them.
    WithAll,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForGood => "the StatefulSet is scaled down, so it waits until it is evicted from the voters",
            Self::Restart => "it restarts",
            Self::WithAll => "the StatefulSet is scaled to 0",
        })
    }
}

/// What is the end of an ordinal, by those that the StatefulSet wants.
pub fn ending(ordinal: u32, wanted: &Range<u32>) -> Ending {
    match wanted {
        none if none.is_empty() => Ending::WithAll,
        wanted if wanted.contains(&ordinal) => Ending::Restart,
        _ => Ending::ForGood,
    }
}

/// Whether a log certainly does not vote: the membership is committed, no change is under way, and the log is not in it.
pub fn is_voted_out(membership: &Membership, log: RaftId) -> bool {
    membership.settled && membership.halves.len() == 1 && membership.halves.iter().all(|half| !half.contains(&log))
}

/// How it is with a voter, as one that is about to end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It follows or leads, and its pod is not deleted.
    There,
    /// It follows or leads, and its pod is deleted.
    Ends,
    /// It does not answer, has found no leader yet, or is past its own wait and stops now.
    Missing,
}

/// Whether a voter whose pod is deleted, and comes back, may end now: the others can commit without it. Of several that end
/// at one moment those with the later names go first, and the others wait until they are back. If the others could not
/// commit without this vote even if all of them were there, waiting would not help them.
pub fn may_end(membership: &Membership, me: RaftId, presence: &BTreeMap<RaftId, Presence>) -> bool {
    let server = |log: &RaftId| membership.members.get(log).map(|member| &member.server);
    let others: BTreeSet<RaftId> = presence.keys().copied().filter(|log| *log != me).collect();
    let stays = |log: &RaftId| match presence[log] {
        Presence::There => true,
        Presence::Ends => server(log) < server(&me),
        Presence::Missing => false,
    };
    let left: BTreeSet<RaftId> = others.iter().copied().filter(stays).collect();
    !logs::commit(&membership.halves, &others) || logs::commit(&membership.halves, &left)
}
