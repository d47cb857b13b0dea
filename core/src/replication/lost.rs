//! A primary that is lost: no agent hears its wrapper, and no standby of the sync set hears its server. Then the Raft leader grants the
//! next generation by itself. Lost is not dead: what the old one may still do, no acknowledged commit depends on.

use super::elapsed::{Began, Now};
use super::grants::doubled;
use super::waits::listed;
use crate::domain::Domain;
use crate::domain::ids::{ArchiveId, Generation, Millis, StartId};
use crate::domain::process::{Process, SessionState};
use crate::domain::replicated::{Alarms, FailoverMode, Primary, Replicated, Silent};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// The first pause after a failover whose old primary turned out to run, in milliseconds. It doubles with each that follows.
pub const HELD_BACK_MS: u64 = 60_000;
/// The longest one; and after so long without another, the next is the first again.
const HELD_BACK_MAX_MS: u64 = 3_600_000;

/// Why no failover begins by itself.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum NotLost {
    /// There is no primary, or an agent hears its wrapper.
    Heard,
    /// It is not wanted.
    NotWanted(FailoverMode),
    /// What is recorded may be wrong.
    Uncertain,
    /// The wrapper of the primary keeps no lease: for how long its server would serve old data is not known.
    KeepsNoLease,
    /// It was granted the generation a moment ago, and may be about to come.
    Starting,
    /// No other archive of the sync set has a server that is connected.
    NoneThere,
    /// The servers of these archives hear the primary, or have not said that they do not.
    StillHeard(Vec<ArchiveId>),
    /// A failover was for nothing a while ago.
    HeldBack {
        /// Until when.
        until: Millis,
    },
    /// The servers of the last grants ended soon after they were open.
    EndsAgain {
        /// Until when the next grant waits.
        until: Millis,
    },
    /// The server that is next may not lead: why.
    Refused(String),
}

impl NotLost {
    /// All of them, as one word each.
    pub const CODES: &'static [&'static str] = Self::VARIANTS;

    /// As one word.
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for NotLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heard => f.write_str("an agent hears the primary"),
            Self::NotWanted(mode) => write!(f, "kaa.dev/failover is {mode}"),
            Self::Uncertain => f.write_str("the record may be wrong"),
            Self::KeepsNoLease => f.write_str("the wrapper of the primary is too old to keep a lease"),
            Self::Starting => f.write_str("it was granted the generation and may be about to be promoted"),
            Self::NoneThere => f.write_str("no other archive of the sync set has a server that is connected"),
            Self::StillHeard(archives) => {
                write!(f, "the server of archive {} may still hear it", listed(archives))
            }
            Self::Refused(why) => write!(f, "no grant is possible: {why}"),
            Self::HeldBack { until } => {
                write!(f, "the last failover found a primary that ran; the next one may begin after {until}")
            }
            Self::EndsAgain { until } => {
                write!(
                    f,
                    "the servers of the last grants ended soon after they were open; the next grant follows at {until}"
                )
            }
        }
    }
}

impl Domain {
    /// The archives that could take over from a primary that is lost, by preference; or why it is not.
    pub fn lost_primary<'a>(
        &self,
        replicated: &Replicated,
        now: impl Into<Now<'a>>,
    ) -> Result<Vec<ArchiveId>, NotLost> {
        let now = now.into();
        let Some(primary) = &replicated.primary else { return Err(NotLost::Heard) };
        if self.is_live(primary.process) {
            return Err(NotLost::Heard);
        }
        // `None`: its process was removed, and not even its tombstone is left.
        let lost_for = Began::loss(self, primary.process).map(|lost| now.since(lost));
        let mode = replicated.failover();
        if mode != FailoverMode::Automatic {
            return Err(NotLost::NotWanted(mode));
        }
        if replicated.uncertain.is_some() {
            return Err(NotLost::Uncertain);
        }
        let members: Vec<ArchiveId> = self.members_there(replicated).collect();
        if members.is_empty() {
            return Err(NotLost::NoneThere);
        }
        // One that was never heard to be promoted was followed by none: it waits for all of its set, and is not open. It may be
        // replaying its log.
        if primary.begins.is_none() {
            let is_removed = !self.processes.contains_key(&primary.process);
            return match lost_for.filter(|lost_for| !is_removed && *lost_for < primary.lease_ms) {
                Some(_) => Err(NotLost::Starting),
                None => Ok(members),
            };
        }
        if !primary.keeps_lease {
            return Err(NotLost::KeepsNoLease);
        }
        let mut silent: Vec<(ArchiveId, Silent)> =
            members.iter().filter_map(|archive| Some((*archive, self.silence(primary, *archive)?))).collect();
        // It waits for each of them. So without one of them it has been closed for long, and nothing is acknowledged.
        let for_long = |silent: &Silent| {
            let silent_for = now.since(Began::silence(replicated, silent));
            lost_for.is_some_and(|lost_for| lost_for.min(silent_for) >= primary.lease_ms)
        };
        let is_closed = silent.iter().any(|(_, silent)| for_long(silent));
        if silent.len() < members.len() && !is_closed {
            let heard = members.into_iter().filter(|archive| !silent.iter().any(|(it, _)| it == archive));
            return Err(NotLost::StillHeard(heard.collect()));
        }
        if let Some(alarm) = Began::alarm(replicated) {
            let left = replicated.alarms.pause_ms().saturating_sub(now.since(alarm));
            // One that stays away for the first pause is replaced, however many were found to run before.
            let away = lost_for.map(|lost_for| replicated.alarms.base_ms.saturating_sub(lost_for));
            let left = away.map_or(left, |away| left.min(away));
            if left > 0 {
                return Err(NotLost::HeldBack { until: now.in_ms(left) });
            }
        }
        // The furthest: what the others have beyond would have to be rewound.
        silent.sort_by_key(|(archive, silent)| {
            let behind = std::cmp::Reverse(silent.end);
            (self.handicap(*archive), behind, self.preference(replicated, *archive))
        });
        Ok(silent.into_iter().map(|(archive, _)| archive).collect())
    }

    /// The primaries of the current generations whose wrappers are in a session, with their processes.
    pub fn primaries_in_session(&self) -> impl Iterator<Item = (&Primary, &Process)> {
        let primaries = self.databases.values().filter_map(|it| it.replicated.as_ref()?.primary.as_ref());
        let processes = primaries.filter_map(|primary| Some((primary, self.processes.get(&primary.process)?)));
        processes.filter(|(_, process)| process.session.state == SessionState::Live)
    }

    /// Whether a process has this generation, and no later one was granted: then its lease may be renewed.
    pub fn leads(&self, process: StartId, generation: Generation) -> bool {
        let database = self.processes.get(&process).map(|process| &process.database);
        let Some(replicated) = database.and_then(|database| self.replicated(database)) else { return false };
        let current = replicated.record.as_ref().is_some_and(|record| record.generation == generation);
        current && replicated.primary.as_ref().is_some_and(|primary| primary.process == process)
    }

    /// Whether an agent has the stream of a process.
    pub(crate) fn is_live(&self, process: StartId) -> bool {
        self.processes.get(&process).is_some_and(|process| process.session.state == SessionState::Live)
    }

    /// The archives of the sync set but the primary's whose servers are connected, with their data.
    fn members_there<'a>(&'a self, replicated: &'a Replicated) -> impl Iterator<Item = ArchiveId> + 'a {
        let record = replicated.record.iter();
        let others = record.flat_map(|record| record.sync_set.iter().filter(|archive| **archive != record.primary));
        others.copied().filter(|archive| self.has_data_of(replicated, *archive))
    }

    /// What the server of an archive says of a primary that it does not hear. A word of an earlier session is void.
    fn silence(&self, primary: &Primary, archive: ArchiveId) -> Option<Silent> {
        let on_it = self.serving(archive)?;
        let silent = primary.silent.get(&archive)?;
        (silent.process == on_it.id && silent.session == on_it.session.number).then_some(*silent)
    }
}

impl Alarms {
    /// For how long the next failover is held back after the last one that was for nothing.
    fn pause_ms(&self) -> u64 {
        doubled(self.base_ms, self.count.saturating_sub(1), HELD_BACK_MAX_MS.max(self.base_ms))
    }

    /// The old primary of a failover on silence is there again, at this time. A clock that is set forward may make the next pause the
    /// first again: that one is always kept.
    pub(crate) fn was_alive(&mut self, now: Millis) {
        let quiet = self.last.is_none_or(|last| now.since(last) >= HELD_BACK_MAX_MS);
        self.count = if quiet { 1 } else { self.count.saturating_add(1) };
        (self.last, self.suspect) = (Some(now), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failover_for_nothing_holds_the_next_one_back_for_longer() {
        let mut alarms = Alarms { base_ms: 60_000, ..Alarms::default() };
        let mut pauses = Vec::new();
        for at in [0, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000] {
            alarms.was_alive(Millis(at));
            pauses.push(alarms.pause_ms() / 1000);
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        alarms.was_alive(Millis(700_000 + 3_600_000));
        assert_eq!(alarms.count, 1, "after a quiet hour");
    }
}
