//! Servers that had better not be the next primary: with too little room, or with much log to replay.

use super::lost::{automatic, of_three};
use super::*;

impl Play {
    fn has_room(&mut self, ordinal: u32, has: bool) {
        self.servers.get_mut(&ordinal).unwrap().handicap.short_of_room = !has;
    }

    fn replays_late(&mut self, ordinal: u32, late: bool) {
        self.servers.get_mut(&ordinal).unwrap().handicap.replays_late = late;
    }

    /// The primary is lost, or its server ends.
    fn goes(&mut self, is_lost: bool) {
        if is_lost {
            self.lose(0);
            self.hears(1, false);
            self.hears(2, false);
        } else {
            self.ends(0);
        }
        self.settle();
    }

    /// The server of the primary ends, as it does when its log finds no room.
    fn ends(&mut self, ordinal: u32) {
        let server = self.servers.get_mut(&ordinal).unwrap();
        server.ended = server.in_force.map(|it| (it.generation, Ended::Failed));
        (server.stand, server.in_force) = (Stand::Down, None);
    }

    fn primary(&self) -> u64 {
        self.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap().primary.0
    }
}

#[test]
fn a_primary_whose_volume_is_full_is_followed_by_one_with_room() {
    let mut play = automatic();
    play.has_room(0, false);
    play.settle();
    assert_eq!(
        play.news(),
        "what speaks against archive 1 as the next primary: too little room on its volume\n",
        "one that runs stays"
    );
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 2);
}

#[test]
fn a_standby_with_a_handicap_comes_after_one_without() {
    for is_lost in [false, true] {
        for (short_of_room, replays_late) in [(true, false), (false, true), (true, true)] {
            let mut play = of_three();
            play.servers.get_mut(&1).unwrap().handicap = Handicap { short_of_room, replays_late };
            play.settle();
            let news = play.news();
            let said = |it: &str| {
                news.lines().last().unwrap().starts_with("what speaks against archive 2") && news.contains(it)
            };
            assert_eq!((said("too little room"), said("yet to replay")), (short_of_room, replays_late), "{news}");
            play.goes(is_lost);
            assert_eq!(play.primary(), 3, "lost: {is_lost}; {news}");
        }
    }
}

#[test]
fn without_room_anywhere_a_standby_takes_over_all_the_same() {
    let mut play = automatic();
    for ordinal in 0..3 {
        play.has_room(ordinal, false);
    }
    play.settle();
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 2, "its server may have ended for another reason");
}

#[test]
fn a_late_standby_with_room_comes_before_one_without_room() {
    let mut play = of_three();
    play.has_room(1, false);
    play.replays_late(2, true);
    play.settle();
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 3);
}

#[test]
fn what_no_longer_speaks_against_a_server_is_said() {
    let mut play = of_three();
    for late in [true, false] {
        play.replays_late(1, late);
        play.settle();
    }
    assert!(play.news().ends_with("what speaks against archive 2 as the next primary: nothing\n"));
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 2);
}
