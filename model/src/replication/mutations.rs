//! Removes one safeguard at a time: the rules, and which property is expected to fail.

use super::cases::{self, Case};
use super::rules::{CORRECTED, Rules};
use crate::check::{Change, breaks, holds, stalls};

/// A changed rule of this protocol.
pub type Mutation = Change<Case, Rules>;

/// Every mutation.
pub fn all() -> Vec<Mutation> {
    [of_grants(), of_the_sync_set(), of_servers(), of_volumes(), of_leases(), second_lines()]
        .into_iter()
        .flatten()
        .collect()
}

fn of_grants() -> Vec<Mutation> {
    vec![
        breaks("an archive outside the set is granted", cases::change, Rules { winner_in_set: false, ..CORRECTED }),
        breaks("a grant adds an archive", cases::change, Rules { part_at_grant: false, ..CORRECTED }),
        stalls(
            "a grant without its winner in the set",
            cases::can_continue,
            Rules { winner_stays: false, ..CORRECTED },
        ),
        breaks(
            "opens before its first record is flushed",
            cases::three,
            Rules { opens_after_first: false, ..CORRECTED },
        ),
    ]
}

fn of_the_sync_set() -> Vec<Mutation> {
    vec![
        breaks("one member's word is enough", cases::three, Rules { all_confirm: false, ..CORRECTED }),
        breaks("dropped at the primary before the record", cases::three, Rules { leave_first: false, ..CORRECTED }),
        breaks("a joining archive counts at once", cases::change, Rules { join_last: false, ..CORRECTED }),
        breaks("counts before it holds what is there", cases::change, Rules { point_passed: false, ..CORRECTED }),
        breaks("in force in a part of the engine only", cases::change, Rules { settled: false, ..CORRECTED }),
        breaks("a late word about another version", cases::late, Rules { version_checked: false, ..CORRECTED }),
        stalls("the primary's archive leaves", cases::can_continue, Rules { primary_stays: false, ..CORRECTED }),
        breaks("an older version is obeyed", cases::late, Rules { newer_only: false, ..CORRECTED }),
    ]
}

fn of_servers() -> Vec<Mutation> {
    vec![
        breaks("a crashed primary opens by itself", cases::three, Rules { starts_fenced: false, ..CORRECTED }),
        breaks("promoted twice in a generation", cases::late_pair, Rules { one_promotion: false, ..CORRECTED }),
    ]
}

fn of_volumes() -> Vec<Mutation> {
    let leads = Rules { overwritten_leads_not: false, overwritten_not_granted: false, ..CORRECTED };
    let inside = Rules { none_in_set_overwritten: false, ..CORRECTED };
    vec![
        breaks("overwritten inside the set", cases::copy, Rules { none_in_set_overwritten: false, ..leads }),
        breaks("may be overwritten, and joins", cases::join_copy, Rules { overwritten_joins_not: false, ..leads }),
        breaks("joins, and may be overwritten", cases::join_copy, Rules { joining_not_overwritten: false, ..leads }),
        breaks(
            "a late return ends a later permission",
            cases::permissions,
            Rules { permission_checked: false, ..leads },
        ),
        breaks("returned before the data is whole", cases::join_copy, Rules { returned_whole: false, ..leads }),
        breaks("a returned permission is used", cases::permissions, Rules { returned_unused: false, ..leads }),
        stalls("overwritten inside the set, not granted", cases::can_continue, inside),
        breaks("a wiped volume keeps its id", cases::wipe, Rules { new_id: false, ..CORRECTED }),
        breaks("a volume that was set back is started", cases::back, Rules { starts_known: false, ..CORRECTED }),
        breaks("(a limit) set back to its last run", cases::back, Rules { other_run: false, ..CORRECTED }),
    ]
}

fn of_leases() -> Vec<Mutation> {
    let case = cases::lease;
    let earlier = cases::lease_earlier;
    vec![
        breaks("clients stay when the lease is over", case, Rules { lease_ends: false, ..CORRECTED }),
        breaks("a winner does not wait", case, Rules { waits: false, ..CORRECTED }),
        breaks("a winner waits from its grant", case, Rules { waits_from_stop: false, ..CORRECTED }),
        breaks("a commit renews from its release", case, Rules { commit_from_begin: false, ..CORRECTED }),
        breaks("the domain's word renews from its arrival", case, Rules { word_from_question: false, ..CORRECTED }),
        breaks("the domain vouches for any generation", case, Rules { vouched_if_current: false, ..CORRECTED }),
        breaks(
            "opens again before all is flushed",
            cases::lease_closes,
            Rules { flushed_before_reopen: false, ..CORRECTED },
        ),
        breaks("an earlier lease is forgotten", earlier, Rules { earlier_kept: false, ..CORRECTED }),
        breaks("the end of one of two earlier primaries", earlier, Rules { several_noted: false, ..CORRECTED }),
    ]
}

fn second_lines() -> Vec<Mutation> {
    let leads = Rules { overwritten_leads_not: false, overwritten_not_granted: false, ..CORRECTED };
    let alone = Rules { kept_at_grant: false, opens_after_first: false, ..CORRECTED };
    vec![
        holds("an older primary is followed", cases::late, Rules { older_refused: false, ..CORRECTED }),
        holds("whom it followed is forgotten", cases::late_pair, Rules { followed_durable: false, ..CORRECTED }),
        holds("granted while it is overwritten", cases::copy, leads),
        holds("entries from a standby", cases::writes, Rules { no_cascade: false, ..CORRECTED }),
        holds("the new set is the winner alone, open at once", cases::three, alone),
        holds("a commit of a changing rule renews", cases::lease_change, Rules { same_rule: false, ..CORRECTED }),
        holds("no lease begins with the first member", cases::lease_change, Rules { lease_begins: false, ..CORRECTED }),
    ]
}
