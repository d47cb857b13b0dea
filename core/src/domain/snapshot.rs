//! The domain as it can be taken elsewhere, and founded again from there.
//!
//! What goes along is what cannot be learned again: databases, archives, values, and the ids that were given. What belongs to
//! the place that is left stays behind: servers, processes, the resync, and the claims, whose UIDs mean nothing in another
//! Kubernetes. An archive comes without a claim, so that nothing is concluded from what is not there; the marker on its
//! volume names the domain it was made in, and is taken for that of the archive here. Tasks stay behind too: what one has not done
//! concerns processes that stay behind. The effective protocol version of a database goes along, since no engine reports it.
//!
//! These are types of their own, not those of the state: what is written here is read from logs and files forever.

use super::archive::{Archive, Removal, RemovalReason};
use super::balancing::{Item, Manual};
use super::command::Refusal;
use super::database::{Database, DatabaseState, Incarnation};
use super::ids::{ArchiveId, ClusterName, DatabaseName, DomainId, Millis, NodeId, ServerId, StartId};
use super::protocol::{EffectiveProtocol, Protocol};
use super::{CLAIMS_PREFIX, Domain};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The format of snapshots that this version writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// The greatest count that is believed: one is added to them forever after.
const MAX_COUNT: u64 = 1 << 62;

/// What is taken along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Snapshot {
    /// The domain it was taken from.
    pub domain: DomainId,
    /// That domain's name.
    pub name: String,
    /// The last entry in it.
    pub index: u64,
    /// The time of that entry.
    pub time: Millis,
    /// Its databases.
    pub databases: Vec<KeptDatabase>,
    /// Its archives, removed ones too.
    pub archives: Vec<KeptArchive>,
    /// Its key-value store, without what the domain itself writes there.
    pub values: BTreeMap<String, String>,
    /// What operators have set for load balancing. Annotations are read where they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub load_balancer: BTreeMap<Item, Manual>,
    /// The archive id given last.
    pub last_archive: ArchiveId,
    /// The start id given last.
    pub last_start: StartId,
    /// The archives that came from earlier domains by snapshots, some of which their markers may still name.
    pub origins: BTreeMap<DomainId, BTreeSet<ArchiveId>>,
}

/// A database, as it is taken along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KeptDatabase {
    /// Its name.
    pub name: DatabaseName,
    /// Whether it was deleted; its node ids and incarnations continue if the name is used again.
    pub deleted: bool,
    /// The greater part of its incarnation.
    pub major: u64,
    /// The lesser part.
    pub minor: u64,
    /// The node id that the next engine gets.
    pub next_node: NodeId,
    /// When it was created.
    pub created: Millis,
    /// Its effective protocol version, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The options that an operator gave it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Whether an operator has created it and no engine has registered for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
}

/// An archive, as it is taken along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KeptArchive {
    /// Its id.
    pub id: ArchiveId,
    /// Its database.
    pub database: DatabaseName,
    /// Where the engine finds it, in its own file system.
    pub path: String,
    /// Whether an engine on it has ever reported that it runs.
    pub ever_ran: bool,
    /// Whether another archive of the snapshot is proven to hold all its data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
    /// When and why it was removed, if it was.
    pub removed: Option<KeptRemoval>,
    /// When it was created.
    pub created: Millis,
    /// Where it was, for people to find its volume by.
    pub was: Option<Place>,
    /// Whether an operator had created it and no engine had registered on it. A restored archive is not: one may have registered
    /// since the snapshot was taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
}

/// When and why an archive was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KeptRemoval {
    /// The moment.
    pub at: Millis,
    /// The reason.
    pub because: RemovalReason,
}

/// A claim in a Kubernetes that may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Place {
    /// The cluster.
    pub cluster: ClusterName,
    /// The namespace.
    pub namespace: String,
    /// The claim's name.
    pub claim: String,
}

/// How much stays behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LeftBehind {
    /// The admin servers.
    pub servers: Vec<ServerId>,
    /// How many living processes.
    pub processes: u64,
    /// How many exited ones.
    pub exited: u64,
    /// How many records of the audit trail.
    pub records: u64,
    /// Whether the resync was paused.
    pub paused: bool,
}

/// A snapshot, and how it is to be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Restore {
    /// The snapshot's format.
    pub format: u32,
    /// The checksum of the file, which tells one from another.
    pub checksum: String,
    /// The cluster that its archives are taken to be in until they show in another.
    pub cluster: ClusterName,
    /// Archives that are left behind, since their volumes do not come along.
    pub without: BTreeSet<ArchiveId>,
    /// What is restored.
    pub snapshot: Snapshot,
}

/// What a domain remembers of the snapshot that it was founded from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The checksum of the file.
    pub checksum: String,
    /// The archives that it brought, by the domains that their markers may name.
    pub origins: BTreeMap<DomainId, BTreeSet<ArchiveId>>,
}

impl Domain {
    /// What can be taken elsewhere; nothing before the domain is founded.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let own = |key: &&String| !key.starts_with(CLAIMS_PREFIX);
        let values = self.values.iter().filter(|(key, _)| own(key));
        Some(Snapshot {
            domain: self.id.clone()?,
            name: self.name.clone(),
            index: self.index,
            time: self.time,
            databases: self.databases.values().map(KeptDatabase::from).collect(),
            archives: self.archives.values().map(|archive| self.kept(archive)).collect(),
            values: values.map(|(key, value)| (key.clone(), value.clone())).collect(),
            load_balancer: self.balancing.manual(),
            last_archive: self.last_archive,
            last_start: self.last_start,
            origins: self.restored.as_ref().map(|restored| restored.origins.clone()).unwrap_or_default(),
        })
    }

    fn kept(&self, archive: &Archive) -> KeptArchive {
        let newer = |other: &&Archive| self.holds_all_of(other, archive) && !self.holds_all_of(archive, other);
        let surpassed = || self.with_data(&archive.database).any(|other| other.id != archive.id && newer(&other));
        let outdated = archive.has_data() && surpassed();
        KeptArchive { outdated, ..KeptArchive::from(archive) }
    }

    /// What a snapshot leaves behind.
    pub fn left_behind(&self) -> LeftBehind {
        LeftBehind {
            servers: self.servers.keys().cloned().collect(),
            processes: self.processes.len() as u64,
            exited: self.tombstones.len() as u64,
            records: self.audit.records().count() as u64,
            paused: self.paused.is_some(),
        }
    }

    /// Whether a snapshot can be restored here: only into a domain in which nothing has happened yet.
    pub fn may_restore(&self, restore: &Restore) -> Result<(), Refusal> {
        if self.id.is_none() {
            return Err(Refusal::NotFounded);
        }
        if restore.format != FORMAT {
            let why = format!("it is of format {}, and this version knows format {FORMAT}", restore.format);
            return Err(Refusal::Unsound(why));
        }
        if let Some(what) = self.first_thing() {
            return Err(Refusal::NotEmpty(what));
        }
        restore.snapshot.sound().map_err(Refusal::Unsound)?;
        let known = |id: &&ArchiveId| restore.snapshot.archives.iter().any(|archive| archive.id == **id);
        match restore.without.iter().find(|id| !known(id)) {
            Some(id) => Err(Refusal::UnknownArchive(*id)),
            None => Ok(()),
        }
    }

    /// Something that keeps the domain from being empty.
    fn first_thing(&self) -> Option<String> {
        let process = || self.processes.keys().next().map(|id| format!("process {id}"));
        let archive = || self.archives.keys().next().map(|id| format!("archive {id}"));
        let database = || self.databases.keys().next().map(|name| format!("database {name}"));
        let exited = || self.tombstones.keys().next().map(|id| format!("exited process {id}"));
        let value = || self.values.keys().next().map(|key| format!("value {key}"));
        process().or_else(archive).or_else(database).or_else(exited).or_else(value)
    }

    /// Whether the marker of an earlier domain names an archive that came from there.
    pub(super) fn came_from(&self, domain: &DomainId, archive: ArchiveId) -> bool {
        let origins = self.restored.as_ref().map(|restored| &restored.origins);
        origins.and_then(|origins| origins.get(domain)).is_some_and(|archives| archives.contains(&archive))
    }

    /// Whether an archive was not made here.
    pub(super) fn came_along(&self, archive: ArchiveId) -> bool {
        let origins = self.restored.as_ref().map(|restored| &restored.origins);
        origins.is_some_and(|origins| origins.values().any(|archives| archives.contains(&archive)))
    }
}

impl Snapshot {
    /// Says what in it does not go together: the invariants have to hold of whatever is applied.
    fn sound(&self) -> Result<(), String> {
        let mut databases = BTreeMap::new();
        for database in &self.databases {
            let name = &database.name;
            if databases.insert(name, database.deleted).is_some() {
                return Err(format!("database {name} occurs twice"));
            }
            if [database.major, database.minor, database.next_node.0].into_iter().any(|count| count > MAX_COUNT) {
                return Err(format!("a count of database {name} is too great"));
            }
        }
        let mut archives = BTreeSet::new();
        for KeptArchive { id, database, .. } in &self.archives {
            if !archives.insert(id) {
                return Err(format!("archive {id} occurs twice"));
            }
            if *id > self.last_archive {
                return Err(format!("archive {id} has an id that was never given"));
            }
            match databases.get(database) {
                None => return Err(format!("archive {id} has no database {database}")),
                Some(true) => return Err(format!("archive {id} is of database {database}, which is deleted")),
                Some(false) => {}
            }
        }
        if let Some(of) =
            self.load_balancer.keys().filter_map(Item::database).find(|it| databases.get(it) != Some(&false))
        {
            return Err(format!("a load-balancer entry is of database {of}, which is not there"));
        }
        if self.last_archive.0 > MAX_COUNT || self.last_start.0 > MAX_COUNT {
            return Err("the ids given last are too great".to_owned());
        }
        Ok(())
    }
}

impl From<&Database> for KeptDatabase {
    fn from(database: &Database) -> Self {
        Self {
            name: database.name.clone(),
            deleted: database.state == DatabaseState::Tombstone,
            major: database.incarnation.major,
            minor: database.incarnation.minor,
            next_node: database.next_node,
            created: database.created,
            protocol: database.protocol.as_ref().map(|known| known.effective.clone()),
            options: database.options.clone(),
            by_hand: database.by_hand,
        }
    }
}

impl From<KeptDatabase> for Database {
    /// Nothing of it runs.
    fn from(kept: KeptDatabase) -> Self {
        Self {
            name: kept.name,
            state: if kept.deleted { DatabaseState::Tombstone } else { DatabaseState::NotRunning },
            incarnation: Incarnation { major: kept.major, minor: kept.minor },
            next_node: kept.next_node,
            created: kept.created,
            stopping_since: None,
            protocol: kept.protocol.map(EffectiveProtocol::new),
            options: kept.options,
            by_hand: kept.by_hand,
            judged: BTreeMap::new(),
            replicated: None,
        }
    }
}

impl From<&Archive> for KeptArchive {
    fn from(archive: &Archive) -> Self {
        let was = archive.claim.as_ref().map(|claim| Place {
            cluster: archive.cluster.clone(),
            namespace: claim.namespace.clone(),
            claim: claim.name.clone(),
        });
        let removed = archive.removed.as_ref();
        Self {
            id: archive.id,
            database: archive.database.clone(),
            path: archive.path.clone(),
            ever_ran: archive.ever_ran,
            outdated: false,
            removed: removed.map(|removal| KeptRemoval { at: removal.at, because: removal.because }),
            created: archive.created,
            was,
            by_hand: archive.by_hand,
        }
    }
}

impl KeptArchive {
    /// Whether a cold start of its database waits for its volume: it may hold data that no other archive has.
    pub fn cold_start_waits(&self) -> bool {
        !self.outdated && self.clone().unbound(ClusterName::default()).has_data()
    }

    /// The archive without a claim. Of a claim that was gone elsewhere nothing is known here.
    pub(super) fn unbound(self, cluster: ClusterName) -> Archive {
        Archive {
            id: self.id,
            database: self.database,
            cluster,
            claim: None,
            bound: 0,
            path: self.path,
            ever_ran: self.ever_ran,
            // The entries that were proven are another log's.
            holds_to: 0,
            written_to: self.outdated.then_some(0),
            removed: self.removed.map(|kept| Removal {
                at: kept.at,
                because: kept.because,
                claim_gone: None,
                watched: None,
            }),
            created: self.created,
            by_hand: false,
        }
    }
}
