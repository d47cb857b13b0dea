//! A preview: what would be removed if an operator scaled or deleted something, or why nothing would be.
//!
//! The changes are made to a copy of what Kubernetes shows, and run their course there (`aftermath`). The processes
//! whose pods that takes with it are assumed to exit gracefully, in a copy of the domain. Then the resync makes its passes
//! over the copies, with the plan, the confirmation and the domain's own rules that the real one has, until it has nothing
//! more to propose; pods that are wanted and missing start, and the passes continue. Nothing here decides what is removed.
//!
//! Not here: fresh reads (what is asked is answered from the copy), whether engines really exit. Who would vote is told by
//! `membership::scaling`.

mod aftermath;
pub mod change;
pub mod outcome;
mod starts;

use super::databases::wanted_by;
use super::plan::{Finding, Kind, Need, Plan, Waiting};
use super::{Moment, Objection, Policy, Readings, confirm, plan};
use crate::domain::Domain;
use crate::domain::archive::Archive;
use crate::domain::audit::Subject;
use crate::domain::change::{BeginResync, Command, ConfirmRunning, ReportExit, ReportState};
use crate::domain::command::{Actor, Entry, Fence, Outcome, Request, Role};
use crate::domain::evidence::{Evidence, Fact};
use crate::domain::ids::{ArchiveId, ClusterName, ResyncEpoch, Uid};
use crate::domain::process::{EngineState, ExitReason, Process};
use crate::observed::objects::StatefulSet;
use crate::observed::{Observed, Unknown};
use crate::tasks::{is_of_a_task, workloads};
use aftermath::{Aftermath, aftermath};
use change::Change;
use outcome::{Happening, Note, Step, WhatIf};
use std::collections::BTreeSet;

/// The most changes that can be asked about at once: an operator types them.
pub const MOST_CHANGES: usize = 16;

/// Why nothing can be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no domain to tell of.
    #[error("there is no domain on this server yet, so it cannot preview changes")]
    NotFounded,
    /// A kind of object is not known.
    #[error("no preview is possible: {kind} {}", match why {
        Unknown::Syncing => "are not listed completely yet".to_owned(),
        Unknown::Forbidden(why) => format!("may not be listed: {why}"),
    })]
    Unknown {
        /// The kind.
        kind: Kind,
        /// Why.
        why: Unknown,
    },
    /// There is no such object.
    #[error("there is no {name} among the {kind}; there {}", match there_are.as_str() {
        "" => "are none".to_owned(),
        names => format!("are: {names}"),
    })]
    NoSuch {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The names that there are.
        there_are: String,
    },
    /// The same thing would be changed in two ways.
    #[error("{0} is named twice")]
    Twice(String),
    /// More than anybody types.
    #[error("{0} changes are more than the {MOST_CHANGES} that can be asked about at once")]
    TooMany(usize),
}

/// What comes of hypothetical changes. The asking server need not lead the resync.
pub fn what_if(domain: &Domain, observed: &Observed, policy: &Policy, changes: &[Change]) -> Result<WhatIf, Error> {
    if changes.len() > MOST_CHANGES {
        return Err(Error::TooMany(changes.len()));
    }
    let mut targets = BTreeSet::new();
    if let Some(twice) = changes.iter().map(Change::target).find(|target| !targets.insert(target.clone())) {
        return Err(Error::Twice(twice));
    }
    let without = Hypothesis::settled(domain, observed, policy, &[])?;
    let with = Hypothesis::settled(domain, observed, policy, changes)?;
    Ok(with.compared_with(&without))
}

/// Copies of the domain and of Kubernetes, and what has happened to them.
struct Hypothesis<'a> {
    domain: Domain,
    after: Aftermath,
    policy: &'a Policy,
    steps: Vec<Step>,
    /// What the last plan waits for, with what confirming its findings added.
    waiting: Vec<Waiting>,
    /// The archives of the processes that have exited.
    left: BTreeSet<ArchiveId>,
}

impl<'a> Hypothesis<'a> {
    fn settled(domain: &Domain, observed: &Observed, policy: &'a Policy, changes: &[Change]) -> Result<Self, Error> {
        if domain.id.is_none() {
            return Err(Error::NotFounded);
        }
        let after = aftermath(observed, changes)?;
        let mut hypothesis = Self {
            domain: domain.clone(),
            after,
            policy,
            steps: Vec::new(),
            waiting: Vec::new(),
            left: BTreeSet::new(),
        };
        hypothesis.note_deleted();
        hypothesis.exit();
        hypothesis.settle();
        if hypothesis.start() {
            hypothesis.settle();
        }
        Ok(hypothesis)
    }

    /// What stands against the claims that are deleted.
    fn note_deleted(&mut self) {
        for (name, held) in &self.after.deleted {
            let on_it = |archive: &&Archive| {
                let claim = archive.claim.as_ref();
                let place = claim.map(|claim| (&archive.cluster, &claim.namespace, &claim.name));
                place == Some((&self.policy.cluster, &self.policy.namespace, name))
            };
            let archive = self.domain.archives.values().find(on_it).map(|archive| archive.id);
            match held {
                Some(pod) => {
                    self.after.notes.push(Note::ClaimInUse { claim: name.clone(), pod: pod.clone(), archive });
                }
                None if archive.is_none() => self.after.notes.push(Note::ClaimWithoutArchive(name.clone())),
                None => {}
            }
        }
    }

    /// The processes of the pods that are gone have stopped together and exited gracefully.
    fn exit(&mut self) {
        let mut exiting = Vec::new();
        for pod in std::mem::take(&mut self.after.gone) {
            let ours = |process: &&Process| {
                let identity = &process.identity;
                process.cluster == self.policy.cluster
                    && identity.namespace == self.policy.namespace
                    && identity.pod_uid == pod.uid
            };
            let processes: Vec<Process> = self.domain.processes.values().filter(ours).cloned().collect();
            exiting.push((pod, processes));
        }
        for Process { id: process, session, about, .. } in exiting.iter().flat_map(|(_, processes)| processes) {
            let (process, session, engine, pid) = (*process, session.number, EngineState::ShuttingDown, about.pid);
            self.apply(Role::Agent, Command::ReportState(ReportState { process, session, engine, pid }));
        }
        for (pod, processes) in exiting {
            for Process { id: process, session, archive, .. } in processes {
                let (session, reason) = (session.number, ExitReason::Graceful);
                let report = Command::ReportExit(ReportExit { process, session, exit_code: Some(0), reason });
                // In its own session a process that lives cannot be refused.
                if self.apply(Role::Agent, report) == Outcome::Changed {
                    self.left.extend(archive);
                    self.steps.push(Step::Exits { process, pod: pod.name.clone() });
                }
            }
        }
    }

    /// The engines that run have run on.
    fn run_on(&mut self) {
        let gates = self.domain.gates();
        let owed = self.domain.processes.values().filter(|process| gates.owed_proof(process.id).is_some());
        let owed: Vec<_> = owed.map(|process| (process.id, process.session.number)).collect();
        for (process, session) in owed {
            let as_of = self.domain.index;
            self.apply(Role::Agent, Command::ConfirmRunning(ConfirmRunning { process, session, as_of }));
        }
    }

    /// Makes the resync's passes until one changes nothing. That comes: every change takes something away for good, or
    /// learns what is learned once.
    fn settle(&mut self) {
        let fence = Fence { cluster: self.policy.cluster.clone(), epoch: self.epoch() };
        let mut changed = true;
        while changed {
            self.run_on();
            // Servers that are not wanted are evicted before they are removed.
            // Where several clusters share the domain no scale-down removes a vote.
            let servers = self.domain.servers.values().filter(|_| self.domain.is_spread());
            let moment = Moment { now: self.domain.time, voters: servers.map(|server| server.raft_id).collect() };
            let Plan { findings, waiting } = plan(&self.domain, &self.after.observed, self.policy, &moment);
            self.waiting = waiting;
            changed = false;
            // A task removes nothing that an operator would miss.
            for finding in findings.into_iter().filter(|finding| !is_of_a_task(&finding.command)) {
                changed |= self.propose(finding, &fence);
            }
        }
    }

    /// Whether the domain changed by it.
    fn propose(&mut self, finding: Finding, fence: &Fence) -> bool {
        let (observed, anchor) = (&self.after.observed, self.domain.anchor_in(&fence.cluster).cloned());
        let answers = finding.needs.iter().map(|need| (need.clone(), answer(observed, need, anchor.as_ref())));
        let readings = Readings { at: self.domain.time, answers: answers.collect() };
        let command = match confirm(&finding, &readings, fence, &self.domain) {
            Ok(command) => command,
            Err(Objection::Waits(reason)) => {
                self.waiting.push(Waiting { subject: finding.subject, reason });
                return false;
            }
            Err(Objection::Refused(refusal)) => return self.took(Step::Refused { finding, refusal }),
        };
        let step = match self.apply(Role::ResyncLeader, command) {
            // A preview shows what would be lost, not what would merely be learned.
            Outcome::Changed if !finding.removes() => return true,
            Outcome::Changed => Step::Proposed(finding),
            Outcome::Refused(refusal) => Step::Refused { finding, refusal },
            Outcome::Unchanged | Outcome::Registered(_) | Outcome::ResyncBegun(_) | Outcome::ArchiveCreated(_) => {
                return false;
            }
        };
        self.took(step)
    }

    /// Notes a step, a refused one once. Whether the domain changed by it.
    fn took(&mut self, step: Step) -> bool {
        let changed = matches!(step, Step::Proposed(_));
        if changed || !self.steps.contains(&step) {
            self.steps.push(step);
        }
        changed
    }

    /// The current resync epoch. If no server has ever led the resync, an imaginary one begins to.
    fn epoch(&mut self) -> ResyncEpoch {
        let cluster: ClusterName = self.policy.cluster.clone();
        if let Some(leader) = self.domain.resync.get(&cluster) {
            return leader.epoch;
        }
        let (lease, evidence) = (Uid::new("what-if"), Evidence::default());
        let holder = "what-if".into();
        self.apply(
            Role::ResyncLeader,
            Command::BeginResync(BeginResync { cluster, lease, transitions: 1, holder, evidence }),
        );
        ResyncEpoch(self.domain.index)
    }

    fn apply(&mut self, role: Role, command: Command) -> Outcome {
        let request = Request { actor: Actor { role, name: "what-if".to_owned() }, command };
        self.domain.apply(Entry { index: self.domain.index + 1, time: self.domain.time, request })
    }

    /// What has happened, with a mark on what would have happened without the changes too.
    fn compared_with(mut self, without: &Self) -> WhatIf {
        self.note_claims();
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let waiting = waiting.filter(|waiting| !without.waiting.contains(waiting) || self.touches(&waiting.subject));
        let waiting = waiting.collect();
        let happening = |step: Step| Happening { anyway: without.steps.contains(&step), step };
        WhatIf { steps: self.steps.into_iter().map(happening).collect(), notes: self.after.notes, waiting }
    }

    /// Whether the changes are about this.
    fn touches(&self, subject: &Subject) -> bool {
        let Subject::Archive(archive) = subject else { return *subject == Subject::Domain };
        let claim = self.domain.archives.get(archive).and_then(|archive| archive.claim.as_ref());
        let owner = claim.and_then(|claim| claim.owner.as_ref());
        self.left.contains(archive)
            || owner.is_some_and(|owner| self.after.touched.contains(&owner.stateful_set))
            || claim.is_some_and(|claim| self.after.deleted.contains_key(&claim.name))
    }

    /// What becomes of the claims of archives that were removed.
    fn note_claims(&mut self) {
        let claims = self.after.observed.claims.known().ok();
        let removed = self.steps.iter().filter_map(|step| match step {
            Step::Proposed(Finding { command: Command::RemoveArchive(change), .. }) => Some(change.archive),
            _ => None,
        });
        let still_removed = removed.filter_map(|id| {
            let archive = self.domain.archives.get(&id).filter(|archive| archive.removed.is_some())?;
            Some((id, archive.claim.as_ref()?))
        });
        let mut notes: Vec<Note> = Vec::new();
        for (archive, claim) in still_removed {
            let Some(object) = claims.and_then(|claims| claims.get(&claim.name)) else { continue };
            notes.push(match object.deleting {
                true => Note::PurgedLater { archive, claim: claim.name.clone() },
                false => Note::CanComeBack { archive, claim: claim.clone() },
            });
        }
        self.after.notes.extend(notes);
    }
}

/// What a fresh read would answer if Kubernetes were as supposed.
fn answer(observed: &Observed, need: &Need, anchor: Option<&Uid>) -> Result<Vec<Fact>, String> {
    let unknown = |_| "it is not listed".to_owned();
    Ok(match need {
        Need::Anchor => anchor.map(|uid| Fact::AnchorIs { uid: uid.clone() }).into_iter().collect(),
        Need::Claim(name) => match observed.claims.known().map_err(unknown)?.get(name) {
            Some(claim) => claim.facts(),
            None => vec![Fact::ClaimAbsent { name: name.clone() }],
        },
        Need::Pod(name) => match observed.pods.known().map_err(unknown)?.get(name) {
            Some(pod) => pod.facts(),
            None => vec![Fact::PodAbsent { name: name.clone() }],
        },
        Need::LoadBalancer { object, item } => observed.annotation(object, item).map_err(unknown)?,
        Need::WantersOf(database) => {
            let database = database.clone();
            match wanted_by(observed, &database).map_err(unknown)? {
                Some(by) => vec![Fact::DatabaseWanted { database, by }],
                None => vec![Fact::DatabaseUnwanted { database }],
            }
        }
        Need::WorkloadsOf { database, pods } => workloads::facts(observed, database, pods).map_err(unknown)?,
        Need::StatefulSet(name) => {
            let set = observed.stateful_sets.known().map_err(unknown)?.get(name);
            set.map(StatefulSet::facts).unwrap_or_default()
        }
        Need::Replication { stateful_set, last } => {
            let set = observed.stateful_sets.known().map_err(unknown)?.get(stateful_set);
            set.map(|set| set.facts_after(last.as_deref())).unwrap_or_default()
        }
    })
}
