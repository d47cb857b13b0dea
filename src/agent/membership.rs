//! The shell of `kaa_core::membership`: an agent joins, and, while it leads Raft, brings its membership to where it should
//! be; one that leaves stays until it does not vote any more.
//!
//! `gate`: before Raft starts. `follow`: what ends it. `drain`: leaving. `quorum_override`: continuing without a majority.
//! `recover`: the same by an operator's command; `retired`: from a retired log; `gone`: what such a founder waits for. `several`:
//! where several clusters share the domain.

mod drain;
mod follow;
mod gate;
mod gone;
mod quorum_override;
mod recover;
mod retired;
pub mod several;

pub use drain::{drain, hand_over};
pub use follow::follow;
pub use gate::{Pass, open, pass_gate};
pub use recover::answer;

use super::{Shared, note};
use crate::config::{BACKOFF, MEMBERSHIP_PERIOD, OVERRIDE_AFTER, OWNER_SILENCE, ordinal_of};
use crate::kubernetes::anchor;
use crate::proto::raft::{JoinRequest, StatusReply};
use crate::raft::Role as RaftRole;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Outcome, Role};
use kaa_core::domain::ids::{RaftId, ServerId};
use kaa_core::domain::process::SessionState;
use kaa_core::domain::server::Server;
use kaa_core::membership::change::Step;
use kaa_core::membership::{Change, Membership, next_change, takes_a_vote};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info};

/// Asks the leader to replicate to this log, until it does. Runs until it is aborted, since a leader may forget a log.
pub async fn join(shared: Arc<Shared>) {
    loop {
        let status = shared.raft.status();
        let member = status.voters.contains_key(&status.raft_id) || status.learners.contains_key(&status.raft_id);
        // A leader says itself what it is; the others by joining once more, after an upgrade for instance.
        // A server that was removed with its cluster is told nothing any more, and its own log still names it.
        let dropped = shared.config.entrypoint.is_some()
            && shared.without_quorum_for().is_some_and(|lacking| lacking >= OVERRIDE_AFTER);
        let known = member && !dropped && (status.role == RaftRole::Leader || is_known(&shared));
        let asked = if known { Ok(()) } else { ask_to_join(&shared).await };
        if member && let Err(why) = &asked {
            debug!("this server's version and address are not recorded in the domain yet: {why}");
        }
        shared.set_waits(asked.err().filter(|_| !member).map(|why| format!("not a member yet: {why}")));
        tokio::time::sleep(BACKOFF).await;
    }
}

/// Whether the domain knows this server's version and address as they are.
fn is_known(shared: &Shared) -> bool {
    shared.raft.read(|domain| {
        let known = domain.servers.get(&shared.config.server);
        let described =
            known.is_some_and(|known| known.version == crate::VERSION && known.address == shared.own_address());
        described && (shared.config.entrypoint.is_none() || domain.anchors.contains_key(&shared.config.cluster))
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
        anchor: several::anchor_elsewhere(&shared.config, &shared.kubernetes).await?,
    };
    let others: Vec<String> = shared.peer_addresses().into_iter().filter(|address| *address != own).collect();
    let reply = shared.links.join(&others, &request).await.map_err(|error| error.to_string())?;
    if !reply.accepted {
        return Err(reply.reason);
    }
    info!("joined: the leader replicates to this server");
    Ok(())
}

/// The Raft leader's duties: found the domain, admit itself, change the voters. Runs until it is aborted: a leader that
/// leaves has to hand over.
pub async fn lead(shared: Arc<Shared>) {
    let mut applied = shared.raft.applied();
    let mut observed = shared.watching.changed.clone();
    let mut led_since = None;
    loop {
        let judged = shared.admin_ordinals();
        if shared.raft.status().role == RaftRole::Leader {
            let since = *led_since.get_or_insert_with(Instant::now);
            if let Err(why) = step(&shared, since).await {
                debug!("membership: {why}");
            }
        } else {
            led_since = None;
            // Another leader may write it meanwhile.
            several::forget(&shared.anchor_shared);
        }
        tokio::select! {
            () = tokio::time::sleep(MEMBERSHIP_PERIOD) => {}
            _ = applied.changed() => tokio::time::sleep(MEMBERSHIP_PERIOD / 10).await,
            () = scaled(&shared, &mut observed, judged) => {}
        }
    }
}

/// Returns when the StatefulSet of the agents wants others than when it was judged last.
async fn scaled(shared: &Shared, observed: &mut watch::Receiver<u64>, judged: Option<Range<u32>>) {
    loop {
        observed.mark_unchanged();
        if shared.admin_ordinals() != judged {
            return;
        }
        if observed.changed().await.is_err() {
            break;
        }
    }
    // The watches have ended, and the agent does.
    std::future::pending().await
}

async fn step(shared: &Shared, led_since: Instant) -> Result<(), String> {
    found_domain(shared).await?;
    admit_myself(shared).await?;
    if let Err(why) = note_voters(shared).await {
        debug!("the new voters are not in the audit trail yet: {why}");
    }
    let mut membership = shared.raft.membership();
    count_on_those_who_answer(shared, &mut membership).await;
    let decided = decide(shared, &membership).await;
    note(&shared.eviction_held, decided.as_ref().err().cloned(), "who votes");
    let decided = decided?;
    let Shared { config, kubernetes, raft, anchor_shared, .. } = shared;
    several::mark(config, kubernetes, raft, anchor_shared, shared.is_spread(), &decided).await?;
    match decided {
        Change::Step(Step::Wait(why)) => debug!("membership: {why}"),
        Change::Step(Step::Voters(voters, why)) => {
            info!("membership: voters become {}: {why}", named(&voters, &membership));
            shared.raft.change_voters(voters).await.map_err(|error| error.to_string())?;
        }
        Change::Step(Step::HandOver(heirs)) => {
            info!(
                "membership: this server leaves the voters and transfers leadership to {}",
                named(&heirs, &membership)
            );
            shared.raft.hand_over(Some(&heirs)).await;
        }
        Change::Forget(logs) => {
            info!("membership: removing unused logs {}", named(&logs, &membership));
            shared.raft.forget(logs).await.map_err(|error| error.to_string())?;
        }
    }
    lose_sessions_of_silent_agents(shared, led_since).await
}

/// Decides the next change by what the watches show; one that takes a vote away, by a fresh read of what is wanted. `Err` says
/// why that is not known.
async fn decide(shared: &Shared, membership: &Membership) -> Result<Change, String> {
    let current =
        shared.raft.read(|domain| domain.servers.values().map(|server| (server.id.clone(), server.raft_id)).collect());
    let next = |wanted: Option<&BTreeSet<ServerId>>| next_change(membership, &current, wanted, &shared.ending());
    let spread = shared.is_spread();
    let shown = next(wanted(shared, spread).as_ref());
    if !takes_a_vote(membership, &shown) {
        return Ok(shown);
    }
    // What a new leader has not applied yet may be what made a voter known.
    if !shared.raft.has_applied_membership() {
        return Err("no server is evicted until this leader has applied what made the voters known".to_owned());
    }
    if spread {
        // A server of the domain keeps its vote, whatever its StatefulSet wants.
        return Ok(shown);
    }
    let read = quorum_override::wanted(&shared.kubernetes, &shared.config).await;
    let ordinals = read.map_err(|why| format!("no server is evicted until the wanted servers can be read: {why}"))?;
    Ok(next(Some(&among(shared, &ordinals))))
}

/// How long a server may take to say that it is there.
const ANSWER: Duration = Duration::from_millis(500);

/// Servers that would become voters are asked whether they are there: what Raft has heard of them may be from a process that
/// has just ended, and a group of voters that are not there commits nothing.
async fn count_on_those_who_answer(shared: &Shared, membership: &mut Membership) {
    let Some(wanted) = wanted(shared, shared.is_spread()).filter(|_| membership.halves.len() == 1) else { return };
    let votes = |id: &RaftId| membership.halves.iter().any(|half| half.contains(id));
    let new = membership.members.iter().filter(|(id, member)| {
        member.caught_up && wanted.contains(&member.server) && !votes(id) && **id != membership.leader
    });
    let learners = shared.raft.status().learners;
    let asked = new.map(|(id, _)| {
        let address = learners.get(id).map(|node| node.address.clone()).unwrap_or_default();
        async move { (*id, answer_of(shared, *id, &address).await.is_some()) }
    });
    let answered = futures::future::join_all(asked).await;
    for (id, _) in answered.into_iter().filter(|(_, is_there)| !is_there) {
        if let Some(member) = membership.members.get_mut(&id) {
            member.caught_up = false;
        }
    }
}

/// What a server says whose Raft runs with this log and which does not end in a moment.
async fn answer_of(shared: &Shared, log: RaftId, address: &str) -> Option<StatusReply> {
    let said = tokio::time::timeout(ANSWER, shared.links.status(address)).await.ok()?.ok()?;
    (said.raft_id == log.0 && !said.leaving && !said.role.is_empty()).then_some(said)
}

fn named(logs: &BTreeSet<RaftId>, membership: &Membership) -> String {
    let name = |id| membership.members.get(id).map_or(format!("log {id}"), |member| member.server.to_string());
    logs.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The founder's first entry.
async fn found_domain(shared: &Shared) -> Result<(), String> {
    if shared.raft.read(|domain| domain.id.is_some()) {
        return Ok(());
    }
    let read = anchor::read(&shared.kubernetes, &shared.config.anchor_name()).await.map_err(|error| error.to_line())?;
    let Some((anchor, uid)) = read else { return Err("the anchor is gone".to_owned()) };
    if anchor.domain != shared.raft.status().domain {
        return Err(format!("the anchor names domain {}", anchor.domain));
    }
    let command = Command::FoundDomain(change::FoundDomain {
        domain: anchor.domain,
        name: shared.config.domain.clone(),
        anchor: uid,
    });
    shared.propose(Role::RaftLeader, command).await.map(drop)
}

/// How long the leader stays with a note before it looks at the voters again.
const NOTE: Duration = Duration::from_millis(500);

/// Records the voters in the audit trail when they have changed. The leader does it, before it changes them again.
async fn note_voters(shared: &Shared) -> Result<(), String> {
    let Some(voters) = shared.raft.settled_voters() else { return Ok(()) };
    if shared.raft.read(|domain| domain.voters.as_ref().is_some_and(|known| known.are(&voters))) {
        return Ok(());
    }
    let wanted = shared.admin_ordinals().filter(|_| !shared.is_spread());
    let wanted = wanted.map(|ordinals| ordinals.end - ordinals.start);
    let noted = shared.propose(Role::RaftLeader, Command::NoteVoters(change::NoteVoters { voters, wanted }));
    // It may be committed all the same, and shows then.
    match tokio::time::timeout(NOTE, noted).await.map_err(|_| "no quorum in time".to_owned())?? {
        Outcome::Refused(why) => Err(why.to_string()),
        _ => Ok(()),
    }
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
    if known {
        Ok(())
    } else {
        shared.propose(Role::RaftLeader, Command::AdmitServer(change::AdmitServer { server: me })).await.map(drop)
    }
}

/// The servers that the admin StatefulSet wants, as far as the watches show; all servers of the domain, if several clusters
/// share it: no agent sees the StatefulSets of the others.
fn wanted(shared: &Shared, spread: bool) -> Option<BTreeSet<ServerId>> {
    if spread {
        return Some(shared.raft.read(|domain| domain.servers.keys().cloned().collect()));
    }
    Some(among(shared, &shared.admin_ordinals()?))
}

/// The servers that have one of these ordinals.
fn among(shared: &Shared, ordinals: &Range<u32>) -> BTreeSet<ServerId> {
    let servers = shared.raft.read(|domain| domain.servers.keys().cloned().collect::<Vec<_>>());
    let set = &shared.config.stateful_set;
    let is_wanted = |server: &ServerId| ordinal_of(server, set).is_some_and(|ordinal| ordinals.contains(&ordinal));
    servers.into_iter().filter(is_wanted).collect()
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
            shared
                .propose(
                    Role::RaftLeader,
                    Command::LoseSession(change::LoseSession { process, session: session.number, why }),
                )
                .await?;
        }
    }
    Ok(())
}
