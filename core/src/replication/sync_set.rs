//! Which archives are in the sync set: as many as the settings ask for, those whose servers stream, in different zones where there
//! is a choice. The agent of the primary maintains it, by what the primary sees. One change at a time.

use super::assignment::is_stopping;
use super::{Replication, Report};
use crate::domain::Domain;
use crate::domain::change::{ChangeSyncSet, Command, SetChange};
use crate::domain::ids::{ArchiveId, DatabaseName};
use crate::domain::replicated::{Primary, Replicated};

/// A member of the set that the primary has not heard for so long leaves it, in milliseconds.
pub const SILENT_MS: u64 = 2_000;

/// The next change of the set; `None` if it is as it should be, or a change is under way.
pub(super) fn next(domain: &Domain, name: &DatabaseName, replicated: &Replicated, report: &Report) -> Option<Command> {
    let record = replicated.record.as_ref().filter(|_| replicated.uncertain.is_none())?;
    report.begins().filter(|begins| begins.generation == record.generation)?;
    let what = if let Some((archive, why)) = to_leave(domain, record, replicated, report) {
        SetChange::Leave { archive, why }
    } else {
        // Another change follows once the last one is in force.
        let settled = report.in_force.is_some_and(|it| it.version == record.version) || replicated.waits_alone();
        if record.joining.is_some() || !settled {
            return None;
        }
        match to_join(domain, record, replicated, report) {
            Some(archive) => SetChange::Join(archive),
            None => {
                let archive = surplus(domain, record, replicated, report)?;
                let why = match shares_zone(domain, record, archive) {
                    true => "it shares its zone with another server of the set, and enough others confirm",
                    false => "enough others confirm",
                };
                SetChange::Leave { archive, why: why.to_owned() }
            }
        }
    };
    let (database, generation, version) = (name.clone(), record.generation, record.version);
    Some(Command::ChangeSyncSet(ChangeSyncSet { database, generation, version, what }))
}

/// Whether the primary is to hand over soon.
fn hands_over(domain: &Domain, record: &Replication, replicated: &Replicated) -> bool {
    replicated.switchover.is_some() || domain.process_on(record.primary).is_some_and(is_stopping)
}

/// An archive that the primary must not wait for any longer, and why.
fn to_leave(
    domain: &Domain,
    record: &Replication,
    replicated: &Replicated,
    report: &Report,
) -> Option<(ArchiveId, String)> {
    let unused = replicated.primary.as_ref().filter(|primary| primary.opened.is_none());
    for archive in record.rule().members {
        let standby = report.standby(archive);
        // A primary that no client has used does not wait for who is away or cannot follow, nor for the one before it, which may take
        // long to follow.
        let is_away = |primary: &Primary| primary.from == Some(archive) || !domain.has_data_of(replicated, archive);
        if unused.is_some_and(is_away) && !standby.is_some_and(|it| it.streams) {
            return Some((archive, "its server does not follow yet".to_owned()));
        }
        if let Some(silent_ms) = standby.map(|it| it.silent_ms).filter(|silent| *silent >= SILENT_MS) {
            return Some((archive, format!("the primary has not heard its server for {} s", silent_ms / 1000)));
        }
        let stopping = domain.process_on(archive).is_some_and(is_stopping);
        // Its pod waits for that. Another one joins before, if there is one, and counts.
        let alone = record.joining.is_none() && to_join(domain, record, replicated, report).is_none();
        if stopping && (record.joining == Some(archive) || alone) {
            return Some((archive, "its pod stops".to_owned()));
        }
    }
    None
}

/// An archive that is to join, by preference.
fn to_join(domain: &Domain, record: &Replication, replicated: &Replicated, report: &Report) -> Option<ArchiveId> {
    if record.joining.is_some() {
        return None;
    }
    if let Some(to) = replicated.switchover.as_ref().and_then(|switchover| switchover.to)
        && is_spare(domain, record, replicated, report, to)
    {
        return Some(to);
    }
    if hands_over(domain, record, replicated) {
        return spare_for_successor(domain, replicated, report);
    }
    let stays = record.sync_set.iter().filter(|id| !domain.process_on(**id).is_some_and(is_stopping));
    let confirm = stays.filter(|id| **id != record.primary).count();
    if confirm >= replicated.synchronous() {
        return spreads(domain, record, replicated, report);
    }
    // A set in several zones survives the loss of one.
    let rank = |id: &ArchiveId| (shares_zone(domain, record, *id), domain.preference(replicated, *id));
    spares(domain, record, replicated, report).min_by_key(rank)
}

/// An archive in a zone of its own that is to take the place of one that shares its zone: once it is in the set, that one is surplus.
fn spreads(domain: &Domain, record: &Replication, replicated: &Replicated, report: &Report) -> Option<ArchiveId> {
    let is_crowded = record.rule().members.iter().any(|member| shares_zone(domain, record, *member));
    // One exchange at a time.
    if !is_crowded || record.sync_set.len() != replicated.synchronous() + 1 {
        return None;
    }
    // A server that comes and goes would have commits wait for it each time.
    let is_steady = |id: &ArchiveId| report.standby(*id).is_some_and(|standby| standby.is_steady);
    let is_elsewhere = |id: &ArchiveId| domain.zone_of(*id).is_some() && !shares_zone(domain, record, *id);
    let spares = spares(domain, record, replicated, report).filter(is_steady).filter(is_elsewhere);
    spares.min_by_key(|id| domain.preference(replicated, *id))
}

/// A server that joins before the primary hands over: the successor's set is one smaller, and it does not begin alone.
pub(super) fn spare_for_successor(domain: &Domain, replicated: &Replicated, report: &Report) -> Option<ArchiveId> {
    let record = replicated.record.as_ref()?;
    if record.sync_set.len() > replicated.synchronous() + 1 {
        return None;
    }
    // It may be the successor, so its zone alone counts.
    spares(domain, record, replicated, report).min_by_key(|id| domain.preference(replicated, *id))
}

/// The archives outside the set that could join it.
fn spares<'a>(
    domain: &'a Domain,
    record: &'a Replication,
    replicated: &'a Replicated,
    report: &'a Report,
) -> impl Iterator<Item = ArchiveId> + 'a {
    let connected = report.standbys.iter().map(|standby| standby.archive);
    connected.filter(|archive| is_spare(domain, record, replicated, report, *archive))
}

/// Whether another archive of the set is in the zone of this one.
fn shares_zone(domain: &Domain, record: &Replication, id: ArchiveId) -> bool {
    let zone = domain.zone_of(id);
    zone.is_some() && record.sync_set.iter().any(|member| *member != id && domain.zone_of(*member) == zone)
}

/// Whether an archive outside the set could join it: its server streams, and was heard a moment ago. That of a connection that was cut seems
/// to stream until it times out.
fn is_spare(domain: &Domain, record: &Replication, replicated: &Replicated, report: &Report, id: ArchiveId) -> bool {
    let is_free = !replicated.counts(id) && !record.overwriting.contains_key(&id);
    let streams = report.standby(id).is_some_and(|it| it.streams && it.silent_ms < SILENT_MS / 2);
    streams && is_free && domain.may_join_set(replicated, id)
}

/// An archive of a set that is larger than asked for: one that is silent and may be away, else one that shares its zone with another one,
/// else one outside the preferred zone, else the last by ordinal.
fn surplus(domain: &Domain, record: &Replication, replicated: &Replicated, report: &Report) -> Option<ArchiveId> {
    if hands_over(domain, record, replicated) || record.sync_set.len() <= replicated.synchronous() + 1 {
        return None;
    }
    let others = record.sync_set.iter().filter(|archive| **archive != record.primary);
    others.copied().max_by_key(|id| {
        let is_silent = report.standby(*id).is_none_or(|it| it.silent_ms >= SILENT_MS / 2);
        (is_silent, shares_zone(domain, record, *id), domain.preference(replicated, *id))
    })
}
