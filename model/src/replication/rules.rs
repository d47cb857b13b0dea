//! The safeguards of the protocol, each of which can be taken out.

/// The safeguards. With the values of [`CORRECTED`], kaa-core makes every decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Only an archive of the sync set is granted.
    pub winner_in_set: bool,
    /// The sync set of a new generation is a part of the one before.
    pub part_at_grant: bool,
    /// The sync set of a new generation contains the winner.
    pub winner_stays: bool,
    /// The archive of the primary does not leave.
    pub primary_stays: bool,
    /// Other archives than the winner's may stay in the sync set at a grant.
    pub kept_at_grant: bool,
    /// All members of a rule confirm; off: one of them is enough.
    pub all_confirm: bool,
    /// An archive leaves the record before the primary stops to wait for it.
    pub leave_first: bool,
    /// A joining archive counts only after the primary waits for it.
    pub join_last: bool,
    /// The word that a rule is in force means that its members hold all that was released before.
    pub point_passed: bool,
    /// And that no part of the engine releases a commit by the rule before.
    pub settled: bool,
    /// And it names the version that the record has.
    pub version_checked: bool,
    /// A primary obeys no older version than it has.
    pub newer_only: bool,
    /// Clients are let in only when the first record of the generation is flushed by all that the rule requires.
    pub opens_after_first: bool,
    /// Every start is a start as a standby that follows no server.
    pub starts_fenced: bool,
    /// A server is promoted once in a generation, whatever happens in between.
    pub one_promotion: bool,
    /// No archive of the sync set is overwritten.
    pub none_in_set_overwritten: bool,
    /// An archive that may be overwritten does not join.
    pub overwritten_joins_not: bool,
    /// A joining archive is not overwritten.
    pub joining_not_overwritten: bool,
    /// The report that a permission to overwrite is returned names that permission.
    pub permission_checked: bool,
    /// A permission is returned only if the data is whole.
    pub returned_whole: bool,
    /// A permission that was returned is not used.
    pub returned_unused: bool,
    /// A server whose data is being overwritten is not promoted.
    pub overwritten_leads_not: bool,
    /// An archive that may be overwritten is not granted.
    pub overwritten_not_granted: bool,
    /// A wiped volume is a new archive.
    pub new_id: bool,
    /// The domain knows each start, and refuses a volume that was set back to before its last one.
    pub starts_known: bool,
    /// No volume is set back to a moment of its last run.
    pub other_run: bool,
    /// A server follows no primary that is older than one that it followed or was.
    pub older_refused: bool,
    /// It remembers after a restart which primary it followed.
    pub followed_durable: bool,
    /// A standby takes entries from the primary only.
    pub no_cascade: bool,
    /// A primary lets no client in when its lease is over.
    pub lease_ends: bool,
    /// A winner lets clients in only when the leases of earlier primaries are over.
    pub waits: bool,
    /// It waits from when it stopped to follow; off: from its grant.
    pub waits_from_stop: bool,
    /// An own commit renews the lease from when it was begun; off: from when it was seen to be released.
    pub commit_from_begin: bool,
    /// The domain's word renews it from when the domain was asked; off: from when the word came.
    pub word_from_question: bool,
    /// An own commit renews the lease only if the rule in force was the same all the time.
    pub same_rule: bool,
    /// The domain gives its word only to the server that has the current generation.
    pub vouched_if_current: bool,
    /// A primary that was alone begins a lease before it takes a rule with members.
    pub lease_begins: bool,
    /// The domain keeps the lease of a primary in mind over generations that never opened.
    pub earlier_kept: bool,
    /// Where there are several such primaries, the end of one of them ends no wait.
    pub several_noted: bool,
    /// A primary that has closed opens only once all members hold what was in its log then.
    pub flushed_before_reopen: bool,
}

/// The protocol of docs/replication.md.
pub const CORRECTED: Rules = Rules {
    winner_in_set: true,
    part_at_grant: true,
    winner_stays: true,
    primary_stays: true,
    kept_at_grant: true,
    all_confirm: true,
    leave_first: true,
    join_last: true,
    point_passed: true,
    settled: true,
    version_checked: true,
    newer_only: true,
    opens_after_first: true,
    starts_fenced: true,
    one_promotion: true,
    none_in_set_overwritten: true,
    overwritten_joins_not: true,
    joining_not_overwritten: true,
    permission_checked: true,
    returned_whole: true,
    returned_unused: true,
    overwritten_leads_not: true,
    overwritten_not_granted: true,
    new_id: true,
    starts_known: true,
    other_run: true,
    older_refused: true,
    followed_durable: true,
    no_cascade: true,
    lease_ends: true,
    waits: true,
    waits_from_stop: true,
    commit_from_begin: true,
    word_from_question: true,
    same_rule: true,
    vouched_if_current: true,
    lease_begins: true,
    earlier_kept: true,
    several_noted: true,
    flushed_before_reopen: true,
};
