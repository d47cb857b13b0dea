//! The shell of `kaa_core::membership::overrule`: an agent with a sealed log asks the others to seal theirs, and goes on in
//! a new epoch once nobody can commit in the old one. Each round can be repeated, by this agent or by another one.

use super::gate::Pass;
use crate::config::{Config, ordinal_of};
use crate::kubernetes::anchor::{self, Swap};
use crate::kubernetes::{Kubernetes, evidence};
use crate::proto::raft::SealRequest;
use crate::raft::{Volume, sealing};
use kaa_core::domain::evidence::Fact;
use kaa_core::domain::ids::{MembershipEpoch, ServerId};
use kaa_core::membership::Anchor;
use kaa_core::membership::overrule::{Sealed, Verdict, may_found};
use kaa_core::resync::plan::Need;
use std::collections::BTreeSet;
use std::ops::Range;
use tracing::{info, warn};

/// The ordinals that the admin StatefulSet wants, by a fresh read. A StatefulSet that is gone wants nobody known.
pub async fn wanted(kubernetes: &Kubernetes, config: &Config) -> Result<Range<u32>, String> {
    let need = Need::StatefulSet(config.stateful_set.clone());
    let mut readings = evidence::gather(kubernetes, &config.anchor_name(), &BTreeSet::from([need.clone()])).await;
    let facts = readings.answers.remove(&need).unwrap_or_else(|| Err("it was not read".to_owned()));
    let facts = facts.map_err(|why| format!("statefulset {} could not be read: {why}", config.stateful_set))?;
    let wanted = facts.into_iter().find_map(|fact| match fact {
        Fact::StatefulSetIs { first_ordinal, replicas, .. } => Some(first_ordinal..first_ordinal + replicas),
        _ => None,
    });
    wanted.ok_or_else(|| format!("there is no statefulset {}", config.stateful_set))
}

/// One round of an override with a sealed volume. `Err` says what is waited for; else the gate is to be passed again.
pub async fn go_on(pass: &Pass<'_>, volume: &Volume) -> Result<(), String> {
    let (local, extent) = (volume.local_log(), volume.extent());
    let Some(domain) = local.domain else { return Err("the log is sealed, but belongs to no domain".to_owned()) };
    let wanted = wanted(pass.kubernetes, pass.config).await?;
    let is_wanted = |server: &str| {
        let ordinal = ordinal_of(&ServerId::from(server), &pass.config.stateful_set);
        ordinal.is_some_and(|ordinal| wanted.contains(&ordinal))
    };
    let me = Sealed {
        id: BTreeSet::from([local.raft_id]),
        last: extent.position,
        halves: extent.halves.clone(),
        wanted: wanted.contains(&pass.config.ordinal),
    };
    let own = pass.node().address;
    let mut addresses: BTreeSet<String> = extent.nodes.values().map(|node| node.address.clone()).collect();
    addresses.extend(wanted.clone().map(|ordinal| pass.config.peer_address(pass.kubernetes.namespace(), ordinal)));
    addresses.remove(&own);
    let request =
        SealRequest { domain: domain.to_string(), epoch: local.epoch.0, server: pass.config.server.to_string() };
    let asked = addresses.iter().map(|address| pass.links.seal(address, &request));
    let mut sealed = Vec::new();
    let mut silent = Vec::new();
    for (address, answer) in addresses.iter().zip(futures::future::join_all(asked).await) {
        match answer.map(|reply| (sealing::sealed(&reply, is_wanted(&reply.server)), reply.reason)) {
            Ok((Some(other), _)) => sealed.push(other),
            Ok((None, why)) => silent.push(format!("{address}: {why}")),
            Err(error) => silent.push(error.to_string()),
        }
    }
    let others = |why: &str| match silent.is_empty() {
        true => why.to_owned(),
        false => format!("{why} ({})", silent.join("; ")),
    };
    match may_found(&me, &sealed) {
        Verdict::Found => {}
        Verdict::Yield => {
            return Err(others("the log is sealed: another server has a better one, and goes on with it"));
        }
        Verdict::Unwanted => return Err(others("the log is sealed: a server that is wanted goes on")),
        Verdict::TooFew => return Err(others("the log is sealed, and so many more voters have to seal theirs")),
    }
    let next = Anchor { domain, epoch: MembershipEpoch(local.epoch.0 + 1), founder: local.raft_id, lossy: false };
    let swapped = anchor::swap(pass.kubernetes, &pass.config.anchor_name(), &next, &pass.config.server).await;
    match swapped {
        Ok(Swap::Swapped) => warn!(
            "override: enough of the voters are sealed, and the anchor is of epoch {} now: this log, up to entry {}, founds it",
            next.epoch, extent.position.index
        ),
        Ok(Swap::Moved) => info!("another one moved the anchor"),
        // Whether it was done shows when it is read again.
        Err(error) => return Err(format!("the anchor could not be swapped: {error}")),
    }
    Ok(())
}
