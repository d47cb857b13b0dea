//! What is waited for concerning one server: why it does not vote, or not yet, or not any more. For people; the leader
//! decides by [`super::change`].

use crate::domain::ids::{MembershipEpoch, RaftId};
use std::fmt;

/// What one server knows of another, or of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it votes by the last membership; in a change under way, in either half.
    pub votes: bool,
    /// How many servers the StatefulSet wants, and whether it wants this one; `None` while that is not known.
    pub wanted: Option<Wanted>,
    /// Whether it answers.
    pub answers: bool,
    /// How many committed entries it lacks by what it said last, if these are more than a voter may lack.
    pub behind: Option<u64>,
    /// Whether there is a leader to change anything.
    pub led: bool,
    /// The epoch of whoever judges.
    pub epoch: MembershipEpoch,
    /// The epoch and the log that it said are its own; `None` if it never answered.
    pub says: Option<(MembershipEpoch, RaftId)>,
    /// Its log as the domain has it.
    pub known: RaftId,
}

/// What the StatefulSet says of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many it wants.
    pub replicas: u32,
    /// Whether this one is among them.
    pub this: bool,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// It is of an earlier epoch.
    Behind {
        /// Its epoch.
        its: MembershipEpoch,
        /// The epoch that is.
        now: MembershipEpoch,
    },
    /// It holds another log than the domain knows: its volume was lost, or its log set aside.
    AnotherLog {
        /// The log that it says it holds.
        holds: RaftId,
        /// The log that the domain knows.
        known: RaftId,
    },
    /// It votes, and does not answer.
    VoterSilent,
    /// It votes, and is not wanted any more.
    Leaves {
        /// How many servers are wanted.
        replicas: u32,
        /// Whether there is a leader to vote it out.
        led: bool,
    },
    /// It votes, and no server at all is wanted.
    LastOnes,
    /// It does not vote, since it is not wanted.
    Evicted {
        /// How many servers are wanted.
        replicas: u32,
    },
    /// It is wanted, does not vote, and does not answer.
    LearnerSilent,
    /// It is wanted and does not vote: it has not caught up.
    NotCaughtUp {
        /// How many entries it lacks.
        behind: u64,
    },
    /// It is wanted, has caught up, and will vote.
    WillVote {
        /// Whether there is a leader to have it vote.
        led: bool,
    },
    /// It does not vote, and it is not known whether it is wanted.
    WantedUnknown,
}

/// Every word of [`Awaited::code`].
pub const CODES: [&str; 10] = [
    "behind_epoch",
    "another_log",
    "voter_silent",
    "voter_leaves",
    "last_voters",
    "evicted",
    "learner_silent",
    "not_caught_up",
    "will_vote",
    "wanted_unknown",
];

impl Awaited {
    /// The same as one word.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Behind { .. } => "behind_epoch",
            Self::AnotherLog { .. } => "another_log",
            Self::VoterSilent => "voter_silent",
            Self::Leaves { .. } => "voter_leaves",
            Self::LastOnes => "last_voters",
            Self::Evicted { .. } => "evicted",
            Self::LearnerSilent => "learner_silent",
            Self::NotCaughtUp { .. } => "not_caught_up",
            Self::WillVote { .. } => "will_vote",
            Self::WantedUnknown => "wanted_unknown",
        }
    }
}

/// What is waited for, the first thing that has to come about; `None` if the server is as it shall be.
pub fn awaited(standing: &Standing) -> Option<Awaited> {
    let Standing { votes, wanted, answers, behind, led, epoch, says, known } = *standing;
    // What a silent server said once may not be so any more.
    if let Some((its, holds)) = says.filter(|_| answers) {
        if its < epoch {
            return Some(Awaited::Behind { its, now: epoch });
        }
        if its == epoch && holds != known {
            return Some(Awaited::AnotherLog { holds, known });
        }
    }
    match (votes, wanted) {
        (true, Some(Wanted { replicas: 0, .. })) => Some(Awaited::LastOnes),
        (true, Some(Wanted { replicas, this: false })) => Some(Awaited::Leaves { replicas, led }),
        (true, _) => (!answers).then_some(Awaited::VoterSilent),
        (false, None) => Some(Awaited::WantedUnknown),
        (false, Some(Wanted { replicas, this: false })) => Some(Awaited::Evicted { replicas }),
        (false, Some(_)) if !answers => Some(Awaited::LearnerSilent),
        (false, Some(_)) => Some(match behind {
            Some(behind) => Awaited::NotCaughtUp { behind },
            None => Awaited::WillVote { led },
        }),
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = |n: u32| if n == 1 { "1 server".to_owned() } else { format!("{n} servers") };
        let leader = |led: bool| if led { "" } else { ", once there is a leader" };
        match *self {
            Self::Behind { its, now } => {
                write!(
                    f,
                    "its log is of epoch {its}, and epoch {now} was founded: it sets that log aside and joins anew"
                )
            }
            Self::AnotherLog { holds, known } => write!(
                f,
                "it holds log {holds}, and the domain knows {known} as its log: it joins with the one that it holds, the other \
                 one never votes again"
            ),
            Self::VoterSilent => f.write_str("it votes, and does not answer"),
            Self::Leaves { replicas, led } => write!(
                f,
                "it still votes, and is voted out{}: the StatefulSet wants {}",
                leader(led),
                servers(replicas)
            ),
            Self::LastOnes => f.write_str("the StatefulSet wants no server: those that vote keep their place"),
            Self::Evicted { replicas } => write!(
                f,
                "it does not vote, since the StatefulSet wants {}; scaled up again it comes back with the volume it has",
                servers(replicas)
            ),
            Self::LearnerSilent => f.write_str("it does not vote, since it does not answer"),
            Self::NotCaughtUp { behind } => {
                write!(f, "it does not vote before it has caught up: it lacks {behind} entries")
            }
            Self::WillVote { led } => write!(f, "it has caught up, and will vote{}", leader(led)),
            Self::WantedUnknown => {
                f.write_str("it does not vote, and it is not known whether the StatefulSet wants it")
            }
        }
    }
}
