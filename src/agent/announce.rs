//! What an agent tells others of its own accord: the other agents, who leads the resync; people, by Events, what became of
//! the voters and what needs them.

use super::resync::LastPass;
use super::{Shared, leader_of};
use crate::config::BACKOFF;
use crate::kubernetes::Kubernetes;
use crate::kubernetes::events::{self, About, News};
use crate::raft::Role;
use kaa_core::domain::balancing::Object;
use kaa_core::domain::ids::{MembershipEpoch, ServerId};
use kaa_core::membership::LocalLog;
use kaa_core::observed::Observed;
use kaa_core::resync::plan::WaitingReason;
use kaa_core::tasks::Announcement;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info};

/// The most Events of one agent within [`PER`]: what changes oftener is seen with `kaa plan`.
const MOST: usize = 5;
/// See [`MOST`].
const PER: Duration = Duration::from_secs(60);

/// Tells the others who holds the resync Lease.
pub async fn announce(shared: Arc<Shared>) {
    let mut leadership = shared.candidacy.leadership.clone();
    let mut said = None;
    loop {
        let holder = leader_of(&leadership.borrow_and_update(), &shared.config.server);
        if said != holder {
            info!("resync leader: {}", holder.as_ref().map_or("none", |holder| holder.as_str()));
            shared.host.set_resync_leader(holder.as_ref().map_or("", |holder| holder.as_str()));
            said = holder;
        }
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { return },
            () = shared.stopping() => return,
        }
    }
}

/// Makes an Event of what is about to be done, on the Deployment that asks for it. Nothing rests on it.
pub async fn before(kubernetes: &Kubernetes, by: &ServerId, observed: &RwLock<Observed>, what: &Announcement) {
    let Announcement { task: _, deployment: name, message } = what;
    let uid = {
        let observed = observed.read().unwrap_or_else(PoisonError::into_inner);
        observed.deployments.known().ok().and_then(|known| Some(known.get(name)?.uid.clone()))
    };
    info!("announced: {message}");
    let Some(uid) = uid else { return };
    let about = About { api_version: "apps/v1", kind: "Deployment", name: name.clone(), uid };
    let news = News { warning: false, reason: "ProtocolUpgrade", message: message.clone() };
    if let Err(why) = events::tell(kubernetes, by, &about, &news).await {
        debug!("no Event was made of {}: {}", news.reason, why.to_line());
    }
}

/// What an agent sees that may be news.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Who votes, in a membership that is committed; `None` while that is not known.
    voters: Option<BTreeSet<ServerId>>,
    /// Whether this agent leads Raft: one of all tells of the voters.
    leads: bool,
    /// Why there is no leader.
    no_leader: Option<String>,
    /// What is wrong with the anchor.
    anchor: Option<String>,
    /// Annotations that change nothing, if this agent leads the resync.
    broken: BTreeSet<(Object, String)>,
}

/// What was told already.
#[derive(Debug, Default)]
struct Told {
    begun: bool,
    voters: Option<BTreeSet<ServerId>>,
    no_leader: Option<String>,
    anchor: Option<String>,
    broken: BTreeSet<(Object, String)>,
    /// When the last Events were made.
    at: VecDeque<Instant>,
}

/// Which object it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Of {
    /// The StatefulSet of the agents.
    All,
    /// This agent's own pod.
    Own,
    /// A workload with annotations.
    Workload(Object),
}

/// Makes Events of what is news. Runs until it is aborted.
pub async fn tell(shared: Arc<Shared>) {
    let mut told = Told::default();
    loop {
        for (of, news) in told.news(&shared.begun, &seen(&shared), Instant::now()) {
            let about = about(&shared, &of);
            // Nothing rests on it, so it is not tried again.
            if let Err(why) = events::tell(&shared.kubernetes, &shared.config.server, &about, &news).await {
                debug!("cannot create the Event {}: {}", news.reason, why.to_line());
            }
        }
        tokio::time::sleep(BACKOFF).await;
    }
}

fn seen(shared: &Shared) -> Seen {
    let status = shared.raft.status();
    let membership = shared.raft.membership();
    let settled = membership.halves.len() == 1 && status.quorum;
    let voters = status.voters.values().map(|node| node.server.as_str().into());
    // That a new server has not joined yet is no news: it has no voters yet, and so no leader to miss.
    let new = status.voters.is_empty();
    let said = |place: &std::sync::Mutex<Option<String>>| place.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Seen {
        voters: settled.then(|| voters.collect()),
        leads: status.role == Role::Leader,
        no_leader: said(&shared.stranded).filter(|_| !new),
        anchor: said(&shared.anchor_alarm),
        broken: broken(&shared.last_pass, shared.candidacy.leads_now()),
    }
}

/// The annotations that the last pass of the resync leader found to change nothing.
fn broken(last: &std::sync::Mutex<Option<LastPass>>, leads: bool) -> BTreeSet<(Object, String)> {
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = last.iter().filter(|_| leads).flat_map(|last| &last.waiting);
    let broken = waiting.filter_map(|waiting| match &waiting.reason {
        WaitingReason::AnnotationBroken { object, .. } => Some((object.clone(), waiting.reason.to_string())),
        _ => None,
    });
    broken.collect()
}

fn about(shared: &Shared, of: &Of) -> About {
    let name = shared.config.stateful_set.clone();
    let observed = shared.observed.read().unwrap_or_else(PoisonError::into_inner);
    if let Of::Workload(object) = of {
        let (sets, deployments) = (observed.stateful_sets.known().ok(), observed.deployments.known().ok());
        let (kind, uid) = match object {
            Object::StatefulSet(name) => ("StatefulSet", sets.and_then(|it| Some(it.get(name)?.uid.clone()))),
            Object::Deployment(name) => ("Deployment", deployments.and_then(|it| Some(it.get(name)?.uid.clone()))),
        };
        return About { api_version: "apps/v1", kind, name: object.name().to_owned(), uid: uid.unwrap_or_default() };
    }
    let set = observed.stateful_sets.known().ok().and_then(|sets| sets.get(&name)).map(|set| set.uid.clone());
    match set.filter(|_| *of == Of::All) {
        Some(uid) => About { api_version: "apps/v1", kind: "StatefulSet", name, uid },
        None => {
            let (name, uid) = (shared.config.server.to_string(), shared.config.pod_uid.clone());
            About { api_version: "v1", kind: "Pod", name, uid }
        }
    }
}

impl Told {
    /// What was not told before; no more at once than there may be.
    fn news(&mut self, begun: &Begun, seen: &Seen, now: Instant) -> Vec<(Of, News)> {
        let mut news = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            news.extend(begun.news());
        }
        if seen.no_leader != self.no_leader {
            self.no_leader.clone_from(&seen.no_leader);
            let why = seen.no_leader.clone();
            news.extend(why.map(|message| (Of::Own, News { warning: true, reason: "NoLeader", message })));
        }
        if seen.anchor != self.anchor {
            self.anchor.clone_from(&seen.anchor);
            let why = seen.anchor.clone();
            news.extend(why.map(|message| (Of::Own, News { warning: true, reason: "Anchor", message })));
        }
        for (object, message) in seen.broken.difference(&self.broken) {
            let (of, message) = (Of::Workload(object.clone()), message.clone());
            news.push((of, News { warning: true, reason: "AnnotationBroken", message }));
        }
        self.broken.clone_from(&seen.broken);
        if let Some(voters) = &seen.voters {
            let before = self.voters.replace(voters.clone());
            news.extend(before.filter(|_| seen.leads).into_iter().flat_map(|before| changed(&before, voters)));
        }
        self.at.retain(|at| now.duration_since(*at) < PER);
        news.truncate(MOST.saturating_sub(self.at.len()));
        self.at.extend(news.iter().map(|_| now));
        news
    }
}

/// Who votes now and did not, and the other way round.
fn changed(before: &BTreeSet<ServerId>, now: &BTreeSet<ServerId>) -> Vec<(Of, News)> {
    let voters = now.iter().map(ServerId::as_str).collect::<Vec<_>>().join(", ");
    let normal = |reason, server: &ServerId, what: &str| {
        (Of::All, News { warning: false, reason, message: format!("{server} {what}; the voters are {voters}") })
    };
    let evicted = before.difference(now).map(|server| normal("ServerEvicted", server, "no longer votes"));
    let included = now.difference(before).map(|server| normal("ServerIncluded", server, "votes"));
    evicted.chain(included).collect()
}

/// What the gate made of the volume's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// The epoch that this log founded, and whose log it is.
    founded: Option<(MembershipEpoch, ServerId)>,
    /// The epoch of the retired log.
    retired: Option<MembershipEpoch>,
}

impl Begun {
    /// Compares the volume's log before and after the gate. A log keeps its id for life; one that founds an epoch votes by
    /// what is in it then (`votes`), also one that was retired and is back; one that joins is empty.
    pub fn new(before: &LocalLog, after: &LocalLog, votes: bool, server: &ServerId) -> Self {
        let (same, moved) = (before.raft_id == after.raft_id, before.epoch != after.epoch);
        let founds = moved && votes;
        Self {
            founded: founds.then(|| (after.epoch, server.clone())),
            retired: (!same && !founds && before.domain.is_some()).then_some(before.epoch),
        }
    }

    fn news(&self) -> Vec<(Of, News)> {
        let mut news = Vec::new();
        if let Some(epoch) = self.retired {
            let message = format!(
                "a later membership epoch was founded: this server retires its log of epoch {epoch} (kept, used again only if an \
                 operator names it) and joins with an empty one"
            );
            news.push((Of::Own, News { warning: true, reason: "LogRetired", message }));
        }
        if let Some((epoch, founder)) = &self.founded {
            let (warning, reason, message) = match epoch.0 {
                1 => (false, "DomainFounded", format!("{founder} founded the domain")),
                _ => {
                    let message = format!(
                        "{founder} founded membership epoch {epoch}: the epoch before had lost its quorum. The other servers \
                         join with empty logs"
                    );
                    (true, "MembershipOverridden", message)
                }
            };
            news.push((Of::All, News { warning, reason, message }));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaa_core::domain::ids::RaftId;

    fn servers(ordinals: &[u32]) -> Option<BTreeSet<ServerId>> {
        Some(ordinals.iter().map(|ordinal| ServerId::new(format!("admin-{ordinal}"))).collect())
    }

    fn reasons(news: &[(Of, News)]) -> Vec<&'static str> {
        news.iter().map(|(_, news)| news.reason).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_thing_is_told_once() {
        let (mut told, now) = (Told::default(), Instant::now());
        let begun = Begun { founded: Some((MembershipEpoch(2), "admin-0".into())), retired: None };
        let seen = Seen { voters: servers(&[0]), leads: true, ..Seen::default() };
        let news = told.news(&begun, &seen, now);
        assert_eq!(reasons(&news), ["MembershipOverridden"], "who voted before this agent looked is no news");
        assert!(news[0].1.message.starts_with("admin-0 founded membership epoch 2"), "{news:?}");
        assert_eq!(told.news(&begun, &seen, now), []);
        let news = told.news(&begun, &Seen { voters: servers(&[0, 1]), ..seen.clone() }, now);
        let expected = News {
            warning: false,
            reason: "ServerIncluded",
            message: "admin-1 votes; the voters are admin-0, admin-1".to_owned(),
        };
        assert_eq!(news, [(Of::All, expected)]);
        assert_eq!(reasons(&told.news(&begun, &seen, now)), ["ServerEvicted"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_voters_are_told_of_by_their_leader_alone() {
        let (mut told, now) = (Told::default(), Instant::now());
        let seen = |ordinals: &[u32], leads| Seen { voters: servers(ordinals), leads, ..Seen::default() };
        told.news(&Begun::default(), &seen(&[0, 1], false), now);
        assert_eq!(told.news(&Begun::default(), &seen(&[0], false), now), []);
        assert_eq!(told.news(&Begun::default(), &seen(&[0], true), now), [], "who leads later does not tell it again");
        assert_eq!(told.news(&Begun::default(), &Seen::default(), now), [], "unknown is not the same as none");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_again_is_told_again_but_not_too_often() {
        let (mut told, mut count) = (Told::default(), 0);
        let silent = |n: u32| Seen { no_leader: Some(format!("admin-{n} is silent")), ..Seen::default() };
        for n in 0..20 {
            count += told.news(&Begun::default(), &silent(n), Instant::now()).len();
        }
        assert_eq!(count, MOST);
        tokio::time::advance(PER).await;
        assert_eq!(told.news(&Begun::default(), &Seen::default(), Instant::now()), [], "that it is over is no Event");
        let news = told.news(&Begun::default(), &silent(19), Instant::now());
        assert_eq!((reasons(&news), &news[0].0), (vec!["NoLeader"], &Of::Own));
    }

    #[tokio::test(start_paused = true)]
    async fn an_annotation_that_changes_nothing_is_told_on_its_object_once_until_it_changes() {
        let (mut told, now) = (Told::default(), Instant::now());
        let object = Object::StatefulSet("admin".to_owned());
        let seen = |why: &str| Seen { broken: [(object.clone(), why.to_owned())].into(), ..Seen::default() };
        let news = told.news(&Begun::default(), &seen("character 8"), now);
        assert_eq!((reasons(&news), &news[0].0), (vec!["AnnotationBroken"], &Of::Workload(object.clone())));
        assert_eq!(told.news(&Begun::default(), &seen("character 8"), now), []);
        assert_eq!(told.news(&Begun::default(), &seen("character 9"), now).len(), 1);
        assert_eq!(told.news(&Begun::default(), &Seen::default(), now), []);
        assert_eq!(told.news(&Begun::default(), &seen("character 9"), now).len(), 1, "it was mended in between");
    }

    #[test]
    fn a_log_that_was_retired_and_a_new_domain_are_told() {
        let retired = Begun { founded: None, retired: Some(MembershipEpoch(1)) };
        assert_eq!(reasons(&retired.news()), ["LogRetired"]);
        let founded = Begun { founded: Some((MembershipEpoch(1), "admin-0".into())), retired: None };
        assert_eq!(reasons(&founded.news()), ["DomainFounded"]);
        assert!(Begun::default().news().is_empty());
        let log = |domain: Option<&str>, epoch, id| LocalLog {
            domain: domain.map(Into::into),
            epoch: MembershipEpoch(epoch),
            raft_id: RaftId(id),
            sealed: false,
        };
        let begun = |before, after, votes| Begun::new(&before, &after, votes, &"admin-0".into());
        assert_eq!(
            begun(log(Some("d"), 1, 7), log(Some("d"), 1, 7), true),
            Begun::default(),
            "the same epoch continues"
        );
        assert_eq!(begun(log(None, 0, 7), log(Some("d"), 1, 7), true), founded);
        assert_eq!(
            begun(log(None, 0, 7), log(Some("d"), 1, 7), false),
            Begun::default(),
            "an empty log keeps its id, and joins"
        );
        assert_eq!(begun(log(Some("d"), 1, 7), log(Some("d"), 2, 8), false), retired);
        let back = Begun { founded: Some((MembershipEpoch(3), "admin-0".into())), retired: None };
        assert_eq!(begun(log(Some("d"), 2, 8), log(Some("d"), 3, 7), true), back, "one that was retired founds");
        assert_eq!(
            begun(log(None, 0, 7), log(Some("d"), 2, 8), false),
            Begun::default(),
            "there was nothing to retire"
        );
    }
}
