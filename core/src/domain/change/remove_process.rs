//! A process whose pod or container is proven to be gone becomes a tombstone.

use super::{Change, Command, Planned, Work};
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::{Actor, Fence};
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::{ExitReason, SessionState};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes a process whose pod or container is gone.
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
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, process: _, session: _, reason, evidence } = self;
        if let ExitReason::Exited(why) = reason {
            cut(why, bounds.text);
        }
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, process: id, session: _, reason, evidence } = self;
        let process = domain.processes.get(&id).ok_or(Refusal::UnknownProcess(id))?;
        let container = process.container_id.as_ref().filter(|_| reason == ExitReason::ContainerEnded);
        let ended = container.and_then(|container| evidence.container_ended(&process.identity.pod_uid, container));
        domain.bury(actor, id, reason, ended.flatten(), Some(evidence));
        Ok(Outcome::Changed)
    }
}

impl Planned for RemoveProcess {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let process = domain.processes.get(&self.process);
        process.map(|process| Need::Pod(process.identity.pod.clone())).into_iter().chain([Need::Anchor]).collect()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, process: id, session, reason, evidence } = self;
        domain.fenced(fence)?;
        if domain.tombstones.contains_key(id) {
            return Ok(Work::Done);
        }
        let process = domain.of_session(*id, *session)?;
        if process.cluster != fence.cluster {
            return Err(Refusal::AnotherCluster(process.cluster.clone()));
        }
        if process.session.state == SessionState::Live {
            return Err(Refusal::SessionLive(*id));
        }
        domain.anchored(&fence.cluster, evidence)?;
        let (pod, identity) = (&process.identity.pod_uid, &process.identity);
        // It was taken for the container before it, whose start was close to its own.
        let mistaken = process
            .container_id
            .as_ref()
            .is_some_and(|known| evidence.is_in_another(pod, &identity.container, known, identity.started));
        let proven = match (reason, &process.container_id) {
            (ExitReason::PodGone, _) => evidence.pod_is_gone(&identity.pod, pod),
            (ExitReason::ContainerEnded, Some(container)) => {
                evidence.container_ended(pod, container).is_some() && !mistaken
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
        Ok(Work::ToDo)
    }

    fn text(&self, domain: &Domain) -> String {
        let Self { process: id, reason, .. } = self;
        let pod = domain.processes.get(id).map_or("", |process| &process.identity.pod);
        format!("remove process {id} of pod {pod}: {reason}")
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::RemoveProcess(Self { fence, evidence, ..self.clone() })
    }
}
