//! The plan: what would be proposed, what has to be read for it, and why the rest is not proposed.

use crate::domain::Domain;
use crate::domain::archive::Ordinal;
use crate::domain::audit::Subject;
use crate::domain::change::{Command, Planned};
pub use crate::domain::evidence::Need;
use crate::domain::evidence::{Evidence, Fact, wants};
use crate::domain::gate::Held;
use crate::domain::ids::{ClusterName, Millis, StartId, Uid};
use crate::observed::Unknown;
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
    pub(super) fn new(domain: &Domain, subject: Subject, command: Command, guards: Vec<Guard>) -> Self {
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

/// What has to hold besides the proof: an operator may have asked to hold something back since the watches looked; and that
/// all claims of a database are gone at once, while they are wanted, is somebody's mistake.
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

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `v1` Pods.
    Pods,
    /// `v1` PersistentVolumeClaims.
    Claims,
    /// `apps/v1` StatefulSets.
    StatefulSets,
    /// `apps/v1` Deployments.
    Deployments,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pods => "pods",
            Self::Claims => "persistentvolumeclaims",
            Self::StatefulSets => "statefulsets",
            Self::Deployments => "deployments",
        })
    }
}

/// Why something is not proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingReason {
    /// An engine is not started yet.
    StartHeld(Held),
    /// At a cold start the storage managers of a StatefulSet wait for each other, and it starts them one after the other.
    OrderedReady {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// A kind of object is not known.
    KindUnknown {
        /// The kind.
        kind: Kind,
        /// Why.
        why: Unknown,
    },
    /// The pod of a process seems to be gone, but the process speaks.
    SessionLive,
    /// A process is silent, but its container is not known to have ended.
    SessionLost,
    /// A process is silent, and it is not known which container it is.
    ContainerUnknown,
    /// The claim of an archive has another UID: the engine that comes up on it will tell what it holds.
    ClaimReplaced {
        /// The claim's name.
        claim: String,
        /// The UID it has now.
        uid: Uid,
    },
    /// All claims of a database are gone, but a StatefulSet still wants them.
    ClaimsVanished {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// An archive whose claim or ordinal is gone is in use.
    ArchiveInUse(StartId),
    /// The StatefulSet that had the archive is gone, which is not a scale-down.
    StatefulSetMissing(String),
    /// The StatefulSet that had the archive is another one of the same name.
    StatefulSetReplaced(String),
    /// The StatefulSet does not want the archive any more, but it is the last one of its database.
    LastArchive,
    /// The StatefulSet does not want the archive any more, but no other active archive of its database is proven to hold
    /// all its data.
    MayBeNewest,
    /// It is not known which claim the archive is on.
    Unbound,
    /// The claim of an archive is gone, and it is purged after the delay that the agents were told.
    PurgeDelayed {
        /// When.
        until: Millis,
    },
    /// An annotation on its StatefulSet holds the purge of an archive.
    PurgeHeld {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// An annotation on a workload pauses what would be taken away of it.
    WorkloadPaused {
        /// The workload, as `kubectl` names it.
        workload: String,
    },
    /// A person has paused the resync.
    Paused {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// A database has no archive, but something wants it.
    DatabaseWanted {
        /// What, as `kubectl` names it.
        by: String,
    },
    /// A database has no archive, but a process.
    DatabaseInUse(StartId),
    /// Nothing wants a database any more, and the agents were told to delete none.
    DatabaseDeletionOff,
    /// Nothing here wants a database any more, but nobody sees what other clusters want.
    OtherCluster(ClusterName),
    /// A server is not wanted and has no volume any more, but the others have not voted it out yet.
    StillVotes,
    /// More than one StatefulSet of admin servers in the namespace.
    AmbiguousDomain(Vec<String>),
    /// The anchor is missing or another one: this is not the Kubernetes that the domain was founded in.
    RestoredElsewhere,
    /// A fresh read gave no answer that proves anything.
    Unread {
        /// What was read.
        need: Need,
        /// What came.
        why: String,
    },
    /// A fresh read shows otherwise than the watches.
    NotConfirmed {
        /// What it shows.
        read: Evidence,
    },
}

impl fmt::Display for WaitingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindUnknown { kind, why: Unknown::Syncing } => write!(f, "{kind} are not listed completely yet"),
            Self::KindUnknown { kind, why: Unknown::Forbidden(why) } => write!(f, "{kind} may not be listed: {why}"),
            Self::StartHeld(held) => write!(f, "its engine is not started yet: {held}"),
            Self::OrderedReady { stateful_set } => write!(
                f,
                "statefulset {stateful_set} starts its pods one after the other, so its storage managers would wait for each \
                 other for ever at a cold start: it needs podManagementPolicy Parallel"
            ),
            Self::SessionLive => f.write_str("its pod seems to be gone, but its session is live"),
            Self::SessionLost => f.write_str("its session is lost, but its container is not known to have ended"),
            Self::ContainerUnknown => f.write_str("its session is lost, and its container id was never learned"),
            Self::ClaimReplaced { claim, uid } => {
                write!(f, "claim {claim} is another one now ({uid}); waiting for the engine on it to register")
            }
            Self::ClaimsVanished { stateful_set } => {
                write!(
                    f,
                    "all claims of the database are gone at once, but statefulset {stateful_set} still wants them"
                )
            }
            Self::ArchiveInUse(process) => write!(f, "process {process} is still on it"),
            Self::StatefulSetMissing(name) => write!(f, "statefulset {name} is gone, which is not a scale-down"),
            Self::StatefulSetReplaced(name) => {
                write!(f, "statefulset {name} is another one now; waiting for its engine to register")
            }
            Self::LastArchive => f.write_str("it is not wanted any more, but it is the last archive of its database"),
            Self::MayBeNewest => f.write_str(
                "it is not wanted any more, but it may hold data that no other active archive of its database has: it stays \
                 until the storage manager of one has run since, or an operator gives it up (`kaa archive remove`)",
            ),
            Self::Unbound => f.write_str("its claim is not known"),
            Self::PurgeDelayed { until } => write!(f, "its claim is gone; it is kept until {until} (--purge-delay)"),
            Self::PurgeHeld { stateful_set } => {
                write!(f, "its claim is gone; an annotation on statefulset {stateful_set} holds its purge")
            }
            Self::WorkloadPaused { workload } => write!(f, "an annotation on {workload} pauses the resync of it"),
            Self::Paused { by, why } => write!(f, "the resync is paused by {by}: {why}"),
            Self::DatabaseWanted { by } => write!(f, "it has no archive, but {by} wants it"),
            Self::DatabaseInUse(process) => write!(f, "it has no archive, but process {process} serves it"),
            Self::DatabaseDeletionOff => f.write_str(
                "it has no archive and nothing wants it, but databases are never deleted here (--database-deletion)",
            ),
            Self::OtherCluster(cluster) => {
                write!(f, "it has no archive and nothing here wants it, but cluster {cluster} may: nobody sees both")
            }
            Self::StillVotes => {
                f.write_str("it is not wanted and its volume is gone, but it has not been voted out yet")
            }
            Self::AmbiguousDomain(names) => {
                write!(f, "several admin statefulsets share the namespace: {}", names.join(", "))
            }
            Self::RestoredElsewhere => {
                f.write_str("the anchor lease is missing or another one: the domain was founded in another Kubernetes")
            }
            Self::Unread { need, why } => write!(f, "{need} could not be read: {why}"),
            Self::NotConfirmed { read } => write!(f, "a fresh read shows otherwise: {read}"),
        }
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
