//! The cases. Each leaves its Kubernetes objects behind for the next step; golden files hold what `kaa show` says.

use super::cluster::Cluster;

/// Use case 2.
pub fn storage_manager_scaled_down_and_up(cluster: &mut Cluster) {
    cluster.golden("running");
    cluster.says("plan --scale statefulset/sm-demo=1", "archive/2: remove archive 2 of sm-demo-1");
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.disturb();
    cluster.golden("scaled-down");
    cluster.pod_gone("sm-demo-1");
    let history = cluster.kaa("explain archive/2");
    assert!(history.contains("archive 2 removed: its StatefulSet was scaled down"), "{history}");
    assert!(history.contains("wants 1 replicas from ordinal 0"), "{history}");
    cluster.says("plan --scale statefulset/sm-demo=2", "pod/sm-demo-1: archive 2 comes back");
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.golden("scaled-up");
    // A resync leader that is new makes its first pass after some seconds, and may have a container to learn of.
    cluster.says("plan", "Nothing to propose");
}

/// Use case 3.
pub fn claim_deleted(cluster: &mut Cluster) {
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.pod_gone("sm-demo-1");
    cluster.says("plan --delete pvc/archive-volume-sm-demo-1", "archive/2: purge archive 2");
    cluster.delete_claim("archive-volume-sm-demo-1");
    cluster.disturb();
    cluster.golden("purged");
    let history = cluster.kaa("explain archive/2");
    assert!(history.contains("archive 2 purged"), "{history}");
    assert!(history.contains("persistentvolumeclaim archive-volume-sm-demo-1 not found"), "{history}");
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.golden("scaled-up");
}

/// Use case 4.
pub fn transaction_engine_deleted_and_killed(cluster: &mut Cluster) {
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

/// The session moves; nobody restarts.
pub fn admin_deleted_under_an_engine(cluster: &mut Cluster) {
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
