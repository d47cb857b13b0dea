//! Sealing a log for an override: another agent asks for it on the agent-to-agent port, the task that holds the volume does it,
//! and the answer is sent once the seal is durable.

use super::server::Host;
use super::volume::Extent;
use crate::proto::raft::{Half, SealReply, SealRequest};
use kaa_core::domain::ids::RaftId;
use kaa_core::membership::quorum_override::{Position, Sealed};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the caller may wait for the answer: Raft has to stop, and the seal has to reach the disk.
const SEAL_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether this agent's log is sealed, or shall be.
#[derive(Clone, Debug, Default)]
pub(super) enum Sealing {
    /// It is not.
    #[default]
    Open,
    /// This server asks for it.
    Asked(String),
    /// It is, and goes so far.
    Sealed(Extent),
}

impl Host {
    /// Waits until another agent asks for the seal, and says which.
    pub async fn asked_to_seal(&self) -> String {
        let mut sealing = self.sealing().subscribe();
        let asked = sealing.wait_for(|sealing| matches!(sealing, Sealing::Asked(_))).await;
        match asked.map(|asked| asked.clone()) {
            Ok(Sealing::Asked(server)) => server,
            // The sender lives in `self`.
            Ok(Sealing::Open | Sealing::Sealed(_)) | Err(_) => std::future::pending().await,
        }
    }

    /// Notes that the log is sealed, durably, or that a log that is not has come in its place.
    pub fn set_sealed(&self, extent: Option<Extent>) {
        self.sealing().send_replace(extent.map_or(Sealing::Open, Sealing::Sealed));
    }

    /// Whether the log is sealed.
    pub fn is_sealed(&self) -> bool {
        matches!(*self.sealing().borrow(), Sealing::Sealed(_))
    }

    /// Has the log sealed, unless it is.
    pub(super) fn ask_to_seal(&self, by: String) {
        self.sealing().send_if_modified(|sealing| {
            let open = matches!(sealing, Sealing::Open);
            if open {
                *sealing = Sealing::Asked(by);
            }
            open
        });
    }

    /// Has the log sealed for another agent of its domain and epoch, and says what it holds.
    pub(super) async fn seal_for(&self, request: SealRequest) -> SealReply {
        let refused = |reason: String| SealReply { reason, server: self.server().to_string(), ..SealReply::default() };
        let Some(local) = self.local_log() else { return refused("there is no log here".to_owned()) };
        let domain = local.domain.as_ref().map_or("", |domain| domain.as_str());
        if request.domain != domain || request.epoch != local.epoch.0 {
            return refused(format!("this is domain '{domain}', epoch {}", local.epoch));
        }
        self.ask_to_seal(request.server);
        let mut sealing = self.sealing().subscribe();
        let sealed = sealing.wait_for(|sealing| matches!(sealing, Sealing::Sealed(_)));
        match tokio::time::timeout(SEAL_TIMEOUT, sealed).await.map(|sealed| sealed.map(|sealed| sealed.clone())) {
            Ok(Ok(Sealing::Sealed(extent))) => SealReply {
                sealed: true,
                reason: String::new(),
                server: self.server().to_string(),
                raft_id: local.raft_id.0,
                last_log_term: extent.position.term,
                last_log_index: extent.position.index,
                halves: extent.halves.iter().map(half).collect(),
            },
            Ok(_) | Err(_) => refused(format!("not sealed within {} s", SEAL_TIMEOUT.as_secs())),
        }
    }
}

fn half(half: &BTreeSet<RaftId>) -> Half {
    Half { raft_ids: half.iter().map(|id| id.0).collect() }
}

/// What an agent answered that has sealed its log; `wanted` is whether the StatefulSet wants it.
pub fn sealed(reply: &SealReply, wanted: bool) -> Option<Sealed<BTreeSet<RaftId>>> {
    reply.sealed.then(|| Sealed {
        id: BTreeSet::from([RaftId(reply.raft_id)]),
        last: Position { term: reply.last_log_term, index: reply.last_log_index },
        halves: reply.halves.iter().map(|half| half.raft_ids.iter().copied().map(RaftId).collect()).collect(),
        wanted,
    })
}
