//! Each change of the number of servers with each disturbance, in `.ci/long`: `tests/e2e/run DIR nodes_of_a_cluster`.

use super::group::{Group, server};
use super::{UNDONE, back_from_none, in_a_hurry, ordinary, overridden, to_none_and_back, without_claims};
use crate::domain::cluster::Cluster;
use crate::e2e::nodes::{Mended, Nodes};
use std::time::{Duration, Instant};

/// How long the API server does not run.
const AWAY: Duration = Duration::from_secs(20);

/// The disturbance of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Befalls {
    /// None. The first server usually leads.
    Nothing,
    /// The leader is one of the leaving servers.
    LeaderLeaves,
    /// The pods of the leaving servers are deleted by force, right after the scale.
    Force,
    /// The leaving servers were stopped before the scale.
    Loss,
    /// A node with at least one of the leaving servers, and with none of the staying ones, is off the network.
    Cut,
    /// The API server is killed right after the scale.
    ApiServer,
    /// The claims of the leaving servers are deleted before the servers come back.
    Claims,
    /// The scale is reversed within a second.
    SecondThought,
}

/// Scales from one number of servers to another and back.
pub fn way(cluster: &Cluster, from: u32, to: u32, befalls: Befalls) {
    let _mended = matches!(befalls, Befalls::Cut | Befalls::ApiServer).then(Mended::afterwards);
    let mut group = Group::watched(cluster, from);
    match befalls {
        Befalls::Nothing if to == 0 => to_none_and_back(&mut group, cluster),
        Befalls::Nothing => ordinary(group.scale(to)),
        Befalls::LeaderLeaves => {
            group.lead_by_one_beyond(to);
            ordinary(group.scale(to));
        }
        Befalls::Force => force(&mut group, cluster, to),
        Befalls::Loss => loss(&mut group, to),
        Befalls::Cut => cut(&mut group, cluster, to),
        Befalls::ApiServer => api_server(&mut group, cluster, to),
        Befalls::Claims => without_claims(&mut group, cluster, to),
        // The test sets no limit: in between there may be no server.
        Befalls::SecondThought if to == 0 => _ = in_a_hurry(&mut group, to, from),
        Befalls::SecondThought => ordinary(in_a_hurry(&mut group, to, from)),
    }
    if group.replicas() != from {
        group.scale(from);
    }
    group.judge();
}

/// The kubelet gives a pod that is deleted by force a second or two: by then its server does not vote any more.
pub fn force(group: &mut Group<'_>, cluster: &Cluster, to: u32) {
    let from = group.replicas();
    let change = group.begin(&format!("{from} -> {to} by force"));
    group.ask_for(to);
    (to..from).for_each(|leaver| cluster.force_delete_pod(&server(leaver)));
    if to == 0 {
        group.ask_for(from);
        group.whole(change, from);
    } else {
        ordinary(group.whole(change, from));
    }
}

fn loss(group: &mut Group<'_>, to: u32) {
    let from = group.replicas();
    let change = group.lose(to);
    if to * 2 == from {
        overridden(change.overridden(group));
        return group.back_from_the_past(from);
    }
    undone(group, &change);
    group.ask_for(from);
    group.whole(change, from);
}

/// Checks for a while that no epoch is founded.
pub fn undone(group: &Group<'_>, change: &super::group::Change) {
    let began = Instant::now();
    while began.elapsed() < UNDONE {
        assert_eq!(group.epoch(), change.epoch(), "nobody founds");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A server that is cut off still runs. Kubernetes cannot see it end, so its pod exists until the node is back.
fn cut(group: &mut Group<'_>, cluster: &Cluster, to: u32) {
    let (from, nodes, before) = (group.replicas(), Nodes::of(cluster), group.logs());
    let on = |ordinal: u32| nodes.of_pod(&server(ordinal));
    let none_stays_there = |leaver: &u32| (0..to).all(|stays| on(stays) != on(*leaver));
    let leaver = (to..from).rev().find(none_stays_there).expect("a node with none of those who stay");
    let change = group.begin(&format!("{from} -> {to}, the node of {} cut off", server(leaver)));
    let node = nodes.cut_under(&server(leaver));
    group.ask_for(to);
    if to * 2 == from {
        overridden(group.epoch_after(&change));
        nodes.heal(&node);
        change.overridden(group);
        group.back_without(&before, from);
    } else if to == 0 {
        (0..from).filter(|n| on(*n).as_ref() != Some(&node)).for_each(|n| cluster.pod_gone(&server(n)));
        let acknowledged = group.acknowledged();
        group.ask_for(from);
        group.until("those that came back to go on", || match group.acknowledged() > acknowledged {
            true => Ok(()),
            false => Err("nothing is acknowledged".to_owned()),
        });
        nodes.heal(&node);
        group.whole(change, from);
    } else {
        group.until("those that are left to be the voters", || group.vote(to));
        nodes.heal(&node);
        group.whole(change, from);
    }
}

/// The agents may or may not have seen the scale before. They commit, and complete the change when the API server is
/// back.
pub fn api_server(group: &mut Group<'_>, cluster: &Cluster, to: u32) {
    let (from, nodes) = (group.replicas(), Nodes::of(cluster));
    let change = group.begin(&format!("{from} -> {to}, the API server killed right after"));
    group.ask_for(to);
    nodes.kill_api_server();
    std::thread::sleep(AWAY);
    nodes.up();
    if to == 0 {
        return back_from_none(group, cluster, change, from);
    }
    ordinary(group.whole(change, from));
}
