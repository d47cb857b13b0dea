//! The domain's word that a primary is still the current one.

use crate::agent::connected::Answers;
use crate::proto::engine::{self as wire, to_engine};
use crate::raft::Handle;
use kaa_core::domain::ids::{Generation, StartId};
use tracing::debug;

/// Answers a heartbeat that asks whether a generation is the current one, if it is. What was true before the question is of no use, so
/// that the read is a linearizable one.
pub async fn vouch(raft: Handle, process: StartId, heard: wire::Heartbeat, answers: Answers) {
    if let Err(error) = raft.linearize().await {
        debug!(%error, "process {process}: the domain cannot be asked whether its server is the primary");
        return;
    }
    let generation = Generation(heard.generation);
    if raft.read(|domain| domain.leads(process, generation)) {
        let vouched = wire::Vouched { sequence: heard.sequence, generation: heard.generation };
        let message = wire::ToEngine { message: Some(to_engine::Message::Vouched(vouched)) };
        // One whose queue is full asks again.
        let _ = answers.try_send(Ok(message));
    }
}
