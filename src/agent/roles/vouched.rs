//! The domain's word that a primary is still the current one.

use crate::agent::connected::Answers;
use crate::proto::engine::{self as wire, to_engine};
use crate::raft::Handle;
use kaa_core::domain::Domain;
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
    if raft.read(|domain| leads(domain, process, generation)) {
        let vouched = wire::Vouched { sequence: heard.sequence, generation: heard.generation };
        let message = wire::ToEngine { message: Some(to_engine::Message::Vouched(vouched)) };
        // One whose queue is full asks again.
        let _ = answers.try_send(Ok(message));
    }
}

/// Whether a process has this generation, and no later one was granted.
fn leads(domain: &Domain, process: StartId, generation: Generation) -> bool {
    let database = domain.processes.get(&process).map(|process| &process.database);
    let Some(replicated) = database.and_then(|database| domain.replicated(database)) else { return false };
    let current = replicated.record.as_ref().is_some_and(|record| record.generation == generation);
    current && replicated.primary.as_ref().is_some_and(|primary| primary.process == process)
}
