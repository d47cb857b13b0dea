//! An admin server that is not wanted, and whose volume was deleted, is removed for good.

use super::{Change, Command, Planned, Work};
use crate::domain::archive::Ordinal;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{RaftId, ServerId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::server::raft_log_claim;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes a server for good: its StatefulSet does not want it, and its volume was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveServer {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The server.
    pub server: ServerId,
    /// The log that it held; if it came back with another, it stays.
    pub raft_id: RaftId,
    /// Its place in its StatefulSet.
    pub owner: Ordinal,
    /// The proof that the ordinal is not wanted and that pod and claim are gone.
    pub evidence: Evidence,
}

impl Change for RemoveServer {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, server: _, raft_id: _, owner: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, server: id, raft_id: _, owner: _, evidence } = self;
        domain.drop_server(actor, id, evidence);
        Ok(Outcome::Changed)
    }
}

impl Planned for RemoveServer {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        vec![
            Need::StatefulSet(self.owner.stateful_set.clone()),
            Need::Pod(self.server.to_string()),
            Need::Claim(raft_log_claim(&self.server)),
            Need::Anchor,
        ]
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, server: id, raft_id, owner, evidence } = self;
        domain.fenced(fence)?;
        let server = domain.servers.get(id).ok_or_else(|| Refusal::UnknownServer(id.clone()))?;
        if server.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(server.cluster.clone()));
        }
        if server.raft_id != *raft_id {
            return Err(Refusal::AnotherLog { server: id.clone(), raft_id: server.raft_id });
        }
        domain.unused_server(id)?;
        domain.anchored(&fence.cluster, evidence)?;
        let claim = raft_log_claim(id);
        let is_its_place = format!("{}-{}", owner.stateful_set, owner.ordinal) == id.as_str();
        let gone = evidence.ordinal_unwanted(owner) && evidence.no_pod(id.as_str()) && evidence.claim_is_gone(&claim);
        if !is_its_place || !gone {
            return Err(Refusal::Unproven(format!(
                "server {id} is not wanted, and its pod and claim {claim} are gone"
            )));
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        let Self { server, .. } = self;
        format!("remove server {server}: it is not wanted, and its claim {} was deleted", raft_log_claim(server))
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::RemoveServer(Self { fence, evidence, ..self.clone() })
    }
}
