//! Engines with roles: what their wrappers say becomes proposals, and what the domain wants of them is said to them.
//!
//! The agent that has the stream of a server proposes on its wrapper's word; the Raft leader grants generations. Both compare the
//! domain with what is said now, so whatever was lost on the way is said or proposed again. Which criteria apply is decided in
//! `kaa_core::replication`.

mod heard;
mod lost;
mod vouched;
mod words;

pub use heard::{hear_replica, hear_vitals};
pub use vouched::vouch;
pub use words::{assigned, reported};

use super::Shared;
use super::connected::Said;
use crate::config::BACKOFF;
use crate::raft::Role as RaftRole;
use kaa_core::domain::change::Command;
use kaa_core::domain::command::{Actor, Outcome, Refusal, Role};
use kaa_core::domain::ids::StartId;
use kaa_core::replication::{Found, grants};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// How long an agent waits for its own copy of the domain after a proposal. It looks again then.
const CATCH_UP: Duration = Duration::from_secs(1);
/// What was refused is not proposed again for so long, unless something else is due: each proposal is an entry in every log.
const REFUSED: Duration = Duration::from_secs(5);
/// So many proposals may rest on what a wrapper said last, one on the other: promoted, open, ended.
const LAST_WORDS: usize = 4;

/// What was refused last, by process.
#[derive(Default)]
struct Refused(BTreeMap<StartId, (Command, Instant)>);

impl Refused {
    /// Forgets what has no effect any more: processes come and go.
    fn forget_old(&mut self) {
        self.0.retain(|_, (_, at)| at.elapsed() < REFUSED);
    }

    /// Whether a command was refused a moment ago.
    fn has(&self, process: StartId, command: &Command) -> bool {
        self.0.get(&process).is_some_and(|(refused, at)| refused == command && at.elapsed() < REFUSED)
    }
}

/// Why a proposal did nothing.
enum Failed {
    Refused(Refusal),
    NotProposed(String),
}

impl Shared {
    /// Proposes on the word of the wrappers that are connected here. Runs until the agent ends.
    pub async fn report_roles(self: Arc<Self>) {
        let mut applied = self.raft.applied();
        let mut refused = Refused::default();
        loop {
            applied.mark_unchanged();
            let mut again = false;
            refused.forget_old();
            for Said { process, session, report } in self.connected.reports() {
                let due = self.raft.read(|domain| domain.duties(process, session, &report));
                for command in due {
                    if refused.has(process, &command) {
                        continue;
                    }
                    match self.propose_role(Role::Agent, command.clone()).await {
                        Ok(()) => drop(refused.0.remove(&process)),
                        Err(Failed::Refused(why)) => {
                            info!("process {process}: {} refused: {why}", command.name());
                            refused.0.insert(process, (command, Instant::now()));
                        }
                        Err(Failed::NotProposed(why)) => {
                            warn!("process {process}: could not propose {}: {why}", command.name());
                            again = true;
                        }
                    }
                }
            }
            let pause = if again { BACKOFF } else { REFUSED };
            tokio::select! {
                () = self.connected.said.notified() => {}
                changed = applied.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
                () = self.stopping() => return,
            }
        }
    }

    /// Proposes what rests on the last words of a wrapper that ends, before its end is reported: after that nothing is believed of
    /// it. There is nothing more to tell it.
    pub async fn last_word(&self, connection: u64) {
        self.propose_last(connection).await;
        self.connected.ended(connection);
    }

    async fn propose_last(&self, connection: u64) {
        for _ in 0..LAST_WORDS {
            let Some(Said { process, session, report }) = self.connected.said(connection) else { return };
            let due = self.raft.read(|domain| domain.duties(process, session, &report));
            for command in &due {
                if let Err(Failed::Refused(why)) = self.propose_role(Role::Agent, command.clone()).await {
                    info!("process {process}: {} refused: {why}", command.name());
                    return;
                }
            }
            if due.is_empty() {
                return;
            }
        }
    }

    /// Grants generations while this agent leads Raft. Runs until the agent ends.
    pub async fn grant_roles(self: Arc<Self>) {
        let mut applied = self.raft.applied();
        // Also while another agent leads: a pause that began before this one leads is then not longer.
        let (mut found, began) = (Found::default(), Instant::now());
        loop {
            applied.mark_unchanged();
            let leads = self.raft.status().role == RaftRole::Leader;
            let due = self.raft.read(|domain| {
                let now_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                found.look(domain, now_ms);
                let now = found.at(self.raft.now(), now_ms);
                if leads { grants::plan(domain, now, &self.config.timing()) } else { Vec::new() }
            });
            let proposed = !due.is_empty();
            for command in due {
                let name = command.name();
                match self.propose_role(Role::RaftLeader, command).await {
                    Ok(()) => info!("roles: {name}"),
                    Err(Failed::Refused(why)) => info!("roles: {name} refused: {why}"),
                    Err(Failed::NotProposed(why)) => warn!("roles: could not propose {name}: {why}"),
                }
            }
            if proposed {
                // The entry itself wakes the loop.
                tokio::time::sleep(GRANT_SPACING).await;
            }
            tokio::select! {
                changed = applied.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(BACKOFF) => {}
                () = self.stopping() => return,
            }
        }
    }

    /// Proposes, and waits until this agent's copy of the domain has it, or for a moment.
    async fn propose_role(&self, role: Role, command: Command) -> Result<(), Failed> {
        let actor = Actor { role, name: self.config.server.to_string() };
        let proposed = self.propose_as(actor, command).await;
        let (index, outcome) = proposed.map_err(|error| Failed::NotProposed(error.to_string()))?;
        let mut applied = self.raft.applied();
        let reached = async {
            while self.raft.read(|domain| domain.index) < index {
                if applied.changed().await.is_err() {
                    return;
                }
            }
        };
        // One that lags is told by the next entry.
        let _ = tokio::time::timeout(CATCH_UP, reached).await;
        match outcome {
            Outcome::Refused(why) => Err(Failed::Refused(why)),
            _ => Ok(()),
        }
    }
}

/// Between two rounds of grants.
const GRANT_SPACING: Duration = Duration::from_millis(20);
