//! An operator purges a removed archive.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::ArchiveEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ArchiveId, ClusterName};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Purges a removed archive by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetArchive {
    /// The archive.
    pub archive: ArchiveId,
    /// Why, in the operator's words.
    pub why: String,
    /// The cluster in which its claim was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// The proof that its claim is gone, if its claim is known.
    pub evidence: Evidence,
}

impl Change for ForgetArchive {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { archive: _, why, cluster: _, evidence } = self;
        fits("why", why, bounds.text)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { archive: id, why, cluster, evidence } = self;
        only_an_operator(actor)?;
        if id <= domain.last_archive && !domain.archives.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let archive = domain.unused_archive(id)?;
        if archive.removed.is_none() {
            return Err(Refusal::NotRemoved(id));
        }
        if let Some(claim) = &archive.claim {
            Domain::read_in(cluster.as_ref(), &archive.cluster)?;
            domain.anchored(&archive.cluster, &evidence)?;
            if !domain.lost_its_claim(archive, &evidence) {
                return Err(Refusal::Unproven(format!("claim {} of archive {id} is gone", claim.name)));
            }
        }
        domain.forget(actor, id, ArchiveEvent::Forgotten { archive: id, why }, evidence);
        Ok(Outcome::Changed)
    }
}
