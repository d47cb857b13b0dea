//! What comes of hypothetical changes, as an operator reads it: what happens in which order, what stays and why.

use crate::domain::archive::Claim;
use crate::domain::audit::Subject;
use crate::domain::command::Refusal;
use crate::domain::ids::{ArchiveId, StartId};
use crate::domain::ids::{RaftId, ServerId};
use crate::membership::scaling::{Comes, Scaling, scaled};
use crate::resync::plan::{Finding, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What comes of hypothetical changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// What happens, in this order.
    pub steps: Vec<Happening>,
    /// What there is to know beside.
    pub notes: Vec<Note>,
    /// What is not removed in the end, and why: of what the changes touch, and what waits only because of them.
    pub waiting: Vec<Waiting>,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// What it is.
    pub step: Step,
    /// Whether it happens without the changes too.
    pub anyway: bool,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A process exits gracefully with its pod, which is what is assumed.
    Exits {
        /// The process.
        process: StartId,
        /// Its pod.
        pod: String,
    },
    /// The resync proposes something, and the domain does it.
    Proposed(Finding),
    /// The resync proposes something, and the domain does not do it.
    Refused {
        /// What.
        finding: Finding,
        /// Why not.
        refusal: Refusal,
    },
    /// A pod that is wanted and not there starts, and its storage manager registers.
    Starts {
        /// The pod.
        pod: String,
        /// What it gets.
        gets: Gets,
    },
}

/// Which archive a storage manager gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gets {
    /// The archive on its claim, which continues.
    Kept(ArchiveId),
    /// The one on its claim, which was removed.
    Resurrected(ArchiveId),
    /// A new one, on a new claim; of those on a claim of the same name nothing is left.
    New {
        /// The archives that are purged for it.
        purged: Vec<ArchiveId>,
    },
    /// The domain knows of no archive on its claim: the volume says which one it holds.
    WhatTheVolumeSays {
        /// The claim.
        claim: String,
    },
    /// It cannot start while its claim is being deleted.
    NothingYet {
        /// The claim.
        claim: String,
    },
    /// It is not known which database it would serve.
    NoDatabase {
        /// The StatefulSet.
        stateful_set: String,
    },
    /// The domain would not have it.
    Refused(Refusal),
}

/// Something to know beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The workload wants that many already.
    AlreadySo {
        /// The workload, as `kubectl` names it.
        target: String,
        /// How many.
        replicas: u32,
    },
    /// The StatefulSet is of admin servers. Who votes is Raft's: [`WhatIf::tell_of_voters`] puts what comes of it here.
    AdminServers(Scaling),
    /// What comes of it for the voters.
    Voters(Comes),
    /// The StatefulSet has no claim template of archives.
    NoArchives(String),
    /// A Deployment's pods have no archive.
    Deployment {
        /// Its name.
        name: String,
        /// Whether it would have fewer.
        fewer: bool,
    },
    /// A claim that is deleted stays while a pod uses it.
    ClaimInUse {
        /// The claim.
        claim: String,
        /// The pod.
        pod: String,
        /// The archive on it.
        archive: Option<ArchiveId>,
    },
    /// No archive is on a claim that is deleted.
    ClaimWithoutArchive(String),
    /// A StatefulSet deletes the claims of the pods that it is scaled down by.
    ClaimDeletedByScaling {
        /// The claim.
        claim: String,
        /// The StatefulSet.
        stateful_set: String,
    },
    /// A pod that is deleted is made again.
    MadeAgain {
        /// The pod.
        pod: String,
        /// The kind and name of its owner.
        owner: String,
    },
    /// A pod that is deleted is not made again.
    NotMadeAgain(String),
    /// An archive that is removed can come back.
    CanComeBack {
        /// The archive.
        archive: ArchiveId,
        /// Its claim, which stays.
        claim: Claim,
    },
    /// An archive that is removed will be purged when its claim, which is being deleted, is gone.
    PurgedLater {
        /// The archive.
        archive: ArchiveId,
        /// Its claim.
        claim: String,
    },
}

impl WhatIf {
    /// Tells what comes of it for the voters where `own`, the StatefulSet of this domain's admin servers, is scaled.
    /// `halves` are the voter sets of the last membership, `servers` each server's log of today; `spread`: whether several clusters
    /// share the domain.
    #[must_use]
    pub fn tell_of_voters(
        mut self,
        own: &str,
        halves: &[BTreeSet<RaftId>],
        servers: &BTreeMap<ServerId, RaftId>,
        spread: bool,
    ) -> Self {
        let told = |note: Note| match note {
            Note::AdminServers(scaling) if scaling.stateful_set == own => {
                scaled(&scaling, halves, servers, spread).into_iter().map(Note::Voters).collect()
            }
            other => vec![other],
        };
        self.notes = self.notes.into_iter().flat_map(told).collect();
        self
    }
}

impl Step {
    /// Whether it takes something out of the domain that people would miss.
    pub fn removes(&self) -> bool {
        match self {
            Self::Proposed(finding) => finding.removes(),
            Self::Starts { gets: Gets::New { purged }, .. } => !purged.is_empty(),
            Self::Exits { .. } | Self::Refused { .. } | Self::Starts { .. } => false,
        }
    }

    /// What it is about: an archive or process of the domain, or a pod.
    pub fn subject(&self) -> String {
        match self {
            Self::Exits { process, .. } => Subject::Process(*process).to_string(),
            Self::Proposed(finding) | Self::Refused { finding, .. } => finding.subject.to_string(),
            Self::Starts { pod, .. } => format!("pod/{pod}"),
        }
    }
}

/// Without its subject.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exits { pod, .. } => write!(f, "exits with its pod {pod}"),
            Self::Proposed(finding) => f.write_str(&finding.text),
            Self::Refused { finding, refusal } => write!(f, "{}: refused: {refusal}", finding.text),
            Self::Starts { gets, .. } => gets.fmt(f),
        }
    }
}

impl fmt::Display for Gets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(archive) => write!(f, "archive {archive} continues when it starts"),
            Self::Resurrected(archive) => write!(f, "archive {archive} is resurrected when it starts"),
            Self::New { purged } => {
                f.write_str("a new archive is created when it starts")?;
                for archive in purged {
                    write!(f, "; archive {archive} is removed and purged: its claim was replaced by an empty one")?;
                }
                Ok(())
            }
            Self::WhatTheVolumeSays { claim } => write!(
                f,
                "no archive is known on its claim {claim}: the volume says which one it gets when it starts, a new one if it is empty"
            ),
            Self::NothingYet { claim } => write!(f, "does not start before its claim {claim} is deleted and recreated"),
            Self::NoDatabase { stateful_set } => {
                write!(f, "statefulset {stateful_set} has no label 'database' and no archive: what starts is unknown")
            }
            Self::Refused(refusal) => write!(f, "the registration of its storage manager is refused: {refusal}"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadySo { target, replicas } => write!(f, "{target} wants {replicas} already"),
            Self::AdminServers(scaling) => write!(
                f,
                "statefulset {} has other admin servers than this domain: which of them would vote is unknown here",
                scaling.stateful_set
            ),
            Self::Voters(comes) => comes.fmt(f),
            Self::NoArchives(name) => write!(f, "statefulset {name} has no claim template for archives"),
            Self::Deployment { name, fewer: true } => write!(
                f,
                "deployment {name} chooses which of its pods go; their processes exit and leave tombstones, and they have no archives"
            ),
            Self::Deployment { name, fewer: false } => {
                write!(f, "deployment {name} starts more processes, without archives")
            }
            Self::ClaimInUse { claim, pod, archive } => {
                write!(f, "claim {claim} stays, Terminating, while pod {pod} uses it")?;
                match archive {
                    Some(archive) => {
                        write!(f, "; when the pod goes, the claim goes, and archive {archive} is removed and purged")
                    }
                    None => Ok(()),
                }
            }
            Self::ClaimWithoutArchive(claim) => write!(f, "no archive of this domain is on claim {claim}"),
            Self::ClaimDeletedByScaling { claim, stateful_set } => {
                write!(f, "statefulset {stateful_set} deletes claim {claim} itself (whenScaled: Delete)")
            }
            Self::MadeAgain { pod, owner } => {
                write!(f, "pod {pod} is deleted; it is for its owner {owner} to make another")
            }
            Self::NotMadeAgain(pod) => write!(f, "pod {pod} is deleted and not recreated"),
            Self::CanComeBack { archive, claim } => {
                let pod = claim.owner.as_ref().map_or("its pod".to_owned(), ToString::to_string);
                write!(f, "claim {} stays: archive {archive} is resurrected when {pod} is wanted again", claim.name)
            }
            Self::PurgedLater { archive, claim } => {
                write!(f, "claim {claim} is being deleted: once it is gone, archive {archive} is purged")
            }
        }
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Happening { step, anyway } in &self.steps {
            let what = if step.removes() { "take" } else { "then" };
            writeln!(f, "{what}    {}: {step}{}", step.subject(), if *anyway { " (anyway)" } else { "" })?;
        }
        for note in &self.notes {
            writeln!(f, "note    {note}")?;
        }
        for waiting in &self.waiting {
            writeln!(f, "wait    {}: {}", waiting.subject, waiting.reason)?;
        }
        Ok(())
    }
}
