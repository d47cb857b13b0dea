//! The agents tell each other how they are: every row of `GET peers` comes from here.

use super::Shared;
use crate::config::PEER_PERIOD;
use crate::proto::raft::StatusReply;
use kaa_core::domain::ids::ServerId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What is known of the other agents.
pub struct Peers {
    heard: Mutex<BTreeMap<ServerId, Heard>>,
    since: Instant,
}

/// What another agent said of itself, and when.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Its words; `None` if it never answered.
    pub status: Option<StatusReply>,
    /// When it last answered.
    pub at: Option<Instant>,
    /// How long that answer took.
    pub latency: Option<Duration>,
    /// Whether it answered the last time it was asked.
    pub connected: bool,
}

impl Default for Peers {
    fn default() -> Self {
        Self { heard: Mutex::default(), since: Instant::now() }
    }
}

impl Peers {
    fn heard(&self) -> MutexGuard<'_, BTreeMap<ServerId, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of every other agent that was asked.
    pub fn all(&self) -> BTreeMap<ServerId, Heard> {
        self.heard().clone()
    }

    /// How long nothing was heard of an agent; counted from this one's start if it never answered.
    pub fn silent_for(&self, server: &ServerId) -> Duration {
        self.heard().get(server).and_then(|heard| heard.at).unwrap_or(self.since).elapsed()
    }

    /// Notes an answer, or why there is none. What changes is logged, once.
    fn note(&self, server: ServerId, latency: Duration, answer: Result<StatusReply, String>) {
        let mut heard = self.heard();
        let unknown = Heard { status: None, at: None, latency: None, connected: false };
        let known = heard.entry(server.clone()).or_insert(unknown);
        let before = std::mem::replace(&mut known.connected, answer.is_ok());
        match answer {
            Ok(status) => {
                if let Some(at) = known.at.filter(|_| !before) {
                    tracing::info!("{server} answers again, after {:.1} s", at.elapsed().as_secs_f64());
                }
                (known.status, known.at, known.latency) = (Some(status), Some(Instant::now()), Some(latency));
            }
            Err(why) if before => tracing::warn!("{server} does not answer: {why}"),
            Err(_) => {}
        }
    }
}

/// Asks every other server of the domain how it is, again and again, until it is aborted.
pub async fn exchange(shared: Arc<Shared>) {
    loop {
        let others = shared.raft.read(|domain| {
            let others = domain.servers.values().filter(|server| server.id != shared.config.server);
            others.map(|server| (server.id.clone(), server.address.clone())).collect::<Vec<_>>()
        });
        shared.peers.heard().retain(|server, _| others.iter().any(|(other, _)| other == server));
        let asked = others.into_iter().map(|(server, address)| {
            let shared = &shared;
            async move {
                let began = Instant::now();
                let answer = match shared.links.status(&address).await {
                    Ok(status) if status.server == server.as_str() => Ok(status),
                    Ok(status) => Err(format!("{} answers at its address", status.server)),
                    Err(error) => Err(error.to_string()),
                };
                shared.peers.note(server, began.elapsed(), answer);
            }
        });
        futures::future::join_all(asked).await;
        look_after_the_lease(&shared);
        tokio::time::sleep(PEER_PERIOD).await;
    }
}

/// The resync leader reports that it lives; when it does not, the agent reads the Lease.
fn look_after_the_lease(shared: &Shared) {
    let Some(holder) = shared.other_resync_leader() else { return };
    match shared.peers.heard().get(&holder) {
        Some(Heard { connected: true, status: Some(status), .. }) if status.resync_leader == holder.as_str() => {
            shared.candidacy.heard();
        }
        Some(_) => shared.candidacy.nudge(),
        // The domain does not know this server, so the agents do not call it and its silence proves nothing.
        None => {}
    }
}
