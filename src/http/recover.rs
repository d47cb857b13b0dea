//! Continuing without what only lost servers may hold: the preview, and the operator's command. Both work while there is no
//! leader and while Raft does not run. Both ask the other agents and read this one's volume, so both need authorization.

use super::error::Error;
use super::extract::{Asked, Body};
use super::writer::Writer;
use super::{Answer, Face};
use crate::raft::recovering::Wish;
use axum::extract::State;
use kaa_core::membership::retired::Place;
use serde::{Deserialize, Serialize};

/// What an operator is told who asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecoverAnswer {
    /// The domain's name.
    pub name: String,
    /// Its id.
    pub domain: String,
    /// The epoch of the log of the agent that judges.
    pub epoch: u64,
    /// The anchor's epoch: another one while an epoch is being founded.
    pub anchor_epoch: u64,
    /// Who judges: the agent whose log goes furthest, or the one that was asked.
    pub server: String,
    /// Each server that is wanted or is a member by that log.
    pub servers: Vec<RecoverServer>,
    /// The server that would found the next epoch, or has founded it.
    pub founder: Option<String>,
    /// The index of the last entry in the founder's log.
    pub last_index: u64,
    /// What may be lost: the end of "what may be lost: ".
    pub lost: Option<String>,
    /// The servers whose pods have to be gone, or follow, before the new epoch is founded.
    pub outside: Vec<String>,
    /// Why it would not be done.
    pub refusal: Option<String>,
    /// What the agent that judges waits for.
    pub waits: Option<String>,
    /// The epoch that this request has begun.
    pub begun: Option<u64>,
    /// The retired log that is, or would be, founded from, as `SERVER/NAME`.
    pub from_retired_log: Option<String>,
    /// The retired logs, on the volumes of all agents that say so.
    pub retired: Vec<Retired>,
    /// Whose volumes are not listed, and why.
    pub unlisted: Vec<String>,
}

/// One server's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecoverServer {
    /// Its name.
    pub id: String,
    /// Whether the StatefulSet wants it.
    pub wanted: bool,
    /// Why it is not known what it holds; nothing else is known then.
    pub silent: Option<String>,
    /// The log's id, as text: it is too large for a number in JSON.
    pub raft_id: String,
    /// Its epoch.
    pub epoch: u64,
    /// LEADER, FOLLOWER, CANDIDATE, LEARNER; `None` while Raft does not run.
    pub role: Option<String>,
    /// Whether it is sealed.
    pub sealed: bool,
    /// Whether it votes, by the log of the agent that judges.
    pub votes: bool,
    /// The term of its last entry.
    pub last_term: u64,
    /// The index of its last entry.
    pub last_index: u64,
}

/// A log of an earlier epoch, kept on a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retired {
    /// Whose volume it is on.
    pub server: String,
    /// The directory on the volume.
    pub name: String,
    /// The domain it belongs to, if it can be read and does.
    pub domain: Option<String>,
    /// Its epoch.
    pub epoch: u64,
    /// The log's id, as text.
    pub raft_id: String,
    /// The term of its last entry, if it can be read.
    pub last_term: Option<u64>,
    /// The index of its last entry, likewise.
    pub last_index: Option<u64>,
    /// Why it cannot.
    pub unreadable: Option<String>,
}

/// An operator's word.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Word {
    accept_data_loss: bool,
    /// The domain's name: a request that went to another domain than was meant gives nothing up.
    domain: String,
    /// The retired log that is to be founded from, as `SERVER/NAME`.
    from_retired_log: Option<String>,
}

/// What an operator asks to be shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Shown {
    from_retired_log: Option<String>,
}

async fn ask(
    face: &Face,
    accepted_by: Option<String>,
    from_retired_log: Option<String>,
) -> Result<Answer<RecoverAnswer>, Error> {
    if let Some(text) = &from_retired_log {
        text.parse::<Place>().map_err(|error| Error::bad("fromRetiredLog", error))?;
    }
    let wish = Wish { accepted_by, from_retired_log };
    let body = face.source.recover(wish).await.map_err(Error::CannotTell)?;
    Ok(Answer { index: face.source.read(|domain| domain.index), body })
}

pub(super) async fn shown(
    State(face): State<Face>,
    _: Writer,
    Asked(Shown { from_retired_log }): Asked<Shown>,
) -> Result<Answer<RecoverAnswer>, Error> {
    ask(&face, None, from_retired_log).await
}

pub(super) async fn recover(
    State(face): State<Face>,
    Writer(actor): Writer,
    Body(Word { accept_data_loss, domain, from_retired_log }): Body<Word>,
) -> Result<Answer<RecoverAnswer>, Error> {
    if !accept_data_loss {
        return Err(Error::bad("acceptDataLoss", "has to be true: to see only what would be done, GET this"));
    }
    let name = face.source.name();
    if domain != name {
        return Err(Error::bad("domain", format!("names '{domain}', and this is domain '{name}'")));
    }
    let answer = ask(&face, Some(actor.to_string()), from_retired_log).await?;
    match (&answer.body.begun, &answer.body.refusal) {
        (None, Some(why)) => Err(Error::Conflict(why.clone())),
        _ => Ok(answer),
    }
}
