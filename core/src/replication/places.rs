//! The archives of a database with one primary, as an operator sees them: which pod, which role, what its server does, as far as
//! the domain knows.

use super::assignment::{Wanted, is_stopping};
use super::{Survival, loss_of, survival};
use crate::domain::Domain;
use crate::domain::ids::{ArchiveId, DatabaseName, Millis, StartId};
use crate::domain::process::{Process, SessionState};
use crate::domain::replicated::{Ended, FailoverMode, Replicated};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use strum::IntoStaticStr;

/// What an archive is in its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum Role {
    /// The primary's.
    Primary,
    /// In the sync set.
    Standby,
    /// The primary waits for it, and it does not count yet.
    Joining,
    /// Its data may be replaced.
    Overwriting,
    /// None of these: it follows the primary, and may be behind.
    Spare,
    /// None: no data of its database counts yet.
    None,
}

/// What the server of an archive does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PlaceState {
    /// It is the primary, and lets clients in.
    Open,
    /// It was promoted, and lets no client in yet.
    Promoted,
    /// It is to be promoted.
    Granted,
    /// It was the primary, and has stopped for another one, or failed.
    Ended(Ended),
    /// It is to follow the primary. Whether it does, the primary's server says ([`super::Vitals`]).
    Assigned,
    /// Its data may be replaced by that of the primary: it is copied, or is about to follow with the copy.
    Replaced,
    /// It follows no server.
    Fenced,
    /// It makes the first data.
    Initializes,
    /// It has registered, and its wrapper has not said what is on the volume.
    Starting,
    /// Its pod is to stop.
    Stopping,
    /// No agent has its session.
    SessionLost,
    /// No engine has registered on the archive, or its process has exited.
    NotRegistered,
}

/// One archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The archive.
    pub archive: ArchiveId,
    /// The pod that is on it, or was, or would be.
    pub pod: String,
    /// What it is in its database.
    pub role: Role,
    /// What its server does.
    pub state: PlaceState,
    /// Since when, if that is known.
    pub since: Option<Millis>,
    /// The process on it.
    pub process: Option<StartId>,
}

impl fmt::Display for PlaceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Promoted => "promoted, not open yet",
            Self::Granted => "being promoted",
            Self::Ended(Ended::StoodDown) => "stood down",
            Self::Ended(Ended::Failed) => "ended by itself",
            Self::Assigned => "assigned",
            Self::Replaced => "its data is replaced",
            Self::Fenced => "fenced",
            Self::Initializes => "makes the first data",
            Self::Starting => "starting",
            Self::Stopping => "stopping",
            Self::SessionLost => "session lost",
            Self::NotRegistered => "not registered",
        })
    }
}

impl fmt::Display for Place {
    /// `archive 2, pod shop-1, session lost since 2026-11-21T16:30:00.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "archive {}, pod {}, {}", self.archive, self.pod, self.state)?;
        match self.since {
            Some(since) => write!(f, " since {since}"),
            None => Ok(()),
        }
    }
}

impl Domain {
    /// The pod of an archive: the one that is on it, else the one that its StatefulSet would start on it, else the last one.
    pub fn pod_of(&self, archive: ArchiveId) -> String {
        let of_process = || Some(self.process_on(archive)?.identity.pod.clone());
        let of_claim = || Some(self.archives.get(&archive)?.claim.as_ref()?.owner.as_ref()?.to_string());
        let of_last = || Some(self.last_exit_on(archive)?.process.identity.pod.clone());
        of_process().or_else(of_claim).or_else(of_last).unwrap_or_else(|| format!("of archive {archive}"))
    }

    /// Where an archive is among the others: by its ordinal.
    pub fn place_of(&self, archive: ArchiveId) -> (u32, ArchiveId) {
        self.archives.get(&archive).map_or((u32::MAX, archive), |it| it.place())
    }

    /// The zone of an archive's server, if that is known.
    pub fn zone_of(&self, archive: ArchiveId) -> Option<&str> {
        self.process_on(archive)?.zone()
    }

    /// Where an archive is among those of which nothing else says which one is better: the preferred zone first, then by its ordinal.
    pub fn preference(&self, replicated: &Replicated, archive: ArchiveId) -> (bool, (u32, ArchiveId)) {
        let preferred = replicated.settings.as_ref().and_then(|settings| settings.preferred_zone.as_deref());
        let is_there = preferred.is_some() && self.zone_of(archive) == preferred;
        (!is_there, self.place_of(archive))
    }

    /// The archives of a database that are not removed, by the order of their pods.
    pub fn places(&self, name: &DatabaseName, replicated: &Replicated) -> Vec<Place> {
        let mut archives: Vec<_> = self.active_archives(name).collect();
        archives.sort_by_key(|archive| archive.place());
        archives.into_iter().map(|archive| self.place(replicated, archive.id)).collect()
    }

    /// One archive.
    pub fn place(&self, replicated: &Replicated, archive: ArchiveId) -> Place {
        let process = self.process_on(archive);
        let (state, since) = match process {
            Some(process) => self.state_of(process, replicated),
            None => (PlaceState::NotRegistered, self.last_exit_on(archive).map(|exited| exited.at)),
        };
        let role = role(replicated, archive);
        Place { archive, pod: self.pod_of(archive), role, state, since, process: process.map(|process| process.id) }
    }

    fn state_of(&self, process: &Process, replicated: &Replicated) -> (PlaceState, Option<Millis>) {
        let registered = Some(process.registered);
        if let SessionState::Lost(since) = process.session.state {
            return (PlaceState::SessionLost, Some(since));
        }
        if is_stopping(process) {
            return (PlaceState::Stopping, None);
        }
        if process.data.is_none() {
            return (PlaceState::Starting, registered);
        }
        let primary = replicated.primary.as_ref().filter(|primary| primary.process == process.id);
        if let Some(primary) = primary {
            return match (primary.ended, primary.opened, primary.begins) {
                (Some(ended), _, _) => (PlaceState::Ended(ended), None),
                (None, Some(opened), _) => (PlaceState::Open, Some(opened)),
                (None, None, Some(_)) => (PlaceState::Promoted, Some(primary.granted)),
                (None, None, None) => (PlaceState::Granted, Some(primary.granted)),
            };
        }
        let state = match self.assignment(process.id, None).map(|assignment| assignment.what) {
            Some(Wanted::Follow { permission: Some(_), .. }) => PlaceState::Replaced,
            Some(Wanted::Follow { .. }) => PlaceState::Assigned,
            Some(Wanted::Initialize) => PlaceState::Initializes,
            Some(Wanted::Hold(_) | Wanted::Primary { .. }) | None => PlaceState::Fenced,
        };
        (state, registered)
    }

    /// Which pods can be lost; `None` while there is no primary, or the record may be wrong.
    pub fn survival(&self, name: &DatabaseName, replicated: &Replicated) -> Option<Survival> {
        let record = replicated.record.as_ref().filter(|_| replicated.uncertain.is_none())?;
        let places = self.places(name, replicated);
        let archives: BTreeSet<ArchiveId> = places.iter().map(|place| place.archive).collect();
        // A member that was removed counts all the same.
        let removed = record.sync_set.difference(&archives).copied();
        let archives: Vec<ArchiveId> = places.iter().map(|place| place.archive).chain(removed).collect();
        let can = |archive: &&ArchiveId| self.has_data_of(replicated, **archive);
        let up = archives.iter().filter(can).filter(|archive| !record.overwriting.contains_key(archive));
        let up: BTreeSet<ArchiveId> = up.copied().collect();
        // One that keeps no lease is not replaced while it may run.
        let primary = replicated.primary.as_ref();
        let keeps_lease = primary.is_none_or(|primary| primary.begins.is_none() || primary.keeps_lease);
        let automatic = keeps_lease && replicated.failover() == FailoverMode::Automatic;
        let mut found = survival(&archives, record, &up, replicated.blocks(), automatic);
        let mut zones: BTreeMap<String, BTreeSet<ArchiveId>> = BTreeMap::new();
        for archive in archives {
            if let Some(zone) = self.zone_of(archive) {
                zones.entry(zone.to_owned()).or_default().insert(archive);
            }
        }
        if zones.len() > 1 {
            zones.retain(|_, archives| archives.len() > 1);
            let loss = |lost: BTreeSet<ArchiveId>| loss_of(&lost, record, &up, replicated.blocks(), automatic);
            found.zones = zones.into_iter().map(|(zone, lost)| (zone, loss(lost))).collect();
        }
        Some(found)
    }
}

fn role(replicated: &Replicated, archive: ArchiveId) -> Role {
    let Some(record) = &replicated.record else { return Role::None };
    if record.primary == archive {
        Role::Primary
    } else if record.sync_set.contains(&archive) {
        Role::Standby
    } else if record.joining == Some(archive) {
        Role::Joining
    } else if record.overwriting.contains_key(&archive) {
        Role::Overwriting
    } else {
        Role::Spare
    }
}
