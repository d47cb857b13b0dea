//! Continuing without a majority, where that is safe: exactly half of an even number of voters is left, or what is left of
//! a change under way blocks each half (rule 7 of docs/membership.md).
//!
//! Each participant seals its log first: from then on it appends nothing and grants no vote. A set of sealed logs that
//! blocks each half of the last membership in the best of them holds everything that is committed, and no server outside can
//! commit or be elected any more. Which processes run, and where, does not matter.

use super::logs::{self, Logs};
use crate::domain::ids::{RaftId, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How far a log goes: Raft's "at least as up to date" compares the term first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The term of its last entry, with the epoch in its high bits.
    pub term: u64,
    /// The index of its last entry.
    pub index: u64,
}

/// What the wanted servers can do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// They hold a majority of each half: they wait until enough of them answer.
    Majority,
    /// They hold none, but no others can commit without them: they may continue in a new epoch.
    Override,
    /// Others may have committed, or may yet commit, without them: nothing is done without an operator.
    Operator,
}

/// Judges the logs of today of the wanted servers against the last membership in one's own log.
pub fn called_for<L: Logs>(halves: &[L], wanted: &L) -> Call {
    if logs::commit(halves, wanted) {
        Call::Majority
    } else if logs::block(halves, wanted) {
        Call::Override
    } else {
        Call::Operator
    }
}

/// A log whose server appends nothing to it any more, in this epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed<L> {
    /// The log, alone.
    pub id: L,
    /// How far it goes.
    pub last: Position,
    /// The voter sets of its last membership.
    pub halves: Vec<L>,
    /// Whether the StatefulSet wants its server, by a fresh read.
    pub wanted: bool,
}

/// What a sealed server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Swap the anchor to the next epoch, with itself as the founder.
    Found,
    /// Another one that is wanted has a better log, and founds.
    Yield,
    /// It is not wanted itself.
    Unwanted,
    /// The sealed logs do not block each half yet: more have to seal.
    TooFew,
}

/// Decides what a sealed server does once others of its domain and epoch have answered that they are sealed.
///
/// A better log of a server that is not wanted does not count at all, neither for what is known nor for what is blocked:
/// if the others block without it, it holds nothing more that is committed.
pub fn may_found<L: Logs>(me: &Sealed<L>, others: &[Sealed<L>]) -> Verdict {
    if !me.wanted {
        return Verdict::Unwanted;
    }
    if others.iter().any(|other| other.wanted && other.last > me.last) {
        return Verdict::Yield;
    }
    let taken = others.iter().filter(|other| other.last <= me.last);
    let sealed = taken.fold(me.id.clone(), |sealed, other| sealed.union(&other.id));
    if logs::block(&me.halves, &sealed) { Verdict::Found } else { Verdict::TooFew }
}

/// What an agent that hears no leader knows of the voters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stranded {
    /// The voter sets of the last membership in its log.
    pub halves: Vec<BTreeSet<RaftId>>,
    /// Each server's log as the domain has it.
    pub known: BTreeMap<ServerId, RaftId>,
    /// The log that each server says it holds now, its own included; of this domain and epoch only.
    pub answered: BTreeMap<ServerId, RaftId>,
    /// The servers that the StatefulSet wants, by a fresh read.
    pub wanted: BTreeSet<ServerId>,
}

/// What an agent does that hears no leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Its own log is empty, so it knows of no voters: it came to an epoch whose founder, or leader, is not heard of.
    Empty,
    /// The wanted servers are a majority: these of them do not answer, and Kubernetes brings them back.
    Wait {
        /// The wanted voters that do not answer.
        silent: BTreeSet<ServerId>,
    },
    /// An override is called for, and enough answer.
    Seal,
    /// An override is called for, but too few answer to be worth the seal.
    WaitToSeal {
        /// The wanted voters that do not answer.
        silent: BTreeSet<ServerId>,
    },
    /// Nothing automatic: those that are wanted are too few to know what was committed.
    Operator {
        /// The voters whose servers are not wanted; the return of some of them would help.
        unwanted: BTreeSet<ServerId>,
        /// The voters that no server holds any more: their volumes were lost.
        lost: BTreeSet<RaftId>,
    },
}

/// Judges the state of an agent that hears no leader. A server that does not answer is taken to hold the log that the
/// domain knows; one that answers with another has lost that one for good.
pub fn outlook(stranded: &Stranded) -> Outlook {
    let Stranded { halves, known, answered, wanted } = stranded;
    if halves.iter().all(BTreeSet::is_empty) {
        return Outlook::Empty;
    }
    let of_today: BTreeMap<&ServerId, RaftId> =
        known.iter().chain(answered.iter()).map(|(server, log)| (server, *log)).collect();
    let held = |server: &ServerId| of_today.get(server).copied();
    let votes = |id: &RaftId| halves.iter().any(|half| half.contains(id));
    let silent = || {
        let silent = wanted.iter().filter(|server| !answered.contains_key(*server));
        silent.filter(|server| held(server).is_some_and(|log| votes(&log))).cloned().collect()
    };
    match called_for(halves, &wanted.iter().filter_map(held).collect()) {
        Call::Majority => Outlook::Wait { silent: silent() },
        Call::Override => {
            let ready = answered.iter().filter(|(server, _)| wanted.contains(*server));
            let ready: BTreeSet<RaftId> = ready.map(|(_, log)| *log).collect();
            if logs::block(halves, &ready) { Outlook::Seal } else { Outlook::WaitToSeal { silent: silent() } }
        }
        Call::Operator => {
            let voters: BTreeSet<RaftId> = halves.iter().flatten().copied().collect();
            let holders = of_today.iter().filter(|(server, log)| !wanted.contains(**server) && voters.contains(log));
            let unwanted = holders.map(|(server, _)| (*server).clone()).collect();
            let all: BTreeSet<RaftId> = of_today.values().copied().collect();
            Outlook::Operator { unwanted, lost: &voters - &all }
        }
    }
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |servers: &BTreeSet<ServerId>| servers.iter().map(ServerId::as_str).collect::<Vec<_>>().join(", ");
        match self {
            Self::Empty => f.write_str(
                "this server's log is empty, and waits for a leader of its epoch to replicate to it; if the log that founds \
                 that epoch is lost for good, kaa recover --dry-run lists the logs of earlier epochs that can be founded from",
            ),
            Self::Wait { silent } if silent.is_empty() => f.write_str("a majority of the voters answers and will elect a leader"),
            Self::Wait { silent } => write!(f, "there is no leader until more of the voters answer: {}", list(silent)),
            Self::Seal => f.write_str("half of the voters are left and continue in a new epoch"),
            Self::WaitToSeal { silent } => {
                write!(f, "half of the voters are wanted and could continue if these answered: {}", list(silent))
            }
            Self::Operator { unwanted, lost } => {
                f.write_str("too few of the voters are wanted to know what was committed: ")?;
                if !unwanted.is_empty() {
                    write!(f, "scale the StatefulSet up so that {} come back, or ", list(unwanted))?;
                }
                f.write_str("give up what only the others have with kaa recover --accept-data-loss")?;
                let volumes = if lost.len() == 1 { "volume is" } else { "volumes are" };
                if lost.is_empty() { Ok(()) } else { write!(f, " ({} {volumes} lost)", lost.len()) }
            }
        }
    }
}
