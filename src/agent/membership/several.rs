//! Where several clusters share the domain: each has an anchor, and that of the entry point says that there are several.

use crate::config::Config;
use crate::kubernetes::Kubernetes;
use crate::kubernetes::anchor::{self, Swap};
use crate::raft::Handle;
use kaa_core::domain::ids::{RaftId, Uid};
use kaa_core::membership::Change;
use kaa_core::membership::change::Step;
use kaa_core::membership::clusters::{is_first_elsewhere, voter_elsewhere};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use tracing::debug;

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
    let read = read.map_err(|error| format!("the anchor could not be read: {}", error.to_line()))?;
    read.map(|(_, uid)| uid.to_string()).ok_or_else(|| format!("there is no lease {}", config.anchor_name()))
}

/// Has the anchor of the entry point say that several clusters share the domain, before a server of another one votes, and until none
/// votes and the domain has none. Only servers of the entry point vote before, so one of them leads. `Err` if the change that was
/// decided has to wait for it; while the entry point's API server does not answer, everything else continues.
pub(super) async fn mark(
    config: &Config,
    kubernetes: &Kubernetes,
    raft: &Handle,
    marked: &Marked,
    spread: bool,
    decided: &Change,
) -> Result<(), String> {
    let membership = raft.membership();
    let holders = membership.members.iter().map(|(log, member)| (*log, member.server.clone())).collect();
    let none = BTreeSet::new();
    let next = match decided {
        Change::Step(Step::Voters(voters, _)) => voters,
        _ => &none,
    };
    let votes = |halves: &[BTreeSet<RaftId>]| voter_elsewhere(halves, &holders, &config.stateful_set).is_some();
    let several = spread || votes(&membership.halves) || votes(std::slice::from_ref(next));
    if !several && !membership.settled {
        return Ok(());
    }
    match write(config, kubernetes, raft, marked, several).await {
        Err(why) if is_first_elsewhere(&membership.halves, next, &holders, &config.stateful_set) => Err(why),
        Err(why) => {
            debug!("the anchor does not say yet whether several clusters share the domain: {why}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Has the anchor say so, unless this agent has written it since it leads.
async fn write(
    config: &Config,
    kubernetes: &Kubernetes,
    raft: &Handle,
    marked: &Marked,
    several: bool,
) -> Result<(), String> {
    // A domain that never had another cluster has no word of it in its anchor.
    let anchor = raft.read(|domain| domain.anchor.clone().filter(|_| domain.founded_in.is_some()));
    let Some(anchor) = anchor.filter(|_| config.entrypoint.is_none()) else { return Ok(()) };
    let says = Some((anchor, several));
    if *marked.lock().unwrap_or_else(PoisonError::into_inner) == says {
        return Ok(());
    }
    let name = config.anchor_name();
    let written = anchor::share(kubernetes, &name, &raft.status().domain, several).await;
    if written.map_err(|error| error.to_line())? == Swap::Moved {
        return Err(format!("the lease {name} changed: it has to say whether several clusters share the domain"));
    }
    *marked.lock().unwrap_or_else(PoisonError::into_inner) = says;
    Ok(())
}
