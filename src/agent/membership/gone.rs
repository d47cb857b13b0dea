//! What the founder of an epoch waits for if an operator gave up what only others had: that none of those can commit any
//! more in the old one. The founder checks that after it has swapped the anchor, however often it starts again.

use super::gate::Pass;
use crate::config::ordinal_of;
use crate::kubernetes::evidence;
use crate::raft::volume;
use crate::raft::{Node, Volume};
use kaa_core::domain::evidence::Fact;
use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId, Uid};
use kaa_core::membership::Anchor;
use kaa_core::membership::recover::{Look, Old};
use kaa_core::resync::Readings;
use kaa_core::resync::plan::Need;
use std::collections::{BTreeMap, BTreeSet};

/// The other members of earlier epochs, while the founder waits for them.
#[derive(Default)]
pub struct Others {
    old: Old,
    /// Those whom retired logs name, once these were read: the log that founds may be older than they are.
    retired: Option<BTreeMap<RaftId, Node>>,
}

impl Others {
    /// Read once: no log is retired while the founder waits.
    async fn retired(&mut self, pass: &Pass<'_>) -> Result<Vec<Node>, String> {
        if self.retired.is_none() {
            let (dir, store) = (pass.config.data_dir.clone(), pass.config.store);
            let named = crate::clock::blocking(move || volume::named_by_retired(&dir, store)).await.flatten();
            let named = named.map_err(|error| format!("the retired logs cannot be listed: {error}"))?;
            self.retired = Some(named);
        }
        Ok(self.retired.iter().flatten().map(|(_, node)| node.clone()).collect())
    }
}

/// Looks once at everybody whom a log on this volume names as a member, and at those that are wanted. `Err` names who is in
/// the way.
pub async fn all_gone(
    pass: &Pass<'_>,
    volume: &Volume,
    anchor: &Anchor,
    waited_for: &mut Others,
) -> Result<(), String> {
    let wanted = super::quorum_override::wanted(pass.kubernetes, pass.config).await?;
    let set = &pass.config.stateful_set;
    let mut others: BTreeMap<ServerId, String> = volume
        .extent()
        .nodes
        .into_values()
        .chain(waited_for.retired(pass).await?)
        .map(|node| (ServerId::from(node.server), node.address))
        .chain(wanted.map(|ordinal| {
            let address = pass.config.peer_address(pass.kubernetes.namespace(), ordinal);
            (format!("{set}-{ordinal}").into(), address)
        }))
        .collect();
    others.remove(&pass.config.server);
    if let Some(stranger) = others.keys().find(|server| ordinal_of(server, set).is_none()) {
        return Err(format!("{stranger} is no server of the statefulset {set}: its end cannot be proven"));
    }
    let epochs = epochs(pass, anchor, &others).await;
    // Read last: a server that answered may have been replaced since, and this read would show it.
    let pods = pods(pass, others.keys()).await;
    let looks = pods.into_iter().map(|(server, pod)| {
        let epoch = epochs.get(&server).copied();
        (server, Look { pod, epoch })
    });
    let waits = waited_for.old.in_the_way(looks.collect(), anchor.epoch);
    if waits.is_empty() {
        return Ok(());
    }
    let waits: Vec<String> = waits.into_iter().map(|(server, why)| format!("{server}: {why}")).collect();
    Err(format!(
        "epoch {} is founded once no server can commit in the epoch before: {}",
        anchor.epoch,
        waits.join("; ")
    ))
}

/// The epoch that each agent answers with, of those that answer for this domain.
async fn epochs(
    pass: &Pass<'_>,
    anchor: &Anchor,
    others: &BTreeMap<ServerId, String>,
) -> BTreeMap<ServerId, MembershipEpoch> {
    let asked = others.values().map(|address| pass.links.status(address));
    let answers = futures::future::join_all(asked).await.into_iter().flatten();
    let ours = answers.filter(|reply| reply.domain == anchor.domain.as_str());
    ours.map(|reply| (ServerId::from(reply.server), MembershipEpoch(reply.epoch))).collect()
}

/// The UID of each server's pod, by a fresh read.
async fn pods(
    pass: &Pass<'_>,
    servers: impl Iterator<Item = &ServerId>,
) -> BTreeMap<ServerId, Result<Option<Uid>, String>> {
    let need = |server: &ServerId| Need::Pod(server.to_string());
    let servers: Vec<&ServerId> = servers.collect();
    let needs: BTreeSet<Need> = servers.iter().map(|server| need(server)).collect();
    let readings = evidence::gather(pass.kubernetes, &pass.config.anchor_name(), &needs).await;
    servers.into_iter().map(|server| (server.clone(), pod(&readings, &need(server)))).collect()
}

fn pod(readings: &Readings, need: &Need) -> Result<Option<Uid>, String> {
    let facts = readings.answers.get(need).ok_or("it was not read")?.as_ref().map_err(Clone::clone)?;
    let found = facts.iter().find_map(|fact| match fact {
        Fact::PodIs { uid, .. } => Some(Some(uid.clone())),
        Fact::PodAbsent { .. } => Some(None),
        _ => None,
    });
    found.ok_or_else(|| "the answer proves neither that it exists nor that it does not".to_owned())
}
