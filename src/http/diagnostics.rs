//! What the published client asks of an agent rather than of the domain: its settings, all of its state at once, and a license, of
//! which there is none.

use super::domain::{Named, name};
use super::error::Error;
use super::rows::{self, ArchiveRow, DatabaseRow, ExitedRow, Hearing, PeerRow, ProcessRow};
use super::source::Source;
use super::{Answer, Face, large};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use kaa_core::domain::Domain;
use kaa_core::domain::ids::{DomainId, Millis, ServerId};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The settings of the agent that is asked.
pub(super) async fn this_config(State(face): State<Face>) -> Answer<Value> {
    config(&face, None)
}

/// The settings of a server: of another than the one that is asked what the domain knows.
pub(super) async fn config_of(State(face): State<Face>, named: Named) -> Result<Answer<Value>, Error> {
    let id = ServerId::from(name(named, "server id")?);
    let peers = face.source.peers();
    let known = face.source.read(|domain| domain.servers.contains_key(&id)) || peers.iter().any(|peer| peer.id == id);
    if !known {
        return Err(Error::NotFound(format!("there is no server {id}")));
    }
    let is_local = peers.iter().any(|peer| peer.is_local && peer.id == id);
    Ok(config(&face, Some(id).filter(|_| !is_local)))
}

fn config(face: &Face, other: Option<ServerId>) -> Answer<Value> {
    let peers = face.source.peers();
    let (index, rows) = face.source.read(|domain| (domain.index, rows::peers(domain, &peers)));
    let row = |row: &&PeerRow| other.as_ref().map_or(row.is_local, |id| row.id == id.as_str());
    let row = rows.iter().find(row).cloned().unwrap_or_default();
    let mut properties: BTreeMap<&'static str, String> = if other.is_some() {
        [("ThisServerId", Some(row.id)), ("cluster", row.cluster)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    } else {
        face.source.settings()
    };
    properties.extend(row.address.map(|address| ("altAddr", address)));
    properties.extend(row.version.map(|version| ("version", version)));
    let transports = rows.iter().filter_map(|row| Some((&row.id, json!({"transport": row.address.as_ref()?}))));
    let body = json!({
        "properties": properties,
        "initialMembership": transports.collect::<BTreeMap<_, _>>(),
        "otherServices": ["rest"],
        "statsPlugins": {},
        "loadBalancers": {},
        "labels": row.labels,
    });
    Answer { index, body }
}

/// No license: none is needed.
pub(super) async fn license() -> Json<Value> {
    Json(json!({"decodedLicense": null, "encodedLicense": null, "effectiveForDomain": false, "licenseFile": null}))
}

/// The domain as the agent that is asked has applied it. No values: a snapshot has those.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Capture {
    id: Option<DomainId>,
    name: String,
    index: u64,
    time: Millis,
    captured: Millis,
    servers: Vec<PeerRow>,
    databases: Vec<DatabaseRow>,
    archives: Vec<ArchiveRow>,
    removed_archives: Vec<ArchiveRow>,
    processes: Vec<ProcessRow>,
    exited_processes: Vec<ExitedRow>,
    voters: Vec<ServerId>,
    values: usize,
}

impl Capture {
    fn of(source: &dyn Source) -> Self {
        let hearing = Hearing { heard: source.heard(), peers: source.peers() };
        let captured = source.now();
        source.read(|domain| Self::new(domain, &hearing, captured))
    }

    fn new(domain: &Domain, hearing: &Hearing, captured: Millis) -> Self {
        let rows = |removed: bool| {
            let of_it = domain.archives.values().filter(move |archive| archive.removed.is_some() == removed);
            of_it.map(|archive| ArchiveRow::new(domain, archive)).collect()
        };
        Self {
            id: domain.id.clone(),
            name: domain.name.clone(),
            index: domain.index,
            time: domain.time,
            captured,
            servers: rows::peers(domain, &hearing.peers),
            databases: domain.databases.values().map(DatabaseRow::new).collect(),
            archives: rows(false),
            removed_archives: rows(true),
            processes: domain.processes.values().map(|it| ProcessRow::new(domain, it, hearing)).collect(),
            exited_processes: domain.tombstones.values().map(|it| ExitedRow::new(domain, it)).collect(),
            voters: domain.voters.iter().flat_map(|voters| voters.servers.iter().cloned()).collect(),
            values: domain.values.len(),
        }
    }
}

pub(super) async fn capture(State(face): State<Face>) -> Result<Response, Error> {
    let source: Arc<dyn Source> = face.source.clone();
    large::answer(move || {
        let captured = Capture::of(&*source);
        Ok((Some(captured.index), captured))
    })
    .await
}
