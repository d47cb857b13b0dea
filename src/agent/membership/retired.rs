//! The shell of `kaa_core::membership::retired`: lists the retired logs, and has the domain founded from the
//! one that an operator names. That is one swap of the anchor, by the agent on whose volume the log lies; the gate does the rest.

use super::recover::Known;
use crate::agent::{Shared, Surroundings};
use crate::http::{RecoverAnswer, Retired};
use crate::kubernetes::anchor::{self, Loss, Swap};
use crate::proto::raft::RecoverRequest;
use crate::raft::Lifecycle;
use crate::raft::volume::{self, Holds, Stock};
use kaa_core::domain::ids::ServerId;
use kaa_core::membership::Anchor;
use kaa_core::membership::retired::{self, Asked, Kept, MAX_KEPT_LOGS, Place, Unusable};
use std::collections::BTreeSet;
use std::time::Duration;
use tracing::{info, warn};

/// How long another agent may take to list its own.
const LISTING: Duration = Duration::from_secs(3);

/// Shows how many retired logs are on this volume. Deletes those beyond the bounds if today's epoch has committed an entry
/// and this server has it: from then on an earlier log is needed only by an operator who gives up what was committed since.
/// Returns whether that is done. No log is retired while Raft runs, so once is enough.
///
/// To be called right after a read that showed the anchor to be of this epoch.
pub(super) async fn prune(shared: &Shared) -> bool {
    let status = shared.raft.status();
    let votes = status.voters.contains_key(&status.raft_id);
    let safe = votes && status.quorum && status.lifecycle == Lifecycle::Active && status.applied_index > 0;
    let (dir, store) = (shared.config.data_dir.clone(), shared.config.store);
    let looked = crate::clock::blocking(move || {
        let pruned = if safe { volume::prune_retired(&dir, store, status.epoch)? } else { Vec::new() };
        Ok((pruned, volume::measure_retired(&dir)?))
    });
    match looked.await.flatten() {
        Ok((pruned, Stock { logs, bytes })) => {
            for name in &pruned {
                info!("{name} was deleted: {MAX_KEPT_LOGS} logs of earlier epochs, and later ones, are kept");
            }
            shared.guards.metrics.mirror_retired(logs, bytes);
            safe
        }
        Err(error) => {
            warn!("cannot prune the retired logs: {error}");
            false
        }
    }
}

/// Says what founding from a log on this volume would give up, and does it if an operator accepts that.
pub(super) async fn judge_or_do(
    surroundings: &Surroundings,
    known: &Known,
    place: &Place,
    accepted_by: Option<String>,
) -> Result<RecoverAnswer, String> {
    let mut answer = known.facts(surroundings);
    answer.from_retired_log = Some(place.to_string());
    if answer.refusal.is_some() {
        return Ok(answer);
    }
    let listed = read(surroundings).await?;
    let asked = Asked {
        place,
        kept: kept(&listed, &place.name),
        anchor: &known.anchor,
        founder: known.who_has(known.anchor.founder),
        survey: &known.survey,
    };
    let judged = match retired::judge(&asked) {
        Ok(judged) => judged,
        Err(why) => {
            answer.refusal = Some(why.to_string());
            return Ok(answer);
        }
    };
    let own = &surroundings.config.server;
    let lost = judged.to_string();
    answer.founder = Some(own.to_string());
    answer.last_index = judged.kept.last.index;
    answer.lost = Some(lost.clone());
    answer.outside = outside(known, &listed, own).iter().map(ToString::to_string).collect();
    if let Some(by) = accepted_by {
        swap(surroundings, &judged.next, Loss { by, at: crate::clock::now(), founder: own.clone(), lost }).await?;
        answer.begun = Some(judged.next.epoch.0);
    }
    Ok(answer)
}

async fn swap(surroundings: &Surroundings, next: &Anchor, loss: Loss) -> Result<(), String> {
    let Surroundings { config, kubernetes, .. } = surroundings;
    let (by, lost) = (loss.by.clone(), loss.lost.clone());
    match anchor::swap(kubernetes, &config.anchor_name(), next, &config.server, Some(&loss)).await {
        Ok(Swap::Swapped) => {
            warn!(
                "{by} has epoch {} founded from log {}, which was retired here; lost: {lost}",
                next.epoch, next.founder
            );
            Ok(())
        }
        Ok(Swap::Moved) => Err("another server changed the anchor: try again".to_owned()),
        Err(error) => {
            Err(format!("the anchor was not changed, or the outcome is unknown: {}; try again", error.to_line()))
        }
    }
}

/// Who may still commit in an epoch before, as far as any log here tells, or is wanted.
fn outside(known: &Known, listed: &[volume::RetiredLog], own: &ServerId) -> BTreeSet<ServerId> {
    let holds = listed.iter().filter_map(|log| log.holds.as_ref().ok());
    let named = holds.flat_map(|holds| holds.extent.nodes.values()).map(|node| ServerId::from(node.server.as_str()));
    named.chain(known.heard.keys().cloned()).filter(|server| server != own).collect()
}

fn kept(listed: &[volume::RetiredLog], name: &str) -> Result<Kept, Unusable> {
    let Some(log) = listed.iter().find(|log| log.name == name) else {
        return Err(Unusable::Missing(listed.iter().map(|log| log.name.clone()).collect()));
    };
    let Holds { domain, extent, .. } = log.holds.clone().map_err(Unusable::Damaged)?;
    Ok(Kept { domain, epoch: log.epoch, log: log.raft_id, last: extent.position })
}

async fn read(surroundings: &Surroundings) -> Result<Vec<volume::RetiredLog>, String> {
    let (dir, store) = (surroundings.config.data_dir.clone(), surroundings.config.store);
    let listed = crate::clock::blocking(move || volume::retired_logs(&dir, store)).await;
    listed.flatten().map_err(|error| format!("the retired logs cannot be listed: {error}"))
}

/// The retired logs on this volume, as people are shown them.
pub(super) async fn own(surroundings: &Surroundings) -> Result<Vec<Retired>, String> {
    let row = |log: volume::RetiredLog| {
        let holds = log.holds.as_ref().ok();
        Retired {
            server: surroundings.config.server.to_string(),
            name: log.name.clone(),
            domain: holds.and_then(|holds| holds.domain.as_ref()).map(ToString::to_string),
            epoch: log.epoch.0,
            raft_id: log.raft_id.to_string(),
            last_term: holds.map(|holds| holds.last_term),
            last_index: holds.map(|holds| holds.extent.position.index),
            unreadable: log.holds.err(),
        }
    };
    Ok(read(surroundings).await?.into_iter().map(row).collect())
}

/// Lists those on the volumes of all that answered.
pub(super) async fn list(surroundings: &Surroundings, known: &Known, answer: &mut RecoverAnswer) {
    let others = known.heard.iter().filter(|(server, _)| **server != surroundings.config.server);
    let others: Vec<_> =
        others.filter_map(|(server, heard)| Some((server, heard.as_ref().ok()?.address.clone()))).collect();
    let asked = others.iter().map(|(server, address)| async move {
        let request = RecoverRequest { list_retired: true, ..RecoverRequest::default() };
        let listed = tokio::time::timeout(LISTING, surroundings.links.recover(address, request)).await;
        let listed = listed.unwrap_or_else(|_| Err(format!("no answer within {} s", LISTING.as_secs())));
        let listed: Result<RecoverAnswer, _> =
            listed.and_then(|listed| serde_json::from_str(&listed).map_err(|error| error.to_string()));
        ((*server).clone(), listed.map(|answer| answer.retired))
    });
    let mut listed = futures::future::join_all(asked).await;
    listed.push((surroundings.config.server.clone(), own(surroundings).await));
    listed.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (server, listed) in listed {
        match listed {
            Ok(logs) => answer.retired.extend(logs),
            Err(why) => answer.unlisted.push(format!("{server}: {why}")),
        }
    }
}
