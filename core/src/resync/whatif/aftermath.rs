//! What Kubernetes would show once hypothetical changes have run their course: the pods beyond the replicas gone, a claim
//! that was deleted gone as soon as no pod uses it (pvc-protection), and which pods it would start next.
//!
//! Not seen is what the watches do not keep: a pod that mounts a claim under another volume name than `archive-volume`
//! and is not of the claim's StatefulSet does not hold the claim here.

use super::Error;
use super::change::{Change, Deletable, Delete, Scale, Workload};
use super::outcome::Note;
use crate::membership::scaling::Scaling;
use crate::observed::objects::{ARCHIVE_TEMPLATE, Claim, Named, Pod, RAFT_LOG_TEMPLATE, StatefulSet};
use crate::observed::{Listing, Observed};
use crate::resync::plan::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// The most names that an error lists.
const MOST_NAMES: usize = 20;

/// Kubernetes afterwards.
pub(super) struct Aftermath {
    /// What it shows.
    pub(super) observed: Observed,
    /// The pods that are gone.
    pub(super) gone: Vec<Pod>,
    /// The StatefulSets and ordinals whose pods are wanted and not there.
    pub(super) missing: BTreeSet<(String, u32)>,
    /// The StatefulSets that the changes name, or whose pods they name.
    pub(super) touched: BTreeSet<String>,
    /// The claims that the changes delete, each with a pod that keeps it from going.
    pub(super) deleted: BTreeMap<String, Option<String>>,
    pub(super) notes: Vec<Note>,
}

/// Lets the changes run their course; without any, what is under way already.
pub(super) fn aftermath(observed: &Observed, changes: &[Change]) -> Result<Aftermath, Error> {
    let mut after = Aftermath {
        observed: observed.clone(),
        gone: Vec::new(),
        missing: BTreeSet::new(),
        touched: BTreeSet::new(),
        deleted: BTreeMap::new(),
        notes: Vec::new(),
    };
    objects(&after.observed.pods, Kind::Pods)?;
    objects(&after.observed.claims, Kind::Claims)?;
    objects(&after.observed.stateful_sets, Kind::StatefulSets)?;
    // What is scaled first: whether a pod that is deleted is made again depends on it.
    for change in changes {
        match change {
            Change::Scale(Scale { workload: Workload::StatefulSet, name, replicas }) => after.scale(name, *replicas)?,
            Change::Scale(Scale { workload: Workload::Deployment, name, replicas }) => {
                after.scale_deployment(name, *replicas)?;
            }
            Change::Delete(_) => {}
        }
    }
    for change in changes {
        match change {
            Change::Delete(Delete { kind: Deletable::Claim, name }) => after.delete_claim(name)?,
            Change::Delete(Delete { kind: Deletable::Pod, name }) => after.delete_pod(name)?,
            Change::Scale(_) => {}
        }
    }
    after.let_pods_go()?;
    after.let_claims_go()?;
    Ok(after)
}

/// The objects of a kind; nothing can be told without them.
fn objects<T: Named + PartialEq>(listing: &Listing<T>, kind: Kind) -> Result<&BTreeMap<String, T>, Error> {
    listing.known().map_err(|why| Error::Unknown { kind, why })
}

fn find<T: Named + PartialEq + Clone>(listing: &Listing<T>, kind: Kind, name: &str) -> Result<T, Error> {
    let objects = objects(listing, kind)?;
    objects.get(name).cloned().ok_or_else(|| {
        let mut there_are: Vec<String> = objects.keys().take(MOST_NAMES).cloned().collect();
        if objects.len() > MOST_NAMES {
            there_are.push(format!("{} more", objects.len() - MOST_NAMES));
        }
        Error::NoSuch { kind, name: name.to_owned(), there_are: there_are.join(", ") }
    })
}

impl Aftermath {
    fn scale(&mut self, name: &str, replicas: u32) -> Result<(), Error> {
        let mut set = find(&self.observed.stateful_sets, Kind::StatefulSets, name)?;
        self.touched.insert(set.name.clone());
        if set.replicas == replicas {
            self.notes.push(Note::AlreadySo { target: format!("statefulset {name}"), replicas });
        }
        let has = |template: &str| set.templates.iter().any(|known| known == template);
        if has(RAFT_LOG_TEMPLATE) {
            let (stateful_set, first_ordinal) = (set.name.clone(), set.first_ordinal);
            self.notes.push(Note::AdminServers(Scaling { stateful_set, first_ordinal, replicas }));
        } else if !has(ARCHIVE_TEMPLATE) {
            self.notes.push(Note::NoArchives(set.name.clone()));
        } else {
            let ordinals = set.first_ordinal..set.first_ordinal.saturating_add(replicas);
            self.missing.extend(ordinals.map(|ordinal| (set.name.clone(), ordinal)));
        }
        if set.replicas != replicas {
            (set.replicas, set.generation) = (replicas, set.generation + 1);
            self.observed.stateful_sets.apply(set);
        }
        Ok(())
    }

    fn scale_deployment(&mut self, name: &str, replicas: u32) -> Result<(), Error> {
        let mut deployment = find(&self.observed.deployments, Kind::Deployments, name)?;
        self.notes.push(if deployment.replicas == replicas {
            Note::AlreadySo { target: format!("deployment {name}"), replicas }
        } else {
            Note::Deployment { name: name.to_owned(), fewer: replicas < deployment.replicas }
        });
        deployment.replicas = replicas;
        self.observed.deployments.apply(deployment);
        Ok(())
    }

    fn delete_claim(&mut self, name: &str) -> Result<(), Error> {
        let claim = find(&self.observed.claims, Kind::Claims, name)?;
        self.observed.claims.apply(Claim { deleting: true, ..claim });
        self.deleted.insert(name.to_owned(), None);
        Ok(())
    }

    fn delete_pod(&mut self, name: &str) -> Result<(), Error> {
        let pod = find(&self.observed.pods, Kind::Pods, name)?;
        let place = self.place(&pod)?.map(|(set, ordinal)| (set.clone(), ordinal));
        if let Some((set, ordinal)) = &place {
            self.touched.insert(set.name.clone());
            if set.wants(*ordinal) && set.templates.iter().any(|template| template == ARCHIVE_TEMPLATE) {
                self.missing.insert((set.name.clone(), *ordinal));
            }
        }
        let unwanted = place.is_some_and(|(set, ordinal)| !set.wants(ordinal));
        self.notes.push(match &pod.owner {
            Some(owner) if !unwanted => {
                let owner = format!("{} {}", owner.kind.to_lowercase(), owner.name);
                Note::MadeAgain { pod: pod.name.clone(), owner }
            }
            _ => Note::NotMadeAgain(pod.name.clone()),
        });
        self.observed.pods.delete(name);
        self.gone.push(pod);
        Ok(())
    }

    /// The StatefulSet that a pod is of, and its ordinal.
    fn place(&self, pod: &Pod) -> Result<Option<(&StatefulSet, u32)>, Error> {
        let sets = objects(&self.observed.stateful_sets, Kind::StatefulSets)?;
        let Some((owner, ordinal)) = pod.owner.as_ref().zip(pod.ordinal()) else { return Ok(None) };
        let set = sets.get(&owner.name).filter(|set| set.uid == owner.uid);
        Ok(set.map(|set| (set, ordinal)))
    }

    /// The pods beyond the replicas go, and with them their claims where their StatefulSet says so.
    fn let_pods_go(&mut self) -> Result<(), Error> {
        for pod in objects(&self.observed.pods, Kind::Pods)?.clone().into_values() {
            let Some((set, ordinal)) = self.place(&pod)? else { continue };
            if set.wants(ordinal) {
                continue;
            }
            let set = set.clone();
            for template in set.templates.iter().filter(|_| set.deletes_claims_when_scaled) {
                let name = format!("{template}-{}", pod.name);
                let claim = objects(&self.observed.claims, Kind::Claims)?.get(&name).cloned();
                let Some(claim) = claim.filter(|claim| !claim.deleting) else { continue };
                self.observed.claims.apply(Claim { deleting: true, ..claim });
                self.notes.push(Note::ClaimDeletedByScaling { claim: name, stateful_set: set.name.clone() });
            }
            self.observed.pods.delete(&pod.name);
            self.gone.push(pod);
        }
        let pods = objects(&self.observed.pods, Kind::Pods)?;
        self.missing.retain(|(set, ordinal)| !pods.contains_key(&format!("{set}-{ordinal}")));
        Ok(())
    }

    /// A claim that is being deleted goes when the last pod that uses it is gone.
    fn let_claims_go(&mut self) -> Result<(), Error> {
        let claims = objects(&self.observed.claims, Kind::Claims)?.values();
        let deleting: Vec<Claim> = claims.filter(|claim| claim.deleting).cloned().collect();
        for claim in deleting {
            let named = self.deleted.contains_key(&claim.name);
            if !named && self.user(self.gone.iter(), &claim.name)?.is_none() {
                continue;
            }
            let pods = objects(&self.observed.pods, Kind::Pods)?;
            let user = self.user(pods.values(), &claim.name)?;
            if user.is_none() {
                self.observed.claims.delete(&claim.name);
            }
            self.deleted.entry(claim.name).and_modify(|held| *held = user);
        }
        Ok(())
    }

    /// Which of the pods uses a claim, as far as their volumes and their StatefulSets' templates tell.
    fn user<'a>(&self, pods: impl Iterator<Item = &'a Pod>, claim: &str) -> Result<Option<String>, Error> {
        for pod in pods {
            let template = claim.strip_suffix(&pod.name).and_then(|rest| rest.strip_suffix('-'));
            let place = self.place(pod)?;
            let of_template =
                place.is_some_and(|(set, _)| set.templates.iter().any(|known| Some(known.as_str()) == template));
            if of_template || pod.archive_claim.as_deref() == Some(claim) {
                return Ok(Some(pod.name.clone()));
            }
        }
        Ok(None)
    }
}
