//! The election of the resync leader by a Lease: performs what [`kaa_core::resync::leadership`] decides.
//!
//! The count of acquisitions in the Lease grows with every one, also by the same pod after a restart, since it is what
//! the domain orders resync leaders by. Losing the Lease never ends anything but the lead.

use super::{Asked, Error, Kubernetes, asked};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{Millis, ServerId, Uid};
use kaa_core::resync::ability::{Ability, Away, Patience, Standing};
use kaa_core::resync::leadership::{Act, Elector, Record, Settings};
use kube::api::PostParams;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a request about the Lease may take: a renewal that is due 5 s after the last one can fail and be repeated
/// before the lead ends at 10 s.
const LEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The looks of several candidates are spread over this share of the period, so that they do not come together.
const JITTER_PERCENT: u64 = 40;

/// How often a candidate judges whether it is able to lead. It judges right before it writes the Lease too, so that a leader
/// that is not able never renews it.
const JUDGE_PERIOD: Duration = Duration::from_millis(500);

/// For how long a holder keeps the Lease that hears of no quorum or lags behind: an election takes two seconds or so.
const LACKING_MS: u64 = 5_000;

/// After so many passes in a row that could not commit anything a holder gives the Lease up; each may take up to five
/// seconds for a proposal.
const FAILED_PASSES: u32 = 3;

/// What an agent is able to do at the moment of asking.
pub type Judge = Box<dyn Fn() -> Ability + Send + Sync>;

/// Who leads the resync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another server leads, or none does yet.
    Follower {
        /// Who holds the Lease, as it is written there.
        holder: Option<String>,
    },
    /// We do.
    Leader(Term),
    /// It is not known.
    Unknown {
        /// Why.
        why: String,
    },
}

/// One acquisition of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The Lease's name.
    pub lease: String,
    /// The Lease's UID.
    pub uid: Uid,
    /// The Lease's count of acquisitions, this one included.
    pub transitions: u64,
    /// When we learned that we lead.
    pub since: Instant,
    /// The same moment by the wall clock.
    pub at: Millis,
}

impl Term {
    /// The Lease as it was acquired: the API server's answer to our write showed it.
    pub fn evidence(&self) -> Evidence {
        Evidence { read_at: self.at, facts: vec![Fact::LeaseIs { name: self.lease.clone(), uid: self.uid.clone() }] }
    }

    fn is(&self, record: &Record) -> bool {
        self.uid == record.uid && self.transitions == record.transitions
    }
}

impl fmt::Display for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follower { holder: Some(holder) } => write!(f, "{holder} leads"),
            Self::Follower { holder: None } => f.write_str("no server leads"),
            Self::Leader(term) => write!(f, "this server leads, by acquisition {} of the lease", term.transitions),
            Self::Unknown { why } => write!(f, "unknown who leads: {why}"),
        }
    }
}

/// One agent's candidacy, as the rest of the agent sees it.
#[derive(Clone, Debug)]
pub struct Candidacy {
    /// Who leads; changes are announced.
    pub leadership: watch::Receiver<Leadership>,
    elector: Arc<Mutex<Elector>>,
    standing: Arc<Mutex<Standing>>,
    away: watch::Receiver<Option<Away>>,
    wake: Arc<Notify>,
    clock: Clock,
}

impl Candidacy {
    /// Whether this agent leads the resync at this moment.
    pub fn leads_now(&self) -> bool {
        // Copied first: the task that announces a leadership may hold the elector's lock.
        let leadership = self.leadership.borrow().clone();
        match &leadership {
            Leadership::Leader(term) => self.still_leads(term),
            Leadership::Follower { .. } | Leadership::Unknown { .. } => false,
        }
    }

    /// Whether the lead that began with this term still holds at this very moment. To be asked right before a proposal
    /// is made; what was announced may be older.
    pub fn still_leads(&self, term: &Term) -> bool {
        let elector = lock(&self.elector);
        elector.leads(self.clock.now_ms()) && elector.held().is_some_and(|record| term.is(record))
    }

    /// Why this agent does not stand for the lead; and for how much longer at least, if it gave the lead up.
    pub fn away(&self) -> Option<(Away, Option<Duration>)> {
        let away = (*self.away.borrow())?;
        let left = |until_ms: u64| Duration::from_millis(until_ms.saturating_sub(self.clock.now_ms()));
        Some((away, away.until_ms.map(left)))
    }

    /// Notes how a pass of this agent as the resync leader ended: whether what it found could be committed.
    pub fn pass_ended(&self, committed: bool) {
        lock(&self.standing).pass_ended(committed);
    }

    /// Notes that the resync leader is reported as gone: the elector reads the Lease once.
    pub fn nudge(&self) {
        lock(&self.elector).nudge();
        self.wake.notify_one();
    }

    /// Notes that the resync leader reports itself: the elector need not read the Lease now.
    pub fn heard(&self) {
        lock(&self.elector).heard(self.clock.now_ms());
    }
}

/// Milliseconds of the monotonic clock, since the candidacy began.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn now_ms(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn at(self, ms: u64) -> Instant {
        self.0 + Duration::from_millis(ms)
    }
}

/// The name of the Lease of the resync leader of a domain in a cluster.
pub fn name(domain: &str, cluster: &str) -> String {
    format!("{domain}-{cluster}-resync")
}

/// Whether there is such a Lease, held or not, by a fresh read.
pub async fn exists(kubernetes: &Kubernetes, name: &str) -> Result<bool, super::Error> {
    Ok(kubernetes.read::<Lease>(name).await?.is_some())
}

/// Stands for election, whenever this agent is able to lead, until `shutdown` turns true (or its sender is gone); then
/// releases the Lease if it is held. The task ends when that is done.
pub fn run(
    kubernetes: &Kubernetes,
    lease: String,
    server: &ServerId,
    settings: Settings,
    judge: Judge,
    shutdown: watch::Receiver<bool>,
) -> (Candidacy, JoinHandle<()>) {
    let kubernetes = kubernetes.clone().with_timeout(LEASE_TIMEOUT);
    let look_ms = settings.look_ms + settings.look_ms * crate::clock::random_below(JITTER_PERCENT) / 100;
    let identity = format!("{server}_{:016x}", crate::clock::random_u64());
    let duration_s = settings.duration_ms.div_ceil(1000);
    let patience = Patience { lacking_ms: LACKING_MS, away_ms: settings.duration_ms, failed_passes: FAILED_PASSES };
    let standing = Arc::new(Mutex::new(Standing::new(patience)));
    let (publish_away, away) = watch::channel(None);
    let elector = Arc::new(Mutex::new(Elector::new(identity.clone(), Settings { look_ms, ..settings })));
    let (publish, leadership) = watch::channel(Leadership::Unknown { why: "the lease was not read yet".to_owned() });
    let (wake, clock) = (Arc::new(Notify::new()), Clock(Instant::now()));
    let candidacy =
        Candidacy { leadership, elector: elector.clone(), standing: standing.clone(), away, wake: wake.clone(), clock };
    let candidate = Candidate {
        kubernetes,
        name: lease,
        identity,
        duration_s: i32::try_from(duration_s).unwrap_or(i32::MAX),
        elector,
        standing,
        judge,
        clock,
        publish,
        publish_away,
        last: None,
        trouble: None,
    };
    (candidacy, tokio::spawn(candidate.stand(wake, shutdown)))
}

/// The task behind a [`Candidacy`].
struct Candidate {
    kubernetes: Kubernetes,
    name: String,
    identity: String,
    duration_s: i32,
    elector: Arc<Mutex<Elector>>,
    standing: Arc<Mutex<Standing>>,
    judge: Judge,
    clock: Clock,
    publish: watch::Sender<Leadership>,
    publish_away: watch::Sender<Option<Away>>,
    /// The Lease as it was last answered: what others wrote into it is written back.
    last: Option<Lease>,
    /// Why the last request told nothing.
    trouble: Option<String>,
}

impl Candidate {
    async fn stand(mut self, wake: Arc<Notify>, mut shutdown: watch::Receiver<bool>) {
        while !*shutdown.borrow() {
            self.assess();
            let act = lock(&self.elector).next(self.clock.now_ms());
            if let Act::Wait { until_ms } = act {
                tokio::select! {
                    () = tokio::time::sleep_until(self.wait_until(until_ms)) => {}
                    () = wake.notified() => {}
                    gone = shutdown.changed() => if gone.is_err() { break },
                }
            } else {
                self.perform(act).await;
            }
            self.announce();
        }
        self.release().await;
    }

    /// Judges whether this agent is able to lead: if not, it does not stand, and leads no more from this moment on.
    fn assess(&self) {
        let ability = (self.judge)();
        let mut elector = lock(&self.elector);
        let away = lock(&self.standing).judge(ability, elector.held().is_some(), self.clock.now_ms()).err();
        elector.stand(away.is_none());
        self.publish_away.send_if_modified(|before| {
            let word = |away: &Option<Away>| away.map(|away| (away.why.code(), away.until_ms));
            match (&*before, &away) {
                (_, Some(away)) if word(before) != word(&Some(*away)) => match away.until_ms {
                    Some(_) => tracing::warn!(lease = self.name, "giving up the resync lead: {away}"),
                    None => tracing::info!(lease = self.name, "not a candidate for the resync lead: {away}"),
                },
                (Some(_), None) => tracing::info!(lease = self.name, "candidate for the resync lead again"),
                _ => {}
            }
            std::mem::replace(before, away) != away
        });
    }

    /// The end of our lead is to be announced when it comes, not when something is to be done.
    fn wait_until(&self, until_ms: u64) -> Instant {
        let now_ms = self.clock.now_ms();
        let lead_ends_ms = lock(&self.elector).leads_until_ms().filter(|until_ms| *until_ms > now_ms);
        let until = self.clock.at(lead_ends_ms.map_or(until_ms, |lead_ends_ms| lead_ends_ms.min(until_ms)));
        until.min(Instant::now() + JUDGE_PERIOD)
    }

    async fn perform(&mut self, act: Act) {
        let sent_ms = self.clock.now_ms();
        let answer = match act {
            Act::Look => return self.look(sent_ms).await,
            Act::Create => self.create().await,
            Act::Take { resource_version, transitions } => self.replace(resource_version, Some(transitions)).await,
            Act::Renew { resource_version } => self.replace(resource_version, None).await,
            Act::Release { resource_version } => self.free(resource_version).await,
            Act::Wait { .. } => return,
        };
        match answer.and_then(|lease| self.note(lease)) {
            Ok(record) if record.holder.is_none() => lock(&self.elector).seen(Some(record), sent_ms),
            Ok(record) => lock(&self.elector).renewed(record, sent_ms),
            // A Lease that is gone when it is written is as much a surprise as one that was changed.
            Err(Error::Exists { .. } | Error::Conflict { .. } | Error::Refused { code: 404, .. }) => {
                lock(&self.elector).conflict();
            }
            Err(error) => self.fail(&error),
        }
    }

    /// What is read may be as old as the moment of asking, so that is when it was seen.
    async fn look(&mut self, sent_ms: u64) {
        let read = self.kubernetes.read::<Lease>(&self.name).await;
        match read.and_then(|lease| lease.map(|lease| self.note(lease)).transpose()) {
            Ok(record) => {
                self.trouble = None;
                lock(&self.elector).seen(record, sent_ms);
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &Error) {
        let why = error.to_line();
        if self.trouble.as_ref() != Some(&why) {
            tracing::warn!(lease = self.name, "{why}");
        }
        self.trouble = Some(why);
        lock(&self.elector).failed(self.clock.now_ms());
    }

    /// Keeps the Lease and says what is in it.
    fn note(&mut self, lease: Lease) -> Result<Record, Error> {
        let record = record(&lease).ok_or_else(|| Error::Unproven {
            asked: self.asked("get"),
            why: "answered with a lease without uid or version".to_owned(),
        })?;
        self.trouble = None;
        self.last = Some(lease);
        Ok(record)
    }

    async fn create(&self) -> Result<Lease, Error> {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(self.acquired(1)) };
        let parameters = PostParams::default();
        self.write("create", self.kubernetes.api::<Lease>().create(&parameters, &lease)).await
    }

    /// Writes the Lease with us as its holder, if it is still of this version.
    async fn replace(&self, resource_version: String, acquisition: Option<u64>) -> Result<Lease, Error> {
        let mut lease = self.last.clone().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        match acquisition {
            Some(transitions) => *spec = self.acquired(transitions),
            None => spec.renew_time = Some(now()),
        }
        self.put(lease, resource_version).await
    }

    async fn put(&self, mut lease: Lease, resource_version: String) -> Result<Lease, Error> {
        lease.metadata.resource_version = Some(resource_version);
        lease.metadata.managed_fields = None;
        let parameters = PostParams::default();
        self.write("update", self.kubernetes.api::<Lease>().replace(&self.name, &parameters, &lease)).await
    }

    async fn write(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<Lease, kube::Error>>,
    ) -> Result<Lease, Error> {
        let asked = self.asked(verb);
        let request = async { request.await.map_err(|error| Error::of(asked.clone(), error)) };
        self.kubernetes.within(&asked, request).await
    }

    fn acquired(&self, transitions: u64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.duration_s),
            lease_transitions: Some(i32::try_from(transitions).unwrap_or(i32::MAX)),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            ..LeaseSpec::default()
        }
    }

    /// Writes the Lease as free, so that no candidate has to wait for it to expire. If that fails, it does expire.
    async fn release(&mut self) {
        let held = lock(&self.elector).release();
        self.publish.send_replace(Leadership::Unknown { why: "this agent is shutting down".to_owned() });
        let Some(held) = held.filter(|_| self.last.is_some()) else { return };
        if let Err(error) = self.free(held.resource_version).await {
            tracing::warn!(lease = self.name, "not released: {}", error.to_line());
        }
    }

    /// Writes the Lease as free, if it is still of this version.
    async fn free(&self, resource_version: String) -> Result<Lease, Error> {
        let mut lease = self.last.clone().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        // As client-go does: a client that does not treat an empty holder as free waits no longer than this.
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(now());
        self.put(lease, resource_version).await
    }

    fn announce(&self) {
        let elector = lock(&self.elector);
        let leads = elector.leads(self.clock.now_ms());
        self.publish.send_if_modified(|leadership| {
            let new = match (elector.held(), elector.record(), &self.trouble) {
                (Some(held), ..) if leads => match &*leadership {
                    Leadership::Leader(term) if term.is(held) => return false,
                    _ => Leadership::Leader(self.term(held)),
                },
                (.., Some(why)) => Leadership::Unknown { why: why.clone() },
                (Some(_), ..) if self.publish_away.borrow().is_some() => {
                    Leadership::Unknown { why: "this agent gave up the resync lead".to_owned() }
                }
                (Some(_), ..) => Leadership::Unknown { why: "our renewal of the lease is overdue".to_owned() },
                (None, record, None) => Leadership::Follower { holder: record.and_then(|it| it.holder.clone()) },
            };
            let changed = *leadership != new;
            if changed {
                tracing::info!(lease = self.name, "{new}");
            }
            *leadership = new;
            changed
        });
    }

    fn term(&self, held: &Record) -> Term {
        Term {
            lease: self.name.clone(),
            uid: held.uid.clone(),
            transitions: held.transitions,
            since: Instant::now(),
            at: crate::clock::now(),
        }
    }

    fn asked(&self, verb: &'static str) -> Asked {
        asked::<Lease>(verb, Some(&self.name))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> MicroTime {
    let millis = i64::try_from(crate::clock::now().0).unwrap_or(i64::MAX);
    MicroTime(Timestamp::from_millisecond(millis).unwrap_or_default())
}

/// What a Lease says; `None` if it lacks what every object has.
fn record(lease: &Lease) -> Option<Record> {
    /// What others are taken to mean who do not say how long their renewals hold.
    const UNSAID_S: i32 = 15;
    let spec = lease.spec.clone().unwrap_or_default();
    let duration_s = spec.lease_duration_seconds.filter(|seconds| *seconds > 0).unwrap_or(UNSAID_S);
    Some(Record {
        uid: Uid::new(lease.metadata.uid.clone()?),
        resource_version: lease.metadata.resource_version.clone()?,
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        transitions: spec.lease_transitions.and_then(|count| u64::try_from(count).ok()).unwrap_or_default(),
        duration_ms: u64::try_from(duration_s).unwrap_or_default() * 1000,
        renewed: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::Router;
    use axum::routing::get;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Agent {
        candidacy: Candidacy,
        able: Arc<AtomicBool>,
        shutdown: watch::Sender<bool>,
        task: JoinHandle<()>,
    }

    fn agent(kubernetes: &Kubernetes, server: &str) -> Agent {
        let settings = Settings { duration_ms: 1000, margin_ms: 300, renew_ms: 100, look_ms: 100, retry_ms: 50 };
        let (shutdown, stops) = watch::channel(false);
        let able = Arc::new(AtomicBool::new(true));
        let judged = able.clone();
        let judge = move || Ability { member: true, quorum: true, room: judged.load(Ordering::Relaxed), behind: 0 };
        let (candidacy, task) = run(kubernetes, "resync".to_owned(), &server.into(), settings, Box::new(judge), stops);
        Agent { candidacy, able, shutdown, task }
    }

    impl Agent {
        async fn until(&mut self, what: impl FnMut(&Leadership) -> bool) -> Leadership {
            let waiting = self.candidacy.leadership.wait_for(what);
            tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("in time").expect("alive").clone()
        }

        async fn leads(&mut self) -> Term {
            match self.until(|leadership| matches!(leadership, Leadership::Leader(_))).await {
                Leadership::Leader(term) => term,
                other => panic!("{other}"),
            }
        }
    }

    #[tokio::test]
    async fn a_released_lease_goes_to_the_other_candidate_with_a_greater_count() {
        let (kubernetes, stored) = fake::lease_server();
        let mut first = agent(&kubernetes, "admin-0");
        let term = first.leads().await;
        assert!(first.candidacy.still_leads(&term));
        assert_eq!(term.transitions, 1);
        assert!(term.evidence().lease_is(&"l1".into()));
        let mut second = agent(&kubernetes, "admin-1");
        let follows = second.until(|leadership| matches!(leadership, Leadership::Follower { .. })).await;
        assert!(follows.to_string().starts_with("admin-0_"), "{follows}");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(first.candidacy.still_leads(&term), "the leader keeps renewing it");
        first.shutdown.send(true).expect("it runs");
        first.task.await.expect("it ended");
        assert!(!first.candidacy.still_leads(&term));
        let released = stored.lock().expect("the lease").0.clone().and_then(|lease| lease.spec).expect("a spec");
        assert_eq!((released.holder_identity.as_deref(), released.lease_transitions), (Some(""), Some(1)));
        assert_eq!(second.leads().await.transitions, 2);
    }

    #[tokio::test]
    async fn a_holder_that_is_not_able_any_more_frees_the_lease_and_stays_away() {
        let (kubernetes, _) = fake::lease_server();
        let mut first = agent(&kubernetes, "admin-0");
        let term = first.leads().await;
        let mut second = agent(&kubernetes, "admin-1");
        second.until(|leadership| matches!(leadership, Leadership::Follower { .. })).await;
        first.able.store(false, Ordering::Relaxed);
        assert_eq!(second.leads().await.transitions, 2);
        assert!(!first.candidacy.still_leads(&term));
        let (away, left) = first.candidacy.away().expect("a reason");
        assert!(away.to_string().contains("--min-free") && left.is_some(), "{away}");
        first.able.store(true, Ordering::Relaxed);
        second.shutdown.send_replace(true);
        assert_eq!(
            first.leads().await.transitions,
            3,
            "once it is able and has stayed away for as long as a Lease lasts"
        );
        assert_eq!(first.candidacy.away(), None);
    }

    #[tokio::test]
    async fn a_dead_holders_lease_is_taken_when_it_has_stood_still() {
        let (kubernetes, stored) = fake::lease_server();
        let mut first = agent(&kubernetes, "admin-0");
        let term = first.leads().await;
        first.task.abort();
        let dead = Instant::now();
        if let Some(lease) = &mut stored.lock().expect("the lease").0 {
            lease.metadata.labels = Some([("kept".to_owned(), "yes".to_owned())].into());
        }
        let mut second = agent(&kubernetes, "admin-0");
        assert_eq!(second.leads().await.transitions, 2, "also by the same pod after a restart");
        assert!(dead.elapsed() >= Duration::from_millis(1000), "after {:?}", dead.elapsed());
        assert!(!first.candidacy.still_leads(&term), "it was not renewed");
        let labels = stored.lock().expect("the lease").0.clone().and_then(|lease| lease.metadata.labels);
        assert!(labels.is_some_and(|labels| labels.contains_key("kept")), "what others wrote stays");
    }

    #[tokio::test]
    async fn without_the_right_it_is_unknown_who_leads() {
        let forbidden = || async { fake::status(403, "Forbidden", "coordination.k8s.io", "leases", "resync") };
        let path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/{name}";
        let mut agent = agent(&fake::kubernetes(Router::new().route(path, get(forbidden))), "admin-0");
        let why = agent.until(|leadership| leadership.to_string().contains("no permission")).await;
        assert!(why.to_string().contains("no permission to get leases.coordination.k8s.io resync"), "{why}");
    }
}
