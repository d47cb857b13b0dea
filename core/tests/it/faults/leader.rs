//! The resync leaders of a sequence: each has its own view of Kubernetes, which lags, loses and repeats events, its own copy
//! of the domain, and commands on their way that may arrive late, twice or never.

use super::kubernetes::{KINDS, Kind};
use super::run::Run;
use crate::script::Objects;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Fence, Outcome, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{Millis, ResyncEpoch, Uid};
use kaa_core::observed::Observed;
use kaa_core::observed::objects::{Claim, Deployment, Named, Pod, StatefulSet};
use kaa_core::resync::databases::wanted_by;
use kaa_core::resync::plan::{Need, Plan};
use kaa_core::resync::{Moment, Readings, confirm, plan};
use kaa_core::tasks::workloads;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// A watch event for one object: its present state, or its deletion.
#[derive(Clone)]
enum Event {
    StatefulSet(String, Option<StatefulSet>),
    Deployment(String, Option<Deployment>),
    Pod(String, Option<Pod>),
    Claim(String, Option<Claim>),
}

/// The real state at the time when a command's evidence was read.
pub struct Truth {
    pub objects: Objects,
    pub anchor: Option<Uid>,
    /// The nonces of the wrappers that ran.
    pub alive: BTreeSet<u64>,
}

/// A command in transit, with the real state from which it was made.
#[derive(Clone)]
pub struct Sent {
    pub command: Command,
    pub truth: Rc<Truth>,
}

/// A present or earlier resync leader.
#[derive(Default)]
pub struct Leader {
    observed: Observed,
    events: BTreeMap<Kind, VecDeque<Event>>,
    /// The domain, up to the log entry that this agent has applied.
    domain: Domain,
    epoch: ResyncEpoch,
    /// How far its clock is off.
    clock_ms: i64,
    planned: Option<Plan>,
    pub outbox: VecDeque<Sent>,
}

/// Delivery and faults of a leader's watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// This number of events arrives.
    Deliver(usize),
    Lose,
    Repeat,
    Swap,
    /// A list begins and breaks off.
    Partial,
    Relist,
}

fn differences<T: Clone + PartialEq>(
    before: &BTreeMap<String, T>,
    after: &BTreeMap<String, T>,
    event: fn(String, Option<T>) -> Event,
) -> Vec<Event> {
    let gone = before.keys().filter(|name| !after.contains_key(*name)).map(|name| event(name.clone(), None));
    let there = after.iter().filter(|(name, object)| before.get(*name) != Some(object));
    gone.chain(there.map(|(name, object)| event(name.clone(), Some(object.clone())))).collect()
}

impl Leader {
    /// Queues the watch events that a change of Kubernetes causes.
    pub fn queue(&mut self, before: &Objects, after: &Objects) {
        let events = [
            (Kind::StatefulSets, differences(&before.sets, &after.sets, Event::StatefulSet)),
            (Kind::Deployments, differences(&before.deployments, &after.deployments, Event::Deployment)),
            (Kind::Pods, differences(&before.pods, &after.pods, Event::Pod)),
            (Kind::Claims, differences(&before.claims, &after.claims, Event::Claim)),
        ];
        for (kind, events) in events {
            self.events.entry(kind).or_default().extend(events);
        }
    }

    fn show(&mut self, event: Event) {
        fn put<T: Named + PartialEq>(listing: &mut kaa_core::observed::Listing<T>, name: &str, object: Option<T>) {
            match object {
                Some(object) => listing.apply(object),
                None => listing.delete(name),
            };
        }
        match event {
            Event::StatefulSet(name, object) => put(&mut self.observed.stateful_sets, &name, object),
            Event::Deployment(name, object) => put(&mut self.observed.deployments, &name, object),
            Event::Pod(name, object) => put(&mut self.observed.pods, &name, object),
            Event::Claim(name, object) => put(&mut self.observed.claims, &name, object),
        }
    }

    /// Lists one kind: everything if `whole`, otherwise only its first object; if it is not granted, the leader learns
    /// that it may not list.
    fn list(&mut self, kind: Kind, is: &Objects, granted: bool, whole: bool) {
        fn fill<T: Named + PartialEq + Clone>(
            listing: &mut kaa_core::observed::Listing<T>,
            objects: &BTreeMap<String, T>,
            granted: bool,
            whole: bool,
        ) {
            if !granted {
                listing.forbid("no list".to_owned());
                return;
            }
            listing.restart();
            let most = if whole { usize::MAX } else { 1 };
            objects.values().take(most).for_each(|object| listing.list(object.clone()));
            if whole {
                listing.complete();
            }
        }
        let observed = &mut self.observed;
        match kind {
            Kind::StatefulSets => fill(&mut observed.stateful_sets, &is.sets, granted, whole),
            Kind::Deployments => fill(&mut observed.deployments, &is.deployments, granted, whole),
            Kind::Pods => fill(&mut observed.pods, &is.pods, granted, whole),
            Kind::Claims => fill(&mut observed.claims, &is.claims, granted, whole),
        }
    }
}

impl Run {
    pub fn watch(&mut self, leader: usize, kind: Kind, watch: Watch) {
        let granted = !self.denied.contains(&kind);
        let leader = &mut self.leaders[leader];
        let events = leader.events.entry(kind).or_default();
        match watch {
            Watch::Deliver(count) => {
                let count = count.min(events.len());
                let due: Vec<Event> = events.drain(..count).collect();
                due.into_iter().for_each(|event| leader.show(event));
            }
            Watch::Lose => drop(events.pop_front()),
            Watch::Repeat => events.extend(events.front().cloned()),
            Watch::Swap if events.len() > 1 => events.swap(0, 1),
            Watch::Swap => {}
            Watch::Partial => leader.list(kind, &self.kubernetes.is, granted, false),
            Watch::Relist => {
                events.clear();
                leader.list(kind, &self.kubernetes.is, granted, true);
            }
        }
    }

    /// Updates a leader's view to the present state of Kubernetes and of the domain.
    pub fn see(&mut self, leader: usize) {
        KINDS.into_iter().for_each(|kind| self.watch(leader, kind, Watch::Relist));
        self.follow(leader);
    }

    /// Makes a leader apply the log up to now.
    pub fn follow(&mut self, leader: usize) {
        self.leaders[leader].domain = self.domain.clone();
    }

    /// The agent is killed: it loses its plan, its commands that are not sent, and everything it has seen.
    pub fn crash(&mut self, leader: usize) {
        let domain = self.domain.clone();
        let clock_ms = self.leaders[leader].clock_ms;
        self.leaders[leader] = Leader { domain, clock_ms, ..Leader::default() };
    }

    /// A leader acquires the Lease. If `late`, its command for an earlier acquisition arrives only now.
    pub fn lead(&mut self, leader: usize, late: bool) {
        if !late {
            self.transitions += 1;
        }
        let transitions = if late { self.transitions.saturating_sub(1) } else { self.transitions };
        let before = self.epoch();
        let command = Command::BeginResync(change::BeginResync {
            cluster: "c1".into(),
            lease: "L1".into(),
            transitions,
            holder: format!("admin-{leader}").as_str().into(),
            evidence: Evidence {
                read_at: Millis(0),
                facts: vec![Fact::LeaseIs { name: "r".into(), uid: "L1".into() }],
            },
        });
        match self.propose(Role::ResyncLeader, command) {
            Outcome::ResyncBegun(epoch) if late || epoch <= before => {
                self.violated(format!("acquisition {transitions} of the lease opened epoch {epoch} after {before}"));
            }
            Outcome::ResyncBegun(epoch) => self.leaders[leader].epoch = epoch,
            Outcome::Refused(_) if late => {}
            other => self.violated(format!("acquisition {transitions} of the lease: {other:?}")),
        }
    }

    pub fn set_clock(&mut self, leader: usize, seconds: i64) {
        self.leaders[leader].clock_ms = seconds * 1000;
        self.clocks_set += 1;
    }

    /// The time on a leader's clock.
    fn now_at(&self, leader: usize) -> Millis {
        Millis(self.now().0.strict_add_signed(self.leaders[leader].clock_ms))
    }

    /// Plans from a leader's knowledge of Kubernetes and of the domain. Returns the number of findings.
    pub fn plan(&mut self, leader: usize) -> usize {
        let (now, policy) = (self.now_at(leader), self.policy());
        let leader = &mut self.leaders[leader];
        let moment = Moment { now, ..Moment::default() };
        let plan = plan(&leader.domain, &leader.observed, &policy, &moment);
        let findings = plan.findings.len();
        leader.planned = Some(plan);
        findings
    }

    /// Makes the fresh reads that the plan of a leader needs, and makes its commands. Reads of the kind `fails` get no
    /// answer.
    pub fn read(&mut self, leader: usize, fails: Option<Kind>) {
        let Some(plan) = self.leaders[leader].planned.take() else { return };
        let needs = plan.findings.iter().flat_map(|finding| &finding.needs);
        let answers = needs.map(|need| (need.clone(), self.answer(need, fails))).collect();
        let readings = Readings { at: self.now_at(leader), answers };
        let truth =
            Rc::new(Truth { objects: self.kubernetes.is.clone(), anchor: self.anchor.clone(), alive: self.alive() });
        let leader = &mut self.leaders[leader];
        let fence = Fence { cluster: "c1".into(), epoch: leader.epoch };
        for finding in &plan.findings {
            if let Ok(command) = confirm(finding, &readings, &fence, &leader.domain) {
                leader.outbox.push_back(Sent { command, truth: truth.clone() });
            }
        }
    }

    pub fn answer(&self, need: &Need, fails: Option<Kind>) -> Result<Vec<Fact>, String> {
        let may = |kind: Kind| {
            if fails == Some(kind) || self.denied.contains(&kind) { Err("HTTP 403".to_owned()) } else { Ok(()) }
        };
        let is = &self.kubernetes.is;
        Ok(match need {
            Need::Anchor => self.anchor.iter().map(|uid| Fact::AnchorIs { uid: uid.clone() }).collect(),
            Need::Claim(name) => {
                may(Kind::Claims)?;
                match is.claims.get(name) {
                    Some(claim) => claim.facts(),
                    None => vec![Fact::ClaimAbsent { name: name.clone() }],
                }
            }
            Need::Pod(name) => {
                may(Kind::Pods)?;
                is.pods.get(name).map_or_else(|| vec![Fact::PodAbsent { name: name.clone() }], Pod::facts)
            }
            Need::StatefulSet(name) => {
                may(Kind::StatefulSets)?;
                is.sets.get(name).map(StatefulSet::facts).unwrap_or_default()
            }
            Need::Replication { stateful_set, last } => {
                may(Kind::StatefulSets)?;
                is.sets.get(stateful_set).map(|set| set.facts_after(last.as_deref())).unwrap_or_default()
            }
            Need::LoadBalancer { object, item } => {
                KINDS.into_iter().try_for_each(may)?;
                let mut all = Leader::default();
                KINDS.into_iter().for_each(|kind| all.list(kind, is, true, true));
                all.observed.annotation(object, item).map_err(|why| format!("{why:?}"))?
            }
            Need::WorkloadsOf { database, pods } => {
                may(Kind::Pods)?;
                may(Kind::StatefulSets)?;
                may(Kind::Deployments)?;
                let mut all = Leader::default();
                KINDS.into_iter().for_each(|kind| all.list(kind, is, true, true));
                workloads::facts(&all.observed, database, pods).map_err(|why| format!("{why:?}"))?
            }
            Need::WantersOf(database) => {
                KINDS.into_iter().try_for_each(may)?;
                let mut all = Leader::default();
                KINDS.into_iter().for_each(|kind| all.list(kind, is, true, true));
                let database = database.clone();
                vec![match wanted_by(&all.observed, &database).map_err(|why| format!("{why:?}"))? {
                    Some(by) => Fact::DatabaseWanted { database, by },
                    None => Fact::DatabaseUnwanted { database },
                }]
            }
        })
    }

    /// Up to `most` commands of a leader arrive, each of them a second time if `twice`, as if its answer was lost.
    /// Returns how many changed anything.
    pub fn send(&mut self, leader: usize, most: usize, twice: bool) -> usize {
        let mut changed = 0;
        for _ in 0..most {
            let Some(sent) = self.leaders[leader].outbox.pop_front() else { break };
            changed += usize::from(self.arrive(&sent) == Outcome::Changed);
            if twice && self.arrive(&sent) == Outcome::Changed {
                self.violated(format!("what was done already was done again: {:?}", sent.command));
            }
        }
        changed
    }
}
