//! Volumes that are not what they were.

use super::*;

impl Play {
    /// The wrapper of a pod says what is on its volume.
    fn reports_data(&mut self, ordinal: u32) {
        let report = self.report(ordinal);
        for command in self.domain.duties(self.servers[&ordinal].process, SessionNumber(1), &report) {
            self.changes(Role::Agent, command);
        }
    }

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
    play.reports_data(2);
    play.starts_with(2, Data::Initialized { system: SystemId(78), highest: Generation(1) });
    play.reports_data(2);
    assert_eq!(waits(&play), ["data_not_adopted"]);
    let assigned = play.domain.assignment(play.servers[&2].process, None).unwrap();
    assert!(!assigned.may_start, "{assigned:?}");
    play.settle();
    assert_eq!(waits(&play), ["data_not_adopted"], "no pod makes the first data");
}

/// A generation is a timeline number, and each number between needs a file.
#[test]
fn a_volume_of_another_system_says_nothing_of_the_generations() {
    let mut play = running(WhenAlone::Degrade);
    play.starts_with(2, Data::Initialized { system: SystemId(99), highest: Generation(5_000) });
    play.settle();
    assert_eq!(waits(&play), ["data_not_adopted"]);
    assert_eq!(play.switchover(Some(2)), "Changed");
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 2"), "{news}");
}
