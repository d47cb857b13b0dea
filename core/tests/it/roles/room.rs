//! Volumes with too little room for a primary.

use super::lost::{automatic, of_three};
use super::*;

impl Play {
    fn has_room(&mut self, ordinal: u32, has: bool) {
        self.servers.get_mut(&ordinal).unwrap().short_of_room = !has;
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
    assert_eq!(play.news(), "the volume of archive 1 has too little room for a primary\n", "one that runs stays");
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
