//! A primary that has ended or is lost, where the agents begin a failover.

use super::*;
use kaa_core::domain::database::Incarnation;
use kaa_core::domain::process::Tombstone;
use kaa_core::domain::replicated::Alarms;
use kaa_core::replication::{NotLost, Survival};

/// As [`running`], with `kaa.dev/failover: automatic`.
pub(super) fn automatic() -> Play {
    with(FailoverMode::Automatic)
}

/// The same, where both standbys confirm each commit.
pub(super) fn of_three() -> Play {
    let mut play = automatic();
    play.settings().synchronous = 2;
    play.settle();
    play
}

fn with(mode: FailoverMode) -> Play {
    let mut play = running(WhenAlone::Degrade);
    play.settings().failover = mode;
    play
}

impl Play {
    pub(super) fn hears(&mut self, ordinal: u32, hears: bool) {
        self.servers.get_mut(&ordinal).unwrap().unheard = !hears;
    }

    /// One of two standbys does not hear a primary that no agent hears.
    pub(super) fn is_silent(&mut self) {
        self.lose(0);
        self.hears(2, false);
        self.settle();
    }

    /// The server of the primary ends, and its wrapper stays.
    pub(super) fn ends_here(&mut self, ordinal: u32, generation: u64) {
        let server = self.servers.get_mut(&ordinal).unwrap();
        (server.ended, server.stand) = (Some((Generation(generation), Ended::Failed)), Stand::Fenced);
    }

    /// The resync leader removes a process whose pod is gone. Without its evidence here.
    fn is_gone(&mut self, ordinal: u32) {
        let id = self.servers[&ordinal].process;
        let process = self.domain.processes.remove(&id).unwrap();
        let (incarnation, at) = (Incarnation::default(), self.domain.time);
        let tombstone = Tombstone { process, incarnation, at, reason: ExitReason::PodGone, exit_code: None };
        self.domain.tombstones.insert(id, tombstone);
    }

    /// What waits, in words.
    pub(super) fn said_waits(&self) -> Vec<String> {
        let replicated = self.domain.replicated(&SHOP.into()).unwrap();
        waits::of(&self.domain, &SHOP.into(), replicated, self.domain.time).iter().map(ToString::to_string).collect()
    }

    /// Which losses are survived.
    fn survival(&self) -> Survival {
        self.domain.survival(&SHOP.into(), self.domain.replicated(&SHOP.into()).unwrap()).unwrap()
    }

    /// Why no failover begins.
    pub(super) fn holds(&self) -> String {
        let found = self.domain.lost_primary(self.domain.replicated(&SHOP.into()).unwrap(), self.domain.time);
        found.err().map_or("nothing".to_owned(), |why| why.to_string())
    }

    /// The lease and the wait of the primary.
    fn lease(&self, ordinal: u32) -> (u64, u64) {
        match self.domain.assignment(self.servers[&ordinal].process, None).map(|it| it.what) {
            Some(Wanted::Primary { lease_ms, wait_ms, .. }) => (lease_ms, wait_ms),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_primary_that_no_agent_and_no_standby_hears_is_replaced() {
    let mut play = automatic();
    play.lose(0);
    play.settle();
    assert_eq!(play.holds(), "the server of archive 2 may still hear it");
    play.hears(1, false);
    play.settle();
    let expected = "\
the server of archive 2 does not hear the primary of generation 2; it has 0/1
generation 3 granted to archive 2, after archive 1, sync set 1, 2: failover: neither an agent nor the server of archive 2 hears the primary
archive 2 holds data of system 77, up to generation 3
generation 3: the server of archive 2 was promoted; its log continues that of generation 2 at 0/3000000
archive 1 left the sync set, version 5: its server does not follow yet
generation 3: the server of archive 2 is open
archive 3 joins the sync set, version 6
archive 3 is in the sync set: version 6 is in force
";
    assert_eq!(play.news(), expected);
    assert_eq!(play.lease(1), (2_500, 2_625), "the old one may serve clients until its lease is over");
}

#[test]
fn a_primary_that_an_agent_or_a_standby_hears_stays() {
    let mut play = automatic();
    play.hears(1, false);
    play.settle();
    assert_eq!(play.holds(), "an agent hears the primary");
    play.hears(1, true);
    play.lose(0);
    play.settle();
    assert_eq!(play.news(), "", "what decides nothing is not said");
    play.returns(0);
    play.settle();
    assert_eq!((play.news().as_str(), play.holds().as_str()), ("", "an agent hears the primary"));
}

#[test]
fn a_word_of_an_earlier_session_is_void() {
    let mut play = of_three();
    play.lose(0);
    play.hears(1, false);
    play.settle();
    assert_eq!(play.holds(), "the server of archive 3 may still hear it");
    play.lose(1);
    play.returns(1);
    assert_eq!(play.holds(), "the server of archive 2 or 3 may still hear it");
    play.settle();
    assert_eq!(play.holds(), "the server of archive 3 may still hear it", "it comes again");
}

#[test]
fn all_members_have_to_miss_it_or_one_of_them_for_longer_than_a_lease() {
    let mut play = of_three();
    play.is_silent();
    assert_eq!(play.holds(), "the server of archive 2 may still hear it");
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    let after = |ms| play.domain.lost_primary(replicated, Millis(play.domain.time.0 + ms));
    assert!(matches!(after(2_000), Err(NotLost::StillHeard(_))));
    assert_eq!(after(2_500), Ok(vec![ArchiveId(3)]), "the primary waits for it, so it has closed");
}

/// As where it is deleted by force while its node is cut off.
#[test]
fn a_primary_whose_pod_is_gone_counts_as_away_since_it_was_lost() {
    let mut play = of_three();
    play.is_silent();
    let removed = play.domain.time.0 + 1_000;
    play.ahead_ms += 1_000;
    play.is_gone(0);
    let after =
        |play: &Play, ms| play.domain.lost_primary(play.domain.replicated(&SHOP.into()).unwrap(), Millis(removed + ms));
    assert!(matches!(after(&play, 1_000), Err(NotLost::StillHeard(_))));
    assert_eq!(after(&play, 1_500), Ok(vec![ArchiveId(3)]), "a lease after the loss");
    play.hears(1, false);
    play.reports(1);
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    let alarms = Alarms { count: 9, base_ms: 60_000, last: Some(play.domain.time), suspect: None };
    database.replicated.as_mut().unwrap().alarms = alarms;
    assert!(matches!(after(&play, 57_000), Err(NotLost::HeldBack { .. })));
    assert!(after(&play, 59_000).is_ok(), "the first pause after the loss");
}

/// Only a failover on silence may turn out to be for nothing.
#[test]
fn an_old_primary_that_comes_back_counts_only_if_it_was_thought_to_be_lost() {
    let alarms = |play: &Play| play.domain.replicated(&SHOP.into()).unwrap().alarms.count;
    let mut silent = automatic();
    silent.lose(0);
    silent.hears(1, false);
    silent.settle();
    silent.returns(0);
    assert_eq!(alarms(&silent), 1);
    let mut ended = automatic();
    ended.ends_here(0, 2);
    let mut asked = automatic();
    assert_eq!(asked.switchover(Some(2)), "Changed");
    for mut play in [ended, asked] {
        play.settle();
        assert!(play.news().contains("generation 3 granted to archive 2"));
        play.lose(0);
        play.returns(0);
        assert_eq!(alarms(&play), 0);
    }
}

#[test]
fn the_member_with_the_most_log_takes_over() {
    let mut play = of_three();
    play.lose(0);
    for (ordinal, end) in [(1, 70), (2, 90)] {
        let (process, session) = (play.servers[&ordinal].process, play.session(ordinal));
        let (generation, silent) = (Generation(2), Some(Position(end)));
        let said = kaa_core::domain::change::ReportSilence { process, session, generation, silent };
        assert_eq!(play.does(Role::Agent, Command::ReportSilence(said)), Outcome::Changed);
        play.hears(ordinal, false);
    }
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 3 granted to archive 3, after archive 1, sync set 1, 2, 3"), "{news}");
}

#[test]
fn another_server_takes_over_at_once_from_one_that_has_ended() {
    let mut play = automatic();
    play.ends_here(0, 2);
    play.settle();
    let news = play.news();
    let granted = "generation 3 granted to archive 2, after archive 1, sync set 1, 2: failover: the server of the primary has ended";
    assert!(news.contains(granted), "{news}");
    assert_eq!(play.lease(1), (2_500, 0), "nothing is waited for");
    // The same if its container has ended.
    let mut play = automatic();
    play.exits(0, ExitReason::ContainerEnded);
    play.settle();
    assert!(play.news().contains(granted));
    assert_eq!(play.lease(1).1, 0);
}

#[test]
fn that_a_pod_is_gone_does_not_prove_that_its_server_has_ended() {
    let mut play = automatic();
    play.exits(0, ExitReason::PodGone);
    play.settle();
    assert!(!play.news().contains("granted"), "lost is not dead");
    play.hears(1, false);
    play.settle();
    assert!(play.news().contains("generation 3 granted to archive 2"));
    assert_eq!(play.lease(1).1, 2_625);
}

#[test]
fn a_winner_that_is_lost_before_it_opens_is_replaced_and_the_lease_before_it_is_waited_for() {
    let mut play = of_three();
    play.lose(0);
    play.hears(1, false);
    play.hears(2, false);
    while play.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap().generation == Generation(2) {
        play.round();
    }
    play.exits(1, ExitReason::Exited("killed".to_owned()));
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 4 granted to archive 3, after archive 2, sync set 1, 2, 3"), "{news}");
    assert_eq!(play.lease(2).1, 2_625, "archive 1's may not be over");
}

/// Its own server is the only one that is left with all commits.
#[test]
fn a_member_whose_log_has_more_stays_in_the_set_of_a_primary_that_is_lost() {
    let mut play = of_three();
    play.lose(0);
    play.hears(1, false);
    play.hears(2, false);
    while !play
        .domain
        .replicated(&SHOP.into())
        .unwrap()
        .primary
        .as_ref()
        .is_some_and(|it| it.keeps_lease && it.opened.is_none())
    {
        play.round();
    }
    play.servers.get_mut(&2).unwrap().diverged = true;
    play.lose(1);
    play.settle();
    let news = play.news();
    assert!(news.contains("generation 4 granted to archive 3, after archive 2"), "{news}");
}

/// What it has may be the best that is left.
#[test]
fn a_spare_is_not_overwritten_from_a_primary_that_is_lost() {
    let mut play = with(FailoverMode::Manual);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    play.lose(0);
    play.servers.get_mut(&2).unwrap().diverged = true;
    play.starts(2);
    play.settle();
    let news = play.news();
    assert!(!news.contains("may be overwritten"), "{news}");
    play.returns(0);
    play.settle();
    let news = play.news();
    assert!(news.contains("the data of archive 3 may be overwritten"), "{news}");
}

#[test]
fn the_domain_vouches_for_the_process_that_has_the_current_generation() {
    let mut play = automatic();
    let old = play.servers[&0].process;
    let vouched = |play: &Play, process, generation| play.domain.leads(process, Generation(generation));
    let primaries = |play: &Play| play.domain.primaries_in_session().map(|(_, it)| it.id).collect::<Vec<_>>();
    assert_eq!([1, 2, 3].map(|generation| vouched(&play, old, generation)), [false, true, false]);
    assert!(!vouched(&play, play.servers[&1].process, 2), "a standby");
    assert_eq!(primaries(&play), [old]);
    play.lose(0);
    assert!(vouched(&play, old, 2), "no other one was granted");
    assert_eq!(primaries(&play), []);
    play.hears(1, false);
    play.settle();
    assert_eq!([2, 3].map(|generation| vouched(&play, old, generation)), [false, false]);
    assert!(vouched(&play, play.servers[&1].process, 3));
}

/// No entry may come meanwhile: then the time of the domain stands still.
#[test]
fn a_winner_that_is_lost_is_replaced_although_nothing_else_happens() {
    let mut play = of_three();
    play.lose(0);
    play.hears(1, false);
    play.hears(2, false);
    while play.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap().generation == Generation(2) {
        play.round();
    }
    play.lose(1);
    assert_eq!(play.holds(), "it was granted the generation and may be about to be promoted");
    let planned = |ms| grants::plan(&play.domain, Millis(play.domain.time.0 + ms), &Timing::default()).len();
    assert_eq!([2_499, 2_500].map(planned), [0, 1]);
}

#[test]
fn a_word_that_comes_late_decides_nothing() {
    let mut play = automatic();
    let (process, session) = (play.servers[&1].process, play.session(1));
    let (generation, silent) = (Generation(2), Some(Position(1)));
    let said = kaa_core::domain::change::ReportSilence { process, session, generation, silent };
    assert_eq!(play.does(Role::Agent, Command::ReportSilence(said)), Outcome::Unchanged, "an agent hears the primary");
    play.lose(0);
    assert!(play.holds().contains("archive 2 may still hear it"), "{}", play.holds());
}

#[test]
fn a_request_for_a_switchover_does_not_hold_up_a_failover() {
    let mut play = automatic();
    assert_eq!(play.switchover(Some(3)), "Changed");
    play.exits(2, ExitReason::PodGone);
    play.exits(0, ExitReason::ContainerEnded);
    play.settle();
    let news = play.news();
    assert!(
        news.contains("granted to archive 2, after archive 1, sync set 1, 2: failover: the server of the"),
        "{news}"
    );
}

#[test]
fn grants_that_come_to_nothing_are_spaced() {
    let mut play = automatic();
    for ordinal in 0..3 {
        play.servers.get_mut(&ordinal).unwrap().memory.taken_up = Generation(99);
    }
    play.ends_here(0, 2);
    for _ in 0..100 {
        play.round();
    }
    let generation = play.domain.replicated(&SHOP.into()).unwrap().record.as_ref().unwrap().generation;
    assert!(
        Generation(20) < generation && generation < Generation(29),
        "a hundred rounds in {} ms: {generation}",
        play.domain.time.0
    );
    let planned = |ms| grants::plan(&play.domain, Millis(play.domain.time.0 + ms), &Timing::default()).len();
    assert_eq!([0, 60_000].map(planned), [0, 1]);
    let said = play.said_waits();
    let why =
        "by itself: the servers of the last grants ended soon after they were open; the next grant follows at 1970";
    assert!(said[0].contains(why), "{said:?}");
}

#[test]
fn two_servers_that_give_up_their_grants_do_not_keep_them_from_a_third() {
    let mut play = of_three();
    for ordinal in 0..2 {
        play.servers.get_mut(&ordinal).unwrap().memory.taken_up = Generation(99);
    }
    play.ends_here(0, 2);
    play.settle();
    let news = play.news();
    let grants: Vec<&str> = news.lines().filter(|line| line.contains("granted to")).collect();
    assert_eq!(grants.len(), 2, "{grants:?}");
    assert!(news.contains("generation 4: the server of archive 3 is open"), "{news}");
}

#[test]
fn what_holds_back_a_grant_after_an_end_is_said_although_the_wrapper_is_connected() {
    let mut play = with(FailoverMode::Paused);
    play.ends_here(0, 2);
    play.settle();
    let ended = "the server of the primary, on archive 1, has ended";
    let expected = format!(
        "{ended}; nothing would be lost with archive 2. No failover begins by itself: kaa.dev/failover is paused"
    );
    assert_eq!(play.said_waits()[0], expected);
    play.exits(1, ExitReason::PodGone);
    play.settle();
    let alone =
        ", and no other archive of the sync set has a server. It does not return by itself: kaa.dev/failover is paused";
    assert_eq!(play.said_waits()[0], format!("{ended}{alone}"));
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    let replicated = database.replicated.as_mut().unwrap();
    replicated.uncertain = Some("entries were lost".to_owned());
    replicated.settings.as_mut().unwrap().failover = FailoverMode::Manual;
    let uncertain =
        ", and no other archive of the sync set has a server. It does not return by itself: the record may be wrong";
    assert_eq!(play.said_waits()[1], format!("{ended}{uncertain}"));
}

/// A grant is about to be made.
#[test]
fn a_primary_that_has_ended_and_is_about_to_be_granted_again_is_not_held() {
    let mut play = with(FailoverMode::Manual);
    play.ends_here(0, 2);
    let (process, session) = (play.servers[&0].process, play.session(0));
    let report = play.report(0);
    for command in play.domain.duties(process, session, &report) {
        play.changes(Role::Agent, command);
    }
    assert_eq!(play.said_waits()[0], "the server on archive 1 is to be the primary, and does not let clients in yet");
}

#[test]
fn a_failover_for_nothing_holds_the_next_one_back() {
    let mut play = automatic();
    play.lose(0);
    play.hears(1, false);
    play.settle();
    assert!(play.news().contains("generation 3: the server of archive 2 is open"));
    play.hears(1, true);
    // It was there all the time: it ends, and follows.
    play.servers.get_mut(&0).unwrap().stand = Stand::Down;
    play.returns(0);
    play.settle();
    play.news();
    play.lose(1);
    play.hears(0, false);
    play.hears(2, false);
    play.settle();
    assert!(play.holds().starts_with("the last failover found a primary that ran"), "{}", play.holds());
    let replicated = play.domain.replicated(&SHOP.into()).unwrap();
    assert!(play.domain.lost_primary(replicated, Millis(play.domain.time.0 + 60_000)).is_ok());
}

#[test]
fn who_begins_a_failover_is_declared() {
    for mode in [FailoverMode::Manual, FailoverMode::Paused] {
        let mut play = with(mode);
        play.lose(0);
        play.hears(1, false);
        play.settle();
        assert_eq!(play.holds(), format!("kaa.dev/failover is {mode}"));
        assert!(!play.news().contains("granted"));
        let replicated = play.domain.replicated(&SHOP.into()).unwrap();
        let said: Vec<_> = waits::of(&play.domain, &SHOP.into(), replicated, play.domain.time)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = "the server of the primary, on archive 1, is away; nothing would be lost with archive 2. No failover begins \
            by itself: kaa.dev/failover is ";
        assert_eq!(said[0], format!("{expected}{mode}"));
        // Its own archive returns only if nothing is paused.
        play.exits(0, ExitReason::Exited("killed".to_owned()));
        play.starts(0);
        play.settle();
        let returned = play.news().contains("generation 3 granted to archive 1");
        assert_eq!(returned, mode == FailoverMode::Manual);
    }
}

#[test]
fn a_wrapper_that_keeps_no_lease_is_not_replaced_by_silence_alone() {
    let mut play = automatic();
    let database = play.domain.databases.get_mut(&SHOP.into()).unwrap();
    database.replicated.as_mut().unwrap().primary.as_mut().unwrap().keeps_lease = false;
    play.lose(0);
    play.hears(1, false);
    play.settle();
    assert_eq!(play.holds(), "the wrapper of the primary is too old to keep a lease");
    play.returns(0);
    let survival = play.survival();
    assert!(survival.needs_failover.contains(&[ArchiveId(1)].into()), "{survival:?}");
}

#[test]
fn a_member_that_is_alone_is_not_replaced() {
    let mut play = automatic();
    play.exits(1, ExitReason::PodGone);
    play.exits(2, ExitReason::PodGone);
    play.settle();
    play.lose(0);
    play.settle();
    assert_eq!(play.holds(), "no other archive of the sync set has a server that is connected");
}
