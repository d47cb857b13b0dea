//! What an operator asks of a database: `create|delete|shutdown database`, `update database-options`; and what the published client
//! reads of one besides its row: `get|show storage-groups`, `capture database`.

use super::domain::{Named, linearize, name, page};
use super::error::Error;
use super::extract::{Asked, Body};
use super::page::{Page, flag};
use super::source::Source;
use super::stop::stop_all;
use super::writer::Writer;
use super::{Answer, Face, large};
use axum::extract::State;
use axum::response::Response;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Refusal};
use kaa_core::domain::database::{Database, DatabaseState};
use kaa_core::domain::evidence::Evidence;
use kaa_core::domain::ids::DatabaseName;
use kaa_core::domain::process::{DurableState, EngineKind, EngineState, Process};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most claims that are read afresh for one deletion: a request takes its time for each.
const MAX_CLAIMS: usize = 64;

/// What a new database is to be. The password of its administrator is dropped unread: engines have theirs from their container.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wanted {
    #[serde(default, rename = "databaseDbaUser")]
    _user: IgnoredAny,
    #[serde(default, rename = "databaseDbaPassword")]
    _password: IgnoredAny,
    te_hosts: Option<Vec<String>>,
    sm_hosts: Option<BTreeMap<String, String>>,
    host_assignments: Option<BTreeMap<String, Value>>,
    default_region_id: Option<Value>,
    default_options: Option<BTreeMap<String, Value>>,
}

/// Words in the name of an option that holds a secret.
const SECRETS: [&str; 5] = ["password", "passwd", "pwd", "secret", "token"];

/// Options as texts: the client sends booleans and numbers as they are. The domain keeps no secrets, since it shows what it keeps.
fn options(given: BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, Error> {
    let is_secret = |name: &String| SECRETS.iter().any(|word| name.to_lowercase().contains(word));
    if let Some(name) = given.keys().find(|name| is_secret(name)) {
        return Err(Error::bad(
            name,
            "seems to be a secret: the domain keeps none, engines have theirs from their containers",
        ));
    }
    let text = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        Value::Bool(_) | Value::Number(_) => Ok((name, value.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(Error::bad(&name, "has to be a text")),
    };
    given.into_iter().map(text).collect()
}

/// Creates a database. Answers with a plan of what is to be started: nothing, since Kubernetes starts the engines.
pub(super) async fn create(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
    Body(wanted): Body<Wanted>,
) -> Result<Answer<Value>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let may_exist = flag(&asked, "mayExist")?;
    if wanted.te_hosts.is_some_and(|hosts| !hosts.is_empty()) || wanted.sm_hosts.is_some_and(|hosts| !hosts.is_empty())
    {
        return Err(Error::Conflict(super::offers::STARTS.to_owned()));
    }
    if wanted.host_assignments.is_some_and(|regions| !regions.is_empty()) || wanted.default_region_id.is_some() {
        return Err(Error::NotSupported(super::offers::REGIONS));
    }
    let options = options(wanted.default_options.unwrap_or_default())?;
    let command = Command::CreateDatabase(change::CreateDatabase { database, options, may_exist });
    let index = written(&face, actor, command).await?;
    Ok(Answer { index, body: json!({"processes": [], "incremental": false}) })
}

pub(super) async fn configure(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
    Body(given): Body<BTreeMap<String, Value>>,
) -> Result<Answer<()>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let replace_all = flag(&asked, "replaceAll")?;
    let options = options(given)?;
    let command = Command::ConfigureDatabase(change::ConfigureDatabase { database, options, replace_all });
    Ok(Answer { index: written(&face, actor, command).await?, body: () })
}

/// Deletes a database, after fresh reads: nothing may want it, and the claims of what is left of its archives have to be gone.
pub(super) async fn delete(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<()>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let purge = flag(&asked, "purge")?;
    // An agent that does not follow the group does not know what there is to read.
    linearize(&face).await?;
    let needs = face.source.read(|domain| change::DropDatabase::reads(domain, &database));
    if needs.len() > MAX_CLAIMS + 2 {
        let why = format!("database {database} still has more than {MAX_CLAIMS} archives: purge them first");
        return Err(Error::Conflict(why));
    }
    let deleted = face.source.read(|domain| known(domain, &database).is_none());
    let evidence = if deleted { Evidence::default() } else { face.source.read_afresh(needs).await };
    let cluster = face.source.cluster();
    let command = Command::DropDatabase(change::DropDatabase { database, purge, cluster, evidence });
    Ok(Answer { index: written(&face, actor, command).await?, body: () })
}

/// Proposes a change of a database. A refusal says how the way is cleared.
async fn written(face: &Face, actor: Actor, command: Command) -> Result<u64, Error> {
    let refusal = match face.source.write(actor, command).await?.accepted() {
        Ok(written) => return Ok(written.index),
        Err(refusal) => refusal,
    };
    let way_out = match &refusal {
        Refusal::HasProcess { .. } => ": scale its StatefulSets and Deployments to 0 first (kubectl scale)".to_owned(),
        Refusal::HasArchive { archive, .. } => format!(
            ": no data is deleted with a database. If its claim is gone, ask again: it could not be read. If its data is not \
             needed: delete its claim (kubectl delete pvc), or `kaa archive remove {archive} --reason WHY` and `kaa archive purge {archive} --reason WHY`"
        ),
        Refusal::DatabaseWanted { .. } => ": delete what has its label `database` first (kubectl delete)".to_owned(),
        _ => return Err(refusal.into()),
    };
    Err(Error::Conflict(format!("{refusal}{way_out}")))
}

/// Asks all processes of a database to end, the transaction engines first. Kubernetes starts their containers again.
pub(super) async fn shutdown(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
) -> Result<Answer<()>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    // An agent that lags would leave out what has just registered.
    linearize(&face).await?;
    let known = face.source.read(|domain| known(domain, &database).is_some());
    if !known {
        return Err(Error::NotFound(format!("there is no database {database}")));
    }
    stop_all(&face, &actor, false, |process| process.database == database).await
}

/// The database, unless it was deleted.
fn known<'a>(domain: &'a Domain, name: &DatabaseName) -> Option<&'a Database> {
    domain.databases.get(name).filter(|database| database.state != DatabaseState::Tombstone)
}

fn of_database<'a>(domain: &'a Domain, name: &'a DatabaseName) -> impl Iterator<Item = &'a Process> {
    domain.processes.values().filter(move |process| process.database == *name)
}

/// The two storage groups that every database has: archives hold all tables here.
pub(super) async fn storage_groups(
    State(face): State<Face>,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<Page>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let known = face.source.read(|domain| known(domain, &database).is_some());
    if !known {
        return Err(Error::NotFound(format!("there is no database {database}")));
    }
    page(&face, &asked, |domain| groups(domain, &database))
}

fn groups(domain: &Domain, database: &DatabaseName) -> Vec<Value> {
    let managers = || of_database(domain, database).filter(|process| process.kind == EngineKind::Sm);
    let runs =
        |process: &&Process| (process.durable, process.engine) == (DurableState::Monitored, EngineState::Running);
    let candidates: Vec<String> = managers().filter(runs).map(|process| process.id.to_string()).collect();
    let states: BTreeMap<String, String> =
        managers().map(|process| (process.id.to_string(), process.engine.to_string())).collect();
    let state = if candidates.is_empty() { "Unavailable" } else { "Available" };
    let group = |id: u64, name: &str, candidates: &[String], states: &BTreeMap<String, String>| {
        json!({
            "dbName": database,
            "sgName": name,
            "sgId": id,
            "state": state,
            "archiveStates": {},
            "processStates": states,
            "leaderCandidates": candidates,
        })
    };
    // The first stands for all others, and is led by none.
    vec![group(1, "ALL", &[], &BTreeMap::new()), group(2, "UNPARTITIONED", &candidates, &states)]
}

/// The processes of a database as requests that would start them, which is what the client compares a capture with.
pub(super) async fn capture(State(face): State<Face>, named: Named, Asked(asked): Asked) -> Result<Response, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let check_state = flag(&asked, "checkState")?;
    let source: Arc<dyn Source> = face.source.clone();
    large::answer(move || {
        let source: &dyn Source = &*source;
        let (index, found) = source.read(|domain| {
            let state = known(domain, &database).map(|known| known.state);
            let captured: Vec<Value> = of_database(domain, &database).map(captured).collect();
            (domain.index, state.map(|state| (state, captured)))
        });
        match found {
            None => Err(Error::NotFound(format!("there is no database {database}"))),
            Some((state, _)) if check_state && state != DatabaseState::Running => {
                Err(Error::Conflict(format!("database {database} is {state}, not {}", DatabaseState::Running)))
            }
            Some((_, processes)) => Ok((Some(index), json!({"processes": processes, "incremental": false}))),
        }
    })
    .await
}

fn captured(process: &Process) -> Value {
    let mut captured = json!({
        "dbName": process.database,
        "host": process.session.server,
        "engineType": process.kind.to_string(),
        "labels": process.about.labels,
        "overrideOptions": {},
    });
    if let Some(archive) = process.archive {
        captured["archiveId"] = archive.0.into();
    }
    captured
}
