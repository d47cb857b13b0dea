//! The shell of `kaa_core::membership::quorum_override`: an agent with a sealed log asks the others to seal theirs, and
//! founds a new epoch once no server can commit in the old one. Each round can be repeated, by this agent or by another one.

use super::gate::Pass;
use crate::config::{Config, ordinal_of};
use crate::failpoints::{self, Point};
use crate::kubernetes::anchor::{self, Loss, Swap};
use crate::kubernetes::{Kubernetes, evidence};
use crate::proto::raft::{SealReply, SealRequest};
use crate::raft::recovering::{Acceptance, Accepting};
use crate::raft::volume::Extent;
use crate::raft::{Volume, sealing};
use kaa_core::domain::evidence::Fact;
use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::quorum_override::{Sealed, Verdict, may_found};
use kaa_core::membership::recover::{self, Answer, Survey};
use kaa_core::membership::{Anchor, clusters};
use kaa_core::resync::plan::Need;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tracing::{info, warn};

/// The ordinals that the admin StatefulSet wants, by a fresh read. Fails if the StatefulSet is gone: what is wanted is
/// unknown then.
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

/// One round of an override with a sealed volume. `Err` says what the round waits for; after `Ok` the agent passes the gate
/// again.
pub async fn round(pass: &Pass<'_>, volume: &Volume) -> Result<(), String> {
    let (local, extent) = (volume.local_log(), volume.extent());
    let Some(domain) = local.domain else { return Err("the log is sealed, but belongs to no domain".to_owned()) };
    if pass.config.entrypoint.is_some() {
        return Err(clusters::ONLY_AT_THE_ENTRY_POINT.to_owned());
    }
    let wanted = wanted(pass.kubernetes, pass.config).await?;
    let me = Sealed {
        id: BTreeSet::from([local.raft_id]),
        last: extent.position,
        halves: extent.halves.clone(),
        wanted: wanted.contains(&pass.config.ordinal),
    };
    let request =
        SealRequest { domain: domain.to_string(), epoch: local.epoch.0, server: pass.config.server.to_string() };
    let Gathered { sealed, silent } = gather(pass, &extent, &wanted, &request).await;
    let others = |why: &str| match silent.is_empty() {
        true => why.to_owned(),
        false => format!("{why} ({})", silent.join("; ")),
    };
    let loss = match may_found(&me, &sealed.values().cloned().collect::<Vec<_>>()) {
        Verdict::Found => None,
        verdict => match pass.host.accepted(local.epoch) {
            Some(accepted) => Some(given_up(pass, accepted, &me, &extent, &sealed)?),
            None => return Err(others(reason(verdict))),
        },
    };
    let (epoch, founder) = (MembershipEpoch(local.epoch.0 + 1), local.raft_id);
    let next = Anchor { domain, epoch, founder, lossy: loss.is_some() };
    let name = pass.config.anchor_name();
    match anchor::swap(pass.kubernetes, &name, &next, &pass.config.server, loss.as_ref()).await {
        Ok(Swap::Swapped) => {
            failpoints::pass(Point::AnchorSwapped);
            let (lost, last) = (loss.map_or_else(|| "nothing".to_owned(), |loss| loss.lost), extent.position.index);
            warn!(
                "override: the anchor moved to epoch {epoch}: it is founded from this log, up to entry {last}; lost: {lost}"
            );
            pass.host.recovered(Accepting::Swapped(epoch, lost));
        }
        Ok(Swap::Moved) => {
            info!("another server changed the anchor: reading it again");
            pass.host.recovered(Accepting::Failed("another server changed the anchor: try again".to_owned()));
        }
        // Whether it was done shows when it is read again.
        Err(error) => return Err(format!("the anchor could not be changed: {}", error.to_line())),
    }
    Ok(())
}

fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Found => "the log is sealed and continues",
        Verdict::Yield => "the log is sealed: another server continues with a better one",
        Verdict::Unwanted => "the log is sealed: a wanted server continues",
        Verdict::TooFew => {
            "the log is sealed: more voters have to seal theirs, or an operator has to give up what only they may hold: \
             kaa recover --dry-run"
        }
    }
}

/// What the other agents answered that were asked to seal their logs.
struct Gathered {
    sealed: BTreeMap<ServerId, Sealed<BTreeSet<RaftId>>>,
    /// Why the others did not.
    silent: Vec<String>,
}

/// Asks every server to seal its log that is wanted, or that this log names as a member.
async fn gather(pass: &Pass<'_>, extent: &Extent, wanted: &Range<u32>, request: &SealRequest) -> Gathered {
    let is_wanted = |server: &str| {
        let ordinal = ordinal_of(&ServerId::from(server), &pass.config.stateful_set);
        ordinal.is_some_and(|ordinal| wanted.contains(&ordinal))
    };
    // A server of another cluster cannot continue a sealed log, so it is not asked.
    let is_ours = |server: &str| ordinal_of(&ServerId::from(server), &pass.config.stateful_set).is_some();
    let ours = extent.nodes.values().filter(|node| is_ours(&node.server));
    let mut addresses: BTreeSet<String> = ours.map(|node| node.address.clone()).collect();
    addresses.extend(wanted.clone().map(|ordinal| pass.config.peer_address(pass.kubernetes.namespace(), ordinal)));
    addresses.remove(&pass.node().address);
    let asked = addresses.iter().map(|address| pass.links.seal(address, request));
    let mut gathered = Gathered { sealed: BTreeMap::new(), silent: Vec::new() };
    for (address, answer) in addresses.iter().zip(futures::future::join_all(asked).await) {
        let server = |reply: &SealReply| ServerId::from(reply.server.as_str());
        match answer.map(|reply| (server(&reply), sealing::sealed(&reply, is_wanted(&reply.server)), reply.reason)) {
            Ok((server, Some(other), _)) => drop(gathered.sealed.insert(server, other)),
            Ok((_, None, why)) => gathered.silent.push(format!("{address}: {why}")),
            Err(error) => gathered.silent.push(error.to_string()),
        }
    }
    gathered
}

/// What an operator has given up, once all servers that answer are sealed. `Err` if another log goes further, or if no
/// wanted server has a log with entries.
fn given_up(
    pass: &Pass<'_>,
    accepted: Acceptance,
    me: &Sealed<BTreeSet<RaftId>>,
    extent: &Extent,
    others: &BTreeMap<ServerId, Sealed<BTreeSet<RaftId>>>,
) -> Result<Loss, String> {
    let own = &pass.config.server;
    let all = others.iter().chain([(own, me)]).filter_map(|(server, sealed)| {
        let Sealed { id, last, wanted, .. } = sealed;
        let ordinal = ordinal_of(server, &pass.config.stateful_set)?;
        let log = *id.first()?;
        Some((server.clone(), Answer { ordinal, wanted: *wanted, log, last: *last, sealed: true, quorum: false }))
    });
    let survey = Survey {
        halves: extent.halves.clone(),
        holders: extent.nodes.iter().map(|(log, node)| (*log, ServerId::from(node.server.as_str()))).collect(),
        answers: all.collect(),
        wanted: BTreeSet::new(),
    };
    let founder = recover::founder(&survey.answers).cloned();
    match founder.as_ref().and_then(|founder| recover::loss(founder, &survey)) {
        Some(loss) if loss.founder == *own => {
            let Acceptance { by, at, .. } = accepted;
            Ok(Loss { by, at, founder: loss.founder.clone(), lost: loss.to_string() })
        }
        other => {
            let why = match other {
                Some(loss) => format!("the log is sealed, but the log of {} has later entries", loss.founder),
                None => "the log is sealed, but no wanted server has a log with entries".to_owned(),
            };
            pass.host.recovered(Accepting::Failed(why.clone()));
            Err(why)
        }
    }
}
