//! Where several clusters share the domain: each has an anchor, and that of the entry point says that there are several.

use crate::config::Config;
use crate::kubernetes::Kubernetes;
use crate::kubernetes::anchor::{self, Swap};
use crate::raft::Handle;
use kaa_core::domain::ids::{RaftId, Uid};
use kaa_core::membership::clusters::voter_elsewhere;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// What the anchor with this UID says, as far as this agent has written it while it led.
pub type Marked = Mutex<Option<(Uid, bool)>>;

/// Has the anchor be read again.
pub fn forget(marked: &Marked) {
    *marked.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The UID of the anchor of this cluster, if it is not the entry point: the domain has to know it. Else an empty text.
pub(super) async fn anchor_elsewhere(config: &Config, kubernetes: &Kubernetes) -> Result<String, String> {
    if config.entrypoint.is_none() {
        return Ok(String::new());
    }
    let read = anchor::read(kubernetes, &config.anchor_name()).await;
    let read = read.map_err(|error| format!("the anchor could not be read: {error}"))?;
    read.map(|(_, uid)| uid.to_string()).ok_or_else(|| format!("there is no lease {}", config.anchor_name()))
}

/// Has the anchor of the entry point say that several clusters share the domain, before a server of another one is among the `next`
/// voters, and until none votes and the domain has none. Only servers of the entry point vote before, so one of them leads.
pub(super) async fn mark(
    config: &Config,
    kubernetes: &Kubernetes,
    raft: &Handle,
    marked: &Marked,
    spread: bool,
    next: BTreeSet<RaftId>,
) -> Result<(), String> {
    let Some(anchor) = raft.read(|domain| domain.anchor.clone().filter(|_| domain.founded_in.is_some())) else {
        return Ok(());
    };
    if config.entrypoint.is_some() {
        return Ok(());
    }
    let says = |several| Some((anchor.clone(), several));
    let membership = raft.membership();
    let halves: Vec<BTreeSet<RaftId>> = membership.halves.iter().cloned().chain([next]).collect();
    let holders = membership.members.iter().map(|(log, member)| (*log, member.server.clone())).collect();
    let several = spread || voter_elsewhere(&halves, &holders, &config.stateful_set).is_some();
    let known = marked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if known == says(several) || (!several && !membership.settled) {
        return Ok(());
    }
    let name = config.anchor_name();
    let written = anchor::share(kubernetes, &name, &raft.status().domain, several).await;
    if written.map_err(|error| error.to_string())? == Swap::Moved {
        return Err(format!("the lease {name} changed: it has to say whether several clusters share the domain"));
    }
    *marked.lock().unwrap_or_else(PoisonError::into_inner) = says(several);
    Ok(())
}
