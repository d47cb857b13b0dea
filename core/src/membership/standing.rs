//! What one server waits for: why it does not vote, or not yet, or not any more. For operators to read; the leader decides by
//! [`super::change`].

use crate::domain::ids::{MembershipEpoch, RaftId};
use crate::wait::Wait;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What one server knows of another, or of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it votes by the last membership; in a change under way, in either half.
    pub votes: bool,
    /// How many servers the StatefulSet wants, and whether it wants this one; `None` while that is not known. Where several
    /// clusters share the domain all servers are wanted.
    pub wanted: Option<Wanted>,
    /// Whether several clusters share the domain, and its StatefulSet does not want it.
    pub unscheduled: bool,
    /// Whether it answers.
    pub answers: bool,
    /// How many committed entries it lacks by what it said last, if these are more than a voter may lack.
    pub behind: Option<u64>,
    /// Whether there is a leader to change anything.
    pub led: bool,
    /// The epoch of the server that judges.
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

/// The reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Awaited {
    /// It is of an earlier epoch.
    #[strum(serialize = "behind_epoch")]
    Behind {
        /// Its epoch.
        its: MembershipEpoch,
        /// The epoch that is.
        now: MembershipEpoch,
    },
    /// It holds another log than the domain knows: its volume was lost, or its log retired.
    AnotherLog {
        /// The log that it says it holds.
        holds: RaftId,
        /// The log that the domain knows.
        known: RaftId,
    },
    /// It votes, and does not answer.
    VoterSilent,
    /// It votes, and is not wanted any more.
    #[strum(serialize = "voter_leaves")]
    Leaves {
        /// How many servers are wanted.
        replicas: u32,
        /// Whether there is a leader to vote it out.
        led: bool,
    },
    /// Its StatefulSet does not want it, and it keeps its vote: several clusters share the domain.
    KeepsVote,
    /// It votes, and no server at all is wanted.
    #[strum(serialize = "scaled_to_zero")]
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

/// Every reason to wait, in the order of the variants.
pub const WAITS: [Wait; 11] = [
    Wait {
        code: "behind_epoch",
        means: "its log is of an earlier epoch: it retires that log and joins with a new one",
        ends: "ends by itself",
    },
    Wait { code: "another_log", means: "it joins with the log that it holds now", ends: "ends by itself" },
    Wait {
        code: "voter_silent",
        means: "a voter does not answer",
        ends: "look at its pod and node; `kubectl delete pod NAME`",
    },
    Wait {
        code: "voter_leaves",
        means: "it is being evicted",
        ends: "ends by itself once there is a leader; see `no_leader`",
    },
    Wait {
        code: "keeps_vote",
        means: "its StatefulSet does not want it, but no scale-down removes a vote while several clusters share the domain",
        ends: "`kubectl scale` brings it back; for good: delete its claim, then `nuocmd delete server --server-id NAME` at an agent of its cluster",
    },
    Wait {
        code: "scaled_to_zero",
        means: "the StatefulSet is scaled to 0",
        ends: "`kubectl scale statefulset NAME --replicas=N`",
    },
    Wait {
        code: "evicted",
        means: "the StatefulSet wants fewer servers",
        ends: "nothing has to be done; `kubectl scale` brings it back",
    },
    Wait {
        code: "learner_silent",
        means: "a server that is wanted does not answer",
        ends: "look at its pod and node; `kubectl delete pod NAME`",
    },
    Wait { code: "not_caught_up", means: "it catches up, and votes then", ends: "ends by itself" },
    Wait {
        code: "will_vote",
        means: "it has caught up, and votes next",
        ends: "ends by itself once there is a leader; see `no_leader`",
    },
    Wait {
        code: "wanted_unknown",
        means: "the StatefulSet cannot be seen: a permission is missing, or a first list is under way",
        ends: "`kubectl apply -k manifests/base`",
    },
];

impl Awaited {
    /// The same as one word.
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// The first reason to wait that applies; `None` if the server is as it should be.
pub fn awaited(standing: &Standing) -> Option<Awaited> {
    let Standing { votes, wanted, unscheduled, answers, behind, led, epoch, says, known } = *standing;
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
        (true, _) if unscheduled => Some(Awaited::KeepsVote),
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
                    "its log is of epoch {its}, and epoch {now} was founded: it retires that log and joins with an empty one"
                )
            }
            Self::AnotherLog { holds, known } => write!(
                f,
                "it holds log {holds}, but the domain knows log {known}: it joins with the log that it holds, and the other \
                 one never votes again"
            ),
            Self::VoterSilent => f.write_str("it votes, but does not answer"),
            Self::Leaves { replicas, led } => write!(
                f,
                "it still votes, and will be evicted{}: the StatefulSet wants {}",
                leader(led),
                servers(replicas)
            ),
            Self::KeepsVote => f.write_str(
                "its StatefulSet does not want it, and it keeps its vote: no scale-down removes one while several clusters share \
                 the domain",
            ),
            Self::LastOnes => f.write_str("the StatefulSet wants no server: the voters keep their votes"),
            Self::Evicted { replicas } => write!(
                f,
                "it does not vote, since the StatefulSet wants {}; after a scale-up it votes again with its volume",
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

#[cfg(test)]
mod tests {
    use super::{Awaited, WAITS};
    use strum::VariantNames;

    #[test]
    fn every_reason_has_its_row() {
        assert_eq!(WAITS.map(|wait| wait.code).as_slice(), Awaited::VARIANTS);
    }
}
