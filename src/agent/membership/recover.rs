//! The shell of `kaa_core::membership::recover`: answers an operator who asks what may be lost if the group continues without
//! the servers that are away, and has it done. Works whether Raft runs or not: the task that holds the volume seals it and
//! founds the new epoch.

use super::{quorum_override, retired};
use crate::agent::Surroundings;
use crate::config::ordinal_of;
use crate::http::{RecoverAnswer, RecoverServer};
use crate::kubernetes::anchor;
use crate::proto::raft::{RecoverRequest, StatusReply};
use crate::raft::recovering::{Acceptance, Question, Way, Wish};
use crate::raft::volume::Extent;
use futures::{StreamExt, stream};
use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId};
use kaa_core::membership::quorum_override::Position;
use kaa_core::membership::recover::{self, Answer, Judgement, Loss, Survey};
use kaa_core::membership::retired::Place;
use kaa_core::membership::{Anchor, LocalLog, clusters};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tracing::warn;

/// How long an operator's acceptance is valid: as long as the request waits for the answer.
const ACCEPTANCE: Duration = Duration::from_secs(10);

/// How often it is judged again, where another log turns out to go further once all are sealed.
const TRIES: u32 = 3;

/// How many questions are under way at a time; of those that judge, one.
const AT_A_TIME: usize = 8;

/// Answers questions, forever.
pub async fn answer(surroundings: &Surroundings, questions: mpsc::Receiver<Question>) {
    let turn = Mutex::new(());
    let asked = stream::unfold(questions, |mut questions| async move { Some((questions.recv().await?, questions)) });
    asked.for_each_concurrent(AT_A_TIME, |question| one(surroundings, &turn, question)).await;
    // The way for questions was closed: this agent ends.
    std::future::pending().await
}

/// Answers one. Agents list for each other also while they judge: two of them may be asked at a time.
async fn one(surroundings: &Surroundings, turn: &Mutex<()>, question: Question) {
    let Question { wish, way, answer } = question;
    let answered = match way {
        Way::Listing => {
            retired::own(surroundings).await.map(|retired| RecoverAnswer { retired, ..RecoverAnswer::default() })
        }
        Way::Asked | Way::PassedOn => {
            let _turn = turn.lock().await;
            // The client has stopped waiting: nothing is done that it would not be told of.
            if answer.is_closed() {
                return;
            }
            told(surroundings, wish, way).await
        }
    };
    let encoded = answered.and_then(|answer| serde_json::to_string(&answer).map_err(|error| error.to_string()));
    // The client may be gone.
    let _ = answer.send(encoded);
}

async fn told(surroundings: &Surroundings, wish: Wish, way: Way) -> Result<RecoverAnswer, String> {
    let place = wish.from_retired_log.as_deref().map(str::parse::<Place>).transpose();
    let known = Known::gather(surroundings).await?;
    let mut answer = match place.map_err(|error| error.to_string())? {
        None => judge_or_do(surroundings, wish.accepted_by, way).await?,
        Some(place) if place.server == surroundings.config.server => {
            retired::judge_or_do(surroundings, &known, &place, wish.accepted_by).await?
        }
        Some(place) if way == Way::PassedOn => return Err(format!("{place} is not on this server's volume")),
        Some(place) => pass_on(surroundings, &known, &place.server, wish).await?,
    };
    // Once it is done there is nothing left to choose, and the client has waited long enough.
    if way == Way::Asked && answer.begun.is_none() {
        retired::list(surroundings, &known, &mut answer).await;
    }
    Ok(answer)
}

/// The answer to an operator whose servers have no log of this epoch. They may still have retired logs.
const NO_LOG: &str = "no wanted server answers with a log that has entries; an epoch can be founded from a retired log: \
                      kaa recover --from-retired-log SERVER/NAME --accept-data-loss";

async fn judge_or_do(
    surroundings: &Surroundings,
    accepted_by: Option<String>,
    way: Way,
) -> Result<RecoverAnswer, String> {
    let asked = Instant::now();
    let mut tries = 0;
    loop {
        let known = Known::gather(surroundings).await?;
        let mut answer = known.answer(surroundings);
        let Judgement::Possible(loss) = recover::judge(&known.survey) else { return Ok(answer) };
        if answer.refusal.is_some() {
            return Ok(answer);
        }
        if loss.founder != surroundings.config.server {
            if way == Way::PassedOn {
                return Err(format!("{} has a log with later entries: try again", loss.founder));
            }
            let wish = Wish { accepted_by, from_retired_log: None };
            return pass_on(surroundings, &known, &loss.founder, wish).await;
        }
        let Some(by) = accepted_by.clone() else { return Ok(answer) };
        match accept(surroundings, known.local.epoch, by).await {
            Ok((epoch, lost)) => {
                (answer.begun, answer.lost) = (Some(epoch.0), Some(lost));
                return Ok(answer);
            }
            Err(why) if tries + 1 == TRIES || asked.elapsed() > ACCEPTANCE => return Err(why),
            Err(why) => warn!("recover: judging again: {why}"),
        }
        tries += 1;
    }
}

/// Has the task that holds the volume seal it and found the new epoch; waits for its result.
async fn accept(
    surroundings: &Surroundings,
    epoch: MembershipEpoch,
    by: String,
) -> Result<(MembershipEpoch, String), String> {
    let Surroundings { host, .. } = surroundings;
    warn!("{by} accepts the loss of data: sealing this log and founding a new epoch");
    host.accept_loss(Acceptance { epoch, by, at: crate::clock::now(), until: Instant::now() + ACCEPTANCE });
    match tokio::time::timeout(ACCEPTANCE, host.recovery()).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!(
            "timeout: not done within {} s: {}. The log may be sealed by now: try again",
            ACCEPTANCE.as_secs(),
            surroundings.door.why_not()
        )),
    }
}

/// Lets the agent judge on whose volume the log lies that it is about.
async fn pass_on(
    surroundings: &Surroundings,
    known: &Known,
    server: &ServerId,
    wish: Wish,
) -> Result<RecoverAnswer, String> {
    let ordinal = ordinal_of(server, &surroundings.config.stateful_set);
    let ordinal = ordinal.ok_or_else(|| format!("{server} is not a pod of this StatefulSet"))?;
    let address = surroundings.config.peer_address(surroundings.kubernetes.namespace(), ordinal);
    let request = RecoverRequest {
        domain: known.local.domain.as_ref().map(ToString::to_string).unwrap_or_default(),
        epoch: known.local.epoch.0,
        accepted_by: wish.accepted_by.unwrap_or_default(),
        from_retired_log: wish.from_retired_log.unwrap_or_default(),
        list_retired: false,
    };
    let answered = surroundings.links.recover(&address, request).await;
    let answered =
        answered.map_err(|why| format!("the log is on {server}, and the request to that server failed: {why}"))?;
    serde_json::from_str(&answered).map_err(|error| format!("cannot parse the answer of {server}: {error}"))
}

/// What was read and heard.
pub(super) struct Known {
    local: LocalLog,
    pub(super) anchor: Anchor,
    /// Whether the anchor says that several clusters share the domain.
    shared: bool,
    pub(super) survey: Survey,
    /// By server: what it said of itself, or why it said nothing.
    pub(super) heard: BTreeMap<ServerId, Result<StatusReply, String>>,
}

impl Known {
    /// Asks everybody who is wanted, or is a member by this server's log.
    async fn gather(surroundings: &Surroundings) -> Result<Self, String> {
        let Surroundings { config, kubernetes, host, links, .. } = surroundings;
        let local = host.local_log().ok_or("the volume is not open yet")?;
        if local.domain.is_none() {
            return Err("there is no log of a domain on this volume, so there is nothing to give up".to_owned());
        }
        let read = anchor::read(kubernetes, &config.anchor_name()).await;
        let read = read.map_err(|error| format!("the anchor could not be read: {}", error.to_line()))?;
        let (anchor, _) = read.ok_or_else(|| format!("there is no lease {}", config.anchor_name()))?;
        if Some(&anchor.domain) != local.domain.as_ref() {
            return Err(format!("the anchor names another domain, {}", anchor.domain));
        }
        let shared = anchor::read_shared(kubernetes, &config.anchor_name()).await.map_err(|error| error.to_line())?;
        let ordinals = quorum_override::wanted(kubernetes, config).await?;
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
        Ok(Self { local, anchor, shared, survey, heard })
    }

    /// The server that answers with a log, of whatever epoch.
    pub(super) fn who_has(&self, log: RaftId) -> Option<ServerId> {
        let mut heard = self.heard.iter().filter_map(|(server, heard)| Some((server, heard.as_ref().ok()?)));
        heard.find(|(_, reply)| RaftId(reply.raft_id) == log).map(|(server, _)| server.clone())
    }

    /// What the operator is told before anything is judged; refused if the epoch is behind.
    pub(super) fn facts(&self, surroundings: &Surroundings) -> RecoverAnswer {
        let Self { local, anchor, shared: _, survey, heard } = self;
        let waits = surroundings.door.running().is_none().then(|| surroundings.door.why_not());
        let behind = (anchor.epoch != local.epoch)
            .then(|| format!("epoch {} has begun, but this server does not follow it yet", anchor.epoch));
        let (halves, config) = (&survey.halves, &surroundings.config);
        let (own, set) = (config.entrypoint.is_none(), &config.stateful_set);
        let elsewhere = clusters::cannot_give_up(own, self.shared, halves, &survey.holders, set);
        RecoverAnswer {
            name: surroundings.config.domain.clone(),
            domain: local.domain.as_ref().map(ToString::to_string).unwrap_or_default(),
            epoch: local.epoch.0,
            anchor_epoch: anchor.epoch.0,
            server: surroundings.config.server.to_string(),
            servers: heard.iter().map(|(server, heard)| row(server, heard, survey)).collect(),
            waits,
            refusal: elsewhere.or(behind),
            ..RecoverAnswer::default()
        }
    }

    /// What the operator is told.
    fn answer(&self, surroundings: &Surroundings) -> RecoverAnswer {
        let survey = &self.survey;
        let mut answer = self.facts(surroundings);
        if answer.refusal.is_some() {
            return answer;
        }
        match recover::judge(survey) {
            Judgement::Needless(why) => answer.refusal = Some(why.to_string()),
            Judgement::NoLog => {
                answer.refusal = Some(NO_LOG.to_owned());
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
    let answers = heard.iter().filter_map(|(server, said)| {
        let reply = said.as_ref().ok().filter(|reply| reply.domain == domain && reply.epoch == local.epoch.0)?;
        let answer = Answer {
            ordinal: ordinal_of(server, stateful_set)?,
            wanted: wanted.contains(server),
            log: RaftId(reply.raft_id),
            last: Position { term: reply.position_term, index: reply.last_log_index },
            sealed: reply.lifecycle == "SEALED",
            quorum: has_quorum(reply, heard),
        };
        Some((server.clone(), answer))
    });
    let answers = answers.collect();
    let holders = extent.nodes.into_iter().map(|(log, node)| (log, ServerId::from(node.server))).collect();
    Survey { halves: extent.halves, holders, answers, wanted }
}

/// Whether a server hears of a leader that has a quorum. One that follows hears its leader and knows no more; a leader that
/// has lost the others keeps sending to those that are left, and knows better.
fn has_quorum(reply: &StatusReply, heard: &BTreeMap<ServerId, Result<StatusReply, String>>) -> bool {
    let leader = heard.get(&ServerId::from(reply.leader.as_str())).and_then(|heard| heard.as_ref().ok());
    let leader = leader.filter(|leader| leader.domain == reply.domain && leader.epoch == reply.epoch);
    reply.quorum && leader.is_none_or(|leader| leader.quorum)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_without_a_quorum_outweighs_who_follows_it() {
        let said = |leader: &str, quorum, epoch| {
            let (domain, leader) = ("d-1".to_owned(), leader.to_owned());
            StatusReply { domain, leader, quorum, epoch, ..StatusReply::default() }
        };
        let follower = said("admin-0", true, 1);
        let heard = |leader| BTreeMap::from([(ServerId::from("admin-0"), leader)]);
        assert!(has_quorum(&follower, &heard(Ok(said("admin-0", true, 1)))));
        assert!(
            !has_quorum(&follower, &heard(Ok(said("admin-0", false, 1)))),
            "two of five are left, and one of them led"
        );
        assert!(has_quorum(&follower, &heard(Err("no answer".to_owned()))), "it leads, only not towards this server");
        assert!(has_quorum(&follower, &heard(Ok(said("", false, 2)))), "its word is of another epoch");
        assert!(has_quorum(&said("", true, 1), &BTreeMap::new()));
        assert!(!has_quorum(&said("admin-0", false, 1), &heard(Ok(said("admin-0", true, 1)))));
    }
}
