//! An operator sets or removes load-balancer entries. What annotations have set stays beside them, and has the effect.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::balancing::{Item, Manual};
use crate::domain::bounds::{Bounds, Fits, few, fits};
use crate::domain::command::Actor;
use crate::domain::event::LoadBalancerEvent;
use crate::domain::outcome::Outcome;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sets or removes load-balancer entries, all of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLoadBalancer {
    /// The new texts; `None` removes what an operator has set.
    pub entries: BTreeMap<Item, Option<String>>,
}

impl Change for SetLoadBalancer {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { entries } = self;
        few("load-balancer entries at once", entries.len(), bounds.policies)?;
        entries.iter().try_for_each(|(item, text)| {
            bounds.name("the name of a load-balancer entry", item)?;
            text.as_ref().map_or(Ok(()), |text| fits("a load-balancer query", text, bounds.query))
        })
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        only_an_operator(actor)?;
        let Self { mut entries } = self;
        let manual = |item: &Item| domain.balancing.entries.get(item).and_then(|entry| entry.manual.as_ref());
        entries.retain(|item, text| manual(item).map(|manual| &manual.text) != text.as_ref());
        if entries.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        let set = entries.iter().filter_map(|(item, text)| Some((item, text.as_ref()?)));
        for (item, text) in set {
            domain.may_balance(item, text)?;
        }
        let (index, by) = (domain.index, &actor.name);
        for (item, text) in entries {
            let event = match &text {
                Some(text) => LoadBalancerEvent::Set { text: text.clone() },
                None => LoadBalancerEvent::Removed,
            };
            domain.note(actor, [Subject::LoadBalancer(item.clone())], event, None);
            let manual = text.map(|text| Manual { text, by: by.clone() });
            domain.balancing.change(item, index, |entry| entry.manual = manual);
        }
        Ok(Outcome::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::bounds::Excess;
    use crate::domain::change::Command;
    use crate::domain::command::{Entry, Refusal, Request, Role};

    fn apply(domain: &mut Domain, role: Role, entries: &[(&str, Option<&str>)]) -> Outcome {
        let entries = entries.iter().map(|(item, text)| (item.parse().unwrap(), text.map(str::to_owned)));
        let command = Command::SetLoadBalancer(SetLoadBalancer { entries: entries.collect() });
        let request = Request { actor: Actor { role, name: "user ann".to_owned() }, command };
        domain.apply(Entry { index: domain.index + 1, time: domain.time, request })
    }

    fn founded() -> Domain {
        Domain { id: Some("D1".into()), ..Domain::default() }
    }

    #[test]
    fn all_of_it_is_set_or_none() {
        let mut domain = founded();
        let both = [("global/default", Some("random(any)")), ("database/demo/prefilter", Some("any"))];
        let refused = apply(&mut domain, Role::Operator, &both);
        assert_eq!(refused, Outcome::Refused(Refusal::NoDatabase("demo".into())));
        assert!(domain.balancing.entries.is_empty());
        assert_eq!(apply(&mut domain, Role::Operator, &both[..1]), Outcome::Changed);
        assert_eq!(apply(&mut domain, Role::Operator, &both[..1]), Outcome::Unchanged);
        assert_eq!(apply(&mut domain, Role::Operator, &[("global/default", None)]), Outcome::Changed);
        assert_eq!(apply(&mut domain, Role::Operator, &[("global/default", None)]), Outcome::Unchanged);
        assert!(domain.balancing.entries.is_empty());
    }

    #[test]
    fn only_an_operator_sets_and_no_more_than_fits() {
        let mut domain = founded();
        let set = [("policy/near", Some("random(any)"))];
        assert_eq!(apply(&mut domain, Role::Agent, &set), Outcome::Refused(Refusal::OnlyAnOperator));
        domain.bounds.query = 10;
        let refused = apply(&mut domain, Role::Operator, &set);
        assert!(matches!(refused, Outcome::Refused(Refusal::OutOfBounds(Excess::Long { .. }))), "{refused:?}");
        domain.bounds = Bounds { policies: 1, ..Bounds::default() };
        assert_eq!(apply(&mut domain, Role::Operator, &set), Outcome::Changed);
        let refused = apply(&mut domain, Role::Operator, &[("policy/far", Some("random(any)"))]);
        assert!(matches!(refused, Outcome::Refused(Refusal::OutOfBounds(Excess::Many { .. }))), "{refused:?}");
        domain.bounds = Bounds { balancing_bytes: 300, ..Bounds::default() };
        let refused = apply(&mut domain, Role::Operator, &[("policy/near", Some(&"x".repeat(300)))]);
        assert!(matches!(refused, Outcome::Refused(Refusal::OutOfBounds(Excess::Long { .. }))), "{refused:?}");
    }
}
