//! The protocol version of a database: `show database-versions` and `upgrade database-version` of the published client.

use super::domain::{Named, linearize, name};
use super::error::Error;
use super::extract::Asked;
use super::page::{Parameters, flag, parameter};
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{Command, UpgradeDatabase};
use kaa_core::domain::ids::{DatabaseName, ProtocolId};
use kaa_core::domain::protocol::{Protocol, Versions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is shown of a release that reports no protocol versions.
const UNKNOWN: &str = "unknown";

/// The versions of a database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct VersionsRow {
    pub db_name: String,
    /// The id of the version in effect; null if it is not known.
    pub effective_version: Option<String>,
    /// Its name.
    pub version: Option<String>,
    /// The id of the greatest version that all processes support.
    pub max_version: Option<String>,
    pub available_versions: Vec<AvailableRow>,
    /// By release: the greatest version that it supports.
    pub all_versions: BTreeMap<String, ReleaseRow>,
    /// By release: the start ids of its processes.
    pub process_versions: BTreeMap<String, Vec<String>>,
}

/// A version that the database can be upgraded to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct AvailableRow {
    pub version_id: ProtocolId,
    pub name: String,
}

/// The greatest version of a release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the fields are named by the published client")]
pub struct ReleaseRow {
    pub version_id: String,
    pub version: String,
}

impl VersionsRow {
    /// The versions of a database, if there is one of the name.
    pub fn new(domain: &Domain, name: &DatabaseName) -> Option<Self> {
        let Versions { effective, available, newest, releases } = domain.versions(name)?;
        let known = available.last().or(effective.as_ref()).map(|max| max.id);
        let release = |max: &Option<Protocol>| {
            let version_id = max.as_ref().map_or(UNKNOWN.to_owned(), |max| max.id.to_string());
            ReleaseRow { version_id, version: max.as_ref().map_or(UNKNOWN.to_owned(), |max| max.name.clone()) }
        };
        Some(Self {
            db_name: name.to_string(),
            max_version: known.or(newest).map(|id| id.to_string()),
            effective_version: effective.as_ref().map(|effective| effective.id.to_string()),
            version: effective.map(|effective| effective.name),
            available_versions: available
                .into_iter()
                .map(|version| AvailableRow { version_id: version.id, name: version.name })
                .collect(),
            all_versions: releases.iter().map(|(name, it)| (name.clone(), release(&it.max))).collect(),
            process_versions: releases
                .into_iter()
                .map(|(name, it)| (name, it.processes.iter().map(ToString::to_string).collect()))
                .collect(),
        })
    }
}

pub(super) async fn shown(State(face): State<Face>, named: Named) -> Result<Answer<VersionsRow>, Error> {
    let database: DatabaseName = name(named, "database name")?.into();
    answer(&face, &database)
}

fn answer(face: &Face, database: &DatabaseName) -> Result<Answer<VersionsRow>, Error> {
    let (index, row) = face.source.read(|domain| (domain.index, VersionsRow::new(domain, database)));
    let body = row.ok_or_else(|| Error::NotFound(format!("there is no database {database}")))?;
    Ok(Answer { index, body })
}

/// Which version is meant: by its number, or by its name; `None` for the greatest one.
fn wanted(asked: &Parameters, row: &VersionsRow) -> Result<Option<ProtocolId>, Error> {
    match (parameter(asked, "version"), flag(asked, "maxVersion")?) {
        (None, true) => Ok(None),
        (Some(_), true) => Err(Error::bad("version", "cannot be there if maxVersion is true")),
        (None, false) => Err(Error::bad("version", "is needed, or maxVersion=true")),
        (Some(text), false) => {
            let named = |row: &&AvailableRow| row.name == text || row.name.split('|').any(|name| name == text);
            let by_name = row.available_versions.iter().find(named).map(|row| row.version_id);
            // A name may be a number.
            let id = by_name.or_else(|| text.parse().ok());
            id.map(Some).ok_or_else(|| Error::bad("version", format!("is '{text}', which is no available version")))
        }
    }
}

/// Raises the version of a database; no engine is restarted. Answers with its versions.
pub(super) async fn upgrade(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<VersionsRow>, Error> {
    let database: DatabaseName = name(named, "database name")?.into();
    // Only of a database that is there are the workloads read, and an agent that does not follow the group may not know it.
    linearize(&face).await?;
    let to = wanted(&asked, &answer(&face, &database)?.body)?;
    let evidence = face.source.read_workloads(&database).await;
    // Only where there are several: an older server does not know the field.
    let several = face.source.read(|domain| domain.founded_in.is_some());
    let cluster = Some(face.source.cluster()).filter(|_| several);
    let command = Command::UpgradeDatabase(UpgradeDatabase { database: database.clone(), to, cluster, evidence });
    face.source.write(actor, command).await?.accepted()?;
    answer(&face, &database)
}

#[cfg(test)]
mod tests {
    use super::{AvailableRow, VersionsRow, wanted};
    use kaa_core::domain::ids::ProtocolId;

    #[test]
    fn a_name_that_is_a_number_is_a_name_first() {
        let version = |id, name: &str| AvailableRow { version_id: ProtocolId(id), name: name.to_owned() };
        let row = VersionsRow { available_versions: vec![version(7, "9"), version(9, "x")], ..VersionsRow::default() };
        let asked = |text: &str| wanted(&[("version".to_owned(), text.to_owned())].into(), &row).ok().flatten();
        assert_eq!(["9", "7", "x", "8"].map(|text| asked(text).map(|id| id.0)), [Some(7), Some(7), Some(9), Some(8)]);
    }
}
