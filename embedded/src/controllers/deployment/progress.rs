//! What a Deployment says of itself: counts, whether enough pods are available, and whether an update gets on.

use super::{Pass, available, replicas};
use crate::controllers::{Due, pods};
use crate::failure::Failure;
use crate::object::{self, name, number, text, time};
use crate::store::{Part, Store};
use jiff::SignedDuration;
use serde_json::{Map, Value, json};

/// What a condition says: whether it holds, and why.
struct Says(&'static str, &'static str, String);

/// How far an update is.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
}

impl Counts {
    /// Those that a status tells.
    fn told(status: &Value) -> Self {
        let at = |field: &str| status[field].as_i64().unwrap_or(0);
        let (replicas, updated) = (at("replicas"), at("updatedReplicas"));
        Self { replicas, updated, ready: at("readyReplicas"), available: at("availableReplicas") }
    }

    fn is_beyond(&self, before: &Self) -> bool {
        let fewer_old = self.replicas - self.updated < before.replicas - before.updated;
        let more_new = self.updated > before.updated;
        fewer_old || more_new || self.ready > before.ready || self.available > before.available
    }
}

impl Pass<'_> {
    /// Whether the newest template is all there is, and all of it is available.
    pub(super) fn is_complete(&self) -> bool {
        let Counts { replicas, updated, available, .. } = self.counts();
        [replicas, updated, available] == [self.wanted, self.wanted, self.wanted]
    }

    fn counts(&self) -> Counts {
        let of = |set: &Value, field: &str| number(set, &format!("/status/{field}")).unwrap_or(0);
        let total = |field: &str| self.all().map(|set| of(set, field)).sum();
        Counts {
            replicas: total("replicas"),
            updated: self.new.as_ref().map_or(0, |set| of(set, "replicas")),
            ready: total("readyReplicas"),
            available: self.all().map(|set| available(set)).sum(),
        }
    }

    pub(super) fn write_status(&self, store: &mut Store, due: &mut Due) -> Result<(), Failure> {
        let counts = self.counts();
        let asked: i64 = self.all().map(|set| replicas(set)).sum();
        let mut status = Map::new();
        pods::count(&mut status, "replicas", counts.replicas);
        pods::count(&mut status, "updatedReplicas", counts.updated);
        pods::count(&mut status, "readyReplicas", counts.ready);
        pods::count(&mut status, "availableReplicas", counts.available);
        pods::count(&mut status, "unavailableReplicas", (asked - counts.available).max(0));
        let availability = self.condition(store, "Available", self.availability(&counts), false);
        let conditions = [Some(availability), self.progress(store, &counts, due)];
        status.insert("conditions".to_owned(), conditions.into_iter().flatten().collect());
        status.insert("observedGeneration".to_owned(), self.deployment["metadata"]["generation"].clone());
        if let Some(collisions) = self.deployment["status"].get("collisionCount") {
            status.insert("collisionCount".to_owned(), collisions.clone());
        }
        store.edit(&self.key(), Part::Status, |deployment| *object::entry(deployment, "status") = status)?;
        Ok(())
    }

    fn availability(&self, counts: &Counts) -> Says {
        if counts.available >= self.wanted - self.missing {
            Says("True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
        } else {
            Says("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.".to_owned())
        }
    }

    fn progress(&self, store: &Store, counts: &Counts, due: &mut Due) -> Option<Value> {
        let known = pods::condition(self.deployment, "Progressing");
        if self.deployment["spec"]["paused"] == true {
            let paused = Says("Unknown", "DeploymentPaused", "Deployment is paused".to_owned());
            return Some(self.condition(store, "Progressing", paused, false));
        }
        let Some(new) = &self.new else { return known.cloned() };
        let set = format!("ReplicaSet {:?}", name(new));
        let reason = known.map_or("", |known| text(known, "/reason"));
        if self.is_complete() {
            let done = Says("True", "NewReplicaSetAvailable", format!("{set} has successfully progressed."));
            return Some(self.condition(store, "Progressing", done, false));
        }
        // Once an update is through, pods that come and go later are no part of it.
        if reason == "NewReplicaSetAvailable" && counts.replicas == counts.updated {
            return known.cloned();
        }
        let Some(known) = known else {
            let made = Says("True", "NewReplicaSetCreated", format!("Created new replica set {:?}", name(new)));
            return Some(self.condition(store, "Progressing", made, true));
        };
        let begins = matches!(reason, "NewReplicaSetAvailable" | "DeploymentPaused");
        if begins || counts.is_beyond(&Counts::told(&self.deployment["status"])) {
            let on = Says("True", "ReplicaSetUpdated", format!("{set} is progressing."));
            return Some(self.condition(store, "Progressing", on, true));
        }
        let seconds = number(self.deployment, "/spec/progressDeadlineSeconds").unwrap_or(600);
        let since = pods::time_of(text(known, "/lastUpdateTime"))?;
        let deadline = since.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        if reason == "ProgressDeadlineExceeded" {
            return Some(known.clone());
        }
        if deadline > store.now() {
            due.at(deadline);
            return Some(known.clone());
        }
        let late = Says("False", "ProgressDeadlineExceeded", format!("{set} has timed out progressing."));
        Some(self.condition(store, "Progressing", late, false))
    }

    /// A condition as it is to be written. One that says what it said before is left as it is, unless it is to show that
    /// something moved.
    fn condition(&self, store: &Store, kind: &str, Says(status, reason, message): Says, moved: bool) -> Value {
        let known = pods::condition(self.deployment, kind);
        let same = known.filter(|known| known["status"] == status);
        let unmoved = same.filter(|known| !moved && known["reason"] == reason && known["message"] == message.as_str());
        if let Some(known) = unmoved {
            return known.clone();
        }
        let now = time(store.now());
        let since = same.map_or(now.as_str(), |known| text(known, "/lastTransitionTime"));
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": since,
        })
    }
}
