//! Access to the agent's three ports: the agent's certificate, the refused callers, and how often a caller may fail to
//! authenticate.

use super::certificates;
use super::face::Door;
use crate::auth::credentials::Credentials;
use crate::auth::pod_token::PodToken;
use crate::auth::throttle::Throttle;
use crate::config::Config;
use crate::http::{Face, OwnPod, People};
use crate::kubernetes::{Kubernetes, permissions};
use crate::metrics::Metrics;
use crate::net::refusals::{Port, Refusals};
use crate::net::{Entrance, Tls};
use crate::raft::{Admission, Agents};
use std::sync::Arc;

/// What all ports have in common, from the first moment until the agent ends; clones share it.
#[derive(Clone)]
pub struct Guards {
    pub(super) metrics: Arc<Metrics>,
    pub(super) tls: Tls,
    pub(super) refusals: Refusals,
    pub(super) throttle: Arc<Throttle>,
}

impl Guards {
    /// Makes them of the certificate that is shown and demanded.
    pub fn new(tls: Tls) -> Self {
        let metrics = Arc::new(Metrics::new());
        let refusals = Refusals::new(metrics.clone());
        Self { metrics, tls, refusals, throttle: Arc::default() }
    }

    /// Looks after the certificate's files, and after the permissions that the agent has in Kubernetes.
    pub(super) fn watch(&self, config: &Config, kubernetes: &Kubernetes) {
        tokio::spawn(certificates::watch(self.tls.clone(), self.metrics.clone()));
        let (anchor, resync) = (config.anchor_name(), config.resync_name());
        tokio::spawn(permissions::watch(kubernetes.clone(), anchor, resync, self.metrics.clone()));
    }

    /// What stands before a port.
    pub(super) fn entrance(&self, port: Port) -> Entrance {
        Entrance { tls: self.tls.clone(), port, refusals: self.refusals.clone() }
    }

    /// Whom the port for other agents listens to.
    pub(super) fn admission(&self, config: &Config) -> Admission {
        Admission::Agents(Agents {
            tls: self.tls.clone(),
            domain: config.domain.clone(),
            stateful_set: config.stateful_set.clone(),
            refusals: self.refusals.clone(),
        })
    }

    /// What the REST API is made of.
    pub(super) async fn face(&self, config: &Config, door: Arc<Door>) -> anyhow::Result<Face> {
        let token = config.pod_token_file.as_deref().map(PodToken::make).transpose()?.map(Arc::new);
        Ok(Face {
            own_pod: OwnPod { by_address: config.loopback_may_write, token },
            credentials: credentials(config).await?,
            people: Some(People { tls: self.tls.clone(), domain: config.domain.clone() }),
            refusals: self.refusals.clone(),
            throttle: self.throttle.clone(),
            ..Face::new(door, self.metrics.clone())
        })
    }
}

/// Who may write from outside the pod. A mistake in the file ends the agent now, rather than an operator's attempt later.
async fn credentials(config: &Config) -> anyhow::Result<Option<Arc<Credentials>>> {
    let Some(path) = &config.credentials_file else { return Ok(None) };
    Ok(Some(Arc::new(Credentials::new(path.clone()).await?)))
}
