//! The small Kubernetes without a socket, and the faults between it and an agent: no connection, errors, slow answers,
//! watches that lag.

use crate::sim::databases;
use crate::sim::trace::Trace;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use embedded_kubernetes::hollow;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::server::{Callers, Door, admin};
use embedded_kubernetes::store::Store;
use embedded_kubernetes::tokens::Tokens;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kaa::clock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::{BoxError, ServiceExt};

/// The faults between an agent and Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trouble {
    /// No request gets through.
    pub down: bool,
    /// This percentage of requests is answered with 500.
    pub errors_percent: u64,
    /// Answers take up to this much longer.
    pub latency_ms: u64,
    /// Watch events arrive this much later.
    pub lag_ms: u64,
    /// The agent has no permission at all; open watches continue.
    pub forbidden: bool,
}

#[derive(Clone)]
pub struct Kubernetes {
    pub instance: Arc<Instance>,
    pub tokens: Arc<Tokens>,
    door: Arc<Door>,
    troubles: Arc<Mutex<BTreeMap<String, Trouble>>>,
    trace: Trace,
}

fn now() -> Timestamp {
    Timestamp::from_millisecond(i64::try_from(clock::now().0).unwrap()).unwrap()
}

impl Kubernetes {
    pub fn new(seed: u64, trace: Trace, has_roles: bool) -> Self {
        let mut store = Store::new(seed, now());
        store.create(Kind::Namespace, json!({"metadata": {"name": "default"}})).unwrap();
        hollow::node(&mut store, "node");
        let instance = Arc::new(Instance::new(store, now));
        let tokens = Arc::new(Tokens::new().unwrap());
        let door = Arc::new(Door::new(instance.clone(), tokens.clone(), Callers::new("nobody knows it")));
        instance.with(|store| {
            store.create(Kind::StatefulSet, stateful_set("kaa-admin", "raftlog", 3, &json!({"app": "kaa"}))).unwrap();
            if has_roles {
                let labels = json!({"database": databases::NAME, "component": "sm"});
                let mut set = stateful_set(databases::NAME, "archive-volume", 3, &labels);
                set["metadata"]["annotations"] = databases::settings(seed);
                store.create(Kind::StatefulSet, set).unwrap();
                return;
            }
            let labels = json!({"database": "demo", "component": "sm"});
            store.create(Kind::StatefulSet, stateful_set("sm-demo", "archive-volume", 2, &labels)).unwrap();
            store.create(Kind::Deployment, te_demo()).unwrap();
        });
        Self { instance, tokens, door, troubles: Arc::default(), trace }
    }

    pub fn set_trouble(&self, server: &str, trouble: Trouble) {
        self.troubles.lock().unwrap().insert(server.to_owned(), trouble);
    }

    fn trouble(&self, server: &str) -> Trouble {
        self.troubles.lock().unwrap().get(server).copied().unwrap_or_default()
    }

    /// A client for an agent. Its requests are answered in the agent's own runtime.
    pub fn client(&self, server: &str) -> kube::Client {
        let (this, server) = (self.clone(), server.to_owned());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (this, server) = (this.clone(), server.clone());
            async move { this.answer(&server, request).await }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, server: &str, request: Request<kube::client::Body>) -> Result<Response<Body>, BoxError> {
        let asked = format!("{} {}", request.method(), request.uri());
        let trouble = self.trouble(server);
        let delay = || Duration::from_millis(1 + clock::random_below(3) + clock::random_below(trouble.latency_ms + 1));
        tokio::time::sleep(delay()).await;
        if self.trouble(server).down {
            self.trace.mix(&format!("{server}: {asked} refused"));
            return Err("connection refused".into());
        }
        if trouble.forbidden {
            self.trace.mix(&format!("{server}: {asked} forbidden"));
            return Ok(failure(StatusCode::FORBIDDEN, "Forbidden", "no such right"));
        }
        if clock::random_below(100) < trouble.errors_percent {
            // Half of the failed requests take effect nevertheless.
            if clock::random_below(2) == 0 {
                drop(self.door.clone().service(admin()).oneshot(request).await?);
            }
            self.trace.mix(&format!("{server}: {asked} failed"));
            tokio::time::sleep(delay()).await;
            let message = "etcdserver: request timed out";
            return Ok(failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message));
        }
        let answer = self.door.clone().service(admin()).oneshot(request).await?;
        self.trace.mix(&format!("{server}: {asked} {}", answer.status()));
        tokio::time::sleep(delay()).await;
        let answer = answer.map(Body::new);
        Ok(if asked.contains("watch=true") { answer.map(|body| self.late(server, body)) } else { answer })
    }

    /// Delays the events of a watch by the agent's lag.
    fn late(&self, server: &str, body: Body) -> Body {
        let (this, server) = (self.clone(), server.to_owned());
        Body::from_stream(stream::unfold(body.into_data_stream(), move |mut lines| {
            let (this, server) = (this.clone(), server.clone());
            async move {
                let line = lines.next().await?;
                tokio::time::sleep(Duration::from_millis(this.trouble(&server).lag_ms)).await;
                while this.trouble(&server).down {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Some((line, lines))
            }
        }))
    }
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message});
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = code;
    response
}

fn stateful_set(name: &str, template: &str, replicas: u32, labels: &Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "serviceName": name, "replicas": replicas, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{
                "name": "engine", "image": "i", "volumeMounts": [{"name": template, "mountPath": "/data"}],
            }]}},
            "volumeClaimTemplates": [{"metadata": {"name": template}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            }}],
        },
    })
}

fn te_demo() -> Value {
    let labels = json!({"database": "demo", "component": "te"});
    json!({
        "metadata": {"name": "te-demo", "namespace": "default", "labels": labels},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": "i"}]}},
        },
    })
}
