//! A server: one admin pod's agent. Who votes is Raft's membership and is not repeated here.

use super::ids::{ClusterName, Millis, RaftId, ServerId};
use crate::observed::objects::RAFT_LOG_TEMPLATE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the claim of a server's log.
pub fn raft_log_claim(server: &ServerId) -> String {
    format!("{RAFT_LOG_TEMPLATE}-{server}")
}

/// An admin pod's agent, as it introduced itself when it last joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The pod's name.
    pub id: ServerId,
    /// Where the pod lives.
    pub cluster: ClusterName,
    /// `host:port` of its agent-to-agent port.
    pub address: String,
    /// The log it holds now. A server whose volume was replaced comes back under another.
    pub raft_id: RaftId,
    /// The version of its agent.
    pub version: String,
    /// Free labels, shown and never judged by.
    pub labels: BTreeMap<String, String>,
    /// When it first joined.
    pub joined: Millis,
}

/// The StatefulSet that a server's name, which is its pod's, is of.
pub fn stateful_set(server: &ServerId) -> &str {
    server.as_str().rsplit_once('-').map_or(server.as_str(), |(stateful_set, _)| stateful_set)
}
