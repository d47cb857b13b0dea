//! Another Kubernetes cluster takes part in the domain: the Lease that anchors the domain there becomes known.
//!
//! Without it nothing proves that a read of that cluster was made there, so nothing of it is removed.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::ids::{ClusterName, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Makes the anchor of another cluster known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorCluster {
    /// The cluster.
    pub cluster: ClusterName,
    /// The UID of the Lease that anchors the domain there, as an agent of that cluster says.
    pub anchor: Uid,
    /// The cluster that the domain was founded in, in which the leader is that proposes this first.
    pub founded_in: ClusterName,
}

impl Change for AnchorCluster {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { cluster, anchor, founded_in } = self;
        bounds.names([
            ("a cluster", cluster.as_str()),
            ("its anchor", anchor.as_str()),
            ("the first", founded_in.as_str()),
        ])
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { cluster, anchor, founded_in } = self;
        let founded_in = domain.founded_in.clone().unwrap_or(founded_in);
        match domain.anchors.get(&cluster) {
            Some(known) if *known == anchor => return Ok(Outcome::Unchanged),
            Some(known) => return Err(Refusal::AnotherClusterAnchor { cluster, known: known.clone(), anchor }),
            // What is known of that name was read by agents that had no anchor of their own.
            None if cluster == founded_in || domain.clusters().any(|known| *known == cluster) => {
                return Err(Refusal::ClusterTaken(cluster));
            }
            None => domain.may_add("clusters", domain.anchors.len(), domain.bounds.clusters)?,
        }
        domain.founded_in = Some(founded_in);
        let anchored = DomainEvent::ClusterAnchored { cluster: cluster.clone(), anchor: anchor.clone() };
        domain.note(actor, [Subject::Domain], anchored, None);
        domain.anchors.insert(cluster, anchor);
        Ok(Outcome::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::AnchorCluster;
    use crate::domain::Domain;
    use crate::domain::change::{AdmitServer, Command, FoundDomain};
    use crate::domain::command::{Actor, Entry, Request, Role};
    use crate::domain::ids::{Millis, RaftId};
    use crate::domain::outcome::Outcome;
    use crate::domain::server::Server;

    fn apply(domain: &mut Domain, command: Command) -> String {
        let request = Request { actor: Actor { role: Role::RaftLeader, name: "e-0".to_owned() }, command };
        match domain.apply(Entry { index: domain.index + 1, time: Millis(5), request }) {
            Outcome::Refused(refusal) => refusal.to_string(),
            outcome => format!("{outcome:?}"),
        }
    }

    fn admit(domain: &mut Domain, id: &str, cluster: &str) -> String {
        let (id, cluster, address) = (id.into(), cluster.into(), format!("{id}:48005"));
        let (raft_id, version) = (RaftId(domain.index + 7), "0.1.0".to_owned());
        let server = Server { id, cluster, address, raft_id, version, labels: [].into(), joined: Millis(0) };
        apply(domain, Command::AdmitServer(AdmitServer { server }))
    }

    fn anchor(domain: &mut Domain, cluster: &str, anchor: &str) -> String {
        let (cluster, anchor) = (cluster.into(), anchor.into());
        apply(domain, Command::AnchorCluster(AnchorCluster { cluster, anchor, founded_in: "east".into() }))
    }

    fn founded() -> Domain {
        let mut domain = Domain::default();
        let found = FoundDomain { domain: "D1".into(), name: "kaa".to_owned(), anchor: "A1".into() };
        apply(&mut domain, Command::FoundDomain(found));
        assert_eq!(admit(&mut domain, "e-0", "east"), "Changed");
        domain
    }

    #[test]
    fn a_cluster_is_anchored_once_and_the_first_one_never_again() {
        let mut domain = founded();
        assert_eq!(anchor(&mut domain, "west", "A2"), "Changed");
        assert_eq!(anchor(&mut domain, "west", "A2"), "Unchanged");
        let another = "cluster west is anchored by the lease with uid A2, and not by the one with uid A3: a cluster that is \
                       rebuilt, or a second one of that name, joins under a name of its own (--cluster)";
        assert_eq!(anchor(&mut domain, "west", "A3"), another);
        let taken = "the domain has a cluster east already: give each cluster a name of its own (--cluster)";
        assert_eq!(anchor(&mut domain, "east", "A3"), taken);
        assert_eq!(domain.anchor_in(&"west".into()), Some(&"A2".into()));
        assert_eq!(domain.anchor_in(&"east".into()), Some(&"A1".into()));
        assert!(!domain.is_spread());
        assert_eq!(admit(&mut domain, "w-0", "west"), "Changed");
        assert!(domain.is_spread());
    }

    #[test]
    fn the_servers_of_two_clusters_have_names_of_their_own() {
        let mut domain = founded();
        anchor(&mut domain, "west", "A2");
        let taken = "server e-1 has a name of StatefulSet e, which is that of the servers of cluster east: name the StatefulSets \
                     of the clusters differently";
        assert_eq!(admit(&mut domain, "e-1", "west"), taken);
        let taken = taken.replace("e-1", "e-0");
        assert_eq!(admit(&mut domain, "e-0", "west"), taken, "it would take the place of another server");
        assert_eq!(admit(&mut domain, "w-0", "west"), "Changed");
        assert_eq!(admit(&mut domain, "e-1", "east"), "Changed");
    }
}
