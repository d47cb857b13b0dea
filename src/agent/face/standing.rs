//! What is said of the voters, from what this agent knows: its own log's last membership, what the others told it last,
//! and what the watches show.

use super::Shared;
use crate::config::ordinal_of;
use crate::http::source::{Awaits, MembershipReport};
use crate::metrics::group_waits;
use crate::raft::status::CAUGHT_UP_ENTRIES;
use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::domain::server::Server;
use kaa_core::membership::Membership;
use kaa_core::membership::standing::{Standing, Wanted, awaited};
use kaa_core::membership::warnings::{Electorate, warnings};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What an agent says whose Raft runs.
pub(super) fn report(shared: &Shared) -> MembershipReport {
    let status = shared.raft.status();
    let membership = shared.raft.membership();
    let servers: Vec<Server> = shared.raft.read(|domain| domain.servers.values().cloned().collect());
    let named = |logs: &BTreeMap<RaftId, crate::raft::Node>| {
        let mut names: Vec<ServerId> = logs.values().map(|node| node.server.as_str().into()).collect();
        names.sort();
        names
    };
    let mut waiting = of_the_group(shared);
    let judge =
        Judge { shared, membership: &membership, led: status.leader.is_some() && status.quorum, status: &status };
    let of_servers = servers.iter().filter_map(|server| {
        let awaited = awaited(&judge.standing(server))?;
        Some(Awaits { code: awaited.code(), server: Some(server.id.clone()), words: awaited.to_string() })
    });
    waiting.extend(of_servers);
    MembershipReport {
        epoch: status.epoch,
        voters: named(&status.voters),
        learners: named(&status.learners),
        warnings: warnings(&electorate(shared, &membership)),
        waiting,
    }
}

/// What this agent waits for, or what all of them wait for.
fn of_the_group(shared: &Shared) -> Vec<Awaits> {
    let all = [
        (group_waits::NOT_A_MEMBER, said(&shared.waits)),
        (group_waits::NO_LEADER, no_leader(shared)),
        (group_waits::ANCHOR, said(&shared.anchor_alarm)),
        (group_waits::EVICTION_HELD, said(&shared.eviction_held)),
        (group_waits::RESYNC_AWAY, resync_away(shared)),
    ];
    let awaits = |(code, words): (_, Option<String>)| Some(Awaits { code, server: None, words: words? });
    all.into_iter().filter_map(awaits).collect()
}

/// Why this agent does not stand for the lead of the resync.
pub(super) fn resync_away(shared: &Shared) -> Option<String> {
    let (away, left) = shared.candidacy.away()?;
    let left = left
        .filter(|left| !left.is_zero())
        .map(|left| format!("; it can be a candidate again in {} s", left.as_secs() + 1));
    Some(format!("this server is not a candidate for the resync lead: {away}{}", left.unwrap_or_default()))
}

/// What is kept in a place of `Shared`.
pub(super) fn said(place: &Mutex<Option<String>>) -> Option<String> {
    place.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Why there is no leader, as far as that was found out.
pub(super) fn no_leader(shared: &Shared) -> Option<String> {
    let known = said(&shared.stranded);
    let silent = || "no message of a leader with a quorum within the election timeout".to_owned();
    known.or_else(|| (!shared.raft.status().quorum).then(silent))
}

/// The voters of the last half, which are those that will be; the zones are their pods'.
fn electorate(shared: &Shared, membership: &Membership) -> Electorate {
    let observed = shared.observed.read().unwrap_or_else(PoisonError::into_inner);
    let pods = observed.pods.known().ok();
    let zone = |server: &ServerId| pods?.get(server.as_str())?.zone.clone();
    let voters = membership.halves.iter().next_back().into_iter().flatten();
    let servers = voters.filter_map(|log| membership.members.get(log)).map(|member| &member.server);
    let voters = servers.map(|server| (server.clone(), zone(server))).collect();
    drop(observed);
    let wanted = shared.admin_ordinals().filter(|_| !shared.is_spread());
    Electorate { voters, wanted: wanted.map(|ordinals| ordinals.end - ordinals.start) }
}

/// Judges servers by what is known now.
struct Judge<'a> {
    shared: &'a Shared,
    membership: &'a Membership,
    status: &'a crate::raft::Status,
    led: bool,
}

impl Judge<'_> {
    fn standing(&self, server: &Server) -> Standing {
        let Self { shared, membership, status, led } = *self;
        let ordinals = shared.admin_ordinals();
        let place = ordinal_of(&server.id, &shared.config.stateful_set).zip(ordinals);
        let scheduled = place
            .map(|(ordinal, wanted)| Wanted { replicas: wanted.end - wanted.start, this: wanted.contains(&ordinal) });
        let spread = shared.is_spread();
        let servers = || shared.raft.read(|domain| domain.servers.len() as u32);
        let wanted = if spread { Some(Wanted { replicas: servers(), this: true }) } else { scheduled };
        let local = server.id == shared.config.server;
        let heard = shared.peers.all().remove(&server.id);
        let answers = local || heard.as_ref().is_some_and(|heard| heard.connected);
        let (last, says) = match heard.and_then(|heard| heard.status) {
            _ if local => (Some(status.last_log_index), Some((status.epoch, status.raft_id))),
            Some(said) => {
                // Before its Raft runs an agent is of no epoch yet.
                let says = (said.epoch > 0).then_some((MembershipEpoch(said.epoch), RaftId(said.raft_id)));
                (Some(said.last_log_index), says)
            }
            None => (None, None),
        };
        let behind = last.map(|last| status.commit_index.saturating_sub(last));
        Standing {
            votes: membership.halves.iter().any(|half| half.contains(&server.raft_id)),
            wanted,
            unscheduled: spread && scheduled.is_some_and(|scheduled| !scheduled.this),
            answers,
            behind: behind.filter(|behind| *behind > CAUGHT_UP_ENTRIES),
            led,
            epoch: status.epoch,
            says,
            known: server.raft_id,
        }
    }
}
