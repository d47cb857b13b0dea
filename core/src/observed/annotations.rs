//! What the annotations of an object say of load balancing, cut to a bound: who may annotate an object may write 256 KiB.

use super::objects::{Deployment, StatefulSet};
use super::{Observed, Unknown};
use crate::balancer::parse::MAX_BYTES;
use crate::domain::balancing::{Item, Object};
use crate::domain::bounds::Bounds;
use crate::domain::evidence::Fact;
use std::collections::BTreeMap;

/// The annotation, behind the prefix, that sets a default.
pub const DEFAULT: &str = "load-balancer-default";
/// The annotation, behind the prefix, that sets a pre-filter.
pub const PREFILTER: &str = "load-balancer-prefilter";
/// How the annotations that set policies begin, behind the prefix; the name of the policy follows.
pub const POLICY: &str = "load-balancer-policy.";
/// The annotation, behind the prefix, that asks for a full sync.
pub const SYNC: &str = "sync-load-balancer-config";
/// The annotation, behind the prefix, of a Deployment that is not the first of its database's: it sets nothing.
pub const SECONDARY: &str = "database-secondary-release";

/// What one annotation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// A query or filter, or something that is none.
    Text(Box<str>),
    /// Something that has so many bytes, which is more than a query may have. It is not kept.
    TooLong(u64),
}

/// What the annotations of one object say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `load-balancer-default`.
    pub default: Option<Says>,
    /// `load-balancer-prefilter`.
    pub prefilter: Option<Says>,
    /// `load-balancer-policy.NAME`.
    pub policies: BTreeMap<Box<str>, Says>,
    /// `sync-load-balancer-config: "true"`.
    pub full_sync: bool,
    /// `database-secondary-release: "true"`.
    pub secondary: bool,
}

impl From<&str> for Says {
    fn from(text: &str) -> Self {
        if text.len() <= MAX_BYTES { Self::Text(text.into()) } else { Self::TooLong(text.len() as u64) }
    }
}

impl Annotations {
    /// Reads an object's annotations by their names behind the prefix. Policies beyond what the domain holds are not kept.
    pub fn read<'a>(annotations: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut read = Self::default();
        for (name, text) in annotations {
            match name {
                DEFAULT => read.default = Some(text.into()),
                PREFILTER => read.prefilter = Some(text.into()),
                SYNC => read.full_sync = text == "true",
                SECONDARY => read.secondary = text == "true",
                _ => {
                    let policy = name.strip_prefix(POLICY).filter(|policy| !policy.is_empty() && !policy.contains('/'));
                    if let Some(policy) = policy.filter(|_| read.policies.len() < Bounds::DEFAULT.policies) {
                        read.policies.insert(policy.into(), text.into());
                    }
                }
            }
        }
        read
    }

    fn says(&self, item: &Item) -> Option<&Says> {
        match item {
            Item::Default(_) => self.default.as_ref(),
            Item::Prefilter(_) => self.prefilter.as_ref(),
            Item::Policy(name) => self.policies.get(name.as_str()),
        }
    }
}

impl StatefulSet {
    /// What it says of the entries that are of no database.
    pub fn balancing(&self) -> Vec<(Item, &Says)> {
        let Annotations { default, prefilter, policies, full_sync: _, secondary: _ } = &self.annotations;
        let default = default.iter().map(|says| (Item::Default(None), says));
        let prefilter = prefilter.iter().map(|says| (Item::Prefilter(None), says));
        let policies = policies.iter().map(|(name, says)| (Item::Policy(name.to_string()), says));
        default.chain(prefilter).chain(policies).collect()
    }
}

impl Deployment {
    /// What it says of the entries of its database; nothing, if it is a secondary one.
    pub fn balancing(&self) -> Vec<(Item, &Says)> {
        let Some(database) = self.database.as_ref().filter(|_| !self.annotations.secondary) else { return Vec::new() };
        let of = |item: fn(_) -> Item| item(Some(database.clone()));
        let default = self.annotations.default.iter().map(|says| (of(Item::Default), says));
        let prefilter = self.annotations.prefilter.iter().map(|says| (of(Item::Prefilter), says));
        default.chain(prefilter).collect()
    }
}

/// What a fresh read of an object proves of an entry. One that is not there says nothing of it; one that says too much proves
/// nothing.
fn facts(object: &Object, item: &Item, says: Option<&Says>) -> Vec<Fact> {
    let text = match says {
        None => None,
        Some(Says::Text(text)) => Some(text.to_string()),
        Some(Says::TooLong(_)) => return Vec::new(),
    };
    vec![Fact::AnnotationSays { object: object.clone(), item: item.clone(), text }]
}

/// The same of a StatefulSet.
pub fn set_facts(object: &Object, item: &Item, set: Option<&StatefulSet>) -> Vec<Fact> {
    facts(object, item, set.filter(|_| item.database().is_none()).and_then(|set| set.annotations.says(item)))
}

/// The same of a Deployment.
pub fn deployment_facts(object: &Object, item: &Item, deployment: Option<&Deployment>) -> Vec<Fact> {
    let says = deployment.map(Deployment::balancing).unwrap_or_default();
    facts(object, item, says.into_iter().find(|(of, _)| of == item).map(|(_, says)| says))
}

impl Observed {
    /// What a fresh read of an object would prove of an entry, if everything was as it is observed.
    pub fn annotation(&self, object: &Object, item: &Item) -> Result<Vec<Fact>, Unknown> {
        Ok(match object {
            Object::StatefulSet(name) => set_facts(object, item, self.stateful_sets.known()?.get(name)),
            Object::Deployment(name) => deployment_facts(object, item, self.deployments.known()?.get(name)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_costs_no_memory() {
        let (long, most) = ("(".repeat(256 << 10), "x".repeat(MAX_BYTES));
        let read =
            Annotations::read([(DEFAULT, long.as_str()), (PREFILTER, most.as_str()), (SYNC, "True"), ("other", "x")]);
        assert_eq!(read.default, Some(Says::TooLong(256 << 10)));
        assert!(matches!(read.prefilter, Some(Says::Text(_))));
        assert!(!read.full_sync, "only exactly `true` asks for what removes something");
        let many: Vec<String> = (0..1000).map(|n| format!("{POLICY}{n}")).collect();
        let read =
            Annotations::read(many.iter().map(|name| (name.as_str(), "random(any)")).chain([(POLICY, "random(any)")]));
        assert_eq!(read.policies.len(), Bounds::DEFAULT.policies);
    }

    #[test]
    fn a_secondary_deployment_says_nothing() {
        let annotations = |secondary| Annotations::read([(DEFAULT, "random(any)"), (SECONDARY, secondary)]);
        let of = |secondary| Deployment {
            database: Some("demo".into()),
            annotations: annotations(secondary),
            ..Deployment::default()
        };
        let (object, item) = (Object::Deployment("te".to_owned()), Item::Default(Some("demo".into())));
        let text = |deployment: &Deployment| match &deployment_facts(&object, &item, Some(deployment))[..] {
            [Fact::AnnotationSays { text, .. }] => text.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!((text(&of("false")).as_deref(), text(&of("true"))), (Some("random(any)"), None));
        assert_eq!(deployment_facts(&object, &Item::Default(Some("other".into())), Some(&of("false"))).len(), 1);
        let long = Deployment {
            annotations: Annotations { default: Some(Says::TooLong(9)), ..Annotations::default() },
            ..of("false")
        };
        assert_eq!(
            deployment_facts(&object, &item, Some(&long)),
            [],
            "what it says is not known, so nothing is proven"
        );
    }
}
