//! How long ago something began that a grant waits after, without trust in anybody's clock.
//!
//! The domain's time is that of the fastest clock there ever was: one that is set forward for a second would make a silence look an
//! hour long, or hide for an hour that it lasts. So the agent that decides measures by its own clock that never goes back, from the
//! moment at which it found the beginning in its copy of the domain. What it measures is never more than the truth. The times of the
//! entries count as well, since the state machine of each agent compares them again: the lesser of the two is what has passed.
//!
//! An agent that starts, or gets a copy of the domain, measures from then on. None of these pauses is long, and most are a lease.

use crate::domain::Domain;
use crate::domain::ids::{Generation, Millis, SessionNumber, StartId, SystemId};
use crate::domain::process::SessionState;
use crate::domain::replicated::{Alarms, Primary, Replicated, Silent, Switchover};
use std::collections::BTreeMap;

/// Something that began, as the domain keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Began {
    what: What,
    /// When, by the domain's time. Not unique: that time stands still while proposals come from clocks that are behind it.
    at: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Loss(StartId, SessionNumber),
    Silence(Generation, StartId, SessionNumber),
    Grant(Generation, StartId),
    /// The system identifier is of one database only.
    Alarm(Option<SystemId>, u32),
    Switchover(Option<SystemId>),
}

impl Began {
    /// The loss of a process's session, if it is lost. That of a process which was removed since was lost no later than that.
    pub(super) fn loss(domain: &Domain, process: StartId) -> Option<Self> {
        let (process, removed) = match domain.processes.get(&process) {
            Some(process) => (process, None),
            None => domain.tombstones.get(&process).map(|it| (&it.process, Some(it.at)))?,
        };
        let at = if let SessionState::Lost(at) = process.session.state { Some(at) } else { removed };
        Some(Self { what: What::Loss(process.id, process.session.number), at: at? })
    }

    /// That the server of a standby does not hear the primary.
    pub(super) fn silence(replicated: &Replicated, silent: &Silent) -> Self {
        let what = What::Silence(generation(replicated), silent.process, silent.session);
        Self { what, at: silent.since }
    }

    /// The grant of the current generation.
    pub(super) fn grant(replicated: &Replicated, primary: &Primary) -> Self {
        Self { what: What::Grant(generation(replicated), primary.process), at: primary.granted }
    }

    /// The last failover that turned out to be for nothing.
    pub(super) fn alarm(replicated: &Replicated) -> Option<Self> {
        let Alarms { count, last, .. } = replicated.alarms;
        Some(Self { what: What::Alarm(replicated.system, count), at: last? })
    }

    /// A request for a switchover.
    pub(super) fn switchover(replicated: &Replicated, asked: &Switchover) -> Self {
        Self { what: What::Switchover(replicated.system), at: asked.at }
    }

    /// All that a database has.
    fn all(domain: &Domain, replicated: &Replicated) -> Vec<Self> {
        let mut found = Vec::new();
        if let Some(primary) = &replicated.primary {
            found.push(Self::grant(replicated, primary));
            found.extend(primary.silent.values().map(|silent| Self::silence(replicated, silent)));
            found.extend(Self::loss(domain, primary.process));
        }
        found.extend(Self::alarm(replicated));
        found.extend(replicated.switchover.as_ref().map(|asked| Self::switchover(replicated, asked)));
        found
    }
}

fn generation(replicated: &Replicated) -> Generation {
    replicated.record.as_ref().map_or(Generation(0), |record| record.generation)
}

/// When one agent first found what there is in its copy of the domain, in milliseconds of its clock that never goes back.
#[derive(Clone, Debug, Default)]
pub struct Found(BTreeMap<Began, u64>);

impl Found {
    /// Looks at the domain. The more often, the less is a pause longer than it has to be.
    pub fn look(&mut self, domain: &Domain, now_ms: u64) {
        let replicated = domain.databases.values().filter_map(|database| database.replicated.as_deref());
        let there = replicated.flat_map(|replicated| Began::all(domain, replicated));
        self.0 = there.map(|began| (began, self.0.get(&began).copied().unwrap_or(now_ms))).collect();
    }

    /// A moment for decisions; `time` is what a proposal would be stamped with.
    pub fn at(&self, time: Millis, now_ms: u64) -> Now<'_> {
        Now { time, found: Some((self, now_ms)) }
    }
}

/// The moment of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    time: Millis,
    found: Option<(&'a Found, u64)>,
}

impl From<Millis> for Now<'_> {
    /// By the times of entries alone: in the state machine, and for what people are shown.
    fn from(time: Millis) -> Self {
        Self { time, found: None }
    }
}

impl Now<'_> {
    /// How long ago something began, in milliseconds.
    pub(super) fn since(&self, began: Began) -> u64 {
        let by_entries = self.time.since(began.at);
        let Some((found, now_ms)) = self.found else { return by_entries };
        let found = found.0.get(&began).copied().unwrap_or(now_ms);
        by_entries.min(now_ms.saturating_sub(found))
    }

    /// The domain's time in so many milliseconds.
    pub(super) fn in_ms(&self, ms: u64) -> Millis {
        Millis(self.time.0.saturating_add(ms))
    }
}
