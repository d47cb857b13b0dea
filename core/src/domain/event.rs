//! What has changed, as the audit trail keeps it: typed, so that every server keeps the same whatever words its version has for
//! it. The words are made on reading. A variant is known since the version of the change that makes it.

mod archive;
mod balancer;
mod database;
mod domain;
mod process;
mod replication;
mod server;
mod task;

use super::archive::Claim;
use super::ids::Uid;
pub use archive::ArchiveEvent;
pub use balancer::LoadBalancerEvent;
pub use database::{DatabaseEvent, ValueEvent};
pub use domain::{DomainEvent, RestoredFrom};
pub use process::ProcessEvent;
pub use replication::ReplicationEvent;
use serde::{Deserialize, Serialize};
pub use server::ServerEvent;
use std::fmt;
use strum::VariantNames;
pub use task::TaskEvent;

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A sentence, from a snapshot that an earlier version made.
    Said(String),
    /// The domain as a whole.
    Domain(Box<DomainEvent>),
    /// An admin server.
    Server(ServerEvent),
    /// A database.
    Database(DatabaseEvent),
    /// An archive.
    Archive(ArchiveEvent),
    /// A process.
    Process(ProcessEvent),
    /// A value.
    Value(ValueEvent),
    /// A load-balancer entry.
    LoadBalancer(LoadBalancerEvent),
    /// A task.
    Task(TaskEvent),
    /// The replication of a database with one primary.
    Replication(Box<ReplicationEvent>),
}

impl Event {
    /// The name of each, with what it is about.
    pub fn names() -> Vec<String> {
        let kinds = [
            ("Domain", DomainEvent::VARIANTS),
            ("Server", ServerEvent::VARIANTS),
            ("Database", DatabaseEvent::VARIANTS),
            ("Archive", ArchiveEvent::VARIANTS),
            ("Process", ProcessEvent::VARIANTS),
            ("Value", ValueEvent::VARIANTS),
            ("LoadBalancer", LoadBalancerEvent::VARIANTS),
            ("Task", TaskEvent::VARIANTS),
            ("Replication", ReplicationEvent::VARIANTS),
        ];
        kinds.into_iter().flat_map(|(kind, names)| names.iter().map(move |name| format!("{kind}{name}"))).collect()
    }

    /// Its name, with what it is about.
    pub fn name(&self) -> String {
        let (kind, name): (&str, &str) = match self {
            Self::Said(_) => ("", "Said"),
            Self::Domain(event) => ("Domain", (&**event).into()),
            Self::Server(event) => ("Server", event.into()),
            Self::Database(event) => ("Database", event.into()),
            Self::Archive(event) => ("Archive", event.into()),
            Self::Process(event) => ("Process", event.into()),
            Self::Value(event) => ("Value", event.into()),
            Self::LoadBalancer(event) => ("LoadBalancer", event.into()),
            Self::Task(event) => ("Task", event.into()),
            Self::Replication(event) => ("Replication", (&**event).into()),
        };
        format!("{kind}{name}")
    }

    /// How many bytes its strings have, about. Not its words: all servers have to count the same.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Said(text) => text.len(),
            Self::Domain(event) => event.bytes(),
            Self::Server(event) => event.bytes(),
            Self::Database(event) => event.bytes(),
            Self::Archive(event) => event.bytes(),
            Self::Process(event) => event.bytes(),
            Self::Value(ValueEvent::Set | ValueEvent::Deleted) => 0,
            Self::LoadBalancer(event) => event.bytes(),
            Self::Task(event) => event.bytes(),
            Self::Replication(event) => event.bytes(),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(text) => f.write_str(text),
            Self::Domain(event) => event.fmt(f),
            Self::Server(event) => event.fmt(f),
            Self::Database(event) => event.fmt(f),
            Self::Archive(event) => event.fmt(f),
            Self::Process(event) => event.fmt(f),
            Self::Value(event) => event.fmt(f),
            Self::LoadBalancer(event) => event.fmt(f),
            Self::Task(event) => event.fmt(f),
            Self::Replication(event) => event.fmt(f),
        }
    }
}

macro_rules! is_event {
    ($($kind:ident, $event:ident;)*) => {$(
        impl From<$event> for Event {
            fn from(event: $event) -> Self {
                Self::$kind(event)
            }
        }
    )*};
}

is_event! {
    Server, ServerEvent;
    Database, DatabaseEvent;
    Archive, ArchiveEvent;
    Process, ProcessEvent;
    Value, ValueEvent;
    LoadBalancer, LoadBalancerEvent;
    Task, TaskEvent;
}

impl From<DomainEvent> for Event {
    fn from(event: DomainEvent) -> Self {
        Self::Domain(Box::new(event))
    }
}

impl From<ReplicationEvent> for Event {
    fn from(event: ReplicationEvent) -> Self {
        Self::Replication(Box::new(event))
    }
}

/// A claim, as a reader knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimName {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
}

impl ClaimName {
    fn bytes(&self) -> usize {
        self.name.len() + self.uid.as_str().len()
    }
}

impl From<&Claim> for ClaimName {
    fn from(claim: &Claim) -> Self {
        Self { name: claim.name.clone(), uid: claim.uid.clone() }
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim {} ({})", self.name, self.uid)
    }
}
