//! Leaving: a server that is scaled down stays until it does not vote any more, one that restarts until the others are a
//! majority without it, and hands over what it leads.

use super::{answer_of, quorum_override};
use crate::agent::Shared;
use crate::config::DRAIN;
use crate::raft::Lifecycle;
use kaa_core::domain::ids::ServerId;
use kaa_core::membership::leaving::{Ending, Presence, ending, is_voted_out, may_end};
use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// How often a leaving server looks whether the others can do without it.
const LOOK: Duration = Duration::from_millis(100);

/// What came of a drain: the rest of a sentence about the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No other server waits for its vote.
    NoVoter,
    /// It merely restarts, or the StatefulSet wants no server.
    Stays,
    /// It is not known whether it is scaled down, so it does not wait.
    Unknown(String),
    /// It left.
    VotedOut(Duration),
    /// Whatever its vote was worth, it is worth nothing any more.
    Over,
    /// It leaves all the same.
    StillVotes,
    /// It restarts all the same.
    Missed,
}

impl Drained {
    /// The same as one word.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoVoter => "no_voter",
            Self::Stays => "keeps_vote",
            Self::Unknown(_) => "unknown",
            Self::VotedOut(_) => "evicted",
            Self::Over => "epoch_over",
            Self::StillVotes => "still_votes",
            Self::Missed => "no_majority",
        }
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVoter => f.write_str("does not vote"),
            Self::Stays => f.write_str("is not scaled down, and keeps its vote"),
            Self::Unknown(why) => write!(f, "keeps its vote, since it is unknown whether it is scaled down: {why}"),
            Self::VotedOut(took) => write!(f, "was evicted from the voters after {:.1} s", took.as_secs_f64()),
            Self::Over => f.write_str("votes in an epoch that is over"),
            Self::StillVotes => {
                write!(f, "still votes after {} s: its vote will be missing once its pod has ended", DRAIN.as_secs())
            }
            Self::Missed => {
                write!(
                    f,
                    "keeps its vote; after {} s the others are still no majority without it, so there is no quorum until it is back",
                    DRAIN.as_secs()
                )
            }
        }
    }
}

/// Stays until the others have evicted this server, if a fresh read shows that it is scaled down; or, if its pod is deleted
/// for another reason, until they are a majority without it. A server of which neither is known does not wait. A second
/// call while it leaves (SIGTERM after the preStop hook) gets what is left of the time.
pub async fn drain(shared: &Shared) -> Drained {
    let drained = tokio::select! {
        drained = until_unneeded(shared) => drained,
        _ = shared.over() => Drained::Over,
    };
    // Kubernetes never revokes a deletion, so servers that wait for a quorum do not count on this one from now on.
    if shared.ending().contains(&shared.config.server) {
        shared.host.set_leaving();
    }
    match drained {
        Drained::Unknown(_) | Drained::StillVotes | Drained::Missed => warn!("this server {drained}"),
        _ => info!("this server {drained}"),
    }
    drained
}

async fn until_unneeded(shared: &Shared) -> Drained {
    let (asked, status) = (Instant::now(), shared.raft.status());
    if !status.voters.contains_key(&status.raft_id) {
        return Drained::NoVoter;
    }
    let mut shown = shared.admin_ordinals();
    let mut ending = read(shared).await;
    let done = loop {
        match &ending {
            Err(why) => break Drained::Unknown(why.clone()),
            Ok(Ending::WithAll) => break Drained::Stays,
            Ok(Ending::Restart) if !is_missed(shared).await => break Drained::Stays,
            Ok(Ending::ForGood) if is_voted_out(&shared.raft.membership(), status.raft_id) => {
                break Drained::VotedOut(asked.elapsed());
            }
            Ok(Ending::Restart) if began(shared, asked).elapsed() > DRAIN => return Drained::Missed,
            Ok(Ending::ForGood) if began(shared, asked).elapsed() > DRAIN => return Drained::StillVotes,
            Ok(Ending::Restart | Ending::ForGood) => tokio::time::sleep(LOOK).await,
        }
        // It may be scaled again meanwhile, or deleted with all that is in its namespace.
        let now = shared.admin_ordinals();
        if now != shown {
            match read(shared).await {
                Err(_) if now.is_some() => {}
                again => (shown, ending) = (now, again),
            }
        }
    };
    *shared.leaving.lock().unwrap_or_else(PoisonError::into_inner) = None;
    done
}

/// What this server's end is, by a fresh read.
async fn read(shared: &Shared) -> Result<Ending, String> {
    let wanted = quorum_override::wanted(&shared.kubernetes, &shared.config).await?;
    let ending = match ending(shared.config.ordinal, &wanted) {
        // No scale-down removes a vote then.
        Ending::ForGood if shared.is_spread() => Ending::Restart,
        ending => ending,
    };
    info!("this server drains: {ending}");
    Ok(ending)
}

/// Whether this server's pod is deleted, and the others would not be a majority without it until it is back.
async fn is_missed(shared: &Shared) -> bool {
    let (ending, status) = (shared.ending(), shared.raft.status());
    if !ending.contains(&shared.config.server) || shared.host.is_leaving() {
        return false;
    }
    let asked = status.voters.iter().map(|(id, node)| async {
        // A server that has stopped waiting ends soon, so its answer does not count.
        let said = answer_of(shared, *id, &node.address).await;
        let presence = match said.is_some_and(|said| said.lifecycle == Lifecycle::Active.to_string()) {
            false => Presence::Missing,
            true if ending.contains(&ServerId::from(node.server.as_str())) => Presence::Ends,
            true => Presence::There,
        };
        (*id, presence)
    });
    let presence = futures::future::join_all(asked).await.into_iter().collect();
    !may_end(&shared.raft.membership(), status.raft_id, &presence)
}

/// The same; then a server that stays a member transfers its leadership, as far as another server can take it.
pub async fn hand_over(shared: &Shared) -> Drained {
    let drained = drain(shared).await;
    if matches!(drained, Drained::Stays | Drained::Missed | Drained::Unknown(_)) {
        shared.raft.hand_over(None).await;
    }
    drained
}

/// When this leaving began: when it was asked for first. One that was given up long ago is another one.
fn began(shared: &Shared, asked: Instant) -> Instant {
    let mut leaving = shared.leaving.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.take_if(|began| began.elapsed() > 2 * DRAIN);
    *leaving.get_or_insert(asked)
}
