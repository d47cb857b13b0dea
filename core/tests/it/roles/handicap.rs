//! Servers that had better not be the next primary: with too little room, or with much log to replay.

use super::lost::{automatic, of_three};
use super::*;

impl Play {
    fn has_room(&mut self, ordinal: u32, has: bool) {
        self.servers.get_mut(&ordinal).unwrap().handicap.short_of_room = !has;
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

/// Both standbys confirm, and archive 2 has no room.
fn short_of_room() -> Play {
    let mut play = of_three();
    play.has_room(1, false);
    play.settle();
    play
}

#[test]
fn a_standby_without_room_comes_after_one_with_room() {
    let mut play = short_of_room();
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 3);
}

#[test]
fn the_same_if_the_primary_is_lost() {
    let mut play = short_of_room();
    play.lose(0);
    play.hears(1, false);
    play.hears(2, false);
    play.settle();
    assert_eq!(play.primary(), 3);
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
fn a_standby_that_has_yet_to_replay_much_comes_after_one_that_could_open_now() {
    for is_lost in [false, true] {
        let mut play = of_three();
        play.servers.get_mut(&1).unwrap().handicap.replays_late = true;
        play.settle();
        let news = play.news();
        assert!(news.ends_with("archive 2 as the next primary: much log that it has yet to replay\n"), "{news}");
        if is_lost {
            play.lose(0);
            play.hears(1, false);
            play.hears(2, false);
        } else {
            play.ends(0);
        }
        play.settle();
        assert_eq!(play.primary(), 3, "lost: {is_lost}");
    }
}

#[test]
fn a_late_standby_with_room_comes_before_one_without_room() {
    let mut play = of_three();
    play.has_room(1, false);
    play.servers.get_mut(&2).unwrap().handicap.replays_late = true;
    play.settle();
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 3);
}

#[test]
fn what_no_longer_speaks_against_a_server_is_said() {
    let mut play = of_three();
    for late in [true, false] {
        play.servers.get_mut(&1).unwrap().handicap.replays_late = late;
        play.settle();
    }
    assert!(play.news().ends_with("what speaks against archive 2 as the next primary: nothing\n"));
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 2);
}
