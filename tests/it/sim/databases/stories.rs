//! Single scenarios that a seed seldom produces. Each begins when all is well, and in the end all is well again: no commit is lost, and no
//! reader has seen an old state.

use super::NAME;
use super::faults::{FROM_MS, Fault, Which};
use super::postgres::{Entry, Postgres};
use super::runs::{ADMINS, Play, SERVERS, others};
use super::stream::Told;
use super::wrapper::Wrapper;
use crate::sim::schedule::Action;
use embedded_kubernetes::resource::Kind;
use kaa::clock;
use kaa_core::domain::Domain;
use kaa_core::domain::change::Command;
use kaa_core::domain::ids::{ArchiveId, DatabaseName};
use kaa_core::domain::process::SessionState;
use kaa_core::replication::{Accepted, Assignment, Replication, Timing, Wanted, failover};
use kaa_engine::roles::decisions::Run;
use std::collections::BTreeMap;

/// How long the database may take until all is well, between two faults of a scenario.
const WELL_WITHIN_MS: u64 = 30_000;

impl Play {
    /// A run in which all is well, and no seed's faults follow.
    fn well(seed: u64) -> Self {
        let mut play = Self::begin(seed);
        play.until(FROM_MS);
        play.wait_until_well();
        play
    }

    /// Lets time pass.
    fn run(&mut self, ms: u64) {
        self.until(self.world.now_ms() + ms);
    }

    /// Lets time pass until a condition holds.
    fn wait(&mut self, within_ms: u64, what: &str, holds: impl Fn(&Self) -> bool) {
        let until_ms = self.world.now_ms() + within_ms;
        while !holds(self) {
            assert!(self.world.now_ms() < until_ms, "not within {within_ms} ms: {what}\n{}", self.world.trace.text());
            self.step();
        }
        self.world.trace.line(what);
    }

    fn wait_until_well(&mut self) {
        let until_ms = self.world.now_ms() + WELL_WITHIN_MS;
        while self.world.now_ms() < until_ms && !self.is_well().is_empty() {
            self.run(100);
        }
        assert_eq!(self.is_well(), Vec::<String>::new(), "{}", self.world.trace.text());
    }

    /// Ends the scenario, and checks that nothing went wrong.
    fn end(mut self) {
        self.recover();
        let wrong = self.world.trace.all_wrong();
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), self.world.trace.text());
        drop(self);
        clock::simulate(None);
    }

    fn replication(&self) -> Replication {
        self.record().expect("it has a primary")
    }

    /// Looks at the wrapper of a pod, if it runs.
    fn wrapper<T>(&self, pod: &str, look: impl FnOnce(&mut Wrapper, &mut Postgres) -> T) -> Option<T> {
        let inner = &mut *self.databases.inner();
        let found = inner.wrappers.values_mut().find(|(wrapper, _)| wrapper.pod == pod);
        found.map(|(wrapper, _)| look(wrapper, &mut inner.postgres))
    }

    /// The log on the volume of a pod.
    fn log(&self, pod: &str) -> Vec<Entry> {
        let log = |wrapper: &mut Wrapper, postgres: &mut Postgres| postgres.volume(&wrapper.claim).log.clone();
        self.wrapper(pod, log).expect("its wrapper runs")
    }

    /// What it lacks of what was acknowledged.
    fn lacks(&self, pod: &str) -> Vec<String> {
        let log = self.log(pod);
        self.databases.inner().clients.differences(&log)
    }

    fn archive(&self, pod: &str) -> ArchiveId {
        let found = self.wrapper(pod, |wrapper, _| wrapper.member.as_ref().map(|(_, _, archive)| *archive));
        found.flatten().expect("it is registered")
    }

    /// The pod of the archive that has the current generation.
    fn granted(&self) -> String {
        let primary = self.replication().primary;
        (0..SERVERS).map(|it| format!("{NAME}-{it}")).find(|pod| self.archive(pod) == primary).expect("it has a pod")
    }

    /// What a server was told last.
    fn wanted(&self, pod: &str) -> Option<Assignment> {
        self.wrapper(pod, |wrapper, _| wrapper.wanted.clone()).flatten()
    }

    /// A message of an agent arrives, whenever it was sent.
    fn tell(&self, pod: &str, wanted: Assignment) {
        self.world.trace.line(&format!("{pod} is told {:?}", wanted.what));
        self.wrapper(pod, |wrapper, postgres| wrapper.assigned(wanted, postgres)).expect("its wrapper runs");
    }

    fn set_cut(&self, one: &str, other: &str, cut: bool) {
        self.world.ground.network.set_cut(one, other, cut);
    }

    /// The wrapper of a server stands still, and its server runs.
    fn set_paused(&self, pod: &str, paused: bool) {
        let set = |wrapper: &mut Wrapper, _: &mut Postgres| {
            (wrapper.paused, wrapper.line.lock().unwrap().paused) = (paused, paused);
        };
        self.wrapper(pod, set).expect("its wrapper runs");
    }

    /// An operator has the primary fail over although it may still run. Returns once that was granted.
    fn fail_over(&mut self, to: Option<ArchiveId>) {
        let before = self.replication().generation;
        self.operate(move |domain, database| {
            let accepted = Accepted { may_run: true, ..Accepted::default() };
            let why = "an operator's wish";
            failover(domain, &database, to, accepted, why, &Timing::default()).ok().map(Command::GrantPrimary)
        });
        self.wait(5_000, "a generation was granted", |play| play.replication().generation > before);
    }

    /// The primary is moved to the last server. Returns the two others.
    fn move_to_the_last(&mut self) -> (String, [String; 2]) {
        let last = format!("{NAME}-{}", SERVERS - 1);
        let to = self.archive(&last);
        if self.replication().primary != to {
            self.switchover(Some(to));
            self.wait(WELL_WITHIN_MS, "the primary has moved", |play| play.replication().primary == to);
            self.wait_until_well();
        }
        let others = others(&last);
        (last, others)
    }

    /// No agent hears the primary any more, and the domain knows that. Its standbys follow it: its lease is renewed.
    fn lose_to_agents(&mut self, pod: &str) {
        self.toggle(&Fault::CutAgents(which(pod), 0), true);
        let is_lost = |domain: &Domain| {
            let primary = domain.replicated(&DatabaseName::from(NAME))?.primary.as_ref()?.process;
            Some(domain.processes.get(&primary)?.session.state != SessionState::Live)
        };
        self.wait(10_000, "no agent hears the primary", |play| play.domain(is_lost) == Some(true));
        assert!(self.is_open(pod));
    }

    /// Whether the server of a pod is a primary that lets clients in, as its wrapper knows.
    fn is_open(&self, pod: &str) -> bool {
        self.wrapper(pod, |wrapper, _| wrapper.opened().is_some()).unwrap_or_default()
    }

    /// The primary is cut off from the other servers, and alone. Then it hears one of these again, which joins.
    fn join_after_a_cut(&mut self) -> (String, String) {
        let primary = self.pod(Which::Primary);
        let [one, _] = others(&primary);
        self.toggle(&Fault::CutServers(which(&primary), 0), true);
        self.wait(10_000, "the primary is alone", |play| play.replication().sync_set.len() == 1);
        self.run(500);
        self.set_cut(&primary, &one, false);
        self.wait(10_000, "an archive joins", |play| play.replication().joining.is_some());
        (primary, one)
    }

    /// The machines of these servers stand still until another one is the open primary, and a moment longer.
    fn stand_still_until_another_leads(&mut self, pods: &[&String]) {
        let moves = self.moves;
        pods.iter().for_each(|pod| self.toggle(&Fault::Pause(which(pod), 0), true));
        self.wait(20_000, "another one is open", |play| play.moves > moves);
        self.run(500);
        pods.iter().for_each(|pod| self.toggle(&Fault::Pause(which(pod), 0), false));
    }

    fn is_promoted(&self, pod: &str) -> bool {
        self.wrapper(pod, |wrapper, _| matches!(wrapper.state.run, Run::Primary(_))).unwrap_or_default()
    }
}

fn which(pod: &str) -> Which {
    Which::Ordinal(pod.rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()).expect("a pod of the database"))
}

/// One of two members of the set is cut off from the primary. Before it has left the set, the primary and the other member stand still: it is
/// granted.
#[test]
fn every_member_of_the_set_has_what_was_acknowledged() {
    let mut play = Play::well(2);
    let primary = play.pod(Which::Primary);
    let [one, other] = others(&primary);
    play.set_cut(&primary, &one, true);
    play.run(1_200);
    play.stand_still_until_another_leads(&[&primary, &other]);
    assert_eq!(play.granted(), one);
    play.end();
}

/// The primary is alone, and another archive begins to join. Before it has all that was acknowledged, it is cut off, and then the primary
/// stands still.
#[test]
fn an_archive_that_joins_counts_once_it_has_all_that_was_acknowledged() {
    let mut play = Play::well(0);
    let (primary, one) = play.join_after_a_cut();
    play.set_cut(&primary, &one, true);
    play.run(800);
    assert_ne!(play.lacks(&one), Vec::<String>::new());
    assert!(!play.replication().sync_set.contains(&play.archive(&one)));
    play.toggle(&Fault::Pause(which(&primary), 0), true);
    play.run(12_000);
    assert_eq!(play.moves, 0);
    play.toggle(&Fault::Pause(which(&primary), 0), false);
    play.end();
}

/// The primary was alone. The archive that joins is cut off the moment the primary says that it waits for it, before that archive has what is
/// written then. The primary stands still, and that archive is granted.
#[test]
fn an_archive_that_has_joined_has_what_is_acknowledged_from_then_on() {
    let mut plays = 0;
    for seed in 0.. {
        let mut play = Play::well(seed);
        let (primary, one) = play.join_after_a_cut();
        let version = play.replication().version.0;
        let in_force =
            |wrapper: &mut Wrapper, _: &mut Postgres| wrapper.line.lock().unwrap().said.replica.in_force == version;
        // It may take too long to catch up: then it does not join yet.
        play.wait(10_000, "the primary waits for it, or it does not join", |play| {
            play.wrapper(&primary, in_force) == Some(true) || play.replication().version.0 > version
        });
        if play.replication().version.0 > version {
            assert!(seed < 12, "it has joined in {plays} of {seed} runs");
            continue;
        }
        play.set_cut(&primary, &one, true);
        play.run(800);
        play.stand_still_until_another_leads(&[&primary]);
        assert_eq!(play.granted(), one);
        play.end();
        plays += 1;
        if plays == 4 {
            break;
        }
    }
}

/// What the primary was told while it was alone arrives again when it has to wait for another archive. No message gets through to that one,
/// and then the primary stands still.
#[test]
fn an_older_rule_that_arrives_late_is_not_obeyed() {
    let mut play = Play::well(0);
    let primary = play.pod(Which::Primary);
    let is_alone =
        |wanted: &Assignment| matches!(&wanted.what, Wanted::Primary { rule, .. } if rule.members.is_empty());
    play.toggle(&Fault::CutServers(which(&primary), 0), true);
    play.wait(10_000, "it is told to be alone", |play| play.wanted(&primary).as_ref().is_some_and(is_alone));
    let late = play.wanted(&primary).expect("it was told something");
    play.toggle(&Fault::CutServers(which(&primary), 0), false);
    play.wait_until_well();
    play.toggle(&Fault::CutServers(which(&primary), 0), true);
    play.tell(&primary, late.clone());
    play.run(1_200);
    assert_eq!(play.wanted(&primary), Some(late));
    play.stand_still_until_another_leads(&[&primary]);
    play.end();
}

/// The server of a primary ends that no agent hears, so that it is not told that its generation is over.
#[test]
fn a_generation_is_taken_up_once() {
    for seed in 0..4 {
        let mut play = Play::well(seed);
        let primary = play.pod(Which::Primary);
        let before = play.replication().generation;
        play.toggle(&Fault::CutAgents(which(&primary), 0), true);
        play.act(&Fault::Crash(which(&primary)));
        play.wait(20_000, "another one is granted", |play| play.replication().generation > before);
        let wanted = play.wanted(&primary).map(|wanted| wanted.what);
        assert!(matches!(&wanted, Some(Wanted::Primary { rule, .. }) if rule.generation == before), "{wanted:?}");
        play.run(4_000);
        play.end();
    }
}

/// A server that was overwritten is in the sync set again when it ends, and when the permission arrives once more.
#[test]
fn a_permission_that_was_returned_is_used_no_more() {
    let mut play = Play::well(2);
    let [one, _] = others(&play.pod(Which::Primary));
    // Its second start: a snapshot of its volume is from before that.
    play.act(&Fault::Kill(which(&one)));
    play.run(1_000);
    play.wait_until_well();
    play.act(&Fault::SetBack(which(&one)));
    assert_eq!(play.set_back.len(), 1);
    let permitted =
        |wanted: &Assignment| matches!(wanted.what, Wanted::Follow { permission: Some(_), discard: true, .. });
    play.wait(20_000, "it may be overwritten", |play| play.wanted(&one).as_ref().is_some_and(permitted));
    let late = play.wanted(&one).expect("it was told something");
    play.set_back.clear();
    play.wait_until_well();
    assert!(play.replication().sync_set.contains(&play.archive(&one)));
    play.act(&Fault::Crash(which(&one)));
    play.run(40);
    let before = play.log(&one);
    play.tell(&one, late);
    for _ in 0..20 {
        play.run(20);
        assert!(play.log(&one).starts_with(&before), "what counts is overwritten");
    }
    play.end();
}

/// The wrapper of the winner stands still when it is granted, while its server follows the old primary. That one does not hear of the grant.
#[test]
fn a_winner_waits_from_its_stop_and_not_from_its_grant() {
    let mut play = Play::well(0);
    let primary = play.pod(Which::Primary);
    play.lose_to_agents(&primary);
    play.fail_over(None);
    let winner = play.granted();
    play.set_paused(&winner, true);
    play.run(2_000);
    let follows = |wrapper: &mut Wrapper, _: &mut Postgres| {
        matches!(wrapper.state.run, Run::Follows { .. }) && wrapper.under.is_none()
    };
    assert!(play.wrapper(&winner, follows) == Some(true) && play.is_open(&primary));
    play.set_paused(&winner, false);
    play.run(6_000);
    assert_eq!(play.moves, 1);
    play.end();
}

/// Commits wait for a standby that is cut off, so that the primary needs the word of the domain. It hears the last one when another primary is
/// open.
#[test]
fn the_word_of_the_domain_renews_a_lease_from_the_question_on() {
    let mut play = Play::well(3);
    let primary = play.pod(Which::Primary);
    play.toggle(&Fault::CutServers(which(&primary), 0), true);
    let asks = |wrapper: &mut Wrapper, _: &mut Postgres| wrapper.line.lock().unwrap().said.asks != 0;
    play.wait(2_000, "the domain is asked", |play| play.wrapper(&primary, asks) == Some(true));
    // What agents say is received, and not read.
    play.toggle(&Fault::Pause(which(&primary), 0), true);
    play.wrapper(&primary, |wrapper, _| wrapper.line.lock().unwrap().paused = false);
    play.run(700);
    play.toggle(&Fault::Isolate(which(&primary), 0), true);
    play.wait(20_000, "another one is open", |play| play.moves == 1);
    play.run(500);
    let vouched = |wrapper: &mut Wrapper, _: &mut Postgres| {
        wrapper.line.lock().unwrap().told.iter().any(|told| matches!(told, Told::Vouched { .. }))
    };
    assert_eq!(play.wrapper(&primary, vouched), Some(true));
    play.toggle(&Fault::Pause(which(&primary), 0), false);
    play.run(2_500);
    play.end();
}

/// A primary that no agent hears keeps its lease. The next one ends at once; the one after that waits for the lease of the first.
#[test]
fn an_earlier_lease_is_waited_for_although_the_last_primary_has_ended() {
    let mut play = Play::well(2);
    let (primary, _) = play.move_to_the_last();
    let moves = play.moves;
    play.lose_to_agents(&primary);
    play.fail_over(None);
    let second = play.granted();
    play.wait(5_000, "it is promoted", |play| play.is_promoted(&second));
    let before = play.replication().generation;
    play.act(&Fault::Crash(which(&second)));
    play.wait(1_500, "a third one is granted", |play| play.replication().generation > before);
    assert!(play.is_open(&primary) && play.moves == moves);
    play.run(8_000);
    assert_eq!(play.moves, moves + 1);
    play.end();
}

/// The same when the second one ends only after the third was granted.
#[test]
fn the_end_of_one_of_two_earlier_primaries_is_not_that_of_both() {
    let mut play = Play::well(2);
    let (primary, [one, other]) = play.move_to_the_last();
    let moves = play.moves;
    play.lose_to_agents(&primary);
    play.fail_over(Some(play.archive(&one)));
    play.wait(5_000, "it is promoted", |play| play.is_promoted(&one));
    play.fail_over(Some(play.archive(&other)));
    assert!(play.is_open(&primary) && play.moves == moves);
    play.act(&Fault::Kill(which(&one)));
    play.run(8_000);
    assert_eq!(play.moves, moves + 1);
    play.end();
}

/// Its machine stands still until another one is the primary, and meanwhile its pod is deleted: when it runs again, its wrapper is
/// told to end, and that another one was granted.
#[test]
fn an_old_primary_whose_pod_is_to_end_shows_nothing_old() {
    for seed in 0..2 {
        let mut play = Play::well(seed);
        let old = play.pod(Which::Primary);
        play.act(&Fault::Pause(Which::Primary, 3_600));
        play.until(FROM_MS + 3_100);
        play.delete(Kind::Pod, &old, Some(0));
        play.until(FROM_MS + 8_000);
        play.end();
    }
}

/// Its two standbys confirm each commit. The volume of one is put back to an earlier state, and the two other servers stand still: the one
/// that was set back lacks what was acknowledged since, and is not granted.
#[test]
fn a_volume_that_was_set_back_is_not_granted() {
    let mut play = Play::well(2);
    let primary = play.pod(Which::Primary);
    let [one, other] = others(&primary);
    // Its second start.
    play.act(&Fault::Kill(which(&one)));
    play.until(FROM_MS + 15_000);
    assert_eq!(play.is_well(), Vec::<String>::new());
    play.act(&Fault::Pause(Which::Primary, 8_000));
    play.act(&Fault::Pause(which(&other), 8_000));
    play.act(&Fault::SetBack(which(&one)));
    assert_eq!(play.set_back.len(), 1);
    play.until(FROM_MS + 24_000);
    play.end();
}

/// A standby starts again while no agent leads: what it says of that is proposed once one does, and its session is the same.
#[test]
fn a_session_survives_an_election() {
    let mut play = Play::well(0);
    let leader = play.world.hosts[play.leader()].name.clone();
    let sessions = |play: &Play| -> BTreeMap<String, (String, u64)> {
        play.domain(|domain| {
            let all = domain.processes.values();
            all.map(|it| (it.identity.pod.clone(), (it.session.server.to_string(), it.session.number.0))).collect()
        })
    };
    let (primary, before) = (play.pod(Which::Primary), sessions(&play));
    let standby = before.iter().find(|(pod, (server, _))| **pod != primary && *server != leader);
    let pod = standby.expect("a standby whose agent does not lead").0.clone();
    // Of three agents one is left, the one that has its stream.
    let paused: Vec<usize> = (0..ADMINS).filter(|host| play.world.hosts[*host].name != before[&pod].0).collect();
    for host in &paused {
        play.act(&Fault::Other(Action::Pause(*host)));
    }
    play.until(FROM_MS + 3_000);
    play.act(&Fault::Crash(which(&pod)));
    play.until(FROM_MS + 12_000);
    for host in &paused {
        play.act(&Fault::Other(Action::Resume(*host)));
    }
    play.until(FROM_MS + 25_000);
    assert_eq!(sessions(&play)[&pod], before[&pod]);
    assert_eq!(play.is_well(), Vec::<String>::new());
    play.end();
}

/// The clock of an agent is an hour ahead for two seconds. The pause after a failover for nothing lasts a minute all the same.
#[test]
fn a_clock_that_was_ahead_does_not_hold_up_a_failover() {
    let mut play = Play::well(0);
    let time =
        |play: &Play| play.world.hosts.iter().filter_map(|it| it.look(|shared| shared.raft.read(|it| it.time))).max();
    let before = time(&play).unwrap();
    play.world.ahead_ms.insert(0, 3_600_000);
    play.until(FROM_MS + 2_000);
    play.world.ahead_ms.clear();
    assert!(time(&play).unwrap().since(before) > 3_600_000, "it has proposed nothing");
    play.act(&Fault::Pause(Which::Primary, 8_000));
    play.until(FROM_MS + 20_000);
    assert_eq!(play.moves, 1);
    assert_eq!(play.is_well(), Vec::<String>::new());
    play.act(&Fault::Isolate(Which::Primary, 100_000));
    play.until(FROM_MS + 40_000);
    assert_eq!(play.moves, 1, "it is held back");
    play.until(FROM_MS + 95_000);
    assert_eq!(play.moves, 2);
    play.end();
}
