use super::Change;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::{Actor, Fence};
use crate::domain::evidence::Evidence;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::{ExitReason, SessionState};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Takes away a process whose pod or container is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveProcess {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The process.
    pub process: StartId,
    /// Its session, which must be lost.
    pub session: SessionNumber,
    /// What is gone: `PodGone`, `ContainerEnded` or `ContainerReplaced`.
    pub reason: ExitReason,
    /// The proof.
    pub evidence: Evidence,
}

impl Change for RemoveProcess {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, process: _, session: _, reason, evidence } = self;
        if let ExitReason::Exited(why) = reason {
            cut(why, bounds.text);
        }
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { fence, process: id, session, reason, evidence } = self;
        domain.fenced(&fence)?;
        if domain.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let process = domain.in_session(id, session)?.clone();
        if process.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(process.cluster));
        }
        if process.session.state == SessionState::Live {
            return Err(Refusal::SessionLive(id));
        }
        domain.anchored(&evidence)?;
        let (pod, identity) = (&process.identity.pod_uid, &process.identity);
        let mut exit_code = None;
        // It was taken for the container before it, whose start was close to its own.
        let mistaken = process
            .container_id
            .as_ref()
            .is_some_and(|known| evidence.is_in_another(pod, &identity.container, known, identity.started));
        let proven = match (&reason, &process.container_id) {
            (ExitReason::PodGone, _) => evidence.pod_is_gone(&identity.pod, pod),
            (ExitReason::ContainerEnded, Some(container)) => {
                let ended = evidence.container_ended(pod, container);
                exit_code = ended.flatten();
                ended.is_some() && !mistaken
            }
            (ExitReason::ContainerReplaced, Some(container)) => {
                evidence.container_replaced(pod, &identity.container, container) && !mistaken
            }
            (ExitReason::ContainerEnded | ExitReason::ContainerReplaced, None)
            | (
                ExitReason::Graceful
                | ExitReason::Exited(_)
                | ExitReason::Restarted(_)
                | ExitReason::Killed
                | ExitReason::Evicted,
                _,
            ) => false,
        };
        if !proven {
            return Err(Refusal::Unproven(format!("process {id} is gone")));
        }
        domain.bury(actor, id, reason, exit_code, Some(evidence));
        Ok(Outcome::Changed)
    }
}
