//! What an agent tells others of more than Raft, whenever they ask for its status: who leads the resync, and what it hears of servers.

use super::server::Host;
use crate::proto::raft::{Hears, Reached, StatusReply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// How far a server was is kept of this number of servers: first of those that are not heard any more, then of those that were heard last.
const REACHED: usize = 64;

/// What is told. It is in memory only.
#[derive(Debug, Default)]
pub struct Said {
    resync_leader: String,
    /// By the random number of the stream.
    hears: BTreeMap<u64, Hears>,
    /// By process. It stays when the stream is down: an operator wants to know how far a server was that is lost.
    reached: BTreeMap<u64, Reached>,
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

    /// Tells how far the log of a server is.
    pub fn note_reached(&self, reached: Reached) {
        let mut said = self.said().write().unwrap_or_else(PoisonError::into_inner);
        said.reached.insert(reached.process, reached);
        if said.reached.len() > REACHED {
            // One that is heard is noted again in a moment.
            let heard: BTreeSet<u64> = said.hears.values().map(|hears| hears.process).collect();
            let first = said.reached.values().min_by_key(|it| (!heard.contains(&it.process), it.at_ms));
            let first = first.map(|reached| reached.process);
            first.and_then(|process| said.reached.remove(&process));
        }
    }

    pub(super) fn tell_said(&self, reply: &mut StatusReply) {
        let said = self.said().read().unwrap_or_else(PoisonError::into_inner);
        reply.resync_leader.clone_from(&said.resync_leader);
        reply.hears = said.hears.values().cloned().collect();
        reply.reached = said.reached.values().copied().collect();
    }
}
