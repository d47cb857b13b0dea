//! How much the domain holds at most. What it holds is in the memory of every agent, in the log and in every snapshot, so whatever
//! an engine, a client or an operator can put into it has a bound here.
//!
//! A value that is too large is refused if the proposer can send a smaller one. It is truncated if the command must succeed:
//! that an engine has ended is recorded, however long its reason is. Every string is checked before anything changes. Each
//! change takes its fields apart for it (`change/`), so that a new one does not compile before it has its bound.

use super::Domain;
use super::archive::Ordinal;
use super::change::Command;
use super::command::Actor;
use super::evidence::{Evidence, Fact};
use super::ids::{DatabaseName, ProtocolId};
use super::process::{About, ExitReason, Identity, Process, Registration};
use super::server::Server;
use super::snapshot::Restore;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The bounds. They are the same at every server, and no part of the state. Strings are counted in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// A name, an id or an address: what Kubernetes allows for the name of an object, and somewhat more.
    pub name: usize,
    /// A sentence: why something was done, how an engine ended.
    pub text: usize,
    /// A path in a file system.
    pub path: usize,
    /// The labels of a process or a server.
    pub labels: usize,
    /// All of them together.
    pub labels_bytes: usize,
    /// The options of a database.
    pub options: usize,
    /// All of them together.
    pub options_bytes: usize,
    /// A key.
    pub key: usize,
    /// A value.
    pub value: usize,
    /// How many values there are.
    pub values: usize,
    /// All keys and values together.
    pub values_bytes: usize,
    /// How many databases are known, deleted ones among them; of these the oldest is forgotten where there is no room.
    pub databases: usize,
    /// How many archives, removed ones among them.
    pub archives: usize,
    /// How many living processes.
    pub processes: usize,
    /// A load-balancer query or filter.
    pub query: usize,
    /// How many load-balancer entries are of no database.
    pub policies: usize,
    /// All load-balancer entries together.
    pub balancing_bytes: usize,
    /// How many servers.
    pub servers: usize,
    /// How many clusters.
    pub clusters: usize,
    /// How many tasks that have ended are kept.
    pub tasks: usize,
    /// The protocol versions that a process reports.
    pub protocols: usize,
    /// How many tombstones are kept in addition to the latest one of each existing archive.
    pub tombstones: usize,
    /// How many records the audit trail has.
    pub records: usize,
    /// All of them together.
    pub records_bytes: usize,
    /// How many of them begin with one process: an engine that flips its states does not wipe out the rest.
    pub records_of_process: usize,
    /// The facts, and the subjects, that a record keeps.
    pub facts: usize,
    /// Everything together; beyond it nothing new goes in.
    pub bytes: usize,
}

impl Bounds {
    /// Those of every server.
    pub const DEFAULT: Self = Self {
        name: 320,
        text: 1024,
        path: 4096,
        labels: 64,
        labels_bytes: 4096,
        options: 64,
        options_bytes: 4096,
        key: 1024,
        value: 64 * 1024,
        values: 4096,
        values_bytes: 16 << 20,
        databases: 1000,
        archives: 4000,
        processes: 4096,
        query: crate::balancer::parse::MAX_BYTES,
        policies: 256,
        balancing_bytes: 4 << 20,
        servers: 64,
        clusters: 16,
        tasks: 200,
        protocols: 32,
        tombstones: 1000,
        records: 4096,
        records_bytes: 8 << 20,
        records_of_process: 64,
        facts: 64,
        // An agent has 512 MiB: this, a snapshot of it that is being made, and one that is sent.
        bytes: 96 << 20,
    };
}

impl Default for Bounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The most characters of a database's name: it is the value of a label.
pub(crate) const LABEL_VALUE: usize = 63;

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Excess {
    /// A string is too long.
    #[error("{what}: {bytes} bytes, and at most {most} are allowed")]
    Long {
        /// Which.
        what: String,
        /// How long it is.
        bytes: u64,
        /// How long it may be.
        most: u64,
    },
    /// There would be too many.
    #[error("{what}: there would be {count}, and at most {most} are allowed")]
    Many {
        /// Of what.
        what: String,
        /// How many.
        count: u64,
        /// How many there may be.
        most: u64,
    },
    /// The name of a database cannot be the value of its label.
    #[error(
        "'{0}' cannot be the name of a database: it has to be the value of the label `database`, so up to {LABEL_VALUE} letters, \
         digits, '-', '_' and '.', of which the first and the last are letters or digits"
    )]
    NotALabel(String),
    /// Nothing more goes in.
    #[error("the domain holds {bytes} bytes, and may hold {most}: remove values, archives or processes")]
    Full {
        /// How many it holds.
        bytes: u64,
        /// How many it may hold.
        most: u64,
    },
}

/// What a value of some type comes to.
pub(super) type Fits = Result<(), Excess>;

pub(super) fn fits(what: &str, text: impl fmt::Display, most: usize) -> Fits {
    let bytes = text.to_string().len();
    if bytes <= most {
        return Ok(());
    }
    Err(Excess::Long { what: what.to_owned(), bytes: bytes as u64, most: most as u64 })
}

pub(super) fn few(what: &str, count: usize, most: usize) -> Fits {
    if count <= most {
        return Ok(());
    }
    Err(Excess::Many { what: what.to_owned(), count: count as u64, most: most as u64 })
}

fn pairs(what: &str, pairs: &BTreeMap<String, String>, count: usize, most: usize) -> Fits {
    few(what, pairs.len(), count)?;
    let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes <= most {
        return Ok(());
    }
    Err(Excess::Long { what: format!("all {what} together"), bytes: bytes as u64, most: most as u64 })
}

/// Cuts a text at the last character that fits, and shows that it was cut.
pub fn cut(text: &mut String, most: usize) {
    const MARK: &str = "…";
    if text.len() <= most {
        return;
    }
    text.truncate(text.floor_char_boundary(most.saturating_sub(MARK.len())));
    text.push_str(MARK);
}

impl Bounds {
    /// Cuts what has to go in, and says what of the rest does not fit. What is already there is not counted.
    pub(super) fn check(&self, actor: &Actor, command: &mut Command) -> Fits {
        self.name("the actor's name", &actor.name)?;
        command.fit(self)
    }

    pub(super) fn name(&self, what: &str, name: impl fmt::Display) -> Fits {
        fits(what, name, self.name)
    }

    pub(super) fn names<const N: usize>(&self, names: [(&str, &str); N]) -> Fits {
        names.into_iter().try_for_each(|(what, name)| self.name(what, name))
    }

    pub(super) fn ordinal(&self, ordinal: &Ordinal) -> Fits {
        self.names([("a StatefulSet", &ordinal.stateful_set), ("its UID", ordinal.uid.as_str())])
    }

    fn labels(&self, labels: &BTreeMap<String, String>) -> Fits {
        pairs("labels", labels, self.labels, self.labels_bytes)
    }

    /// What the options of a database come to.
    pub(super) fn options(&self, options: &BTreeMap<String, String>) -> Fits {
        pairs("options", options, self.options, self.options_bytes)
    }

    /// Whether a text can be the name of a database.
    pub(super) fn database_name(&self, database: &DatabaseName) -> Fits {
        if is_label_value(database.as_str()) {
            return Ok(());
        }
        let mut name = database.to_string();
        cut(&mut name, LABEL_VALUE);
        Err(Excess::NotALabel(name))
    }

    fn protocols(&self, protocols: &BTreeMap<ProtocolId, String>) -> Fits {
        few("protocol versions", protocols.len(), self.protocols)?;
        protocols.values().try_for_each(|name| self.name("the name of a protocol version", name))
    }

    pub(super) fn server(&self, server: &Server) -> Fits {
        let Server { id, cluster, address, raft_id: _, version, labels, joined: _ } = server;
        self.names([("a server's id", id.as_str()), ("its cluster", cluster.as_str()), ("its address", address)])?;
        self.name("its version", version)?;
        self.labels(labels)
    }

    /// Says what in a first registration does not fit: all of this is kept with the process.
    pub fn registration(&self, asked: &Registration) -> Fits {
        let Registration { database, identity, path, about, marker, .. } = asked;
        self.database_name(database)?;
        let Identity { namespace, pod, pod_uid, container, nonce: _, started: _ } = identity;
        self.names([("the namespace", namespace), ("the pod's name", pod), ("the pod's UID", pod_uid.as_str())])?;
        let About { address, hostname, port: _, pid: _, version, labels, protocols, zone: _ } = about;
        self.names([("the container's name", container), ("the address", address), ("the host's name", hostname)])?;
        self.name("the version", version)?;
        if let Some(marker) = marker {
            self.name("the domain in the marker", &marker.domain)?;
        }
        self.protocols(protocols)?;
        fits("the archive's path", path, self.path)?;
        self.labels(labels)?;
        self.registering_again(asked)
    }

    /// The same of one that is known.
    pub(super) fn registering_again(&self, asked: &Registration) -> Fits {
        let Registration { cluster, server, claim, evidence, about, .. } = asked;
        self.names([("the cluster", cluster.as_str()), ("the agent's id", server.as_str())])?;
        self.name("the zone", about.zone.as_deref().unwrap_or_default())?;
        if let Some(claim) = claim {
            let set = claim.owner.as_ref().map_or(("", ""), |owner| (owner.stateful_set.as_str(), owner.uid.as_str()));
            self.names([("the claim's namespace", &claim.namespace), ("the claim's name", &claim.name)])?;
            self.names([("the claim's UID", claim.uid.as_str()), ("a StatefulSet", set.0), ("its UID", set.1)])?;
        }
        evidence.iter().try_for_each(|evidence| self.evidence(evidence))
    }

    pub(super) fn evidence(&self, evidence: &Evidence) -> Fits {
        let says = |fact: &Fact| fits("an annotation that was read", said(fact), self.query);
        evidence.facts.iter().try_for_each(says)?;
        let queries = evidence.facts.iter().filter_map(query_in);
        queries.into_iter().try_for_each(|query| fits("the query", query, self.text))?;
        evidence.facts.iter().flat_map(names_in).try_for_each(|name| self.name("a name that was read", name))
    }

    pub(super) fn restore(&self, restore: &Restore) -> Fits {
        let Restore { format: _, checksum, cluster, without: _, snapshot } = restore;
        self.names([
            ("the checksum", checksum),
            ("the cluster", cluster.as_str()),
            ("the domain's name", &snapshot.name),
        ])?;
        self.name("the domain's id", &snapshot.domain)?;
        few("databases", snapshot.databases.len(), self.databases)?;
        snapshot.databases.iter().try_for_each(|database| self.name("the name of a database", &database.name))?;
        let protocols = snapshot.databases.iter().filter_map(|database| database.protocol.as_ref());
        protocols.into_iter().try_for_each(|protocol| self.name("the name of a protocol version", &protocol.name))?;
        snapshot.databases.iter().try_for_each(|database| self.options(&database.options))?;
        few("archives", snapshot.archives.len(), self.archives)?;
        snapshot.archives.iter().try_for_each(|archive| fits("the path of an archive", &archive.path, self.path))?;
        few("domains that archives came from", snapshot.origins.len(), self.databases)?;
        snapshot.origins.keys().try_for_each(|domain| self.name("the id of an earlier domain", domain))?;
        few("load-balancer entries", snapshot.load_balancer.len(), self.policies + 2 * self.databases)?;
        for (item, manual) in &snapshot.load_balancer {
            self.name("the name of a load-balancer entry", item)?;
            self.name("who set a load-balancer entry", &manual.by)?;
            fits("a load-balancer query", &manual.text, self.query)?;
        }
        few("values", snapshot.values.len(), self.values)?;
        for (key, value) in &snapshot.values {
            fits("a key", key, self.key)?;
            fits("a value", value, self.value)?;
        }
        Ok(())
    }
}

/// Whether a text can be the value of a label in Kubernetes, and is not empty.
pub(crate) fn is_label_value(text: &str) -> bool {
    let plain = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= LABEL_VALUE && plain(bytes.first()) && plain(bytes.last()) && bytes.iter().all(inside)
}

/// Every string of a fact.
fn names_in(fact: &Fact) -> Vec<&str> {
    match fact {
        Fact::AnchorIs { uid } => vec![uid.as_str()],
        Fact::LeaseIs { name, uid } | Fact::PodIs { name, uid } | Fact::ClaimIs { name, uid } => {
            vec![name, uid.as_str()]
        }
        Fact::PodWithoutArchive { pod_uid } => vec![pod_uid.as_str()],
        Fact::PodOwnedBy { pod_uid, stateful_set, uid } => vec![pod_uid.as_str(), stateful_set, uid.as_str()],
        Fact::ClaimAbsent { name } | Fact::PodAbsent { name } => vec![name],
        Fact::ContainerEnded { pod_uid, container, id, exit_code: _ }
        | Fact::ContainerRuns { pod_uid, container, id, started: _ } => vec![pod_uid.as_str(), container, id.as_str()],
        Fact::StatefulSetIs { name, uid, generation: _, replicas: _, first_ordinal: _ } => vec![name, uid.as_str()],
        Fact::AsksForReplication(settings) => {
            let zone = settings.preferred_zone.as_deref().unwrap_or_default();
            vec![&settings.stateful_set, settings.uid.as_str(), zone]
        }
        Fact::DatabaseUnwanted { database } => vec![database.as_str()],
        Fact::Settled { database, pods } => {
            let pods = pods.iter().flat_map(|(name, uid)| [name.as_str(), uid.as_str()]);
            pods.chain([database.as_str()]).collect()
        }
        Fact::DatabaseWanted { database, by } => vec![database.as_str(), by],
        Fact::PurgeHeld { stateful_set }
        | Fact::WorkloadPaused { stateful_set }
        | Fact::SyncsFully { stateful_set } => vec![stateful_set],
        Fact::AnnotationSays { object, item: _, text: _ } => vec![object.name()],

        // The query is no name: see `evidence`.
        Fact::UpgradeAsked { database, deployment, uid, query: _ } => vec![database.as_str(), deployment, uid.as_str()],
        Fact::RollingOut { database, workload } | Fact::UpgradePaused { database, workload } => {
            vec![database.as_str(), workload]
        }
    }
}

/// The text of an annotation, if a fact is of one.
fn said(fact: &Fact) -> &str {
    if let Fact::AnnotationSays { text: Some(text), .. } = fact { text } else { "" }
}

/// The query of a fact.
fn query_in(fact: &Fact) -> Option<&str> {
    if let Fact::UpgradeAsked { query, .. } = fact { query.as_deref() } else { None }
}

/// What an object takes beside its strings, about.
const OBJECT: usize = 256;

/// How much a piece of evidence takes, in bytes, about.
pub(super) fn evidence_bytes(evidence: &Evidence) -> usize {
    let names = |fact| names_in(fact).into_iter().chain(query_in(fact)).map(|text| 32 + text.len()).sum::<usize>();
    evidence.facts.iter().map(|fact| 128 + said(fact).len() + names(fact)).sum()
}

fn labels_bytes(labels: &BTreeMap<String, String>) -> usize {
    labels.iter().map(|(key, value)| 64 + key.len() + value.len()).sum()
}

fn process_bytes(process: &Process) -> usize {
    let (identity, about) = (&process.identity, &process.about);
    let strings = [
        process.database.as_str(),
        process.cluster.as_str(),
        &identity.namespace,
        &identity.pod,
        identity.pod_uid.as_str(),
        &identity.container,
        process.container_id.as_ref().map_or("", |id| id.as_str()),
        process.session.server.as_str(),
        &about.address,
        &about.hostname,
        &about.version,
        about.zone.as_deref().unwrap_or_default(),
    ];
    let protocols = about.protocols.values().map(|name| 64 + name.len()).sum::<usize>();
    2 * OBJECT + strings.into_iter().map(str::len).sum::<usize>() + labels_bytes(&about.labels) + protocols
}

impl Domain {
    /// How many bytes the domain holds, about.
    pub fn bytes(&self) -> usize {
        let servers = self.servers.values().map(|server| OBJECT + server.address.len() + labels_bytes(&server.labels));
        let databases = self.databases.values();
        let databases = databases.map(|known| OBJECT + 2 * known.name.as_str().len() + labels_bytes(&known.options));
        let tasks = self.tasks.values().map(|task| OBJECT + task.bytes());
        let archives = self.archives.values().map(|archive| {
            let claim = archive.claim.as_ref().map_or(0, |claim| claim.name.len() + claim.uid.as_str().len());
            2 * OBJECT + archive.path.len() + 2 * claim
        });
        let processes = self.processes.values().map(process_bytes);
        let tombstones = self.tombstones.values().map(|tombstone| {
            let why = if let ExitReason::Exited(why) = &tombstone.reason { why.len() } else { 0 };
            why + process_bytes(&tombstone.process)
        });
        let objects = servers.chain(databases).chain(archives).chain(processes).chain(tombstones).chain(tasks);
        objects.sum::<usize>() + self.values_bytes() + self.balancing.bytes() + self.audit.bytes()
    }

    /// How many bytes keys and values have.
    pub(super) fn values_bytes(&self) -> usize {
        self.values.iter().map(|(key, value)| 64 + key.len() + value.len()).sum()
    }

    /// Says whether the values may take so many bytes more.
    pub(super) fn may_grow_values(&self, more: usize) -> Fits {
        let (bytes, most) = (self.values_bytes() + more, self.bounds.values_bytes);
        if more == 0 || bytes <= most {
            return Ok(());
        }
        Err(Excess::Long { what: "all values together".to_owned(), bytes: bytes as u64, most: most as u64 })
    }

    /// Says whether the load-balancer entries may take so many bytes more.
    pub(super) fn may_grow_balancing(&self, more: usize) -> Fits {
        let (bytes, most) = (self.balancing.bytes() + more, self.bounds.balancing_bytes);
        if bytes <= most {
            return Ok(());
        }
        let what = "all load-balancer entries together".to_owned();
        Err(Excess::Long { what, bytes: bytes as u64, most: most as u64 })
    }

    /// Says whether something new goes in.
    pub(super) fn has_room(&self) -> Fits {
        let (bytes, most) = (self.bytes(), self.bounds.bytes);
        if bytes < most { Ok(()) } else { Err(Excess::Full { bytes: bytes as u64, most: most as u64 }) }
    }

    /// Says whether there may be one more.
    pub(super) fn may_add(&self, what: &str, there: usize, most: usize) -> Fits {
        few(what, there + 1, most)?;
        self.has_room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::archive::{Claim, Marker, Ordinal};
    use crate::domain::audit::{Audit, Record, Subject};
    use crate::domain::change;
    use crate::domain::command::Role;
    use crate::domain::event::Event;
    use crate::domain::ids::{ArchiveId, Millis, StartId, Uid};
    use crate::domain::process::EngineKind;

    fn long(bytes: usize) -> String {
        "x".repeat(bytes)
    }

    fn registration() -> Registration {
        let owner = Ordinal { stateful_set: "sm".to_owned(), uid: "S".into(), ordinal: 0 };
        let (namespace, name) = ("ns".to_owned(), "c".to_owned());
        Registration {
            database: "demo".into(),
            kind: EngineKind::Sm,
            cluster: "c1".into(),
            identity: Identity {
                namespace: "ns".to_owned(),
                pod: "p".to_owned(),
                pod_uid: "P".into(),
                container: "engine".to_owned(),
                nonce: 1,
                started: Millis(1),
            },
            known_as: None,
            claim: Some(Claim { namespace, name, uid: "C".into(), owner: Some(owner) }),
            marker: Some(Marker { domain: "D".into(), archive: ArchiveId(1) }),
            path: "/archive".to_owned(),
            server: "admin-0".into(),
            connection: 1,
            about: About::default(),
            evidence: Some(Evidence::default()),
            as_of: None,
        }
    }

    #[test]
    fn every_string_of_a_registration_has_its_bound() {
        let bounds = Bounds::default();
        type Field = fn(&mut Registration, String);
        let fields: [(Field, usize); 20] = [
            (|it, text| it.identity.namespace = text, bounds.name),
            (|it, text| it.identity.pod = text, bounds.name),
            (|it, text| it.identity.pod_uid = Uid::new(text), bounds.name),
            (|it, text| it.identity.container = text, bounds.name),
            (|it, text| it.cluster = text.into(), bounds.name),
            (|it, text| it.server = text.into(), bounds.name),
            (|it, text| it.about.address = text, bounds.name),
            (|it, text| it.about.hostname = text, bounds.name),
            (|it, text| it.about.version = text, bounds.name),
            (|it, text| it.about.zone = Some(text), bounds.name),
            (|it, text| drop(it.about.labels.insert(text, String::new())), bounds.labels_bytes),
            (|it, text| drop(it.about.labels.insert(String::new(), text)), bounds.labels_bytes),
            (|it, text| it.marker.as_mut().unwrap().domain = text.into(), bounds.name),
            (|it, text| it.path = text, bounds.path),
            (|it, text| it.claim.as_mut().unwrap().name = text, bounds.name),
            (|it, text| it.claim.as_mut().unwrap().namespace = text, bounds.name),
            (|it, text| it.claim.as_mut().unwrap().uid = text.into(), bounds.name),
            (|it, text| it.claim.as_mut().unwrap().owner.as_mut().unwrap().stateful_set = text, bounds.name),
            (|it, text| it.claim.as_mut().unwrap().owner.as_mut().unwrap().uid = text.into(), bounds.name),
            (|it, name| it.evidence.as_mut().unwrap().facts.push(Fact::ClaimAbsent { name }), bounds.name),
        ];
        for (place, (set, most)) in fields.into_iter().enumerate() {
            let with = |bytes| {
                let mut asked = registration();
                set(&mut asked, long(bytes));
                bounds.registration(&asked)
            };
            assert_eq!(with(most), Ok(()), "field {place}");
            assert!(matches!(with(most + 1), Err(Excess::Long { .. })), "field {place}");
        }
        let mut asked = registration();
        asked.about.labels = (0..=bounds.labels).map(|label| (label.to_string(), String::new())).collect();
        assert!(matches!(bounds.registration(&asked), Err(Excess::Many { .. })));
        asked.database = long(64).into();
        assert!(matches!(bounds.registration(&asked), Err(Excess::NotALabel(_))));
    }

    #[test]
    fn what_has_to_go_in_is_cut_between_two_characters_and_shows_it() {
        let cut_to = |text: &str, most| {
            let mut text = text.to_owned();
            cut(&mut text, most);
            text
        };
        assert_eq!(cut_to("abcdef", 6), "abcdef");
        assert_eq!(cut_to("abcdefg", 6), "abc…");
        assert_eq!(cut_to("aäöü", 6), "aä…", "{}", "aäöü".len());
        assert_eq!(cut_to("ab", 0), "…");
        let (process, session) = (StartId(1), Default::default());
        let mut exit = Command::ReportExit(change::ReportExit {
            process,
            session,
            exit_code: None,
            reason: ExitReason::Exited(long(200 << 10)),
        });
        let actor = Actor { role: Role::Agent, name: "admin-0".to_owned() };
        assert_eq!(Bounds::default().check(&actor, &mut exit), Ok(()));
        let Command::ReportExit(change::ReportExit { reason: ExitReason::Exited(why), .. }) = exit else {
            panic!("{exit:?}")
        };
        assert!(why.len() <= Bounds::default().text && why.ends_with('…'), "{} bytes", why.len());
        let stranger = Actor { role: Role::Operator, name: long(1000) };
        assert!(Bounds::default().check(&stranger, &mut Command::ResumeResync).is_err());
    }

    #[test]
    fn the_trail_has_a_bound_in_bytes_and_a_record_keeps_so_many_facts() {
        let bounds = Bounds { records_bytes: 4000, facts: 2, ..Bounds::default() };
        let mut audit = Audit::default();
        for index in 0..100 {
            let name = long(50);
            let evidence = Evidence { read_at: Millis(0), facts: vec![Fact::ClaimAbsent { name }; 5] };
            let (actor, subjects) = (Actor { role: Role::Agent, name: "a".to_owned() }, vec![Subject::Domain; 3]);
            let event = Event::Said(long(300));
            let record = Record::new(index, Millis(0), actor, subjects, event, Some(evidence));
            audit.push(record, &bounds);
            assert!(audit.bytes() <= bounds.records_bytes, "{}", audit.bytes());
        }
        let last = audit.records().last().unwrap();
        assert_eq!((last.index, last.subjects.len()), (99, 2));
        let text = last.text();
        assert!(text.ends_with("x (3 more facts were read) (1 more subjects it concerns)"), "{text}");
        assert_eq!(audit.records().count() as u64 + audit.dropped, 100);
    }

    /// At the bounds the domain takes no more than an agent has.
    #[test]
    fn the_bounds_go_together() {
        let Bounds { name, text, path, labels_bytes, values_bytes, records_bytes, bytes, .. } = Bounds::default();
        let bounds = Bounds::default();
        let process = 2 * OBJECT + 12 * name + labels_bytes + 64 * bounds.labels;
        let tombstones = (bounds.tombstones + bounds.archives) * (process + text);
        let archives = bounds.archives * (2 * OBJECT + path + 4 * name);
        let all = bounds.processes * process + tombstones + archives + values_bytes + records_bytes;
        assert!(bytes <= 128 << 20, "four of it in 512 MiB");
        assert!(all > bytes && all / 3 < bytes, "{all} bytes are so many that the bounds of each mean nothing");
    }
}
