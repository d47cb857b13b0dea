//! Single scenarios in simulated time that a seed seldom produces: the fault lasts, and the domain must still follow
//! Kubernetes.

use crate::sim::kubernetes::Trouble;
use crate::sim::people;
use crate::sim::schedule::Action;
use crate::sim::world::{World, simulated};
use kaa::clock;
use kaa_core::domain::Domain;
use kaa_core::resync::ability::Inability;
use std::collections::BTreeSet;

const ADMINS: usize = 3;
/// How long the agents may take to found the domain and to show everything in it.
const BEGINS_WITHIN_MS: u64 = 60_000;
/// How long a resync leader that can no longer lead keeps the Lease, plus the time until the other agents look again.
const HANDED_OVER_WITHIN_MS: u64 = 15_000;
/// The time until an engine learns that its agent has no quorum, or its session is declared lost, and until the resync
/// has judged it.
const FOLLOWED_WITHIN_MS: u64 = 60_000;

/// A world without faults, in which the scenario happens.
struct Story(World);

impl Story {
    fn begin(seed: u64) -> Self {
        clock::simulate(Some(simulated(seed)));
        let mut story = Self(World::new(seed));
        story.until(BEGINS_WITHIN_MS, "all is well", |world| {
            world.holder().is_some()
                && world.group.differences(&world.hosts[..ADMINS]).is_empty()
                && world.checks.differences(&world.hosts[..ADMINS], &BTreeSet::new()).is_empty()
        });
        story
    }

    /// Lets time pass until a condition holds. Returns how long that took.
    fn until(&mut self, within_ms: u64, what: &str, holds: impl Fn(&World) -> bool) -> u64 {
        let Self(world) = self;
        let begun = world.now_ms();
        while world.now_ms() < begun + within_ms {
            world.step();
            if world.now_ms().is_multiple_of(100) && holds(world) {
                let took = world.now_ms() - begun;
                world.trace.line(&format!("{what}, after {took} ms"));
                return took;
            }
        }
        panic!("not within {within_ms} ms: {what}\n{}", world.trace.text());
    }

    /// Checks that nothing went wrong; then the next scenario may begin.
    fn end(self) {
        let wrong = self.0.trace.all_wrong();
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), self.0.trace.text());
        clock::simulate(None);
    }
}

/// The number of active archives in the domain that an agent shows.
fn active_archives(world: &World, host: usize) -> usize {
    let active = |domain: &Domain| domain.archives.values().filter(|archive| archive.removed.is_none()).count();
    world.hosts[host].look(|shared| shared.raft.read(active)).unwrap_or_default()
}

fn why_away(world: &World, host: usize) -> Option<Inability> {
    world.hosts[host].look(|shared| shared.candidacy.away().map(|(away, _)| away.why)).flatten()
}

/// The fault that makes the resync leader unable to lead lasts. Another agent gets the Lease, and the domain follows a
/// scale-down.
fn another_leads_and_follows(seed: u64, unable: fn(usize) -> Action, why: Inability) {
    let mut story = Story::begin(seed);
    let holder = story.0.holder().expect("somebody holds the lease");
    let other = (holder + 1) % ADMINS;
    assert_eq!(active_archives(&story.0, other), 2);
    story.0.act(unable(holder));
    story.until(HANDED_OVER_WITHIN_MS, "another one leads", |world| world.holder().is_some_and(|it| it != holder));
    assert_eq!(why_away(&story.0, holder), Some(why));
    story.0.act(Action::Scale(1));
    story.until(FOLLOWED_WITHIN_MS, "the scale-down is followed", |world| active_archives(world, other) == 1);
    assert_ne!(story.0.holder(), Some(holder), "it cannot lead, and it did not come back");
    story.end();
}

#[test]
fn a_holder_that_is_cut_off_from_the_others_and_not_from_kubernetes_is_replaced() {
    for seed in 0..3 {
        another_leads_and_follows(seed, Action::Isolate, Inability::NoQuorum);
    }
}

#[test]
fn a_holder_without_room_is_replaced() {
    for seed in 0..2 {
        another_leads_and_follows(seed, Action::Fill, Inability::NoRoom);
    }
}

/// The StatefulSet is scaled from three to two and back at once, and for a while the watches of all agents show two.
#[test]
fn nobody_is_voted_out_on_what_the_watches_show() {
    let mut story = Story::begin(5);
    let Story(world) = &mut story;
    let lag_ms = 8_000;
    let lags = Trouble { lag_ms, ..Trouble::default() };
    world.hosts.iter().for_each(|host| world.ground.kubernetes.set_trouble(&host.name, lags));
    people::scale_admins(world, 2);
    // Each change is a separate piece of a watch, and arrives with the lag after the previous one.
    world.step();
    people::scale_admins(world, ADMINS);
    let until = world.now_ms() + 3 * lag_ms;
    while world.now_ms() < until {
        world.step();
    }
    assert_eq!(world.group.counts.evictions, 0, "{}", world.trace.text());
    world.hosts.iter().for_each(|host| world.ground.kubernetes.set_trouble(&host.name, Trouble::default()));
    // An intended eviction is not delayed.
    people::scale_admins(world, 2);
    story.until(HANDED_OVER_WITHIN_MS, "the third one is voted out", |world| world.group.counts.evictions == 1);
    story.end();
}
