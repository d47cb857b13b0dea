//! Leaving: a server that is scaled away stays until it does not vote any more, one that restarts hands over what it leads.

use super::overrule;
use crate::agent::Shared;
use crate::config::DRAIN;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;
use tracing::info;

/// How often a leaving server looks whether it still votes.
const LOOK: Duration = Duration::from_millis(100);

/// What came of a drain: the rest of a sentence about the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Drained {
    /// Nobody waits for its vote.
    #[error("does not vote")]
    NoVoter,
    /// It merely restarts, or nobody is wanted and there is nobody to vote it out.
    #[error("is not scaled away, and keeps its vote")]
    Stays,
    /// Nothing is known, so nothing is waited for.
    #[error("keeps its vote, since it is not known whether it is scaled away: {0}")]
    Unknown(String),
    /// It left.
    #[error("does not vote any more, after {:.1} s", .0.as_secs_f64())]
    VotedOut(Duration),
    /// Whatever its vote was worth, it is worth nothing any more.
    #[error("votes in an epoch that is over")]
    Over,
    /// It leaves all the same.
    #[error("still votes after {} s: once it is gone the others miss its vote", DRAIN.as_secs())]
    StillVotes,
}

/// Stays until the others have voted this server out, if it leaves for good: by a fresh read the StatefulSet wants others,
/// and not this one. One that merely restarts, or of which that cannot be said, does not wait; nor the last ones, with zero
/// replicas. Whoever asks again while it leaves, as SIGTERM does after the preStop hook, has what was left of the time.
pub async fn drain(shared: &Shared) -> Drained {
    tokio::select! {
        drained = until_voted_out(shared) => drained,
        _ = shared.over() => Drained::Over,
    }
}

async fn until_voted_out(shared: &Shared) -> Drained {
    let status = shared.raft.status();
    if !status.voters.contains_key(&status.raft_id) {
        return Drained::NoVoter;
    }
    let began = began(shared);
    match overrule::wanted(&shared.kubernetes, &shared.config).await {
        Ok(wanted) if !wanted.is_empty() && !wanted.contains(&shared.config.ordinal) => {}
        Ok(_) => return Drained::Stays,
        Err(why) => return Drained::Unknown(why),
    }
    info!("this server leaves: it stays until it does not vote any more");
    while votes(shared) {
        if began.elapsed() > DRAIN {
            return Drained::StillVotes;
        }
        tokio::time::sleep(LOOK).await;
    }
    Drained::VotedOut(began.elapsed())
}

/// The same, and what a server leads that stays a member is handed over, as far as somebody else can take it.
pub async fn hand_over(shared: &Shared) -> Drained {
    let drained = drain(shared).await;
    if matches!(drained, Drained::Stays | Drained::Unknown(_)) {
        shared.raft.hand_over(None).await;
    }
    drained
}

/// When this leaving began. One that was given up long ago is another one.
fn began(shared: &Shared) -> Instant {
    let mut leaving = shared.leaving.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.take_if(|began| began.elapsed() > 2 * DRAIN);
    *leaving.get_or_insert_with(Instant::now)
}

/// Whether the last membership that is certainly committed has this server as a voter, or none is.
fn votes(shared: &Shared) -> bool {
    let membership = shared.raft.membership();
    let me = shared.raft.local().raft_id;
    !membership.settled || membership.halves.len() != 1 || membership.halves.iter().any(|half| half.contains(&me))
}
