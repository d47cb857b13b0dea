//! Continuing with the logs that are left where others may hold more: only by an operator's command (rule 8 of
//! docs/membership.md).
//!
//! The wanted servers seal their logs, and the one that goes furthest swaps the anchor. It founds only once no server can
//! commit in the old epoch any more. Only Kubernetes can prove that: every pod that ran a member of the old epoch at the swap
//! is gone, or its agent has moved on.

use super::logs;
use super::quorum_override::{Call, Position, called_for};
use crate::domain::ids::{MembershipEpoch, RaftId, ServerId, Uid};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What an agent of the same domain and epoch answered of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its server's ordinal.
    pub ordinal: u32,
    /// Whether the StatefulSet wants its server, by a fresh read.
    pub wanted: bool,
    /// The log.
    pub log: RaftId,
    /// How far it goes; nothing in it if that is zero.
    pub last: Position,
    /// Whether it is sealed.
    pub sealed: bool,
    /// Whether it hears of a leader that has a quorum.
    pub quorum: bool,
}

/// All that is known when an operator asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The voter sets of the last membership in the log of the server that judges.
    pub halves: Vec<BTreeSet<RaftId>>,
    /// Whose the logs of that membership are.
    pub holders: BTreeMap<RaftId, ServerId>,
    /// Who answered, one's own server included.
    pub answers: BTreeMap<ServerId, Answer>,
    /// The servers that the StatefulSet wants, by a fresh read.
    pub wanted: BTreeSet<ServerId>,
}

/// What an operator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing has to be given up.
    Needless(Needless),
    /// No server that is wanted answers with a log that anything is in.
    NoLog,
    /// This would be done.
    Possible(Loss),
}

/// Why nothing has to be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needless {
    /// This server hears of a leader with a quorum.
    Leader(ServerId),
    /// A majority of the voters answers.
    Majority,
    /// Enough of the voters are left to continue by themselves, and lose nothing.
    Override,
}

/// Which server would found the next epoch, and what would be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The server whose log founds the epoch.
    pub founder: ServerId,
    /// How far that goes.
    pub last: Position,
    /// The servers of the voters that do not answer with their logs: what only these hold is lost.
    pub outside: BTreeSet<ServerId>,
    /// How many of their logs no server is known to hold.
    pub unknown: usize,
    /// Whether they can hold nothing more that is committed.
    pub nothing: bool,
}

/// The founder: of the servers that are wanted the one whose log goes furthest, the first by ordinal if several do.
pub fn founder(answers: &BTreeMap<ServerId, Answer>) -> Option<&ServerId> {
    let with_a_log = answers.iter().filter(|(_, answer)| answer.wanted && answer.last != Position::default());
    with_a_log.max_by_key(|(_, answer)| (answer.last, Reverse(answer.ordinal))).map(|(server, _)| server)
}

/// Judges what an operator asks for.
pub fn judge(survey: &Survey) -> Judgement {
    let Survey { halves, answers, .. } = survey;
    if let Some((server, _)) = answers.iter().find(|(_, answer)| answer.quorum) {
        return Judgement::Needless(Needless::Leader(server.clone()));
    }
    let answered: BTreeSet<RaftId> = answers.values().map(|answer| answer.log).collect();
    if logs::commit(halves, &answered) {
        return Judgement::Needless(Needless::Majority);
    }
    if continues_by_itself(survey) {
        return Judgement::Needless(Needless::Override);
    }
    match founder(answers).and_then(|founder| loss(founder, survey)) {
        Some(loss) => Judgement::Possible(loss),
        None => Judgement::NoLog,
    }
}

/// Whether an override is called for, or has begun, and those that answer suffice for it.
fn continues_by_itself(survey: &Survey) -> bool {
    let Survey { halves, holders, answers, wanted } = survey;
    let ready: BTreeSet<RaftId> = answers.values().filter(|answer| answer.wanted).map(|answer| answer.log).collect();
    let silent = holders.iter().filter(|(_, server)| wanted.contains(*server) && !answers.contains_key(*server));
    let hoped: BTreeSet<RaftId> = silent.map(|(log, _)| *log).chain(ready.iter().copied()).collect();
    let begun = answers.values().any(|answer| answer.wanted && answer.sealed);
    (begun || called_for(halves, &hoped) == Call::Override) && logs::block(halves, &ready)
}

/// What is given up if this server founds the next epoch with its log.
pub fn loss(founder: &ServerId, survey: &Survey) -> Option<Loss> {
    let Survey { halves, holders, answers, .. } = survey;
    let last = answers.get(founder)?.last;
    let kept: BTreeSet<RaftId> =
        answers.values().filter(|answer| answer.last <= last).map(|answer| answer.log).collect();
    let voters: BTreeSet<RaftId> = halves.iter().flatten().copied().collect();
    let outside: BTreeSet<RaftId> = &voters - &kept;
    Some(Loss {
        founder: founder.clone(),
        last,
        outside: outside.iter().filter_map(|log| holders.get(log)).cloned().collect(),
        unknown: outside.iter().filter(|log| !holders.contains_key(log)).count(),
        nothing: logs::block(halves, &kept),
    })
}

impl fmt::Display for Needless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader(server) => write!(f, "{server} is in contact with a leader: nothing has to be given up"),
            Self::Majority => {
                f.write_str("a majority of the voters answers and will elect a leader: nothing has to be given up")
            }
            Self::Override => {
                f.write_str("the voters that answer will continue by themselves within seconds, and lose nothing")
            }
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nothing {
            return f.write_str("nothing that was committed");
        }
        let outside = self.outside.iter().map(ServerId::as_str).collect::<Vec<_>>().join(", ");
        match (outside.as_str(), self.unknown) {
            ("", unknown) => {
                write!(f, "entries after {} that only {unknown} logs of unknown servers may hold", self.last.index)
            }
            (servers, 0) => write!(f, "entries after {} that only {servers} may hold", self.last.index),
            (servers, unknown) => write!(
                f,
                "entries after {} that only {servers}, and {unknown} logs of unknown servers, may hold",
                self.last.index
            ),
        }
    }
}

/// What a look at a server after the swap showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The UID of its pod, by a fresh read; `None` if there is none; or why that is not known.
    pub pod: Result<Option<Uid>, String>,
    /// The epoch that its agent answers with, of this domain.
    pub epoch: Option<MembershipEpoch>,
}

/// Why the founder waits for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InTheWay {
    /// The pod that it had at the swap is still there, and its agent does not answer with the new epoch.
    Pod(Uid),
    /// It is not known whether it is.
    Unknown(String),
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(uid) => write!(f, "its pod (uid {uid}) is still there"),
            Self::Unknown(why) => write!(f, "it is not known whether its pod is gone: {why}"),
        }
    }
}

/// The pods of the old epoch that may still run: what the founder waits for between the swap and the founding. Started again
/// it waits for no less, since what has come since then has seen the new anchor, and says so.
#[derive(Clone, Debug, Default)]
pub struct Old {
    /// What the first read after the swap showed of each server.
    first: BTreeMap<ServerId, Option<Uid>>,
}

impl Old {
    /// Judges looks at servers, all of them taken after the swap to this epoch; names those that are in the way.
    pub fn in_the_way(
        &mut self,
        looks: BTreeMap<ServerId, Look>,
        epoch: MembershipEpoch,
    ) -> BTreeMap<ServerId, InTheWay> {
        let judged = looks.into_iter().filter_map(|(server, look)| {
            if look.epoch.is_some_and(|answered| answered >= epoch) {
                return None;
            }
            let now = match look.pod {
                Ok(now) => now,
                Err(why) => return Some((server, InTheWay::Unknown(why))),
            };
            let first = self.first.entry(server.clone()).or_insert_with(|| now.clone());
            // One that came after the swap has passed the gate behind it.
            let old = now.filter(|now| first.as_ref() == Some(now))?;
            Some((server, InTheWay::Pod(old)))
        });
        judged.collect()
    }
}
