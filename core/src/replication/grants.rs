//! Which archive becomes the primary's, and when: the Raft leader's part. It needs no Kubernetes.

use crate::domain::Domain;
use crate::domain::change::{Asked, Command, GrantPrimary, GrantReason, InitializeDatabase, RequestSwitchover};
use crate::domain::command::Role;
use crate::domain::ids::{ArchiveId, DatabaseName, Millis};
use crate::domain::process::Process;
use crate::domain::replicated::{Data, Ended, Over, Replicated};
use std::collections::BTreeSet;

/// A switchover that the primary has not begun after so long is given up, in milliseconds.
pub const SWITCHOVER_MS: u64 = 60_000;

/// The pause after the second grant to a server that ended soon after the first one, in milliseconds. It doubles each time.
const RETURN_MS: u64 = 1_000;
/// The longest one.
const RETURN_MAX_MS: u64 = 60_000;

/// What is to be proposed: at most one command for each database with one primary.
pub fn plan(domain: &Domain, now: Millis) -> Vec<Command> {
    let replicated = domain.databases.values().filter_map(|it| Some((&it.name, it.replicated.as_deref()?)));
    replicated.filter_map(|(name, replicated)| next(domain, name, replicated, now)).collect()
}

fn next(domain: &Domain, name: &DatabaseName, replicated: &Replicated, now: Millis) -> Option<Command> {
    let initialized = initialize(domain, name, replicated);
    let granted = || grant(domain, name, replicated, now).map(Command::GrantPrimary);
    initialized.or_else(granted).or_else(|| give_up(name, replicated, now))
}

/// The archive that makes the first data: the one with the lowest ordinal, once all pods that are wanted have registered with empty
/// volumes. A pod that is late may have a volume with data.
fn initialize(domain: &Domain, name: &DatabaseName, replicated: &Replicated) -> Option<Command> {
    let settings = replicated.settings.as_ref()?;
    let empty = |process: &&Process| process.database == *name && process.data == Some(Data::Empty);
    let empty: Vec<ArchiveId> = domain.processes.values().filter(empty).filter_map(|process| process.archive).collect();
    if empty.is_empty() || empty.len() < settings.replicas as usize {
        return None;
    }
    let archives = empty.iter().filter_map(|archive| domain.archives.get(archive));
    let archive = archives.min_by_key(|archive| archive.place())?.id;
    let is_new = replicated.initializes != Some(archive) && domain.may_initialize(name, archive).is_ok();
    is_new.then(|| Command::InitializeDatabase(InitializeDatabase { database: name.clone(), archive }))
}

/// The next grant without an operator's word.
fn grant(domain: &Domain, name: &DatabaseName, replicated: &Replicated, now: Millis) -> Option<GrantPrimary> {
    let record = replicated.record.as_ref()?;
    let over = domain.primary_is_over(replicated)?;
    let successor = domain.successors(replicated).first().copied();
    let returned = domain.serving(record.primary).map(|_| record.primary);
    let began = replicated.primary.as_ref().is_some_and(|primary| primary.begins.is_some());
    let handed_over = || match &replicated.switchover {
        Some(asked) => GrantReason::Switchover(asked.why.clone()),
        None => GrantReason::HandedOver,
    };
    let (winner, reason) = match (over, successor, returned) {
        (Over::NeverGranted, _, Some(own)) => (own, GrantReason::First),
        (Over::Ended(Ended::StoodDown), Some(successor), _) => (successor, handed_over()),
        // An operator wanted it elsewhere anyway, or what was decided before has not come into being.
        (Over::Ended(_) | Over::StartedAgain | Over::NotTakenUp, Some(successor), _)
            if replicated.switchover.is_some() || !began =>
        {
            (successor, handed_over())
        }
        (Over::Ended(_) | Over::StartedAgain | Over::NotTakenUp, _, Some(own)) => {
            if is_too_soon(replicated, now) {
                return None;
            }
            (own, GrantReason::Returned)
        }
        (_, _, None) => return None,
    };
    let asked = propose(domain, name, replicated, winner, reason)?;
    domain.may_grant(&asked, Role::RaftLeader).ok().map(|()| asked)
}

/// Whether a server that ends again and again is to wait before it is granted another generation: each one is an entry in every log, and
/// a part of the history that standbys need.
fn is_too_soon(replicated: &Replicated, now: Millis) -> bool {
    let Some(primary) = replicated.primary.as_ref().filter(|primary| primary.returns > 0) else { return false };
    let pause = RETURN_MS.checked_shl(primary.returns - 1).unwrap_or(RETURN_MAX_MS).min(RETURN_MAX_MS);
    now.since(primary.granted) < pause
}

/// A grant to an archive of the sync set, with those of the set whose servers are there.
pub fn propose(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    winner: ArchiveId,
    reason: GrantReason,
) -> Option<GrantPrimary> {
    let record = replicated.record.as_ref()?;
    let process = domain.serving(winner)?.id;
    let stays = |archive: &&ArchiveId| {
        // The old primary has to follow first: what it wrote last may have to be overwritten.
        let old = **archive == record.primary && winner != record.primary;
        **archive == winner || (domain.has_data_of(replicated, **archive) && !old)
    };
    let alone = matches!(reason, GrantReason::LossAccepted { .. });
    let members = record.sync_set.iter().filter(|_| !alone).filter(stays).copied();
    let sync_set: BTreeSet<ArchiveId> = members.chain(alone.then_some(winner)).collect();
    let (database, current) = (name.clone(), record.generation);
    Some(GrantPrimary { database, current, winner, process, sync_set, reason })
}

/// A switchover that nothing comes of is given up: its target may have gone.
fn give_up(name: &DatabaseName, replicated: &Replicated, now: Millis) -> Option<Command> {
    let (record, asked) = replicated.record.as_ref().zip(replicated.switchover.as_ref())?;
    if now.since(asked.at) < SWITCHOVER_MS {
        return None;
    }
    let why =
        format!("it did not begin within {} s: its target was not in the sync set or not up", SWITCHOVER_MS / 1000);
    let (database, generation, what) = (name.clone(), record.generation, Asked::Cancel);
    Some(Command::RequestSwitchover(RequestSwitchover { database, generation, what, why }))
}
