//! What annotations say of load balancing is set: on the StatefulSet of the admin servers for all databases, on the Deployment
//! of transaction engines for its database.
//!
//! An annotation that does not parse changes nothing, not even what the one before it had set. What an operator has set stays,
//! unless the StatefulSet asks for a full sync. A StatefulSet that is gone says nothing: it may be recreated. A Deployment that
//! is gone unsets what it had set.

use super::View;
use super::plan::{Finding, Kind, Plan, Waiting, WaitingReason};
use crate::balancer::parse::{Expected, Found, MAX_BYTES, SyntaxError};
use crate::domain::audit::Subject;
use crate::domain::balancing::{Entry, Item, Object};
use crate::domain::change::{AnnotateLoadBalancer, Command, RemoveLoadBalancer, Unset};
use crate::domain::command::Fence;
use crate::domain::database::DatabaseState;
use crate::domain::evidence::Evidence;
use crate::observed::annotations::Says;
use crate::observed::objects::{RAFT_LOG_TEMPLATE, StatefulSet};
use std::collections::BTreeMap;

pub(super) fn plan(view: &View, plan: &mut Plan) {
    if !view.policy.entry_point {
        return;
    }
    let (Ok(sets), Ok(deployments)) = (view.observed.stateful_sets.known(), view.observed.deployments.known()) else {
        // Only who has set something by annotations misses it.
        if view.domain.balancing.entries.values().any(|entry| entry.annotated.is_some()) {
            View::known(plan, Kind::StatefulSets, view.observed.stateful_sets.known());
            View::known(plan, Kind::Deployments, view.observed.deployments.known());
        }
        return;
    };
    let mut admin = sets.values().filter(|set| set.templates.iter().any(|template| template == RAFT_LOG_TEMPLATE));
    // Two of them are reported where they hold up removals.
    let admin = admin.next().filter(|_| admin.next().is_none());
    let mut said: BTreeMap<Item, (Object, &Says)> = BTreeMap::new();
    for (item, says) in admin.into_iter().flat_map(StatefulSet::balancing) {
        said.insert(item, (Object::StatefulSet(admin.map(|set| set.name.clone()).unwrap_or_default()), says));
    }
    for deployment in deployments.values() {
        for (item, says) in deployment.balancing() {
            // Of two the first by name counts.
            said.entry(item).or_insert((Object::Deployment(deployment.name.clone()), says));
        }
    }
    for (item, (object, says)) in &said {
        set(view, plan, item, object, says);
    }
    for (item, entry) in &view.domain.balancing.entries {
        if !said.contains_key(item) {
            unset(view, plan, item, entry, admin);
        }
        let sync = admin.filter(|set| set.annotations.full_sync && entry.manual.is_some());
        if let Some(set) = sync {
            remove(view, plan, item, Unset::Manual { stateful_set: set.name.clone() });
        }
    }
}

/// What an annotation says is set, if it parses and is not set yet.
fn set(view: &View, plan: &mut Plan, item: &Item, object: &Object, says: &Says) {
    let known = |name| view.domain.databases.get(name).is_some_and(|it| it.state != DatabaseState::Tombstone);
    // It waits for its database, as its engines do.
    if !item.database().is_none_or(known) {
        return;
    }
    let subject = Subject::LoadBalancer(item.clone());
    let parsed = match says {
        Says::Text(text) => item.parses(text).map(|()| text),
        Says::TooLong(bytes) => Err(SyntaxError {
            position: MAX_BYTES as u32 + 1,
            expected: Expected::Shorter,
            found: Found::Bytes(*bytes),
        }),
    };
    let text = match parsed {
        Ok(text) => text.to_string(),
        Err(why) => {
            let reason = WaitingReason::AnnotationBroken { object: object.clone(), annotation: item.annotation(), why };
            plan.waiting.push(Waiting { subject, reason });
            return;
        }
    };
    let annotated = view.domain.balancing.entries.get(item).and_then(|entry| entry.annotated.as_ref());
    if annotated.is_some_and(|it| it.text == text && it.object == *object && it.cluster == view.policy.cluster) {
        return;
    }
    let command = Command::AnnotateLoadBalancer(AnnotateLoadBalancer {
        fence: Fence::default(),
        item: item.clone(),
        text,
        object: object.clone(),
        evidence: Evidence::default(),
    });
    plan.findings.push(Finding::new(view.domain, subject, command, Vec::new()));
}

/// What an annotation of this cluster had set is unset, if it is gone.
fn unset(view: &View, plan: &mut Plan, item: &Item, entry: &Entry, admin: Option<&StatefulSet>) {
    let Some(annotated) = entry.annotated.as_ref().filter(|it| it.cluster == view.policy.cluster) else { return };
    if matches!(annotated.object, Object::StatefulSet(_)) && admin.is_none() {
        return;
    }
    remove(view, plan, item, Unset::Annotated(annotated.object.clone()));
}

fn remove(view: &View, plan: &mut Plan, item: &Item, origin: Unset) {
    let command = Command::RemoveLoadBalancer(RemoveLoadBalancer {
        fence: Fence::default(),
        item: item.clone(),
        origin,
        evidence: Evidence::default(),
    });
    plan.findings.push(Finding::new(view.domain, Subject::LoadBalancer(item.clone()), command, Vec::new()));
}
