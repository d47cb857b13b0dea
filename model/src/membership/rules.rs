//! The safeguards of the protocol, each of which can be taken out.

/// Which voter sets of the last membership the sealed logs must block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block {
    /// Each voter set on its own.
    EachHalf,
    /// Any voter set: then no leader commits with a majority of both.
    JointQuorum,
    OldHalf,
    NewHalf,
    /// None.
    Off,
}

/// The safeguards. With the values of [`CORRECTED`], kaa-core makes every decision.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// A new pod reads the anchor before Raft starts.
    pub gate: bool,
    /// The read is fresh; overrides also read `replicas` fresh.
    pub fresh: bool,
    /// Survivors stop for good in the old epoch before the anchor is swapped.
    pub seal: bool,
    /// Which voter sets the survivors must block.
    pub block: Block,
    /// Messages carry the epoch.
    pub message_epoch: bool,
    /// Terms have the epoch in their high bits.
    pub term_epoch: bool,
    /// The anchor is created if absent, and changed by compare-and-swap.
    pub swap: bool,
    /// Every empty log gets a new log id.
    pub fresh_id: bool,
    /// Only the most advanced of the sealed logs may found.
    pub best: bool,
    /// A new epoch starts with one voter; off: with all survivors.
    pub one_founder: bool,
    /// The founder that the anchor names continues after a restart.
    pub resume: bool,
    /// Epoch and membership are one transaction.
    pub one_write: bool,
    /// If they are two writes, the founder repeats the second one after a restart.
    pub reinject: bool,
    /// The log id is durable before the anchor is created.
    pub id_first: bool,
    /// After the logs are sealed, an override is completed, even if `replicas` changes.
    pub drive_on: bool,
    /// A joint membership is always finished forward.
    pub forward: bool,
    /// A leader commits an entry of its own term before it changes the membership.
    pub own_term: bool,
    /// A leader never removes itself: it transfers the leadership first.
    pub stay: bool,
    /// A voter of the last *committed* membership may be a candidate (as in openraft 0.10.0-alpha.37).
    pub stand: bool,
    /// A wanted server counts by its present log id; off: by its ordinal, whatever its volume.
    pub by_id: bool,
    /// Only a server that blocks alone overrides; it asks no other server.
    pub alone: bool,
    /// A server of an earlier epoch retires its log; off: it adopts the epoch and keeps the log.
    pub retired: bool,
    /// `kaa recover` looks after the swap whether the old pods are gone; off: before.
    pub gone_after: bool,
    /// It makes this check, and the check sees the truth: no pod was force-deleted.
    pub gone: bool,
    /// Boot without the anchor if a majority agrees.
    pub quorum_boot: bool,
}

/// The protocol of docs/membership.md.
pub const CORRECTED: Rules = Rules {
    gate: true,
    fresh: true,
    seal: true,
    block: Block::EachHalf,
    message_epoch: true,
    term_epoch: true,
    swap: true,
    fresh_id: true,
    best: true,
    one_founder: true,
    resume: true,
    one_write: true,
    reinject: true,
    id_first: true,
    drive_on: true,
    forward: true,
    own_term: true,
    stay: true,
    stand: false,
    by_id: true,
    alone: false,
    retired: true,
    gone_after: true,
    gone: true,
    quorum_boot: false,
};
