//! A grant keeps every member of the set until its winner is promoted: should it never be, any of them continues.

use super::lost::automatic;
use super::*;

impl Play {
    /// A server cannot be promoted in this generation.
    fn cannot_take_up(&mut self, ordinal: u32, generation: u64) {
        self.servers.get_mut(&ordinal).unwrap().memory.take_up(Generation(generation)).unwrap();
    }
}

#[test]
fn the_old_primary_continues_if_the_winner_of_a_switchover_fails() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    play.cannot_take_up(1, 3);
    assert_eq!(play.switchover(Some(2)), "Changed");
    play.settle();
    let expected = "\
switchover to archive 2 requested: maintenance
generation 2: the server of archive 1 stood down
generation 3 granted to archive 2, after archive 1, sync set 1, 2: switchover: maintenance
generation 3: the server of archive 2 has ended by itself
generation 4 granted to archive 1, after archive 2, sync set 1, 2: failover: the server of the primary has ended
archive 1 holds data of system 77, up to generation 4
generation 4: the server of archive 1 was promoted; its log continues that of generation 3 at 0/4000000
generation 4: the server of archive 1 is open
";
    assert_eq!(play.news(), expected);
}

#[test]
fn a_member_that_was_away_for_the_moment_of_the_grant_continues_if_the_winner_fails() {
    let mut play = automatic();
    play.exits(2, ExitReason::PodGone);
    play.settle();
    play.news();
    play.lose(1);
    play.cannot_take_up(0, 3);
    play.ends_here(0, 2);
    play.until("generation 3 granted to archive 1, sync set 1, 2");
    play.returns(1);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 4 granted to archive 2, after archive 1, sync set 1, 2"), "{news}");
    assert!(news.contains("the server of archive 2 is open"), "{news}");
}

/// It tries on: what it gives up nothing else gets.
#[test]
fn a_winner_gives_up_nothing_while_failovers_are_paused() {
    for (mode, replaceable) in [(FailoverMode::Manual, true), (FailoverMode::Paused, false)] {
        let mut play = running(WhenAlone::Degrade);
        play.settings().failover = mode;
        play.exits(2, ExitReason::PodGone);
        play.settle();
        play.cannot_take_up(1, 3);
        assert_eq!(play.switchover(Some(2)), "Changed");
        play.until("generation 3 granted to archive 2");
        let assigned = play.domain.assignment(play.servers[&1].process, None).unwrap();
        assert_eq!(assigned.replaceable, replaceable, "{mode:?}");
    }
}
