//! What an operator says of the resync as a whole: pause it, resume it, take this Kubernetes for the domain's.

use super::domain::linearize;
use super::error::Error;
use super::extract::{Asked, Body};
use super::writer::Writer;
use super::{Answer, Face, own};
use axum::extract::State;
use kaa_core::domain::Domain;
use kaa_core::domain::bounds::Bounds;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::ids::{Millis, Uid};
use serde::{Deserialize, Serialize};

/// The longest reason: it goes into the audit trail.
const MAX_WHY_BYTES: usize = Bounds::DEFAULT.text;

/// Whether the resync is paused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PauseAnswer {
    /// Whether it is.
    pub paused: bool,
    /// Since when.
    pub since: Option<Millis>,
    /// Who paused it.
    pub by: Option<String>,
    /// Why.
    pub why: Option<String>,
}

impl PauseAnswer {
    fn new(domain: &Domain) -> Self {
        let pause = domain.paused.as_ref();
        Self {
            paused: pause.is_some(),
            since: pause.map(|pause| pause.at),
            by: pause.map(|pause| pause.by.clone()),
            why: pause.map(|pause| pause.why.clone()),
        }
    }
}

/// Which Kubernetes the domain belongs to now.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdoptAnswer {
    /// The UID of the anchor that was known.
    pub before: String,
    /// The UID of the anchor that is known from now on.
    pub anchor: String,
}

/// The reason of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    pub why: String,
}

/// A reason, if it is one.
pub(super) fn checked(why: String) -> Result<String, Error> {
    if why.trim().is_empty() {
        return Err(Error::bad("why", "needs a reason: it is recorded in the audit trail"));
    }
    if why.len() > MAX_WHY_BYTES {
        return Err(Error::bad("why", format!("has more than {MAX_WHY_BYTES} bytes")));
    }
    Ok(why)
}

pub(super) async fn shown(State(face): State<Face>, Asked(asked): Asked) -> Result<Answer<PauseAnswer>, Error> {
    own::consistent(&face, &asked).await?;
    Ok(answer(&face))
}

fn answer(face: &Face) -> Answer<PauseAnswer> {
    let (index, body) = face.source.read(|domain| (domain.index, PauseAnswer::new(domain)));
    Answer { index, body }
}

pub(super) async fn pause(
    State(face): State<Face>,
    Writer(actor): Writer,
    Body(Reason { why }): Body<Reason>,
) -> Result<Answer<PauseAnswer>, Error> {
    let why = checked(why)?;
    face.source.write(actor, Command::PauseResync(change::PauseResync { why })).await?.accepted()?;
    Ok(answer(&face))
}

pub(super) async fn resume(State(face): State<Face>, Writer(actor): Writer) -> Result<Answer<PauseAnswer>, Error> {
    face.source.write(actor, Command::ResumeResync).await?.accepted()?;
    Ok(answer(&face))
}

/// The anchor is read afresh, by a server that knows by a quorum that it speaks for the domain: an anchor that is missing is
/// created then. It has to name this domain: that it bears the right name is not enough.
pub(super) async fn adopt(
    State(face): State<Face>,
    Writer(actor): Writer,
    Body(Reason { why }): Body<Reason>,
) -> Result<Answer<AdoptAnswer>, Error> {
    let why = checked(why)?;
    linearize(&face).await?;
    let cluster = face.source.cluster();
    let (id, known) = face.source.read(|domain| (domain.id.clone(), domain.anchor_in(&cluster).cloned()));
    let Some((id, known)) = id.zip(known) else {
        return Err(Error::CannotTell("the domain is not founded yet, or does not know this cluster yet".to_owned()));
    };
    let read = face.source.read_anchor().await.map_err(Error::CannotTell)?;
    if read.domain != id {
        let words = format!("lease {} names domain {}, and this is domain {id}", read.name, read.domain);
        return Err(Error::Conflict(words));
    }
    let anchor: Uid = read.uid;
    let body = AdoptAnswer { before: known.to_string(), anchor: anchor.to_string() };
    // Only where there are several: an older server does not know the field.
    let several = face.source.read(|domain| domain.founded_in.is_some());
    let (cluster, evidence) = (Some(cluster).filter(|_| several), read.evidence);
    let adopt = change::AdoptAnchor { known, anchor, why, cluster, evidence };
    let written = face.source.write(actor, Command::AdoptAnchor(adopt)).await?;
    let index = written.index;
    written.accepted()?;
    Ok(Answer { index, body })
}
