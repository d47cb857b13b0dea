//! kill -9 of agents right after each durable write of a founding, an override, a joining with an old log set aside, and
//! a `kaa recover`; each begins anew and goes on. In the end there is always one domain in one epoch, every server that is
//! wanted votes, and nothing acknowledged is lost.
//!
//! On the embedded Kubernetes only: fail points are no part of an image. `KAA_MEMBERS=full cargo test --test e2e
//! killed::pairs -- --nocapture` takes every two points of an override together, which takes an hour; else a few, by a
//! seed that is printed and that `KAA_SEED` replays.

use super::super::cluster::Cluster;
use super::group::{Group, server};
use kaa::clock;
use kaa::failpoints::Point::{self, *};
use std::collections::BTreeSet;

/// The points that a life passes, and the one at which it ends.
type Script = &'static [Point];

/// What one that is left writes in an override: it seals, and founds, or sets its log aside and joins.
const SURVIVING: [Script; 14] = [
    &[Sealed],
    &[AnchorSwapped],
    &[Founded],
    &[Founded, Vote],
    &[Founded, Entry],
    &[Founded, Entry, Entry],
    &[Founded, Snapshot],
    &[Founded, Purged],
    &[SetAside],
    &[SetAside, Identity],
    &[Joined],
    &[Joined, GatePassed],
    &[Joined, Vote],
    &[Joined, Entry],
];

/// What one writes that comes back with a log of an earlier epoch.
const COMING_BACK: [Script; 7] = [
    &[SetAside],
    &[SetAside, Identity],
    &[Joined],
    &[Joined, GatePassed],
    &[Joined, Vote],
    &[Joined, Entry],
    &[Joined, Snapshot],
];

/// What one writes that goes on with its log because a person gave up what the others have.
const RECOVERING: [Script; 6] =
    [&[Sealed], &[AnchorSwapped], &[Founded], &[Founded, Vote], &[Founded, Entry], &[Founded, Entry, Entry]];

/// What the first server of all writes, each of its lives up to the next.
const FOUNDING: [Point; 7] = [Identity, AnchorCreated, Founded, GatePassed, Vote, Entry, Entry];

/// What one writes that joins for the first time, likewise.
const JOINING: [Point; 5] = [Identity, Joined, GatePassed, Vote, Entry];

/// How many pairs are tried by default.
const FEW: usize = 2;

/// How many servers there are, of which half is lost.
const SERVERS: u32 = 4;

/// Tells a server at which points its lives end, one after the other; those with a `~` it passes.
fn arm(cluster: &Cluster, ordinal: u32, lines: &str) {
    let script = cluster.scripts().join(server(ordinal));
    let _ = std::fs::remove_file(script.with_extension("passed"));
    // At once for whoever reads it.
    let next = script.with_extension("armed");
    std::fs::write(&next, lines).unwrap();
    std::fs::rename(next, script).unwrap();
}

/// The script of one that dies once.
fn once(script: Script) -> String {
    let (last, passed) = script.split_last().expect("a point");
    passed.iter().map(|point| format!("~{}\n", point.name())).chain([last.name().to_owned()]).collect()
}

/// The script of one that dies at each.
fn each(points: &[Point]) -> String {
    points.iter().map(|point| format!("{}\n", point.name())).collect()
}

/// Takes the script of a server away, and says what is left of it.
fn left(cluster: &Cluster, ordinal: u32) -> String {
    let script = cluster.scripts().join(server(ordinal));
    let lines = std::fs::read_to_string(&script).unwrap();
    std::fs::remove_file(script).unwrap();
    lines
}

/// The first domain, and the first two that join it.
pub fn founding(cluster: &mut Cluster) {
    arm(cluster, 0, &each(&FOUNDING));
    cluster.admins(1);
    assert_eq!(left(cluster, 0), "", "it died at each point");
    let mut group = Group::watched(cluster, 1);
    for ordinal in 1..3 {
        arm(cluster, ordinal, &each(&JOINING));
    }
    group.scale(3);
    for ordinal in 1..3 {
        assert_eq!(left(cluster, ordinal), "", "{} died at each point", server(ordinal));
    }
    group.judge();
}

/// Half is lost, and one of those that are left dies at the point; then the others come back, and one of these dies.
pub fn overriding(cluster: &mut Cluster) {
    one_of_those_left(cluster, &SURVIVING[..7]);
}

/// The same at the points of whoever does not found.
pub fn setting_aside(cluster: &mut Cluster) {
    one_of_those_left(cluster, &SURVIVING[7..]);
}

fn one_of_those_left(cluster: &mut Cluster, scripts: &'static [Script]) {
    cluster.admins(SERVERS);
    let mut group = Group::watched(cluster, SERVERS);
    for (round, script) in scripts.iter().enumerate() {
        let back = COMING_BACK[round % COMING_BACK.len()];
        println!("members: killed: at {script:?} while half is lost, at {back:?} when it comes back");
        // Which of them founds shows only then.
        (0..SERVERS / 2).for_each(|ordinal| arm(cluster, ordinal, &once(script)));
        override_and_back(&mut group, cluster, [back, back]);
        let died = (0..SERVERS / 2).filter(|ordinal| left(cluster, *ordinal).is_empty()).count();
        assert!(died > 0, "nobody came to {script:?}");
    }
    group.judge();
}

fn override_and_back(group: &mut Group<'_>, cluster: &Cluster, back: [Script; 2]) {
    group.lose(SERVERS / 2).overridden(group);
    let coming = SERVERS / 2..SERVERS;
    coming.clone().zip(back).for_each(|(ordinal, script)| arm(cluster, ordinal, &once(script)));
    group.back_from_the_past(SERVERS);
    for (ordinal, script) in coming.zip(back) {
        assert_eq!(left(cluster, ordinal), "", "{} came to {script:?}", server(ordinal));
    }
}

/// Two of three are lost, a person gives up what they have, and the one that is left dies at each point.
pub fn recovering(cluster: &mut Cluster) {
    cluster.admins(3);
    let mut group = Group::watched(cluster, 3);
    for script in RECOVERING {
        println!("members: killed: at {script:?} while a person gives up what the others have");
        // What it has acknowledged is in its own log: so nothing acknowledged is lost, and that can be judged.
        group.lead_by(0);
        arm(cluster, 0, &once(script));
        let change = group.lose(1);
        group.until("the next epoch, however often a person has to ask", || {
            if group.epoch() > change.epoch() {
                return Ok(());
            }
            group.recover(&server(0), "--accept-data-loss --yes").map(drop)?;
            if group.epoch() > change.epoch() { Ok(()) } else { Err("it is said to be done".to_owned()) }
        });
        change.overridden(&group);
        assert_eq!(left(cluster, 0), "", "it came to {script:?}");
        group.back_from_the_past(3);
    }
    group.judge();
}

/// Both of those that are left die, each at a point of its own.
pub fn pairs(cluster: &mut Cluster) {
    let all = SURVIVING.iter().flat_map(|first| SURVIVING.iter().map(move |second| [*first, *second]));
    let mut pairs: Vec<[Script; 2]> = all.collect();
    if std::env::var("KAA_MEMBERS").is_ok_and(|members| members == "full") {
        println!("members: killed: all {} pairs", pairs.len());
    } else {
        let seed = std::env::var("KAA_SEED").map_or_else(|_| clock::random_u64(), |seed| seed.parse().unwrap());
        println!("KAA_SEED={seed}: {FEW} of {} pairs", pairs.len());
        let mut chosen = seed;
        pairs = (0..FEW).map(|_| pairs.swap_remove(next(&mut chosen) as usize % pairs.len())).collect();
    }
    cluster.admins(SERVERS);
    let mut group = Group::watched(cluster, SERVERS);
    for (round, pair) in pairs.iter().enumerate() {
        let back = [0, 1].map(|of| COMING_BACK[(round + of) % COMING_BACK.len()]);
        println!("members: killed: at {pair:?} while half is lost, at {back:?} when it comes back");
        (0..).zip(pair).for_each(|(ordinal, script)| arm(cluster, ordinal, &once(script)));
        override_and_back(&mut group, cluster, back);
        let died: Vec<bool> = (0..SERVERS / 2).map(|ordinal| left(cluster, ordinal).is_empty()).collect();
        println!("members: killed: {pair:?}: died {died:?}");
    }
    group.judge();
}

/// The next of a sequence of numbers (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A point that nobody dies at is not tested.
#[test]
fn somebody_dies_at_every_point() {
    let ends = [&SURVIVING[..], &COMING_BACK, &RECOVERING].concat();
    let ends = ends.into_iter().filter_map(<[Point]>::last).chain(&FOUNDING).chain(&JOINING);
    assert_eq!(ends.copied().collect::<BTreeSet<_>>(), BTreeSet::from(Point::ALL));
}
