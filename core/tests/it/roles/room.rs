//! Volumes with too little room for a primary.

use super::*;

/// `shop` with `kaa.dev/failover: automatic`: the primary on archive 1, a standby on archive 2 in the sync set.
fn automatic() -> Play {
    let mut play = running(WhenAlone::Degrade);
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    database.replicated.as_mut().unwrap().settings.as_mut().unwrap().failover = FailoverMode::Automatic;
    play
}

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

#[test]
fn a_standby_without_room_does_not_take_over() {
    let mut play = automatic();
    play.has_room(1, false);
    play.settle();
    play.ends(0);
    play.settle();
    assert_eq!(play.primary(), 1, "it returns");
    play.lose(0);
    play.hears(1, false);
    play.settle();
    assert_eq!(play.holds(), "the volume of archive 2 has too little room for a primary");
    play.has_room(1, true);
    play.settle();
    assert_eq!(play.primary(), 2);
}

#[test]
fn without_room_anywhere_nothing_moves_until_there_is_some() {
    let mut play = automatic();
    play.has_room(0, false);
    play.has_room(1, false);
    play.settle();
    play.ends(0);
    play.settle();
    assert_eq!(waits(&play), ["no_room"]);
    play.news();
    play.has_room(0, true);
    play.settle();
    assert!(play.news().contains("generation 3 granted to archive 1"), "it returns");
    assert_eq!(waits(&play), [""; 0]);
}

#[test]
fn a_switchover_is_to_a_server_with_room() {
    let mut play = automatic();
    play.has_room(1, false);
    play.settle();
    assert_eq!(play.switchover(None), "Changed");
    play.settle();
    assert_eq!(play.primary(), 3, "it joins the sync set first");
}

#[test]
fn a_primary_does_not_stand_down_for_servers_without_room() {
    let mut play = automatic();
    play.has_room(1, false);
    play.has_room(2, false);
    play.settle();
    play.news();
    assert_eq!(play.switchover(None), "Changed");
    play.settle();
    assert_eq!(play.primary(), 1);
    assert!(!play.news().contains("stood down"));
}
