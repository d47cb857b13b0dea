//! Whether an agent is able to lead the resync. The Lease says who leads, and nothing of whether the holder can commit what
//! it finds or sees what the others committed. A holder that cannot releases the Lease and stays away for one Lease duration.
//!
//! All moments are milliseconds of one monotonic clock of this machine.

use std::fmt;

/// How far a log may lag and still be taken for current: what is left comes with the next few appends.
const MAX_BEHIND_ENTRIES: u64 = 100;

/// What an agent knows of itself at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ability {
    /// Whether the last membership in its log names it, as a voter or a learner.
    pub member: bool,
    /// Whether it leads with a quorum, or heard of a leader within the election timeout.
    pub quorum: bool,
    /// Whether its volume has more room than `--min-free`.
    pub room: bool,
    /// How many entries it knows to be committed and has not applied.
    pub behind: u64,
}

/// Why an agent does not stand for the lead of the resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inability {
    /// No membership names it.
    NotAMember,
    /// It hears of no quorum.
    NoQuorum,
    /// There is no room on its volume.
    NoRoom,
    /// So many entries are committed that it has not applied.
    Behind(u64),
    /// So many passes in a row could not commit what they found.
    PassesFailed(u32),
}

impl Inability {
    /// Whether it often ends by itself within a moment, as an election does.
    fn may_pass(self) -> bool {
        match self {
            Self::NoQuorum | Self::Behind(_) => true,
            Self::NotAMember | Self::NoRoom | Self::PassesFailed(_) => false,
        }
    }

    /// The same as one word.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotAMember => "not_a_member",
            Self::NoQuorum => "no_quorum",
            Self::NoRoom => "no_room",
            Self::Behind(_) => "behind",
            Self::PassesFailed(_) => "passes_failed",
        }
    }
}

/// Every answer of [`Inability::code`].
pub const CODES: [&str; 5] = ["not_a_member", "no_quorum", "no_room", "behind", "passes_failed"];

/// Why an agent stays away from the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// What it lacks, or lacked when it released the Lease.
    pub why: Inability,
    /// Until when it stays away though it may be able again; `None` if it never held the Lease while it was unable.
    pub until_ms: Option<u64>,
}

impl fmt::Display for Inability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAMember => {
                f.write_str("no leader replicates to this server: see what kaa plan says of the servers")
            }
            Self::NoQuorum => f.write_str("this server hears of no quorum: see kaa show domain"),
            Self::NoRoom => f.write_str(
                "the volume of this server has too little room (--min-free): make room or enlarge its claim",
            ),
            Self::Behind(entries) => {
                write!(f, "{entries} committed entries are not applied here yet: wait, or delete this server's pod")
            }
            Self::PassesFailed(count) => {
                write!(f, "{count} passes in a row could not commit what they found: see this server's log")
            }
        }
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

/// How patient a [`Standing`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For how long a holder keeps the Lease without what often comes back within a moment.
    pub lacking_ms: u64,
    /// For how long an agent stays away that gave the Lease up: the others need as long to take it in any case.
    pub away_ms: u64,
    /// After so many failed passes in a row a holder gives the Lease up.
    pub failed_passes: u32,
}

/// Whether one agent stands for the lead of the resync.
#[derive(Clone, Debug)]
pub struct Standing {
    patience: Patience,
    /// Since when it lacks something, whatever it is.
    lacking_since_ms: Option<u64>,
    /// Why it gave the Lease up, and until when it stays away.
    gave_up: Option<(Inability, u64)>,
    failed_passes: u32,
}

impl Standing {
    /// One that was not judged yet.
    pub fn new(patience: Patience) -> Self {
        Self { patience, lacking_since_ms: None, gave_up: None, failed_passes: 0 }
    }

    /// Notes how a pass as the resync leader ended: whether what it found could be committed.
    pub fn pass_ended(&mut self, committed: bool) {
        self.failed_passes = if committed { 0 } else { self.failed_passes.saturating_add(1) };
    }

    /// Decides whether the agent stands for, or keeps, the lead. `holds`: whether it holds the Lease.
    pub fn judge(&mut self, ability: Ability, holds: bool, now_ms: u64) -> Result<(), Away> {
        let lacks = self.lacking(ability);
        self.lacking_since_ms = lacks.map(|_| self.lacking_since_ms.unwrap_or(now_ms));
        if let Some((_, until_ms)) = self.gave_up
            && now_ms >= until_ms
        {
            self.gave_up = None;
        }
        if let Some((why, until_ms)) = self.gave_up {
            return Err(Away { why, until_ms: Some(until_ms) });
        }
        let Some((why, since_ms)) = lacks.zip(self.lacking_since_ms) else { return Ok(()) };
        if !holds {
            return Err(Away { why, until_ms: None });
        }
        if why.may_pass() && now_ms - since_ms < self.patience.lacking_ms {
            return Ok(());
        }
        let until_ms = now_ms + self.patience.away_ms;
        self.gave_up = Some((why, until_ms));
        self.failed_passes = 0;
        Err(Away { why, until_ms: Some(until_ms) })
    }

    /// The first thing that is missing; what cannot pass by itself comes first.
    fn lacking(&self, ability: Ability) -> Option<Inability> {
        let Ability { member, quorum, room, behind } = ability;
        if !member {
            Some(Inability::NotAMember)
        } else if !room {
            Some(Inability::NoRoom)
        } else if self.failed_passes >= self.patience.failed_passes {
            Some(Inability::PassesFailed(self.failed_passes))
        } else if !quorum {
            Some(Inability::NoQuorum)
        } else {
            (behind > MAX_BEHIND_ENTRIES).then_some(Inability::Behind(behind))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ability, CODES, Inability, Patience, Standing};

    /// Plays a script. A line is `time what -> verdict`, where `what` is a list of `holds`; `no member`, `no quorum`, `no
    /// room`, `behind N`; `failed`, `committed` (a pass ended so); and a verdict is `stands`, `away CODE` or `away CODE until
    /// TIME`.
    fn run(script: &str) {
        let mut standing = Standing::new(Patience { lacking_ms: 5_000, away_ms: 15_000, failed_passes: 3 });
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (said, expected) = line.split_once("->").expect(line);
            let (time, said) = said.trim().split_once(' ').expect(line);
            let mut ability = Ability { member: true, quorum: true, room: true, behind: 0 };
            let mut holds = false;
            for what in said.split(',').map(str::trim) {
                match what.split_whitespace().collect::<Vec<_>>()[..] {
                    ["."] => {}
                    ["holds"] => holds = true,
                    ["no", "member"] => ability.member = false,
                    ["no", "quorum"] => ability.quorum = false,
                    ["no", "room"] => ability.room = false,
                    ["behind", entries] => ability.behind = entries.parse().expect(line),
                    ["failed"] => standing.pass_ended(false),
                    ["committed"] => standing.pass_ended(true),
                    _ => panic!("what is {line}?"),
                }
            }
            let verdict = match standing.judge(ability, holds, time.parse().expect(line)) {
                Ok(()) => "stands".to_owned(),
                Err(away) => {
                    let until = away.until_ms.map_or(String::new(), |until_ms| format!(" until {until_ms}"));
                    format!("away {}{until}", away.why.code())
                }
            };
            assert_eq!(verdict, expected.trim(), "at: {line}");
        }
    }

    #[test]
    fn who_is_able_stands_and_who_is_not_does_not_begin() {
        run("
            0     no member          -> away not_a_member
            1000  no quorum          -> away no_quorum
            2000  no room            -> away no_room
            3000  behind 101         -> away behind
            4000  behind 100         -> stands
        ");
    }

    #[test]
    fn a_holder_keeps_the_lease_through_an_election_and_releases_it_when_that_lasts() {
        run("
            0     holds              -> stands
            1000  holds, no quorum   -> stands
            5999  holds, no quorum   -> stands
            6000  holds              -> stands
            7000  holds, no quorum   -> stands
            11999 holds, no quorum   -> stands
            12000 holds, no quorum   -> away no_quorum until 27000
        ");
    }

    #[test]
    fn who_gave_the_lease_up_stays_away_for_its_duration_also_if_it_is_able_again() {
        run("
            0     holds, no room     -> away no_room until 15000
            1000  holds              -> away no_room until 15000
            14999 .                  -> away no_room until 15000
            15000 .                  -> stands
        ");
        run("
            0     holds, no room     -> away no_room until 15000
            15000 no room            -> away no_room
            90000 .                  -> stands
        ");
    }

    #[test]
    fn a_holder_that_applies_nothing_releases_the_lease() {
        run("
            0     holds, behind 101  -> stands
            4000  holds, behind 900  -> stands
            5000  holds, behind 950  -> away behind until 20000
        ");
    }

    #[test]
    fn a_holder_that_is_no_member_any_more_releases_the_lease_at_once() {
        run("
            0     holds              -> stands
            1000  holds, no member   -> away not_a_member until 16000
        ");
    }

    #[test]
    fn passes_that_fail_in_a_row_end_a_lead_and_are_forgotten_with_it() {
        run("
            0     holds, failed      -> stands
            1000  holds, failed      -> stands
            2000  holds, committed   -> stands
            3000  holds, failed      -> stands
            4000  holds, failed      -> stands
            5000  holds, failed      -> away passes_failed until 20000
            20000 .                  -> stands
            21000 holds, failed      -> stands
        ");
    }

    #[test]
    fn a_holder_that_lacks_one_thing_after_the_other_was_not_able_meanwhile() {
        run("
            0     holds, no quorum   -> stands
            4000  holds, behind 200  -> stands
            5000  holds, behind 200  -> away behind until 20000
        ");
    }

    #[test]
    fn every_reason_has_a_word() {
        let all = [
            Inability::NotAMember,
            Inability::NoQuorum,
            Inability::NoRoom,
            Inability::Behind(1),
            Inability::PassesFailed(3),
        ];
        assert_eq!(all.map(Inability::code), CODES);
    }
}
