//! Volumes that are not what they were.

use super::*;

impl Play {
    /// The pod starts again with something else on its volume.
    fn starts_with(&mut self, ordinal: u32, data: Data) {
        self.exits(ordinal, ExitReason::PodGone);
        self.servers.get_mut(&ordinal).unwrap().data = data;
        self.starts(ordinal);
    }
}

#[test]
fn a_volume_that_was_set_back_is_not_used() {
    let mut play = running(WhenAlone::Degrade);
    play.exits(1, ExitReason::PodGone);
    play.servers.get_mut(&1).unwrap().start = StartId(1);
    play.starts(1);
    play.settle();
    let news = play.news();
    let said = "the volume of archive 2 remembers start 1, and its last one was 2: it was set back, and is not used";
    assert!(news.contains(said), "{news}");
    assert!(news.contains("archive 2 left the sync set"), "{news}");
    assert_eq!(waits(&play), ["data_not_adopted"]);
    assert!(play.switchover(Some(2)).contains("archive 2"), "it could never join the sync set");
}

/// An operator put it there to have it adopted, while the other pods wait for their nodes.
#[test]
fn data_that_appears_on_a_volume_before_the_first_primary_is_not_used_by_itself() {
    let mut play = Play::new(WhenAlone::Degrade);
    play.reports(2);
    play.starts_with(2, Data::Initialized { system: SystemId(78), highest: Generation(1) });
    play.reports(2);
    assert_eq!(waits(&play), ["data_not_adopted"]);
    let assigned = play.domain.assignment(play.servers[&2].process, None).unwrap();
    assert!(!assigned.may_start, "{assigned:?}");
    play.settle();
    assert_eq!(waits(&play), ["data_not_adopted"], "no pod makes the first data");
}

/// Only silence would remove it later, which is seconds for the clients.
#[test]
fn a_primary_that_returns_does_not_wait_for_a_member_that_cannot_follow() {
    let mut play = running(WhenAlone::Degrade);
    for ordinal in [2, 1, 0] {
        play.exits(ordinal, ExitReason::PodGone);
    }
    play.servers.get_mut(&1).unwrap().start = StartId(1);
    play.starts(0);
    play.starts(1);
    play.settle();
    let news = play.news();
    let left = news.find("archive 2 left the sync set, version 5: its server does not follow yet");
    assert!(left.is_some() && left < news.find("the server of archive 1 is open"), "{news}");
}

#[test]
fn an_operator_has_a_standby_copied_that_follows_and_once() {
    let mut play = running(WhenAlone::Degrade);
    let discard =
        |archive| DiscardData { database: SHOP.into(), archive: ArchiveId(archive), why: "a damaged page".to_owned() };
    let refused = play.does(Role::Operator, Command::DiscardData(discard(2)));
    assert!(matches!(refused, Outcome::Refused(Refusal::StillCounts(_))), "{refused:?}");
    assert_eq!(play.does(Role::Operator, Command::DiscardData(discard(3))), Outcome::Changed);
    play.settle();
    let expected = "\
the data on archive 3 is given up and may be overwritten: a damaged page
the data of archive 3 may be overwritten, permission 3: an operator gave up its data
the data of archive 3 is whole; permission 3 is spent
";
    assert_eq!(play.news(), expected);
}
