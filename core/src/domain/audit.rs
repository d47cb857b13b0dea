//! The audit trail: who changed what, why, and on what evidence.

use super::bounds::Bounds;
use super::command::Actor;
use super::evidence::Evidence;
use super::ids::{ArchiveId, ClusterName, DatabaseName, Millis, ServerId, StartId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The log entry that made it.
    pub index: u64,
    /// When.
    pub at: Millis,
    /// Who asked for it.
    pub actor: Actor,
    /// What it touched.
    pub subjects: Vec<Subject>,
    /// What changed, and why.
    pub what: String,
    /// What it rests on.
    pub evidence: Option<Evidence>,
}

/// Something whose history can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// A server.
    Server(ServerId),
    /// A database.
    Database(DatabaseName),
    /// An archive.
    Archive(ArchiveId),
    /// A process.
    Process(StartId),
    /// A cluster's resync.
    Resync(ClusterName),
    /// A value.
    Value(String),
    /// The domain itself.
    Domain,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(id) => write!(f, "server/{id}"),
            Self::Database(name) => write!(f, "database/{name}"),
            Self::Archive(id) => write!(f, "archive/{id}"),
            Self::Process(id) => write!(f, "process/{id}"),
            Self::Resync(cluster) => write!(f, "resync/{cluster}"),
            Self::Value(key) => write!(f, "value/{key}"),
            Self::Domain => f.write_str("domain"),
        }
    }
}

/// A text that names no subject.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not one of archive/ID, process/ID, server/ID, database/NAME, resync/CLUSTER, value/KEY, domain")]
pub struct NotASubject(String);

impl FromStr for Subject {
    type Err = NotASubject;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NotASubject(text.to_owned());
        if text == "domain" {
            return Ok(Self::Domain);
        }
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
        Ok(match kind {
            "server" => Self::Server(name.into()),
            "database" => Self::Database(name.into()),
            "archive" => Self::Archive(name.parse().map_err(|_| wrong())?),
            "process" => Self::Process(name.parse().map_err(|_| wrong())?),
            "resync" => Self::Resync(name.into()),
            "value" => Self::Value(name.to_owned()),
            _ => return Err(wrong()),
        })
    }
}

/// The last changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    records: VecDeque<Record>,
    /// How many records were dropped to make room.
    pub dropped: u64,
}

impl Audit {
    /// Appends a record and drops the oldest where there is no room.
    pub fn push(&mut self, record: Record, bounds: &Bounds) {
        self.records.push_back(record);
        while self.records.len() > bounds.records {
            self.records.pop_front();
            self.dropped += 1;
        }
    }

    /// Every record, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.iter()
    }

    /// What is known of one subject, oldest first.
    pub fn of<'a>(&'a self, subject: &'a Subject) -> impl DoubleEndedIterator<Item = &'a Record> {
        self.records.iter().filter(move |record| record.subjects.contains(subject))
    }
}
