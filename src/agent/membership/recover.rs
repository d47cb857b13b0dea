//! The shell of `kaa_core::membership::recover`: answers a person who asks what may be lost if the group goes on without
//! those that are away, and has it done. Works whether Raft runs or not: whoever has the volume seals it, and goes on.

use super::overrule;
use crate::agent::Surroundings;
use crate::config::ordinal_of;
use crate::http::{RecoverAnswer, RecoverServer};
use crate::kubernetes::anchor;
use crate::proto::raft::{RecoverRequest, StatusReply};
use crate::raft::recovering::{Acceptance, Question};
use crate::raft::volume::{self, Extent};
use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::LocalLog;
use kaa_core::membership::overrule::Position;
use kaa_core::membership::recover::{self, Answer, Judgement, Loss, Survey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::warn;

/// How long what a person accepts holds: as long as it is waited for the answer.
const ACCEPTANCE: Duration = Duration::from_secs(10);

/// How often it is judged anew, where another log turns out to go further once all are sealed.
const TRIES: u32 = 3;

/// Answers questions one after the other, for ever.
pub async fn answer(surroundings: &Surroundings, mut questions: mpsc::Receiver<Question>) {
    while let Some(question) = questions.recv().await {
        let answered = judge_or_do(surroundings, question.accepted_by, question.passed_on).await;
        let encoded = answered.and_then(|answer| serde_json::to_string(&answer).map_err(|error| error.to_string()));
        // Whoever asked may be gone.
        let _ = question.answer.send(encoded);
    }
    // The way for questions was closed: this agent ends.
    std::future::pending().await
}

async fn judge_or_do(
    surroundings: &Surroundings,
    accepted_by: Option<String>,
    passed_on: bool,
) -> Result<RecoverAnswer, String> {
    let asked = Instant::now();
    let mut tries = 0;
    let mut answer = loop {
        let known = Known::gather(surroundings).await?;
        let mut answer = known.answer(surroundings);
        let Judgement::Possible(loss) = recover::judge(&known.survey) else { break answer };
        if answer.refusal.is_some() {
            break answer;
        }
        if loss.founder != surroundings.config.server {
            if passed_on {
                return Err(format!("{} has a log that goes further: ask again", loss.founder));
            }
            break pass_on(surroundings, &known, &loss.founder, accepted_by).await?;
        }
        let Some(by) = accepted_by.clone() else { break answer };
        match accept(surroundings, known.local.epoch, by).await {
            Ok((epoch, lost)) => {
                (answer.begun, answer.lost) = (Some(epoch.0), Some(lost));
                break answer;
            }
            Err(why) if tries + 1 == TRIES || asked.elapsed() > ACCEPTANCE => return Err(why),
            Err(why) => warn!("judged anew: {why}"),
        }
        tries += 1;
    };
    if !passed_on {
        answer.set_aside = set_aside(surroundings).await;
    }
    Ok(answer)
}

/// Has whoever has the volume seal it and go on; waits until it says what came of it.
async fn accept(
    surroundings: &Surroundings,
    epoch: MembershipEpoch,
    by: String,
) -> Result<(MembershipEpoch, String), String> {
    let Surroundings { host, .. } = surroundings;
    warn!("{by} gives up what only others may hold: this log is sealed, and goes on in a new epoch");
    host.accept_loss(Acceptance { epoch, by, at: crate::clock::now(), until: Instant::now() + ACCEPTANCE });
    match tokio::time::timeout(ACCEPTANCE, host.recovery()).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!(
            "nothing came of it within {} s, and it is not waited for any more: {}. The log may be sealed by now: ask again",
            ACCEPTANCE.as_secs(),
            surroundings.door.why_not()
        )),
    }
}

/// Lets the agent judge whose log goes further.
async fn pass_on(
    surroundings: &Surroundings,
    known: &Known,
    founder: &ServerId,
    accepted_by: Option<String>,
) -> Result<RecoverAnswer, String> {
    let ordinal = ordinal_of(founder, &surroundings.config.stateful_set);
    let ordinal = ordinal.ok_or_else(|| format!("{founder} is no server of this statefulset"))?;
    let address = surroundings.config.peer_address(surroundings.kubernetes.namespace(), ordinal);
    let request = RecoverRequest {
        domain: known.local.domain.as_ref().map(ToString::to_string).unwrap_or_default(),
        epoch: known.local.epoch.0,
        accepted_by: accepted_by.unwrap_or_default(),
    };
    let answered = surroundings.links.recover(&address, request).await;
    let answered = answered.map_err(|why| format!("the log of {founder} goes further, and it is asked: {why}"))?;
    serde_json::from_str(&answered).map_err(|error| format!("{founder} answers what is not understood: {error}"))
}

/// What was read and heard.
struct Known {
    local: LocalLog,
    anchor_epoch: MembershipEpoch,
    survey: Survey,
    /// By server: what it said of itself, or why it said nothing.
    heard: BTreeMap<ServerId, Result<StatusReply, String>>,
}

impl Known {
    /// Asks everybody who is wanted, or is a member by this server's log.
    async fn gather(surroundings: &Surroundings) -> Result<Self, String> {
        let Surroundings { config, kubernetes, host, links, .. } = surroundings;
        let local = host.local_log().ok_or("the volume is not open yet")?;
        if local.domain.is_none() {
            return Err("no domain's log lies on this volume: nothing can be given up here".to_owned());
        }
        let read = anchor::read(kubernetes, &config.anchor_name()).await;
        let read = read.map_err(|error| format!("the anchor could not be read: {error}"))?;
        let (anchor, _) = read.ok_or_else(|| format!("there is no lease {}", config.anchor_name()))?;
        if Some(&anchor.domain) != local.domain.as_ref() {
            return Err(format!("the anchor names another domain, {}", anchor.domain));
        }
        let ordinals = overrule::wanted(kubernetes, config).await?;
        let name = |ordinal| ServerId::from(format!("{}-{ordinal}", config.stateful_set));
        let extent = host.extent().ok_or("the volume is not open yet")?;
        let mut addresses: BTreeMap<ServerId, String> =
            extent.nodes.values().map(|node| (ServerId::from(node.server.as_str()), node.address.clone())).collect();
        let wanted =
            ordinals.clone().map(|ordinal| (name(ordinal), config.peer_address(kubernetes.namespace(), ordinal)));
        addresses.extend(wanted);
        addresses.remove(&config.server);
        let asked = addresses.iter().map(|(server, address)| async move {
            let answered = links.status(address).await;
            (server.clone(), answered.map_err(|error| error.to_string()))
        });
        let mut heard: BTreeMap<_, _> = futures::future::join_all(asked).await.into_iter().collect();
        heard.insert(config.server.clone(), Ok(host.status()));
        let survey = survey(&local, extent, &heard, ordinals.map(name).collect(), &config.stateful_set);
        Ok(Self { local, anchor_epoch: anchor.epoch, survey, heard })
    }

    /// What the person is told.
    fn answer(&self, surroundings: &Surroundings) -> RecoverAnswer {
        let Self { local, anchor_epoch, survey, heard } = self;
        let waits = surroundings.door.running().is_none().then(|| surroundings.door.why_not());
        let mut answer = RecoverAnswer {
            name: surroundings.config.domain.clone(),
            domain: local.domain.as_ref().map(ToString::to_string).unwrap_or_default(),
            epoch: local.epoch.0,
            anchor_epoch: anchor_epoch.0,
            server: surroundings.config.server.to_string(),
            servers: heard.iter().map(|(server, heard)| row(server, heard, survey)).collect(),
            waits,
            ..RecoverAnswer::default()
        };
        if *anchor_epoch != local.epoch {
            answer.refusal = Some(format!("epoch {anchor_epoch} has begun, and this server does not follow it yet"));
            return answer;
        }
        match recover::judge(survey) {
            Judgement::Needless(why) => answer.refusal = Some(why.to_string()),
            Judgement::NoLog => {
                answer.refusal = Some("no server that is wanted answers with a log that anything is in".to_owned());
            }
            Judgement::Possible(loss) => {
                let Loss { founder, last, outside, .. } = &loss;
                (answer.founder, answer.last_index) = (Some(founder.to_string()), last.index);
                answer.lost = Some(loss.to_string());
                answer.outside = outside.iter().map(ToString::to_string).collect();
            }
        }
        answer
    }
}

fn survey(
    local: &LocalLog,
    extent: Extent,
    heard: &BTreeMap<ServerId, Result<StatusReply, String>>,
    wanted: BTreeSet<ServerId>,
    stateful_set: &str,
) -> Survey {
    let domain = local.domain.as_ref().map_or("", |domain| domain.as_str());
    let answers = heard.iter().filter_map(|(server, heard)| {
        let reply = heard.as_ref().ok().filter(|reply| reply.domain == domain && reply.epoch == local.epoch.0)?;
        let answer = Answer {
            ordinal: ordinal_of(server, stateful_set)?,
            wanted: wanted.contains(server),
            log: RaftId(reply.raft_id),
            last: Position { term: reply.position_term, index: reply.last_log_index },
            sealed: reply.lifecycle == "SEALED",
            quorum: reply.quorum,
        };
        Some((server.clone(), answer))
    });
    let answers = answers.collect();
    let holders = extent.nodes.into_iter().map(|(log, node)| (log, ServerId::from(node.server))).collect();
    Survey { halves: extent.halves, holders, answers, wanted }
}

fn row(server: &ServerId, heard: &Result<StatusReply, String>, survey: &Survey) -> RecoverServer {
    let votes = |log: RaftId| survey.halves.iter().any(|half| half.contains(&log));
    let (id, wanted) = (server.to_string(), survey.wanted.contains(server));
    match heard {
        Ok(reply) => RecoverServer {
            id,
            wanted,
            silent: None,
            raft_id: reply.raft_id.to_string(),
            epoch: reply.epoch,
            role: (!reply.role.is_empty()).then(|| reply.role.clone()),
            sealed: reply.lifecycle == "SEALED",
            votes: votes(RaftId(reply.raft_id)),
            last_term: reply.last_log_term,
            last_index: reply.last_log_index,
        },
        Err(why) => {
            let votes = survey.holders.iter().any(|(log, holder)| holder == server && votes(*log));
            RecoverServer { id, wanted, silent: Some(why.clone()), votes, ..RecoverServer::default() }
        }
    }
}

/// The logs that were set aside on this volume.
async fn set_aside(surroundings: &Surroundings) -> Vec<crate::http::SetAside> {
    let (dir, store) = (surroundings.config.data_dir.clone(), surroundings.config.store);
    let listed = crate::clock::blocking(move || volume::set_aside_logs(&dir, store)).await;
    let logs = match listed.flatten() {
        Ok(logs) => logs,
        Err(error) => {
            warn!("the logs that were set aside cannot be listed: {error}");
            Vec::new()
        }
    };
    let row = |log: volume::SetAside| crate::http::SetAside {
        name: log.name,
        epoch: log.epoch.0,
        raft_id: log.raft_id.to_string(),
        last_index: log.last.as_ref().ok().map(|last| last.index),
        unreadable: log.last.err(),
    };
    logs.into_iter().map(row).collect()
}
