//! What is waited for, as one word each: for metrics, the API and docs/reference.md.

use kaa_core::resync::plan::WaitingReason;

/// What an agent waits for that is not about one server, as one word each.
pub mod group_waits {
    /// Raft does not run: the gate is not passed.
    pub const RAFT_NOT_STARTED: &str = "raft_not_started";
    /// No leader replicates to this server.
    pub const NOT_A_MEMBER: &str = "not_a_member";
    /// There is no leader.
    pub const NO_LEADER: &str = "no_leader";
    /// The anchor is gone, or says what it should not.
    pub const ANCHOR: &str = "anchor";
    /// A server keeps its vote until it is read that it is not wanted.
    pub const EVICTION_HELD: &str = "eviction_held";
    /// This agent does not stand for the lead of the resync.
    pub const RESYNC_AWAY: &str = "resync_away";
    /// All of them.
    pub const CODES: [&str; 6] = [RAFT_NOT_STARTED, NOT_A_MEMBER, NO_LEADER, ANCHOR, EVICTION_HELD, RESYNC_AWAY];
}

/// Every answer of [`reason`].
pub(super) const REASONS: [&str; 25] = [
    "start_held",
    "ordered_ready",
    "kind_unknown",
    "session_live",
    "session_lost",
    "container_unknown",
    "claim_replaced",
    "claims_vanished",
    "archive_in_use",
    "stateful_set_missing",
    "stateful_set_replaced",
    "last_archive",
    "may_be_newest",
    "unbound",
    "purge_delayed",
    "purge_held",
    "workload_paused",
    "paused",
    "database_wanted",
    "database_in_use",
    "database_deletion_off",
    "other_cluster",
    "ambiguous_domain",
    "restored_elsewhere",
    "not_proven",
];

/// A reason to wait as one word.
pub fn reason(reason: &WaitingReason) -> &'static str {
    match reason {
        WaitingReason::StartHeld(_) => "start_held",
        WaitingReason::OrderedReady { .. } => "ordered_ready",
        WaitingReason::KindUnknown { .. } => "kind_unknown",
        WaitingReason::SessionLive => "session_live",
        WaitingReason::SessionLost => "session_lost",
        WaitingReason::ContainerUnknown => "container_unknown",
        WaitingReason::ClaimReplaced { .. } => "claim_replaced",
        WaitingReason::ClaimsVanished { .. } => "claims_vanished",
        WaitingReason::ArchiveInUse(_) => "archive_in_use",
        WaitingReason::StatefulSetMissing(_) => "stateful_set_missing",
        WaitingReason::StatefulSetReplaced(_) => "stateful_set_replaced",
        WaitingReason::LastArchive => "last_archive",
        WaitingReason::MayBeNewest => "may_be_newest",
        WaitingReason::StillVotes => "still_votes",
        WaitingReason::Unbound => "unbound",
        WaitingReason::PurgeDelayed { .. } => "purge_delayed",
        WaitingReason::PurgeHeld { .. } => "purge_held",
        WaitingReason::WorkloadPaused { .. } => "workload_paused",
        WaitingReason::Paused { .. } => "paused",
        WaitingReason::DatabaseWanted { .. } => "database_wanted",
        WaitingReason::DatabaseInUse(_) => "database_in_use",
        WaitingReason::DatabaseDeletionOff => "database_deletion_off",
        WaitingReason::OtherCluster(_) => "other_cluster",
        WaitingReason::AmbiguousDomain(_) => "ambiguous_domain",
        WaitingReason::RestoredElsewhere => "restored_elsewhere",
        WaitingReason::Unread { .. } | WaitingReason::NotConfirmed { .. } => "not_proven",
    }
}

#[cfg(test)]
mod tests {
    use super::{REASONS, group_waits};
    use kaa_core::membership::standing;

    /// The rows of the tables of docs/reference.md that name what is waited for: the words, and what ends it.
    fn documented() -> Vec<(String, String)> {
        let text = include_str!("../../docs/reference.md");
        let from = text.find("## Waiting reasons").unwrap();
        let until = text.find("## REST API").unwrap();
        let rows = text[from..until].lines().filter(|line| line.starts_with("| `"));
        let cells = rows.map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<_>>());
        cells.map(|cells| (cells[0].clone(), cells.get(2).cloned().unwrap_or_default())).collect()
    }

    #[test]
    fn every_reason_to_wait_has_a_way_out_in_the_reference() {
        let rows = documented();
        for reason in REASONS.into_iter().chain(group_waits::CODES).chain(standing::CODES) {
            let of_it: Vec<_> = rows.iter().filter(|(words, _)| words.contains(&format!("`{reason}`"))).collect();
            let [(_, ends)] = of_it.as_slice() else { panic!("{reason} has {} rows", of_it.len()) };
            let command = ["`kubectl ", "`kaa ", "`--"].iter().any(|begin| ends.contains(begin));
            // Nobody can end these, and each says why it need not be.
            let by_itself =
                ["ends by itself", "by itself", "none while", "see `no_leader`"].iter().any(|it| ends.contains(it));
            assert!(command || by_itself, "{reason}: no command ends it: {ends}");
        }
        let commands =
            ["kaa archive remove", "kaa archive purge", "kaa process evict", "kaa adopt", "kaa resume", "kaa recover"];
        for command in commands {
            assert!(rows.iter().any(|(_, ends)| ends.contains(command)), "nothing is ended by {command}");
        }
    }
}
