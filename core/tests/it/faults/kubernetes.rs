//! The real Kubernetes of a sequence: its objects, and the actions of operators, controllers and the kubelet.
//!
//! What becomes of it never depends on the domain, so that two runs of one script have the same objects under the same UIDs.

use super::by_hand::ByHand;
use crate::script::Objects;
use kaa_core::domain::ids::{Millis, Uid};
use kaa_core::observed::objects::{ARCHIVE_TEMPLATE, Claim, Container, Deployment, Owner, Pod, Running, StatefulSet};
use std::collections::BTreeSet;

/// The StatefulSets and their databases. The name of one is a prefix of another's, and of its own pods'.
pub const SETS: [(&str, &str); 3] = [("sm", "demo"), ("sm-1", "demo"), ("other", "other")];
/// The names of the only Deployment, which has one of them at a time.
pub const DEPLOYMENTS: [&str; 2] = ["te", "te-new"];
/// No StatefulSet here has such a high ordinal.
pub const ORDINALS: u32 = 5;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    StatefulSets,
    Deployments,
    Pods,
    Claims,
}

pub const KINDS: [Kind; 4] = [Kind::StatefulSets, Kind::Deployments, Kind::Pods, Kind::Claims];

/// How a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its wrapper reports the end of the engine.
    Graceful,
    /// Nothing reports the end.
    Silent,
    /// It was deleted by force, and its engine runs on: its node is cut off.
    Zombie,
}

/// A change in Kubernetes, or an operator's command. Numbers select StatefulSets and pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Scale {
        set: usize,
        replicas: u32,
    },
    FirstOrdinal {
        set: usize,
        start: u32,
    },
    Retention {
        set: usize,
        delete: bool,
    },
    Annotate {
        set: usize,
        hold_purge: bool,
        pause: bool,
    },
    DeleteSet {
        set: usize,
        claims: bool,
        death: Death,
    },
    CreateSet {
        set: usize,
        replicas: u32,
    },
    /// The StatefulSet is deleted without its pods, and created again: it adopts them.
    RecreateSet {
        set: usize,
    },
    RenameDeployment,
    ScaleDeployment {
        replicas: u32,
    },
    /// The controllers create and delete pods as they are wanted.
    Reconcile,
    DeletePod {
        pod: usize,
        death: Death,
    },
    Terminating {
        pod: usize,
    },
    DeleteClaim {
        set: usize,
        ordinal: u32,
    },
    /// An operator deletes all pods and claims of a StatefulSet, and its controller has not noticed yet.
    Wipe {
        set: usize,
        death: Death,
    },
    RestoreClaim {
        set: usize,
        ordinal: u32,
    },
    /// A claim is created with a copy of another claim's volume, marker included.
    CopyClaim {
        set: usize,
        ordinal: u32,
        from: usize,
    },
    /// An operator removes the marker from a volume.
    RemoveMarker {
        set: usize,
        ordinal: u32,
    },
    /// A container ends, with or without a report, and the next one begins. The pod's status may show that later.
    Restart {
        pod: usize,
        said: bool,
        shown: bool,
    },
    /// A container ends, and the kubelet has not restarted it yet.
    Ends {
        pod: usize,
        said: bool,
    },
    /// The statuses of all pods show the state of their containers.
    Shown,
    /// The engine's connection breaks; the engine continues to run.
    Cut {
        pod: usize,
    },
    ZombiesDie,
    Anchor(Option<&'static str>),
    Adopt,
    Permissions {
        kind: Kind,
        granted: bool,
    },
    Pause(bool),
    Evict {
        pod: usize,
    },
    Stop {
        pod: usize,
    },
    Later {
        seconds: u64,
    },
    /// A later release of all engines: all or some containers restart with it.
    RollOut {
        all: bool,
        said: bool,
    },
    /// Whether the Deployment asks for protocol upgrades.
    AskForUpgrades(bool),
    /// Whether a rollout of a StatefulSet, or of the Deployments, is in progress.
    Rolling {
        workload: usize,
        rolling: bool,
    },
    ByHand(ByHand),
}

/// The effect of a change on engines and volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// An engine begins in the pod with this UID.
    Begins(Uid),
    Ends(Uid, Death),
    /// The claim with this UID has the contents of the last claim of this name.
    Restored(String, Uid),
    /// The volume of the first claim was copied to the second.
    Copied(Uid, Uid),
    /// The claim is gone.
    Lost(String, Uid),
}

/// The objects, and the UIDs given so far.
#[derive(Clone, Default)]
pub struct Kubernetes {
    pub is: Objects,
    uids: u64,
    pub effects: Vec<Effect>,
}

pub fn claim_name(set: &str, ordinal: u32) -> String {
    format!("{ARCHIVE_TEMPLATE}-{set}-{ordinal}")
}

impl Kubernetes {
    fn uid(&mut self, letter: char) -> Uid {
        self.uids += 1;
        format!("{letter}{}", self.uids).into()
    }

    /// The pod that a number selects, if there is any.
    pub fn pod(&self, number: usize) -> Option<&Pod> {
        let pods = &self.is.pods;
        if pods.is_empty() { None } else { pods.values().nth(number % pods.len()) }
    }

    pub fn create_set(&mut self, set: usize, replicas: u32) {
        let (name, database) = SETS[set];
        if self.is.sets.contains_key(name) {
            return;
        }
        let new = StatefulSet {
            name: name.to_owned(),
            uid: self.uid('S'),
            generation: 1,
            replicas,
            database: Some(database.into()),
            templates: vec![ARCHIVE_TEMPLATE.to_owned()],
            ..StatefulSet::default()
        };
        self.is.sets.insert(name.to_owned(), new);
    }

    pub fn recreate_set(&mut self, set: usize) {
        let uid = self.uid('S');
        let Some(set) = self.is.sets.get_mut(SETS[set].0) else { return };
        let old = std::mem::replace(&mut set.uid, uid.clone());
        for owner in self.is.pods.values_mut().filter_map(|pod| pod.owner.as_mut()).filter(|owner| owner.uid == old) {
            owner.uid = uid.clone();
        }
    }

    pub fn edit_set(&mut self, set: usize, edit: impl FnOnce(&mut StatefulSet)) {
        if let Some(set) = self.is.sets.get_mut(SETS[set].0) {
            edit(set);
            set.generation += 1;
        }
    }

    pub fn delete_set(&mut self, set: usize, claims: bool, death: Death) {
        let Some(gone) = self.is.sets.remove(SETS[set].0) else { return };
        for pod in self.pods_of(&gone.uid) {
            self.delete_pod(&pod, death);
        }
        for ordinal in (0..ORDINALS).filter(|_| claims) {
            self.delete_claim(&claim_name(&gone.name, ordinal));
        }
    }

    pub fn wipe(&mut self, set: usize, death: Death) {
        let Some(uid) = self.is.sets.get(SETS[set].0).map(|set| set.uid.clone()) else { return };
        self.pods_of(&uid).iter().for_each(|pod| self.delete_pod(pod, death));
        (0..ORDINALS).for_each(|ordinal| self.delete_claim(&claim_name(SETS[set].0, ordinal)));
    }

    fn pods_of(&self, owner: &Uid) -> Vec<String> {
        let of_it = |pod: &&Pod| pod.owner.as_ref().is_some_and(|known| known.uid == *owner);
        self.is.pods.values().filter(of_it).map(|pod| pod.name.clone()).collect()
    }

    pub fn delete_pod(&mut self, name: &str, death: Death) {
        let Some(pod) = self.is.pods.remove(name) else { return };
        self.effects.push(Effect::Ends(pod.uid, death));
        let claim = pod.archive_claim.as_ref().and_then(|claim| self.is.claims.get(claim));
        if let Some(claim) = claim.filter(|claim| claim.deleting).map(|claim| claim.name.clone()) {
            self.delete_claim(&claim);
        }
    }

    /// As pvc-protection does: a claim in use is deleted only when no pod uses it any more.
    pub fn delete_claim(&mut self, name: &str) {
        let in_use = self.is.pods.values().any(|pod| pod.archive_claim.as_deref() == Some(name));
        if in_use && let Some(claim) = self.is.claims.get_mut(name) {
            claim.deleting = true;
        } else if let Some(gone) = self.is.claims.remove(name) {
            self.effects.push(Effect::Lost(name.to_owned(), gone.uid));
        }
    }

    /// Creates a claim, unless one of this name exists.
    pub fn create_claim(&mut self, set: usize, ordinal: u32) -> Option<Uid> {
        let name = claim_name(SETS[set].0, ordinal);
        if self.is.claims.contains_key(&name) {
            return None;
        }
        let uid = self.uid('C');
        let claim = Claim { name: name.clone(), uid: uid.clone(), deleting: false, database: Some(SETS[set].1.into()) };
        self.is.claims.insert(name, claim);
        Some(uid)
    }

    pub fn restore_claim(&mut self, set: usize, ordinal: u32) {
        if let Some(uid) = self.create_claim(set, ordinal) {
            self.effects.push(Effect::Restored(claim_name(SETS[set].0, ordinal), uid));
        }
    }

    pub fn copy_claim(&mut self, set: usize, ordinal: u32, from: usize) {
        let from = from.checked_rem(self.is.claims.len()).and_then(|from| self.is.claims.values().nth(from));
        let Some(from) = from.map(|claim| claim.uid.clone()) else { return };
        if let Some(uid) = self.create_claim(set, ordinal) {
            self.effects.push(Effect::Copied(from, uid));
        }
    }

    /// The work of the StatefulSet and Deployment controllers.
    pub fn reconcile(&mut self) {
        for (number, (name, _)) in SETS.iter().enumerate() {
            if let Some(set) = self.is.sets.get(*name).cloned() {
                self.reconcile_set(number, &set);
            }
        }
        for name in DEPLOYMENTS {
            let owner = self.is.deployments.get(name).cloned();
            self.reconcile_deployment(name, owner.as_ref());
        }
    }

    fn reconcile_set(&mut self, number: usize, set: &StatefulSet) {
        for pod in self.pods_of(&set.uid) {
            if self.is.pods[&pod].deleting || !self.is.pods[&pod].ordinal().is_some_and(|ordinal| set.wants(ordinal)) {
                self.delete_pod(&pod, Death::Graceful);
            }
        }
        for ordinal in 0..ORDINALS {
            let claim = claim_name(&set.name, ordinal);
            if !set.wants(ordinal) {
                if set.deletes_claims_when_scaled {
                    self.delete_claim(&claim);
                }
                continue;
            }
            let name = format!("{}-{ordinal}", set.name);
            if self.is.pods.contains_key(&name) || self.is.claims.get(&claim).is_some_and(|claim| claim.deleting) {
                continue;
            }
            self.create_claim(number, ordinal);
            let owner = Owner { kind: "StatefulSet".to_owned(), name: set.name.clone(), uid: set.uid.clone() };
            self.create_pod(name, SETS[number].1, owner, Some(claim));
        }
    }

    fn reconcile_deployment(&mut self, name: &str, deployment: Option<&Deployment>) {
        let replicas = deployment.map_or(0, |deployment| deployment.replicas);
        let of_it =
            |pod: &&Pod| pod.owner.as_ref().is_some_and(|owner| owner.kind == "ReplicaSet" && owner.name == name);
        let pods: Vec<String> = self.is.pods.values().filter(of_it).map(|pod| pod.name.clone()).collect();
        for pod in pods.iter().skip(replicas as usize) {
            self.delete_pod(pod, Death::Graceful);
        }
        for _ in pods.len()..replicas as usize {
            let uid = deployment.map(|deployment| deployment.uid.clone()).unwrap_or_default();
            let owner = Owner { kind: "ReplicaSet".to_owned(), name: name.to_owned(), uid };
            let pod = format!("{name}-{}", self.uids + 1);
            self.create_pod(pod, "demo", owner, None);
        }
    }

    fn create_pod(&mut self, name: String, database: &str, owner: Owner, archive_claim: Option<String>) {
        let uid = self.uid('P');
        let database = Some(database.into());
        let pod = Pod { name, uid, database, owner: Some(owner), archive_claim, ..Pod::default() };
        self.effects.push(Effect::Begins(pod.uid.clone()));
        self.is.pods.insert(pod.name.clone(), pod);
    }

    pub fn rename_deployment(&mut self) {
        let (old, new) = if self.is.deployments.contains_key(DEPLOYMENTS[0]) { (0, 1) } else { (1, 0) };
        let replicas = self.is.deployments.remove(DEPLOYMENTS[old]).map_or(1, |deployment| deployment.replicas);
        self.create_deployment(new, replicas);
    }

    pub fn create_deployment(&mut self, which: usize, replicas: u32) {
        let name = DEPLOYMENTS[which].to_owned();
        let uid = self.uid('D');
        let database = Some("demo".into());
        let upgrades_protocol = true;
        let deployment =
            Deployment { name: name.clone(), uid, replicas, database, upgrades_protocol, ..Deployment::default() };
        self.is.deployments.insert(name, deployment);
    }

    /// What the status of a pod shows of its one container.
    pub fn show(&mut self, pod: &str, container: Container) {
        if let Some(pod) = self.is.pods.get_mut(pod) {
            pod.containers = vec![container];
        }
    }

    /// The UIDs of the claims that are there.
    pub fn claim_uids(&self) -> BTreeSet<&Uid> {
        self.is.claims.values().map(|claim| &claim.uid).collect()
    }
}

/// The status of a container that runs.
pub fn running(id: &str, started: u64) -> Running {
    Running { id: id.into(), started: Millis(started / 1000 * 1000) }
}
