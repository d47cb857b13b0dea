//! What an operator asks of an archive: `delete archive` of the published client, where nothing proves that it can go, and `create
//! archive`.

use super::domain::{Named, id};
use super::error::Error;
use super::extract::{Asked, Body};
use super::page::{flag, parameter};
use super::rows::ArchiveRow;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Outcome, Refusal};
use kaa_core::domain::evidence::Evidence;
use kaa_core::domain::ids::{ArchiveId, DatabaseName, ServerId};
use serde::Deserialize;

/// The reason that the audit trail has of a client that gives none.
const NO_REASON: &str = "no reason given";

/// Removes an archive, or purges one that is removed (`purge=true`). Answers with its row, or with null once it is purged.
pub(super) async fn delete(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<Option<ArchiveRow>>, Error> {
    let archive: ArchiveId = id(named, "archive id")?;
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
    face.source.write(actor, command).await?.accepted()?;
    let (index, body) = face
        .source
        .read(|domain| (domain.index, domain.archives.get(&archive).map(|known| ArchiveRow::new(domain, known))));
    Ok(Answer { index, body })
}

/// What a new archive is to be, or which one is to count again. `host` and `path` name a place in the world of the published client, where
/// servers start engines; here the volume says whose it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wanted {
    db_name: String,
    host: Option<String>,
    path: String,
    #[serde(default)]
    restored: bool,
    journal_path: Option<String>,
    snapshot_archive_path: Option<String>,
    storage_group_observers: Option<Vec<String>>,
}

impl Wanted {
    /// What is wanted, or why it cannot be had.
    fn checked(self, face: &Face) -> Result<Self, Error> {
        if self.journal_path.is_some() || self.snapshot_archive_path.is_some() {
            let why = "directories for journals and snapshots are not kept here: they are arguments of the engine in its container";
            return Err(Error::NotSupported(why));
        }
        if self.storage_group_observers.is_some() {
            return Err(Error::NotSupported("passive archives are not offered"));
        }
        let server = self.host.clone().map(ServerId::from);
        let known = |server: &ServerId| face.source.read(|domain| domain.servers.contains_key(server));
        match server.filter(|server| !known(server)) {
            Some(server) => Err(Refusal::UnknownServer(server).into()),
            None => Ok(self),
        }
    }
}

/// Creates an archive without a claim. Answers with its row.
pub(super) async fn create(
    State(face): State<Face>,
    Writer(actor): Writer,
    Body(wanted): Body<Wanted>,
) -> Result<Answer<ArchiveRow>, Error> {
    let Wanted { db_name, path, restored, .. } = wanted.checked(&face)?;
    let (database, cluster) = (DatabaseName::from(db_name), face.source.cluster());
    let command = Command::CreateArchive(change::CreateArchive { database, cluster, path, restored });
    match face.source.write(actor, command).await?.accepted()?.outcome {
        Outcome::ArchiveCreated(archive) => row(&face, archive),
        // It is not said which one it is.
        _ => Err(Error::CannotTell("the archive was created; `get archives` tells its id".to_owned())),
    }
}

/// Has a removed archive count again. Answers with its row.
pub(super) async fn resurrect(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(wanted): Body<Wanted>,
) -> Result<Answer<ArchiveRow>, Error> {
    let archive: ArchiveId = id(named, "archive id")?;
    let Wanted { db_name, .. } = wanted.checked(&face)?;
    let database = face.source.read(|domain| Some(domain.archives.get(&archive)?.database.clone()));
    if let Some(database) = database.filter(|database| database.as_str() != db_name) {
        return Err(Error::Conflict(format!("archive {archive} is of database {database}")));
    }
    resurrected(&face, actor, archive).await?;
    row(&face, archive)
}

async fn resurrected(face: &Face, actor: Actor, archive: ArchiveId) -> Result<(), Error> {
    let command = Command::ResurrectArchive(change::ResurrectArchive { archive });
    face.source.write(actor, command).await?.accepted()?;
    Ok(())
}

fn row(face: &Face, archive: ArchiveId) -> Result<Answer<ArchiveRow>, Error> {
    let (index, row) = face
        .source
        .read(|domain| (domain.index, domain.archives.get(&archive).map(|known| ArchiveRow::new(domain, known))));
    let body = row.ok_or(Refusal::UnknownArchive(archive))?;
    Ok(Answer { index, body })
}
