//! Zones: which server is the first primary, which ones confirm, and which one takes over.

use super::*;

impl Play {
    /// The zones of pods, from the first ordinal on; `-`: not known.
    fn zones(&mut self, zones: &[&str]) {
        for (ordinal, zone) in (0..).zip(zones) {
            let process = self.servers[&ordinal].process;
            let about = &mut self.domain.processes.get_mut(&process).unwrap().about;
            about.zone = (*zone != "-").then(|| (*zone).to_owned());
        }
    }

    /// The sync set, the primary first: ordinals.
    fn set(&self) -> Vec<u64> {
        let record = self.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap();
        let others = record.sync_set.iter().filter(|archive| **archive != record.primary);
        std::iter::once(&record.primary).chain(others).map(|archive| archive.0 - 1).collect()
    }

    /// The sync set once all is settled: with pods in these zones, this number of standbys that confirm, and this preferred zone.
    fn of(zones: &[&str], synchronous: u32, preferred: Option<&str>) -> Self {
        let mut play = Self::new(WhenAlone::Degrade);
        for ordinal in 3..u32::try_from(zones.len()).unwrap() {
            play.starts(ordinal);
        }
        play.zones(zones);
        let settings = play.settings();
        settings.synchronous = synchronous;
        settings.replicas = u32::try_from(zones.len()).unwrap();
        settings.failover = FailoverMode::Automatic;
        settings.preferred_zone = preferred.map(str::to_owned);
        play.settle();
        play
    }
}

#[test]
fn the_set_is_spread_over_zones() {
    let set = |zones: &[&str], synchronous| Play::of(zones, synchronous, None).set();
    assert_eq!(set(&["a", "b", "c"], 1), [0, 1]);
    assert_eq!(set(&["a", "a", "b"], 1), [0, 2]);
    assert_eq!(set(&["a", "a", "b", "b", "c"], 2), [0, 2, 4]);
    assert_eq!(set(&["a", "a", "a"], 1), [0, 1], "there is only one");
    assert_eq!(set(&["-", "-", "-"], 1), [0, 1], "none is known");
    assert_eq!(set(&["a", "a", "b"], 2), [0, 1, 2], "all are needed");
}

#[test]
fn the_first_primary_is_in_the_preferred_zone() {
    let set = |preferred| Play::of(&["a", "b", "b"], 1, preferred).set();
    assert_eq!(set(None), [0, 1]);
    assert_eq!(set(Some("b")), [1, 0]);
    assert_eq!(set(Some("nowhere")), [0, 1]);
}

#[test]
fn a_member_that_shares_a_zone_is_exchanged_for_one_that_does_not() {
    let mut play = Play::of(&["-", "-", "-"], 1, None);
    assert_eq!(play.set(), [0, 1]);
    play.news();
    play.zones(&["a", "a", "b"]);
    play.settle();
    let expected = "\
archive 3 joins the sync set, version 4
archive 3 is in the sync set: version 4 is in force
archive 2 left the sync set, version 5: it shares its zone with another server of the set, and enough others confirm
";
    assert_eq!((play.news().as_str(), play.set()), (expected, vec![0, 2]));
    play.zones(&["a", "b", "a"]);
    play.settle();
    assert_eq!(play.set(), [0, 1]);
}

#[test]
fn a_switchover_without_a_target_goes_to_the_preferred_zone() {
    let mut play = Play::of(&["a", "b", "c"], 1, Some("c"));
    assert_eq!(play.set(), [2, 0]);
    play.settings().preferred_zone = Some("b".to_owned());
    play.settle();
    assert_eq!(play.set(), [2, 0], "a preference alone moves nothing");
    play.switchover(None);
    play.settle();
    assert_eq!(play.set()[0], 1, "it joins before the primary stands down");
}

#[test]
fn a_primary_that_is_lost_or_ends_is_followed_by_a_member_in_the_preferred_zone() {
    let lost = |end: fn(&mut Play)| {
        let mut play = Play::of(&["a", "b", "c"], 2, Some("a"));
        assert_eq!(play.set(), [0, 1, 2]);
        play.settings().preferred_zone = Some("c".to_owned());
        end(&mut play);
        play.settle();
        play.set()[0]
    };
    assert_eq!(lost(|play| play.exits(0, ExitReason::Exited("killed".to_owned()))), 2);
    let silent = |play: &mut Play| {
        play.lose(0);
        play.servers.get_mut(&1).unwrap().unheard = true;
        play.servers.get_mut(&2).unwrap().unheard = true;
    };
    assert_eq!(lost(silent), 2);
}

#[test]
fn the_zone_of_a_pod_comes_before_that_of_its_wrapper() {
    let mut play = Play::new(WhenAlone::Degrade);
    let process = play.servers[&0].process;
    let mut zone = |change: fn(&mut About)| {
        let process = play.domain.processes.get_mut(&process).unwrap();
        change(&mut process.about);
        process.zone().map(str::to_owned)
    };
    assert_eq!(zone(|_| {}), None);
    assert_eq!(zone(|about| drop(about.labels.insert("zone".to_owned(), "w".to_owned()))).as_deref(), Some("w"));
    assert_eq!(zone(|about| about.zone = Some("p".to_owned())).as_deref(), Some("p"));
}
