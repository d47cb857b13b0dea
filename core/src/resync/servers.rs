//! A server whose volume was deleted, after its StatefulSet was scaled down, is removed for good. One whose volume is kept
//! stays known, evicted, and comes back by scale-up.

use super::View;
use super::plan::{Finding, Guard, Kind, Plan, Waiting, WaitingReason};
use crate::domain::archive::Ordinal;
use crate::domain::audit::Subject;
use crate::domain::change::{Command, RemoveServer};
use crate::domain::command::Fence;
use crate::domain::evidence::{Evidence, wants};
use crate::domain::server::raft_log_claim;
use crate::observed::objects::{RAFT_LOG_TEMPLATE, ordinal_of};

pub(super) fn plan(view: &View, plan: &mut Plan) {
    let observed = view.observed;
    let sets = View::known(plan, Kind::StatefulSets, observed.stateful_sets.known());
    let claims = View::known(plan, Kind::Claims, observed.claims.known());
    let pods = View::known(plan, Kind::Pods, observed.pods.known());
    let (Some(sets), Some(claims), Some(pods)) = (sets, claims, pods) else { return };
    for set in sets.values().filter(|set| set.templates.iter().any(|template| template == RAFT_LOG_TEMPLATE)) {
        for server in view.domain.servers.values().filter(|server| server.cluster == view.policy.cluster) {
            let Some(ordinal) = ordinal_of(server.id.as_str(), &set.name) else { continue };
            let claim = raft_log_claim(&server.id);
            // Its processes find another agent first, or are lost.
            let in_use = view.domain.speaks_with(&server.id).is_some();
            let there = claims.contains_key(&claim) || pods.contains_key(server.id.as_str());
            if there || in_use || wants(set.first_ordinal, set.replicas, ordinal) {
                continue;
            }
            // Nothing has to be read to know that.
            if view.voters.contains(&server.raft_id) {
                let subject = Subject::Server(server.id.clone());
                plan.waiting.push(Waiting { subject, reason: WaitingReason::StillVotes });
                continue;
            }
            let owner = Ordinal { stateful_set: set.name.clone(), uid: set.uid.clone(), ordinal };
            let guards = vec![Guard::NotPaused(set.name.clone())];
            let command = Command::RemoveServer(RemoveServer {
                fence: Fence::default(),
                server: server.id.clone(),
                raft_id: server.raft_id,
                owner,
                evidence: Evidence::default(),
            });
            plan.findings.push(Finding::new(view.domain, Subject::Server(server.id.clone()), command, guards));
        }
    }
}
