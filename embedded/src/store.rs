//! The objects, their versions, and the history that watches are fed from.
//!
//! Everything that changes an object, be it a request, a controller or the kubelet, does so by one of [`Store::create`],
//! [`Store::update`], [`Store::edit`] and [`Store::delete`]. Each change takes the next number of one counter as its
//! resourceVersion. Nothing here knows the time or chance: both are given.

mod ids;

pub use ids::Ids;

use crate::failure::Failure;
use crate::object::{self, metadata, name, time};
use crate::resource::{Kind, Subresource};
use crate::{defaults, validate};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many changes are remembered. A watch that continues from before them is told to list again.
pub const HISTORY: usize = 10_000;

/// The version of an empty one. As in any Kubernetes that has been up for a while, the first ones are forgotten.
pub const BEGINNING: u64 = 1_000;

/// Finalizer: the garbage collector makes the dependents forget their owner before it goes.
pub const ORPHAN: &str = "orphan";
/// Finalizer: the garbage collector deletes the dependents before their owner goes.
pub const FOREGROUND: &str = "foregroundDeletion";

/// Which object is meant. `namespace` is empty for kinds that are in none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The object of this kind, namespace and name.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The key of an object.
    pub fn of(kind: Kind, object: &Value) -> Self {
        Self::new(kind, object::namespace(object), name(object))
    }
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// One change.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its number: the resourceVersion of the object after it.
    pub version: u64,
    /// What happened.
    pub event: Event,
    /// To which object.
    pub key: Key,
    /// The object after it; of one that is gone, its last state under the version of its end.
    pub object: Arc<Value>,
    /// The object before it.
    pub before: Option<Arc<Value>>,
}

/// Which part of an object a request writes; the other stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Main,
    /// The status only.
    Status,
}

/// What becomes of the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay, without an owner.
    Orphan,
}

/// How to delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// How many seconds a pod has to end; default: its own `terminationGracePeriodSeconds`.
    pub grace_seconds: Option<i64>,
    /// Only if it has this UID.
    pub uid: Option<String>,
    /// Only if it has this resourceVersion.
    pub version: Option<String>,
    /// What becomes of what it owns; default: background.
    pub propagation: Option<Propagation>,
}

/// What a deletion did.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object is gone; this is what it was.
    Gone(Arc<Value>),
    /// The object has a deletionTimestamp now.
    Begun(Arc<Value>),
}

/// All objects of one Kubernetes.
#[derive(Clone, Debug)]
pub struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    history: VecDeque<Change>,
    /// The last version that is not in the history any more.
    forgotten: u64,
    now: Timestamp,
    ids: Ids,
    /// The version up to which the controllers have acted, and when time alone gives them something to do.
    settled: (u64, Option<Timestamp>),
}

impl Store {
    /// Makes an empty one. The same seed makes the same identifiers.
    pub fn new(seed: u64, now: Timestamp) -> Self {
        let (objects, history) = (BTreeMap::new(), VecDeque::new());
        Self {
            objects,
            version: BEGINNING,
            history,
            forgotten: BEGINNING,
            now,
            ids: Ids::new(seed),
            settled: (0, None),
        }
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Moves the time on. It never goes back.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The source of identifiers.
    pub fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// The version up to which the controllers have acted, and when time alone gives them something to do.
    pub fn settled(&self) -> (u64, Option<Timestamp>) {
        self.settled
    }

    /// Says how far the controllers have acted.
    pub fn set_settled(&mut self, version: u64, due: Option<Timestamp>) {
        self.settled = (version, due);
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// An object, if it is there.
    pub fn find(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// An object.
    pub fn get(&self, key: &Key) -> Result<&Arc<Value>, Failure> {
        self.find(key).ok_or_else(|| Failure::not_found(key.kind, &key.name))
    }

    /// The objects of a kind, of one namespace or of all, by namespace and name.
    pub fn list(&self, kind: Kind, namespace: Option<&str>) -> impl Iterator<Item = &Arc<Value>> {
        let first = Key::new(kind, namespace.unwrap_or_default(), "");
        let here = move |key: &Key| key.kind == kind && namespace.is_none_or(|wanted| key.namespace == wanted);
        self.objects.range(first..).take_while(move |(key, _)| here(key)).map(|(_, object)| object)
    }

    /// The objects that an object controls, of a kind.
    pub fn controlled_by(&self, kind: Kind, owner: &Value) -> Vec<Arc<Value>> {
        let uid = object::uid(owner);
        let owned = |object: &&Arc<Value>| object::controller(object).is_some_and(|owner| owner["uid"] == uid);
        self.list(kind, Some(object::namespace(owner))).filter(owned).cloned().collect()
    }

    /// The changes after a version, or that they are not remembered.
    pub fn changes_since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Failure> {
        if version < self.forgotten {
            let (asked, oldest) = (version, self.forgotten);
            return Err(Failure::expired(format!("too old resource version: {asked} ({oldest})")));
        }
        let first = self.history.partition_point(|change| change.version <= version);
        Ok(self.history.range(first..))
    }

    /// Forgets what happened: every watch that is not up to date has to list again.
    pub fn forget_history(&mut self) {
        self.history.clear();
        self.forgotten = self.version;
    }

    /// Creates an object. Its namespace, if its kind has one, stands in its metadata; so does its name or
    /// `generateName`.
    pub fn create(&mut self, kind: Kind, mut object: Value) -> Result<Arc<Value>, Failure> {
        self.check_namespace(kind, &object)?;
        if name(&object).is_empty() {
            let prefix = object::text(&object, "/metadata/generateName").to_owned();
            if !prefix.is_empty() {
                let suffix = self.ids.suffix(5);
                metadata(&mut object).insert("name".to_owned(), json!(format!("{prefix}{suffix}")));
            }
        }
        defaults::fill(kind, &mut object);
        validate::created(kind, &object)?;
        self.check_account(kind, &object)?;
        let key = Key::of(kind, &object);
        if let Some(found) = self.objects.get(&key) {
            return Err(Failure::already_exists(kind, &key.name, object::is_deleting(found)));
        }
        let resource = kind.resource();
        object["apiVersion"] = json!(resource.api_version());
        object["kind"] = json!(resource.name);
        let (uid, now) = (self.ids.uid(), time(self.now));
        let metadata = metadata(&mut object);
        metadata.remove("deletionTimestamp");
        metadata.remove("deletionGracePeriodSeconds");
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), json!(now));
        if has_generation(kind) {
            metadata.insert("generation".to_owned(), json!(1));
        }
        Ok(self.commit(Event::Added, key, object))
    }

    /// Writes a part of an object. If it names a resourceVersion or a UID, they must be those of the object now.
    /// An object that waited only for its last finalizer goes with it.
    pub fn update(&mut self, key: &Key, part: Part, mut object: Value) -> Result<Arc<Value>, Failure> {
        let before = self.get(key)?.clone();
        let given = |field: &str| object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
        if given("resourceVersion")
            .is_some_and(|version| !version.is_empty() && before["metadata"]["resourceVersion"] != version)
        {
            return Err(Failure::stale(key.kind, &key.name));
        }
        if let Some(uid) = given("uid").filter(|uid| !uid.is_empty() && *uid != object::uid(&before)) {
            let path = [key.kind.resource().plural, &key.namespace, &key.name].join("/").replace("//", "/");
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{path}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                object::uid(&before)
            );
            return Err(Failure::conflict(key.kind, &key.name, &why));
        }
        if part == Part::Main {
            defaults::fill(key.kind, &mut object);
        }
        let object = merged(key.kind, part, &before, object);
        validate::updated(key.kind, part, &before, &object)?;
        if object == *before {
            return Ok(before);
        }
        let waits = object::is_deleting(&object) && object["metadata"]["deletionGracePeriodSeconds"] == 0;
        if waits && may_go(key.kind, &object) {
            return Ok(self.remove(key, object));
        }
        Ok(self.commit(Event::Modified, key.clone(), object))
    }

    /// Changes a part of an object as it is now.
    pub fn edit(&mut self, key: &Key, part: Part, change: impl FnOnce(&mut Value)) -> Result<Arc<Value>, Failure> {
        let mut object = Value::clone(self.get(key)?);
        change(&mut object);
        self.update(key, part, object)
    }

    /// Deletes an object, or begins to.
    pub fn delete(&mut self, key: &Key, options: &DeleteOptions) -> Result<Deleted, Failure> {
        let before = self.get(key)?.clone();
        let failed = |what: &str, wanted: &str, is: &str, since: &str| {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({is}). \
                 The object might have been {since}"
            );
            Err(Failure::precondition(key.kind, &key.name, &why))
        };
        let is = object::uid(&before);
        if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != is) {
            return failed("UID", wanted, is, "deleted and then recreated");
        }
        let is = object::text(&before, "/metadata/resourceVersion");
        if let Some(wanted) = options.version.as_deref().filter(|wanted| *wanted != is) {
            return failed("ResourceVersion", wanted, is, "modified");
        }
        let mut object = Value::clone(&before);
        let finalizer = match options.propagation {
            Some(Propagation::Orphan) => Some(ORPHAN),
            Some(Propagation::Foreground) => Some(FOREGROUND),
            Some(Propagation::Background) | None => None,
        };
        set_finalizer(&mut object, finalizer);
        let grace = grace_seconds(key.kind, &before, options.grace_seconds);
        if grace == 0 && may_go(key.kind, &object) {
            return Ok(Deleted::Gone(self.remove(key, object)));
        }
        self.begin_deletion(&mut object, key.kind, grace);
        if object == *before {
            return Ok(Deleted::Begun(before));
        }
        Ok(Deleted::Begun(self.commit(Event::Modified, key.clone(), object)))
    }

    /// Lets a namespace go that is being deleted and has nothing in it any more.
    pub fn finalize(&mut self, key: &Key) -> Result<(), Failure> {
        let mut namespace = Value::clone(self.get(key)?);
        namespace["spec"]["finalizers"] = json!([]);
        if may_go(key.kind, &namespace) {
            self.remove(key, namespace);
        } else {
            self.commit(Event::Modified, key.clone(), namespace);
        }
        Ok(())
    }

    /// Marks an object as one that is to go. A deletion that has begun can be made shorter, not longer.
    fn begin_deletion(&self, object: &mut Value, kind: Kind, grace: i64) {
        let began = object::is_deleting(object);
        if kind == Kind::Namespace {
            object["status"]["phase"] = json!("Terminating");
        }
        let metadata = metadata(object);
        if began && metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|now| now <= grace) {
            return;
        }
        let at = self.now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        metadata.insert("deletionTimestamp".to_owned(), json!(time(at)));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
        if let (false, Some(generation)) = (began, metadata.get("generation").and_then(Value::as_i64)) {
            metadata.insert("generation".to_owned(), json!(generation + 1));
        }
    }

    fn check_namespace(&self, kind: Kind, object: &Value) -> Result<(), Failure> {
        if !kind.resource().namespaced {
            return Ok(());
        }
        let namespace = object::namespace(object);
        let found = self.get(&Key::new(Kind::Namespace, "", namespace))?;
        if object::is_deleting(found) {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            return Err(Failure::forbidden(kind, name(object), &why));
        }
        Ok(())
    }

    /// A pod needs its ServiceAccount; the one called `default` is made with its namespace.
    fn check_account(&self, kind: Kind, object: &Value) -> Result<(), Failure> {
        let (namespace, account) = (object::namespace(object), object::text(object, "/spec/serviceAccountName"));
        let is_there = || self.find(&Key::new(Kind::ServiceAccount, namespace, account)).is_some();
        if kind != Kind::Pod || matches!(account, "" | "default") || is_there() {
            return Ok(());
        }
        let why =
            format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found");
        Err(Failure::forbidden(kind, name(object), &why))
    }

    fn commit(&mut self, event: Event, key: Key, object: Value) -> Arc<Value> {
        let object = self.note(event, key.clone(), object);
        self.objects.insert(key, object.clone());
        object
    }

    fn remove(&mut self, key: &Key, object: Value) -> Arc<Value> {
        let object = self.note(Event::Deleted, key.clone(), object);
        self.objects.remove(key);
        object
    }

    fn note(&mut self, event: Event, key: Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        metadata(&mut object).insert("resourceVersion".to_owned(), json!(self.version.to_string()));
        let object = Arc::new(object);
        let before = self.objects.get(&key).cloned();
        if self.history.len() == HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.version;
        }
        self.history.push_back(Change { version: self.version, event, key, object: object.clone(), before });
        object
    }
}

/// Whether changes of a kind's spec are counted.
fn has_generation(kind: Kind) -> bool {
    matches!(kind, Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet)
}

/// Whether nothing holds an object that is to go.
fn may_go(kind: Kind, object: &Value) -> bool {
    let held = kind == Kind::Namespace && !object::list(object, "/spec/finalizers").is_empty();
    !held && object::list(object, "/metadata/finalizers").is_empty()
}

fn set_finalizer(object: &mut Value, finalizer: Option<&str>) {
    let Some(finalizer) = finalizer.filter(|finalizer| !object::has_finalizer(object, finalizer)) else { return };
    let finalizers = metadata(object).entry("finalizers").or_insert_with(|| json!([]));
    finalizers.as_array_mut().expect("finalizers are a list").push(json!(finalizer));
}

/// How long an object may take to go: only a pod that runs on a node takes any time.
fn grace_seconds(kind: Kind, object: &Value, asked: Option<i64>) -> i64 {
    let ended = matches!(object::text(object, "/status/phase"), "Succeeded" | "Failed");
    if kind != Kind::Pod || ended || object::text(object, "/spec/nodeName").is_empty() {
        return 0;
    }
    let own = object::number(object, "/spec/terminationGracePeriodSeconds").unwrap_or(30);
    asked.unwrap_or(own).max(0)
}

/// The object after a request wrote a part of it: what requests may not write is as before.
fn merged(kind: Kind, part: Part, before: &Value, mut written: Value) -> Value {
    if part == Part::Status {
        let mut object = before.clone();
        object["status"] = written["status"].take();
        return object;
    }
    for field in ["apiVersion", "kind"] {
        written[field] = before[field].clone();
    }
    if kind.resource().subresources.contains(&Subresource::Status) {
        match before.get("status") {
            Some(status) => written["status"] = status.clone(),
            None => drop(written.as_object_mut().and_then(|object| object.remove("status"))),
        }
    }
    let fixed = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
        "generation",
    ];
    for field in fixed {
        match before["metadata"].get(field) {
            Some(value) => drop(metadata(&mut written).insert(field.to_owned(), value.clone())),
            None => drop(metadata(&mut written).remove(field)),
        }
    }
    if has_generation(kind) && written["spec"] != before["spec"] {
        let generation = object::number(before, "/metadata/generation").unwrap_or(0) + 1;
        written["metadata"]["generation"] = json!(generation);
    }
    written
}

#[cfg(test)]
mod tests;
