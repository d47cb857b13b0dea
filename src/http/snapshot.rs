//! The domain as a document, and a domain founded again from one. Both ask who calls: the document holds every value.

mod document;

pub use document::{Document, Unreadable};

use super::domain::linearize;
use super::error::Error;
use super::extract::Body;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::change::Command;
use kaa_core::domain::ids::ArchiveId;
use kaa_core::domain::snapshot::{KeptArchive, LeftBehind, Restore};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;

/// The greatest document that is restored, as compact JSON: it becomes one entry of the log, which is shorter.
pub const MAX_DOCUMENT_BYTES: usize = crate::raft::MAX_PROPOSAL_BYTES - 64 * 1024;

/// The greatest body of a request: a document that was laid out for people, and what is said beside it.
pub(super) const MAX_BODY_BYTES: usize = 4 * MAX_DOCUMENT_BYTES;

/// What an operator is told who restores a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreAnswer {
    /// The name of the domain that is asked.
    pub name: String,
    /// Its id.
    pub domain: String,
    /// Whose snapshot it is.
    pub from: TakenFrom,
    /// The databases that it brings; deleted ones are not shown.
    pub databases: Vec<String>,
    /// The archives that it brings.
    pub archives: Vec<BroughtArchive>,
    /// How many values it brings.
    pub values: usize,
    /// What it does not bring.
    pub left_behind: LeftBehind,
    /// Why it would not be restored.
    pub refusal: Option<String>,
    /// Whether it is, now or since before.
    pub restored: bool,
}

/// The origin of a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TakenFrom {
    /// The domain's name.
    pub name: String,
    /// Its id.
    pub domain: String,
    /// The cluster of the server that it was taken from.
    pub cluster: String,
    /// That server.
    pub server: String,
    /// The last entry in it.
    pub index: u64,
    /// When it was taken.
    pub taken: String,
    /// The document's checksum.
    pub sha256: String,
}

/// An archive of a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BroughtArchive {
    /// Its id.
    pub id: u64,
    /// Its database.
    pub database: String,
    /// Whether an engine has run on it.
    pub ever_ran: bool,
    /// Whether a cold start waits for its volume.
    pub waited_for: bool,
    /// Why it is removed, if it is.
    pub removed: Option<String>,
    /// The claim that it was on: `NAMESPACE/NAME of cluster CLUSTER`.
    pub was: Option<String>,
    /// Whether it is left behind.
    pub without: bool,
}

/// An operator's word.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Word {
    /// The name of the domain that is to be given what the document holds; another one gets nothing. A dry run needs none.
    domain: Option<String>,
    document: Value,
    #[serde(default)]
    without: BTreeSet<ArchiveId>,
    /// Whether it is only told what would be done.
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn save(State(face): State<Face>, _: Writer) -> Result<Answer<Document>, Error> {
    linearize(&face).await?;
    let server = face.source.peers().into_iter().find(|peer| peer.is_local).map(|peer| peer.id.to_string());
    let source = document::Source {
        taken: face.source.now().to_string(),
        server: server.unwrap_or_default(),
        cluster: face.source.cluster(),
    };
    let (index, document) = face.source.read(|domain| (domain.index, Document::of(domain, source)));
    let body = document.ok_or_else(|| Error::CannotTell("the domain is not founded yet".to_owned()))?;
    Ok(Answer { index, body })
}

pub(super) async fn restore(
    State(face): State<Face>,
    Writer(actor): Writer,
    Body(Word { domain, document, without, dry_run }): Body<Word>,
) -> Result<Answer<RestoreAnswer>, Error> {
    let name = face.source.name();
    match domain {
        Some(domain) if domain != name => {
            return Err(Error::bad("domain", format!("names '{domain}', and this is domain '{name}'")));
        }
        None if !dry_run => return Err(Error::bad("domain", "has to name the domain that this is for")),
        Some(_) | None => {}
    }
    let document = Document::read(document).map_err(|why| Error::bad("document", format!("is unusable: {why}")))?;
    let restore = Restore {
        format: document.format,
        checksum: document.sha256.clone(),
        cluster: face.source.cluster(),
        without,
        snapshot: document.snapshot.clone(),
    };
    let mut body = RestoreAnswer::new(name, &document, &restore.without);
    if dry_run {
        linearize(&face).await?;
        return Ok(face.source.read(|domain| {
            body.domain = domain.id.as_ref().map(ToString::to_string).unwrap_or_default();
            body.restored = domain.restored.as_ref().is_some_and(|restored| restored.checksum == restore.checksum);
            body.refusal = domain.may_restore(&restore).err().map(|refusal| refusal.to_string());
            Answer { index: domain.index, body }
        }));
    }
    let written = face.source.write(actor, Command::RestoreDomain(Box::new(restore))).await?;
    // What is not there is named by the body, and not by the path.
    let written = written.accepted().map_err(|refusal| Error::Conflict(refusal.to_string()))?;
    body.restored = true;
    body.domain = face.source.read(|domain| domain.id.as_ref().map(ToString::to_string).unwrap_or_default());
    Ok(Answer { index: written.index, body })
}

impl RestoreAnswer {
    fn new(name: String, document: &Document, without: &BTreeSet<ArchiveId>) -> Self {
        let snapshot = &document.snapshot;
        let databases = snapshot.databases.iter().filter(|database| !database.deleted);
        Self {
            name,
            from: TakenFrom {
                name: snapshot.name.clone(),
                domain: snapshot.domain.to_string(),
                cluster: document.cluster.to_string(),
                server: document.server.clone(),
                index: snapshot.index,
                taken: document.taken.clone(),
                sha256: document.sha256.clone(),
            },
            databases: databases.map(|database| database.name.to_string()).collect(),
            archives: snapshot.archives.iter().map(|archive| BroughtArchive::new(archive, without)).collect(),
            values: snapshot.values.len(),
            left_behind: document.left_behind.clone(),
            ..Self::default()
        }
    }
}

impl BroughtArchive {
    fn new(archive: &KeptArchive, without: &BTreeSet<ArchiveId>) -> Self {
        let was = archive.was.as_ref();
        Self {
            id: archive.id.0,
            database: archive.database.to_string(),
            ever_ran: archive.ever_ran,
            waited_for: archive.cold_start_waits(),
            removed: archive.removed.as_ref().map(|removal| removal.because.to_string()),
            was: was.map(|was| format!("{}/{} of cluster {}", was.namespace, was.claim, was.cluster)),
            without: without.contains(&archive.id),
        }
    }
}
