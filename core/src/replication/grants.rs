//! Which archive becomes the primary's, and when: the Raft leader's part. It needs no Kubernetes.

use super::elapsed::{Began, Now};
use super::lost::{HELD_BACK_MS, NotLost};
use crate::domain::Domain;
use crate::domain::change::{Asked, Command, GrantPrimary, GrantReason, InitializeDatabase, RequestSwitchover};
use crate::domain::command::{Refusal, Role};
use crate::domain::ids::{ArchiveId, DatabaseName, StartId};
use crate::domain::process::Process;
use crate::domain::replicated::{Data, Ended, FailoverMode, Over, Replicated};
use std::collections::BTreeSet;

/// A switchover whose target is not ready after so long is given up, in milliseconds.
pub const SWITCHOVER_MS: u64 = 60_000;
/// How long a primary that was told to stand down may take, in milliseconds: its checkpoint comes before it closes, and lasts for minutes with
/// much memory and a slow disk.
pub const STAND_DOWN_MS: u64 = 600_000;

/// So many grants in a row are made without a pause, each after a server that ended soon after it was opened: a bad minute costs no more
/// than its failovers.
const RETURNS_AT_ONCE: u32 = 20;
/// The pause after the next one, in milliseconds. It doubles each time.
const RETURN_MS: u64 = 1_000;
/// The longest one.
const RETURN_MAX_MS: u64 = 60_000;

/// The times that an agent is told by its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The length of the lease under which generations are granted, in milliseconds.
    pub lease_ms: u64,
    /// The first pause after a failover whose old primary turned out to run, in milliseconds.
    pub held_back_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease_ms: LEASE_MS, held_back_ms: HELD_BACK_MS }
    }
}

/// The length of a lease, if nothing else is asked for, in milliseconds.
pub const LEASE_MS: u64 = 2_500;

/// What is to be proposed: at most one command for each database with one primary.
pub fn plan<'a>(domain: &Domain, now: impl Into<Now<'a>>, timing: &Timing) -> Vec<Command> {
    let now = now.into();
    let replicated = domain.databases.values().filter_map(|it| Some((&it.name, it.replicated.as_deref()?)));
    replicated.filter_map(|(name, replicated)| next(domain, name, replicated, now, timing)).collect()
}

fn next(domain: &Domain, name: &DatabaseName, replicated: &Replicated, now: Now, timing: &Timing) -> Option<Command> {
    let initialized = initialize(domain, name, replicated);
    let granted = || grant(domain, name, replicated, now, timing).map(Command::GrantPrimary);
    initialized.or_else(granted).or_else(|| give_up(domain, name, replicated, now))
}

/// The archive that makes the first data, once all pods that are wanted have registered with empty volumes: the one with the lowest
/// ordinal in the preferred zone, else in any. A pod that is late may have a volume with data.
fn initialize(domain: &Domain, name: &DatabaseName, replicated: &Replicated) -> Option<Command> {
    let settings = replicated.settings.as_ref()?;
    let empty = |process: &&Process| process.database == *name && process.data == Some(Data::Empty);
    let empty: Vec<ArchiveId> = domain.processes.values().filter(empty).filter_map(|process| process.archive).collect();
    if empty.is_empty() || empty.len() < settings.replicas as usize {
        return None;
    }
    let archives = empty.iter().filter_map(|archive| domain.archives.get(archive));
    let archive = archives.min_by_key(|archive| domain.preference(replicated, archive.id))?.id;
    let is_new = replicated.initializes != Some(archive) && domain.may_initialize(name, archive).is_ok();
    is_new.then(|| Command::InitializeDatabase(InitializeDatabase { database: name.clone(), archive }))
}

/// The next grant without an operator's word.
fn grant(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    now: Now,
    timing: &Timing,
) -> Option<GrantPrimary> {
    let (winner, reason) = match domain.primary_is_over(replicated) {
        Some(over) => after_end(domain, replicated, over, now)?,
        None => {
            let by = domain.lost_primary(replicated, now).ok()?;
            let (winner, by, held_back_ms) = (*by.first()?, by.into_iter().collect(), timing.held_back_ms);
            (winner, GrantReason::Silent { by, held_back_ms })
        }
    };
    judged(domain, name, replicated, (winner, reason), now, timing)?.ok()
}

/// The grant to a winner, or why it is refused; `None` if its server is not there.
fn judged(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    (winner, reason): (ArchiveId, GrantReason),
    now: Now,
    timing: &Timing,
) -> Option<Result<GrantPrimary, Refusal>> {
    let asked = propose(domain, name, replicated, winner, reason, timing)?;
    Some(domain.may_grant(&asked, Role::RaftLeader, now).map(|()| asked))
}

/// Who follows a primary that has ended, and why.
fn after_end(domain: &Domain, replicated: &Replicated, over: Over, now: Now) -> Option<(ArchiveId, GrantReason)> {
    let record = replicated.record.as_ref()?;
    let asked = domain.successors(replicated).first().copied();
    let successor = domain.any_successors(replicated).first().copied();
    let own = domain.serving(record.primary).map(|process| (record.primary, process.id));
    match (over, asked, &replicated.switchover) {
        (Over::NeverGranted, _, _) => return own.map(|(own, _)| (own, GrantReason::First)),
        (_, Some(asked), Some(switchover)) => return Some((asked, GrantReason::Switchover(switchover.why.clone()))),
        (Over::Ended(Ended::StoodDown), Some(successor), None) => return Some((successor, GrantReason::HandedOver)),
        _ if replicated.failover() == FailoverMode::Paused || too_soon_ms(replicated, now) > 0 => return None,
        _ => {}
    }
    // One that started before the old primary came back is ready; if all started again, the old one spares an overwrite.
    let is_first = |(archive, own): &(ArchiveId, StartId)| {
        let before = successor.and_then(|successor| domain.process_on(successor));
        let is_worse = successor.is_some_and(|it| domain.handicap(it) < domain.handicap(*archive));
        over == Over::StartedAgain
            && !is_worse
            && domain.has_data_of(replicated, *archive)
            && before.is_none_or(|before| *own < before.id)
    };
    match successor.filter(|_| replicated.moves_by_itself() && !own.as_ref().is_some_and(is_first)) {
        Some(successor) => Some((successor, GrantReason::Ended)),
        None => own.map(|(own, _)| (own, GrantReason::Returned)),
    }
}

/// Why nothing is granted after the end of a primary; `None` if a grant is about to be made.
pub(super) fn holds_after_end(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    over: Over,
    now: Now,
) -> Option<NotLost> {
    if replicated.uncertain.is_some() {
        return Some(NotLost::Uncertain);
    }
    if let Some(next) = after_end(domain, replicated, over, now) {
        let refused = judged(domain, name, replicated, next, now, &Timing::default())?.err();
        return refused.map(|why| NotLost::Refused(why.to_string()));
    }
    let mode = replicated.failover();
    let left = too_soon_ms(replicated, now);
    Some(match mode {
        FailoverMode::Paused => NotLost::NotWanted(mode),
        _ if left > 0 => NotLost::EndsAgain { until: now.in_ms(left) },
        FailoverMode::Manual => NotLost::NotWanted(mode),
        FailoverMode::Automatic => NotLost::NoneThere,
    })
}

/// How long a server that ends again and again still waits before it is granted another generation, in milliseconds: each one is an
/// entry in every log, and a part of the history that standbys need.
fn too_soon_ms(replicated: &Replicated, now: Now) -> u64 {
    let Some(primary) = &replicated.primary else { return 0 };
    let Some(more) = primary.returns.checked_sub(RETURNS_AT_ONCE) else { return 0 };
    doubled(RETURN_MS, more, RETURN_MAX_MS).saturating_sub(now.since(Began::grant(replicated, primary)))
}

/// A pause that was doubled so often, in milliseconds.
pub(super) fn doubled(first_ms: u64, times: u32, most_ms: u64) -> u64 {
    let factor = 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    first_ms.saturating_mul(factor).min(most_ms)
}

/// A grant to an archive of the sync set. All of the set stay in it until the winner is promoted: should it never be, any of them may
/// continue. After that, those leave that do not follow. In a planned change the old primary leaves at once, which is faster, if another
/// member is there that could continue. Where the domain lost entries or a loss is accepted, only the winner is in it.
pub fn propose(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    winner: ArchiveId,
    reason: GrantReason,
    timing: &Timing,
) -> Option<GrantPrimary> {
    let record = replicated.record.as_ref()?;
    let process = domain.serving(winner)?.id;
    // Of a record that may be too large only the winner counts: others may have left it in the entries that were lost.
    let alone = matches!(reason, GrantReason::LossAccepted { .. }) || replicated.uncertain.is_some();
    let mut sync_set = if alone { BTreeSet::from([winner]) } else { record.sync_set.clone() };
    let is_another = |it: &ArchiveId| ![winner, record.primary].contains(it) && domain.has_data_of(replicated, *it);
    if matches!(reason, GrantReason::Switchover(_) | GrantReason::HandedOver) && sync_set.iter().any(is_another) {
        sync_set.remove(&record.primary);
    }
    let (database, current) = (name.clone(), record.generation);
    Some(GrantPrimary { database, current, winner, process, sync_set, reason, lease_ms: timing.lease_ms })
}

/// A switchover that nothing comes of is given up: its target may have gone.
fn give_up(domain: &Domain, name: &DatabaseName, replicated: &Replicated, now: Now) -> Option<Command> {
    let (record, asked) = replicated.record.as_ref().zip(replicated.switchover.as_ref())?;
    let (limit_ms, cause) = if domain.can_hand_over(replicated) {
        (STAND_DOWN_MS, "the primary, which writes a checkpoint first, has not stood down")
    } else {
        (SWITCHOVER_MS, "its target is not in the sync set or not up, or the primary is not")
    };
    if now.since(Began::switchover(replicated, asked)) < limit_ms {
        return None;
    }
    let why = format!("it did not begin within {} s: {cause}", limit_ms / 1000);
    let (database, generation, what) = (name.clone(), record.generation, Asked::Cancel);
    Some(Command::RequestSwitchover(RequestSwitchover { database, generation, what, why }))
}
