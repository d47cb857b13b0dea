//! Several Kubernetes clusters of one domain: the entry point founds it, the others join. Each cluster has an anchor of its own; all but
//! the entry point's are copies.
//!
//! Only servers of the entry point continue without a majority, once the logs that they have sealed block every other one: the
//! override, at exactly half of the voters. No agent can prove that the servers of another cluster are gone. So while several
//! clusters share the domain, no operator can give up what they may hold (`kaa recover`). The anchor says that they do: a log may be
//! older than the vote of the first of them.

use super::{Anchor, Gate, LocalLog, Traces, Waiting, gate};
use crate::domain::ids::{DomainId, MembershipEpoch, RaftId, ServerId};
use crate::observed::objects::ordinal_of;
use std::collections::{BTreeMap, BTreeSet};

/// What an agent of the entry point says of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPoint {
    /// Its domain.
    pub domain: DomainId,
    /// The epoch of its log.
    pub epoch: MembershipEpoch,
}

impl EntryPoint {
    /// The anchor of another cluster that follows it. No log has the id 0, so no server founds an epoch because of it.
    fn copied(&self) -> Anchor {
        Anchor { domain: self.domain.clone(), epoch: self.epoch, founder: RaftId(0), lossy: false }
    }
}

/// What several agents of the entry point say: the latest epoch of their domain. Nothing, if they name several domains.
pub fn latest(said: impl IntoIterator<Item = EntryPoint>) -> Option<EntryPoint> {
    let said: Vec<EntryPoint> = said.into_iter().collect();
    let latest = said.iter().max_by_key(|said| said.epoch)?;
    said.iter().all(|said| said.domain == latest.domain).then(|| latest.clone())
}

/// Decides at the gate of an agent of another cluster than the entry point. `anchor` is that of its own cluster, as a fresh read
/// showed it; `entry` what the entry point's agents say, if one answers and has a domain.
pub fn gate_elsewhere(anchor: Option<&Anchor>, local: &LocalLog, traces: &Traces, entry: Option<&EntryPoint>) -> Gate {
    match anchor {
        Some(anchor) => match follows(anchor, entry) {
            Some(next) => Gate::FollowAnchor(next),
            None => gate(Some(anchor), local, traces),
        },
        None => match gate(None, local, &Traces { first: true, ..traces.clone() }) {
            Gate::CreateAnchor => match entry {
                Some(entry) => Gate::CopyAnchor(entry.copied()),
                None => Gate::Wait(Waiting::EntryPoint),
            },
            waits => waits,
        },
    }
}

/// The anchor that follows the entry point, if its domain has founded a later epoch than the cluster's anchor names.
pub fn follows(anchor: &Anchor, entry: Option<&EntryPoint>) -> Option<Anchor> {
    entry.filter(|entry| entry.domain == anchor.domain && entry.epoch > anchor.epoch).map(EntryPoint::copied)
}

/// A voter that is not a pod of this StatefulSet, so a server of another cluster. `holders` names whose each log is.
pub fn voter_elsewhere(
    halves: &[BTreeSet<RaftId>],
    holders: &BTreeMap<RaftId, ServerId>,
    stateful_set: &str,
) -> Option<ServerId> {
    let is_ours = |server: &&ServerId| ordinal_of(server.as_str(), stateful_set).is_some();
    halves.iter().flatten().filter_map(|log| holders.get(log)).find(|server| !is_ours(server)).cloned()
}

/// Whether a change of the voters gives the first server of another cluster a vote. The anchor of the entry point has to say before
/// that several clusters share the domain.
pub fn is_first_elsewhere(
    halves: &[BTreeSet<RaftId>],
    next: &BTreeSet<RaftId>,
    holders: &BTreeMap<RaftId, ServerId>,
    stateful_set: &str,
) -> bool {
    let votes = |halves: &[BTreeSet<RaftId>]| voter_elsewhere(halves, holders, stateful_set).is_some();
    votes(std::slice::from_ref(next)) && !votes(halves)
}

/// Why an agent of another cluster founds no epoch.
pub const ONLY_AT_THE_ENTRY_POINT: &str = "this cluster is not the domain's entry point, whose servers alone can continue without a \
                                           majority of the voters: bring voters back";

/// Why an operator cannot give up what other servers may hold, where the anchor says that several clusters share the domain.
pub const SHARED: &str = "several clusters share the domain by its anchor, and no agent can prove that the servers of another one are \
                          gone: bring voters back, or restore a snapshot into a new domain";

/// Why an operator cannot give up what other servers may hold: at an agent of the entry point or of another cluster, by what its anchor
/// says (`shared`) and by its log, which may be older. Nothing, if no other cluster is known of.
pub fn cannot_give_up(
    at_entry_point: bool,
    shared: bool,
    halves: &[BTreeSet<RaftId>],
    holders: &BTreeMap<RaftId, ServerId>,
    stateful_set: &str,
) -> Option<String> {
    if !at_entry_point {
        return Some(ONLY_AT_THE_ENTRY_POINT.to_owned());
    }
    let votes = voter_elsewhere(halves, holders, stateful_set).map(|server| {
        format!(
            "{server} of another cluster votes, and no agent here can prove that it is gone: bring voters back, or restore a \
             snapshot into a new domain"
        )
    });
    votes.or_else(|| shared.then(|| SHARED.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Refusal;

    fn anchor(domain: &str, epoch: u64) -> Anchor {
        Anchor { domain: domain.into(), epoch: MembershipEpoch(epoch), founder: RaftId(0), lossy: false }
    }

    fn log(domain: Option<&str>, epoch: u64) -> LocalLog {
        LocalLog { domain: domain.map(Into::into), epoch: MembershipEpoch(epoch), raft_id: RaftId(7), sealed: false }
    }

    fn entry(domain: &str, epoch: u64) -> EntryPoint {
        EntryPoint { domain: domain.into(), epoch: MembershipEpoch(epoch) }
    }

    #[test]
    fn another_cluster_founds_no_domain_and_joins_that_of_the_entry_point() {
        let nothing = Traces::default();
        let at = |anchor: Option<&Anchor>, local: &LocalLog, entry: Option<&EntryPoint>| {
            gate_elsewhere(anchor, local, &nothing, entry)
        };
        let empty = log(None, 0);
        assert_eq!(at(None, &empty, None), Gate::Wait(Waiting::EntryPoint));
        assert_eq!(at(None, &empty, Some(&entry("d", 3))), Gate::CopyAnchor(anchor("d", 3)));
        assert_eq!(
            at(Some(&anchor("d", 3)), &empty, None),
            Gate::Join(anchor("d", 3)),
            "the entry point is not needed"
        );
        assert_eq!(at(Some(&anchor("d", 3)), &log(Some("d"), 3), None), Gate::Start);
        assert_eq!(at(Some(&anchor("d", 3)), &log(Some("d"), 3), Some(&entry("d", 3))), Gate::Start);
    }

    #[test]
    fn its_anchor_follows_a_later_epoch_of_the_same_domain_only() {
        let at = |entry| gate_elsewhere(Some(&anchor("d", 3)), &log(Some("d"), 3), &Traces::default(), Some(&entry));
        assert_eq!(at(entry("d", 5)), Gate::FollowAnchor(anchor("d", 5)));
        assert_eq!(at(entry("d", 2)), Gate::Start, "an agent that is late says nothing");
        assert_eq!(at(entry("x", 5)), Gate::Start, "another domain's epochs are its own");
        let refused = gate_elsewhere(Some(&anchor("d", 3)), &log(Some("x"), 3), &Traces::default(), None);
        assert!(matches!(refused, Gate::Refuse(Refusal::AnotherDomain { .. })), "{refused:?}");
        assert_eq!(latest([entry("d", 2), entry("d", 4), entry("d", 3)]), Some(entry("d", 4)));
        assert_eq!(latest([entry("d", 2), entry("x", 4)]), None, "which one it is an operator has to find out");
    }

    #[test]
    fn a_domain_that_was_here_is_not_joined_again_without_its_anchor() {
        let entry = entry("d", 3);
        let at = |local: &LocalLog, traces: &Traces| gate_elsewhere(None, local, traces, Some(&entry));
        let kept = at(&log(Some("d"), 3), &Traces::default());
        assert_eq!(kept, Gate::Wait(Waiting::AnchorMissing("d".into(), MembershipEpoch(3))));
        let lease = Traces { lease: Some("kaa-west-resync".to_owned()), ..Traces::default() };
        assert!(matches!(at(&log(None, 0), &lease), Gate::Wait(Waiting::Lease(_))));
        let answered = Traces { answered: vec![("w-1".into(), "d".into())], ..Traces::default() };
        assert!(matches!(at(&log(None, 0), &answered), Gate::Wait(Waiting::Answered(..))));
    }

    #[test]
    fn a_voter_of_another_statefulset_is_of_another_cluster() {
        let holders: BTreeMap<RaftId, ServerId> = [(1, "kaa-0"), (2, "kaa-1"), (3, "kaa-west-0"), (4, "west-0")]
            .into_iter()
            .map(|(log, server)| (RaftId(log), server.into()))
            .collect();
        let votes = |halves: &[&[u64]]| {
            let halves: Vec<BTreeSet<RaftId>> =
                halves.iter().map(|half| half.iter().copied().map(RaftId).collect()).collect();
            voter_elsewhere(&halves, &holders, "kaa").map(|server| server.to_string())
        };
        assert_eq!(votes(&[&[1, 2]]), None);
        assert_eq!(votes(&[&[1, 3]]).as_deref(), Some("kaa-west-0"));
        assert_eq!(votes(&[&[1], &[1, 4]]).as_deref(), Some("west-0"), "in either half");
        let first = |halves: &[&[u64]], next: &[u64]| {
            let logs = |logs: &[u64]| logs.iter().copied().map(RaftId).collect::<BTreeSet<_>>();
            let halves: Vec<_> = halves.iter().map(|half| logs(half)).collect();
            is_first_elsewhere(&halves, &logs(next), &holders, "kaa")
        };
        let given_up = |at_entry_point, shared, half: &[u64]| {
            let halves = [half.iter().copied().map(RaftId).collect()];
            cannot_give_up(at_entry_point, shared, &halves, &holders, "kaa")
        };
        assert_eq!(given_up(true, false, &[1, 2]), None);
        assert_eq!(given_up(true, true, &[1, 2]).as_deref(), Some(SHARED), "a log that is older than the first vote");
        assert!(given_up(true, true, &[1, 3]).unwrap().starts_with("kaa-west-0 of another cluster votes"));
        assert_eq!(given_up(false, false, &[3]).as_deref(), Some(ONLY_AT_THE_ENTRY_POINT));
        assert!(first(&[&[1, 2]], &[1, 2, 3]));
        assert!(!first(&[&[1]], &[1, 2]) && !first(&[&[1, 3]], &[1, 3, 4]) && !first(&[&[1, 3]], &[1]));
    }
}
