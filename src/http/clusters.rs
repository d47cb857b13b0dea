//! What an operator says of another cluster of the domain.

use super::domain::{Named, name, parameters};
use super::error::Error;
use super::page::{Parameters, parameter};
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Outcome, Refusal};

/// Removes all that the domain knows of a cluster that is lost for good. It may join again.
pub(super) async fn forget(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    asked: Result<Query<Parameters>, QueryRejection>,
) -> Result<Answer<()>, Error> {
    let cluster = name(named, "cluster")?.into();
    let asked = parameters(asked)?;
    let why = parameter(&asked, "why").filter(|why| !why.trim().is_empty());
    let why = why.ok_or_else(|| Error::bad("why", "is missing: the audit trail keeps the reason"))?.to_owned();
    let written = face.source.write(actor, Command::ForgetCluster(change::ForgetCluster { cluster, why })).await?;
    match written.outcome {
        Outcome::Refused(refusal @ Refusal::UnknownCluster(_)) => Err(Error::NotFound(refusal.to_string())),
        Outcome::Refused(refusal) => Err(Error::Conflict(refusal.to_string())),
        _ => Ok(Answer { index: written.index, body: () }),
    }
}
