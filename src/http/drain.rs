//! A server gets ready to end: `kaa drain`, the preStop hook of the admin servers.

use super::error::Error;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use serde::{Deserialize, Serialize};

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainAnswer {
    /// The server that was asked.
    pub server: String,
    /// What came of it: `evicted`, `keeps_vote`, `no_voter`, `still_votes`, `no_majority`, `epoch_over`, `not_running`, `unknown`.
    pub outcome: String,
    /// The same for people.
    pub message: String,
    /// Who leads Raft, as far as it knows.
    pub leader: Option<String>,
}

/// Nothing of the domain changes by it; but what an agent leads is not for everybody to remove.
pub(super) async fn drain(State(face): State<Face>, Writer(actor): Writer) -> Result<Answer<DrainAnswer>, Error> {
    tracing::info!("drain requested by {actor}");
    let body = face.source.drain().await;
    Ok(Answer { index: face.source.read(|domain| domain.index), body })
}
