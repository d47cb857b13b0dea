//! One pod: a task that starts what has to run, waits for what happens, and tells the API.
//!
//! A pod that is deleted has its grace period. One whose object is gone, because it was deleted by force or replaced,
//! has a second and no hooks: a real cluster does not wait for it at all, but here its successor waits.

use super::Node;
use super::environment::Place;
use super::lifecycle::{self, Ended, Member, Next, Policy, State};
use super::logs::Log;
use super::probes::{self, PURPOSES, Purpose, Target, Verdict};
use super::process;
use super::run::{self, Run, Stop, Told};
use super::start;
use super::status::{self, Report};
use super::volumes::{self, Sources, Volume, Volumes};
use crate::events::{self, Type};
use crate::object::{self, is_deleting, list, name, number, text, uid};
use crate::resource::Kind;
use crate::store::{DeleteOptions, Key, Part};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// What a pod has whose object is gone.
const GONE_GRACE: Duration = Duration::from_secs(1);
/// How many runs and probes can have something to tell at once.
const TOLD: usize = 64;
/// When volumes that cannot be made are tried again, if nothing changes before.
const MOUNT_PERIOD: SignedDuration = SignedDuration::from_secs(10);

/// What is wanted of a pod.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The object; `None` once it is gone, or replaced by one with another UID.
    pub object: Option<Arc<Value>>,
    /// Counts the changes of what volumes and environments are made from.
    pub contents: u64,
    /// Whether the kubelet stops.
    pub stopping: bool,
}

/// A container that runs.
struct Live {
    id: String,
    stop: watch::Sender<Option<Stop>>,
    probing: Option<AbortHandle>,
}

/// What there is to react to.
enum Action {
    Wish,
    Told(Told),
    Verdict(Verdict),
    Due,
}

/// The task of one pod.
pub(super) struct Pod {
    node: Arc<Node>,
    key: Key,
    uid: String,
    object: Arc<Value>,
    address: Ipv4Addr,
    place: Place,
    directory: PathBuf,
    started_at: Timestamp,
    policy: Policy,
    members: Vec<Member>,
    /// The containers that run, beside `members`.
    live: Vec<Option<Live>>,
    volumes: Volumes,
    mounted: Option<Vec<Volume>>,
    /// When the volumes are mounted or updated next.
    mount_at: Option<Timestamp>,
    /// How many runs of containers there were: each has a number of its own.
    runs: u32,
    contents: u64,
    /// The grace that was given, and when it is over.
    ending: Option<(Duration, Stop)>,
    notes: Vec<(Type, &'static str, String)>,
    wishes: watch::Receiver<Wish>,
    told: (mpsc::Sender<Told>, mpsc::Receiver<Told>),
    verdicts: (mpsc::Sender<Verdict>, mpsc::Receiver<Verdict>),
}

impl Pod {
    /// Makes the task of a pod.
    pub fn new(node: Arc<Node>, object: Arc<Value>, address: Ipv4Addr, wishes: watch::Receiver<Wish>) -> Self {
        let backoff = SignedDuration::try_from(node.config.backoff).unwrap_or(SignedDuration::MAX);
        let mut members = Vec::new();
        for (field, init) in [("/spec/initContainers", true), ("/spec/containers", false)] {
            let of = list(&object, field).iter();
            members.extend(of.map(|one| Member::new(text(one, "/name"), text(one, "/image"), init, backoff)));
        }
        let directory = node.pods_directory().join(uid(&object));
        let place = Place { address: address.to_string(), host: node.host.to_string() };
        Self {
            key: Key::of(Kind::Pod, &object),
            uid: uid(&object).to_owned(),
            started_at: node.instance.now(),
            policy: Policy::of(text(&object, "/spec/restartPolicy")),
            live: members.iter().map(|_| None).collect(),
            volumes: Volumes::new(&directory),
            mounted: None,
            mount_at: Some(Timestamp::MIN),
            runs: 0,
            contents: 0,
            ending: None,
            notes: Vec::new(),
            told: mpsc::channel(TOLD),
            verdicts: mpsc::channel(TOLD),
            node,
            object,
            address,
            place,
            directory,
            members,
            wishes,
        }
    }

    /// Runs the pod until nothing of it is left.
    pub async fn run(mut self) -> Key {
        self.wish();
        loop {
            let due = self.advance().await;
            // An object with a finalizer stays until a client removes that.
            if self.is_over() && !self.exists() {
                break;
            }
            match self.next(due).await {
                Action::Wish => self.wish(),
                Action::Told(told) => self.told(told),
                Action::Verdict(verdict) => self.verdict(verdict),
                Action::Due => {}
            }
        }
        self.finish();
        self.key
    }

    async fn next(&mut self, due: Option<Timestamp>) -> Action {
        // A moment that has passed shows only when the clock is past it: hence one millisecond more.
        let wait = due.map(|at| at.duration_since(self.node.instance.now()).as_millis().max(0) + 1);
        let wait = Duration::from_millis(wait.and_then(|wait| u64::try_from(wait).ok()).unwrap_or_default());
        tokio::select! {
            Ok(()) = self.wishes.changed() => Action::Wish,
            Some(told) = self.told.1.recv() => Action::Told(told),
            Some(verdict) = self.verdicts.1.recv() => Action::Verdict(verdict),
            () = sleep(wait), if due.is_some() => Action::Due,
        }
    }

    /// Takes note of what is wanted.
    fn wish(&mut self) {
        let wish = self.wishes.borrow_and_update().clone();
        if wish.stopping {
            self.end(self.node.config.stop_grace, false);
        } else if let Some(object) = wish.object {
            let told = |object: &Value| {
                object["metadata"]["labels"] != self.object["metadata"]["labels"]
                    || object["metadata"]["annotations"] != self.object["metadata"]["annotations"]
            };
            if wish.contents != self.contents || told(&object) {
                self.contents = wish.contents;
                self.mount_at = Some(self.node.instance.now());
                self.unblock();
            }
            self.object = object;
            if is_deleting(&self.object) {
                let seconds = number(&self.object, "/metadata/deletionGracePeriodSeconds").unwrap_or(0).max(0);
                self.end(Duration::from_secs(seconds.unsigned_abs()), true);
            }
        } else {
            self.end(GONE_GRACE, false);
        }
    }

    /// What was missing may be there now.
    fn unblock(&mut self) {
        let now = self.node.instance.now();
        for member in &mut self.members {
            if let State::Blocked { reason: "CreateContainerConfigError", try_at, .. } = &mut member.state {
                *try_at = now;
            }
        }
    }

    /// Has everything end within this time. What was said before holds if it is shorter.
    fn end(&mut self, grace: Duration, hook: bool) {
        if self.ending.is_some_and(|(before, stop)| before <= grace && stop.hook <= hook) {
            return;
        }
        let by = Instant::now() + grace;
        let by = self.ending.map_or(by, |(_, stop)| stop.by.min(by));
        let stop = Stop { by, hook };
        let first = self.ending.replace((grace, stop)).is_none();
        for index in 0..self.live.len() {
            if let Some(live) = &self.live[index] {
                live.stop.send_replace(Some(stop));
                if first {
                    let message = format!("Stopping container {}", self.members[index].name);
                    self.notes.push((Type::Normal, "Killing", message));
                }
            }
        }
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Ended { index, id, code, message } => {
                if let Some(live) = self.live[index].take_if(|live| live.id == id) {
                    live.probing.inspect(AbortHandle::abort);
                    self.ended(index, code, message);
                }
            }
            Told::HookFailed { index, why } => {
                let message = format!("PreStopHook failed in container {}: {why}", self.members[index].name);
                self.notes.push((Type::Warning, "FailedPreStopHook", message));
            }
        }
    }

    fn ended(&mut self, index: usize, code: i32, message: String) {
        let member = &mut self.members[index];
        member.end(code, message, self.node.instance.now());
        if self.ending.is_none() && member.held_back(self.policy).is_some() {
            let pod = status::full_name(&self.object);
            let message = format!("Back-off restarting failed container {} in pod {pod}", member.name);
            self.notes.push((Type::Warning, "BackOff", message));
        }
    }

    fn verdict(&mut self, verdict: Verdict) {
        let Verdict { index, id, purpose, failure, holds } = verdict;
        if self.live[index].as_ref().is_none_or(|live| live.id != id) {
            return;
        }
        let (field, word) = purpose.words();
        let deleting = self.ending.is_some() && purpose != Purpose::Readiness;
        if let Some(failure) = failure.filter(|_| !deleting) {
            self.notes.push((Type::Warning, "Unhealthy", format!("{word} probe failed: {failure}")));
        }
        let spec = self.spec(index).clone();
        let member = &mut self.members[index];
        match (purpose, holds) {
            (_, None) => {}
            (Purpose::Readiness, Some(ready)) => member.ready = ready,
            (Purpose::Startup, Some(true)) => {
                member.started = true;
                member.ready = spec.get("readinessProbe").is_none();
            }
            (Purpose::Liveness, Some(true)) => {}
            (Purpose::Startup | Purpose::Liveness, Some(false)) => {
                if let Some(live) = self.live[index].as_ref().filter(|live| !deleting && live.stop.borrow().is_none()) {
                    let word = word.to_lowercase();
                    let message = format!("Container {} failed {word} probe, will be restarted", member.name);
                    self.notes.push((Type::Normal, "Killing", message));
                    let own = number(&spec[field], "/terminationGracePeriodSeconds");
                    let grace =
                        own.or_else(|| number(&self.object, "/spec/terminationGracePeriodSeconds")).unwrap_or(30);
                    let by = Instant::now() + Duration::from_secs(grace.max(0).unsigned_abs());
                    live.stop.send_replace(Some(Stop { by, hook: true }));
                }
            }
        }
    }

    /// Whether the API has the pod and cares for what it does.
    fn exists(&self) -> bool {
        let wish = self.wishes.borrow();
        wish.object.is_some() && !wish.stopping
    }

    /// Whether all has ended that had to.
    fn is_over(&self) -> bool {
        self.ending.is_some() && self.live.iter().all(Option::is_none)
    }

    /// Does what can be done now; gives when there is something to do again.
    async fn advance(&mut self) -> Option<Timestamp> {
        if self.ending.is_some() {
            self.tell();
            return None;
        }
        let now = self.node.instance.now();
        if self.mount_at.is_some_and(|at| at <= now) {
            self.mount();
        }
        let mut due = self.mount_at;
        while self.mounted.is_some() {
            let now = self.node.instance.now();
            match lifecycle::next(&self.members, self.policy, now) {
                Next::Start(index) => self.start(index).await,
                Next::Wait(at) => {
                    due = due.into_iter().chain(at).min();
                    break;
                }
                Next::Finished => break,
            }
        }
        self.tell();
        due
    }

    /// Makes the volumes what they are to be.
    fn mount(&mut self) {
        let (node, object) = (self.node.clone(), self.object.clone());
        let gathered = node.instance.look(|store| {
            let (tokens, config) = (&node.tokens, &node.config);
            self.volumes.gather(Sources { store, tokens, config, pod: &object, place: &self.place })
        });
        match gathered.and_then(|volumes| volumes::put(&volumes).map(|()| volumes)) {
            Ok(volumes) => (self.mounted, self.mount_at) = (Some(volumes), self.volumes.due()),
            Err(error) => {
                self.notes.push((Type::Warning, "FailedMount", error.to_string()));
                self.mount_at = node.instance.now().checked_add(MOUNT_PERIOD).ok();
            }
        }
    }

    fn spec(&self, index: usize) -> &Value {
        let inits = list(&self.object, "/spec/initContainers");
        let mains = list(&self.object, "/spec/containers");
        inits.iter().chain(mains).nth(index).expect("the containers of a pod do not change")
    }

    async fn start(&mut self, index: usize) {
        let spec = self.spec(index).clone();
        let (node, object) = (self.node.clone(), self.object.clone());
        let volumes = self.mounted.as_deref().unwrap_or_default();
        let pod = start::Pod {
            config: &node.config,
            object: &object,
            place: &self.place,
            directory: &self.directory,
            volumes,
        };
        let id =
            node.instance.with(|store| (0..4).map(|_| format!("{:016x}", store.ids().number())).collect::<String>());
        let prepared = node.instance.look(|store| pod.prepare(store, &spec, &id));
        let (launch, command) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.block(index, &error),
        };
        let image = text(&spec, "/image");
        let member = self.members[index].name.clone();
        self.notes.push((Type::Normal, "Pulled", format!("Container image {image:?} already present on machine")));
        self.notes.push((Type::Normal, "Created", format!("Created container: {member}")));
        match self.spawn(index, &id, launch, &command, &spec).await {
            Ok(()) => {
                self.members[index].start(id, node.instance.now());
                let probed = |purpose: Purpose| spec.get(purpose.words().0).is_some();
                self.members[index].started = !probed(Purpose::Startup);
                self.members[index].ready =
                    !self.members[index].init && !probed(Purpose::Startup) && !probed(Purpose::Readiness);
                self.notes.push((Type::Normal, "Started", format!("Started container {member}")));
            }
            Err(error) => {
                let message = format!("unable to start container process: {error}");
                self.notes.push((Type::Warning, "Failed", format!("Error: {message}")));
                let finished_at = node.instance.now();
                let ended = Ended { id, code: 128, reason: "StartError", message, started_at: None, finished_at };
                self.members[index].fail(ended);
            }
        }
    }

    /// Starts the process of a container, and the tasks that go along with it.
    async fn spawn(
        &mut self,
        index: usize,
        id: &str,
        launch: process::Launch,
        command: &[String],
        spec: &Value,
    ) -> Result<(), process::Error> {
        let member = &self.members[index];
        let failed = |source| process::Error::Spawn { program: command.first().cloned().unwrap_or_default(), source };
        let directory = self.directory.join("containers").join(&member.name);
        self.runs += 1;
        let log = Log::create(&directory, self.runs, self.node.instance.clone()).map_err(failed)?;
        let spawner = self.node.spawner.clone();
        let process = spawner.spawn(command, &launch, false).await?.into_first(&launch.mark);
        let run = Arc::new(Run { id: id.to_owned(), launch: launch.clone(), log });
        self.node.show(&self.key, &member.name, run.clone());
        let (id, address, container) = (id.to_owned(), self.place.address.clone(), spec.clone());
        let target = Target { index, id: id.clone(), address, container, launch, spawner };
        let probing = PURPOSES
            .iter()
            .any(|purpose| spec.get(purpose.words().0).is_some())
            .then(|| tokio::spawn(probes::watch(target.clone(), self.verdicts.0.clone())).abort_handle());
        let (stop, wanted) = watch::channel(None);
        let told = self.told.0.clone();
        tokio::spawn(async move { run::attend(process, run, target, wanted, told).await });
        self.live[index] = Some(Live { id, stop, probing });
        Ok(())
    }

    /// Says why a container cannot be started yet.
    fn block(&mut self, index: usize, error: &start::Error) {
        let member = &mut self.members[index];
        let again = matches!(member.state, State::Blocked { .. });
        let image = &member.image;
        let reason = match error {
            start::Error::Image { .. } if again => "ImagePullBackOff",
            start::Error::Image { .. } => "ErrImagePull",
            start::Error::Environment(_) => "CreateContainerConfigError",
            start::Error::Volumes(_) => "CreateContainerError",
        };
        let said = match reason {
            "ErrImagePull" => format!("Failed to pull image {image:?}: {error}"),
            "ImagePullBackOff" => format!("Back-off pulling image {image:?}: {error}"),
            _ => format!("Error: {error}"),
        };
        self.notes.push((Type::Warning, "Failed", said));
        member.block(reason, error.to_string(), self.node.instance.now());
    }

    /// Tells the API how the pod is.
    fn tell(&mut self) {
        let over = self.is_over();
        if !self.exists() {
            return;
        }
        let report = Report {
            members: &self.members,
            policy: self.policy,
            pod: &self.object,
            host: self.node.host,
            address: self.mounted.is_some().then_some(self.address),
            started_at: self.started_at,
            over,
            now: self.node.instance.now(),
        };
        let mut status = self.object["status"].clone();
        report.write(&mut status);
        if status == self.object["status"] && self.notes.is_empty() && !over {
            return;
        }
        let notes = std::mem::take(&mut self.notes);
        let (key, uid) = (&self.key, &self.uid);
        let told = self.node.instance.with(|store| {
            for (kind, reason, message) in &notes {
                events::record(store, &self.object, *kind, reason, message, "kubelet");
            }
            if store.find(key).is_none_or(|now| object::uid(now) != uid) {
                // It was replaced just now; the next wish says so.
                return Ok(None);
            }
            let told = store.edit(key, Part::Status, |object| report.write(&mut object["status"]))?;
            if over && is_deleting(&told) {
                let grace_seconds = Some(0);
                let options = DeleteOptions { grace_seconds, uid: Some(uid.clone()), ..DeleteOptions::default() };
                store.delete(key, &options)?;
            }
            Ok::<_, crate::failure::Failure>(Some(told))
        });
        match told {
            Ok(Some(object)) => self.object = object,
            Ok(None) => {}
            Err(error) => tracing::error!(pod = name(&self.object), %error, "cannot tell how a pod is"),
        }
    }

    /// Forgets the pod: its containers' logs and what they left in volumes that are no claims.
    fn finish(&self) {
        self.node.forget(&self.key, self.address);
        if let Err(error) = std::fs::remove_dir_all(&self.directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(directory = %self.directory.display(), %error, "cannot remove a pod's directory");
        }
    }
}
