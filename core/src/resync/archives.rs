//! An archive whose claim was deleted is removed and purged. An archive whose StatefulSet no longer wants its ordinal is
//! removed and kept, so that scaling up again resurrects it; a database keeps its last archive. Neither is done while a
//! process is on the archive.
//!
//! An operator may hold it back: the purge for a time (`--purge-delay`) or by an annotation, both by pausing the workload.
//!
//! What is not absence: a claim that is being deleted; a claim of the same name with another UID, unless its volume has turned
//! out to hold another archive; a StatefulSet that is gone or was replaced; all claims of a database gone at once while they
//! are still wanted.

use super::View;
use super::plan::{Finding, Guard, Kind, Plan, Waiting, WaitingReason};
use crate::domain::archive::{Archive, Claim, Ordinal, RemovalReason, WATCH_PERIOD_MS};
use crate::domain::audit::Subject;
use crate::domain::change::{Command, NoteClaimGone, PurgeArchive, RemoveArchive};
use crate::domain::command::Fence;
use crate::domain::evidence::{Evidence, wants};
use crate::domain::ids::{ArchiveId, DatabaseName, Millis, Uid};
use crate::observed::objects::Claim as ClaimObject;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn plan(view: &View, plan: &mut Plan) {
    let active = view.domain.archives.values().filter(|archive| archive.removed.is_none() && !archive.by_hand);
    let mut active: BTreeSet<ArchiveId> = active.map(|archive| archive.id).collect();
    let ours = |archive: &&Archive| archive.cluster == view.policy.cluster;
    if view.domain.archives.values().any(|archive| ours(&archive)) {
        // Asked once, so that what is unknown is said even where no archive would need it.
        View::known(plan, Kind::Claims, view.observed.claims.known());
        View::known(plan, Kind::StatefulSets, view.observed.stateful_sets.known());
    }
    let vanished = vanished(view);
    ordered(view, plan);
    let mut on_claims = Vec::new();
    for archive in view.domain.archives.values().rev().filter(ours) {
        let Some(claim) = &archive.claim else {
            if archive.removed.as_ref().is_none_or(|removal| removal.because != RemovalReason::GivenUp) {
                wait(plan, archive, WaitingReason::Unbound);
            }
            continue;
        };
        if claim.namespace != view.policy.namespace || judge_claim(view, plan, archive, claim, &vanished, &mut active) {
            continue;
        }
        on_claims.push((archive, claim));
    }
    // The highest ordinal first, so that of several that hold the same the lowest stays. Only now, since an archive whose
    // claim is gone is not the one that its database keeps.
    on_claims.sort_by_key(|(archive, _)| Reverse(archive.place()));
    for (archive, claim) in on_claims {
        judge_ordinal(view, plan, archive, claim, &mut active);
    }
}

/// Judges an archive by its claim; true if there is nothing more to judge.
fn judge_claim(
    view: &View,
    plan: &mut Plan,
    archive: &Archive,
    claim: &Claim,
    vanished: &BTreeMap<&DatabaseName, WaitingReason>,
    active: &mut BTreeSet<ArchiveId>,
) -> bool {
    let Ok(claims) = view.observed.claims.known() else { return false };
    let is_taken_by = |uid: &Uid| view.domain.taken_by(archive).is_some_and(|taker| taker.uid == *uid);
    match claims.get(&claim.name) {
        Some(ClaimObject { uid, .. }) if *uid == claim.uid => false,
        Some(ClaimObject { uid, .. }) if !is_taken_by(uid) => {
            wait(plan, archive, WaitingReason::ClaimReplaced { claim: claim.name.clone(), uid: uid.clone() });
            // What became of its data does not matter where its ordinal is no longer wanted: removed, it holds up no
            // cold start, and is kept.
            false
        }
        _ => {
            if let Some(process) = view.on_archive.get(&archive.id) {
                wait(plan, archive, WaitingReason::ArchiveInUse(process.id));
            } else if let Some(reason) = vanished.get(&archive.database) {
                wait(plan, archive, reason.clone());
            } else if let Some(paused) = view.paused_set(claim.owner.as_ref()) {
                wait(plan, archive, paused);
            } else {
                active.remove(&archive.id);
                propose_removal(view, plan, archive, claim);
            }
            true
        }
    }
}

fn propose_removal(view: &View, plan: &mut Plan, archive: &Archive, claim: &Claim) {
    let guards = guards(view, archive, claim);
    let mut propose = |command, guards| {
        plan.findings.push(Finding::new(view.domain, Subject::Archive(archive.id), command, guards));
    };
    let (archive_id, uid) = (archive.id, || claim.uid.clone());
    if archive.removed.is_none() {
        propose(remove(archive_id, uid(), RemovalReason::ClaimDeleted), guards.clone());
    }
    let delay = delay(view, archive);
    if delay.is_noted {
        let (fence, evidence) = (Fence::default(), Evidence::default());
        let change = NoteClaimGone { fence, archive: archive_id, claim: uid(), evidence };
        propose(Command::NoteClaimGone(change), guards.clone());
    }
    if let Some(until) = delay.until {
        wait(plan, archive, WaitingReason::PurgeDelayed { until });
    } else if delay.is_noted {
        // What is read now decides the next time.
    } else if let Some(stateful_set) = purge_held(view, claim) {
        wait(plan, archive, WaitingReason::PurgeHeld { stateful_set });
    } else {
        let held = claim.owner.iter().map(|owner| Guard::PurgeNotHeld(owner.stateful_set.clone()));
        let (fence, evidence) = (Fence::default(), Evidence::default());
        let change = PurgeArchive { fence, archive: archive_id, claim: uid(), evidence };
        propose(Command::PurgeArchive(change), guards.into_iter().chain(held).collect());
    }
}

fn remove(archive: ArchiveId, claim: Uid, reason: RemovalReason) -> Command {
    let (fence, evidence) = (Fence::default(), Evidence::default());
    Command::RemoveArchive(RemoveArchive { fence, archive, claim, reason, evidence })
}

/// What the fresh reads must show besides that the claim is gone. Of the other archives of the database: the watches may not
/// have seen yet that all its claims are gone, or that they are wanted.
fn guards(view: &View, archive: &Archive, claim: &Claim) -> Vec<Guard> {
    let owner = claim.owner.iter().map(|owner| Guard::NotPaused(owner.stateful_set.clone()));
    let of_it = |other: &&Archive| other.database == archive.database && other.cluster == view.policy.cluster;
    let claims = || view.domain.archives.values().filter(of_it).filter_map(|archive| archive.claim.as_ref());
    let Ok(seen) = view.observed.claims.known() else { return owner.collect() };
    if let Some(there) = claims().find(|claim| seen.contains_key(&claim.name)) {
        return owner.chain([Guard::ClaimThere(there.name.clone())]).collect();
    }
    owner.chain(claims().filter_map(|claim| claim.owner.clone()).map(Guard::Unwanted)).collect()
}

/// How far the delay of a purge has come.
struct Delay {
    /// Until when the archive is kept if a resync leader watches its claim from now on, by the clock of the caller; `None` if
    /// the delay is over, or not begun.
    until: Option<Millis>,
    /// Whether it has to be noted that the claim is gone, for the delay to begin or to continue.
    is_noted: bool,
}

/// How far the delay of the purge of an archive has come whose claim is gone. It is what the resync leaders have measured, each
/// by its own clock: none of them can shorten it by a clock that is wrong, and what they have measured stays.
fn delay(view: &View, archive: &Archive) -> Delay {
    let (delay, now) = (view.policy.purge_delay_ms, view.now);
    let over = Delay { until: None, is_noted: false };
    let removal = match &archive.removed {
        _ if delay == 0 => return over,
        None => return Delay { until: Some(Millis(now.0.saturating_add(delay))), is_noted: false },
        Some(removal) => removal,
    };
    let Some(watched) = removal.watched.as_ref().filter(|_| removal.claim_gone_since().is_some()) else {
        return Delay { until: None, is_noted: true };
    };
    let Some(left) = delay.checked_sub(watched.total_ms).filter(|left| *left > 0) else { return over };
    let epoch = view.domain.resync.get(&view.policy.cluster).map(|leader| leader.epoch).unwrap_or_default();
    let interrupted = watched.is_interrupted(epoch, now);
    let from = if interrupted { now } else { watched.at };
    let due = interrupted || now.since(watched.at) >= WATCH_PERIOD_MS || watched.total_at(epoch, now) >= delay;
    Delay { until: Some(Millis(from.0.saturating_add(left))), is_noted: due }
}

/// The StatefulSet whose annotation holds the purge of the archive on this claim.
fn purge_held(view: &View, claim: &Claim) -> Option<String> {
    let set = view.observed.stateful_sets.known().ok()?.get(&claim.owner.as_ref()?.stateful_set)?;
    set.holds_purge.then(|| set.name.clone())
}

/// Judges an active archive by its place in its StatefulSet.
fn judge_ordinal(view: &View, plan: &mut Plan, archive: &Archive, claim: &Claim, active: &mut BTreeSet<ArchiveId>) {
    let (None, Some(owner)) = (&archive.removed, &claim.owner) else { return };
    let Ok(sets) = view.observed.stateful_sets.known() else { return };
    let Ordinal { stateful_set, uid, ordinal } = owner;
    let reason = match sets.get(stateful_set) {
        None => WaitingReason::StatefulSetMissing(stateful_set.clone()),
        Some(set) if set.uid != *uid => WaitingReason::StatefulSetReplaced(stateful_set.clone()),
        Some(set) if wants(set.first_ordinal, set.replicas, *ordinal) => return,
        Some(_) if view.on_archive.contains_key(&archive.id) => {
            WaitingReason::ArchiveInUse(view.on_archive[&archive.id].id)
        }
        Some(_) if view.paused_set(Some(owner)).is_some() => {
            WaitingReason::WorkloadPaused { workload: format!("statefulset {stateful_set}") }
        }
        Some(_) => {
            let others = active.iter().filter(|id| **id != archive.id).filter_map(|id| view.domain.archives.get(id));
            let mut others = others.filter(|other| other.database == archive.database).peekable();
            let last = others.peek().is_none();
            if others.any(|other| view.domain.holds_all_of(other, archive)) {
                active.remove(&archive.id);
                let command = remove(archive.id, claim.uid.clone(), RemovalReason::ScaledDown);
                let guards = vec![Guard::NotPaused(stateful_set.clone())];
                plan.findings.push(Finding::new(view.domain, Subject::Archive(archive.id), command, guards));
                return;
            }
            if last { WaitingReason::LastArchive } else { WaitingReason::MayBeNewest }
        }
    };
    wait(plan, archive, reason);
}

/// Says which StatefulSets start the storage managers one after the other that have to start together.
fn ordered(view: &View, plan: &mut Plan) {
    let Ok(sets) = view.observed.stateful_sets.known() else { return };
    for set in sets.values().filter(|set| set.ordered) {
        let of_it = |archive: &&Archive| {
            let owner = archive.claim.as_ref().and_then(|claim| claim.owner.as_ref());
            archive.removed.is_none() && archive.ever_ran && owner.is_some_and(|owner| owner.uid == set.uid)
        };
        let mut archives = view.domain.archives.values().filter(of_it);
        if let (Some(first), Some(_)) = (archives.next(), archives.next()) {
            let reason = WaitingReason::OrderedReady { stateful_set: set.name.clone() };
            plan.waiting.push(Waiting { subject: Subject::Database(first.database.clone()), reason });
        }
    }
}

/// The databases whose claims are all gone while a StatefulSet still wants one of them, or while it is not known whether
/// one does.
fn vanished<'a>(view: &View<'a>) -> BTreeMap<&'a DatabaseName, WaitingReason> {
    let Ok(claims) = view.observed.claims.known() else { return BTreeMap::new() };
    let mut all_gone: BTreeMap<&DatabaseName, bool> = BTreeMap::new();
    // Of an archive without a claim nothing is known, so it lets nothing through.
    for archive in view.domain.archives.values().filter(|archive| archive.cluster == view.policy.cluster) {
        let Some(claim) = &archive.claim else { continue };
        let gone = !claims.contains_key(&claim.name);
        all_gone.entry(&archive.database).and_modify(|all| *all &= gone).or_insert(gone);
    }
    let sets = match view.observed.stateful_sets.known() {
        Ok(sets) => sets,
        Err(why) => {
            let gone = all_gone.into_iter().filter(|(_, gone)| *gone);
            let unknown = WaitingReason::KindUnknown { kind: Kind::StatefulSets, why };
            return gone.map(|(database, _)| (database, unknown.clone())).collect();
        }
    };
    let mut vanished = BTreeMap::new();
    for archive in view.domain.archives.values() {
        let owner = archive.claim.as_ref().and_then(|claim| claim.owner.as_ref());
        // Also one that was recreated under the name: it wants the claim of that name.
        let set = owner.and_then(|owner| sets.get(&owner.stateful_set));
        let Some((owner, set)) = owner.zip(set) else { continue };
        if all_gone.get(&archive.database) == Some(&true) && wants(set.first_ordinal, set.replicas, owner.ordinal) {
            let stateful_set = set.name.clone();
            vanished.insert(&archive.database, WaitingReason::ClaimsVanished { stateful_set });
        }
    }
    vanished
}

fn wait(plan: &mut Plan, archive: &Archive, reason: WaitingReason) {
    plan.waiting.push(Waiting { subject: Subject::Archive(archive.id), reason });
}
