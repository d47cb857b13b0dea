//! A database with one primary, as `kaa show database` and `GET kaa/replication/NAME` show it: each state as a code and as text.

use super::servers::{Hearing, ServerRow};
use crate::http::source::{Awaits, Peer, Routing};
use crate::metrics::group_waits;
use kaa_core::domain::Domain;
use kaa_core::domain::audit::{Record, Subject};
use kaa_core::domain::database::Database;
use kaa_core::domain::event::Event;
use kaa_core::domain::ids::{ArchiveId, DatabaseName, Millis};
use kaa_core::domain::replicated::{Replicated, Switchover};
use kaa_core::observed::objects::ANNOTATION_PREFIX;
use kaa_core::replication::vitals::Application;
use kaa_core::replication::waits::{self, ReplicationWait};
use kaa_core::replication::{Loss, Place, PlaceState, Replication, Role, Survival};
use kaa_core::resync::plan::WaitingReason;
use kaa_core::wait::Names;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// A code for programs, and the same in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coded {
    /// As one word.
    pub code: String,
    /// In words.
    pub text: String,
}

/// A database and its primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicationAnswer {
    /// Its name.
    pub name: String,
    /// Whether it runs, as `show domain` has it.
    pub state: String,
    /// `one_primary` or `no_roles`: all that follows is about the former.
    pub kind: Coded,
    /// The version of its engines, as the primary's wrapper reports it.
    pub engine_version: Option<String>,
    /// How far the agent that answers has applied the log.
    pub applied: u64,
    /// When this was read, by the clock of that agent.
    pub at: Millis,
    /// The current generation.
    pub generation: Option<u64>,
    /// The number of its timeline: that of the generation.
    pub timeline: Option<u64>,
    /// The primary; null while there is none.
    pub primary: Option<PrimaryRow>,
    /// The switchover that was requested, if one was.
    pub switchover: Option<SwitchoverRow>,
    /// The archives that hold every commit that counts.
    pub sync_set: Option<SyncSetRow>,
    /// How many standbys are to confirm each commit; null if that is not known yet.
    pub synchronous: Option<u32>,
    /// What a primary does that no standby can confirm.
    pub when_alone: Option<Coded>,
    /// Who begins a failover.
    pub failover: Option<Coded>,
    /// The zone that is preferred for the primary; null if none is.
    pub preferred_zone: Option<String>,
    /// What the loss of pods, with their volumes, would mean.
    pub survival: Option<SurvivalRow>,
    /// Every archive.
    pub archives: Vec<PlaceRow>,
    /// The role and the database of the application; null if they are not known.
    pub application: Option<ApplicationRow>,
    /// How a client connects.
    pub connect: Vec<Coded>,
    /// What it waits for.
    pub warnings: Vec<WarningRow>,
    /// The last change of its replication.
    pub last_change: Option<ChangeRow>,
}

/// The primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrimaryRow {
    /// Its archive.
    pub archive: u64,
    /// Its pod.
    pub pod: String,
    /// What its server does.
    pub state: Coded,
    /// Whether it lets clients in.
    pub open: bool,
    /// When the generation was granted.
    pub granted: Option<Millis>,
    /// When it let clients in.
    pub opened: Option<Millis>,
}

/// A switchover that was requested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchoverRow {
    /// The archive that is to be the primary's; null: any other one.
    pub to: Option<u64>,
    /// Its pod.
    pub pod: Option<String>,
    /// Who asked.
    pub by: String,
    /// Why.
    pub why: String,
    /// When.
    pub at: Millis,
}

/// The sync set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncSetRow {
    /// Its archives.
    pub archives: Vec<u64>,
    /// Their pods.
    pub pods: Vec<String>,
    /// Its version.
    pub version: u64,
    /// Whether the primary has reported that it requires this version.
    pub in_force: bool,
    /// The archive that is joining.
    pub joining: Option<u64>,
    /// Its pod.
    pub joining_pod: Option<String>,
}

/// What the loss of pods would mean. Each list of pods is one loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SurvivalRow {
    /// The primary continues, nothing is lost.
    pub continues: Vec<Vec<String>>,
    /// Nothing is lost, an operator has to fail over.
    pub needs_failover: Vec<Vec<String>>,
    /// Nothing is lost, nothing is written until another server is up.
    pub waits: Vec<Vec<String>>,
    /// The smallest loss that loses commits that count.
    pub loses: Vec<String>,
    /// What the loss of a zone with several pods would mean: `continues`, `needs_failover`, `waits` or `loses`.
    pub zones: BTreeMap<String, String>,
}

/// An archive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlaceRow {
    /// Its id.
    pub archive: u64,
    /// Its pod.
    pub pod: String,
    /// What it is in its database.
    pub role: Coded,
    /// What its server does.
    pub state: Coded,
    /// Where its server is.
    pub address: Option<String>,
    /// In which zone; null if that is not known.
    pub zone: Option<String>,
    /// Since when it does that.
    pub since: Option<Millis>,
    /// The process on it.
    pub start_id: Option<u64>,
    /// How its server fares.
    pub server: ServerRow,
}

/// The role and the database of the application, by its Secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApplicationRow {
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
}

/// What a database waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WarningRow {
    /// As one word.
    pub code: String,
    /// In words.
    pub text: String,
    /// What ends it.
    pub ends: String,
}

/// A change in the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeRow {
    /// Its entry in the log.
    pub entry: u64,
    /// When.
    pub at: Millis,
    /// Who.
    pub by: String,
    /// As one word.
    pub code: String,
    /// In words.
    pub text: String,
}

/// A code of its own, with the words of the thing.
fn coded<T: Copy + Into<&'static str> + std::fmt::Display>(it: T) -> Coded {
    Coded { code: Into::<&'static str>::into(it).to_owned(), text: it.to_string() }
}

fn both(code: &str, text: impl Into<String>) -> Coded {
    Coded { code: code.to_owned(), text: text.into() }
}

impl ReplicationAnswer {
    /// What is known of a database. `prefix` is that of the annotations, as the agent was told; `peers` are all agents.
    pub(super) fn new(domain: &Domain, database: &Database, at: Millis, prefix: &str, peers: &[Peer]) -> Self {
        let (name, state) = (database.name.to_string(), database.state.to_string());
        let Some(replicated) = database.replicated.as_deref() else {
            let kind = both("no_roles", "its engines have no roles: no primary, no standbys");
            return Self { name, state, kind, applied: domain.index, at, ..Self::default() };
        };
        let places = domain.places(&database.name, replicated);
        let hearing = Hearing::new(domain, replicated, peers, at);
        let mut warnings = warnings(domain, &database.name, replicated, prefix, at);
        warnings.extend(hearing.warnings(&places));
        let record = replicated.record.as_ref();
        let settings = replicated.settings.as_ref();
        Self {
            name,
            state,
            kind: both("one_primary", "one primary"),
            engine_version: record.and_then(|record| version(domain, record.primary)),
            applied: domain.index,
            at,
            generation: record.map(|record| record.generation.0),
            timeline: record.map(|record| record.generation.0),
            primary: record.map(|record| PrimaryRow::new(domain, replicated, record, &hearing)),
            switchover: replicated.switchover.as_ref().map(|asked| SwitchoverRow::new(domain, asked)),
            sync_set: record.map(|record| SyncSetRow::new(domain, replicated, record)),
            synchronous: settings.map(|settings| settings.synchronous),
            when_alone: settings.map(|settings| {
                let text = settings.when_alone.to_string();
                both(&text, text.clone())
            }),
            failover: settings.map(|settings| {
                let text = settings.failover.to_string();
                both(&text, text.clone())
            }),
            preferred_zone: settings.and_then(|settings| settings.preferred_zone.clone()),
            survival: domain.survival(&database.name, replicated).map(|found| SurvivalRow::new(domain, found)),
            connect: record.map_or_else(Vec::new, |record| connect(domain, &database.name, record, &hearing, &places)),
            application: hearing.application(&places).map(|it| {
                let Application { user, database } = it.clone();
                ApplicationRow { user, database }
            }),
            archives: places.iter().map(|place| PlaceRow::new(domain, place).heard(place, &hearing)).collect(),
            warnings,
            last_change: ChangeRow::last(domain, &database.name),
        }
    }
}

impl ReplicationAnswer {
    /// Adds whether clients are led to its servers by Services.
    pub(super) fn routed(&mut self, routing: &Routing) {
        let name = &self.name;
        let way = match routing {
            _ if self.connect.is_empty() => return,
            Routing::Unknown => return,
            Routing::Kept => {
                let application = self.application.as_ref();
                let names = application.map_or(String::new(), |it| format!(" {it}"));
                both("services", format!("host={name}-rw{names} to write, host={name}-ro{names} to read at a standby"))
            }
            Routing::Refused(why) => both("no_services", format!("no Services {name}-rw and {name}-ro: {why}")),
        };
        self.connect.push(way);
    }

    /// Says if the agent learns of no commit, by what it waits for: then all of this is as it was, and it does not know what the loss of a pod
    /// would mean now.
    pub(super) fn behind(&mut self, waiting: &[Awaits]) {
        let of_group = [group_waits::RAFT_NOT_STARTED, group_waits::NOT_A_MEMBER, group_waits::NO_LEADER];
        let Some(why) = waiting.iter().find(|why| of_group.contains(&why.code)) else { return };
        self.survival = None;
        let ends = group_waits::WAITS.iter().find(|wait| wait.code == why.code).map_or("", |wait| wait.ends);
        let text = format!("this agent learns of no change, so all of this may be old: {}", why.words);
        self.warnings.insert(0, WarningRow { code: why.code.to_owned(), text, ends: ends.to_owned() });
    }

    /// Adds what is wrong by what Kubernetes shows.
    pub(super) fn seen_wrong(&mut self, wrong: &[WaitingReason], prefix: &str) {
        for reason in wrong {
            let names = Names { database: Some(&self.name), ..reason.names() };
            self.warnings.push(WarningRow::new(reason, &names, prefix));
        }
    }
}

fn version(domain: &Domain, primary: ArchiveId) -> Option<String> {
    let version = &domain.process_on(primary)?.about.version;
    (!version.is_empty()).then(|| version.clone())
}

fn warnings(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    prefix: &str,
    at: Millis,
) -> Vec<WarningRow> {
    let set = replicated.settings.as_ref().map(|settings| settings.stateful_set.as_str());
    let row = |wait: ReplicationWait| {
        let archive = wait.place().map(|(archive, _)| archive);
        let pod = archive.map(|archive| domain.pod_of(archive));
        let names = Names { database: Some(name.as_str()), set, archive, pod: pod.as_deref(), container: None };
        WarningRow::new(&WaitingReason::Replication(wait), &names, prefix)
    };
    waits::of(domain, name, replicated, at).into_iter().map(row).collect()
}

/// How a client reaches the primary: by a forwarded port, unless all pods are on one machine, as in the demo; and by a URL that tries the
/// addresses of all pods, as they are now, for the one that accepts writes.
fn connect(
    domain: &Domain,
    name: &DatabaseName,
    record: &Replication,
    hearing: &Hearing<'_>,
    places: &[Place],
) -> Vec<Coded> {
    let mut found = Vec::new();
    let is_of_this_machine = |address: &str| address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let primary = domain.process_on(record.primary).filter(|primary| !is_of_this_machine(&primary.about.address));
    if let Some(primary) = primary {
        let (namespace, pod, port) = (&primary.identity.namespace, &primary.identity.pod, primary.about.port);
        let command = format!("kubectl port-forward -n {namespace} pod/{pod} 5432:{port}");
        found.push(both("port_forward", command));
    }
    let host = |place: &Place| {
        let about = &domain.process_on(place.archive)?.about;
        // What pods call themselves is no name in DNS.
        let host = if about.address.is_empty() { &about.hostname } else { &about.address };
        // A colon in a host of a URL would begin its port.
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        (!host.is_empty()).then(|| format!("{host}:{}", about.port))
    };
    let hosts: Vec<String> = places.iter().filter_map(host).collect();
    if !hosts.is_empty() {
        let (user, database) = match hearing.application(places) {
            Some(it) => (format!("{}@", of_url(&it.user)), of_url(&it.database).to_string()),
            None => (String::new(), name.to_string()),
        };
        let hosts = hosts.join(",");
        let url = format!("postgresql://{user}{hosts}/{database}?target_session_attrs=read-write");
        found.push(both("url", url));
    }
    found
}

/// A name as a URL has it.
fn of_url(name: &str) -> PercentEncode<'_> {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(name, PLAIN)
}

impl fmt::Display for ApplicationRow {
    /// As libpq reads it: `user=app dbname=shop`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain =
            |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "'\\".contains(c));
        let value = |name: &str| match is_plain(name) {
            true => name.to_owned(),
            false => format!("'{}'", name.replace('\\', r"\\").replace('\'', r"\'")),
        };
        write!(f, "user={} dbname={}", value(&self.user), value(&self.database))
    }
}

impl WarningRow {
    fn new(reason: &WaitingReason, names: &Names<'_>, prefix: &str) -> Self {
        let ends = names.fill(reason.ends()).replace(ANNOTATION_PREFIX, prefix);
        Self { code: reason.code().to_owned(), text: reason.to_string(), ends }
    }
}

impl PrimaryRow {
    fn new(domain: &Domain, replicated: &Replicated, record: &Replication, hearing: &Hearing<'_>) -> Self {
        let place = domain.place(replicated, record.primary);
        let primary = replicated.primary.as_ref();
        Self {
            archive: record.primary.0,
            state: hearing.state(&place),
            open: place.state == PlaceState::Open && !hearing.is_closed(&place),
            pod: place.pod,
            granted: primary.map(|primary| primary.granted),
            opened: primary.and_then(|primary| primary.opened),
        }
    }
}

impl SwitchoverRow {
    fn new(domain: &Domain, asked: &Switchover) -> Self {
        Self {
            to: asked.to.map(|to| to.0),
            pod: asked.to.map(|to| domain.pod_of(to)),
            by: asked.by.clone(),
            why: asked.why.clone(),
            at: asked.at,
        }
    }
}

impl SyncSetRow {
    fn new(domain: &Domain, replicated: &Replicated, record: &Replication) -> Self {
        // The primary first, then as the pods are ordered.
        let mut archives: Vec<ArchiveId> = record.sync_set.iter().copied().collect();
        archives.sort_by_key(|id| (*id != record.primary, domain.place_of(*id)));
        Self {
            pods: archives.iter().map(|archive| domain.pod_of(*archive)).collect(),
            archives: archives.into_iter().map(|archive| archive.0).collect(),
            version: record.version.0,
            in_force: replicated.in_force == record.version && domain.is_open(replicated),
            joining: record.joining.map(|archive| archive.0),
            joining_pod: record.joining.map(|archive| domain.pod_of(archive)),
        }
    }
}

impl SurvivalRow {
    fn new(domain: &Domain, found: Survival) -> Self {
        let pods = |lost: BTreeSet<ArchiveId>| lost.into_iter().map(|archive| domain.pod_of(archive)).collect();
        let all = |losses: Vec<BTreeSet<ArchiveId>>| losses.into_iter().map(pods).collect();
        let Survival { continues, needs_failover, waits, loses, zones } = found;
        let coded = |(zone, loss): (String, Loss)| (zone, Into::<&'static str>::into(loss).to_owned());
        Self {
            continues: all(continues),
            needs_failover: all(needs_failover),
            waits: all(waits),
            loses: pods(loses),
            zones: zones.into_iter().map(coded).collect(),
        }
    }
}

impl PlaceRow {
    fn new(domain: &Domain, place: &Place) -> Self {
        let on_it = place.process.and_then(|process| domain.processes.get(&process));
        let about = on_it.map(|process| &process.about);
        let address = about.filter(|about| !about.address.is_empty() && about.port != 0).map(|about| {
            let address = &about.address;
            let shown = if address.contains(':') { format!("[{address}]") } else { address.clone() };
            format!("{shown}:{}", about.port)
        });
        let (role, state): (Role, PlaceState) = (place.role, place.state);
        Self {
            archive: place.archive.0,
            pod: place.pod.clone(),
            role: coded(role),
            state: coded(state),
            address,
            zone: on_it.and_then(|process| process.zone()).map(str::to_owned),
            since: place.since,
            start_id: place.process.map(|process| process.0),
            server: ServerRow::default(),
        }
    }
}

impl ChangeRow {
    /// The last grant, request or change of the sync set of a database.
    fn last(domain: &Domain, name: &DatabaseName) -> Option<Self> {
        let subject = Subject::Database(name.clone());
        let is_of_it = |record: &&Record| matches!(record.event, Event::Replication(_));
        let last = domain.audit.of(&subject).rfind(is_of_it)?;
        Some(Self {
            entry: last.index,
            at: last.at,
            by: last.actor.to_string(),
            code: last.event.name(),
            text: last.text(),
        })
    }
}
