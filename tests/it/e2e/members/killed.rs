//! `kill -9` of agents right after each durable write of a founding, a quorum override, a join with a retired log, and
//! a `kaa recover`. Each agent starts again and continues. At the end there is always one domain in one epoch, every
//! wanted server votes, and no acknowledged write is lost.
//!
//! Only on the embedded Kubernetes: an image has no fail points. `.ci/long` (`KAA_TIER=long`) tests every pair of
//! points of an override, which takes half an hour. Otherwise the test takes a few pairs, by a seed that it prints and
//! that `KAA_SEED` replays.

use super::corners::recovered;
use super::group::{Group, server};
use crate::domain::cluster::Cluster;
use kaa::failpoints::Point::{self, *};
use std::collections::BTreeSet;
use std::ops::Range;
use testkit::tier::Tier;
use testkit::{Chance, tier};

/// The points that a process passes, and the one at which it ends.
type Script = &'static [Point];

/// What a server that is left writes in a quorum override: first both seal their logs.
const SEALING: Script = &[Sealed];

/// Then one server founds the epoch.
const OVERRIDING: [Script; 7] = [
    &[AnchorSwapped],
    &[Founded],
    &[Founded, Vote],
    &[Founded, Entry],
    &[Founded, Entry, Entry],
    &[Founded, Snapshot],
    &[Founded, Purged],
];

/// The other server retires its log, and joins.
const FOLLOWING: [Script; 6] =
    [&[Retired], &[Retired, Identity], &[Joined], &[Joined, GatePassed], &[Joined, Vote], &[Joined, Entry]];

/// What a server writes that comes back with a log of an earlier epoch.
const COMING_BACK: [Script; 7] = [
    &[Retired],
    &[Retired, Identity],
    &[Joined],
    &[Joined, GatePassed],
    &[Joined, Vote],
    &[Joined, Entry],
    &[Joined, Snapshot],
];

/// What a server writes that continues with its log because an operator gave up what the others have.
const RECOVERING: [Script; 6] =
    [&[Sealed], &[AnchorSwapped], &[Founded], &[Founded, Vote], &[Founded, Entry], &[Founded, Entry, Entry]];

/// What the very first server writes. Each of its processes ends at the next point.
const FOUNDING: [Point; 7] = [Identity, AnchorCreated, Founded, GatePassed, Vote, Entry, Entry];

/// What a server writes that joins for the first time. Each of its processes ends at the next point.
const JOINING: [Point; 5] = [Identity, Joined, GatePassed, Vote, Entry];

/// How many pairs are tried by default.
const FEW: usize = 2;

/// The number of servers, of which half are lost.
const SERVERS: u32 = 4;

/// Tells a server at which points its processes end, one after the other. A process passes the points with a `~`. A
/// script has a name.
pub(in crate::e2e) fn arm(cluster: &Cluster, server: &str, name: &str, lines: &str) {
    let scripts = cluster.scripts().join(server);
    std::fs::create_dir_all(&scripts).unwrap();
    // The rename makes the whole file visible at once.
    let whole = cluster.scripts().join("armed");
    std::fs::write(&whole, lines).unwrap();
    std::fs::rename(whole, scripts.join(name)).unwrap();
}

/// The script of a server that ends once.
fn once(script: Script) -> String {
    let (last, passed) = script.split_last().expect("a point");
    passed.iter().map(|point| format!("~{}\n", point.name())).chain([last.name().to_owned()]).collect()
}

/// The script of a server that ends at each of the points.
fn each(points: &[Point]) -> String {
    points.iter().map(|point| format!("{}\n", point.name())).collect()
}

/// Whether the server has come to the end of a script.
fn is_at_the_end(cluster: &Cluster, ordinal: u32, name: &str) -> bool {
    std::fs::read_to_string(cluster.scripts().join(server(ordinal)).join(name)).unwrap().is_empty()
}

/// Deletes a script. Returns whether the server has reached its end.
fn came_to_the_end(cluster: &Cluster, ordinal: u32, name: &str) -> bool {
    let came = is_at_the_end(cluster, ordinal, name);
    std::fs::remove_file(cluster.scripts().join(server(ordinal)).join(name)).unwrap();
    came
}

/// Waits until one of the servers has been killed: before that, the group can be whole already, and commit.
fn one_died(group: &Group<'_>, cluster: &Cluster, armed: Range<u32>, name: &str, script: Script) {
    group.until(&format!("one to come to {script:?}"), || {
        let died = armed.clone().any(|ordinal| is_at_the_end(cluster, ordinal, name));
        if died { Ok(()) } else { Err(format!("{armed:?} live")) }
    });
}

/// Founds the first domain; two servers join it.
pub fn founding(cluster: &mut Cluster) {
    arm(cluster, &server(0), "founding", &each(&FOUNDING));
    cluster.admins(1);
    assert!(came_to_the_end(cluster, 0, "founding"), "it died at each point");
    let mut group = Group::watched(cluster, 1);
    for ordinal in 1..3 {
        arm(cluster, &server(ordinal), "joining", &each(&JOINING));
    }
    group.scale(3);
    for ordinal in 1..3 {
        assert!(came_to_the_end(cluster, ordinal, "joining"), "{} died at each point", server(ordinal));
    }
    group.judge();
}

/// Half of the servers are lost, and the founder is killed at the point. Then the others come back, and they are killed
/// too.
pub fn overriding(cluster: &mut Cluster) {
    halved(cluster, &[&[SEALING], &OVERRIDING[..]].concat().iter().map(|script| vec![*script]).collect::<Vec<_>>());
}

/// The same at the points of the server that does not found.
pub fn following_the_founder(cluster: &mut Cluster) {
    halved(cluster, &FOLLOWING.iter().map(|script| vec![*script]).collect::<Vec<_>>());
}

/// Half of the servers are lost, once for each round, and those that are left reach the end of each script.
fn halved(cluster: &Cluster, rounds: &[Vec<Script>]) {
    cluster.admins(SERVERS);
    let mut group = Group::watched(cluster, SERVERS);
    let (left_over, coming) = (0..SERVERS / 2, SERVERS / 2..SERVERS);
    for (round, scripts) in rounds.iter().enumerate() {
        let back = [0, 1].map(|of| COMING_BACK[(round + of) % COMING_BACK.len()]);
        println!("members: killed: at {scripts:?} while half is lost, at {back:?} when it comes back");
        let names: Vec<String> = (0..scripts.len()).map(|number| format!("script-{number}")).collect();
        // All servers seal. Which of them founds the epoch is known only after that.
        let armed = |script: &Script| if *script == SEALING { 0..1 } else { left_over.clone() };
        for (name, script) in names.iter().zip(scripts) {
            armed(script).for_each(|ordinal| arm(cluster, &server(ordinal), name, &once(script)));
        }
        let change = group.lose(SERVERS / 2);
        for (name, script) in names.iter().zip(scripts) {
            one_died(&group, cluster, armed(script), name, script);
        }
        change.overridden(&group);
        for (name, script) in names.iter().zip(scripts) {
            let died = armed(script).filter(|ordinal| came_to_the_end(cluster, *ordinal, name)).count();
            assert_eq!(died, 1, "one came to {script:?}");
        }
        coming.clone().zip(back).for_each(|(ordinal, script)| arm(cluster, &server(ordinal), "back", &once(script)));
        group.back_from_the_past(SERVERS);
        for (ordinal, script) in coming.clone().zip(back) {
            assert!(came_to_the_end(cluster, ordinal, "back"), "{} came to {script:?}", server(ordinal));
        }
    }
    group.judge();
}

/// Two of three servers are lost, an operator gives up what they have, and the one that is left is killed at each
/// point.
pub fn recovering(cluster: &mut Cluster) {
    cluster.admins(3);
    let mut group = Group::watched(cluster, 3);
    for script in RECOVERING {
        println!("members: killed: at {script:?} while an operator gives up what the others have");
        // What this server has acknowledged is in its own log, so no acknowledged write is lost, and the test can check
        // that.
        group.lead_by(0);
        arm(cluster, &server(0), "recovering", &once(script));
        let change = group.lose(1);
        recovered(&group, change.epoch());
        one_died(&group, cluster, 0..1, "recovering", script);
        change.overridden(&group);
        assert!(came_to_the_end(cluster, 0, "recovering"), "it came to {script:?}");
        group.back_from_the_past(3);
    }
    group.judge();
}

/// The servers that are left are killed twice: each at one point, or one of them at both.
pub fn pairs(cluster: &mut Cluster) {
    let all = [&[SEALING], &OVERRIDING[..], &FOLLOWING].concat();
    let with_later = |(first, script): (usize, &Script)| {
        all[first + 1..].iter().map(|later| vec![*script, *later]).collect::<Vec<_>>()
    };
    let mut pairs: Vec<Vec<Script>> = all.iter().enumerate().flat_map(with_later).collect();
    let tried = if tier() == Tier::Long { pairs.len() } else { FEW };
    let mut chance = Chance::new(&format!("{tried} of {} pairs", pairs.len()));
    let pairs: Vec<_> = (0..tried).map(|_| pairs.swap_remove(chance.below(pairs.len()))).collect();
    halved(cluster, &pairs);
}

/// A point at which no process ends is not tested.
#[test]
fn somebody_dies_at_every_point() {
    let ends = [&[SEALING], &OVERRIDING[..], &FOLLOWING, &COMING_BACK, &RECOVERING].concat();
    let ends = ends.into_iter().filter_map(<[Point]>::last).chain(&FOUNDING).chain(&JOINING);
    // `e2e::upgrades` tests this point.
    let ends = ends.chain(&[TaskStep]);
    assert_eq!(ends.copied().collect::<BTreeSet<_>>(), BTreeSet::from(Point::ALL));
}
