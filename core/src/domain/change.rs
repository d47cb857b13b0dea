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
mod adopt_data;
mod advance_task;
mod anchor_cluster;
mod annotate_load_balancer;
mod begin_resync;
mod begin_task;
mod cancel_task;
mod change_sync_set;
mod configure_database;
mod confirm_running;
mod confirm_start;
mod create_archive;
mod create_database;
mod delete_database;
mod discard_data;
mod drop_database;
mod evict_process;
mod fail_task;
mod forget_archive;
mod forget_cluster;
mod forget_server;
mod found_domain;
mod give_up_archive;
mod grant_primary;
mod guard;
mod initialize_database;
mod judge_database;
mod learn_container;
mod learn_owner;
mod lose_session;
mod note_claim_gone;
mod note_replication;
mod note_voters;
mod overwrite_archive;
mod pause_resync;
mod purge_archive;
mod register_process;
mod remove_archive;
mod remove_load_balancer;
mod remove_process;
mod remove_server;
mod report_data;
mod report_exit;
mod report_handicap;
mod report_history;
mod report_primary;
mod report_silence;
mod report_state;
mod request_switchover;
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
pub use adopt_data::AdoptData;
pub use advance_task::AdvanceTask;
pub use anchor_cluster::AnchorCluster;
pub use annotate_load_balancer::AnnotateLoadBalancer;
pub use begin_resync::BeginResync;
pub use begin_task::BeginTask;
pub use cancel_task::CancelTask;
pub use change_sync_set::{ChangeSyncSet, SetChange};
pub use configure_database::ConfigureDatabase;
pub use confirm_running::ConfirmRunning;
pub use confirm_start::ConfirmStart;
pub use create_archive::CreateArchive;
pub use create_database::CreateDatabase;
pub use delete_database::DeleteDatabase;
pub use discard_data::DiscardData;
pub use drop_database::DropDatabase;
pub use evict_process::EvictProcess;
pub use fail_task::FailTask;
pub use forget_archive::ForgetArchive;
pub use forget_cluster::ForgetCluster;
pub use forget_server::ForgetServer;
pub use found_domain::FoundDomain;
pub use give_up_archive::GiveUpArchive;
pub use grant_primary::{GrantPrimary, GrantReason};
pub use initialize_database::InitializeDatabase;
pub use judge_database::JudgeDatabase;
pub use learn_container::LearnContainer;
pub use learn_owner::LearnOwner;
pub use lose_session::LoseSession;
pub use note_claim_gone::NoteClaimGone;
pub use note_replication::NoteReplication;
pub use note_voters::NoteVoters;
pub use overwrite_archive::{Overwrite, OverwriteArchive};
pub use pause_resync::PauseResync;
pub use purge_archive::PurgeArchive;
pub use register_process::Lesson;
pub use remove_archive::RemoveArchive;
pub use remove_load_balancer::{RemoveLoadBalancer, Unset};
pub use remove_process::RemoveProcess;
pub use remove_server::RemoveServer;
pub use report_data::ReportData;
pub use report_exit::ReportExit;
pub use report_handicap::ReportHandicap;
pub use report_history::ReportHistory;
pub use report_primary::{Progress, ReportPrimary};
pub use report_silence::ReportSilence;
pub use report_state::ReportState;
pub use request_switchover::{Asked, RequestSwitchover};
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
    /// Takes the data of an archive for that of its database, by an operator's command.
    AdoptData(AdoptData),
    /// Changes the sync set of a database with one primary.
    ChangeSyncSet(ChangeSyncSet),
    /// Makes an archive of the sync set the primary's.
    GrantPrimary(GrantPrimary),
    /// Has one archive make the first data of its database.
    InitializeDatabase(InitializeDatabase),
    /// Notes what the StatefulSet of a database with one primary asks for.
    NoteReplication(NoteReplication),
    /// Permits that the data of an archive is replaced, or notes that it is whole again.
    OverwriteArchive(OverwriteArchive),
    /// Notes what is on the volume of an engine whose database has one primary.
    ReportData(ReportData),
    /// Notes how far the server of a primary has come.
    ReportPrimary(ReportPrimary),
    /// Requests a switchover, or takes back the request.
    RequestSwitchover(RequestSwitchover),
    /// Notes that the volume of a server remembers its start.
    ConfirmStart(ConfirmStart),
    /// Lets the data of an archive be overwritten, by an operator's command.
    DiscardData(DiscardData),
    /// Notes that the server of a standby does not hear its primary, or hears it again.
    ReportSilence(ReportSilence),
    /// Notes what speaks against a server as the next primary.
    ReportHandicap(ReportHandicap),
}

/// The same for the change of each command. The last one carries nothing.
macro_rules! of_each {
    ($command:expr, $change:ident => $do:expr, $resume:expr) => {
        match $command {
            Self::FoundDomain($change) => $do,
            Self::AdmitServer($change) => $do,
            Self::BeginResync($change) => $do,
            Self::RegisterProcess($change) => $do,
            Self::LoseSession($change) => $do,
            Self::ReportState($change) => $do,
            Self::ConfirmRunning($change) => $do,
            Self::ReportHistory($change) => $do,
            Self::LearnContainer($change) => $do,
            Self::ReportExit($change) => $do,
            Self::RemoveProcess($change) => $do,
            Self::RemoveArchive($change) => $do,
            Self::PurgeArchive($change) => $do,
            Self::NoteClaimGone($change) => $do,
            Self::DeleteDatabase($change) => $do,
            Self::RemoveServer($change) => $do,
            Self::PauseResync($change) => $do,
            Self::AdoptAnchor($change) => $do,
            Self::AcceptLoss($change) => $do,
            Self::NoteVoters($change) => $do,
            Self::RestoreDomain($change) => $do,
            Self::SetValue($change) => $do,
            Self::StopProcess($change) => $do,
            Self::GiveUpArchive($change) => $do,
            Self::ForgetArchive($change) => $do,
            Self::ForgetServer($change) => $do,
            Self::LearnOwner($change) => $do,
            Self::EvictProcess($change) => $do,
            Self::CreateDatabase($change) => $do,
            Self::ConfigureDatabase($change) => $do,
            Self::DropDatabase($change) => $do,
            Self::CreateArchive($change) => $do,
            Self::ResurrectArchive($change) => $do,
            Self::SetLoadBalancer($change) => $do,
            Self::AnnotateLoadBalancer($change) => $do,
            Self::RemoveLoadBalancer($change) => $do,
            Self::BeginTask($change) => $do,
            Self::AdvanceTask($change) => $do,
            Self::FailTask($change) => $do,
            Self::CancelTask($change) => $do,
            Self::UpgradeDatabase($change) => $do,
            Self::AnchorCluster($change) => $do,
            Self::JudgeDatabase($change) => $do,
            Self::ForgetCluster($change) => $do,
            Self::AdoptData($change) => $do,
            Self::ChangeSyncSet($change) => $do,
            Self::GrantPrimary($change) => $do,
            Self::InitializeDatabase($change) => $do,
            Self::NoteReplication($change) => $do,
            Self::OverwriteArchive($change) => $do,
            Self::ReportData($change) => $do,
            Self::ReportPrimary($change) => $do,
            Self::RequestSwitchover($change) => $do,
            Self::DiscardData($change) => $do,
            Self::ConfirmStart($change) => $do,
            Self::ReportSilence($change) => $do,
            Self::ReportHandicap($change) => $do,
            Self::ResumeResync => $resume,
        }
    };
}

impl<T: Change> Change for Box<T> {
    fn since(&self) -> Version {
        (**self).since()
    }

    fn planned(&self) -> Option<&dyn Planned> {
        (**self).planned()
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        (**self).fit(bounds)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        (*self).apply(domain, actor)
    }
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
        of_each!(self, change => change, &ResumeResync)
    }

    /// Cuts what has to go in, and says what of the rest does not fit. What is already there is not counted.
    pub(super) fn fit(&mut self, bounds: &Bounds) -> Fits {
        of_each!(self, change => change.fit(bounds), ResumeResync.fit(bounds))
    }

    /// Carries it out, or says why not; then nothing has changed.
    pub(super) fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        of_each!(self, change => change.apply(domain, actor), ResumeResync.apply(domain, actor))
    }
}

#[cfg(test)]
mod tests;
