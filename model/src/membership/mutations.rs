//! Removes one safeguard at a time: the rules, and which property is expected to fail.

use super::cases::{self, Case};
use super::rules::{Block, CORRECTED, Rules};
use crate::check::{Change, breaks, holds, stalls};

/// A changed rule of this protocol.
pub type Mutation = Change<Case, Rules>;

/// A mutation under which all properties hold and which takes long to explore: only with `--all`.
fn large(mutation: Mutation) -> Mutation {
    Mutation { large: true, ..mutation }
}

/// Every mutation.
pub fn all() -> Vec<Mutation> {
    [of_the_gate(), of_messages(), of_overrides(), of_founding(), of_changes(), of_recover(), reductions()]
        .into_iter()
        .flatten()
        .collect()
}

fn of_the_gate() -> Vec<Mutation> {
    let none = Rules { gate: false, ..CORRECTED };
    let stale = Rules { fresh: false, ..CORRECTED };
    let blind = Rules { quorum_boot: true, ..CORRECTED };
    vec![
        breaks("no boot gate", cases::loss, none),
        holds("no boot gate, automatic overrides only", cases::pair, none),
        breaks("stale reads", cases::loss, stale),
        holds("stale reads, automatic overrides only", cases::pair, stale),
        breaks("boot without the anchor if a quorum agrees", cases::loss, blind),
        holds("same, automatic overrides only", cases::pair, blind),
        breaks("node behind keeps its log", cases::loss, Rules { retired: false, ..CORRECTED }),
        breaks("same raft id after a wipe", cases::three, Rules { fresh_id: false, ..CORRECTED }),
    ]
}

fn of_messages() -> Vec<Mutation> {
    let neither = Rules { message_epoch: false, term_epoch: false, ..CORRECTED };
    vec![
        breaks("no epoch in messages", cases::loss, Rules { message_epoch: false, ..CORRECTED }),
        holds("no epoch in terms", cases::lost, Rules { term_epoch: false, ..CORRECTED }),
        breaks("no epoch in messages nor terms", cases::loss, neither),
    ]
}

fn of_overrides() -> Vec<Mutation> {
    let unsealed = Rules { seal: false, ..CORRECTED };
    let block = |block| Rules { block, ..CORRECTED };
    vec![
        breaks("no sealing", cases::four, unsealed),
        breaks("no sealing, 2 voters", cases::two, unsealed),
        breaks("no |E| < q rule", cases::three, block(Block::Off)),
        breaks("rule on the joint quorum", cases::joint, block(Block::JointQuorum)),
        breaks("rule on the old half only", cases::joint, block(Block::OldHalf)),
        breaks("rule on the new half only", cases::three, block(Block::NewHalf)),
        breaks("any sealed log may found", cases::four, Rules { best: false, ..CORRECTED }),
        stalls("wanted servers count by ordinal, not raft id", cases::pair, Rules { by_id: false, ..CORRECTED }),
        stalls("override given up when replicas rise again", cases::two, Rules { drive_on: false, ..CORRECTED }),
    ]
}

fn of_founding() -> Vec<Mutation> {
    let two_writes = Rules { one_write: false, ..CORRECTED };
    vec![
        breaks("no compare-and-swap", cases::four, Rules { swap: false, ..CORRECTED }),
        stalls("new epoch starts with all survivors", cases::four, Rules { one_founder: false, ..CORRECTED }),
        stalls("founder does not resume after a restart", cases::two, Rules { resume: false, ..CORRECTED }),
        stalls("raft id not durable before the anchor", cases::new, Rules { id_first: false, ..CORRECTED }),
        holds("epoch and membership in two writes, resumed", cases::pair, two_writes),
        large(holds(
            "epoch and membership in two writes, not resumed",
            cases::pair,
            Rules { reinject: false, ..two_writes },
        )),
    ]
}

fn of_changes() -> Vec<Mutation> {
    let back = Rules { forward: false, ..CORRECTED };
    let leaves = Rules { stay: false, ..CORRECTED };
    let unsettled = Rules { own_term: false, ..CORRECTED };
    vec![
        breaks("joint left backwards", cases::joint, Rules { own_term: false, ..back }),
        large(holds("joint left backwards, own term committed", cases::joint, back)),
        large(holds("joint left forward only, own term not committed", cases::joint, unsettled)),
        stalls("leader removes itself", cases::two, leaves),
        holds("leader removes itself, committed voters stand", cases::pair, Rules { stand: true, ..leaves }),
    ]
}

fn of_recover() -> Vec<Mutation> {
    vec![
        breaks("pods gone checked before the swap", cases::loss, Rules { gone_after: false, ..CORRECTED }),
        breaks("force-deleted pods still run", cases::loss, Rules { gone: false, ..CORRECTED }),
    ]
}

/// A simpler protocol, and what it loses: it cannot continue with two of four servers, nor during a change from three
/// to two.
fn reductions() -> Vec<Mutation> {
    let alone = Rules { alone: true, ..CORRECTED };
    vec![
        holds("reduction: a lone survivor only", cases::pair, alone),
        stalls("reduction: a lone survivor only, 4 to 2", cases::four, alone),
        large(holds("reduction: a lone survivor only, no sealing", cases::two, Rules { seal: false, ..alone })),
        stalls("reduction: a lone survivor only, 3 voters", cases::three, alone),
    ]
}
