//! Founding from a retired log, by an operator's command: where no server has a log of the anchor's epoch any more, since
//! the volume of its founder was lost before it had founded, what is left of the domain is in logs of the epochs before.
//!
//! The choice needs no note of its own, and so nothing that a crash could lose or leave behind: a raft id names one log, not
//! one server, and the anchor names the log that founds. To swap the anchor to the id of a retired log *is* the
//! choice. Before the swap nothing has changed; after it the server that has that log brings it back at the gate ([`brings_back`]),
//! however often it is cut off in between, and founds from it as any founder does.

//!
//! They are kept within bounds ([`prunable`]): once the epoch of today has committed, only an operator founds from one, who
//! gives up what was committed since.

use super::Anchor;
use super::quorum_override::Position;
use super::recover::{self, Judgement, Needless, Survey};
use crate::domain::ids::{DomainId, MembershipEpoch, RaftId, ServerId};
use std::fmt;
use std::str::FromStr;

/// Where a retired log is; written `SERVER/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// On whose volume.
    pub server: ServerId,
    /// Its directory there.
    pub name: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.name)
    }
}

/// Why a text does not say where a log lies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not SERVER/NAME, as kaa recover --dry-run lists the retired logs")]
pub struct NoPlace(String);

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        match text.split_once('/') {
            Some((server, name)) if !server.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { server: server.into(), name: name.to_owned() })
            }
            _ => Err(NoPlace(text.to_owned())),
        }
    }
}

/// What a retired log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The domain it belongs to; `None` if it is empty.
    pub domain: Option<DomainId>,
    /// Its epoch.
    pub epoch: MembershipEpoch,
    /// Its id.
    pub log: RaftId,
    /// How far it goes.
    pub last: Position,
}

/// The most logs that are kept on one volume after they were retired.
pub const MAX_KEPT_LOGS: usize = 3;
/// The most bytes that they may take together: twice what the default of `--min-free` leaves.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;

/// A retired log that can be read, as it is weighed against the others on its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Its epoch.
    pub epoch: MembershipEpoch,
    /// Its id.
    pub log: RaftId,
    /// How far it goes.
    pub last: Position,
    /// What its files take on the volume.
    pub bytes: u64,
}

/// Which retired logs to delete, on a volume whose own log has what is committed in the epoch `current`. Of those with entries,
/// the one that goes furthest in the latest earlier epoch always stays; then those of later epochs do, and of one epoch those
/// that go further, until the bounds are reached. Empty ones, from which no epoch can be founded, come last. One of the
/// current epoch, or of a later one, stays: it is not known why it is there.
pub fn prunable(retired: &[Retired], current: MembershipEpoch) -> Vec<(MembershipEpoch, RaftId)> {
    let mut earlier: Vec<&Retired> = retired.iter().filter(|log| log.epoch < current).collect();
    earlier.sort_by_key(|log| std::cmp::Reverse((log.last != Position::default(), log.epoch, log.last, log.log)));
    let (mut bytes, mut full) = (0_u64, false);
    let mut prunable = Vec::new();
    for (place, log) in earlier.into_iter().enumerate() {
        bytes = bytes.saturating_add(log.bytes);
        full |= place > 0 && (place >= MAX_KEPT_LOGS || bytes > MAX_KEPT_BYTES);
        if full {
            prunable.push((log.epoch, log.log));
        }
    }
    prunable
}

/// Why a log that was named is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// There is none of that name; these are there.
    Missing(Vec<String>),
    /// It cannot be read, and why.
    Damaged(String),
}

/// All that is known when an operator names a log, at the agent that has it.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The log that is named.
    pub place: &'a Place,
    /// What it holds.
    pub kept: Result<Kept, Unusable>,
    /// The anchor, by a fresh read; the agent follows its epoch.
    pub anchor: &'a Anchor,
    /// Who answers with the log that the anchor names, whatever epoch that is of yet.
    pub founder: Option<ServerId>,
    /// What is known of the anchor's epoch.
    pub survey: &'a Survey,
}

/// What would be founded from, and what is given up for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// The log.
    pub kept: Kept,
    /// The anchor that founds from it.
    pub next: Anchor,
}

/// Why it is not founded from a log that is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The log is of no use.
    Unusable(Place, Unusable),
    /// It belongs to another domain, or to none.
    AnotherDomain(Place, Option<DomainId>),
    /// Nothing was ever written to it.
    Empty(Place),
    /// It is of a later epoch than the anchor, which was set back.
    Later(Place, MembershipEpoch),
    /// The StatefulSet does not want its server.
    Unwanted(ServerId),
    /// The group continues without an operator's help.
    Needless(Needless),
    /// The founder that the anchor names is there, and has its log.
    Founder(ServerId),
    /// There is a log of the anchor's epoch.
    Log(ServerId, Position),
}

/// Judges what an operator asks for.
pub fn judge(asked: &Asked<'_>) -> Result<Return, Refusal> {
    let Asked { place, anchor, survey, .. } = *asked;
    let kept = asked.kept.clone().map_err(|why| Refusal::Unusable(place.clone(), why))?;
    if kept.last == Position::default() {
        return Err(Refusal::Empty(place.clone()));
    }
    if kept.domain.as_ref() != Some(&anchor.domain) {
        return Err(Refusal::AnotherDomain(place.clone(), kept.domain));
    }
    if kept.epoch > anchor.epoch {
        return Err(Refusal::Later(place.clone(), kept.epoch));
    }
    if let Judgement::Needless(why) = recover::judge(survey) {
        return Err(Refusal::Needless(why));
    }
    if let Some(founder) = &asked.founder {
        return Err(Refusal::Founder(founder.clone()));
    }
    // Also that of a server that is not wanted: it can be wanted again.
    let newest = survey.answers.iter().max_by_key(|(_, answer)| answer.last);
    if let Some((server, answer)) = newest.filter(|(_, answer)| answer.last != Position::default()) {
        return Err(Refusal::Log(server.clone(), answer.last));
    }
    if !survey.wanted.contains(&place.server) {
        return Err(Refusal::Unwanted(place.server.clone()));
    }
    let epoch = MembershipEpoch(anchor.epoch.0 + 1);
    let next = Anchor { domain: anchor.domain.clone(), epoch, founder: kept.log, lossy: true };
    Ok(Return { kept, next })
}

/// Which of the retired logs on a volume, each with its epoch, founds the anchor's epoch. The volume's own log
/// is behind the anchor and not the founder.
///
/// One that is of that epoch has founded it already and was retired after it: the anchor was set back.
pub fn brings_back(anchor: &Anchor, kept: &[(MembershipEpoch, RaftId)]) -> Option<(MembershipEpoch, RaftId)> {
    kept.iter().copied().find(|(epoch, log)| *log == anchor.founder && *epoch < anchor.epoch)
}

impl fmt::Display for Return {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, next } = self;
        write!(f, "whatever was committed after entry {} of epoch {}", kept.last.index, kept.epoch)?;
        match (kept.epoch.0 + 1, next.epoch.0.saturating_sub(1)) {
            (since, until) if since > until => Ok(()),
            (since, until) if since == until => write!(f, ", also in epoch {since}"),
            (since, until) => write!(f, ", also in epochs {since} to {until}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(Place { server, name }, Unusable::Missing(there)) => {
                write!(f, "{server} has no retired log {name}")?;
                match there.as_slice() {
                    [] => f.write_str(", and no other"),
                    there => write!(f, "; it has {}", there.join(", ")),
                }
            }
            Self::Unusable(place, Unusable::Damaged(why)) => write!(f, "{place} cannot be read: {why}"),
            Self::AnotherDomain(place, Some(domain)) => write!(f, "{place} is a log of another domain, {domain}"),
            Self::AnotherDomain(place, None) => write!(f, "{place} is a log of no domain"),
            Self::Empty(place) => write!(f, "{place} is empty"),
            Self::Later(place, epoch) => {
                write!(f, "{place} is of epoch {epoch}, which is later than the anchor's: that was set back")
            }
            Self::Unwanted(server) => {
                write!(f, "the StatefulSet does not want {server}, which would found: scale it up first")
            }
            Self::Needless(why) => why.fmt(f),
            Self::Founder(server) => write!(
                f,
                "{server} answers, with the log that the anchor names: it founds as soon as it can, and its readiness says \
                 what it waits for"
            ),
            Self::Log(server, last) => write!(
                f,
                "{server} has a log of the anchor's epoch, up to entry {}: the domain continues with that, by itself or by \
                 kaa recover --accept-data-loss",
                last.index
            ),
        }
    }
}
