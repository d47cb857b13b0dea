//! Operators' changes with `kubectl`, and what happens to containers.

use crate::sim::admins;
use crate::sim::schedule::{Action, Leave};
use crate::sim::world::World;
use embedded_kubernetes::object::{name, text, uid};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{DeleteOptions, Key, Part};
use kaa_core::domain::Domain;
use kaa_core::domain::gate::Held;
use serde_json::json;

/// Applies an operator's change with `kubectl`, or an event of a container.
pub fn change(world: &mut World, action: &Action) {
    let instance = world.ground.kubernetes.instance.clone();
    let pods = instance.look(|store| {
        let pods = store.list(Kind::Pod, None).filter(|pod| !text(pod, "/metadata/labels/component").is_empty());
        pods.map(|pod| (name(pod).to_owned(), uid(pod).to_owned())).collect::<Vec<_>>()
    });
    let pick = |which: u64| pods.get(usize::try_from(which).unwrap() % pods.len().max(1)).cloned();
    let delete = |kind: Kind, name: &str, grace_seconds: Option<i64>| delete(world, kind, name, grace_seconds);
    let claim = |ordinal: u32| format!("archive-volume-sm-demo-{ordinal}");
    match action {
        Action::Forget => instance.with(|store| store.forget_history()),
        Action::KillEngine(which) => {
            if let Some((_, uid)) = pick(*which) {
                world.kubelet.kill_engine(&uid, None);
            }
        }
        Action::KillFor(ordinal, ms) => {
            let name = format!("sm-demo-{ordinal}");
            if let Some((_, uid)) = pods.iter().find(|(pod, _)| *pod == name) {
                world.kubelet.kill_engine(uid, Some(world.now_ms() + ms));
            }
        }
        Action::KillEngines => pods.iter().for_each(|(_, uid)| world.kubelet.kill_engine(uid, None)),
        Action::DeletePod(which) => pick(*which).into_iter().for_each(|(name, _)| delete(Kind::Pod, &name, None)),
        Action::ForceDeletePod(which) => {
            pick(*which).into_iter().for_each(|(name, _)| delete(Kind::Pod, &name, Some(0)));
        }
        Action::Scale(replicas) => {
            let key = Key::new(Kind::StatefulSet, "default", "sm-demo");
            let scaled =
                instance.with(|store| store.edit(&key, Part::Main, |set| set["spec"]["replicas"] = json!(replicas)));
            scaled.expect("it can be scaled");
            world.checks.scaled(world.now_ms(), *replicas);
        }
        Action::DeleteClaim(ordinal) => delete(Kind::PersistentVolumeClaim, &claim(*ordinal), None),
        Action::RecreateClaim(ordinal) => {
            delete(Kind::PersistentVolumeClaim, &claim(*ordinal), None);
            delete(Kind::Pod, &format!("sm-demo-{ordinal}"), None);
        }
        _ => unreachable!("the others are not changes"),
    }
}

/// Does what an operator does who reads `kaa plan`: if a cold start waits for an archive whose ordinal is no longer
/// wanted, scales the StatefulSet up so that it is.
pub fn start_what_cold_starts_wait_for(world: &mut World) {
    let waited_for = |domain: &Domain| {
        let held = domain.processes.keys().filter_map(|process| match domain.may_start(*process) {
            Err(Held::Histories { archives, .. }) => Some(archives),
            _ => None,
        });
        let archives = held.flatten().filter_map(|archive| domain.archives.get(&archive));
        archives.filter_map(|archive| Some(archive.claim.as_ref()?.owner.as_ref()?.ordinal)).max()
    };
    let ordinals = world.hosts.iter().filter(|host| host.is_up());
    let ordinals = ordinals.filter_map(|host| host.look(|shared| shared.raft.read(waited_for)).flatten());
    let replicas = ordinals.max().map_or(0, |ordinal| ordinal + 1);
    if i64::from(replicas) > world.checks.replicas() {
        change(world, &Action::Scale(replicas));
    }
}

/// Scales the StatefulSet of the admin servers.
pub fn scale_admins(world: &mut World, replicas: usize) {
    let key = Key::new(Kind::StatefulSet, "default", "kaa-admin");
    let instance = &world.ground.kubernetes.instance;
    let scaled = instance.with(|store| store.edit(&key, Part::Main, |set| set["spec"]["replicas"] = json!(replicas)));
    scaled.expect("it can be scaled");
}

/// Deletes the pod of an admin server.
pub fn delete_admin(world: &mut World, host: usize, how: Leave) {
    let grace_seconds = match how {
        Leave::Gracefully => None,
        Leave::AtOnce | Leave::Dead => Some(0),
    };
    if how == Leave::Dead {
        world.hosts[host].kill();
    }
    delete(world, Kind::Pod, &world.hosts[host].name, grace_seconds);
}

/// Deletes the claim and the pod of an admin server, so that both are created again if they are wanted.
pub fn wipe_admin(world: &World, server: &str) {
    delete(world, Kind::PersistentVolumeClaim, &admins::claim(server), None);
    delete(world, Kind::Pod, server, Some(0));
}

fn delete(world: &World, kind: Kind, name: &str, grace_seconds: Option<i64>) {
    let key = Key::new(kind, "default", name);
    let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
    // If the object does not exist, there is nothing to delete.
    let _ = world.ground.kubernetes.instance.with(|store| store.delete(&key, &options));
}
