//! What an agent whose Raft runs watches for: an anchor that has moved on without it, and a group that has lost its quorum.

use super::{gate, quorum_override, retired};
use crate::agent::{Over, Shared};
use crate::config::{ANCHOR_PERIOD, BACKOFF, CALM_ANCHOR_PERIOD, OVERRIDE_AFTER, ordinal_of};
use kaa_core::domain::ids::{RaftId, ServerId};
use kaa_core::membership::clusters;
use kaa_core::membership::quorum_override::{Outlook, Stranded, outlook};
use kaa_core::membership::{Refusal, Seen};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Runs until this Raft is aborted, or is over.
pub async fn follow(shared: Arc<Shared>) {
    let (mut looked, mut pruned) = (None::<Instant>, false);
    let mut fenced = shared.links.fenced();
    loop {
        let pause = BACKOFF / 2 + Duration::from_millis(crate::clock::random_below(BACKOFF.as_millis() as u64 / 2));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            server = shared.host.asked_to_seal() => {
                info!("{server} asks to seal this log: a quorum override is in progress");
                return shared.set_over(Over::Seal);
            }
        }
        shared.note_quorum();
        let refused = std::mem::replace(&mut fenced, shared.links.fenced()) != fenced;
        let stranded = shared.without_quorum_for().is_some_and(|lacking| lacking >= OVERRIDE_AFTER);
        if !stranded {
            shared.set_stranded(None);
        }
        let calm = shared.without_quorum_for().is_none() && !shared.candidacy.leads_now();
        let period = if calm { CALM_ANCHOR_PERIOD } else { ANCHOR_PERIOD };
        if !stranded && !refused && looked.is_some_and(|looked| looked.elapsed() < period) {
            continue;
        }
        looked = Some(Instant::now());
        let (config, kubernetes, links, raft) = (&shared.config, &shared.kubernetes, &shared.links, &shared.raft);
        match gate::look(config, kubernetes, links, raft.local(), stranded || refused).await {
            Ok(Seen::Newer) => {
                warn!(
                    "the anchor names a later epoch than this log: this server retires its log and joins with an empty one"
                );
                return shared.set_over(Over::Newer);
            }
            Ok(Seen::Mine) => {
                shared.set_anchor_alarm(None);
                pruned = pruned || retired::prune(&shared).await;
            }
            Ok(Seen::Missing) => shared.set_anchor_alarm(Some(missing(&shared))),
            Ok(Seen::Contradiction(why)) => shared.set_anchor_alarm(Some(contradiction(&why))),
            Err(why) => {
                debug!("the anchor could not be read: {why}");
                continue;
            }
        }
        if !stranded {
            continue;
        }
        match judge(&shared).await {
            Ok(Outlook::Seal) => {
                warn!("{}", Outlook::Seal);
                return shared.set_over(Over::Seal);
            }
            Ok(outlook) => shared.set_stranded(Some(outlook.to_string())),
            Err(why) => shared.set_stranded(Some(why)),
        }
    }
}

fn missing(shared: &Shared) -> String {
    format!(
        "the lease {} is gone: running servers continue, but none can start until kaa adopt creates it again",
        shared.config.anchor_name()
    )
}

fn contradiction(why: &Refusal) -> String {
    match why {
        Refusal::AnotherDomain { mine, anchor } => {
            format!(
                "the anchor names domain {anchor}, but this one is {mine}: this server continues, and none can join it"
            )
        }
        Refusal::AnchorBehind { mine, anchor } => format!(
            "the anchor was set back to epoch {anchor}, but this log is of epoch {mine}: this server continues, and none \
             can join it"
        ),
    }
}

/// Judges why there is no leader, by a fresh read of what is wanted and by what the others answer.
async fn judge(shared: &Shared) -> Result<Outlook, String> {
    if shared.config.entrypoint.is_some() {
        return Err(clusters::ONLY_AT_THE_ENTRY_POINT.to_owned());
    }
    let ordinals = quorum_override::wanted(&shared.kubernetes, &shared.config).await?;
    let status = shared.raft.status();
    let known: BTreeMap<ServerId, RaftId> =
        shared.raft.read(|domain| domain.servers.values().map(|server| (server.id.clone(), server.raft_id)).collect());
    let set = &shared.config.stateful_set;
    let wanted: BTreeSet<ServerId> = ordinals.clone().map(|ordinal| format!("{set}-{ordinal}").into()).collect();
    let own = shared.own_address();
    let addresses = ordinals.map(|ordinal| shared.config.peer_address(shared.kubernetes.namespace(), ordinal));
    let addresses: Vec<String> = addresses.filter(|address| *address != own).collect();
    let asked = addresses.iter().map(|address| shared.links.status(address));
    let mut answered = BTreeMap::new();
    for reply in futures::future::join_all(asked).await.into_iter().flatten() {
        if reply.domain != status.domain.as_str() || reply.epoch != status.epoch.0 {
            continue;
        }
        // A server that follows this one reports this one as its leader, and knows of no other.
        if reply.quorum && reply.leader != shared.config.server.as_str() {
            return Err(format!("{} is in contact with a leader, and this server is not", reply.server));
        }
        let server = ServerId::from(reply.server.as_str());
        if ordinal_of(&server, set).is_some() {
            answered.insert(server, RaftId(reply.raft_id));
        }
    }
    if shared.raft.status().quorum {
        return Err("there is a leader again".to_owned());
    }
    answered.insert(shared.config.server.clone(), status.raft_id);
    let halves = shared.raft.membership().halves;
    Ok(outlook(&Stranded { halves, known, answered, wanted }))
}
