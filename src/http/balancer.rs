//! Load balancing: which process a client is sent to, and what is set for it.
//!
//! A decision is made from this server's own copy of the domain, without asking another one.

use super::domain::{Named, name, values};
use super::error::Error;
use super::extract::{Asked, Body};
use super::page::{Page, Parameters, Selection, flag};
use super::rows::{Hearing, ProcessRow};
use super::writer::Writer;
use super::{Answer, Face, From};
use axum::extract::State;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use kaa_core::balancer::candidates::{Candidate, Candidates};
use kaa_core::balancer::choose::{Chance, Client, choose, listed};
use kaa_core::balancer::explain::{Why, explain};
use kaa_core::balancer::policies::NoRoute;
use kaa_core::balancer::prepared::Prepared;
use kaa_core::balancer::query::Filter;
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::Domain;
use kaa_core::domain::balancing::{Balancing, Entry, Item};
use kaa_core::domain::change::{Command, SetLoadBalancer};
use kaa_core::domain::command::Refusal;
use kaa_core::domain::database::DatabaseState;
use kaa_core::domain::ids::{DatabaseName, StartId};
use kaa_core::domain::process::Process;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// The client's property that asks for the address inside the cluster.
const PREFER_INTERNAL: &str = "PreferInternalAddress";
/// The label with the address that outside clients reach a process at.
const EXTERNAL_ADDRESS: &str = "external-address";
/// The label with the port.
const EXTERNAL_PORT: &str = "external-port";

/// The longest name of a policy: that of an annotation's.
const MAX_POLICY_BYTES: usize = 63;

/// What decisions of this agent share.
#[derive(Debug, Default)]
pub struct Balancer {
    turns: Turns,
    prepared: Mutex<Prepared>,
}

/// Who asks: the properties of its connection, and where it asks from.
struct Caller {
    properties: BTreeMap<String, String>,
    address: Option<String>,
}

impl Caller {
    fn new(parts: &Parts, asked: Parameters) -> Self {
        let address = parts.extensions.get::<From>().map(|from| from.0.ip().to_canonical().to_string());
        Self { properties: asked.into_iter().collect(), address }
    }

    fn client(&self) -> Client<'_> {
        Client { properties: &self.properties, address: self.address.as_deref() }
    }
}

impl Balancer {
    fn chance(&self) -> Chance<'_> {
        Chance { turns: &self.turns, random: crate::clock::random_u64() }
    }

    /// The process that a client is sent to.
    fn decide(&self, domain: &Domain, database: &DatabaseName, client: Client<'_>) -> Result<Option<StartId>, NoRoute> {
        let (policies, candidates) = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).of(domain, database);
        Ok(choose(&policies.route(database, client)?, &candidates, client, self.chance()))
    }
}

impl std::convert::From<NoRoute> for Error {
    fn from(why: NoRoute) -> Self {
        match why {
            NoRoute::Syntax(why) => Self::bad("LBQuery", format!("is no query: {why}")),
            NoRoute::NoSuchPolicy(_) => Self::bad("LBPolicy", "names a load-balancer policy that is not there"),
        }
    }
}

fn there(domain: &Domain, database: &DatabaseName) -> Result<(), Error> {
    let known = domain.databases.get(database).filter(|database| database.state != DatabaseState::Tombstone);
    known.map(drop).ok_or_else(|| Error::NotFound(format!("there is no database {database}")))
}

/// The address that a client outside is told: that of the labels, unless it prefers the one inside.
fn outside(row: &mut ProcessRow, prefers_internal: bool) {
    if prefers_internal {
        return;
    }
    if let Some(address) = row.labels.get(EXTERNAL_ADDRESS).filter(|address| !address.is_empty()) {
        row.address = Some(address.clone());
        row.port = row.labels.get(EXTERNAL_PORT).and_then(|port| port.parse().ok()).or(row.port);
    }
}

/// The process that a client is sent to; an empty answer if none suits it.
pub(super) async fn sql_connection(
    State(face): State<Face>,
    named: Named,
    Asked(asked): Asked,
    parts: Parts,
) -> Result<Response, Error> {
    let database: DatabaseName = name(named, "database name")?.into();
    let caller = Caller::new(&parts, asked);
    let given: Parameters = caller.properties.clone().into_iter().collect();
    let prefers_internal = flag(&given, PREFER_INTERNAL)?;
    let hearing = Hearing { heard: face.source.heard(), peers: Vec::new() };
    let (index, decided) = face.source.read(|domain| {
        let decided = there(domain, &database).and_then(|()| {
            let chosen = face.balancer.decide(domain, &database, caller.client())?;
            let process = chosen.and_then(|id| domain.processes.get(&id));
            Ok(process.map(|process| ProcessRow::new(domain, process, &hearing)))
        });
        (domain.index, decided)
    });
    Ok(match decided? {
        Some(mut body) => {
            outside(&mut body, prefers_internal);
            Answer { index, body }.into_response()
        }
        None => ([(super::APPLIED_INDEX, index.to_string())], "").into_response(),
    })
}

/// Why each process was chosen, or was not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteAnswer {
    /// The database.
    pub database: String,
    /// The query that decided.
    pub query: String,
    /// Who set it.
    pub origin: String,
    /// Each process of the database.
    pub processes: Vec<VerdictRow>,
}

/// Why a process was chosen, or was not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerdictRow {
    /// The process.
    pub start_id: String,
    /// Its pod.
    pub pod: Option<String>,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Why.
    pub why: String,
}

/// Explains the decision that a client with these properties would get. Takes no turn.
pub(super) async fn route(
    State(face): State<Face>,
    named: Named,
    Asked(asked): Asked,
    parts: Parts,
) -> Result<Answer<RouteAnswer>, Error> {
    let database: DatabaseName = name(named, "database name")?.into();
    let caller = Caller::new(&parts, asked);
    let (index, body) = face.source.read(|domain| {
        let body = there(domain, &database).and_then(|()| {
            let (policies, candidates) =
                face.balancer.prepared.lock().unwrap_or_else(PoisonError::into_inner).of(domain, &database);
            let route = policies.route(&database, caller.client())?;
            let explained = explain(&route, &candidates, caller.client(), face.balancer.chance());
            let verdicts = explained.verdicts.into_iter().map(|verdict| VerdictRow {
                start_id: verdict.process.to_string(),
                pod: domain.processes.get(&verdict.process).map(|process| process.identity.pod.clone()),
                chosen: matches!(verdict.why, Why::Chosen { .. }),
                why: verdict.why.to_string(),
            });
            Ok(RouteAnswer {
                database: database.to_string(),
                query: explained.query.to_string(),
                origin: explained.origin.to_string(),
                processes: verdicts.collect(),
            })
        });
        (domain.index, body)
    });
    Ok(Answer { index, body: body? })
}

/// The processes that a filter lets pass, each among those of its own database, whatever their kind and state.
pub(super) fn passing<'a>(
    domain: &'a Domain,
    processes: impl Iterator<Item = &'a Process>,
    filter: &Filter,
) -> BTreeSet<StartId> {
    let mut of: BTreeMap<&DatabaseName, Vec<Candidate<'a>>> = BTreeMap::new();
    processes.for_each(|process| of.entry(&process.database).or_default().push(Candidate::of(domain, process)));
    let properties = BTreeMap::new();
    let client = Client { properties: &properties, address: None };
    of.into_values().flat_map(|those| listed(filter, &Candidates::new(those), client)).collect()
}

/// The filter of a request for processes.
pub(super) fn filter_query(text: &str) -> Result<Filter, Error> {
    Filter::read(text.as_bytes()).map_err(|why| Error::bad("filterQuery", format!("is no filter: {why}")))
}

pub(super) async fn policies(State(face): State<Face>, Asked(asked): Asked) -> Result<Answer<Page>, Error> {
    page(&face, &asked, |balancing| values(balancing.entries.iter().map(PolicyRow::new)))
}

pub(super) async fn configs(State(face): State<Face>, Asked(asked): Asked) -> Result<Answer<Page>, Error> {
    page(&face, &asked, |balancing| values(ConfigRow::all(balancing)))
}

fn page(
    face: &Face,
    asked: &Parameters,
    list: impl FnOnce(&Balancing) -> Vec<serde_json::Value>,
) -> Result<Answer<Page>, Error> {
    let selection = Selection::parse(asked)?;
    let (index, rows) = face.source.read(|domain| (domain.index, list(&domain.balancing)));
    Ok(Answer { index, body: selection.page(rows) })
}

/// A policy, a default or a pre-filter: the client lists all of them as policies.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyRow {
    policy_name: String,
    lb_query: String,
    /// The object whose annotation has set it.
    annotation: Option<String>,
    /// Who has set it, or has set something else for it that has no effect while the annotation is there.
    set_by: Option<String>,
}

impl PolicyRow {
    fn new((item, entry): (&Item, &Entry)) -> Self {
        Self {
            policy_name: item.listed_as(),
            lb_query: entry.text().to_owned(),
            annotation: entry.annotated.as_ref().map(|annotated| annotated.object.to_string()),
            set_by: entry.manual.as_ref().map(|manual| manual.by.clone()),
        }
    }
}

/// What is set for a database, or for all.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigRow {
    is_global: bool,
    db_name: Option<String>,
    default_lb_query: Option<String>,
    prefilter: Option<String>,
}

impl ConfigRow {
    fn all(balancing: &Balancing) -> impl Iterator<Item = Self> {
        let mut rows: BTreeMap<Option<&DatabaseName>, Self> = BTreeMap::new();
        for (item, entry) in &balancing.entries {
            if matches!(item, Item::Policy(_)) {
                continue;
            }
            let (database, text) = (item.database(), Some(entry.text().to_owned()));
            let row = rows.entry(database).or_default();
            (row.is_global, row.db_name) = (database.is_none(), database.map(ToString::to_string));
            match item {
                Item::Prefilter(_) => row.prefilter = text,
                Item::Default(_) | Item::Policy(_) => row.default_lb_query = text,
            }
        }
        rows.into_values()
    }
}

/// A policy to set.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Policy {
    policy_name: Option<String>,
    lb_query: String,
}

/// What to set for a database, or for all. Clients send null for what is not to be changed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    #[serde(default)]
    is_global: bool,
    db_name: Option<String>,
    default_lb_query: Option<String>,
    prefilter: Option<String>,
}

/// Names that annotations can have too.
fn policy(named: Named) -> Result<Item, Error> {
    let name = name(named, "policy name")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > MAX_POLICY_BYTES || !name.bytes().all(plain) {
        let why = format!("has to be up to {MAX_POLICY_BYTES} letters, digits, '-', '_' and '.'");
        return Err(Error::bad("policy name", why));
    }
    Ok(Item::Policy(name))
}

fn parsed(item: &Item, parameter: &str, text: String) -> Result<String, Error> {
    let what = if matches!(item, Item::Prefilter(_)) { "filter" } else { "query" };
    item.parses(&text).map_err(|why| Error::bad(parameter, format!("is no {what}: {why}")))?;
    Ok(text)
}

async fn set(face: &Face, writer: Writer, entries: BTreeMap<Item, Option<String>>) -> Result<Answer<()>, Error> {
    let written = face.source.write(writer.0, Command::SetLoadBalancer(SetLoadBalancer { entries })).await?;
    match written.accepted() {
        Ok(written) => Ok(Answer { index: written.index, body: () }),
        // A policy does not wait for a storage manager.
        Err(Refusal::NoDatabase(database)) => Err(Refusal::UnknownDatabase(database).into()),
        Err(refusal) => Err(refusal.into()),
    }
}

pub(super) async fn set_policy(
    State(face): State<Face>,
    writer: Writer,
    named: Named,
    Body(Policy { policy_name, lb_query }): Body<Policy>,
) -> Result<Answer<()>, Error> {
    let item = policy(named)?;
    if policy_name.is_some_and(|name| name != item.listed_as()) {
        return Err(Error::bad("policyName", "differs between the body and the path"));
    }
    let text = parsed(&item, "lbQuery", lb_query)?;
    set(&face, writer, [(item, Some(text))].into()).await
}

/// Deletes what an operator has set. What an annotation sets is deleted with the annotation.
pub(super) async fn delete_policy(State(face): State<Face>, writer: Writer, named: Named) -> Result<Answer<()>, Error> {
    let item = policy(named)?;
    let entry = face.source.read(|domain| domain.balancing.entries.get(&item).cloned());
    match entry {
        None => return Err(Error::NotFound(format!("there is no load-balancer policy {}", item.listed_as()))),
        Some(entry) if entry.manual.is_none() => {
            let object = entry.annotated.map(|annotated| annotated.object.to_string()).unwrap_or_default();
            let (prefix, name) = (face.source.annotation_prefix(), item.annotation());
            return Err(Error::Conflict(format!(
                "annotation {prefix}{name} of {object} sets it: remove the annotation"
            )));
        }
        Some(_) => {}
    }
    set(&face, writer, [(item, None)].into()).await
}

pub(super) async fn set_config(
    State(face): State<Face>,
    writer: Writer,
    Asked(asked): Asked,
    Body(config): Body<Config>,
) -> Result<Answer<()>, Error> {
    let database: Option<DatabaseName> = match (config.is_global, config.db_name) {
        (true, None) => None,
        (false, Some(name)) => Some(name.into()),
        _ => return Err(Error::bad("dbName", "or isGlobal has to be given, and not both")),
    };
    let wanted = [
        (Item::Default(database.clone()), "defaultLbQuery", config.default_lb_query, "unregisterDefaultLbQuery"),
        (Item::Prefilter(database), "prefilter", config.prefilter, "unregisterPrefilter"),
    ];
    let mut entries = BTreeMap::new();
    for (item, parameter, text, unregister) in wanted {
        match (text, flag(&asked, unregister)?) {
            (Some(_), true) => {
                return Err(Error::bad(parameter, format!("cannot be given together with {unregister}")));
            }
            (Some(text), false) => {
                let text = parsed(&item, parameter, text)?;
                entries.insert(item, Some(text));
            }
            (None, true) => drop(entries.insert(item, None)),
            (None, false) => {}
        }
    }
    if entries.is_empty() {
        return Err(Error::bad("defaultLbQuery", "or another change has to be given"));
    }
    set(&face, writer, entries).await
}
