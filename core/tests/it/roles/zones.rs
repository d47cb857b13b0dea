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

/// The words of the audit trail about the sync set, after a change of the zones.
fn exchanges(mut play: Play, zones: &[&str]) -> Vec<String> {
    play.news();
    play.zones(zones);
    play.settle();
    let (news, set) = (play.news(), ["joins", "left"]);
    let changes = news.lines().filter(|line| set.iter().any(|word| line.contains(word)));
    changes.map(|line| line.split(" the sync set").next().unwrap().to_owned()).collect()
}

#[test]
fn one_server_at_a_time_is_exchanged() {
    let in_one_zone = || Play::of(&["-", "-", "-", "-"], 1, None);
    let once = ["archive 3 joins", "archive 2 left"];
    assert_eq!(
        exchanges(in_one_zone(), &["a", "a", "b", "c"]),
        once,
        "the set never has more than one server too many"
    );
    assert_eq!(
        exchanges(in_one_zone(), &["a", "a", "-", "b"]),
        ["archive 4 joins", "archive 2 left"],
        "not the unknown one"
    );
    assert_eq!(exchanges(in_one_zone(), &["a", "b", "c", "c"]), [""; 0]);
    let none_confirms = Play::of(&["-", "-", "-"], 0, None);
    assert_eq!(exchanges(none_confirms, &["a", "a", "b"]), [""; 0]);
}

#[test]
fn a_standby_that_has_not_streamed_for_long_takes_no_place() {
    let mut play = Play::of(&["-", "-", "-"], 1, None);
    play.unsteady = true;
    assert_eq!(exchanges(play, &["a", "a", "b"]), [""; 0]);
    let mut play = Play::of(&["a", "a", "b"], 1, None);
    play.unsteady = true;
    play.exits(2, ExitReason::PodGone);
    play.settle();
    assert_eq!(play.set(), [0, 1], "one that is needed does not wait");
}

#[test]
fn a_member_that_is_away_leaves_before_one_that_shares_a_zone() {
    let mut play = Play::of(&["-", "-", "-"], 1, None);
    play.zones(&["a", "a", "b"]);
    play.until("archive 3 is in the sync set");
    play.exits(2, ExitReason::PodGone);
    play.silent_ms = 1_500;
    play.settle();
    assert_eq!(play.set(), [0, 1], "it is not known to be lost yet");
}

#[test]
fn a_switchover_without_a_target_goes_to_the_preferred_zone() {
    let mut play = Play::of(&["a", "b", "c", "d"], 1, Some("d"));
    assert_eq!(play.set(), [3, 0]);
    play.settings().preferred_zone = Some("c".to_owned());
    play.settle();
    assert_eq!(play.set(), [3, 0], "a preference alone moves nothing");
    play.switchover(None);
    play.settle();
    assert_eq!(play.set()[0], 2, "it joins before the primary stands down");
}

#[test]
fn what_the_loss_of_a_zone_means_is_known() {
    let zones = |play: &Play| {
        let survival = play.domain.survival(&SHOP.into(), play.domain.replicated(&SHOP.into()).unwrap()).unwrap();
        survival.zones.iter().map(|(zone, loss)| format!("{zone}: {loss:?}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(zones(&Play::of(&["a", "a", "b"], 1, None)), "a: Continues");
    assert_eq!(zones(&Play::of(&["a", "b", "a", "b"], 1, None)), "a: Continues, b: Continues");
    assert_eq!(zones(&Play::of(&["a", "a", "a"], 1, None)), "", "that is all of them");
    assert_eq!(zones(&Play::of(&["a", "b", "c"], 1, None)), "", "that is one pod each");
    let mut crowded = Play::of(&["-", "-", "-"], 1, None);
    crowded.zones(&["a", "a", "b"]);
    assert_eq!(zones(&crowded), "a: Loses", "it is not spread yet");
    assert_eq!(zones(&Play::of(&["a", "b", "b"], 0, None)), "b: Continues");
    assert_eq!(zones(&Play::of(&["a", "a", "b"], 0, None)), "a: Loses");
}

#[test]
fn of_spares_in_new_zones_that_in_the_preferred_zone_joins() {
    assert_eq!(Play::of(&["a", "b", "c", "d"], 1, Some("a")).set(), [0, 1]);
    let mut play = Play::of(&["a", "b", "c", "d"], 1, Some("a"));
    play.settings().preferred_zone = Some("d".to_owned());
    play.exits(1, ExitReason::PodGone);
    play.settle();
    assert_eq!(play.set(), [0, 3]);
}

#[test]
fn of_members_in_different_zones_one_outside_the_preferred_zone_leaves() {
    let mut play = Play::of(&["a", "b", "c"], 2, Some("c"));
    assert_eq!(play.set(), [2, 0, 1]);
    let settings = play.settings();
    (settings.synchronous, settings.preferred_zone) = (1, Some("b".to_owned()));
    play.settle();
    assert_eq!(play.set(), [2, 1]);
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
    assert_eq!(zone(|about| about.zone = Some(String::new())), None, "an empty label says nothing");
}

#[test]
fn a_zone_that_was_not_read_is_learned_with_the_next_session() {
    let mut play = Play::of(&["-", "-", "-"], 1, None);
    let zone = |play: &Play| play.domain.processes[&play.servers[&1].process].zone().map(str::to_owned);
    let registers = |play: &mut Play, read: Option<&str>| {
        play.lose(1);
        let process = play.servers[&1].process;
        let nonce = play.domain.processes[&process].identity.nonce;
        let mut asked = play.registration(1, nonce, Some(process));
        (asked.connection, asked.about.zone) = (play.domain.index, read.map(str::to_owned));
        play.does(Role::Agent, Command::RegisterProcess(Box::new(asked)));
        zone(play)
    };
    assert_eq!(registers(&mut play, Some("a")).as_deref(), Some("a"));
    assert_eq!(registers(&mut play, None).as_deref(), Some("a"), "one that cannot be read stays");
    let subject = Subject::Process(play.servers[&1].process);
    let told = play.domain.audit.of(&subject).map(|record| record.event.to_string());
    let told: Vec<String> = told.filter(|text| text.contains("zone")).collect();
    assert_eq!(told, ["its pod is in zone a"]);
}
