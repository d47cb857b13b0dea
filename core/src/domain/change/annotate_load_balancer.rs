//! An annotation sets a load-balancer entry. What an operator has set for it stays beside it, and has effect again when the
//! annotation is removed.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::balancing::{Annotated, Item, Object};
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::LoadBalancerEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Sets a load-balancer entry to what an annotation says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnotateLoadBalancer {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// What is set.
    pub item: Item,
    /// The annotation's text.
    pub text: String,
    /// The object that has the annotation.
    pub object: Object,
    /// The proof that it has it.
    pub evidence: Evidence,
}

impl Change for AnnotateLoadBalancer {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, item, text, object, evidence } = self;
        bounds.name("the name of a load-balancer entry", item)?;
        bounds.name("the name of an object", object.name())?;
        fits("a load-balancer query", text, bounds.query)?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence, item, text, object, evidence } = self;
        let event = LoadBalancerEvent::Annotated { object: object.clone(), text: text.clone() };
        domain.note(actor, [Subject::LoadBalancer(item.clone())], event, Some(evidence));
        let annotated = Annotated { text, cluster: fence.cluster, object };
        domain.balancing.change(item, domain.index, |entry| entry.annotated = Some(annotated));
        Ok(Outcome::Changed)
    }
}

impl Planned for AnnotateLoadBalancer {
    fn reads(&self, _: &Domain) -> Vec<Need> {
        vec![Need::LoadBalancer { object: self.object.clone(), item: self.item.clone() }, Need::Anchor]
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, item, text, object, evidence } = self;
        domain.led_by(fence)?;
        let annotated = domain.balancing.entries.get(item).and_then(|entry| entry.annotated.as_ref());
        let same = |it: &Annotated| it.text == *text && it.object == *object && it.cluster == fence.cluster;
        if annotated.is_some_and(same) {
            return Ok(Work::Done);
        }
        domain.may_balance(item, text)?;
        domain.anchored(&fence.cluster, evidence)?;
        if !evidence.annotation_says(object, item, Some(text)) {
            return Err(Refusal::Unproven(format!("{object} sets load balancer {item} to {text}")));
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        let Self { item, text, object, .. } = self;
        format!("set load balancer {item} to {text}: annotation of {object}")
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::AnnotateLoadBalancer(Self { fence, evidence, ..self.clone() })
    }

    fn removes(&self) -> bool {
        false
    }
}
