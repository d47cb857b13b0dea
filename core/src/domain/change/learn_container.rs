use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::ids::{ContainerId, StartId, Uid};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes which container a process is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnContainer {
    /// The process.
    pub process: StartId,
    /// Its pod.
    pub pod: Uid,
    /// The container's id.
    pub container: ContainerId,
}

impl Change for LearnContainer {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { process: _, pod, container } = self;
        bounds.names([("a pod's UID", pod.as_str()), ("a container's id", container.as_str())])
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, pod, container } = self;
        let process = domain.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))?;
        if process.identity.pod_uid != pod {
            return Err(Refusal::AnotherIdentity(id));
        }
        match &process.container_id {
            Some(known) if *known == container => return Ok(Outcome::Unchanged),
            Some(_) => return Err(Refusal::AnotherIdentity(id)),
            None => {}
        }
        process.container_id = Some(container.clone());
        domain.note(actor, [Subject::Process(id)], format!("runs in container {container}"), None);
        Ok(Outcome::Changed)
    }
}
