//! Which agents are listened to: whose certificate bears the address of an agent of this domain, and what it may claim.
//!
//! A certificate of the authority is not enough, since that may vouch for much else in the cluster. One name in it has to
//! be the address of an agent: of a server that the domain knows, or `STATEFULSET-ORDINAL` (or `*`) before what follows
//! the first dot in our own address. If it bears a `kaa:` URI, one of them has to name this domain's agents:
//! `kaa://DOMAIN/agent`; then any address is accepted, since agents of other clusters have other addresses. A message that says
//! whom it is from (Raft's by the raft id, a request to join, a proposal in an agent's own name) has to come with a certificate
//! that bears that server's address.
//!
//! So a certificate for one agent speaks for one agent. One with a `*`, shared by all, speaks for any of them, and its owner
//! can impersonate any: that is what sharing it means.

use crate::net::refusals::{Port, Refusals};
use crate::net::shown::{Names, Shown};
use crate::net::{Caller, Tls};
use kaa_core::observed::objects::ordinal_of;
use std::sync::Arc;
use tonic::{Extensions, Status};

/// Whom an agent listens to.
#[derive(Clone, Debug)]
pub enum Admission {
    /// Anybody: for tests in clear.
    Anybody,
    /// Agents of the domain.
    Agents(Agents),
}

/// What agents are known by.
#[derive(Clone, Debug)]
pub struct Agents {
    /// The certificate in use, whose authority vouches.
    pub tls: Tls,
    /// The domain's name.
    pub domain: String,
    /// The StatefulSet whose pods are agents.
    pub stateful_set: String,
    /// Where refusals are noted.
    pub refusals: Refusals,
}

/// A caller that was admitted. What it claims is judged by its certificate.
#[derive(Debug)]
pub(super) struct Speaker<'a> {
    agents: Option<&'a Agents>,
    caller: Option<&'a Caller>,
    /// What follows the first dot in our own address.
    place: Option<String>,
}

impl Admission {
    /// Judges who calls, by the names in their certificate. `own` is our own address, `known` those of the servers that
    /// the domain has; it is called only where the names alone do not tell.
    pub(super) fn admit<'a>(
        &'a self,
        extensions: &'a Extensions,
        own: &str,
        known: impl FnOnce() -> Vec<String>,
    ) -> Result<Speaker<'a>, Status> {
        let caller = extensions.get::<Caller>();
        let Self::Agents(agents) = self else { return Ok(Speaker { agents: None, caller, place: None }) };
        let speaker = Speaker { agents: Some(agents), caller, place: place(own) };
        let Some(shown) = speaker.shown() else {
            return Err(speaker.refuse("no_certificate", "the connection has no client certificate"));
        };
        if !agents.tls.still_trusts(shown) {
            return Err(speaker.refuse("certificate", "the certificate has expired or is no longer trusted"));
        }
        if is_agent(&shown.names, &agents.domain, &agents.stateful_set, own, known) {
            return Ok(speaker);
        }
        let words =
            format!("the certificate has no address of an agent of this domain; it has {}", shown.names.to_line());
        Err(speaker.refuse("name", &words))
    }
}

impl Speaker<'_> {
    fn shown(&self) -> Option<&Arc<Shown>> {
        self.caller.and_then(|caller| caller.shown.as_ref())
    }

    fn refuse(&self, reason: &'static str, words: &str) -> Status {
        if let Some(agents) = self.agents {
            agents.refusals.note(Port::Peers, reason, self.caller.and_then(|caller| caller.address), words);
        }
        Status::permission_denied(words)
    }

    /// Whether it may speak for the server at this address.
    pub(super) fn at(&self, server: &str, address: &str) -> Result<(), Status> {
        if self.agents.is_none() || self.shown().is_some_and(|shown| shown.names.bears(host(address))) {
            return Ok(());
        }
        let words = format!("the certificate does not have the address of server {server}, {address}");
        Err(self.refuse("identity", &words))
    }

    /// Whether it may claim to be this server and to be reached there: the address has to be the server's own as well.
    pub(super) fn claims(&self, server: &str, address: &str) -> Result<(), Status> {
        self.at(server, address)?;
        let Some(agents) = self.agents else { return Ok(()) };
        if is_its_address(server, address, &agents.stateful_set, self.place.as_deref()) {
            return Ok(());
        }
        Err(self.refuse("identity", &format!("{address} is not an address of server {server}")))
    }

    /// Whether it may speak for a log; `place` finds the server that holds it, and its address. A log that is not known
    /// here yet is Raft's to judge.
    pub(super) fn holds(&self, raft_id: u64, place: impl FnOnce() -> Option<(String, String)>) -> Result<(), Status> {
        let Some(shown) = self.shown().filter(|_| self.agents.is_some()) else { return Ok(()) };
        if shown.is_known_as(raft_id) {
            return Ok(());
        }
        if let Some((server, address)) = place() {
            self.at(&server, &address)?;
            shown.know_as(raft_id);
        }
        Ok(())
    }
}

/// The host in `host:port`.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// What follows the first dot in an address.
fn place(address: &str) -> Option<String> {
    host(address).split_once('.').map(|(_, rest)| rest.to_ascii_lowercase())
}

/// Whether an address can be that of a server: the pods of our own StatefulSet are where we are, and those of another cluster's have
/// other names.
fn is_its_address(server: &str, address: &str, set: &str, own_place: Option<&str>) -> bool {
    let is_there = ordinal_of(server, set).is_none() || place(address).as_deref() == own_place;
    is_there && host(address).split('.').next() == Some(server)
}

fn is_agent(names: &Names, domain: &str, set: &str, own: &str, known: impl FnOnce() -> Vec<String>) -> bool {
    let agents = format!("kaa://{domain}/agent");
    let ours = |uri: &String| uri.starts_with("kaa:");
    if names.uris.contains(&agents) {
        return !names.dns.is_empty();
    }
    if names.uris.iter().any(ours) {
        return false;
    }
    let place = place(own);
    let by_place = |name: &String| {
        let split = name.split_once('.');
        split.is_some_and(|(label, rest)| {
            Some(rest) == place.as_deref() && (label == "*" || ordinal_of(label, set).is_some())
        })
    };
    names.dns.iter().any(by_place) || known().iter().any(|address| names.bears(host(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(dns: &[&str], uris: &[&str], known: &[&str]) -> bool {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let names = Names { dns: owned(dns), uris: owned(uris), ..Names::default() };
        is_agent(&names, "kaa", "kaa-admin", "kaa-admin-0.kaa-admin.ns.svc:48005", || owned(known))
    }

    #[test]
    fn an_agent_bears_the_address_of_an_agent_and_no_other_domain() {
        assert!(judged(&["*.kaa-admin.ns.svc"], &[], &[]), "shared by all");
        assert!(judged(&["kaa-admin-7.kaa-admin.ns.svc"], &[], &[]), "its own, also one that is not known yet");
        assert!(judged(&["kaa-admin", "*.kaa-admin.ns.svc"], &["kaa://kaa/agent"], &[]));
        assert!(judged(&["a-0.a.b"], &[], &["a-0.a.b:48005"]), "one that the domain knows");
        assert!(judged(&["*.kaa-admin.ns.svc"], &["spiffe://x/y"], &[]), "a URI that is not ours says nothing");
        let elsewhere = "kaa-west-0.kaa-west.ns.west.example";
        assert!(judged(&[elsewhere], &["kaa://kaa/agent"], &[]), "of another cluster");
        assert!(!judged(&[elsewhere], &[], &[]), "which only the URI tells");
        for name in [
            "kaa-admin",
            "*.other.ns.svc",
            "kaa-admin-0.kaa-admin.other.svc",
            "kaa-admin-x.kaa-admin.ns.svc",
            "kaa-administrator-0.kaa-admin.ns.svc",
            "web-0.kaa-admin.ns.svc",
            "*",
        ] {
            assert!(!judged(&[name], &[], &["a-0.a.b:48005"]), "{name}");
        }
        assert!(!judged(&["*.kaa-admin.ns.svc"], &["kaa://other/agent"], &[]), "another domain's");
        assert!(!judged(&["*.kaa-admin.ns.svc"], &["kaa://kaa/operator/ann"], &[]), "an operator's");
        assert!(!judged(&[], &["kaa://kaa/agent"], &[]), "no address at all");
    }

    #[test]
    fn a_pod_of_our_own_statefulset_is_where_we_are() {
        let can_be =
            |server: &str, address: &str| is_its_address(server, address, "kaa-admin", Some("kaa-admin.ns.svc"));
        assert!(can_be("kaa-admin-2", "kaa-admin-2.kaa-admin.ns.svc:48005"));
        assert!(can_be("kaa-west-0", "kaa-west-0.kaa-west.ns.west.example:48005"), "of another cluster");
        assert!(!can_be("kaa-admin-2", "kaa-admin-2.evil.example:48005"));
        assert!(!can_be("kaa-west-0", "kaa-west-1.kaa-west.ns.west.example:48005"), "another server's");
    }
}
