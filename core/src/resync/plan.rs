//! The plan: what would be proposed, what has to be read for it, and why the rest is not proposed.

pub use super::waiting::{Kind, WaitingReason};
use crate::domain::Domain;
use crate::domain::archive::Ordinal;
use crate::domain::audit::Subject;
use crate::domain::change::{Command, Planned};
pub use crate::domain::evidence::Need;
use crate::domain::evidence::{Evidence, Fact, wants};
use crate::domain::ids::Millis;
use crate::wait::Names;
use std::fmt;

/// What one comparison of domain and Kubernetes comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    /// What to propose, in this order.
    pub findings: Vec<Finding>,
    /// What is not proposed, and why.
    pub waiting: Vec<Waiting>,
}

/// One thing to propose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub subject: Subject,
    /// What is proposed, without its fence and evidence yet.
    pub command: Command,
    /// What it does, in words.
    pub text: String,
    /// What has to be read afresh before it may be proposed.
    pub needs: Vec<Need>,
    /// What the reads must show besides.
    pub guards: Vec<Guard>,
}

impl Finding {
    /// A change that the resync plans.
    pub(crate) fn new(domain: &Domain, subject: Subject, command: Command, guards: Vec<Guard>) -> Self {
        let planned = command.planned();
        let mut needs = planned.map(|change| change.reads(domain)).unwrap_or_default();
        for need in guards.iter().map(Guard::need) {
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
        let text = planned.map(|change| change.text(domain)).unwrap_or_default();
        Self { subject, command, text, needs, guards }
    }

    /// Whether something is gone after it, so that a pause holds it back.
    pub fn removes(&self) -> bool {
        self.command.planned().is_some_and(Planned::removes)
    }
}

/// What has to hold besides the proof. An operator may have held a change back since the watches showed the object. And if all
/// claims of a database are gone at once while they are wanted, it is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No annotation on this StatefulSet pauses the resync of it.
    NotPaused(String),
    /// No annotation on this StatefulSet holds the purge of its archives.
    PurgeNotHeld(String),
    /// This claim is there.
    ClaimThere(String),
    /// The StatefulSet does not want this ordinal.
    Unwanted(Ordinal),
}

impl Guard {
    fn need(&self) -> Need {
        match self {
            Self::NotPaused(stateful_set) | Self::PurgeNotHeld(stateful_set) => Need::StatefulSet(stateful_set.clone()),
            Self::ClaimThere(claim) => Need::Claim(claim.clone()),
            Self::Unwanted(ordinal) => Need::StatefulSet(ordinal.stateful_set.clone()),
        }
    }

    /// What stands against the finding, if this was read.
    pub(super) fn stands_against(&self, fact: &Fact) -> Option<WaitingReason> {
        match (self, fact) {
            (Self::NotPaused(guarded), Fact::WorkloadPaused { stateful_set }) if guarded == stateful_set => {
                Some(WaitingReason::WorkloadPaused { workload: format!("statefulset {stateful_set}") })
            }
            (Self::PurgeNotHeld(guarded), Fact::PurgeHeld { stateful_set }) if guarded == stateful_set => {
                Some(WaitingReason::PurgeHeld { stateful_set: stateful_set.clone() })
            }
            (Self::ClaimThere(claim), Fact::ClaimAbsent { name }) if claim == name => {
                let read = Evidence { read_at: Millis::default(), facts: vec![fact.clone()] };
                Some(WaitingReason::NotConfirmed { read })
            }
            (Self::Unwanted(guarded), Fact::StatefulSetIs { name, replicas, first_ordinal, .. })
                if guarded.stateful_set == *name && wants(*first_ordinal, *replicas, guarded.ordinal) =>
            {
                Some(WaitingReason::ClaimsVanished { stateful_set: name.clone() })
            }
            _ => None,
        }
    }
}

/// Something that is not proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What it is about.
    pub subject: Subject,
    /// Why.
    pub reason: WaitingReason,
}

impl Waiting {
    /// What ends it, with the names that it knows.
    pub fn ends(&self) -> String {
        let names = self.reason.names();
        let database = match &self.subject {
            Subject::Database(database) => Some(database.as_str()),
            _ => None,
        };
        Names { database, ..names }.fill(self.reason.ends())
    }
}

impl Plan {
    /// Turns every finding that takes something away into a reason to wait.
    pub(super) fn hold_takeaways(&mut self, reason: &WaitingReason) {
        let (held, kept) = self.findings.drain(..).partition(|finding| finding.removes());
        self.findings = kept;
        let held: Vec<Finding> = held;
        for Finding { subject, .. } in held {
            let waiting = Waiting { subject, reason: reason.clone() };
            // An archive that would be removed and purged waits once.
            if !self.waiting.contains(&waiting) {
                self.waiting.push(waiting);
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "propose {}: {}", finding.subject, finding.text)?;
        }
        for waiting in &self.waiting {
            writeln!(f, "wait    {}: {}", waiting.subject, waiting.reason)?;
        }
        Ok(())
    }
}
