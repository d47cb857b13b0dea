//! What an agent knows of its own log and of the group, read from Raft's metrics at one moment.

use super::types::{LogId, Node, TypeConfig, bare_term};
use kaa_core::domain::ids::{DomainId, MembershipEpoch, RaftId, ServerId};
use kaa_core::domain::voters::Voters;
use kaa_core::membership::quorum_override::Position;
use kaa_core::membership::{LocalLog, Member, Membership};
use kaa_core::resync::ability::Ability;
use openraft::metrics::{RaftMetrics, SerdeInstant};
use openraft::{Instant as _, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A log that is this close to the leader's has caught up: what is left comes with the next few appends.
pub const CAUGHT_UP_ENTRIES: u64 = 100;

/// What a server does in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Is replicated to and does not vote.
    Learner,
    /// Votes.
    Follower,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
    /// Raft has stopped.
    Stopped,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Learner => "LEARNER",
            Self::Follower => "FOLLOWER",
            Self::Candidate => "CANDIDATE",
            Self::Leader => "LEADER",
            Self::Stopped => "",
        })
    }
}

/// How far a server has come since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// Knows no leader, or is behind of what is committed.
    CatchingUp,
    /// Has applied (nearly) everything that is committed.
    Active,
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CatchingUp => "CATCHING_UP",
            Self::Active => "ACTIVE",
        })
    }
}

/// What an agent knows of its own log and of the group.
#[derive(Clone, Debug)]
pub struct Status {
    /// The agent.
    pub server: ServerId,
    /// `host:port` of its agent-to-agent port.
    pub address: String,
    /// The domain.
    pub domain: DomainId,
    /// The membership epoch.
    pub epoch: MembershipEpoch,
    /// Its log.
    pub raft_id: RaftId,
    /// What it does in the group.
    pub role: Role,
    /// How far it has come.
    pub lifecycle: Lifecycle,
    /// Who leads, as far as it knows.
    pub leader: Option<ServerId>,
    /// The term, without the epoch.
    pub term: u64,
    /// The term of its last entry, without the epoch.
    pub last_log_term: u64,
    /// The index of its last entry.
    pub last_log_index: u64,
    /// Its last entry, as logs are compared.
    pub position: Position,
    /// How far the group has committed, as far as it knows.
    pub commit_index: u64,
    /// How far it has applied.
    pub applied_index: u64,
    /// Those that vote, by the last membership in its log: in a change under way, of both halves.
    pub voters: BTreeMap<RaftId, Node>,
    /// Those that are replicated to and do not vote.
    pub learners: BTreeMap<RaftId, Node>,
    /// Whether there was a quorum (leader) or a leader (others) within the election timeout.
    pub quorum: bool,
}

pub(super) type Metrics = RaftMetrics<TypeConfig>;

/// What is not in the metrics.
pub(super) struct Surroundings<'a> {
    pub(super) server: &'a ServerId,
    pub(super) address: &'a str,
    pub(super) local: &'a LocalLog,
    pub(super) last_log: Option<LogId>,
    pub(super) applied: u64,
    /// How long ago the leader was heard of.
    pub(super) heard: Option<Duration>,
    pub(super) election_timeout: Duration,
}

impl Status {
    /// Where the leader can be reached, if one is known.
    pub fn leader_address(&self) -> Option<String> {
        let leader = self.leader.as_ref()?;
        let node = self.voters.values().find(|node| node.server == leader.as_str())?;
        Some(node.address.clone())
    }

    /// What this server is able to do, given whether there is room on its volume.
    pub fn ability(&self, room: bool) -> Ability {
        Ability {
            member: self.voters.contains_key(&self.raft_id) || self.learners.contains_key(&self.raft_id),
            quorum: self.quorum,
            room,
            behind: self.commit_index.saturating_sub(self.applied_index),
        }
    }

    pub(super) fn new(metrics: &Metrics, around: &Surroundings<'_>) -> Self {
        let membership = metrics.membership_config.membership();
        let node = |id: u64| (RaftId(id), membership.get_node(&id).cloned().unwrap_or_default());
        let commit_index = index(metrics.cluster_committed.max(metrics.local_committed));
        // A single voter asks no other server, so the time of its last answer says nothing.
        let alone = membership.voter_ids().eq([metrics.id]);
        let quorum = match metrics.state {
            ServerState::Leader if alone => true,
            ServerState::Leader => is_recent(metrics.last_quorum_acked.as_ref(), around.election_timeout),
            _ => metrics.current_leader.is_some() && around.heard.is_some_and(|ago| ago <= around.election_timeout),
        };
        let caught_up = around.applied + CAUGHT_UP_ENTRIES >= commit_index;
        let leader = metrics.current_leader.and_then(|id| membership.get_node(&id));
        Self {
            server: around.server.clone(),
            address: around.address.to_owned(),
            domain: around.local.domain.clone().unwrap_or_default(),
            epoch: around.local.epoch,
            raft_id: around.local.raft_id,
            role: role(metrics.state),
            lifecycle: if leader.is_some() && caught_up { Lifecycle::Active } else { Lifecycle::CatchingUp },
            leader: leader.map(|node| ServerId::from(node.server.as_str())),
            term: bare_term(metrics.current_term),
            last_log_term: around.last_log.map_or(0, |last| bare_term(last.committed_leader_id().term)),
            last_log_index: index(around.last_log),
            position: Position {
                term: around.last_log.map_or(0, |last| last.committed_leader_id().term),
                index: index(around.last_log),
            },
            commit_index,
            applied_index: around.applied,
            voters: membership.voter_ids().map(node).collect(),
            learners: membership.learner_ids().map(node).collect(),
            quorum,
        }
    }
}

fn role(state: ServerState) -> Role {
    match state {
        ServerState::Learner => Role::Learner,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Leader => Role::Leader,
        ServerState::Shutdown => Role::Stopped,
    }
}

fn index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index)
}

fn is_recent(acked: Option<&SerdeInstant<openraft::alias::InstantOf<TypeConfig>>>, within: Duration) -> bool {
    acked.is_some_and(|acked| acked.elapsed() <= within)
}

/// The membership as the leader sees it. By the metrics of any other server, no server has caught up.
/// One that was silent for longer than `recently` is not counted on.
pub(super) fn membership(metrics: &Metrics, recently: Duration) -> Membership {
    let membership = metrics.membership_config.membership();
    let last = metrics.last_log_index.unwrap_or(0);
    let caught_up = |id: &u64| {
        let Some(replication) = &metrics.replication else {
            return false;
        };
        let near = |matched: &LogId| matched.index + CAUGHT_UP_ENTRIES >= last;
        // One that is silent would be made a voter only to be missed by the next quorum.
        let heartbeats = metrics.heartbeat.as_ref().and_then(|heartbeats| heartbeats.get(id));
        let answers = is_recent(heartbeats.and_then(Option::as_ref), recently);
        *id == metrics.id || answers && replication.get(id).and_then(Option::as_ref).is_some_and(near)
    };
    let member = |(id, node): (&u64, &Node)| {
        (RaftId(*id), Member { server: node.server.as_str().into(), caught_up: caught_up(id) })
    };
    let halves = membership.get_joint_config().iter().map(|half| half.iter().copied().map(RaftId).collect());
    let committed = metrics.local_committed.max(metrics.cluster_committed);
    let own_term = committed.is_some_and(|last| last.committed_leader_id().term == metrics.current_term);
    Membership {
        leader: RaftId(metrics.id),
        halves: halves.collect(),
        members: membership.nodes().map(member).collect(),
        settled: own_term && committed >= *metrics.membership_config.log_id(),
    }
}

/// The other members that have not answered this leader within a time; also those that have not answered it at all, if it has led
/// for long enough to know.
pub(super) fn silent(metrics: &Metrics, within: Duration, long: bool) -> BTreeSet<ServerId> {
    let heartbeats = metrics.heartbeat.as_ref().filter(|_| metrics.state.is_leader());
    let Some(heartbeats) = heartbeats else { return BTreeSet::new() };
    let others = metrics.membership_config.membership().nodes().filter(|(id, _)| **id != metrics.id);
    let silent = others.filter(|(id, _)| match heartbeats.get(*id).and_then(Option::as_ref) {
        Some(acked) => !is_recent(Some(acked), within),
        None => long,
    });
    silent.map(|(_, node)| ServerId::from(node.server.as_str())).collect()
}

/// Who votes, if this server leads, no change is under way, and their membership is committed.
pub(super) fn voters(metrics: &Metrics, epoch: MembershipEpoch) -> Option<Voters> {
    // Who has caught up does not matter here.
    let Membership { halves, members, settled, .. } = membership(metrics, Duration::ZERO);
    let [half] = halves.as_slice() else { return None };
    let servers = half.iter().filter_map(|id| members.get(id)).map(|member| member.server.clone()).collect();
    let since = index(*metrics.membership_config.log_id());
    (settled && metrics.state.is_leader()).then_some(Voters { epoch, since, servers })
}
