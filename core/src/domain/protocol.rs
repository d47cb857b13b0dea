//! The protocol version of a database: which one is in effect, which ones its engines support, and when it can be raised.
//!
//! A rolling update brings a new release of the engines while the database keeps its effective version, so that both releases
//! understand each other. Once all engines are of one release, the database can be upgraded to a version that all of them
//! support. That is irreversible: engines of the release before do not understand it.

use super::Domain;
use super::command::Actor;
use super::database::DatabaseState;
use super::event::DatabaseEvent;
use super::evidence::Need;
use super::ids::{ArchiveId, ClusterName, DatabaseName, ProtocolId, StartId, Uid};
use super::process::{DurableState, EngineKind, EngineState, Process, SessionState};
use crate::domain::audit::Subject;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A protocol version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Its number.
    pub id: ProtocolId,
    /// Its name, such as `4.3`.
    pub name: String,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.name)
    }
}

/// What the domain knows of the protocol version of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveProtocol {
    /// The version in effect.
    pub effective: Protocol,
    /// The version to which an operator cancelled the automatic upgrade: it is not begun again.
    #[serde(default)]
    pub declined: Option<ProtocolId>,
}

impl EffectiveProtocol {
    /// A version, and no cancelled upgrade.
    pub fn new(effective: Protocol) -> Self {
        Self { effective, declined: None }
    }
}

/// The versions of a database, as its living processes report them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The version in effect, if it is known.
    pub effective: Option<Protocol>,
    /// The later versions that every process supports, in order.
    pub available: Vec<Protocol>,
    /// The greatest version that any process supports.
    pub newest: Option<ProtocolId>,
    /// The releases, each with its processes.
    pub releases: BTreeMap<String, Release>,
}

/// The processes of one release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// The greatest version that it supports, if it reports any.
    pub max: Option<Protocol>,
    /// Its processes.
    pub processes: BTreeSet<StartId>,
}

/// Why the protocol version of a database cannot be upgraded now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotReady {
    /// It does not run.
    #[error("the database is not RUNNING")]
    NotRunning,
    /// A process reports no release, or no protocol versions.
    #[error("process {0} reports no release, or no protocol versions")]
    VersionsUnknown(StartId),
    /// No storage manager that reports its protocol versions has run.
    #[error("the effective protocol version is not known")]
    EffectiveUnknown,
    /// A process does not run, or is silent.
    #[error("process {0} is not MONITORED:RUNNING with a live session")]
    Process(StartId),
    /// A storage manager may start on an archive, with any release.
    #[error("archive {0} is not removed, and has no process that is MONITORED:RUNNING with a live session")]
    Archive(ArchiveId),
    /// An engine may start in a pod, with any release.
    #[error("pod {0} has no process that is MONITORED:RUNNING with a live session")]
    Pod(String),
    /// The processes are of different releases.
    #[error("processes run release '{one}' and release '{other}'")]
    Releases {
        /// One of them.
        one: String,
        /// Another one.
        other: String,
    },
    /// There is no later version that all processes support.
    #[error("no later protocol version is supported by all processes")]
    UpToDate,
}

/// What a database can be upgraded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgradable {
    /// The version in effect.
    pub from: Protocol,
    /// The greatest available version.
    pub max: Protocol,
    /// The release of all processes.
    pub release: String,
}

/// Whether a process takes part in its database, as far as its agent knows now.
pub fn serves(process: &Process) -> bool {
    process.durable == DurableState::Monitored
        && process.engine == EngineState::Running
        && process.session.state == SessionState::Live
}

/// Whether a process reports all that an upgrade judges by.
pub fn reports(process: &Process) -> bool {
    !process.about.version.is_empty() && !process.about.protocols.is_empty()
}

impl Domain {
    /// What has to be read before a database is upgraded.
    pub fn workloads_of(&self, name: &DatabaseName) -> Need {
        let pods = self.processes_of(name).map(|process| process.identity.pod_uid.clone()).collect();
        Need::WorkloadsOf { database: name.clone(), pods }
    }

    /// The first of these pods of a database whose engine is not known to serve. An engine that has not registered yet, or not
    /// again, may be of any release. One of another database is none of this one's.
    pub fn unserving<'a>(&self, name: &DatabaseName, pods: &'a BTreeMap<String, Uid>) -> Option<&'a String> {
        let fits = |process: &Process| process.database != *name || serves(process);
        let known =
            |uid: &Uid| self.processes.values().any(|process| process.identity.pod_uid == *uid && fits(process));
        pods.iter().find(|(_, uid)| !known(uid)).map(|(pod, _)| pod)
    }

    /// Whether a process of a database lives in a cluster.
    pub fn serves_in(&self, cluster: &ClusterName, name: &DatabaseName) -> bool {
        self.processes_of(name).any(|process| process.cluster == *cluster)
    }

    /// The living processes of a database.
    pub fn processes_of<'a>(&'a self, name: &DatabaseName) -> impl Iterator<Item = &'a Process> + Clone {
        self.processes.values().filter(move |process| process.database == *name)
    }

    /// The versions of a database; `None` if there is no such database.
    pub fn versions(&self, name: &DatabaseName) -> Option<Versions> {
        let database = self.databases.get(name).filter(|database| database.state != DatabaseState::Tombstone)?;
        let effective = database.protocol.as_ref().map(|known| known.effective.clone());
        let mut releases: BTreeMap<String, Release> = BTreeMap::new();
        for process in self.processes_of(name) {
            let release = releases.entry(process.about.version.clone()).or_default();
            release.processes.insert(process.id);
            let max = process.about.protocols.last_key_value();
            let max = max.map(|(id, name)| Protocol { id: *id, name: name.clone() });
            if max.as_ref().map(|max| max.id) > release.max.as_ref().map(|max| max.id) {
                release.max = max;
            }
        }
        let mut processes = self.processes_of(name);
        let by_all = |id: &ProtocolId| self.processes_of(name).all(|process| process.about.protocols.contains_key(id));
        let later = |id: &ProtocolId| effective.as_ref().is_some_and(|effective| *id > effective.id);
        let first = processes.next().map(|process| process.about.protocols.clone()).unwrap_or_default();
        let available = first.into_iter().filter(|(id, _)| later(id) && by_all(id));
        let available = available.map(|(id, name)| Protocol { id, name }).collect();
        let newest = releases.values().filter_map(|release| release.max.as_ref()).map(|max| max.id).max();
        Some(Versions { effective, available, newest, releases })
    }

    /// Whether the protocol version of a database can be upgraded, or the first reason against it. Who asks for it, and what its
    /// workloads do, is another matter.
    pub fn upgradable(&self, name: &DatabaseName) -> Result<Upgradable, NotReady> {
        if !self.runs(name) {
            return Err(NotReady::NotRunning);
        }
        let versions = self.versions(name).ok_or(NotReady::NotRunning)?;
        if let Some(silent) = self.processes_of(name).find(|process| !reports(process)) {
            return Err(NotReady::VersionsUnknown(silent.id));
        }
        let from = versions.effective.ok_or(NotReady::EffectiveUnknown)?;
        let mut releases = versions.releases.into_keys();
        let release = releases.next().ok_or(NotReady::NotRunning)?;
        if let Some(other) = releases.next() {
            return Err(NotReady::Releases { one: release, other });
        }
        if let Some(process) = self.processes_of(name).find(|process| !serves(process)) {
            return Err(NotReady::Process(process.id));
        }
        let mut archives =
            self.archives.values().filter(|archive| archive.database == *name && archive.removed.is_none());
        if let Some(idle) = archives.find(|archive| self.process_on(archive.id).is_none()) {
            return Err(NotReady::Archive(idle.id));
        }
        let max = versions.available.into_iter().next_back().ok_or(NotReady::UpToDate)?;
        Ok(Upgradable { from, max, release })
    }

    /// Notes the effective version of a database whose first storage manager with known versions runs. A new database begins
    /// with the greatest version; data that is older than that knowledge may have any, so the least counts.
    pub(super) fn learn_protocol(&mut self, actor: &Actor, process: StartId, is_new: bool) {
        let Some(process) = self.processes.get(&process).filter(|process| process.kind == EngineKind::Sm) else {
            return;
        };
        let known =
            if is_new { process.about.protocols.last_key_value() } else { process.about.protocols.iter().next() };
        let Some(effective) = known.map(|(id, name)| Protocol { id: *id, name: name.clone() }) else { return };
        let name = process.database.clone();
        let Some(database) = self.databases.get_mut(&name).filter(|database| database.protocol.is_none()) else {
            return;
        };
        database.protocol = Some(EffectiveProtocol::new(effective.clone()));
        self.note(actor, [Subject::Database(name)], DatabaseEvent::ProtocolKnown { protocol: effective }, None);
    }

    /// Raises the effective version of a database.
    pub(super) fn raise_protocol(&mut self, name: &DatabaseName, to: &Protocol) {
        if let Some(known) = self.databases.get_mut(name).and_then(|database| database.protocol.as_mut()) {
            known.effective = to.clone();
            known.declined = None;
        }
    }
}
