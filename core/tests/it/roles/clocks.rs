//! Clocks that are ahead: none of them makes a pause shorter, or longer than a little.

use super::lost::of_three;
use super::*;
use kaa_core::replication::{Found, NotLost};

const HOUR_MS: u64 = 3_600_000;

impl Play {
    /// An agent proposes something whose clock is an hour ahead.
    fn is_told_by_a_fast_clock(&mut self) {
        self.ahead_ms += HOUR_MS;
        self.said(1, EngineState::Running);
    }

    /// What the leader decides that has looked at `found`, `ms` after the first look, if entries are stamped so much later then.
    fn decided(&self, found: &Found, ms: u64, stamped_ms: u64) -> Result<Vec<ArchiveId>, NotLost> {
        let time = Millis(self.domain.time.0 + stamped_ms);
        self.domain.lost_primary(self.domain.replicated(&SHOP.into()).unwrap(), found.at(time, ms))
    }
}

#[test]
fn a_clock_that_is_ahead_makes_no_silence_look_longer() {
    let (mut play, mut found) = (of_three(), Found::default());
    play.is_silent();
    found.look(&play.domain, 0);
    play.is_told_by_a_fast_clock();
    found.look(&play.domain, 100);
    assert_eq!(play.holds(), "nothing", "the times of the entries alone say that it has lasted an hour");
    assert!(matches!(play.decided(&found, 100, 0), Err(NotLost::StillHeard(_))));
    assert!(matches!(play.decided(&found, 2_499, HOUR_MS), Err(NotLost::StillHeard(_))));
    assert_eq!(play.decided(&found, 2_500, 0), Ok(vec![ArchiveId(3)]));
}

#[test]
fn after_a_clock_that_was_ahead_a_silence_counts_as_soon_as_stamps_have_gone_on() {
    let (mut play, mut found) = (of_three(), Found::default());
    play.is_told_by_a_fast_clock();
    play.is_silent();
    found.look(&play.domain, 0);
    assert!(matches!(play.decided(&found, HOUR_MS, 0), Err(NotLost::StillHeard(_))), "the state machine would refuse");
    let stamped = Millis(play.domain.time.0 + 2_500);
    let planned = grants::plan(&play.domain, found.at(stamped, 2_778), &Timing::default());
    let [grant @ Command::GrantPrimary(_)] = planned.as_slice() else { panic!("{planned:?}") };
    play.ahead_ms = stamped.0 - play.domain.index * 10;
    assert_eq!(play.does(Role::RaftLeader, grant.clone()), Outcome::Changed);
}

#[test]
fn an_agent_that_starts_measures_anew() {
    let mut play = of_three();
    play.is_silent();
    let (mut one, mut other) = (Found::default(), Found::default());
    one.look(&play.domain, 0);
    other.look(&play.domain, 2_000);
    assert_eq!([&one, &other].map(|found| play.decided(found, 2_500, 2_500).is_ok()), [true, false]);
    assert!(play.decided(&other, 4_500, 4_500).is_ok());
    assert!(play.decided(&Found::default(), 9_000, 9_000).is_err(), "what it has not looked at has just begun");
}

#[test]
fn a_silence_that_comes_again_begins_anew() {
    let (mut play, mut found) = (of_three(), Found::default());
    play.is_silent();
    found.look(&play.domain, 0);
    play.hears(2, true);
    play.settle();
    play.hears(2, false);
    play.settle();
    found.look(&play.domain, 2_400);
    assert!(play.decided(&found, 2_500, 2_500).is_err());
    assert!(play.decided(&found, 4_900, 4_900).is_ok());
}

#[test]
fn a_pause_after_a_failover_for_nothing_is_no_longer_and_no_shorter() {
    let (mut play, mut found) = (super::lost::automatic(), Found::default());
    play.is_told_by_a_fast_clock();
    play.lose(0);
    play.hears(1, false);
    play.settle();
    play.hears(1, true);
    play.servers.get_mut(&0).unwrap().stand = Stand::Down;
    play.returns(0);
    play.settle();
    play.lose(1);
    for ordinal in [0, 2] {
        play.hears(ordinal, false);
    }
    play.settle();
    found.look(&play.domain, 0);
    play.is_told_by_a_fast_clock();
    assert!(matches!(play.decided(&found, 59_999, 60_000), Err(NotLost::HeldBack { .. })));
    assert!(play.decided(&found, 60_000, 60_000).is_ok());
}
