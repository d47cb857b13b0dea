//! A primary that moves by command only.

use super::*;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Patch, PatchParams};

/// `kubectl annotate statefulset shop kaa.dev/failover=MODE`, and waits until the domain knows of it.
fn set_failover(cluster: &Cluster, mode: &str) {
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client(), cluster.namespace());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"kaa.dev/failover": mode}}}));
    cluster.run(sets.patch(DATABASE, &PatchParams::default(), &patch)).expect("annotated");
    cluster.says(&format!("show database {DATABASE}"), &format!("failover: {mode}"));
}

/// What `GET kaa/replication/shop` has at this place.
fn shown(cluster: &Cluster, pointer: &str) -> Value {
    let answer = cluster.rest(&format!("kaa/replication/{DATABASE}"));
    answer.and_then(|answer| answer.pointer(pointer).cloned()).unwrap_or_default()
}

/// The archive of a pod.
fn archive(cluster: &Cluster, pod: &str) -> u64 {
    let rows = shown(cluster, "/archives");
    let row = rows.as_array().into_iter().flatten().find(|row| row["pod"] == pod);
    row.and_then(|row| row["archive"].as_u64()).unwrap_or_else(|| panic!("{pod}: {rows}"))
}

/// The server of the primary is killed, and its wrapper comes back: nothing is granted to it with `paused`.
fn end(cluster: &Cluster, primary: &str) {
    cluster.kill_wrapper(primary);
    // And not only that it is away.
    cluster.says(&format!("show database {DATABASE}"), "has ended; nothing would be lost");
}

/// A server outside the set, which follows the primary, copies it once more.
fn is_copied_by_command(cluster: &Cluster, dir: &Path, spare: &str) {
    let id = archive(cluster, spare);
    let old = volume(cluster, dir, &format!("archive-volume-{spare}")).join("pgdata/of_the_old_data");
    std::fs::write(&old, "").unwrap();
    cluster.kaa(&format!("database discard {DATABASE} --archive {id} --reason damaged"));
    // Its server takes over only after that.
    cluster.wait("the spare's data to be whole", |c| {
        let told = c.kaa(&format!("explain archive/{id}"));
        let given_up = told.find("is given up and may be overwritten: damaged");
        given_up.is_some_and(|at| told[at..].contains(&format!("the data of archive {id} is whole")))
    });
    assert!(!old.exists(), "it was not copied");
    cluster.wait("all servers to run again", |c| c.running() == SERVERS);
}

/// With `manual`, a deleted pod hands over first, since no failover would begin. A failover by command is done where nothing is lost, is refused
/// where the member that is there may lack commits, with the names of the others, and is done there once their loss is accepted. What is on the
/// others then is kept until it is given up as well.
pub fn by_command() {
    let Some((installed, mut cluster, roles, dir)) = installed("postgres_by_command") else { return };
    cluster.put(&installed.objects(cluster.namespace(), &roles).unwrap());
    cluster.wait("the servers to run", |c| c.running() == SERVERS);
    let explained = format!("explain database/{DATABASE}");
    cluster.says(&explained, "is in the sync set");
    set_failover(&cluster, "manual");
    let writer = Writer::start(&cluster, &roles);
    writer.writes();

    let first = primary(&cluster, &roles);
    cluster.delete_pod(&first);
    cluster.says(&explained, "the pod of the primary stops");
    writer.writes();
    cluster.wait("the deleted server to be back", |c| c.running() == SERVERS);

    set_failover(&cluster, "paused");
    let second = primary(&cluster, &roles);
    end(&cluster, &second);
    let answer = cluster.kaa(&format!("failover {DATABASE} --reason test"));
    assert!(answer.contains("generation"), "{answer}");
    writer.writes();
    let third = primary(&cluster, &roles);
    assert_ne!(third, second);
    cluster.wait("the killed server to be back", |c| c.running() == SERVERS);
    cluster.wait("two members of the sync set", |c| {
        shown(c, "/syncSet/pods").as_array().is_some_and(|pods| pods.len() == 2) && shown(c, "/syncSet/inForce") == true
    });

    let acknowledged = writer.stop(&cluster);
    for server in servers(&cluster) {
        cluster.run(has_all(&roles, &server, &acknowledged));
    }
    let members = shown(&cluster, "/syncSet/pods");
    let is_member = |pod: &str| members.as_array().into_iter().flatten().any(|member| member == pod);
    let pods = || (0..SERVERS).map(|ordinal| format!("{DATABASE}-{ordinal}"));
    let spare = pods().find(|pod| !is_member(pod)).expect("a spare");
    let standby = pods().find(|pod| is_member(pod) && *pod != third).expect("a standby");
    is_copied_by_command(&cluster, dir.path(), &spare);
    end(&cluster, &third);
    for pod in [&third, &standby] {
        cluster.wrapper_of(pod).signal("STOP");
    }
    cluster.wait("their sessions to be lost", |c| {
        let rows = shown(c, "/archives");
        rows.as_array().into_iter().flatten().filter(|row| row["state"]["code"] == "session_lost").count() == 2
    });
    let refused = cluster.try_kaa(&format!("failover {DATABASE} --to {spare} --reason test")).unwrap_err();
    for pod in [&third, &standby] {
        let named = format!("archive {}, pod {pod}", archive(&cluster, pod));
        assert!(refused.contains(&named), "{named}: {refused}");
    }
    let accepted = format!("failover {DATABASE} --to {spare} --accept-data-loss {DATABASE} --reason test");
    let would = cluster.kaa(&format!("{accepted} --dry-run"));
    assert!(would.contains("when it was last heard"), "{would}");
    cluster.kaa(&accepted);
    assert_eq!(primary(&cluster, &roles), spare);
    for pod in [&third, &standby] {
        cluster.wrapper_of(pod).signal("CONT");
    }
    for pod in [&third, &standby] {
        let id = archive(&cluster, pod);
        cluster.says(&format!("show database {DATABASE}"), &format!("archive {id} holds data"));
        cluster.kaa(&format!("database discard {DATABASE} --archive {id} --reason test"));
    }
    cluster.wait("all servers to run", |c| c.running() == SERVERS);
    // Some that were not acknowledged may be there as well.
    let again = Writer::start_after(&cluster, &roles, 1_000_000);
    again.writes();
    let more = again.stop(&cluster);
    for server in servers(&cluster) {
        cluster.run(has_all(&roles, &server, &acknowledged));
        cluster.run(has_all(&roles, &server, &more));
    }
    cluster.passed();
}
