//! The admin StatefulSet is scaled, restarted and loses pods, while clients write all the time. At the end of each case
//! the voters are the servers that are wanted, the answers to the clients are linearizable, and no acknowledged write
//! is lost.
//!
//! The output (`-- --nocapture`) has the measured times: how long the admin servers needed until all was in order, and
//! the longest time without a commit.

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

/// The longest time without a commit if all servers could learn of the change beforehand.
const ORDINARY: Duration = Duration::from_millis(1500);

/// The same if most pods are deleted at one moment. Two servers that were gone together would take longer.
const TOGETHER: Duration = Duration::from_secs(3);

/// The same after servers failed without notice, and the others continue by a quorum override.
const OVERRIDE: Duration = Duration::from_secs(10);

/// The time between a scale and its reversal: before the leaving servers have lost their votes, and after that.
const CHANGES_OF_MIND: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// How long the test checks that a server stays: longer than a server needs that ends at once.
const STAYED: Duration = Duration::from_secs(4);

/// How soon a server ends that need not wait for another: long before one that waits without success.
const ENDED: Duration = Duration::from_secs(15);

/// How long the test checks that no epoch begins without an operator: longer than a quorum override takes.
const UNDONE: Duration = Duration::from_secs(15);

/// How much longer it may take with an executable that is not optimized, or while other cases use the same processors.
const CROWDED: u32 = 4;

#[track_caller]
fn ordinary(silence: Duration) {
    within(ORDINARY, silence);
}

#[track_caller]
fn overridden(silence: Duration) {
    within(OVERRIDE, silence);
}

/// `.ci/long` runs one case at a time on a cluster, with the released image. Only there do the limits apply as they
/// are.
#[track_caller]
fn within(limit: Duration, silence: Duration) {
    let is_alone = tier() == Tier::Long && std::env::var_os("KAA_IMAGE").is_some();
    let limit = if is_alone { limit } else { limit * CROWDED };
    assert!(silence <= limit, "no commit for {silence:?}, more than {limit:?}");
}

/// Scales up, then restarts pods.
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

/// A server that waits for the others ends once the StatefulSet is deleted, because none of them will come back.
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

/// A server whose vote the others need stays until they no longer need it.
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

/// Runs the preStop hook's command on a server that is not about to end: it transfers the leadership, and stays a
/// voter.
fn drained_by_hand(group: &Group<'_>, cluster: &Cluster) {
    let leader = cluster.raft_leader();
    let change = group.begin(&format!("kaa drain on {leader}, which leads"));
    let said = group.within(&leader, "drain").unwrap_or_else(|why| panic!("{leader}: {why}"));
    assert!(said.starts_with(&format!("{leader} is not scaled down, and keeps its vote; ")), "{said}");
    assert!(!said.contains(&format!("{leader} leads")), "{said}");
    ordinary(group.whole(change, group.replicas()));
}

/// Scales down and up again: also with the leader among the leaving servers, with a reversal within a second, and to
/// zero.
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

/// Scales twice within a second, at first with a leader that is to leave. Returns the longest time without a commit.
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

/// Scales to zero and back. No server loses its place.
fn to_none_and_back(group: &mut Group<'_>, cluster: &Cluster) {
    let from = group.replicas();
    let change = group.begin(&format!("{from} -> 0 -> {from}"));
    group.ask_for(0);
    back_from_none(group, cluster, change, from);
}

/// Scales back to `from` once all pods are gone.
fn back_from_none(group: &mut Group<'_>, cluster: &Cluster, change: Change, from: u32) {
    (0..from).for_each(|ordinal| cluster.pod_gone(&server(ordinal)));
    group.ask_for(from);
    group.whole(change, from);
}

/// A server whose claim is deleted while the server is not wanted is removed, and later joins as a new member.
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

/// Five servers, also with pods deleted by force: the leader learns of the change before the pods are gone.
pub fn five_scaled_down_and_up(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 5);
    full::force(&mut group, cluster, 2);
    ordinary(group.scale(5));
    ordinary(in_a_hurry(&mut group, 2, 4));
    group.judge();
}

/// Scales right before the API server is killed. Needs the nodes of `tests/cluster`.
pub fn api_server_killed(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    full::api_server(&mut group, cluster, 1);
    group.judge();
}

/// Half of an even number of servers is lost: the others continue by a quorum override, and the lost servers join again
/// without their old logs.
pub fn half_of_two_lost(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 2);
    overridden(group.lose(1).overridden(&group));
    cluster.says("explain domain", " began; kaa-admin-1 does not vote any more; the voters are kaa-admin-0");
    group.back_from_the_past(2);
    // The stopped server still runs, and continues in its old epoch after the other half has founded the next.
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

/// The same with four servers.
pub fn half_of_four_lost(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 4);
    overridden(group.lose(2).overridden(&group));
    group.back_from_the_past(4);
    group.judge();
}

/// The servers that are left cannot know whether they have all commits. They found no epoch without an operator, and
/// report why. They continue when the others are back.
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

/// The same, and an operator gives up what only the lost servers have. The servers that are left continue in a new
/// epoch, but not before the old pods are gone. The lost servers join again without their old logs, which never commit
/// again.
pub fn too_many_given_up(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 3);
    let first = server(0);
    // What this server has acknowledged is in its own log, so the test sees whether more is lost than has to be.
    group.lead_by(0);
    let refused = group.recover(&first, "--accept-data-loss --yes").expect_err("a leader is there");
    assert!(refused.contains("nothing has to be given up"), "{refused}");
    let change = group.begin("3 -> 1, both others lost, recover");
    let lost = [server(1), server(2)];
    let late = cluster.pod_uid(&lost[1]);
    group.stop(&lost);
    // One of the lost pods stays: its node is away, and Kubernetes does not know whether it runs.
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
    // The model's mutation `pods gone checked before the swap` shows why: a founder must not commit while a pod of the
    // old epoch exists, even after the founder restarts.
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
