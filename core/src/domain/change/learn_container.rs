//! Which container a process is.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ProcessEvent;
use crate::domain::evidence::{Evidence, Need};
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
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { process: _, pod, container } = self;
        bounds.names([("a pod's UID", pod.as_str()), ("a container's id", container.as_str())])
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { process: id, pod: _, container } = self;
        if let Some(process) = domain.processes.get_mut(&id) {
            process.container_id = Some(container.clone());
        }
        domain.note(actor, [Subject::Process(id)], ProcessEvent::ContainerLearned { container }, None);
        Ok(Outcome::Changed)
    }
}

impl Planned for LearnContainer {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        // What the watches show is enough: a container has one id, and nothing is removed by it.
        Vec::new()
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { process: id, pod, container } = self;
        let process = domain.processes.get(id).ok_or(Refusal::UnknownProcess(*id))?;
        if process.identity.pod_uid != *pod {
            return Err(Refusal::AnotherIdentity(*id));
        }
        match &process.container_id {
            Some(known) if known == container => return Ok(Work::Done),
            Some(_) => return Err(Refusal::AnotherIdentity(*id)),
            None => {}
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        format!("learn that process {} is container {}", self.process, self.container)
    }

    fn bound(&self, _: Fence, _: Evidence) -> Command {
        Command::LearnContainer(self.clone())
    }

    fn removes(&self) -> bool {
        false
    }
}
