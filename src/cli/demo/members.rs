//! The walkthrough's part about the admin servers themselves: one leaves the group, and comes back with the volume it has.

use super::domain::Error;
use super::walkthrough::{Walkthrough, seen};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::Event;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Instant;

const EVICTED: &str = "admin StatefulSet scaled down -> its last server is evicted";
const MOVED: &str = "admin StatefulSet scaled down -> no engine is connected to the server that left";
const INCLUDED: &str = "admin StatefulSet scaled up -> the server votes again";

impl Walkthrough<'_> {
    /// Scales the admin servers down by one, and up again.
    pub(super) async fn scale_the_admin_servers(&mut self, servers: u32) -> Result<(), Error> {
        let (left, server) = (servers - 1, format!("kaa-admin-{}", servers - 1));
        let claim = format!("raftlog-{server}");
        let (volume, log) = (self.uid_of(&claim).await?, self.log_of(&server).await?);
        self.tell(&format!(
            "--- Scale the admin servers down, and up again\n\
             The {servers} admin servers vote on every change. Now {server} is scaled away. Before its pod ends, it is evicted\n\
             from the voters, so that the others keep their quorum, and its engines move to another server. Its record and its\n\
             volume are kept.\n"
        ))?;
        self.show(&format!("plan --scale statefulset/kaa-admin={left}"), &format!("{server} is evicted")).await?;
        let began = self.scale_admins(left).await?;
        let evicted = self.part(&server, "EVICTED", None).await?;
        self.note(EVICTED, evicted.duration_since(began));
        let moved = self.without_engines(&server).await?;
        self.note(MOVED, moved.duration_since(began));
        self.pod_gone(&server).await?;
        self.show("show domain", "Evicted").await?;
        self.show(&format!("explain server/{server}"), "it does not vote, since the StatefulSet wants").await?;

        self.tell("After a scale-up it starts again with its volume and its log, catches up, and votes.\n")?;
        let began = self.scale_admins(servers).await?;
        let voter = self.part(&server, "VOTER", Some("Connected")).await?;
        self.note(INCLUDED, voter.duration_since(began));
        self.expect(self.uid_of(&claim).await? == volume, &format!("claim {claim} is the same"))?;
        self.expect(self.log_of(&server).await? == log, &format!("log {log} is the same"))?;
        self.show("show domain", "VOTER").await
    }

    async fn scale_admins(&self, replicas: u32) -> Result<Instant, Error> {
        self.tell(&format!("$ kubectl scale statefulset/kaa-admin --replicas={replicas}\n"))?;
        let scaled = self.look_out(Kind::StatefulSet, "kaa-admin", Event::Modified, |_| true);
        let wanted = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.domain.api::<StatefulSet>().patch_scale("kaa-admin", &PatchParams::default(), &wanted).await?;
        seen(scaled).await
    }

    /// Waits until the others show a server's part in the group, and says when that was.
    async fn part(&self, server: &str, part: &str, connected: Option<&str>) -> Result<Instant, Error> {
        self.domain
            .until(&format!("{server} as {part}"), async || {
                let row = self.server(server).await.map_err(|error| error.to_string())?;
                let is = connected.is_none_or(|state| row["connectedState"]["state"] == state);
                if row["membership"] == part && is { Ok(Instant::now()) } else { Err(row.to_string()) }
            })
            .await
    }

    /// Waits until every engine has a live session with another server.
    async fn without_engines(&self, server: &str) -> Result<Instant, Error> {
        self.domain
            .until(&format!("no engine with {server}"), async || {
                let rows = self.domain.rows("processes").await.map_err(|error| error.to_string())?;
                let with = rows.iter().filter(|row| row["host"] == server || !row["sessionLost"].is_null()).count();
                if with == 0 { Ok(Instant::now()) } else { Err(format!("{with} are connected to it, or to no server")) }
            })
            .await
    }

    async fn server(&self, server: &str) -> Result<Value, Error> {
        let rows = self.domain.rows("peers").await?;
        let found = rows.into_iter().find(|row| row["id"] == server);
        found.ok_or_else(|| Error::Unexpected(format!("server {server}")))
    }

    async fn log_of(&self, server: &str) -> Result<String, Error> {
        Ok(self.server(server).await?["raftId"].as_str().unwrap_or_default().to_owned())
    }

    async fn uid_of(&self, claim: &str) -> Result<String, Error> {
        let claim = self.domain.api::<PersistentVolumeClaim>().get(claim).await?;
        Ok(claim.metadata.uid.unwrap_or_default())
    }
}
