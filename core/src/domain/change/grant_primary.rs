//! An archive of the sync set becomes the primary's, in a generation of its own.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut, few};
use crate::domain::command::{Actor, Role};
use crate::domain::event::ReplicationEvent;
use crate::domain::ids::{ArchiveId, DatabaseName, Generation, Millis, StartId};
use crate::domain::is_default;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::{Alarms, Earlier, Primary, Replicated};
use crate::domain::{Applied, Domain};
use crate::replication::{Now, Refused, Replication};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// A server that was open for so long has not ended because it was granted, in milliseconds.
const LASTING_MS: u64 = 5_000;

/// Makes an archive of the sync set the primary's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantPrimary {
    /// The database.
    pub database: DatabaseName,
    /// The current generation: one more is granted.
    pub current: Generation,
    /// The archive.
    pub winner: ArchiveId,
    /// The process on it.
    pub process: StartId,
    /// The new sync set: a part of the current one, with the winner. The winner alone if a loss was accepted.
    pub sync_set: BTreeSet<ArchiveId>,
    /// Why.
    pub reason: GrantReason,
    /// The length of the primary's lease, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease_ms: u64,
}

/// Why a generation is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
#[serde(deny_unknown_fields)]
#[strum(serialize_all = "snake_case")]
pub enum GrantReason {
    /// It is the first one of the database.
    First,
    /// The server of the primary has ended, and its archive continues.
    Returned,
    /// The server of the primary has ended, and another one takes over.
    Ended,
    /// The primary is lost: no agent hears its wrapper, and these archives' servers do not hear its server.
    Silent {
        /// The archives.
        by: BTreeSet<ArchiveId>,
        /// The pause before the next such failover if the old primary turns out to run, in milliseconds. It doubles.
        held_back_ms: u64,
    },
    /// An operator asked for a switchover.
    Switchover(String),
    /// The primary's pod is to stop.
    HandedOver,
    /// An operator asked for a failover.
    Failover {
        /// Why, in the operator's words.
        why: String,
        /// Whether the operator said that the old primary may still run: clients that are connected to it may read stale data.
        may_run: bool,
    },
    /// An operator gave up commits that no server has which is up.
    LossAccepted {
        /// Why, in the operator's words.
        why: String,
        /// The sync set that the operator was shown: what only its archives hold is lost.
        lost: BTreeSet<ArchiveId>,
        /// Whether the operator said that the old primary is off: nothing else keeps it from acknowledging more.
        is_off: bool,
    },
}

impl GrantReason {
    /// All of them, as one word each.
    pub const CODES: &'static [&'static str] = Self::VARIANTS;
}

impl fmt::Display for GrantReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("it is the first primary"),
            Self::Returned => f.write_str("the server of the primary has ended and is back"),
            Self::Ended => f.write_str("failover: the server of the primary has ended"),
            Self::Silent { by, held_back_ms: _ } => {
                let by: Vec<String> = by.iter().map(ToString::to_string).collect();
                write!(f, "failover: neither an agent nor the server of archive {} hears the primary", by.join(", "))
            }
            Self::Switchover(why) => write!(f, "switchover: {why}"),
            Self::HandedOver => f.write_str("the pod of the primary stops"),
            Self::Failover { why, may_run: false } => write!(f, "failover: {why}"),
            Self::Failover { why, may_run: true } => {
                write!(f, "failover: {why}; the old primary may still run")
            }
            Self::LossAccepted { why, lost, is_off } => {
                let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
                let off = if *is_off { "; the old primary is off" } else { "" };
                write!(f, "failover: {why}{off}; commits that only archives {} hold are given up", lost.join(", "))
            }
        }
    }
}

impl Change for GrantPrimary {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, current: _, winner: _, process: _, sync_set, reason, lease_ms: _ } = self;
        match reason {
            GrantReason::Switchover(why) | GrantReason::Failover { why, may_run: _ } => cut(why, bounds.text),
            GrantReason::LossAccepted { why, lost, is_off: _ } => {
                cut(why, bounds.text);
                few("archives of a sync set", lost.len(), bounds.archives)?;
            }
            GrantReason::Silent { by, held_back_ms: _ } => few("archives of a sync set", by.len(), bounds.archives)?,
            GrantReason::First | GrantReason::Returned | GrantReason::Ended | GrantReason::HandedOver => {}
        }
        few("archives of a sync set", sync_set.len(), bounds.archives)?;
        bounds.name("the name of a database", database)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        domain.may_grant(&self, actor.role, domain.time)?;
        let granted = domain.time;
        let earlier = domain.may_serve(&self.database);
        let empty = domain.empty_archives(&self.database);
        let replicated = domain.replicated_mut(&self.database)?;
        let (known, returns) = (replicated.highest, replicated.returns(&self.reason, granted));
        let uncertain = replicated.uncertain.is_some();
        let record = replicated.record_mut(&self.database)?;
        let before = record.primary;
        let overwriting: BTreeSet<ArchiveId> = record.overwriting.keys().copied().collect();
        self.grant_in(record, known, uncertain)?;
        let Self { database: name, current: _, winner, process, sync_set, reason, lease_ms } = self;
        let generation = record.generation;
        let from = (before != winner).then_some(before);
        if let GrantReason::LossAccepted { .. } = &reason {
            // What is on any other may be all that is left of what was lost, also on one that was never in the set: only an operator
            // lets it be overwritten.
            replicated.own.retain(|archive| *archive == winner || empty.contains(archive));
            replicated.own.insert(winner);
            // What was given up may be whole again, with what is lost now.
            replicated.discarded.retain(|archive| !overwriting.contains(archive));
        }
        replicated.highest = generation;
        let old = replicated.primary.as_ref().map(|primary| primary.process);
        if let GrantReason::Silent { held_back_ms, .. } = &reason {
            replicated.alarms = Alarms { suspect: old, base_ms: *held_back_ms, ..replicated.alarms };
        }
        replicated.primary = Some(Primary { returns, lease_ms, from, earlier, ..Primary::new(process, granted) });
        (replicated.switchover, replicated.uncertain) = (None, None);
        let mut subjects = vec![Subject::Database(name), Subject::Archive(winner), Subject::Process(process)];
        subjects.extend(from.map(Subject::Archive));
        let sync_set = sync_set.into_iter().collect();
        let event = ReplicationEvent::Granted { generation, archive: winner, from, sync_set, reason };
        domain.note(actor, subjects, event, None);
        Ok(Outcome::Changed)
    }
}

impl GrantPrimary {
    /// Grants it in a record, which may be too large if the domain lost entries: then also a member may lack commits.
    ///
    /// # Errors
    /// What the record refuses.
    pub fn grant_in(&self, record: &mut Replication, known: Generation, uncertain: bool) -> Result<(), Refused> {
        let Self { current, winner, sync_set, reason, .. } = self;
        match reason {
            GrantReason::LossAccepted { lost, .. } if !(uncertain && record.sync_set.contains(winner)) => {
                record.grant_with_loss(*current, known, *winner, lost)
            }
            _ => record.grant(*current, known, *winner, sync_set),
        }
    }
}

impl Replicated {
    /// How many grants, with one for this reason now, follow a server that ended soon after it was granted.
    fn returns(&self, reason: &GrantReason, now: Millis) -> u32 {
        match (&self.primary, reason) {
            (Some(before), GrantReason::Returned | GrantReason::Ended) => {
                let lasted = before.opened.is_some_and(|opened| now.since(opened) >= LASTING_MS);
                // A pod that starts again has its own pauses.
                if lasted || before.ended.is_none() { 0 } else { before.returns.saturating_add(1) }
            }
            _ => 0,
        }
    }
}

impl Domain {
    /// Whether an archive of the sync set is known to hold every acknowledged commit. Where the domain lost entries, others may have left the
    /// set in these, or led: then only that of a primary does which is open, while all others are up and know no later generation.
    pub fn holds_all(&self, replicated: &Replicated, archive: ArchiveId) -> bool {
        let is_last = |record: &Replication| {
            let Some(known) = self.archives.get(&archive) else { return false };
            let mut all = self.active_archives(&known.database);
            record.primary == archive
                && replicated.highest <= record.generation
                && self.is_open(replicated)
                && all.all(|it| self.serving(it.id).is_some())
        };
        replicated.uncertain.is_none() || replicated.record.as_ref().is_some_and(is_last)
    }

    /// The archives of a database whose engines have found nothing.
    fn empty_archives(&self, name: &DatabaseName) -> BTreeSet<ArchiveId> {
        let archives = self.active_archives(name).map(|archive| archive.id);
        archives.filter(|archive| self.is_empty(*archive)).collect()
    }

    /// Whether a generation may be granted, apart from what the record itself checks.
    ///
    /// `now` is what times of the domain are compared with: an entry has its own.
    pub fn may_grant<'a>(&self, asked: &GrantPrimary, role: Role, now: impl Into<Now<'a>>) -> Result<(), Refusal> {
        let GrantPrimary { database: name, winner, process, reason, .. } = asked;
        let replicated = self.replicated(name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        let on_it = self.serving(*winner).filter(|on_it| on_it.id == *process && on_it.database == *name);
        // What was left behind by an accepted loss may be the best that is left after another one.
        let remains = matches!(reason, GrantReason::LossAccepted { .. })
            && self.has_system_of(replicated, *winner)
            && !replicated.discarded.contains(winner);
        if on_it.is_none() || !(remains || self.has_data_of(replicated, *winner)) {
            return Err(Refusal::NotServing(*winner));
        }
        match (role, reason) {
            (Role::Operator, GrantReason::Failover { may_run, .. }) => {
                if let Some(why) = replicated.uncertain.as_ref().filter(|_| !self.holds_all(replicated, *winner)) {
                    return Err(Refusal::Uncertain { database: name.clone(), why: why.clone() });
                }
                if *may_run || self.primary_has_ended(replicated) {
                    return Ok(());
                }
                Err(Refusal::PrimaryMayRun(name.clone()))
            }
            (Role::Operator, GrantReason::LossAccepted { is_off, .. }) => {
                self.may_lose(name, replicated, *winner, *is_off)
            }
            (Role::RaftLeader, GrantReason::Failover { .. } | GrantReason::LossAccepted { .. })
            | (Role::Operator, _) => Err(Refusal::OnlyAnOperator),
            (Role::RaftLeader, GrantReason::Silent { .. }) => {
                let found = self.lost_primary(replicated, now).unwrap_or_default();
                if found.contains(winner) { Ok(()) } else { Err(Refusal::PrimaryMayRun(name.clone())) }
            }
            (Role::RaftLeader, GrantReason::Ended) if !replicated.moves_by_itself() => Err(Refusal::OnlyAnOperator),
            (Role::RaftLeader, _) => self.may_move(name, replicated),
            (Role::Agent | Role::ResyncLeader, _) => Err(Refusal::OnlyAnOperator),
        }
    }

    /// Whether an operator may give up what only the sync set holds: no server could acknowledge more, and none
    /// that is up has it.
    fn may_lose(
        &self,
        name: &DatabaseName,
        replicated: &Replicated,
        winner: ArchiveId,
        is_off: bool,
    ) -> Result<(), Refusal> {
        // Two engines never run on one archive.
        let returns = replicated.record.as_ref().is_some_and(|record| record.primary == winner);
        if !is_off && !returns && !self.primary_was_seen_to_end(replicated) {
            return Err(Refusal::PrimaryMayRun(name.clone()));
        }
        let mut members = replicated.record.iter().flat_map(|record| &record.sync_set);
        let holds_all =
            |archive: &ArchiveId| self.holds_all(replicated, *archive) && self.has_data_of(replicated, *archive);
        match members.find(|archive| holds_all(archive)) {
            Some(archive) => Err(Refusal::NothingToLose(*archive)),
            None => Ok(()),
        }
    }

    /// An earlier primary than the next one that may still serve clients.
    fn may_serve(&self, name: &DatabaseName) -> Option<Earlier> {
        let replicated = self.replicated(name)?;
        let primary = replicated.primary.as_ref()?;
        // One that was open has waited for those before it.
        let before = self.earlier(primary).filter(|_| primary.opened.is_none());
        let lease_ms = primary.lease_ms;
        let own =
            (!self.primary_was_seen_to_end(replicated)).then_some(Earlier { process: Some(primary.process), lease_ms });
        match (before, own) {
            (Some(before), Some(_)) => Some(Earlier { process: None, lease_ms: lease_ms.max(before.lease_ms) }),
            (before, own) => before.or(own),
        }
    }

    /// Whether the primary may move without an operator's word.
    fn may_move(&self, name: &DatabaseName, replicated: &Replicated) -> Result<(), Refusal> {
        if let Some(why) = &replicated.uncertain {
            return Err(Refusal::Uncertain { database: name.clone(), why: why.clone() });
        }
        self.primary_is_over(replicated).map(drop).ok_or_else(|| Refusal::PrimaryMayRun(name.clone()))
    }
}
