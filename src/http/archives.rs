//! What an operator asks of an archive where nothing proves that it can go: `delete archive` of the published client.

use super::domain::{Named, id, parameters};
use super::error::Error;
use super::page::{Parameters, flag, parameter};
use super::rows::ArchiveRow;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Outcome, Refusal};
use kaa_core::domain::evidence::Evidence;
use kaa_core::domain::ids::ArchiveId;

/// The reason that the audit trail has of a client that gives none.
const NO_REASON: &str = "no reason given";

/// Removes an archive, or purges one that is removed (`purge=true`). Answers with its row, or with null once it is purged.
pub(super) async fn delete(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    asked: Result<Query<Parameters>, QueryRejection>,
) -> Result<Answer<Option<ArchiveRow>>, Error> {
    let archive: ArchiveId = id(named, "archive id")?;
    let asked = parameters(asked)?;
    let why = parameter(&asked, "why").unwrap_or(NO_REASON).to_owned();
    let command = if flag(&asked, "purge")? {
        let claim = face.source.read(|domain| Some(domain.archives.get(&archive)?.claim.as_ref()?.name.clone()));
        let evidence = match claim {
            Some(claim) => face.source.read_claim(&claim).await,
            None => Evidence::default(),
        };
        Command::ForgetArchive(change::ForgetArchive { archive, why, cluster: Some(face.source.cluster()), evidence })
    } else {
        Command::GiveUpArchive(change::GiveUpArchive { archive, why })
    };
    match face.source.write(actor, command).await?.outcome {
        Outcome::Refused(Refusal::UnknownArchive(_)) => Err(Error::NotFound(format!("there is no archive {archive}"))),
        Outcome::Refused(refusal) => Err(Error::Conflict(refusal.to_string())),
        _ => {
            let (index, body) = face.source.read(|domain| {
                (domain.index, domain.archives.get(&archive).map(|known| ArchiveRow::new(domain, known)))
            });
            Ok(Answer { index, body })
        }
    }
}
