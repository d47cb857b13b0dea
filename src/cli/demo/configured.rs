//! The walkthrough's part about what annotations ask for: load balancing, and the upgrade of a protocol version.

use super::domain::Error;
use super::walkthrough::Walkthrough;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::Resource;
use kube::api::{Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

const DEFAULT: &str = "nuodb.com/load-balancer-default";
const UPGRADE: &str = "nuodb.com/automatic-database-protocol-upgrade";

/// A release of the engines: its name, and the protocol versions that it speaks.
type Release = (&'static str, &'static str);

const BEFORE: Release = ("4.2.3", "1376256=4.2");
const AFTER: Release = ("4.3.1", "1376256=4.2,1441792=4.3");

impl Walkthrough<'_> {
    /// Sets a default query by an annotation, breaks it, and removes it.
    pub(super) async fn balance_the_load(&self) -> Result<(), Error> {
        self.tell(
            "--- Configure load balancing\n\
             An annotation on the StatefulSet of the admin servers sets the query by which clients are sent to a transaction\n\
             engine. Every agent answers from its own state.\n",
        )?;
        let entry = "explain load-balancer/global/default";
        self.annotate::<StatefulSet>("statefulset", "kaa-admin", DEFAULT, Some("round_robin(any)")).await?;
        self.says(entry, "round_robin(any)").await?;
        self.show("route --db-name demo", "round_robin(any)").await?;

        self.tell("An annotation that does not parse changes nothing; kaa plan names the character.\n")?;
        self.annotate::<StatefulSet>("statefulset", "kaa-admin", DEFAULT, Some("round_robin(any")).await?;
        self.says("plan", "changes nothing: character 16").await?;
        self.show("route --db-name demo", "round_robin(any)").await?;

        self.tell("What the annotation had set goes with it.\n")?;
        self.annotate::<StatefulSet>("statefulset", "kaa-admin", DEFAULT, None).await?;
        self.says(entry, "the annotation of statefulset kaa-admin is gone").await
    }

    /// Rolls a release out whose engines speak a later protocol version.
    pub(super) async fn upgrade_the_protocol(&self) -> Result<(), Error> {
        self.tell(
            "--- Upgrade the protocol version\n\
             The engines of a database store data in its protocol version. A new release may speak a later one, which is used only\n\
             after an upgrade, and that is irreversible. An annotation asks for it; it waits until every engine runs the new release.\n",
        )?;
        self.run_release(BEFORE).await?;
        self.comes("explain database/demo", "its protocol version is 1376256 (4.2)").await?;
        self.annotate::<Deployment>("deployment", "te-demo", UPGRADE, Some("true")).await?;
        self.run_release(AFTER).await?;
        self.says("task list", "[DONE] 3 of 3 steps: upgrade database demo").await?;
        self.show("task show 1", "restarts process").await?;
        self.annotate::<Deployment>("deployment", "te-demo", UPGRADE, None).await?;
        self.all_running().await
    }

    /// Waits until a command prints something.
    async fn comes(&self, line: &str, part: &str) -> Result<(), Error> {
        let said = async || {
            let text = self.domain.kaa(line).await.map_err(|error| error.to_string())?;
            if text.contains(part) { Ok(()) } else { Err(text) }
        };
        self.domain.until(&format!("'{part}' in what 'kaa {line}' prints"), said).await
    }

    /// The same, and shows it.
    async fn says(&self, line: &str, part: &str) -> Result<(), Error> {
        self.comes(line, part).await?;
        self.show(line, part).await
    }

    /// Sets or removes an annotation.
    async fn annotate<K>(&self, kind: &str, name: &str, key: &str, value: Option<&str>) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let said = value.map_or(format!("{key}-"), |value| format!("--overwrite '{key}={value}'"));
        self.tell(&format!("$ kubectl annotate {kind}/{name} {said}\n"))?;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        self.domain.api::<K>().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Has the engines run a release, and waits until all do.
    async fn run_release(&self, (release, protocols): Release) -> Result<(), Error> {
        let variables = [("KAA_ENGINE_VERSION", release), ("KAA_PROTOCOL", protocols)];
        let line = variables.map(|(name, value)| format!("{name}={value}")).join(" ");
        self.tell(&format!("$ kubectl set env statefulset/sm-demo deployment/te-demo {line}\n"))?;
        let env: Vec<Value> = variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let containers = json!([{"name": "engine", "env": env}]);
        let patch = Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": containers}}}}));
        self.domain.api::<StatefulSet>().patch("sm-demo", &PatchParams::default(), &patch).await?;
        self.domain.api::<Deployment>().patch("te-demo", &PatchParams::default(), &patch).await?;
        let all_run_it = async || {
            let rows = self.domain.rows("processes").await.map_err(|error| error.to_string())?;
            let other = rows.iter().filter(|row| row["version"] != release || row["state"] != "RUNNING").count();
            if other == 0 && !rows.is_empty() { Ok(()) } else { Err(format!("{other} engines do not run it yet")) }
        };
        self.domain.until(&format!("all engines on release {release}"), all_run_it).await?;
        self.all_running().await
    }
}
