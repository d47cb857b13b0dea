//! What can be asked of the domain: one file for each change, with what it carries, what it expects to find, what proves it, and
//! what it does.
//!
//! Every change names what it expects to find; one that finds something else is refused and says why, and one that finds its
//! work done changes nothing. Each checks first who proposes.
//!
//! Every later version reads what is written here from its logs. A field that is not known makes the whole entry unknown: two servers
//! that read different things from one entry would no longer be the same.

mod accept_loss;
mod admit_server;
mod adopt_anchor;
mod advance_task;
mod anchor_cluster;
mod annotate_load_balancer;
mod begin_resync;
mod begin_task;
mod cancel_task;
mod configure_database;
mod confirm_running;
mod create_archive;
mod create_database;
mod delete_database;
mod drop_database;
mod evict_process;
mod fail_task;
mod forget_archive;
mod forget_cluster;
mod forget_server;
mod found_domain;
mod give_up_archive;
mod guard;
mod judge_database;
mod learn_container;
mod learn_owner;
mod lose_session;
mod note_claim_gone;
mod note_voters;
mod pause_resync;
mod purge_archive;
mod register_process;
mod remove_archive;
mod remove_load_balancer;
mod remove_process;
mod remove_server;
mod report_exit;
mod report_history;
mod report_state;
mod restore_domain;
mod resume_resync;
mod resurrect_archive;
mod set_load_balancer;
mod set_value;
mod stop_process;
mod upgrade_database;

pub use accept_loss::AcceptLoss;
pub use admit_server::AdmitServer;
pub use adopt_anchor::AdoptAnchor;
pub use advance_task::AdvanceTask;
pub use anchor_cluster::AnchorCluster;
pub use annotate_load_balancer::AnnotateLoadBalancer;
pub use begin_resync::BeginResync;
pub use begin_task::BeginTask;
pub use cancel_task::CancelTask;
pub use configure_database::ConfigureDatabase;
pub use confirm_running::ConfirmRunning;
pub use create_archive::CreateArchive;
pub use create_database::CreateDatabase;
pub use delete_database::DeleteDatabase;
pub use drop_database::DropDatabase;
pub use evict_process::EvictProcess;
pub use fail_task::FailTask;
pub use forget_archive::ForgetArchive;
pub use forget_cluster::ForgetCluster;
pub use forget_server::ForgetServer;
pub use found_domain::FoundDomain;
pub use give_up_archive::GiveUpArchive;
pub use judge_database::JudgeDatabase;
pub use learn_container::LearnContainer;
pub use learn_owner::LearnOwner;
pub use lose_session::LoseSession;
pub use note_claim_gone::NoteClaimGone;
pub use note_voters::NoteVoters;
pub use pause_resync::PauseResync;
pub use purge_archive::PurgeArchive;
pub use register_process::Lesson;
pub use remove_archive::RemoveArchive;
pub use remove_load_balancer::{RemoveLoadBalancer, Unset};
pub use remove_process::RemoveProcess;
pub use remove_server::RemoveServer;
pub use report_exit::ReportExit;
pub use report_history::ReportHistory;
pub use report_state::ReportState;
pub use resume_resync::ResumeResync;
pub use resurrect_archive::ResurrectArchive;
pub use set_load_balancer::SetLoadBalancer;
pub use set_value::SetValue;
pub use stop_process::StopProcess;
pub use upgrade_database::UpgradeDatabase;

use super::bounds::{Bounds, Fits};
use super::command::{Actor, Fence};
use super::evidence::{Evidence, Fact, Need};
use super::outcome::Refusal;
use super::process::Registration;
use super::snapshot::Restore;
use super::version::Version;
use super::{Applied, Domain};
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};

/// A change of the domain.
trait Change {
    /// The first version that understands it.
    fn since(&self) -> Version {
        Version(0, 1, 0)
    }

    /// What the resync has to know of it, if the resync plans it.
    fn planned(&self) -> Option<&dyn Planned> {
        None
    }

    /// Cuts what has to go in, and says what of the rest does not fit.
    fn fit(&mut self, bounds: &Bounds) -> Fits;

    /// Carries it out, or says why not; then nothing has changed.
    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied
    where
        Self: Sized;
}

/// A change that the resync plans. The plan, the confirmation by fresh reads and `apply` ask the same check.
pub trait Planned {
    /// What has to be read afresh for it.
    fn reads(&self, domain: &Domain) -> Vec<Need>;

    /// Whether what it expects is so and what was read proves it. The fence comes first.
    fn check(&self, domain: &Domain) -> Result<Work, Refusal>;

    /// What it does, in the words of `kaa plan`.
    fn text(&self, domain: &Domain) -> String;

    /// The same change, bound to its resync leader and to what was read.
    fn bound(&self, fence: Fence, evidence: Evidence) -> Command;

    /// Whether something is gone after it, so that a pause holds it back.
    fn removes(&self) -> bool {
        true
    }

    /// Whether it keeps what was read as its evidence.
    fn keeps(&self, fact: &Fact) -> bool {
        !matches!(
            fact,
            Fact::PodOwnedBy { .. } | Fact::PurgeHeld { .. } | Fact::WorkloadPaused { .. } | Fact::SyncsFully { .. }
        )
    }
}

/// Whether there is anything left to do for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// There is.
    ToDo,
    /// It was done before.
    Done,
}

/// What can be asked of the domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
#[serde(deny_unknown_fields)]
#[strum(serialize_all = "snake_case")]
pub enum Command {
    /// Begins the domain; its first entry.
    FoundDomain(FoundDomain),
    /// Makes a server known, or refreshes what it said of itself.
    AdmitServer(AdmitServer),
    /// Opens a resync epoch.
    BeginResync(BeginResync),
    /// Makes an engine known, or resumes its session. Creates its database and archive where they are missing.
    RegisterProcess(Box<Registration>),
    /// Notes that a session is down.
    LoseSession(LoseSession),
    /// Notes what an engine says of itself.
    ReportState(ReportState),
    /// Notes that a storage manager's engine, asked after an entry of the log, still ran with all data of its database.
    ConfirmRunning(ConfirmRunning),
    /// Notes how new a storage manager's data is: the higher, the newer.
    ReportHistory(ReportHistory),
    /// Notes which container a process is.
    LearnContainer(LearnContainer),
    /// Notes that an engine has exited, by its wrapper's word.
    ReportExit(ReportExit),
    /// Removes a process whose pod or container is gone.
    RemoveProcess(RemoveProcess),
    /// Removes an archive; it can be resurrected.
    RemoveArchive(RemoveArchive),
    /// Purges a removed archive.
    PurgeArchive(PurgeArchive),
    /// Notes since when the claim of a removed archive is gone, where its removal had another reason: it is not purged at
    /// once.
    NoteClaimGone(NoteClaimGone),
    /// Deletes a database that has no archive left and that nothing wants.
    DeleteDatabase(DeleteDatabase),
    /// Removes a server for good: its StatefulSet does not want it, and its volume was deleted.
    RemoveServer(RemoveServer),
    /// Pauses all removals by the resync until `ResumeResync`.
    PauseResync(PauseResync),
    /// Ends a pause.
    ResumeResync,
    /// Takes another Kubernetes for the one that the domain was founded in.
    AdoptAnchor(AdoptAnchor),
    /// Notes that an operator gave up what only others may have held, so that this epoch was founded.
    AcceptLoss(AcceptLoss),
    /// Notes who votes, and how many servers the StatefulSet wanted when that was seen, if it was known.
    NoteVoters(NoteVoters),
    /// Brings the databases, archives and values of another domain into one in which nothing has happened yet.
    RestoreDomain(Box<Restore>),
    /// Sets or deletes a value.
    SetValue(SetValue),
    /// Asks a process to end. Whichever agent has its session passes it on, now or when there is one.
    StopProcess(StopProcess),
    /// Removes an archive by an operator's command: no cold start waits for its data any more.
    GiveUpArchive(GiveUpArchive),
    /// Purges a removed archive by an operator's command.
    ForgetArchive(ForgetArchive),
    /// Removes an admin server by an operator's command.
    ForgetServer(ForgetServer),
    /// Notes which StatefulSet owns the pod that mounts the claim of an archive.
    LearnOwner(LearnOwner),
    /// Evicts a process by an operator's command, whether it has ended or not. If it still speaks, it is told to end.
    EvictProcess(EvictProcess),
    /// Creates a database by an operator's command.
    CreateDatabase(CreateDatabase),
    /// Sets the options of a database.
    ConfigureDatabase(ConfigureDatabase),
    /// Deletes a database by an operator's command: nothing is left of it that holds data.
    DropDatabase(DropDatabase),
    /// Creates an archive by an operator's command, without a claim.
    CreateArchive(CreateArchive),
    /// Makes a removed archive count again by an operator's command.
    ResurrectArchive(ResurrectArchive),
    /// Sets or removes load-balancer entries by an operator's command.
    SetLoadBalancer(SetLoadBalancer),
    /// Sets a load-balancer entry to what an annotation says.
    AnnotateLoadBalancer(AnnotateLoadBalancer),
    /// Removes what an annotation had set for load balancing, or, where one says so, what an operator has set.
    RemoveLoadBalancer(RemoveLoadBalancer),
    /// Begins a task.
    BeginTask(Box<BeginTask>),
    /// Does a step of a task.
    AdvanceTask(AdvanceTask),
    /// Gives up a task of which no step is done.
    FailTask(FailTask),
    /// Cancels a task by an operator's command.
    CancelTask(CancelTask),
    /// Raises the protocol version of a database by an operator's command.
    UpgradeDatabase(UpgradeDatabase),
    /// Makes the anchor of another cluster known.
    AnchorCluster(AnchorCluster),
    /// Notes what a cluster's resync leader finds of a database there, for those of the other clusters.
    JudgeDatabase(JudgeDatabase),
    /// Drops a cluster that is lost for good, by an operator's command.
    ForgetCluster(ForgetCluster),
}

impl Command {
    /// The name of each.
    pub const NAMES: &'static [&'static str] = <Self as VariantNames>::VARIANTS;

    /// Its name, as metrics and logs have it.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The first version that understands it.
    pub fn since(&self) -> Version {
        self.change().since()
    }

    /// What the resync has to know of it, if the resync plans it.
    pub fn planned(&self) -> Option<&dyn Planned> {
        self.change().planned()
    }

    fn change(&self) -> &dyn Change {
        match self {
            Self::FoundDomain(change) => change,
            Self::AdmitServer(change) => change,
            Self::BeginResync(change) => change,
            Self::RegisterProcess(change) => &**change,
            Self::LoseSession(change) => change,
            Self::ReportState(change) => change,
            Self::ConfirmRunning(change) => change,
            Self::ReportHistory(change) => change,
            Self::LearnContainer(change) => change,
            Self::ReportExit(change) => change,
            Self::RemoveProcess(change) => change,
            Self::RemoveArchive(change) => change,
            Self::PurgeArchive(change) => change,
            Self::NoteClaimGone(change) => change,
            Self::DeleteDatabase(change) => change,
            Self::RemoveServer(change) => change,
            Self::PauseResync(change) => change,
            Self::ResumeResync => &ResumeResync,
            Self::AdoptAnchor(change) => change,
            Self::AcceptLoss(change) => change,
            Self::NoteVoters(change) => change,
            Self::RestoreDomain(change) => &**change,
            Self::SetValue(change) => change,
            Self::StopProcess(change) => change,
            Self::GiveUpArchive(change) => change,
            Self::ForgetArchive(change) => change,
            Self::ForgetServer(change) => change,
            Self::LearnOwner(change) => change,
            Self::EvictProcess(change) => change,
            Self::CreateDatabase(change) => change,
            Self::ConfigureDatabase(change) => change,
            Self::DropDatabase(change) => change,
            Self::CreateArchive(change) => change,
            Self::ResurrectArchive(change) => change,
            Self::SetLoadBalancer(change) => change,
            Self::AnnotateLoadBalancer(change) => change,
            Self::RemoveLoadBalancer(change) => change,
            Self::BeginTask(change) => &**change,
            Self::AdvanceTask(change) => change,
            Self::FailTask(change) => change,
            Self::CancelTask(change) => change,
            Self::UpgradeDatabase(change) => change,
            Self::AnchorCluster(change) => change,
            Self::JudgeDatabase(change) => change,
            Self::ForgetCluster(change) => change,
        }
    }

    /// Cuts what has to go in, and says what of the rest does not fit. What is already there is not counted.
    pub(super) fn fit(&mut self, bounds: &Bounds) -> Fits {
        match self {
            Self::FoundDomain(change) => change.fit(bounds),
            Self::AdmitServer(change) => change.fit(bounds),
            Self::BeginResync(change) => change.fit(bounds),
            Self::RegisterProcess(change) => change.fit(bounds),
            Self::LoseSession(change) => change.fit(bounds),
            Self::ReportState(change) => change.fit(bounds),
            Self::ConfirmRunning(change) => change.fit(bounds),
            Self::ReportHistory(change) => change.fit(bounds),
            Self::LearnContainer(change) => change.fit(bounds),
            Self::ReportExit(change) => change.fit(bounds),
            Self::RemoveProcess(change) => change.fit(bounds),
            Self::RemoveArchive(change) => change.fit(bounds),
            Self::PurgeArchive(change) => change.fit(bounds),
            Self::NoteClaimGone(change) => change.fit(bounds),
            Self::DeleteDatabase(change) => change.fit(bounds),
            Self::RemoveServer(change) => change.fit(bounds),
            Self::PauseResync(change) => change.fit(bounds),
            Self::ResumeResync => ResumeResync.fit(bounds),
            Self::AdoptAnchor(change) => change.fit(bounds),
            Self::AcceptLoss(change) => change.fit(bounds),
            Self::NoteVoters(change) => change.fit(bounds),
            Self::RestoreDomain(change) => change.fit(bounds),
            Self::SetValue(change) => change.fit(bounds),
            Self::StopProcess(change) => change.fit(bounds),
            Self::GiveUpArchive(change) => change.fit(bounds),
            Self::ForgetArchive(change) => change.fit(bounds),
            Self::ForgetServer(change) => change.fit(bounds),
            Self::LearnOwner(change) => change.fit(bounds),
            Self::EvictProcess(change) => change.fit(bounds),
            Self::CreateDatabase(change) => change.fit(bounds),
            Self::ConfigureDatabase(change) => change.fit(bounds),
            Self::DropDatabase(change) => change.fit(bounds),
            Self::CreateArchive(change) => change.fit(bounds),
            Self::ResurrectArchive(change) => change.fit(bounds),
            Self::SetLoadBalancer(change) => change.fit(bounds),
            Self::AnnotateLoadBalancer(change) => change.fit(bounds),
            Self::RemoveLoadBalancer(change) => change.fit(bounds),
            Self::BeginTask(change) => change.fit(bounds),
            Self::AdvanceTask(change) => change.fit(bounds),
            Self::FailTask(change) => change.fit(bounds),
            Self::CancelTask(change) => change.fit(bounds),
            Self::UpgradeDatabase(change) => change.fit(bounds),
            Self::AnchorCluster(change) => change.fit(bounds),
            Self::JudgeDatabase(change) => change.fit(bounds),
            Self::ForgetCluster(change) => change.fit(bounds),
        }
    }

    /// Carries it out, or says why not; then nothing has changed.
    pub(super) fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        match self {
            Self::FoundDomain(change) => change.apply(domain, actor),
            Self::AdmitServer(change) => change.apply(domain, actor),
            Self::BeginResync(change) => change.apply(domain, actor),
            Self::RegisterProcess(change) => change.apply(domain, actor),
            Self::LoseSession(change) => change.apply(domain, actor),
            Self::ReportState(change) => change.apply(domain, actor),
            Self::ConfirmRunning(change) => change.apply(domain, actor),
            Self::ReportHistory(change) => change.apply(domain, actor),
            Self::LearnContainer(change) => change.apply(domain, actor),
            Self::ReportExit(change) => change.apply(domain, actor),
            Self::RemoveProcess(change) => change.apply(domain, actor),
            Self::RemoveArchive(change) => change.apply(domain, actor),
            Self::PurgeArchive(change) => change.apply(domain, actor),
            Self::NoteClaimGone(change) => change.apply(domain, actor),
            Self::DeleteDatabase(change) => change.apply(domain, actor),
            Self::RemoveServer(change) => change.apply(domain, actor),
            Self::PauseResync(change) => change.apply(domain, actor),
            Self::ResumeResync => ResumeResync.apply(domain, actor),
            Self::AdoptAnchor(change) => change.apply(domain, actor),
            Self::AcceptLoss(change) => change.apply(domain, actor),
            Self::NoteVoters(change) => change.apply(domain, actor),
            Self::RestoreDomain(change) => change.apply(domain, actor),
            Self::SetValue(change) => change.apply(domain, actor),
            Self::StopProcess(change) => change.apply(domain, actor),
            Self::GiveUpArchive(change) => change.apply(domain, actor),
            Self::ForgetArchive(change) => change.apply(domain, actor),
            Self::ForgetServer(change) => change.apply(domain, actor),
            Self::LearnOwner(change) => change.apply(domain, actor),
            Self::EvictProcess(change) => change.apply(domain, actor),
            Self::CreateDatabase(change) => change.apply(domain, actor),
            Self::ConfigureDatabase(change) => change.apply(domain, actor),
            Self::DropDatabase(change) => change.apply(domain, actor),
            Self::CreateArchive(change) => change.apply(domain, actor),
            Self::ResurrectArchive(change) => change.apply(domain, actor),
            Self::SetLoadBalancer(change) => change.apply(domain, actor),
            Self::AnnotateLoadBalancer(change) => change.apply(domain, actor),
            Self::RemoveLoadBalancer(change) => change.apply(domain, actor),
            Self::BeginTask(change) => change.apply(domain, actor),
            Self::AdvanceTask(change) => change.apply(domain, actor),
            Self::FailTask(change) => change.apply(domain, actor),
            Self::CancelTask(change) => change.apply(domain, actor),
            Self::UpgradeDatabase(change) => change.apply(domain, actor),
            Self::AnchorCluster(change) => change.apply(domain, actor),
            Self::JudgeDatabase(change) => change.apply(domain, actor),
            Self::ForgetCluster(change) => change.apply(domain, actor),
        }
    }
}

#[cfg(test)]
mod tests;
