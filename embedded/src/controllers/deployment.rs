//! Deployments: a ReplicaSet for each template, and replicas moved from the old ones to the new.
//!
//! Two things of Kubernetes are not done: replicas added in the middle of an update go to the new ReplicaSet instead of
//! being shared out among all, and what a rollback restores is not noted in the history.

mod progress;

use super::{Due, ownership, pods};
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{self, metadata, name, namespace, number, text};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// Its name in Events.
pub const COMPONENT: &str = "deployment-controller";

const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";
const HASH: &str = "pod-template-hash";

/// One pass over one Deployment.
struct Pass<'a> {
    deployment: &'a Value,
    /// The ReplicaSet of its template.
    new: Option<Arc<Value>>,
    /// Those of the templates that it had before, oldest first.
    old: Vec<Arc<Value>>,
    wanted: i64,
    /// How many pods there may be beyond those that are wanted, and how many of those that are may be missing.
    surge: i64,
    missing: i64,
}

/// Looks after a Deployment. One that waits for its ReplicaSets to be deleted makes no more of them.
pub fn act(store: &mut Store, deployment: &Value, due: &mut Due) -> Result<(), Failure> {
    if object::is_deleting(deployment) {
        return Ok(());
    }
    let pass = Pass::new(store, deployment)?;
    pass.write_status(store, due)?;
    if deployment["spec"]["paused"] == true {
        let mut active = pass.all().filter(|set| replicas(set) > 0);
        if let (Some(only), None) = (active.next(), active.next()) {
            pass.scale(store, only, pass.wanted)?;
        }
        return Ok(());
    }
    if pass.is_recreated() {
        pass.recreate(store)?
    } else {
        pass.roll(store)?
    }
    pass.forget(store)
}

/// How many pods a ReplicaSet is to have.
fn replicas(set: &Value) -> i64 {
    number(set, "/spec/replicas").unwrap_or(1)
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["annotations"][REVISION].as_str().and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

/// A number of pods, or a share of them in percent.
fn share(value: &Value, of: i64, up: bool) -> i64 {
    let percent = value.as_str().unwrap_or("25%").trim_end_matches('%').parse().unwrap_or(0) * of;
    value.as_i64().unwrap_or((percent + if up { 99 } else { 0 }) / 100)
}

impl<'a> Pass<'a> {
    fn new(store: &mut Store, deployment: &'a Value) -> Result<Self, Failure> {
        let mut sets = ownership::claim(store, (Kind::Deployment, deployment), Kind::ReplicaSet, |_| true)?;
        sets.sort_by_cached_key(|set| (text(set, "/metadata/creationTimestamp").to_owned(), revision(set)));
        let same = |set: &Arc<Value>| {
            let mut template = set["spec"]["template"].clone();
            if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
                labels.remove(HASH);
            }
            template == deployment["spec"]["template"]
        };
        let new = sets.iter().position(same).map(|at| sets.remove(at));
        let wanted = number(deployment, "/spec/replicas").unwrap_or(1);
        let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
        let surge = share(&rolling["maxSurge"], wanted, true);
        let missing = share(&rolling["maxUnavailable"], wanted, false);
        // With neither, nothing could ever be replaced.
        let missing = if surge == 0 { missing.max(1) } else { missing };
        let mut pass = Pass { deployment, new, old: sets, wanted, surge, missing };
        if pass.is_recreated() {
            (pass.surge, pass.missing) = (0, wanted);
        }
        Ok(pass)
    }

    fn is_recreated(&self) -> bool {
        text(self.deployment, "/spec/strategy/type") == "Recreate"
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.old.iter().chain(&self.new)
    }

    fn key(&self) -> Key {
        Key::new(Kind::Deployment, namespace(self.deployment), name(self.deployment))
    }

    /// Adds to the new, as far as the surge goes; takes from the old, as far as enough others are available.
    fn roll(&self, store: &mut Store) -> Result<(), Failure> {
        let total: i64 = self.all().map(|set| replicas(set)).sum();
        let has = self.new.as_ref().map_or(0, |set| replicas(set));
        let room = (self.wanted + self.surge - total).max(0);
        let more = if has > self.wanted { self.wanted } else { has + room.min(self.wanted - has) };
        let new = self.renew(store, more)?;
        let enough = self.wanted - self.missing;
        let unavailable = replicas(&new) - available(&new);
        let mut spare = total - enough - unavailable;
        // First what is not available anyhow: taking it away costs nothing.
        let mut left: Vec<(&Arc<Value>, i64)> = Vec::new();
        for set in &self.old {
            let fewer = (replicas(set) - available(set)).clamp(0, spare.max(0));
            spare -= fewer;
            left.push((set, replicas(set) - fewer));
        }
        let mut spare = (self.all().map(|set| available(set)).sum::<i64>() - enough).clamp(0, spare.max(0));
        for (set, left) in left {
            let fewer = left.min(spare);
            spare -= fewer;
            self.scale(store, set, left - fewer)?;
        }
        Ok(())
    }

    /// Takes all of the old away, and only then makes the new.
    fn recreate(&self, store: &mut Store) -> Result<(), Failure> {
        for set in &self.old {
            self.scale(store, set, 0)?;
        }
        let left = |set: &Arc<Value>| store.controlled_by(Kind::Pod, set).iter().any(|pod| !pods::has_ended(pod));
        if self.old.iter().any(left) {
            return Ok(());
        }
        self.renew(store, self.wanted).map(drop)
    }

    /// The new ReplicaSet, made if it is not there, with so many replicas.
    fn renew(&self, store: &mut Store, replicas: i64) -> Result<Arc<Value>, Failure> {
        let newest = self.old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
        let new = match &self.new {
            Some(set) => {
                let number = revision(set).max(newest);
                store.edit(&Key::of(Kind::ReplicaSet, set), Part::Main, |set| self.note(set, number))?;
                self.scale(store, set, replicas)?
            }
            None => self.create(store, replicas, newest)?,
        };
        store.edit(&self.key(), Part::Main, |deployment| {
            annotate(deployment, REVISION, new["metadata"]["annotations"][REVISION].clone());
        })?;
        Ok(new)
    }

    fn create(&self, store: &mut Store, replicas: i64, revision: i64) -> Result<Arc<Value>, Failure> {
        let spec = &self.deployment["spec"];
        let hash = pods::hash(&spec["template"], number(self.deployment, "/status/collisionCount").unwrap_or(0));
        let set_name = format!("{}-{hash}", name(self.deployment));
        let mut template = spec["template"].clone();
        pods::label(&mut template, [(HASH, &hash)]);
        let mut selector = spec["selector"].clone();
        object::entry(&mut selector, "matchLabels").insert(HASH.to_owned(), json!(hash));
        let mut set = json!({
            "metadata": {
                "name": set_name, "namespace": namespace(self.deployment), "labels": template["metadata"]["labels"],
            },
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        });
        ownership::refer(&mut set, &ownership::reference(Kind::Deployment, self.deployment), true);
        self.note(&mut set, revision);
        let made = store.create(Kind::ReplicaSet, set);
        if made.as_ref().is_err_and(|failure| failure.reason == "AlreadyExists") {
            // Another template has that name: the next pass tries the next one.
            store.edit(&self.key(), Part::Status, |deployment| {
                let next = number(deployment, "/status/collisionCount").unwrap_or(0) + 1;
                object::entry(deployment, "status").insert("collisionCount".to_owned(), json!(next));
            })?;
        }
        let made = made?;
        if replicas > 0 {
            self.tell(store, &format!("Scaled up replica set {set_name} from 0 to {replicas}"));
        }
        Ok(made)
    }

    /// Writes into a ReplicaSet what it has from its Deployment besides the template.
    fn note(&self, set: &mut Value, revision: i64) {
        let own = [REVISION, DESIRED, MAXIMUM, "kubectl.kubernetes.io/last-applied-configuration"];
        for (key, value) in self.deployment["metadata"]["annotations"].as_object().into_iter().flatten() {
            if !own.contains(&key.as_str()) {
                annotate(set, key, value.clone());
            }
        }
        annotate(set, REVISION, json!(revision.to_string()));
        annotate(set, DESIRED, json!(self.wanted.to_string()));
        annotate(set, MAXIMUM, json!((self.wanted + self.surge).to_string()));
        if let Some(seconds) = self.deployment["spec"].get("minReadySeconds") {
            set["spec"]["minReadySeconds"] = seconds.clone();
        }
    }

    fn scale(&self, store: &mut Store, set: &Arc<Value>, to: i64) -> Result<Arc<Value>, Failure> {
        let from = replicas(set);
        let scaled = store.edit(&Key::of(Kind::ReplicaSet, set), Part::Main, |set| {
            set["spec"]["replicas"] = json!(to);
            annotate(set, DESIRED, json!(self.wanted.to_string()));
            annotate(set, MAXIMUM, json!((self.wanted + self.surge).to_string()));
        })?;
        if from != to {
            let way = if from < to { "up" } else { "down" };
            self.tell(store, &format!("Scaled {way} replica set {} from {from} to {to}", name(set)));
        }
        Ok(scaled)
    }

    fn tell(&self, store: &mut Store, message: &str) {
        events::record(store, self.deployment, Type::Normal, "ScalingReplicaSet", message, COMPONENT);
    }

    /// Forgets the oldest templates once the newest is all there is.
    fn forget(&self, store: &mut Store) -> Result<(), Failure> {
        let kept = usize::try_from(number(self.deployment, "/spec/revisionHistoryLimit").unwrap_or(10)).unwrap_or(0);
        let is_empty = |set: &&Arc<Value>| replicas(set) == 0 && number(set, "/status/replicas").unwrap_or(0) == 0;
        if !self.is_complete() {
            return Ok(());
        }
        let mut empty: Vec<_> = self.old.iter().filter(is_empty).collect();
        empty.sort_by_key(|set| revision(set));
        for set in empty.iter().take(empty.len().saturating_sub(kept)) {
            store.delete(&Key::of(Kind::ReplicaSet, set), &DeleteOptions::default())?;
        }
        Ok(())
    }
}

fn available(set: &Value) -> i64 {
    number(set, "/status/availableReplicas").unwrap_or(0)
}

fn annotate(object: &mut Value, key: &str, value: Value) {
    metadata(object).entry("annotations").or_insert_with(|| json!({}))[key] = value;
}
