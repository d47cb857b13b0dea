//! A domain is saved, its cluster is lost, and the domain continues in another: a second Kubernetes, where all UIDs
//! differ and into which the archives' volumes are copied as from a backup. Only on the embedded Kubernetes, where a
//! test can do that.

use crate::domain::cluster::{Cluster, Disturb, start_id};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use std::path::{Path, PathBuf};

const CLAIMS: [&str; 2] = ["archive-volume-sm-demo-0", "archive-volume-sm-demo-1"];

/// What remains of a cluster: the snapshot file, and the backups of its archives' volumes.
struct Left {
    file: PathBuf,
    volumes: Vec<(PersistentVolumeClaim, PathBuf)>,
    /// The highest start id so far.
    last_start: u64,
}

pub fn restored_in_another_cluster() {
    let old = Cluster::up_with("restored_from", Disturb::Nothing, 1);
    let left = lose(old);
    let mut new = Cluster::without_database("restored_to", 1);
    new.example(0, 0);
    left.volumes.iter().for_each(|(claim, backup)| restore_volume(&new, claim, backup));
    refused_before_it_is_restored(&new);

    let file = left.file.display();
    let shown = new.kaa(&format!("domain snapshot restore {file} --dry-run"));
    eprintln!("{shown}");
    assert!(shown.contains("archive 2 of demo, was on kaa-e2e-rf-nothing/archive-volume-sm-demo-1"), "{shown}");
    assert!(!shown.contains("refused"), "{shown}");
    let done = new.kaa(&format!("domain snapshot restore {file} --yes"));
    eprintln!("{done}");

    new.wait("the storage managers on their archives", |c| c.running() == 2);
    new.scale("deployments", "te-demo", 2);
    new.wait("the transaction engines", |c| c.running() == 4);
    as_if_nothing_had_happened(&new, left.last_start);
    new.passed();
}

/// Saves the domain, copies the volumes of its archives, and removes the cluster.
fn lose(mut old: Cluster) -> Left {
    let file = old.files().join("kaa.json");
    let saved = old.kaa(&format!("domain snapshot save {}", file.display()));
    eprintln!("{saved}");
    assert!(saved.contains("databases 1, archives 2, values 0"), "{saved}");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(old.client(), old.namespace());
    let backed_up = CLAIMS.map(|name| {
        let claim = old.run(claims.get(name)).expect("the claim");
        let backup = old.files().join("backup").join(name);
        copy(&volume(&old, &claim), &backup);
        (claim, backup)
    });
    let last_start = old.rows("processes").iter().map(start_id).max().expect("processes");
    old.passed();
    Left { file, volumes: backed_up.into(), last_start }
}

/// The directory of the volume that a claim is bound to.
fn volume(cluster: &Cluster, claim: &PersistentVolumeClaim) -> PathBuf {
    let _embedded = cluster.stage();
    cluster.files().join("kubernetes/volumes").join(claim.metadata.uid.as_ref().expect("a UID"))
}

/// Creates a claim of the same name, with a volume that contains the backup.
fn restore_volume(cluster: &Cluster, was: &PersistentVolumeClaim, backup: &Path) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), cluster.namespace());
    let metadata =
        ObjectMeta { name: was.metadata.name.clone(), labels: was.metadata.labels.clone(), ..ObjectMeta::default() };
    let mut spec = was.spec.clone().expect("a spec");
    spec.volume_name = None;
    let claim = PersistentVolumeClaim { metadata, spec: Some(spec), status: None };
    let made = cluster.run(claims.create(&PostParams::default(), &claim)).expect("the claim is made");
    assert_ne!(made.metadata.uid, was.metadata.uid);
    copy(backup, &volume(cluster, &made));
}

/// Engines that start before the domain is restored are refused, and the domain does not change.
fn refused_before_it_is_restored(cluster: &Cluster) {
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster
        .wait("the storage managers to be refused", |c| c.has_restarted("sm-demo-0") && c.has_restarted("sm-demo-1"));
    assert!(cluster.rows("databases").is_empty() && cluster.rows("archives").is_empty());
}

/// The archives are bound to the claims of this cluster, and the resync judges them by the objects of this cluster.
fn as_if_nothing_had_happened(cluster: &Cluster, last_start: u64) {
    let processes = cluster.rows("processes");
    assert!(processes.iter().all(|process| start_id(process) > last_start), "{processes:?}");
    cluster.says("explain archive/1", "restored from a snapshot of domain kaa");
    cluster.says("explain archive/1", "archive 1 bound to claim archive-volume-sm-demo-0");
    let archives = cluster.kaa("show archives");
    assert!(!archives.contains("kaa-e2e-rf-nothing"), "a path of the cluster that was lost: {archives}");
    cluster.says("plan", "Nothing to propose");
    let plan = cluster.kaa("plan");
    assert!(!plan.contains("claim is not known") && !plan.contains("founded in another"), "{plan}");
    cluster.scale("statefulsets", "sm-demo", 1);
    cluster.says("show archives --removed", "REMOVED(NOT_RUNNING)");
    cluster.says("explain archive/2", "archive 2 removed: its StatefulSet was scaled down");
    cluster.scale("statefulsets", "sm-demo", 2);
    cluster.wait("the archive to be back", |c| c.running() == 4);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target);
        } else {
            std::fs::copy(&source, &target).unwrap();
        }
    }
}
