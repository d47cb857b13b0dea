//! Which other agents there are or should be, as far as the domain and the watches show.

use super::Shared;
use crate::config::ordinal_of;
use kaa_core::domain::Domain;
use kaa_core::domain::ids::ServerId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::PoisonError;

impl Shared {
    /// Where other agents may be: those of the domain, and those that the admin StatefulSet wants.
    pub(super) fn peer_addresses(&self) -> Vec<String> {
        let mut addresses =
            self.raft.read(|domain| domain.servers.values().map(|server| server.address.clone()).collect::<Vec<_>>());
        addresses.extend(self.config.entrypoint.iter().flatten().cloned());
        // Before anything is known of the StatefulSet: the first ordinals, and those below one's own.
        let ordinals = self.admin_ordinals().unwrap_or(0..self.config.ordinal.max(2) + 1);
        for ordinal in ordinals {
            let address = self.config.peer_address(self.kubernetes.namespace(), ordinal);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// The ordinals that the admin StatefulSet wants, as far as the watches show.
    pub(super) fn admin_ordinals(&self) -> Option<Range<u32>> {
        let observed = self.observed.read().unwrap_or_else(PoisonError::into_inner);
        let set = observed.stateful_sets.known().ok()?.get(&self.config.stateful_set)?;
        Some(set.first_ordinal..set.first_ordinal + set.replicas)
    }

    /// Whether several clusters share the domain.
    pub(super) fn is_spread(&self) -> bool {
        self.config.entrypoint.is_some() || self.raft.read(Domain::is_spread)
    }

    /// The agents whose pods are deleted, as far as the watches show.
    pub(super) fn ending(&self) -> BTreeSet<ServerId> {
        let observed = self.observed.read().unwrap_or_else(PoisonError::into_inner);
        let pods = observed.pods.known().into_iter().flat_map(BTreeMap::values);
        let agents = pods
            .filter(|pod| pod.deleting && ordinal_of(&pod.name.as_str().into(), &self.config.stateful_set).is_some());
        agents.map(|pod| pod.name.as_str().into()).collect()
    }
}
