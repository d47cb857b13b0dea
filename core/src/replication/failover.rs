//! A failover by an operator: the grant that would be proposed, or what is in its way and which pod or flag helps.

use super::grants;
use super::{Place, Refused, Role, Timing};
use crate::domain::Domain;
use crate::domain::change::{GrantPrimary, GrantReason};
use crate::domain::command::{Refusal, Role as Actor};
use crate::domain::ids::{ArchiveId, DatabaseName};
use crate::domain::replicated::Replicated;
use std::fmt;

/// Why there is no failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFailover {
    /// The domain refuses it.
    Refused(Refusal),
    /// The primary does its work, as far as the domain knows.
    Healthy {
        /// The database.
        database: DatabaseName,
        /// The primary's.
        place: Place,
    },
    /// The primary is up and lets no client in yet, and no other server could continue.
    Opens {
        /// The database.
        database: DatabaseName,
        /// The primary's.
        place: Place,
    },
    /// The primary may still run.
    MayRun {
        /// The primary's.
        place: Place,
        /// Whether it has a lease: then the next primary opens only once that is over.
        leased: bool,
    },
    /// The primary may still run, and is to continue in another generation.
    Restarts {
        /// The primary's.
        place: Place,
    },
    /// The primary may still run, and could acknowledge what the next one never has.
    MayAcknowledge {
        /// The primary's.
        place: Place,
    },
    /// A loss was to be accepted without the archive that is to continue.
    NotNamed,
    /// The domain lost entries, and the archive that is to continue was not named.
    Unsure {
        /// The database.
        database: DatabaseName,
    },
    /// The domain lost entries, and the archive that was named may lack commits.
    MayLack {
        /// The database.
        database: DatabaseName,
        /// The archive.
        named: Place,
    },
    /// No server that could continue is up.
    NoneUp {
        /// The database.
        database: DatabaseName,
        /// The archives of the sync set.
        members: Vec<Place>,
    },
    /// The archive that was named cannot be the primary's.
    NotThatOne {
        /// The database.
        database: DatabaseName,
        /// The archive.
        named: Place,
        /// Whether it is in the sync set.
        counts: bool,
        /// The archives of the sync set.
        members: Vec<Place>,
    },
}

/// What an operator takes upon themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The old primary may still run.
    pub may_run: bool,
    /// Acknowledged commits are lost that only the sync set has.
    pub loss: bool,
    /// The old primary is off: the operator's word, for a loss alone.
    pub is_off: bool,
}

/// The grant of a failover to an archive, or to the one that is preferred.
pub fn failover(
    domain: &Domain,
    name: &DatabaseName,
    to: Option<ArchiveId>,
    accepted: Accepted,
    why: &str,
    timing: &Timing,
) -> Result<GrantPrimary, NoFailover> {
    let Accepted { may_run, loss, is_off } = accepted;
    let replicated = domain.replicated(name).ok_or_else(|| refused(Refusal::NotReplicated(name.clone())))?;
    let record = replicated.record.as_ref().ok_or_else(|| refused(Refusal::NoPrimaryYet(name.clone())))?;
    let primary = domain.place(replicated, record.primary);
    let leads = replicated.primary.as_ref().is_some_and(|it| Some(it.process) == primary.process);
    let is_up = domain.serving(record.primary).is_some() && leads;
    let uncertain = replicated.uncertain.is_some();
    if is_up && domain.is_open(replicated) && !may_run && !uncertain {
        return Err(NoFailover::Healthy { database: name.clone(), place: primary });
    }
    let why = why.to_owned();
    let (winner, reason) = match to {
        Some(to) if loss => {
            let only_others = |archive: &&ArchiveId| !uncertain || **archive != to;
            let lost = record.sync_set.iter().filter(only_others).copied().collect();
            (to, GrantReason::LossAccepted { why, lost, is_off })
        }
        None if loss => return Err(NoFailover::NotNamed),
        None if uncertain => return Err(NoFailover::Unsure { database: name.clone() }),
        _ => (winner(domain, name, replicated, to)?, GrantReason::Failover { why, may_run }),
    };
    if !loss && !domain.holds_all(replicated, winner) {
        return Err(NoFailover::MayLack { database: name.clone(), named: domain.place(replicated, winner) });
    }
    let asked = grants::propose(domain, name, replicated, winner, reason, timing);
    let asked = asked.ok_or_else(|| refused(Refusal::NotServing(winner)))?;
    match domain.may_grant(&asked, Actor::Operator, domain.time) {
        Ok(()) => {}
        Err(Refusal::PrimaryMayRun(_)) if loss => return Err(NoFailover::MayAcknowledge { place: primary }),
        Err(Refusal::PrimaryMayRun(_)) if winner == record.primary => {
            return Err(NoFailover::Restarts { place: primary });
        }
        Err(Refusal::PrimaryMayRun(_)) => {
            let leased = replicated.primary.as_ref().is_some_and(|primary| primary.keeps_lease);
            return Err(NoFailover::MayRun { place: primary, leased });
        }
        Err(other) => return Err(refused(other)),
    }
    // The record's own refusals, on a copy.
    let (mut copy, known) = (record.clone(), replicated.highest);
    let granted = asked.grant_in(&mut copy, known, uncertain);
    granted.map(|()| asked).map_err(|refusal: Refused| refused(refusal.into()))
}

fn refused(refusal: Refusal) -> NoFailover {
    NoFailover::Refused(refusal)
}

fn winner(
    domain: &Domain,
    name: &DatabaseName,
    replicated: &Replicated,
    to: Option<ArchiveId>,
) -> Result<ArchiveId, NoFailover> {
    let primary = replicated.record.as_ref().map(|record| record.primary);
    let counts = |archive: ArchiveId| {
        let record = replicated.record.as_ref();
        record.is_some_and(|record| record.sync_set.contains(&archive))
    };
    let members = || {
        let set = replicated.record.iter().flat_map(|record| &record.sync_set);
        set.map(|archive| domain.place(replicated, *archive)).collect()
    };
    if let Some(to) = to {
        if counts(to) && domain.has_data_of(replicated, to) {
            return Ok(to);
        }
        let named = domain.place(replicated, to);
        let database = name.clone();
        return Err(NoFailover::NotThatOne { database, named, counts: counts(to), members: members() });
    }
    let successors = domain.any_successors(replicated).into_iter();
    // The primary's own archive continues only if its server has ended: one that runs is not promoted twice.
    let own = primary.filter(|_| domain.primary_is_over(replicated).is_some());
    let own = own.filter(|archive| domain.has_data_of(replicated, *archive));
    let none = || {
        let up = primary.filter(|archive| domain.has_data_of(replicated, *archive) && !domain.is_open(replicated));
        match up {
            Some(archive) => NoFailover::Opens { database: name.clone(), place: domain.place(replicated, archive) },
            None => NoFailover::NoneUp { database: name.clone(), members: members() },
        }
    };
    successors.chain(own).next().ok_or_else(none)
}

/// `archive 1, pod shop-0, session lost; archive 2, ...`
fn listed(members: &[Place]) -> String {
    let one = |place: &Place| match place.role {
        Role::Primary => format!("{place} (the primary)"),
        _ => place.to_string(),
    };
    members.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for NoFailover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Healthy { database, place } => write!(
                f,
                "the primary is open: {place}. `kaa switchover {database}` moves it and interrupts clients for a moment only. If it \
                 does not do its work although it looks so: --old-primary-may-run"
            ),
            Self::Opens { database, place } => write!(
                f,
                "the primary is up, and does not let clients in yet: {place}. No other server of the sync set is up. `kaa show database \
                 {database}` says what it waits for"
            ),
            Self::MayRun { place, leased: true } => write!(
                f,
                "the primary may still run, and serve clients: {place}. If clients reach it, restore its path to the agents and leave its \
                 pod. If not: --old-primary-may-run. No acknowledged commit is lost by that, and the next primary opens once the lease \
                 of this one is over"
            ),
            Self::MayRun { place, leased: false } => write!(
                f,
                "the primary may still run: {place}. Prove its end: `kubectl delete pod {}`, and look at its node. Or \
                 --old-primary-may-run: no acknowledged commit is lost by that, but clients that stay connected to the old primary \
                 can read stale data there until it ends",
                place.pod
            ),
            Self::Restarts { place } => write!(
                f,
                "the primary may still run: {place}. It continues in another generation, for which its server is restarted: \
                 --old-primary-may-run. Leave its pod as it is"
            ),
            Self::MayAcknowledge { place } => write!(
                f,
                "the primary may still run: {place}. No server of its sync set would keep it from acknowledging commits that the next \
                 primary never has, and that its pod was deleted does not prove its end. If you know that its node is off, and stays \
                 so: --old-primary-is-off"
            ),
            Self::NotNamed => f.write_str(
                "a failover that accepts the loss of commits needs the pod that is to continue: --to POD. `kaa show database` lists them",
            ),
            Self::Unsure { database } => write!(
                f,
                "the domain lost entries, and does not know which servers hold every acknowledged commit: name the one that is to continue, \
                 --to POD. `kaa show database {database}` shows how far each one is. While the primary is open, its own pod lacks nothing"
            ),
            Self::MayLack { database, named } => write!(
                f,
                "the domain lost entries, so that acknowledged commits may be missing there: {named}. A primary that is open lacks none, which is \
                 known while all other pods of the database are up: start them. If \
                 this server is to continue all the same: --accept-data-loss {database}"
            ),
            Self::NoneUp { database, members } => write!(
                f,
                "no server of the sync set is up: {}. Start one of these pods: each holds every acknowledged commit, so that \
                 nothing is lost. If all of them are gone for good: --to POD --accept-data-loss {database}",
                listed(members)
            ),
            Self::NotThatOne { database, named, counts: false, members } => write!(
                f,
                "{named}, is not in the sync set: it may lack acknowledged commits. In the sync set: {}. If all of these are gone for \
                 good: --accept-data-loss {database}",
                listed(members)
            ),
            Self::NotThatOne { named, counts: true, members, .. } => {
                write!(f, "its server cannot take over: {named}. In the sync set: {}", listed(members))
            }
        }
    }
}
