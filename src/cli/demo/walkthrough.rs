//! `kaa demo --walkthrough`: the use cases with commentary, each expectation checked, and the times taken.
//!
//! What is printed behind a `$ kaa` is what that command prints. What is printed behind a `$ kubectl` is done through the
//! API, as kubectl would do it, so that no kubectl is needed to watch.

use super::domain::{Domain, Error};
use super::say;
use super::times::{Times, look_out, shown};
use crate::demo::stage::Stage;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::{Change, Event};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Instant;
use tokio::task::JoinHandle;

const SCALED: &str = "StatefulSet scaled down, engine stopped -> archive removed";
const CLAIM: &str = "claim deleted -> archive removed and purged";
const KILLED: &str = "container killed -> process exited";
const DELETED: &str = "pod deleted, engine told to stop -> process exited";

/// The play and its stage.
pub(super) struct Walkthrough<'a> {
    stage: &'a Stage,
    pub(super) domain: &'a Domain,
    /// How many admin servers there are; the last one leaves, and comes back.
    servers: u32,
    /// How many storage managers there are; the last is the one that is played with.
    managers: u32,
    times: Times,
    quiet: bool,
}

/// A living engine, as the domain knows it.
struct Engine {
    start: u64,
    pod: String,
    archive: u64,
}

impl<'a> Walkthrough<'a> {
    pub(super) fn new(stage: &'a Stage, domain: &'a Domain, managers: u32, servers: u32) -> Self {
        Self { stage, domain, servers, managers, times: Times::default(), quiet: false }
    }

    /// Plays everything, and then so many times more without words. The first expectation that does not hold ends it.
    pub(super) async fn play(mut self, rounds: u32) -> Result<(), Error> {
        self.domain.led().await?;
        for round in 0..=rounds {
            self.scale_down_and_up().await?;
            self.delete_a_claim().await?;
            self.lose_engines().await?;
            if round == 0 {
                self.balance_the_load().await?;
                self.upgrade_the_protocol().await?;
                self.with_the_admin_servers().await?;
                // The one that left may have led the resync.
                self.domain.led().await?;
            }
            if round == 0 && rounds > 0 {
                self.tell(&format!("The same {rounds} more times without commentary, to measure the latencies."))?;
                self.quiet = true;
            }
        }
        self.quiet = false;
        self.tell(&format!("{}\nEvery expectation held.", self.times.table()))
    }

    /// Once only: it takes seconds, and is told of the servers rather than of the database.
    async fn with_the_admin_servers(&mut self) -> Result<(), Error> {
        match self.servers {
            1 => {
                self.tell("(One admin server cannot be scaled down: --admins 2 shows how one leaves and comes back.)\n")
            }
            servers => self.scale_the_admin_servers(servers).await,
        }
    }

    async fn scale_down_and_up(&mut self) -> Result<(), Error> {
        let engine = self.storage_manager().await?;
        let (archive, fewer) = (engine.archive, self.managers - 1);
        self.tell(&format!(
            "--- Scale the storage managers down, and up again\n\
             {} stores its data in archive {archive}. After a scale-down its engine stops, and the archive is removed\n\
             from the domain, so that no cold start waits for it. Its data, its claim and its record are kept.\n",
            engine.pod
        ))?;
        let scaled = self.look_out(Kind::StatefulSet, "sm-demo", Event::Modified, |_| true);
        self.scale(fewer).await?;
        let scaled = seen(scaled).await?;
        let leader = self.domain.leader().await?;
        let exited = shown(self.domain, &leader, &format!("process/{}", engine.start), "exited").await?;
        let removed = shown(self.domain, &leader, &format!("archive/{archive}"), "removed: its StatefulSet").await?;
        self.times.note(SCALED, removed.duration_since(scaled.max(exited)));
        self.show("show archives --removed", &format!("[{archive}]")).await?;
        self.show(&format!("explain archive/{archive}"), "wants").await?;
        self.pod_gone(&engine.pod).await?;
        let claims = self.domain.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?;
        let kept = claims.items.iter().any(|claim| claim.metadata.name.as_deref() == Some(&self.claim()));
        self.expect(kept, &format!("claim {} stays", self.claim()))?;

        self.tell("A scale-up resurrects the same archive with the same data.\n")?;
        self.scale(self.managers).await?;
        self.domain.running("SM", self.managers as usize).await?;
        let back = self.storage_manager().await?;
        self.expect(back.archive == archive, &format!("archive {archive} is back"))?;
        self.show("show archives", &format!("[{archive}]")).await
    }

    async fn delete_a_claim(&mut self) -> Result<(), Error> {
        let engine = self.storage_manager().await?;
        let (archive, claim) = (engine.archive, self.claim());
        self.tell(&format!(
            "--- Delete a claim\n\
             Deleting the claim deletes the data of archive {archive} for good. Then, and only then, the archive is purged:\n\
             its id is never used again. Kubernetes keeps a claim while a pod uses it, so the pod has to end first.\n"
        ))?;
        self.scale(self.managers - 1).await?;
        self.pod_gone(&engine.pod).await?;
        let leader = self.domain.leader().await?;
        shown(self.domain, &leader, &format!("archive/{archive}"), "removed: its StatefulSet").await?;
        self.tell(&format!("$ kubectl delete pvc {claim}"))?;
        let gone = self.look_out(Kind::PersistentVolumeClaim, &claim, Event::Deleted, |_| true);
        self.domain.api::<PersistentVolumeClaim>().delete(&claim, &DeleteParams::default()).await?;
        let gone = seen(gone).await?;
        let purged = shown(self.domain, &leader, &format!("archive/{archive}"), "purged").await?;
        self.times.note(CLAIM, purged.duration_since(gone));
        self.show(&format!("explain archive/{archive}"), &format!("persistentvolumeclaim {claim} not found")).await?;

        self.tell("A scale-up creates a new claim, and on it a new archive.\n")?;
        self.scale(self.managers).await?;
        self.domain.running("SM", self.managers as usize).await?;
        let new = self.storage_manager().await?;
        self.expect(new.archive > archive, &format!("archive {} is new", new.archive))?;
        self.show("show archives", &format!("[{}]", new.archive)).await
    }

    async fn lose_engines(&mut self) -> Result<(), Error> {
        let engine = self.transaction_engine().await?;
        let (pod, start) = (engine.pod, engine.start);
        self.tell(&format!(
            "--- Lose a transaction engine\n\
             First with kill -9: the engine of {pod} cannot report its exit. Its process {start} becomes a tombstone once\n\
             Kubernetes reports that its container has ended, and the container restarts under a new start id.\n\n\
             $ kill -9 (the container of {pod})"
        ))?;
        let learned = format!("the container of process {start} to be known");
        self.domain
            .until(&learned, async || {
                let explained =
                    self.domain.kaa(&format!("explain process/{start}")).await.map_err(|why| why.to_string())?;
                if explained.contains("container") { Ok(()) } else { Err(explained) }
            })
            .await?;
        // What the pod's status tells of it: the first restart is at once, so it may tell both together.
        let ended = self.look_out(Kind::Pod, &pod, Event::Modified, |pod| {
            let statuses = object::list(pod, "/status/containerStatuses");
            statuses
                .iter()
                .any(|is| is["state"]["running"].is_null() || is["lastState"]["terminated"]["exitCode"] == 137)
        });
        self.expect(self.stage.kill(super::NAMESPACE, &pod, "engine"), "it ran until now")?;
        let ended = seen(ended).await?;
        let leader = self.domain.leader().await?;
        let shown_at = shown(self.domain, &leader, &format!("process/{start}"), "exited").await?;
        self.times.note(KILLED, shown_at.duration_since(ended));
        self.show(&format!("explain process/{start}"), "exited: Container ended without a report (137)").await?;
        let next = self.new_engine_of(&pod, start).await?;

        self.tell(&format!(
            "Then gracefully: the pod is deleted, its engine {next} is told to stop and reports its exit, and the\n\
             Deployment creates another pod.\n\n$ kubectl delete pod {pod}"
        ))?;
        let deleted = self.look_out(Kind::Pod, &pod, Event::Modified, object::is_deleting);
        self.domain.api::<Pod>().delete(&pod, &DeleteParams::default()).await?;
        let deleted = seen(deleted).await?;
        let shown_at = shown(self.domain, &leader, &format!("process/{next}"), "exited").await?;
        self.times.note(DELETED, shown_at.duration_since(deleted));
        self.show(&format!("explain process/{next}"), "Gracefully shutdown engine").await?;
        self.pod_gone(&pod).await?;
        let engines = self.stage_engines().await?;
        self.domain.running("TE", engines).await?;
        self.show("show domain", "RUNNING").await
    }
}

/// The small steps.
impl Walkthrough<'_> {
    pub(super) fn tell(&self, text: &str) -> Result<(), Error> {
        if self.quiet { Ok(()) } else { Ok(say(text)?) }
    }

    pub(super) fn note(&mut self, change: &'static str, took: std::time::Duration) {
        self.times.note(change, took);
    }

    pub(super) fn expect(&self, holds: bool, what: &str) -> Result<(), Error> {
        if holds { self.tell(&format!("ok: {what}\n")) } else { Err(Error::Unexpected(what.to_owned())) }
    }

    /// What a command prints, in which something must be.
    pub(super) async fn show(&self, line: &str, part: &str) -> Result<(), Error> {
        let text = self.domain.kaa(line).await?;
        self.tell(&format!("$ kaa {line}\n{text}"))?;
        if text.contains(part) {
            Ok(())
        } else {
            Err(Error::Unexpected(format!("'{part}' in what 'kaa {line}' prints:\n{text}")))
        }
    }

    fn claim(&self) -> String {
        format!("archive-volume-sm-demo-{}", self.managers - 1)
    }

    async fn scale(&self, replicas: u32) -> Result<(), Error> {
        self.tell(&format!("$ kubectl scale statefulset/sm-demo --replicas={replicas}\n"))?;
        let wanted = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.domain.api::<StatefulSet>().patch_scale("sm-demo", &PatchParams::default(), &wanted).await?;
        Ok(())
    }

    pub(super) async fn pod_gone(&self, name: &str) -> Result<(), Error> {
        self.domain
            .until(&format!("the end of pod {name}"), async || {
                let pods =
                    self.domain.api::<Pod>().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                let there = pods.items.iter().any(|pod| pod.metadata.name.as_deref() == Some(name));
                if there { Err("it is still there".to_owned()) } else { Ok(()) }
            })
            .await
    }

    /// The engine of the last storage manager's pod.
    async fn storage_manager(&self) -> Result<Engine, Error> {
        let pod = format!("sm-demo-{}", self.managers - 1);
        let engines = self.domain.processes("SM").await?.iter().map(engine).collect::<Vec<_>>();
        engines
            .into_iter()
            .find(|engine| engine.pod == pod)
            .ok_or_else(|| Error::Unexpected(format!("an engine of {pod}")))
    }

    /// The transaction engine that was started first.
    async fn transaction_engine(&self) -> Result<Engine, Error> {
        let engines = self.domain.processes("TE").await?;
        engines.first().map(engine).ok_or_else(|| Error::Unexpected("a transaction engine".to_owned()))
    }

    /// Waits until all engines that are wanted run.
    pub(super) async fn all_running(&self) -> Result<(), Error> {
        self.domain.running("SM", self.managers as usize).await?;
        let engines = self.stage_engines().await?;
        self.domain.running("TE", engines).await
    }

    /// How many transaction engines the Deployment wants.
    async fn stage_engines(&self) -> Result<usize, Error> {
        let te = self.domain.api::<k8s_openapi::api::apps::v1::Deployment>().get("te-demo").await?;
        let replicas = te.spec.replicas.unwrap_or(1);
        Ok(usize::try_from(replicas).unwrap_or_default())
    }

    /// Waits for a pod's next engine, and gives its start id.
    async fn new_engine_of(&self, pod: &str, before: u64) -> Result<u64, Error> {
        self.domain
            .until(&format!("a new engine of {pod}"), async || {
                let engines = self.domain.processes("TE").await.map_err(|error| error.to_string())?;
                let running = engines.iter().filter(|row| row["state"] == "RUNNING").map(engine);
                let found = running
                    .filter(|engine| engine.pod == pod && engine.start > before)
                    .map(|engine| engine.start)
                    .next();
                found.ok_or_else(|| format!("{} engines run", engines.len()))
            })
            .await
    }

    pub(super) fn look_out(
        &self,
        kind: Kind,
        name: &str,
        event: Event,
        also: impl Fn(&Value) -> bool + Send + 'static,
    ) -> JoinHandle<Option<Instant>> {
        let name = name.to_owned();
        look_out(self.stage.instance(), move |change: &Change| {
            change.key.kind == kind && change.key.name == name && change.event == event && also(&change.object)
        })
    }
}

pub(super) async fn seen(looking: JoinHandle<Option<Instant>>) -> Result<Instant, Error> {
    let found = looking.await.ok().flatten();
    found.ok_or_else(|| Error::Unexpected("the history of the embedded Kubernetes".to_owned()))
}

fn engine(row: &Value) -> Engine {
    let number = |field: &str| row[field].as_u64().or_else(|| row[field].as_str()?.parse().ok()).unwrap_or_default();
    let pod = row["labels"]["pod-name"].as_str().unwrap_or_default().to_owned();
    Engine { start: number("startId"), pod, archive: number("archiveId") }
}
