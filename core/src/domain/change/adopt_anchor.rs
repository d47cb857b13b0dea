//! An operator says that another Kubernetes is the domain's from now on.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ClusterName, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Takes another Kubernetes for the one that the domain was founded in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptAnchor {
    /// The UID of the anchor that is known.
    pub known: Uid,
    /// The UID of the anchor that is there now.
    pub anchor: Uid,
    /// Why, in the words of the operator who asks.
    pub why: String,
    /// The cluster in which it was read, if several share the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// The anchor as it was read.
    pub evidence: Evidence,
}

impl Change for AdoptAnchor {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { known: _, anchor, why, cluster, evidence } = self;
        bounds.name("the anchor's UID", anchor)?;
        cluster.as_ref().map_or(Ok(()), |cluster| bounds.name("the cluster", cluster))?;
        fits("why", why, bounds.text)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { known, anchor, why, cluster, evidence } = self;
        only_an_operator(actor)?;
        // In a domain of one cluster that may be called otherwise by now.
        let cluster = cluster.filter(|cluster| domain.founded_in.as_ref().is_some_and(|first| first != cluster));
        let now = match &cluster {
            Some(cluster) => domain.anchors.get(cluster),
            None => domain.anchor.as_ref(),
        };
        if now == Some(&anchor) {
            return Ok(Outcome::Unchanged);
        }
        if now != Some(&known) {
            return Err(Refusal::AnotherAnchor(now.cloned().unwrap_or_default()));
        }
        if !evidence.anchored_by(&anchor) {
            return Err(Refusal::Unproven(format!("the anchor lease has uid {anchor}")));
        }
        let adopted = DomainEvent::AnchorAdopted { anchor: anchor.clone(), before: known, why };
        domain.note(actor, [Subject::Domain], adopted, Some(evidence));
        match cluster {
            Some(cluster) => drop(domain.anchors.insert(cluster, anchor)),
            None => domain.anchor = Some(anchor),
        }
        Ok(Outcome::Changed)
    }
}
