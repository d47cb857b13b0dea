//! An admin server becomes known, or says something new of itself.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ServerEvent;
use crate::domain::ids::{ClusterName, ServerId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::server::{Server, stateful_set};
use crate::domain::version::Version;
use crate::domain::{Applied, Domain, version};
use serde::{Deserialize, Serialize};

/// Makes a server known, or refreshes what it said of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitServer {
    /// The server; `joined` is set by the domain.
    pub server: Server,
}

impl Change for AdmitServer {
    fn since(&self) -> Version {
        Version(0, 0, 0)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        bounds.server(&self.server)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { mut server } = self;
        let known = domain.servers.get(&server.id);
        // One with the log that it has followed so far is sent everything anyhow.
        if known.is_none_or(|known| known.raft_id != server.raft_id) {
            version::may_join(domain, &server).map_err(Refusal::TooOld)?;
        }
        // A domain of one cluster may have been given another name for it.
        if domain.founded_in.is_some() {
            domain.is_named_apart(&server.id, &server.cluster)?;
        }
        if known.is_none() {
            domain.may_add("servers", domain.servers.len(), domain.bounds.servers)?;
        }
        server.joined = known.map_or(domain.time, |known| known.joined);
        let event = match known {
            Some(known) if *known == server => return Ok(Outcome::Unchanged),
            Some(known) if known.raft_id != server.raft_id => {
                ServerEvent::LogReplaced { log: server.raft_id, before: known.raft_id }
            }
            Some(_) => ServerEvent::Described { address: server.address.clone(), version: server.version.clone() },
            None => ServerEvent::Joined { log: server.raft_id },
        };
        domain.note(actor, [Subject::Server(server.id.clone())], event, None);
        domain.servers.insert(server.id.clone(), server);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Refuses a server whose StatefulSet has the name of another cluster's: their servers could not be told apart.
    pub fn is_named_apart(&self, id: &ServerId, cluster: &ClusterName) -> Result<(), Refusal> {
        let set = stateful_set(id);
        let same = |other: &&Server| other.cluster != *cluster && stateful_set(&other.id) == set;
        match self.servers.values().find(same) {
            Some(other) => Err(Refusal::ServerOfAnotherCluster {
                server: id.clone(),
                stateful_set: set.to_owned(),
                cluster: other.cluster.clone(),
            }),
            None => Ok(()),
        }
    }
}
