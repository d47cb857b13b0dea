//! What the published client asks of the domain.

use super::balancer::{filter_query, passing};
use super::error::Error;
use super::extract::{Asked, Body};
use super::page::{Page, Parameters, Selection, flag, parameter};
use super::rows::{self, ArchiveRow, DatabaseRow, ExitedRow, Hearing, PeerRow, ProcessRow};
use super::{Answer, Face};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use kaa_core::balancer::query::Filter;
use kaa_core::domain::Domain;
use kaa_core::domain::ids::{ArchiveId, DatabaseName, Millis, StartId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// The most characters of a client's message that are logged.
const MAX_MESSAGE_CHARS: usize = 1024;

pub(super) type Named = Result<Path<String>, PathRejection>;
type Paged = Result<Answer<Page>, Error>;

pub(super) fn name(named: Named, parameter: &str) -> Result<String, Error> {
    named.map(|Path(name)| name).map_err(|rejection| Error::bad(parameter, rejection.body_text()))
}

pub(super) fn id<T: FromStr>(named: Named, parameter: &str) -> Result<T, Error> {
    let name = name(named, parameter)?;
    name.parse().map_err(|_| Error::bad(parameter, format!("has to be a number, not '{name}'")))
}

pub(super) fn values<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Vec<Value> {
    let value = |row| serde_json::to_value(row).expect("rows have only texts as keys");
    rows.into_iter().map(value).collect()
}

/// Selects from the rows that `list` makes of the domain.
pub(super) fn page(face: &Face, asked: &Parameters, list: impl FnOnce(&Domain) -> Vec<Value>) -> Paged {
    let selection = Selection::parse(asked)?;
    let (index, rows) = face.source.read(|domain| (domain.index, list(domain)));
    Ok(Answer { index, body: selection.page(rows) })
}

/// What `find` finds in the domain, or that it does not exist.
fn find<T>(face: &Face, what: &str, find: impl FnOnce(&Domain) -> Option<T>) -> Result<Answer<T>, Error> {
    let (index, found) = face.source.read(|domain| (domain.index, find(domain)));
    let body = found.ok_or_else(|| Error::NotFound(format!("there is no {what}")))?;
    Ok(Answer { index, body })
}

/// The filter in the language of load-balancer queries, if there is one.
fn filter(asked: &Parameters) -> Result<Option<Filter>, Error> {
    parameter(asked, "filterQuery").map(filter_query).transpose()
}

fn passes(passing: Option<&BTreeSet<StartId>>, process: StartId) -> bool {
    passing.is_none_or(|passing| passing.contains(&process))
}

fn hearing(face: &Face) -> Hearing {
    Hearing { heard: face.source.heard(), peers: face.source.peers() }
}

pub(super) async fn peers(State(face): State<Face>, Asked(asked): Asked) -> Paged {
    let peers = face.source.peers();
    page(&face, &asked, |domain| values(rows::peers(domain, &peers)))
}

pub(super) async fn peer(State(face): State<Face>, named: Named) -> Result<Answer<PeerRow>, Error> {
    let id = name(named, "server id")?;
    let peers = face.source.peers();
    find(&face, &format!("server {id}"), |domain| rows::peers(domain, &peers).into_iter().find(|row| row.id == id))
}

pub(super) async fn processes(State(face): State<Face>, Asked(asked): Asked) -> Paged {
    let hearing = hearing(&face);
    let filter = filter(&asked)?;
    page(&face, &asked, |domain| {
        let passing = filter.map(|filter| passing(domain, domain.processes.values(), &filter));
        let wanted = domain.processes.values().filter(|process| passes(passing.as_ref(), process.id));
        values(wanted.map(|process| ProcessRow::new(domain, process, &hearing)))
    })
}

pub(super) async fn exited(State(face): State<Face>, Asked(asked): Asked) -> Paged {
    let filter = filter(&asked)?;
    page(&face, &asked, |domain| {
        let all = || domain.tombstones.values().map(|tombstone| &tombstone.process);
        let passing = filter.map(|filter| passing(domain, all(), &filter));
        let wanted = domain.tombstones.values().filter(|tombstone| passes(passing.as_ref(), tombstone.process.id));
        values(wanted.map(|tombstone| ExitedRow::new(domain, tombstone)))
    })
}

/// The options of a process: what the published client shows beside its row.
pub(super) async fn process_options(
    State(face): State<Face>,
    named: Named,
) -> Result<Answer<BTreeMap<String, String>>, Error> {
    let Answer { index, body } = process(State(face), named).await?;
    Ok(Answer { index, body: body.options })
}

pub(super) async fn process(State(face): State<Face>, named: Named) -> Result<Answer<ProcessRow>, Error> {
    let id: StartId = id(named, "start id")?;
    let exited = face.source.read(|domain| Some(ExitedRow::new(domain, domain.tombstones.get(&id)?)));
    if let Some(exited) = exited {
        return Err(Error::Exited(Box::new(exited)));
    }
    let hearing = hearing(&face);
    find(&face, &format!("process {id}"), |domain| Some(ProcessRow::new(domain, domain.processes.get(&id)?, &hearing)))
}

/// The active archives, or with `removed=true` the removed ones.
pub(super) async fn archives(State(face): State<Face>, Asked(asked): Asked) -> Paged {
    let removed = flag(&asked, "removed")?;
    page(&face, &asked, |domain| {
        let wanted = domain.archives.values().filter(|archive| archive.removed.is_some() == removed);
        values(wanted.map(|archive| ArchiveRow::new(domain, archive)))
    })
}

pub(super) async fn archive(State(face): State<Face>, named: Named) -> Result<Answer<ArchiveRow>, Error> {
    let id: ArchiveId = id(named, "archive id")?;
    find(&face, &format!("archive {id}"), |domain| Some(ArchiveRow::new(domain, domain.archives.get(&id)?)))
}

pub(super) async fn databases(State(face): State<Face>, Asked(asked): Asked) -> Paged {
    page(&face, &asked, |domain| values(domain.databases.values().map(DatabaseRow::new)))
}

pub(super) async fn database(State(face): State<Face>, named: Named) -> Result<Answer<DatabaseRow>, Error> {
    let name: DatabaseName = name(named, "database name")?.into();
    find(&face, &format!("database {name}"), |domain| domain.databases.get(&name).map(DatabaseRow::new))
}

/// A value; null if there is none.
#[derive(Serialize)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) value: Option<String>,
}

pub(super) async fn value(State(face): State<Face>, named: Named) -> Result<Answer<Pair>, Error> {
    let key = name(named, "key")?;
    linearize(&face).await?;
    let (index, value) = face.source.read(|domain| (domain.index, domain.values.get(&key).cloned()));
    Ok(Answer { index, body: Pair { key, value } })
}

/// Waits until everything that was committed before is applied here.
pub(super) async fn linearize(face: &Face) -> Result<(), Error> {
    Ok(face.source.linearize().await?)
}

/// A line that a client wants in the log.
#[derive(Deserialize)]
pub(super) struct Message {
    message: String,
}

/// Who answered, and when.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Logged {
    server_version: &'static str,
    server_time_millis: Millis,
}

pub(super) async fn log(
    State(face): State<Face>,
    Body(Message { message }): Body<Message>,
) -> Result<Answer<Logged>, Error> {
    let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
    tracing::info!(?message, "a client asked to log this");
    let body = Logged { server_version: crate::VERSION, server_time_millis: face.source.now() };
    Ok(Answer { index: face.source.read(|domain| domain.index), body })
}
