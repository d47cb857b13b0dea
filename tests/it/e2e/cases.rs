//! The use cases, one after another in one domain; golden files hold what `kaa show` says after each step.

use crate::domain::cluster::Cluster;

/// All use cases, in an order in which each begins with two storage managers and two transaction engines.
pub fn all(cluster: &mut Cluster) {
    cluster.begin_story("storage-manager-scaled-down-and-up");
    storage_manager_scaled_down_and_up(cluster);
    cluster.begin_story("transaction-engine-deleted-and-killed");
    transaction_engine_deleted_and_killed(cluster);
    cluster.begin_story("admin-deleted-under-an-engine");
    admin_deleted_under_an_engine(cluster);
    cluster.begin_story("claim-deleted");
    claim_deleted(cluster);
}

/// Use case 2: a storage manager is scaled down and up.
fn storage_manager_scaled_down_and_up(cluster: &mut Cluster) {
    cluster.golden("running");
    cluster.says("plan --scale statefulset/sm-demo=1", "archive/2: remove archive 2 of sm-demo-1");
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.disturb();
    cluster.golden("scaled-down");
    cluster.pod_gone("sm-demo-1");
    cluster.says("explain archive/2", "archive 2 removed: its StatefulSet was scaled down");
    cluster.says("explain archive/2", "wants 1 replicas from ordinal 0");
    cluster.says("plan --scale statefulset/sm-demo=2", "pod/sm-demo-1: archive 2 is resurrected when it starts");
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.golden("scaled-up");
    // A new resync leader makes its first pass after a few seconds, and may first have to learn a container.
    cluster.says("plan", "Nothing to propose");
}

/// Use case 3: the claim of an archive is deleted.
fn claim_deleted(cluster: &mut Cluster) {
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.pod_gone("sm-demo-1");
    cluster.says("plan --delete pvc/archive-volume-sm-demo-1", "archive/2: purge archive 2");
    cluster.delete_claim("archive-volume-sm-demo-1");
    cluster.disturb();
    cluster.golden("purged");
    cluster.says("explain archive/2", "archive 2 purged");
    cluster.says("explain archive/2", "persistentvolumeclaim archive-volume-sm-demo-1 not found");
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.golden("scaled-up");
}

/// Use case 4: a transaction engine is deleted, and another is killed.
fn transaction_engine_deleted_and_killed(cluster: &mut Cluster) {
    let (pod, start) = cluster.transaction_engine(0);
    cluster.delete_pod(&pod);
    cluster.disturb();
    cluster.exited(start, "Gracefully shutdown engine");
    cluster.golden("deleted");
    let (pod, start) = cluster.transaction_engine(0);
    cluster.learned(start);
    cluster.kill_wrapper(&pod);
    cluster.exited(start, "Container ended without a report (137)");
    cluster.golden("killed");
    cluster.restarted(&pod);
}

/// The session moves to another agent; no engine restarts.
fn admin_deleted_under_an_engine(cluster: &mut Cluster) {
    let (pod, start) = cluster.transaction_engine(0);
    let server = cluster.server_of(start);
    let uid = cluster.pod_uid(&server);
    cluster.delete_pod(&server);
    cluster.pod_replaced(&server, &uid);
    cluster.disturb();
    cluster.moved_away(start, &server);
    cluster.golden("moved");
    assert_eq!(cluster.restarts(&pod), 0, "the engine of {pod} ran on");
}
