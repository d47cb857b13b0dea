//! What an agent tells others of more than Raft, whenever they ask for its status: who leads the resync, and what it hears of servers.

use super::server::Host;
use crate::proto::raft::{Hears, StatusReply};
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// What is told. It is in memory only.
#[derive(Debug, Default)]
pub struct Said {
    resync_leader: String,
    /// By the random number of the stream.
    hears: BTreeMap<u64, Hears>,
}

impl Host {
    /// Tells who holds the resync Lease.
    pub fn set_resync_leader(&self, holder: &str) {
        let mut said = self.said().write().unwrap_or_else(PoisonError::into_inner);
        holder.clone_into(&mut said.resync_leader);
    }

    /// Tells what is heard of a server by a stream, after `change`; it begins as nothing.
    pub fn hear(&self, connection: u64, change: impl FnOnce(&mut Hears)) {
        let mut said = self.said().write().unwrap_or_else(PoisonError::into_inner);
        change(said.hears.entry(connection).or_default());
    }

    /// The stream is down: of its server nothing is heard any more.
    pub fn hear_no_more(&self, connection: u64) {
        let mut said = self.said().write().unwrap_or_else(PoisonError::into_inner);
        said.hears.remove(&connection);
    }

    pub(super) fn tell_said(&self, reply: &mut StatusReply) {
        let said = self.said().read().unwrap_or_else(PoisonError::into_inner);
        reply.resync_leader.clone_from(&said.resync_leader);
        reply.hears = said.hears.values().cloned().collect();
    }
}
