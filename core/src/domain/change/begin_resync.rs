//! An agent has acquired the Lease of the resync leader.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ClusterName, ResyncEpoch, ServerId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain, ResyncLeader};
use serde::{Deserialize, Serialize};

/// Opens a resync epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginResync {
    /// Whose resync.
    pub cluster: ClusterName,
    /// The Lease's UID.
    pub lease: Uid,
    /// The Lease's count of acquisitions; grows with each.
    pub transitions: u64,
    /// Who acquired it.
    pub holder: ServerId,
    /// The Lease as it was acquired.
    pub evidence: Evidence,
}

impl Change for BeginResync {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { cluster, lease, transitions: _, holder, evidence } = self;
        bounds.names([
            ("a cluster", cluster.as_str()),
            ("a lease", lease.as_str()),
            ("its holder", holder.as_str()),
        ])?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { cluster, lease, transitions, holder, evidence } = self;
        if let Some(last) = domain.resync.get(&cluster) {
            if last.lease == lease && last.transitions == transitions && last.holder == holder {
                return Ok(Outcome::ResyncBegun(last.epoch));
            }
            if last.lease == lease && transitions <= last.transitions {
                return Err(Refusal::StaleLease { proposed: transitions, last: last.transitions });
            }
            if last.lease != lease && !evidence.lease_is(&lease) {
                return Err(Refusal::LeaseReplaced);
            }
        } else {
            domain.may_add("clusters", domain.resync.len(), domain.bounds.clusters)?;
        }
        let epoch = ResyncEpoch(domain.index);
        let subjects = [Subject::Resync(cluster.clone()), Subject::Server(holder.clone())];
        let begun = DomainEvent::ResyncBegun { holder: holder.clone(), cluster: cluster.clone(), epoch };
        domain.note(actor, subjects, begun, Some(evidence));
        domain.resync.insert(cluster, ResyncLeader { lease, transitions, holder, epoch });
        Ok(Outcome::ResyncBegun(epoch))
    }
}
