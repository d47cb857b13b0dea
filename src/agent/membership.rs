//! The shell of `kaa_core::membership`: passes the gate, founds or joins, and, while this agent leads Raft, brings its
//! membership to where it should be.

use super::Shared;
use crate::config::{BACKOFF, Config, MEMBERSHIP_PERIOD, OWNER_SILENCE, ordinal_of};
use crate::kubernetes::Kubernetes;
use crate::kubernetes::anchor::{self, Creation};
use crate::kubernetes::evidence;
use crate::proto::raft::JoinRequest;
use crate::raft::{Node, Role as RaftRole, Volume};
use kaa_core::domain::command::{Command, Role};
use kaa_core::domain::evidence::Fact;
use kaa_core::domain::ids::{DomainId, MembershipEpoch, ServerId};
use kaa_core::domain::process::SessionState;
use kaa_core::domain::server::Server;
use kaa_core::membership::{Anchor, Change, Gate, gate, next_change};
use kaa_core::resync::plan::Need;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Passes the gate: returns once this volume's log may start. Says why while it does not.
pub async fn pass_gate(
    config: &Config,
    kubernetes: &Kubernetes,
    volume: &mut Volume,
    waits: impl Fn(String),
) -> anyhow::Result<()> {
    if volume.gate_passed() == Some(config.pod_uid.as_str()) && volume.local_log().domain.is_some() {
        info!("the container restarted within its pod, which passed the gate: starting Raft");
        return Ok(());
    }
    let mut said = String::new();
    let mut say = |why: String| {
        if said != why {
            warn!("Raft does not start yet: {why}");
            said.clone_from(&why);
            waits(why);
        }
    };
    loop {
        let read = match anchor::read(kubernetes, &config.anchor_name()).await {
            Ok(read) => read.map(|(anchor, _)| anchor),
            Err(error) => {
                say(format!("the anchor could not be read: {error}"));
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        let first = read.is_none() && is_first(config, kubernetes).await;
        match gate(read.as_ref(), &volume.local_log(), first) {
            Gate::CreateAnchor => create_anchor(config, kubernetes, volume, &mut say).await,
            Gate::Found(anchor) => {
                info!("founding epoch {} of domain {} with log {}", anchor.epoch, anchor.domain, anchor.founder);
                let address = config.peer_address(kubernetes.namespace(), config.ordinal);
                volume.found(&anchor, &Node { server: config.server.to_string(), address })?;
            }
            Gate::Start => {
                volume.set_gate_passed(config.pod_uid.as_str())?;
                return Ok(());
            }
            Gate::Join(anchor) => {
                info!("joining domain {} in epoch {} with an empty log", anchor.domain, anchor.epoch);
                volume.set_aside(&anchor)?;
            }
            Gate::Wait(why) => {
                say(why.to_string());
                tokio::time::sleep(BACKOFF).await;
            }
            Gate::Refuse(why) => {
                say(why.to_string());
                tokio::time::sleep(BACKOFF * 10).await;
            }
        }
    }
}

/// Whether this is the StatefulSet's first ordinal, which `spec.ordinals.start` may move away from 0.
async fn is_first(config: &Config, kubernetes: &Kubernetes) -> bool {
    let need = Need::StatefulSet(config.stateful_set.clone());
    let readings = evidence::gather(kubernetes, &config.anchor_name(), &BTreeSet::from([need])).await;
    let facts = readings.answers.into_values().flatten().flatten();
    let first = facts.into_iter().find_map(|fact| match fact {
        Fact::StatefulSetIs { first_ordinal, .. } => Some(first_ordinal),
        _ => None,
    });
    config.ordinal == first.unwrap_or(0)
}

async fn create_anchor(config: &Config, kubernetes: &Kubernetes, volume: &Volume, say: &mut impl FnMut(String)) {
    let anchor = Anchor { domain: new_domain_id(), epoch: MembershipEpoch(1), founder: volume.local_log().raft_id };
    match anchor::create(kubernetes, &config.anchor_name(), &anchor, &config.server).await {
        Ok(Creation::Created(_)) => info!("anchor {} made for the new domain {}", config.anchor_name(), anchor.domain),
        Ok(Creation::AlreadyThere) => {}
        // Unclear: the gate reads again, and finds itself as the founder if it was made after all.
        Err(error) => {
            say(format!("the anchor could not be made: {error}"));
            tokio::time::sleep(BACKOFF).await;
        }
    }
}

fn new_domain_id() -> DomainId {
    format!("{:016x}{:016x}", crate::clock::random_u64(), crate::clock::random_u64()).into()
}

/// Asks the leader to replicate to this log, until it does. Runs until the agent ends, since a leader may forget a log.
pub async fn join(shared: Arc<Shared>) {
    loop {
        let status = shared.raft.status();
        let member = status.voters.contains_key(&status.raft_id) || status.learners.contains_key(&status.raft_id);
        // A leader says itself what it is; the others by joining once more, after an upgrade for instance.
        let known = member && (status.role == RaftRole::Leader || is_known(&shared));
        let asked = if known { Ok(()) } else { ask_to_join(&shared).await };
        if member && let Err(why) = &asked {
            debug!("the domain has not heard of this server's version and address yet: {why}");
        }
        shared.set_waits(asked.err().filter(|_| !member).map(|why| format!("not a member yet: {why}")));
        tokio::select! {
            () = tokio::time::sleep(BACKOFF) => {}
            () = shared.stopping() => return,
        }
    }
}

/// Whether the domain knows this server's version and address as they are.
fn is_known(shared: &Shared) -> bool {
    shared.raft.read(|domain| {
        let known = domain.servers.get(&shared.config.server);
        known.is_some_and(|known| known.version == crate::VERSION && known.address == shared.own_address())
    })
}

async fn ask_to_join(shared: &Shared) -> Result<(), String> {
    let status = shared.raft.status();
    let own = shared.own_address();
    let request = JoinRequest {
        domain: status.domain.to_string(),
        epoch: status.epoch.0,
        raft_id: status.raft_id.0,
        server: shared.config.server.to_string(),
        address: own.clone(),
        cluster: shared.config.cluster.to_string(),
        version: crate::VERSION.to_owned(),
    };
    let others: Vec<String> = shared.peer_addresses().into_iter().filter(|address| *address != own).collect();
    let reply = shared.links.join(&others, &request).await.map_err(|error| error.to_string())?;
    if !reply.accepted {
        return Err(reply.reason);
    }
    info!("the leader replicates to this server now");
    Ok(())
}

/// The Raft leader's duties: found the domain, admit itself, change the voters. Runs until the agent ends.
pub async fn lead(shared: Arc<Shared>) {
    let mut applied = shared.raft.applied();
    let mut led_since = None;
    loop {
        if shared.raft.status().role == RaftRole::Leader {
            let since = *led_since.get_or_insert_with(Instant::now);
            if let Err(why) = step(&shared, since).await {
                debug!("membership: {why}");
            }
        } else {
            led_since = None;
        }
        tokio::select! {
            () = tokio::time::sleep(MEMBERSHIP_PERIOD) => {}
            _ = applied.changed() => tokio::time::sleep(MEMBERSHIP_PERIOD / 10).await,
            () = shared.stopping() => return,
        }
    }
}

async fn step(shared: &Shared, led_since: Instant) -> Result<(), String> {
    found_domain(shared).await?;
    admit_myself(shared).await?;
    let membership = shared.raft.membership();
    let current =
        shared.raft.read(|domain| domain.servers.values().map(|server| (server.id.clone(), server.raft_id)).collect());
    match next_change(&membership, &current, &wanted(shared)) {
        Change::None => {}
        Change::Voters(voters) => {
            info!("membership: voters become {}", named(&voters, &membership));
            shared.raft.change_voters(voters).await.map_err(|error| error.to_string())?;
        }
        Change::Forget(logs) => {
            info!("membership: forgetting logs {}", named(&logs, &membership));
            shared.raft.forget(logs).await.map_err(|error| error.to_string())?;
        }
    }
    lose_sessions_of_silent_agents(shared, led_since).await
}

fn named(logs: &BTreeSet<kaa_core::domain::ids::RaftId>, membership: &kaa_core::membership::Membership) -> String {
    let name = |id| membership.members.get(id).map_or(format!("log {id}"), |member| member.server.to_string());
    logs.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The founder's first entry.
async fn found_domain(shared: &Shared) -> Result<(), String> {
    if shared.raft.read(|domain| domain.id.is_some()) {
        return Ok(());
    }
    let read =
        anchor::read(&shared.kubernetes, &shared.config.anchor_name()).await.map_err(|error| error.to_string())?;
    let Some((anchor, uid)) = read else { return Err("the anchor is gone".to_owned()) };
    if anchor.domain != shared.raft.status().domain {
        return Err(format!("the anchor names domain {}", anchor.domain));
    }
    let command = Command::FoundDomain { domain: anchor.domain, name: shared.config.domain.clone(), anchor: uid };
    shared.propose(Role::RaftLeader, command).await.map(drop)
}

async fn admit_myself(shared: &Shared) -> Result<(), String> {
    let status = shared.raft.status();
    let me = Server {
        id: shared.config.server.clone(),
        cluster: shared.config.cluster.clone(),
        address: shared.own_address(),
        raft_id: status.raft_id,
        version: crate::VERSION.to_owned(),
        labels: Default::default(),
        joined: Default::default(),
    };
    let known = shared.raft.read(|domain| {
        domain.servers.get(&me.id).is_some_and(|known| Server { joined: known.joined, ..me.clone() } == *known)
    });
    if known { Ok(()) } else { shared.propose(Role::RaftLeader, Command::AdmitServer { server: me }).await.map(drop) }
}

/// The servers that the admin StatefulSet wants; none while it is not known, so that nobody new becomes a voter.
fn wanted(shared: &Shared) -> BTreeSet<ServerId> {
    let Some(ordinals) = shared.admin_ordinals() else { return BTreeSet::new() };
    let servers = shared.raft.read(|domain| domain.servers.keys().cloned().collect::<Vec<_>>());
    let set = &shared.config.stateful_set;
    servers.into_iter().filter(|server| ordinal_of(server, set).is_some_and(|o| ordinals.contains(&o))).collect()
}

/// An agent that is silent cannot say that its engines are. This one has to have listened long enough to know.
async fn lose_sessions_of_silent_agents(shared: &Shared, led_since: Instant) -> Result<(), String> {
    if led_since.elapsed() < OWNER_SILENCE {
        return Ok(());
    }
    let live = shared.raft.read(|domain| {
        let live = domain.processes.values().filter(|process| process.session.state == SessionState::Live);
        live.map(|process| (process.id, process.session.clone())).collect::<Vec<_>>()
    });
    for (process, session) in live {
        let silent = session.server != shared.config.server && shared.peers.silent_for(&session.server) > OWNER_SILENCE;
        if silent {
            let why = format!("its agent {} is silent", session.server);
            shared.propose(Role::RaftLeader, Command::LoseSession { process, session: session.number, why }).await?;
        }
    }
    Ok(())
}
