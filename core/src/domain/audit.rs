//! The audit trail: who changed what, why, and on what evidence.

use super::balancing::Item;
use super::bounds::{self, Bounds};
use super::command::Actor;
use super::event::Event;
use super::evidence::Evidence;
use super::ids::{ArchiveId, ClusterName, DatabaseName, Millis, ServerId, StartId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KeptRecord")]
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
    pub event: Event,
    /// What it rests on.
    pub evidence: Option<Evidence>,
    /// How many facts and subjects more there were than a record keeps.
    pub omitted: Omitted,
}

/// What a record does not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// So many facts more were read.
    pub facts: u64,
    /// So many subjects more it concerns.
    pub subjects: u64,
}

/// A record, as this version or an earlier one keeps it.
#[derive(Deserialize)]
struct KeptRecord {
    index: u64,
    at: Millis,
    actor: Actor,
    subjects: Vec<Subject>,
    event: Option<Event>,
    /// What a version before the events has: a sentence.
    what: Option<String>,
    evidence: Option<Evidence>,
    #[serde(default)]
    omitted: Omitted,
}

impl From<KeptRecord> for Record {
    fn from(kept: KeptRecord) -> Self {
        let KeptRecord { index, at, actor, subjects, event, what, evidence, omitted } = kept;
        let event = event.unwrap_or_else(|| Event::Said(what.unwrap_or_default()));
        Self { index, at, actor, subjects, event, evidence, omitted }
    }
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
    /// A load-balancer entry.
    LoadBalancer(Item),
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
            Self::LoadBalancer(item) => write!(f, "load-balancer/{item}"),
        }
    }
}

/// A text that names no subject.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is not one of archive/ID, process/ID, server/ID, database/NAME, resync/CLUSTER, value/KEY, load-balancer/ENTRY, domain"
)]
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
            "load-balancer" => Self::LoadBalancer(name.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        })
    }
}

/// The last changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Kept")]
pub struct Audit {
    records: VecDeque<Record>,
    /// How many records were dropped to make room.
    pub dropped: u64,
    /// What the records take, in bytes, about.
    #[serde(skip)]
    bytes: usize,
}

/// The trail, as it is kept.
#[derive(Deserialize)]
struct Kept {
    records: VecDeque<Record>,
    dropped: u64,
}

impl From<Kept> for Audit {
    fn from(Kept { records, dropped }: Kept) -> Self {
        let bytes = records.iter().map(Record::bytes).sum();
        Self { records, dropped, bytes }
    }
}

impl Record {
    /// A record that omits nothing yet.
    pub(super) fn new(
        index: u64,
        at: Millis,
        actor: Actor,
        subjects: Vec<Subject>,
        event: Event,
        evidence: Option<Evidence>,
    ) -> Self {
        Self { index, at, actor, subjects, event, evidence, omitted: Omitted::default() }
    }

    /// What changed, and why, in words.
    pub fn text(&self) -> String {
        let mut text = self.event.to_string();
        for (count, what) in [(self.omitted.facts, "facts were read"), (self.omitted.subjects, "subjects it concerns")]
        {
            if count > 0 {
                text.push_str(&format!(" ({count} more {what})"));
            }
        }
        text
    }

    /// What it takes, in bytes, about.
    fn bytes(&self) -> usize {
        let subjects = self.subjects.iter().map(|subject| 32 + subject.to_string().len()).sum::<usize>();
        let evidence = self.evidence.as_ref().map_or(0, bounds::evidence_bytes);
        128 + self.actor.name.len() + self.event.bytes() + subjects + evidence
    }

    /// Drops what is beyond what a record keeps, and counts it.
    fn cut(&mut self, bounds: &Bounds) {
        let read = self.evidence.as_mut().map(|evidence| &mut evidence.facts);
        let facts = read.map_or(0, |facts| facts.drain(bounds.facts.min(facts.len())..).count());
        let subjects = self.subjects.drain(bounds.facts.min(self.subjects.len())..).count();
        self.omitted.facts += facts as u64;
        self.omitted.subjects += subjects as u64;
    }

    /// The process that it is about before all.
    fn process(&self) -> Option<StartId> {
        if let Some(Subject::Process(id)) = self.subjects.first() { Some(*id) } else { None }
    }
}

impl Audit {
    /// Appends a record and drops the oldest where there is no room.
    pub fn push(&mut self, mut record: Record, bounds: &Bounds) {
        record.cut(bounds);
        if let Some(process) = record.process() {
            let of_it = |record: &&Record| record.process() == Some(process);
            if self.records.iter().filter(of_it).count() >= bounds.records_of_process {
                // Its first one says how it registered; what it has said of itself since is worth less than what others have.
                let mut places = (0..self.records.len()).filter(|place| of_it(&&self.records[*place]));
                if let Some(second) = places.nth(1) {
                    self.drop_at(second);
                }
            }
        }
        self.bytes += record.bytes();
        self.records.push_back(record);
        while self.records.len() > bounds.records || self.bytes > bounds.records_bytes {
            self.drop_at(0);
        }
    }

    fn drop_at(&mut self, place: usize) {
        if let Some(record) = self.records.remove(place) {
            self.bytes -= record.bytes();
            self.dropped += 1;
        }
    }

    /// What the records take, in bytes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
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
