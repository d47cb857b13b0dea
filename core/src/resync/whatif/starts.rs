//! The pods that are wanted and not there start, and their storage managers register: which archive each gets is the
//! domain's decision, taken on the copy. What a volume holds cannot be known from here, so a claim on which the domain
//! knows no archive is left open.

use super::Hypothesis;
use super::outcome::{Gets, Step};
use crate::domain::archive::{Archive, Claim, Ordinal};
use crate::domain::change::Command;
use crate::domain::command::{Outcome, Role};
use crate::domain::evidence::{Evidence, Fact};
use crate::domain::ids::{ArchiveId, DatabaseName, Millis, Uid};
use crate::domain::process::{About, EngineKind, Identity, Registration};
use crate::observed::objects::{ARCHIVE_TEMPLATE, Claim as ClaimObject, Owner, Pod, StatefulSet};
use crate::resync::Policy;

impl Hypothesis<'_> {
    /// Starts what is missing; whether anything did.
    pub(super) fn start(&mut self) -> bool {
        let missing = std::mem::take(&mut self.after.missing);
        let Ok(sets) = self.after.observed.stateful_sets.known() else { return false };
        let missing = missing.iter().filter_map(|(set, ordinal)| Some((sets.get(set)?.clone(), *ordinal)));
        let missing: Vec<(StatefulSet, u32)> = missing.collect();
        for (set, ordinal) in &missing {
            let gets = self.start_one(set, *ordinal);
            self.steps.push(Step::Starts { pod: format!("{}-{ordinal}", set.name), gets });
        }
        !missing.is_empty()
    }

    fn start_one(&mut self, set: &StatefulSet, ordinal: u32) -> Gets {
        let Some(database) = self.database(set) else {
            return Gets::NoDatabase { stateful_set: set.name.clone() };
        };
        let claim = format!("{ARCHIVE_TEMPLATE}-{}-{ordinal}", set.name);
        let object = self.after.observed.claims.known().ok().and_then(|claims| claims.get(&claim));
        let uid = match object {
            Some(object) if object.deleting => return Gets::NothingYet { claim },
            Some(object) => object.uid.clone(),
            None => Uid::new(format!("what-if-{claim}")),
        };
        let known = object.is_none() || self.archive_on(&uid).is_some();
        if !known {
            return Gets::WhatTheVolumeSays { claim };
        }
        let object = ClaimObject { name: claim.clone(), uid: uid.clone(), deleting: false, database: None };
        self.after.observed.claims.apply(object);
        let place = Ordinal { stateful_set: set.name.clone(), uid: set.uid.clone(), ordinal };
        self.register(place, database, claim, uid)
    }

    fn register(&mut self, place: Ordinal, database: DatabaseName, claim: String, claim_uid: Uid) -> Gets {
        let name = place.to_string();
        let pod = Pod {
            uid: Uid::new(format!("what-if-{name}")),
            owner: Some(Owner {
                kind: "StatefulSet".to_owned(),
                name: place.stateful_set.clone(),
                uid: place.uid.clone(),
            }),
            archive_claim: Some(claim.clone()),
            name,
            ..Pod::default()
        };
        let before = self.archive_on(&claim_uid).map(|archive| (archive.id, archive.removed.is_some()));
        let archives: Vec<ArchiveId> = self.domain.archives.keys().copied().collect();
        let mut registration = registration(self.policy, &pod, place, database, (claim, claim_uid));
        // What is supposed is supposed of the domain's own Kubernetes.
        let anchor = self.domain.anchor_in(&self.policy.cluster).map(|uid| Fact::AnchorIs { uid: uid.clone() });
        registration.evidence = Some(Evidence { read_at: self.domain.time, facts: anchor.into_iter().collect() });
        self.after.observed.pods.apply(pod);
        if let Outcome::Refused(why) = self.apply(Role::Agent, Command::RegisterProcess(Box::new(registration))) {
            return Gets::Refused(why);
        }
        let left = |archive: &ArchiveId| self.domain.archives.contains_key(archive);
        match before {
            Some((archive, true)) => Gets::Resurrected(archive),
            Some((archive, false)) => Gets::Kept(archive),
            None => Gets::New { purged: archives.into_iter().filter(|archive| !left(archive)).collect() },
        }
    }

    fn archive_on(&self, claim: &Uid) -> Option<&Archive> {
        self.domain.archives.values().find(|archive| archive.claim.as_ref().is_some_and(|known| known.uid == *claim))
    }

    /// What the StatefulSet's engines serve: as those that have registered said, or as its label says.
    fn database(&self, set: &StatefulSet) -> Option<DatabaseName> {
        let of_set = |archive: &&Archive| {
            let owner = archive.claim.as_ref().and_then(|claim| claim.owner.as_ref());
            owner.is_some_and(|owner| owner.uid == set.uid)
        };
        let archive = self.domain.archives.values().find(of_set);
        archive.map(|archive| archive.database.clone()).or_else(|| set.database.clone())
    }
}

/// What the storage manager of a pod that starts would say of itself.
fn registration(
    policy: &Policy,
    pod: &Pod,
    place: Ordinal,
    database: DatabaseName,
    (claim, claim_uid): (String, Uid),
) -> Registration {
    Registration {
        database,
        kind: EngineKind::Sm,
        cluster: policy.cluster.clone(),
        identity: Identity {
            namespace: policy.namespace.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            container: "engine".to_owned(),
            nonce: 0,
            started: Millis(0),
        },
        known_as: None,
        claim: Some(Claim { namespace: policy.namespace.clone(), name: claim, uid: claim_uid, owner: Some(place) }),
        marker: None,
        path: String::new(),
        server: "what-if".into(),
        connection: 0,
        about: About::default(),
        evidence: None,
        as_of: None,
    }
}
