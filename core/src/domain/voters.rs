//! Who votes, for the audit trail. Raft's membership alone decides that. The domain keeps the voters that were recorded last,
//! so that each change is recorded once, even if several leaders propose it.

use super::ids::{MembershipEpoch, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The voters of a membership that is committed, with no change under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Voters {
    /// The membership epoch.
    pub epoch: MembershipEpoch,
    /// The log entry of this membership. A later one has a greater index: that is the fence against who led before.
    pub since: u64,
    /// Whose logs vote.
    pub servers: BTreeSet<ServerId>,
}

impl Voters {
    /// Whether the same servers vote in the same epoch. Memberships may follow one another that differ only in who learns.
    pub fn are(&self, other: &Self) -> bool {
        (self.epoch, &self.servers) == (other.epoch, &other.servers)
    }
}
