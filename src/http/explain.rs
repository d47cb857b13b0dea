//! What a thing is, and how it came to be so: its state, and its part of the audit trail.

use super::domain::{Named, name};
use super::error::Error;
use super::extract::Asked;
use super::own::consistent;
use super::source::{Awaits, Peer};
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::Domain;
use kaa_core::domain::archive::Archive;
use kaa_core::domain::audit::{Record, Subject};
use kaa_core::domain::balancing::Entry;
use kaa_core::domain::ids::{ArchiveId, Millis, ServerId, StartId};
use kaa_core::domain::process::{Process, SessionState};
use serde::{Deserialize, Serialize};

/// What a thing is, and its history.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    /// Which thing.
    pub subject: String,
    /// What it is now; `None` if it is gone.
    pub state: Option<String>,
    /// What changes of it wait for.
    pub waiting: Vec<String>,
    /// What happened to it, oldest first.
    pub history: Vec<Change>,
    /// How many records of the whole domain were dropped to make room, some of them perhaps about this.
    pub dropped: u64,
    /// When the oldest record that is kept was made.
    pub kept_since: Option<Millis>,
}

/// One thing that happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Change {
    /// The log entry that made it.
    pub index: u64,
    /// When.
    pub at: Millis,
    /// Who asked for it.
    pub actor: String,
    /// What changed, and why.
    pub what: String,
    /// What it rests on.
    pub evidence: Vec<String>,
    /// When that was read.
    pub read_at: Option<Millis>,
}

impl Change {
    fn new(record: &Record) -> Self {
        let evidence = record.evidence.as_ref();
        Self {
            index: record.index,
            at: record.at,
            actor: record.actor.to_string(),
            what: record.text(),
            evidence: evidence.iter().flat_map(|e| &e.facts).map(ToString::to_string).collect(),
            read_at: evidence.map(|evidence| evidence.read_at),
        }
    }
}

impl Explanation {
    /// What the domain knows of a subject; `None` if it knows nothing.
    pub fn new(domain: &Domain, subject: &Subject) -> Option<Self> {
        let state = state(domain, subject);
        let history: Vec<Change> = domain.audit.of(subject).map(Change::new).collect();
        (state.is_some() || !history.is_empty()).then(|| Self {
            subject: subject.to_string(),
            state,
            waiting: Vec::new(),
            history,
            dropped: domain.audit.dropped,
            kept_since: domain.audit.records().next().map(|record| record.at),
        })
    }

    /// The same, with a server's part in the group: its status as `peer`, and what it waits for. A server that is in no domain
    /// yet is explained too if it is the one that answers.
    fn in_the_group(known: Option<Self>, subject: &Subject, peer: Option<&Peer>, waiting: &[Awaits]) -> Option<Self> {
        let Subject::Server(id) = subject else { return known };
        let local = peer.filter(|peer| peer.is_local).map(|_| Self { subject: subject.to_string(), ..Self::default() });
        let mut explained = known.or(local)?;
        let place = peer.map(part);
        explained.state = match (place, explained.state) {
            (Some(place), Some(state)) => Some(format!("{place}, {state}")),
            (place, state) => place.or(state),
        };
        let about = waiting.iter().filter(|awaits| awaits.server.as_ref().is_none_or(|server| server == id));
        explained.waiting = about.map(|awaits| awaits.words.clone()).collect();
        Some(explained)
    }
}

/// A server's part in the group, and how far its log goes, by what it said last.
fn part(peer: &Peer) -> String {
    let silent = if peer.connected { "" } else { ", does not answer" };
    let Some(status) = &peer.status else { return format!("{}{silent}", peer.membership) };
    let role = status.role.as_ref().filter(|_| peer.connected).map_or(String::new(), |role| format!(" ({role})"));
    let (epoch, term, last) = (status.epoch, status.term, status.last_log_index);
    let (commit, applied) = (status.commit_index, status.applied_index);
    let log = format!("last entry {last}, committed {commit}, applied {applied}");
    format!("{}{role}{silent}, epoch {epoch}, term {term}, {log}", peer.membership)
}

/// One line about what a thing is now.
fn state(domain: &Domain, subject: &Subject) -> Option<String> {
    match subject {
        Subject::Server(id) => server(domain, id),
        Subject::Database(name) => domain.databases.get(name).map(|database| {
            let processes = domain.processes.values().filter(|process| process.database == *name).count();
            let archives = domain.active_archives(name).count();
            let major = database.incarnation.major;
            let minor = database.incarnation.minor;
            let state = database.state;
            format!(
                "{state}, incarnation {major}.{minor}, {}, {}",
                count(processes, "process"),
                count(archives, "archive")
            )
        }),
        Subject::Archive(id) => domain.archives.get(id).map(|found| archive(domain, *id, found)),
        Subject::Process(id) => process(domain, *id),
        Subject::Resync(cluster) => {
            let leader = domain.resync.get(cluster)?;
            Some(format!(
                "led by {} since epoch {}, lease acquisition {}",
                leader.holder, leader.epoch, leader.transitions
            ))
        }
        Subject::Value(key) => domain.values.get(key).map(|value| format!("'{value}'")),
        Subject::LoadBalancer(item) => domain.balancing.entries.get(item).map(balancer),
        Subject::Task(id) => domain.tasks.get(id).map(|task| {
            let (done, of) = (task.done(), task.kind.steps().len());
            format!("{}, {done} of {of} steps: {}", task.state, task.kind)
        }),
        Subject::Domain => {
            let id = domain.id.as_ref()?;
            Some(format!("{}, id {id}, applied up to index {}", domain.name, domain.index))
        }
    }
}

/// What has effect, and what both origins have set.
fn balancer(entry: &Entry) -> String {
    let annotated = entry.annotated.as_ref().map(|it| format!(", annotation of {}", it.object));
    let manual = entry.manual.as_ref().map(|manual| match entry.annotated.is_some() {
        true => format!(", in place of what {} has set: {}", manual.by, manual.text),
        false => format!(", set by {}", manual.by),
    });
    format!("{}{}{}", entry.text(), annotated.unwrap_or_default(), manual.unwrap_or_default())
}

fn count(number: usize, what: &str) -> String {
    match (number, what) {
        (1, _) => format!("1 {what}"),
        (_, "process") => format!("{number} processes"),
        _ => format!("{number} {what}s"),
    }
}

fn server(domain: &Domain, id: &ServerId) -> Option<String> {
    let server = domain.servers.get(id)?;
    let sessions = domain.processes.values().filter(|process| process.session.server == *id);
    let live = sessions.filter(|process| process.session.state == SessionState::Live).count();
    let sessions = count(live, "live session");
    Some(format!("{}, version {}, log {}, {sessions}", server.address, server.version, server.raft_id))
}

fn archive(domain: &Domain, id: ArchiveId, archive: &Archive) -> String {
    let mut state = domain.archive_state(archive).to_string();
    if let Some(removal) = &archive.removed {
        state = format!("REMOVED({state}), since {}: {}", removal.at, removal.because);
    }
    let claim = archive.claim.as_ref().map_or("no known claim".to_owned(), |c| format!("claim {} ({})", c.name, c.uid));
    let process = domain.process_on(id).map_or(String::new(), |process| format!(", process {} is on it", process.id));
    format!("{state}, of database {}, on {claim}{process}", archive.database)
}

fn process(domain: &Domain, id: StartId) -> Option<String> {
    if let Some(process) = domain.processes.get(&id) {
        let session = &process.session;
        let lost = match session.state {
            SessionState::Live => "live".to_owned(),
            SessionState::Lost(since) => format!("lost since {since}"),
        };
        let session = format!("session {} with {} {lost}", session.number, session.server);
        return Some(format!("{}:{}, {}, {session}", process.durable, process.engine, who(process)));
    }
    let tombstone = domain.tombstones.get(&id)?;
    let (reason, process) = (&tombstone.reason, &tombstone.process);
    let code = tombstone.exit_code.map_or(String::new(), |code| format!(" ({code})"));
    Some(format!("EXITED at {}: {reason}{code}, {}", tombstone.at, who(process)))
}

fn who(process: &Process) -> String {
    let archive = process.archive.map_or(String::new(), |archive| format!(" on archive {archive}"));
    format!("{} of database {}{archive} in pod {}", process.kind, process.database, process.identity.pod)
}

pub(super) async fn explain(
    State(face): State<Face>,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<Explanation>, Error> {
    let subject = name(named, "subject")?;
    let subject: Subject = subject.parse().map_err(|error| Error::bad("subject", format!("is wrong: {error}")))?;
    consistent(&face, &asked).await?;
    let (index, known) = face.source.read(|domain| (domain.index, Explanation::new(domain, &subject)));
    let peers = face.source.peers();
    let peer = peers.iter().find(|peer| subject == Subject::Server(peer.id.clone()));
    let known = Explanation::in_the_group(known, &subject, peer, &face.source.membership().waiting);
    let body = known.ok_or_else(|| Error::NotFound(format!("nothing is known of {subject}")))?;
    Ok(Answer { index, body })
}
