//! Who leads, and who does not answer the leader.

use super::handle::Handle;
use super::status;
use kaa_core::domain::ids::ServerId;
use openraft::async_runtime::watch::WatchReceiver;
use std::collections::BTreeSet;
use std::time::Duration;

impl Handle {
    /// The servers that have not answered this leader within a time, or not at all, if it has led for `long` enough to know; none if it
    /// does not lead.
    pub fn silent_servers(&self, within: Duration, long: bool) -> BTreeSet<ServerId> {
        status::silent(&self.metrics(), within, long)
    }

    /// Waits until this server hears that another one than `id` leads, and another than it knew when this was called.
    pub(super) async fn until_another_leads(&self, id: u64) {
        let mut metrics = self.raft().metrics();
        let known = metrics.borrow_watched().current_leader;
        loop {
            let now = metrics.borrow_watched().current_leader;
            if now != known && now.is_some_and(|leader| leader != id) {
                return;
            }
            if metrics.changed().await.is_err() {
                // Raft has ended: the call says what came of it.
                std::future::pending::<()>().await;
            }
        }
    }
}
