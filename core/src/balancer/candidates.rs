//! The processes among which a query chooses, prepared for many decisions.
//!
//! A decision compares one value of many processes at a time. So the values are kept field by field, as text, and found
//! once for a filter and not once for each process. A caller that keeps candidates prepares them again when [`Candidates::are_of`]
//! says that a process has changed.

use super::query::Field;
use super::set::Set;
use crate::domain::Domain;
use crate::domain::ids::{DatabaseName, NodeId, ServerId, StartId};
use crate::domain::process::{DurableState, EngineKind, EngineState, Process, SessionState, Ties};
use std::collections::BTreeMap;

/// Kaa's processes have no options yet.
static NO_OPTIONS: BTreeMap<String, String> = BTreeMap::new();

/// What load balancing knows of a process.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Names this start.
    pub id: StartId,
    /// Names the engine within its database.
    pub node: NodeId,
    /// Storage manager or transaction engine.
    pub kind: EngineKind,
    /// How far the domain has taken it.
    pub durable: DurableState,
    /// What the engine last said of itself.
    pub engine: EngineState,
    /// The agent that has, or had, its session.
    pub server: &'a ServerId,
    /// Whether its session is live.
    pub live: bool,
    /// The pod's address; empty if it told none.
    pub address: &'a str,
    /// The host's name; empty if it told none.
    pub hostname: &'a str,
    /// The engine's process id; 0 if it has none.
    pub pid: u32,
    /// Its own labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The labels that tie it to Kubernetes.
    pub ties: Ties<'a>,
    /// Its options.
    pub options: &'a BTreeMap<String, String>,
}

impl<'a> Candidate<'a> {
    /// A process, with the claim of its archive.
    pub fn of(domain: &'a Domain, process: &'a Process) -> Self {
        Self { ties: process.ties(domain.claim_under(process)), ..process.into() }
    }
}

impl<'a> From<&'a Process> for Candidate<'a> {
    fn from(process: &'a Process) -> Self {
        Self {
            id: process.id,
            node: process.node,
            kind: process.kind,
            durable: process.durable,
            engine: process.engine,
            server: &process.session.server,
            live: process.session.state == SessionState::Live,
            address: &process.about.address,
            hostname: &process.about.hostname,
            pid: process.about.pid,
            labels: &process.about.labels,
            ties: process.ties(None),
            options: &NO_OPTIONS,
        }
    }
}

/// Why a process is offered to no client, whatever the query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOffered {
    /// It serves no clients.
    #[error("it is a storage manager")]
    StorageManager,
    /// It has not reported yet that it runs, or was told to stop.
    #[error("it is {0}, not MONITORED")]
    NotMonitored(DurableState),
    /// It said that it does not serve.
    #[error("its engine is {0}, not RUNNING")]
    NotRunning(EngineState),
    /// No agent hears from it.
    #[error("its session is lost")]
    SessionLost,
}

impl Candidate<'_> {
    /// Why it is offered to no client; `None` if it is offered.
    pub fn not_offered(&self) -> Option<NotOffered> {
        if self.kind != EngineKind::Te {
            return Some(NotOffered::StorageManager);
        }
        if self.durable != DurableState::Monitored {
            return Some(NotOffered::NotMonitored(self.durable));
        }
        if self.engine != EngineState::Running {
            return Some(NotOffered::NotRunning(self.engine));
        }
        (!self.live).then_some(NotOffered::SessionLost)
    }
}

/// One value of each candidate, by its place; `None` for those without.
type Column = Vec<Option<Box<str>>>;

/// The candidates in the order of their start ids, in which their turns come too. A candidate is named by its place in it.
#[derive(Clone, Debug)]
pub struct Candidates {
    ids: Vec<StartId>,
    engine_pids: Vec<u32>,
    not_offered: Vec<Option<NotOffered>>,
    /// What may be learned of a process later.
    learned: Vec<[Option<Box<str>>; LEARNED]>,
    offered: Set,
    servers: Column,
    nodes: Column,
    starts: Column,
    pids: Column,
    addresses: Column,
    hostnames: Column,
    labels: BTreeMap<String, Column>,
    options: BTreeMap<String, Column>,
}

/// The text of a value, if there is one.
fn text(value: &str) -> Option<Box<str>> {
    (!value.is_empty()).then(|| value.into())
}

/// An engine that is not started has no process id.
fn number(pid: u32) -> String {
    if pid == 0 { String::new() } else { pid.to_string() }
}

/// How many of the ties may change while a process lives: its container and its claim become known.
const LEARNED: usize = 2;

fn learned<'a>(candidate: &Candidate<'a>) -> [Option<&'a str>; LEARNED] {
    let [(_, claim), (_, container), ..] = candidate.ties;
    [claim, container]
}

/// A column for each name that a candidate has a value of; of several values the last counts.
fn columns<'a, I>(candidates: &[Candidate<'a>], of: impl Fn(&Candidate<'a>) -> I) -> BTreeMap<String, Column>
where
    I: Iterator<Item = (&'a str, &'a str)>,
{
    let mut columns: BTreeMap<String, Column> = BTreeMap::new();
    for (place, candidate) in candidates.iter().enumerate() {
        for (name, value) in of(candidate) {
            if !columns.contains_key(name) {
                columns.insert(name.to_owned(), vec![None; candidates.len()]);
            }
            if let Some(column) = columns.get_mut(name) {
                column[place] = Some(value.into());
            }
        }
    }
    columns
}

fn texts(map: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

impl Candidates {
    /// Prepares these.
    pub fn new<'a>(candidates: impl IntoIterator<Item = Candidate<'a>>) -> Self {
        let mut all: Vec<Candidate<'a>> = candidates.into_iter().collect();
        all.sort_by_key(|candidate| candidate.id);
        let not_offered: Vec<Option<NotOffered>> = all.iter().map(Candidate::not_offered).collect();
        let mut offered = Set::empty(all.len());
        let places = not_offered.iter().enumerate().filter(|(_, why)| why.is_none());
        places.for_each(|(place, _)| offered.insert(place));
        Self {
            ids: all.iter().map(|candidate| candidate.id).collect(),
            engine_pids: all.iter().map(|candidate| candidate.pid).collect(),
            not_offered,
            learned: all.iter().map(|candidate| learned(candidate).map(|text| text.map(Box::from))).collect(),
            offered,
            servers: all.iter().map(|candidate| text(candidate.server.as_str())).collect(),
            nodes: all.iter().map(|candidate| text(&candidate.node.to_string())).collect(),
            starts: all.iter().map(|candidate| text(&candidate.id.to_string())).collect(),
            pids: all.iter().map(|candidate| text(&number(candidate.pid))).collect(),
            addresses: all.iter().map(|candidate| text(candidate.address)).collect(),
            hostnames: all.iter().map(|candidate| text(candidate.hostname)).collect(),
            labels: columns(&all, |candidate| {
                let ties = candidate.ties.into_iter().filter_map(|(name, value)| Some((name, value?)));
                texts(candidate.labels).chain(ties)
            }),
            options: columns(&all, |candidate| texts(candidate.options)),
        }
    }

    /// Prepares the processes of a database.
    pub fn of(domain: &Domain, database: &DatabaseName) -> Self {
        Self::new(processes(domain, database))
    }

    /// Whether they still are the processes of that database. What else a process tells of itself, its own labels among it, is
    /// fixed with its start id.
    pub fn are_of(&self, domain: &Domain, database: &DatabaseName) -> bool {
        let mut processes = processes(domain, database);
        let unchanged = (0..self.ids.len()).all(|place| {
            processes.next().is_some_and(|now| {
                self.ids[place] == now.id
                    && self.not_offered[place] == now.not_offered()
                    && self.servers[place].as_deref() == Some(now.server.as_str())
                    && self.engine_pids[place] == now.pid
                    && self.learned[place].each_ref().map(Option::as_deref) == learned(&now)
            })
        });
        unchanged && processes.next().is_none()
    }

    /// How many there are, suitable or not.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn id(&self, place: usize) -> StartId {
        self.ids[place]
    }

    pub(super) fn not_offered(&self, place: usize) -> Option<&NotOffered> {
        self.not_offered[place].as_ref()
    }

    /// Those that may be offered to clients.
    pub(super) fn offered(&self) -> &Set {
        &self.offered
    }

    pub(super) fn all(&self) -> Set {
        let mut all = Set::empty(self.len());
        (0..self.len()).for_each(|place| all.insert(place));
        all
    }

    /// The values of a field; `None` where no candidate has one.
    pub(super) fn column(&self, field: &Field) -> Option<&Column> {
        match field {
            Field::StartId => Some(&self.starts),
            Field::ServerId => Some(&self.servers),
            Field::NodeId => Some(&self.nodes),
            Field::Pid => Some(&self.pids),
            Field::Address => Some(&self.addresses),
            Field::Hostname => Some(&self.hostnames),
            Field::Label(name) => self.labels.get(name),
            Field::Option(name) => self.options.get(name),
        }
    }
}

fn processes<'a>(domain: &'a Domain, database: &'a DatabaseName) -> impl Iterator<Item = Candidate<'a>> {
    let of_it = domain.processes.values().filter(move |process| process.database == *database);
    of_it.map(|process| Candidate::of(domain, process))
}
