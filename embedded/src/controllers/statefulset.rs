//! StatefulSets: pods with an ordinal each, made and removed in order, and their claims.
//!
//! One pass follows Kubernetes' own: first every wanted ordinal gets its pod, then what is beyond them goes, highest
//! first, then one pod of another revision is replaced. A set that is `OrderedReady` stops at the first pod that is not
//! ready; a `Parallel` one waits for none. There are never two pods of one ordinal, since they would have one name.

mod revision;
mod storage;

use super::{Due, ownership, pods};
use crate::events::{self, Type};
use crate::failure::Failure;
use crate::object::{self, name, namespace, number, text};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part, Store};
use revision::Revisions;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use storage::Provided;

/// Its name in Events.
pub const COMPONENT: &str = "statefulset-controller";

/// Whether a pass continues, or has to wait for what it did or found.
type Step = Result<ControlFlow<()>, Failure>;
const ON: ControlFlow<()> = ControlFlow::Continue(());
const WAIT: ControlFlow<()> = ControlFlow::Break(());

/// One pass over one set.
struct Pass<'a> {
    set: &'a Value,
    revisions: Revisions,
    wanted: Range<i64>,
    /// The pods that there are.
    pods: BTreeMap<i64, Arc<Value>>,
    /// Whether each pod waits for the one before it.
    ordered: bool,
}

/// Looks after a set. One that waits for its pods to be deleted before it makes no more of them.
pub fn act(store: &mut Store, set: &Value, due: &mut Due) -> Result<(), Failure> {
    if object::is_deleting(set) {
        return Ok(());
    }
    let owner = (Kind::StatefulSet, set);
    let own = ownership::claim(store, owner, Kind::Pod, |pod| storage::ordinal(set, name(pod)).is_some())?;
    let ordinal = |pod: Arc<Value>| Some((storage::ordinal(set, name(&pod))?, pod));
    let pods: BTreeMap<i64, Arc<Value>> = own.into_iter().filter_map(ordinal).collect();
    let revisions = revision::sync(store, set, pods.values())?;
    let ordered = text(set, "/spec/podManagementPolicy") != "Parallel";
    let pass = Pass { set, revisions, wanted: storage::wanted(set), pods, ordered };
    pass.write_status(store, due)?;
    if pass.fill(store, due)?.is_continue() && pass.shrink(store, due)?.is_continue() {
        pass.roll(store, due)?;
    }
    Ok(())
}

impl Pass<'_> {
    /// Gives every wanted ordinal its pod.
    fn fill(&self, store: &mut Store, due: &mut Due) -> Step {
        let mut all = ON;
        for ordinal in self.wanted.clone() {
            let step = match self.pods.get(&ordinal) {
                Some(pod) => self.keep(store, ordinal, pod, due)?,
                None => self.create(store, ordinal)?,
            };
            if step == WAIT {
                all = WAIT;
                if self.ordered {
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Looks after a pod that is wanted: one that has ended is replaced.
    fn keep(&self, store: &mut Store, ordinal: i64, pod: &Arc<Value>, due: &mut Due) -> Step {
        if pods::has_ended(pod) {
            if !object::is_deleting(pod) {
                self.delete(store, pod)?;
            }
            return Ok(WAIT);
        }
        if pods::phase(pod) == "Pending" && storage::provide(store, self.set, ordinal)? != Provided::All && self.ordered
        {
            return Ok(WAIT);
        }
        if self.ordered && !self.is_settled(store, pod, due) {
            return Ok(WAIT);
        }
        let before = store.version();
        storage::retain(store, self.set, ordinal, pod)?;
        if store.version() != before {
            let message = format!("update Pod {} in StatefulSet {} successful", name(pod), name(self.set));
            events::record(store, self.set, Type::Normal, "SuccessfulUpdate", &message, COMPONENT);
        }
        Ok(ON)
    }

    fn is_settled(&self, store: &Store, pod: &Value, due: &mut Due) -> bool {
        !object::is_deleting(pod) && pods::is_available(store, self.set, pod, due)
    }

    /// Makes the pod of an ordinal, and before it the claims that it has none of yet.
    fn create(&self, store: &mut Store, ordinal: i64) -> Step {
        let pod = self.pod(ordinal);
        let told = |store: &mut Store, kind: Type, reason: &str, end: &str| {
            let message = format!("create Pod {} in StatefulSet {} {end}", name(&pod), name(self.set));
            events::record(store, self.set, kind, reason, &message, COMPONENT);
        };
        match storage::provide(store, self.set, ordinal)? {
            Provided::All => {}
            Provided::Stale => return Ok(WAIT),
            Provided::Leaving(claim) => {
                let end = format!("failed error: pvc {claim} is being deleted");
                told(store, Type::Warning, "FailedCreate", &end);
                return Ok(WAIT);
            }
        }
        match store.create(Kind::Pod, pod.clone()) {
            Ok(pod) => {
                told(store, Type::Normal, "SuccessfulCreate", "successful");
                storage::retain(store, self.set, ordinal, &pod)?;
            }
            // Another owner's pod has the name. Once it is gone, this one is made.
            Err(failure) if failure.reason == "AlreadyExists" => {}
            Err(failure) => told(store, Type::Warning, "FailedCreate", &format!("failed error: {failure}")),
        }
        Ok(WAIT)
    }

    /// Removes what is beyond the wanted ordinals, highest first.
    fn shrink(&self, store: &mut Store, due: &mut Due) -> Step {
        let condemned: Vec<_> = self.pods.iter().rev().filter(|(ordinal, _)| !self.wanted.contains(ordinal)).collect();
        for (ordinal, pod) in &condemned {
            storage::retain(store, self.set, **ordinal, pod)?;
        }
        // One that is not ready holds up those below it, unless it is the lowest such: then waiting would not end.
        let lowest_unready = condemned.iter().rev().find(|(_, pod)| object::is_deleting(pod) || !pods::is_ready(pod));
        let excused = lowest_unready.map(|(ordinal, _)| **ordinal);
        for (ordinal, pod) in &condemned {
            if !object::is_deleting(pod) {
                if self.ordered && !self.is_settled(store, pod, due) && excused != Some(**ordinal) {
                    return Ok(WAIT);
                }
                self.delete(store, pod)?;
            }
            if self.ordered {
                return Ok(WAIT);
            }
        }
        Ok(ON)
    }

    /// Replaces one pod that is not of the newest revision, highest first, once all above it are available.
    fn roll(&self, store: &mut Store, due: &mut Due) -> Result<(), Failure> {
        if text(self.set, "/spec/updateStrategy/type") == "OnDelete" {
            return Ok(());
        }
        for ordinal in (self.wanted.start + self.partition()..self.wanted.end).rev() {
            let Some(pod) = self.pods.get(&ordinal) else { return Ok(()) };
            if self.revision_of(pod) != self.revisions.update.name && !object::is_deleting(pod) {
                return self.delete(store, pod);
            }
            if !self.is_settled(store, pod, due) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn partition(&self) -> i64 {
        number(self.set, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0)
    }

    fn revision_of<'b>(&self, pod: &'b Value) -> &'b str {
        object::label(pod, revision::LABEL).unwrap_or_default()
    }

    /// The pod of an ordinal: below the partition of a rolling update it is of the revision that the set had before.
    fn pod(&self, ordinal: i64) -> Value {
        let rolling = text(self.set, "/spec/updateStrategy/type") != "OnDelete";
        let before = rolling && ordinal < self.wanted.start + self.partition();
        let revision = if before { &self.revisions.current } else { &self.revisions.update };
        let mut pod = pods::from_template(Kind::StatefulSet, self.set, &revision.template);
        let name = format!("{}-{ordinal}", name(self.set));
        let index = ordinal.to_string();
        let labels = [
            ("statefulset.kubernetes.io/pod-name", name.as_str()),
            ("apps.kubernetes.io/pod-index", index.as_str()),
            (revision::LABEL, revision.name.as_str()),
        ];
        pods::label(&mut pod, labels);
        pod["spec"]["hostname"] = json!(name);
        if let Some(service) = self.set["spec"].get("serviceName") {
            pod["spec"]["subdomain"] = service.clone();
        }
        storage::mount(self.set, &mut pod, ordinal);
        pod["metadata"]["name"] = json!(name);
        pod
    }

    fn delete(&self, store: &mut Store, pod: &Value) -> Result<(), Failure> {
        let only_this = DeleteOptions { uid: Some(object::uid(pod).to_owned()), ..DeleteOptions::default() };
        store.delete(&Key::of(Kind::Pod, pod), &only_this)?;
        let message = format!("delete Pod {} in StatefulSet {} successful", name(pod), name(self.set));
        events::record(store, self.set, Type::Normal, "SuccessfulDelete", &message, COMPONENT);
        Ok(())
    }

    fn write_status(&self, store: &mut Store, due: &mut Due) -> Result<(), Failure> {
        let tally = |fits: &dyn Fn(&Value) -> bool| {
            i64::try_from(self.pods.values().filter(|pod| fits(pod)).count()).expect("there are not so many pods")
        };
        let of = |revision: &str| tally(&|pod| !object::is_deleting(pod) && self.revision_of(pod) == revision);
        let (replicas, ready) = (tally(&|_| true), tally(&pods::is_ready));
        let available =
            self.pods.values().map(|pod| i64::from(pods::is_available(store, self.set, pod, due))).sum::<i64>();
        let update = &self.revisions.update.name;
        let updated = of(update);
        let wanted = self.wanted.end - self.wanted.start;
        let rolled = text(self.set, "/spec/updateStrategy/type") != "OnDelete"
            && [replicas, updated, ready] == [wanted, wanted, wanted];
        let current = if rolled { update } else { &self.revisions.current.name };
        let key = Key::new(Kind::StatefulSet, namespace(self.set), name(self.set));
        store.edit(&key, Part::Status, |set| {
            let generation = set["metadata"]["generation"].clone();
            let status = object::entry(set, "status");
            status.insert("observedGeneration".to_owned(), generation);
            status.insert("replicas".to_owned(), json!(replicas));
            status.insert("availableReplicas".to_owned(), json!(available));
            status.insert("currentRevision".to_owned(), json!(current));
            status.insert("updateRevision".to_owned(), json!(update));
            status.entry("collisionCount").or_insert_with(|| json!(0));
            pods::count(status, "readyReplicas", ready);
            pods::count(status, "currentReplicas", of(current));
            pods::count(status, "updatedReplicas", updated);
        })?;
        Ok(())
    }
}
