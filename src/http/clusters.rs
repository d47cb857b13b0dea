//! What an operator says of another cluster of the domain.

use super::domain::{Named, name};
use super::error::Error;
use super::extract::Asked;
use super::page::parameter;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::change::{self, Command};

/// Removes all that the domain knows of a cluster that is lost for good. It may join again.
pub(super) async fn forget(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<()>, Error> {
    let cluster = name(named, "cluster")?.into();
    let why = parameter(&asked, "why").filter(|why| !why.trim().is_empty());
    let why = why.ok_or_else(|| Error::bad("why", "is missing: the audit trail keeps the reason"))?.to_owned();
    let written = face.source.write(actor, Command::ForgetCluster(change::ForgetCluster { cluster, why })).await?;
    Ok(Answer { index: written.accepted()?.index, body: () })
}
