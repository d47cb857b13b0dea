//! The resync removes a load-balancer entry: what an annotation had set, since it is gone; or what an operator has set, since
//! another annotation says that nothing else shall be set.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::balancing::{Item, Object};
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::LoadBalancerEvent;
use crate::domain::evidence::{Evidence, Fact, Need};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes what was set for load balancing by one origin. What the other has set stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveLoadBalancer {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// What had been set.
    pub item: Item,
    /// By which origin, and why it is removed.
    pub origin: Unset,
    /// The proof.
    pub evidence: Evidence,
}

/// Which part of an entry is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Unset {
    /// What the annotation of this object had set.
    Annotated(Object),
    /// What an operator has set: this StatefulSet asks for a full sync.
    Manual {
        /// Its name.
        stateful_set: String,
    },
}

impl Change for RemoveLoadBalancer {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, item, origin, evidence } = self;
        bounds.name("the name of a load-balancer entry", item)?;
        let (Unset::Annotated(Object::StatefulSet(object) | Object::Deployment(object))
        | Unset::Manual { stateful_set: object }) = origin;
        bounds.name("the name of an object", object)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, item, origin, evidence } = self;
        let manual = matches!(origin, Unset::Manual { .. });
        let event = match origin {
            Unset::Annotated(object) => LoadBalancerEvent::AnnotationGone { object },
            Unset::Manual { stateful_set } => LoadBalancerEvent::Synced { stateful_set },
        };
        domain.note(actor, [Subject::LoadBalancer(item.clone())], event, Some(evidence));
        domain.balancing.change(item, domain.index, |entry| match manual {
            true => entry.manual = None,
            false => entry.annotated = None,
        });
        Ok(Outcome::Changed)
    }
}

impl Planned for RemoveLoadBalancer {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        let read = match &self.origin {
            Unset::Annotated(object) => Need::LoadBalancer { object: object.clone(), item: self.item.clone() },
            Unset::Manual { stateful_set } => Need::StatefulSet(stateful_set.clone()),
        };
        vec![read, Need::Anchor]
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, item, origin, evidence } = self;
        domain.fenced(fence)?;
        let entry = domain.balancing.entries.get(item);
        match origin {
            Unset::Annotated(object) => {
                let Some(annotated) = entry.and_then(|entry| entry.annotated.as_ref()) else { return Ok(Work::Done) };
                if annotated.cluster != fence.cluster {
                    return Err(Refusal::AnotherCluster(annotated.cluster.clone()));
                }
                domain.anchored(&fence.cluster, evidence)?;
                if annotated.object != *object || !evidence.annotation_says(object, item, None) {
                    return Err(Refusal::Unproven(format!("{} does not set load balancer {item}", annotated.object)));
                }
            }
            Unset::Manual { stateful_set } => {
                if entry.is_none_or(|entry| entry.manual.is_none()) {
                    return Ok(Work::Done);
                }
                domain.anchored(&fence.cluster, evidence)?;
                if !evidence.syncs_fully(stateful_set) {
                    return Err(Refusal::Unproven(format!("statefulset {stateful_set} asks for a full sync")));
                }
            }
        }
        Ok(Work::ToDo)
    }

    fn keeps(&self, fact: &Fact) -> bool {
        matches!(fact, Fact::AnchorIs { .. } | Fact::AnnotationSays { .. } | Fact::SyncsFully { .. })
    }

    fn text(&self, _: &Domain) -> String {
        let item = &self.item;
        match &self.origin {
            Unset::Annotated(object) => format!("unset load balancer {item}: the annotation of {object} is gone"),
            Unset::Manual { stateful_set } => {
                format!(
                    "remove what an operator has set for load balancer {item}: statefulset {stateful_set} syncs fully"
                )
            }
        }
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::RemoveLoadBalancer(Self { fence, evidence, ..self.clone() })
    }
}
