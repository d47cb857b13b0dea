//! Primaries that nothing is heard of: their sessions are lost sooner than those of other engines, since another server may take over.
//!
//! The agent that has the stream of a primary's wrapper says so of a wrapper that is silent, and the Raft leader says so of an agent
//! that is silent itself. A wrapper that runs opens its next session at another agent.

use crate::agent::Shared;
use crate::raft::Role as RaftRole;
use kaa_core::domain::change::{Command, LoseSession};
use kaa_core::domain::command::Role;
use kaa_core::domain::ids::{ServerId, StartId};
use kaa_core::domain::process::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// How often the streams and the agents are checked.
const PERIOD: Duration = Duration::from_millis(100);
/// What could not be proposed is proposed again after this.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a primary may be silent whose wrapper has not said that it keeps a lease: an earlier one is heard every two seconds.
const UNKNOWN_WRAPPER: Duration = Duration::from_secs(5);
/// A new Raft leader waits for this part of the limit for the first answer of an agent: the one that led before was silent already.
const FIRST_ANSWER: u32 = 4;

impl Shared {
    /// Reports the sessions of primaries that nothing is heard of. Runs until the agent ends.
    pub async fn lose_silent_primaries(self: Arc<Self>) {
        let (mut led_since, mut missed) = (None, BTreeMap::new());
        // When this agent was last paused: what was said meanwhile has to be heard first.
        let mut paused: Option<Instant> = None;
        loop {
            let mut pause = PERIOD;
            paused = paused.filter(|since| since.elapsed() < self.config.primary_silence);
            match self.raft.status().role {
                RaftRole::Leader => led_since = led_since.or_else(|| Some(Instant::now())),
                _ => led_since = None,
            }
            let primaries = if paused.is_some() { Vec::new() } else { self.primaries() };
            missed.retain(|connection, _| primaries.iter().any(|(_, session, _)| session.connection == *connection));
            for (process, session, limit) in primaries {
                let Some((role, why)) = self.is_silent(&session, limit, led_since, &mut missed) else { continue };
                let command = Command::LoseSession(LoseSession { process, session: session.number, why: why.clone() });
                match self.propose(role, command).await {
                    Ok(_) => info!("process {process}, a primary: session {} lost: {why}", session.number),
                    Err(why) => {
                        warn!("process {process}: could not report that its session is lost: {why}");
                        pause = AGAIN;
                    }
                }
            }
            let began = Instant::now();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopping() => return,
            }
            if began.elapsed() > pause + self.config.primary_silence / 2 {
                paused = Some(Instant::now());
            }
        }
    }

    /// The processes that have the current generation of a database, and are in a session; and how long each may be silent.
    fn primaries(&self) -> Vec<(StartId, Session, Duration)> {
        self.raft.read(|domain| {
            let live = domain.primaries_in_session();
            let limit = |keeps_lease| {
                let silence = self.config.primary_silence;
                if keeps_lease { silence } else { silence.max(UNKNOWN_WRAPPER) }
            };
            live.map(|(primary, process)| (process.id, process.session.clone(), limit(primary.keeps_lease))).collect()
        })
    }

    /// By whom a session is given up, and why. `missed` are the streams that should be here, and since when they were found not to be:
    /// this agent may have started a moment ago.
    fn is_silent(
        &self,
        session: &Session,
        limit: Duration,
        led_since: Option<Instant>,
        missed: &mut BTreeMap<u64, Instant>,
    ) -> Option<(Role, String)> {
        if session.server == self.config.server {
            let missing = || missed.entry(session.connection).or_insert_with(Instant::now).elapsed();
            let silent = self.connected.heard(session.connection).unwrap_or_else(missing);
            if silent < limit {
                return None;
            }
            return Some((Role::Agent, format!("its wrapper was not heard for {:.1} s", silent.as_secs_f64())));
        }
        let led_since = led_since?;
        let silent: BTreeSet<ServerId> = self.raft.silent_servers(limit, led_since.elapsed() >= limit / FIRST_ANSWER);
        silent.contains(&session.server).then(|| (Role::RaftLeader, format!("its agent {} is silent", session.server)))
    }
}
