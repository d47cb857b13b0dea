//! The admin StatefulSet is scaled, restarted and loses pods, while clients write all the time. In each case the voters
//! are in the end the servers that are wanted, what clients were told is linearizable, and nothing acknowledged is lost.
//!
//! What is printed (`-- --nocapture`) are the figures: how long until the group was whole, and the longest time without
//! a commit.

pub mod corners;
pub mod founder_lost;
pub mod full;
mod group;
pub mod killed;

use crate::domain::cluster::Cluster;
use group::{Change, Group, server};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;
use kube::api::DeleteParams;
use std::time::{Duration, Instant};
use testkit::tier;
use testkit::tier::Tier;

/// The longest time without a commit where all could be told beforehand.
const ORDINARY: Duration = Duration::from_millis(1500);

/// The same where most pods are deleted at one moment: less than two take that are gone together.
const TOGETHER: Duration = Duration::from_secs(3);

/// The same from the moment at which servers were lost without a word, where those that are left go on by themselves.
const OVERRIDE: Duration = Duration::from_secs(10);

/// Between two changes of one mind: before those who are to leave do not vote any more, and after that.
const CHANGES_OF_MIND: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// How long it is looked that a server stays: longer than one needs that ends at once.
const STAYED: Duration = Duration::from_secs(4);

/// How soon a server ends that has nobody to wait for: long before one that waits in vain.
const ENDED: Duration = Duration::from_secs(15);

/// How long it is looked that nothing is done by itself: longer than an override takes.
const UNDONE: Duration = Duration::from_secs(15);

/// How much longer it may take with an executable that is not optimized, or beside other cases on the same processors.
const CROWDED: u32 = 4;

#[track_caller]
fn ordinary(silence: Duration) {
    within(ORDINARY, silence);
}

#[track_caller]
fn overridden(silence: Duration) {
    within(OVERRIDE, silence);
}

/// `.ci/long` plays one case at a time on a cluster, with the image as it is released: there what is said of the agents is
/// held against them.
#[track_caller]
fn within(limit: Duration, silence: Duration) {
    let is_alone = tier() == Tier::Long && std::env::var_os("KAA_IMAGE").is_some();
    let limit = if is_alone { limit } else { limit * CROWDED };
    assert!(silence <= limit, "no commit for {silence:?}, more than {limit:?}");
}

/// Up, and pods that restart.
pub fn grown_and_restarted(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 1);
    ordinary(group.scale(3));
    ordinary(group.roll());
    within(TOGETHER, group.restart_last(2));
    within(TOGETHER, deleted_while_another_is_away(&group, cluster));
    assert_eq!(group.failed_hooks(), Vec::<String>::new());
    drained_by_hand(&group, cluster);
    group.judge();
    deleted_with_all(cluster);
}

/// One that waits for the others ends once the StatefulSet is deleted: nobody comes back.
fn deleted_with_all(cluster: &Cluster) {
    let leader = cluster.raft_leader();
    let others: Vec<String> = (0..3).map(server).filter(|other| *other != leader).collect();
    let [away, deleted] = others.as_slice() else { panic!("{others:?}") };
    let process = cluster.agent_of(away);
    cluster.agent_of(away).signal("STOP");
    cluster.delete_pod(deleted);
    std::thread::sleep(STAYED / 2);
    let began = Instant::now();
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client(), cluster.namespace());
    cluster.run(sets.delete("kaa-admin", &DeleteParams::default())).expect("deleted");
    cluster.pod_gone(deleted);
    process.signal("CONT");
    assert!(began.elapsed() < ENDED, "{deleted} waited for another {:?}", began.elapsed());
}

/// One whose vote the others need stays until they do not.
fn deleted_while_another_is_away(group: &Group<'_>, cluster: &Cluster) -> Duration {
    let leader = cluster.raft_leader();
    let others: Vec<String> = (0..group.replicas()).map(server).filter(|other| *other != leader).collect();
    let [away, deleted] = others.as_slice() else { panic!("{others:?}") };
    let (process, uid) = (cluster.agent_of(away), cluster.pod_uid(deleted));
    let change = group.begin(&format!("{deleted} deleted while {away} is stopped"));
    group.stop(std::slice::from_ref(away));
    cluster.delete_pod(deleted);
    std::thread::sleep(STAYED);
    let stayed = cluster.pod_uid(deleted) == uid;
    process.signal("CONT");
    assert!(stayed, "{deleted} went although {leader} was alone then");
    cluster.pod_replaced(deleted, &uid);
    group.whole(change, group.replicas())
}

/// The preStop hook's command on a server that is not about to end: it hands over, and stays a voter.
fn drained_by_hand(group: &Group<'_>, cluster: &Cluster) {
    let leader = cluster.raft_leader();
    let change = group.begin(&format!("kaa drain on {leader}, which leads"));
    let said = group.within(&leader, "drain").unwrap_or_else(|why| panic!("{leader}: {why}"));
    assert!(said.starts_with(&format!("{leader} is not scaled down, and keeps its vote; ")), "{said}");
    assert!(!said.contains(&format!("{leader} leads")), "{said}");
    ordinary(group.whole(change, group.replicas()));
}

/// Down and up again, also with the leader among those who leave, in a hurry, and to none.
pub fn scaled_down_and_up(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    let logs = group.logs();
    ordinary(group.scale(1));
    let noted = "do not vote any more; the voters are kaa-admin-0; the StatefulSet wants 1 server";
    cluster.says("explain server/kaa-admin-2", noted);
    ordinary(group.scale(3));
    group.lead_by_one_beyond(1);
    ordinary(group.scale(1));
    ordinary(group.scale(3));
    ordinary(in_a_hurry(&mut group, 1, 3));
    to_none_and_back(&mut group, cluster);
    assert_eq!(group.logs(), logs, "all came back on their volumes");
    group.judge();
}

/// Two scales within a second, led by one who is to leave at first. The longest time without a commit.
fn in_a_hurry(group: &mut Group<'_>, there: u32, back: u32) -> Duration {
    let silences = CHANGES_OF_MIND.map(|moment| {
        let from = group.replicas();
        if there < from {
            group.lead_by_one_beyond(there);
        }
        let change = group.begin(&format!("{from} -> {there} -> {back} within {moment:?}"));
        group.ask_for(there);
        std::thread::sleep(moment);
        group.ask_for(back);
        group.whole(change, from)
    });
    silences.into_iter().max().unwrap_or_default()
}

/// Nobody is left, and nobody has lost its place.
fn to_none_and_back(group: &mut Group<'_>, cluster: &Cluster) {
    let from = group.replicas();
    let change = group.begin(&format!("{from} -> 0 -> {from}"));
    group.ask_for(0);
    back_from_none(group, cluster, change, from);
}

/// Asks for as many as before once all are gone.
fn back_from_none(group: &mut Group<'_>, cluster: &Cluster, change: Change, from: u32) {
    (0..from).for_each(|ordinal| cluster.pod_gone(&server(ordinal)));
    group.ask_for(from);
    group.whole(change, from);
}

/// A server whose volume is deleted while it is not wanted is removed, and joins as a new member.
pub fn claim_deleted_while_scaled_down(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 2);
    without_claims(&mut group, cluster, 1);
    group.judge();
}

fn without_claims(group: &mut Group<'_>, cluster: &Cluster, there: u32) {
    let (from, before) = (group.replicas(), group.logs());
    ordinary(group.scale(there));
    for leaver in (there..from).map(server) {
        cluster.delete_claim(&format!("raftlog-{leaver}"));
        group.until("the server without a volume to be removed", || match group.logs().get(&leaver) {
            None => Ok(()),
            Some(log) => Err(format!("{leaver} is known with log {log}")),
        });
    }
    ordinary(group.scale(from));
    let now = group.logs();
    for name in (0..from).map(server) {
        let stayed = (0..there).any(|ordinal| server(ordinal) == name);
        assert_eq!(now[&name] == before[&name], stayed, "{name}: a new member has a new log, and nobody else");
        assert!(group.retired(&name).is_empty(), "{name} has nothing to retire");
    }
}

/// More of them, by force: the leader hears of the change before the pods are gone.
pub fn five_scaled_down_and_up(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 5);
    full::force(&mut group, cluster, 2);
    ordinary(group.scale(5));
    ordinary(in_a_hurry(&mut group, 2, 4));
    group.judge();
}

/// Scaled right before the API server is killed. Needs the nodes of `tests/cluster`.
pub fn api_server_killed(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    full::api_server(&mut group, cluster, 1);
    group.judge();
}

/// Half of an even group is lost: those that are left go on by themselves, and the others come back without their logs.
pub fn half_of_two_lost(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 2);
    overridden(group.lose(1).overridden(&group));
    cluster.says("explain domain", " began; kaa-admin-1 does not vote any more; the voters are kaa-admin-0");
    group.back_from_the_past(2);
    // It runs on, and goes on as it was, after the other side has overridden it.
    let (stopped, before) = (server(1), group.logs());
    let process = cluster.agent_of(&stopped);
    let change = group.begin("2 -> 1, kaa-admin-1 stopped and going on later");
    group.stop(std::slice::from_ref(&stopped));
    group.ask_for(1);
    overridden(group.epoch_after(&change));
    process.signal("CONT");
    change.overridden(&group);
    group.back_without(&before, 2);
    group.judge();
}

/// The same of four.
pub fn half_of_four_lost(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 4);
    overridden(group.lose(2).overridden(&group));
    group.back_from_the_past(4);
    group.judge();
}

/// Those that are left cannot know whether what they hold is all: nothing is done by itself, it is said why, and the
/// group goes on when the others are back.
pub fn too_many_lost(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    let logs = group.logs();
    let change = group.lose(1);
    full::undone(&group, &change);
    assert!(group.silence_now() > UNDONE - Duration::from_secs(3), "nobody commits");
    let ready = group.readiness(&server(0)).expect("an answer");
    assert!(ready.contains("readyz check failed"), "{ready}");
    for needed in ["kaa-admin-1", "kaa-admin-2", "kaa recover --accept-data-loss"] {
        assert!(ready.contains(needed), "{needed} is not in {ready}");
    }
    group.ask_for(3);
    group.whole(change, 3);
    assert_eq!(group.logs(), logs, "all came back on their volumes");
    group.judge();
}

/// The same, and an operator gives up what only the others have: those that are left go on in a new epoch, not before the old
/// pods are gone; the others come back without their logs, which never commit again.
pub fn too_many_given_up(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    let first = server(0);
    // What it has acknowledged is in its own log: so it is seen whether more is lost than has to be.
    group.lead_by(0);
    let refused = group.recover(&first, "--accept-data-loss --yes").expect_err("a leader is there");
    assert!(refused.contains("nothing has to be given up"), "{refused}");
    let change = group.begin("3 -> 1, both others lost, recover");
    let lost = [server(1), server(2)];
    let late = cluster.pod_uid(&lost[1]);
    group.stop(&lost);
    // One of them stays where it is: its node is away, and Kubernetes does not know whether it runs.
    group.ask_for(1);
    cluster.force_delete_pod(&lost[0]);
    group.until("it to be told what may be lost", || {
        let shown = group.recover(&first, "--dry-run")?;
        let told = [
            "May be lost: entries after ",
            "that only kaa-admin-1, kaa-admin-2 may hold",
            "Would continue: kaa-admin-0",
        ];
        if told.iter().all(|told| shown.contains(told)) { Ok(()) } else { Err(shown) }
    });
    assert_eq!(group.epoch(), change.epoch(), "it was only shown");
    let begun = group.recover(&first, "--accept-data-loss --yes").expect("done");
    assert!(begun.contains(&format!("Epoch {} begins with the log of kaa-admin-0", change.epoch() + 1)), "{begun}");
    assert_eq!(group.epoch(), change.epoch() + 1);
    // Counterexample 7: a pod of the old epoch holds the founder back, also one that starts again.
    cluster.agent_of(&first).signal("KILL");
    let writes = group.acknowledged();
    group.until("the founder to say for whom it waits", || {
        let ready = group.readiness(&first).unwrap_or_default();
        if ready.contains(&format!("kaa-admin-2: its pod (uid {late}) is still there")) { Ok(()) } else { Err(ready) }
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(group.acknowledged(), writes, "nobody commits while an old pod may");
    cluster.force_delete_pod(&lost[1]);
    change.overridden(&group);
    group.back_from_the_past(3);
    cluster.says("explain domain", "given up at");
    cluster.says("explain domain", "loopback");
    group.judge();
}
