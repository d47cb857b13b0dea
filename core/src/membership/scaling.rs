//! A preview of another number of admin servers: which leave, which come, and whether those that stay could continue by
//! themselves if the others were lost before they are evicted.

use super::quorum_override::{Call, called_for};
use super::warnings::{Electorate, Warning, warnings};
use crate::domain::ids::{RaftId, ServerId};
use crate::observed::objects::ordinal_of;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Another number of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// The StatefulSet of the admin servers.
    pub stateful_set: String,
    /// Its first ordinal.
    pub first_ordinal: u32,
    /// How many it would want.
    pub replicas: u32,
}

/// One thing that would come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comes {
    /// No server is wanted: the voters keep their votes.
    Kept,
    /// A voter keeps its vote, since several clusters share the domain.
    KeepsVote(ServerId),
    /// A voter is voted out.
    Evicted(ServerId),
    /// A server that does not vote now votes again, with the volume it has.
    Back(ServerId),
    /// A server that the domain does not know joins.
    Joins(ServerId),
    /// What would happen if the leavers were lost all at once, without being voted out.
    LostAtOnce {
        /// How many voters would stay, and of how many.
        stay: (usize, usize),
        /// What that calls for.
        call: Call,
    },
    /// What there is to know of those that would vote then.
    Found(Warning),
}

/// Tells what comes of it. `halves` are the voter sets of the last membership, `servers` each server's log of today. `spread`: several
/// clusters share the domain, and no scale-down removes a vote.
pub fn scaled(
    scaling: &Scaling,
    halves: &[BTreeSet<RaftId>],
    servers: &BTreeMap<ServerId, RaftId>,
    spread: bool,
) -> Vec<Comes> {
    if scaling.replicas == 0 {
        return vec![Comes::Kept];
    }
    let ordinals = scaling.first_ordinal..scaling.first_ordinal.saturating_add(scaling.replicas);
    // In the order of their ordinals.
    let wanted: Vec<ServerId> = ordinals.map(|ordinal| format!("{}-{ordinal}", scaling.stateful_set).into()).collect();
    let votes = |log: &RaftId| halves.iter().any(|half| half.contains(log));
    let is_ours = |server: &ServerId| ordinal_of(server.as_str(), &scaling.stateful_set).is_some();
    let stays = |server: &ServerId| wanted.contains(server) || spread && !is_ours(server);
    let leave = servers.iter().filter(|(server, log)| votes(log) && !stays(server)).map(|(server, _)| server.clone());
    let mut comes: Vec<Comes> = leave.map(if spread { Comes::KeepsVote } else { Comes::Evicted }).collect();
    let leaves = !comes.is_empty();
    comes.extend(wanted.iter().filter_map(|server| match servers.get(server) {
        Some(log) if votes(log) => None,
        Some(_) => Some(Comes::Back(server.clone())),
        None => Some(Comes::Joins(server.clone())),
    }));
    if leaves {
        let logs = servers.iter().filter(|(server, _)| stays(server)).map(|(_, log)| *log);
        let logs: BTreeSet<RaftId> = logs.collect();
        let voters: BTreeSet<RaftId> = halves.iter().flatten().copied().collect();
        let stay = ((&voters & &logs).len(), voters.len());
        comes.push(Comes::LostAtOnce { stay, call: called_for(halves, &logs) });
    }
    // Zones are not told: it is not known where a pod would be placed.
    let voters = wanted.into_iter().map(|server| (server, None)).collect();
    let then = Electorate { voters, wanted: Some(scaling.replicas) };
    if spread {
        return comes;
    }
    comes.extend(warnings(&then).into_iter().map(Comes::Found));
    comes
}

impl fmt::Display for Comes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str(
                "no admin server would be left; none is evicted: the voters keep their votes until they are back",
            ),
            Self::KeepsVote(server) => write!(
                f,
                "{server} keeps its vote, since several clusters share the domain: as long as it is away its vote is missing"
            ),
            Self::Evicted(server) => {
                write!(f, "{server} is evicted: it does not vote any more, and its engines move to other servers")
            }
            Self::Back(server) => write!(f, "{server} votes again once it has caught up, with the volume it has"),
            Self::Joins(server) => write!(f, "{server} joins with an empty log, and votes once it has caught up"),
            Self::LostAtOnce { stay: (stay, of), call } => {
                write!(f, "if those that leave were lost all at once before they are evicted, {stay} of {of} voters ")?;
                f.write_str(match call {
                    Call::Majority => "would be left, a majority, and would continue",
                    Call::Override => "would be left, half of them, and would continue in a new epoch by themselves, if all of these answer",
                    Call::Operator => {
                        "would be left, too few to know what was committed: an operator would have to bring some back, or to give \
                         up what only they have"
                    }
                })
            }
            Self::Found(finding) => write!(f, "then {finding}"),
        }
    }
}
