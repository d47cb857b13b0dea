//! What the REST API is fed from: the door between `http` and the modules that know Raft, peers and Kubernetes.

use super::drain::DrainAnswer;
use super::recover::RecoverAnswer;
use crate::proto::engine as wire;
use crate::proto::raft::{self, Hears, StatusReply};
use crate::raft::recovering::Wish;
use futures::future::BoxFuture;
use kaa_core::domain::Domain;
use kaa_core::domain::change::Command;
use kaa_core::domain::command::{Actor, Outcome, Refusal};
use kaa_core::domain::evidence::{Evidence, Need};
use kaa_core::domain::ids::{
    ArchiveId, ClusterName, DatabaseName, DomainId, MembershipEpoch, Millis, ResyncEpoch, ServerId, SessionNumber,
    StartId, Uid,
};
use kaa_core::domain::replicated::Position;
use kaa_core::membership::warnings::Warning;
use kaa_core::observed::Observed;
use kaa_core::replication::vitals::{Application, Connection, Expiry, Volume};
use kaa_core::replication::{Timing, Vitals};
use kaa_core::resync::plan::{Plan, Waiting, WaitingReason};
use kaa_core::resync::whatif;
use kaa_core::resync::whatif::change::Change;
use kaa_core::resync::whatif::outcome::WhatIf;
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// What the agent knows, as the API asks for it. Nothing here waits for the network except
/// [`Source::linearize`] and [`Source::write`].
pub trait Source: Send + Sync + 'static {
    /// Lets `look` see the domain as this server has applied it; called exactly once.
    fn domain(&self, look: &mut dyn FnMut(&Domain));
    /// Every agent that is known. This one is among them, and its status is read last, so that a follower under load
    /// does not look behind.
    fn peers(&self) -> Vec<Peer>;
    /// How long ago each process was heard of, where that is known: first hand, or by the peers' exchange.
    fn heard(&self) -> BTreeMap<StartId, Duration>;
    /// Waits until everything that was committed before this call is applied here. Gives up after 5 s, longer than an election takes.
    fn linearize(&self) -> BoxFuture<'_, Result<(), NoQuorum>>;
    /// Changes the domain on behalf of `actor`: waits, not for long, until the change is committed and applied here.
    fn write(&self, actor: Actor, command: Command) -> BoxFuture<'_, Result<Written, NotWritten>>;
    /// Reads the anchor afresh, and a claim by name: what cannot be read proves nothing, and is left out.
    fn read_claim(&self, claim: &str) -> BoxFuture<'_, Evidence> {
        self.read_afresh(vec![Need::Claim(claim.to_owned()), Need::Anchor])
    }
    /// Reads all of this afresh: what cannot be read proves nothing, and is left out.
    fn read_afresh(&self, needs: Vec<Need>) -> BoxFuture<'_, Evidence>;
    /// What the watches show of Kubernetes, copied. It takes its time: not for an async thread.
    fn observed(&self) -> Observed;
    /// What this agent was told, by name: nothing that is secret.
    fn settings(&self) -> BTreeMap<&'static str, String>;
    /// Reads the anchor afresh, and the workloads of a database by complete lists; the same applies.
    fn read_workloads(&self, database: &DatabaseName) -> BoxFuture<'_, Evidence>;

    /// Reads the anchor of the domain afresh; creates it, for this domain and epoch, if there is none. To be called right after
    /// [`Source::linearize`]: a server of an epoch that is over must not create it. A failure is a sentence.
    fn read_anchor(&self) -> BoxFuture<'_, Result<ReadAnchor, String>>;
    /// The domain's name, as this agent was told.
    fn name(&self) -> String;
    /// The cluster that this agent lives in.
    fn cluster(&self) -> ClusterName;
    /// The times by which this agent grants generations.
    fn timing(&self) -> Timing;
    /// The prefix of the annotations that this agent follows.
    fn annotation_prefix(&self) -> String;
    /// What may be lost if the group continues without the servers that are away, or from a retired log. Done if the operator
    /// accepts the loss. A failure is a sentence.
    fn recover(&self, wish: Wish) -> BoxFuture<'_, Result<RecoverAnswer, String>>;
    /// Waits until this server is evicted if it is scaled down, else transfers its leadership; both within a time limit. The
    /// server keeps running.
    fn drain(&self) -> BoxFuture<'_, DrainAnswer>;
    /// What the next resync pass would propose.
    fn plan(&self) -> PlanReport;
    /// What the last resync pass came to. Nothing is planned for it.
    fn resync(&self) -> ResyncReport;
    /// The voters, and what the servers wait for.
    fn membership(&self) -> MembershipReport;
    /// What would be removed if these changes were made in Kubernetes. It takes its time: not for an async thread.
    fn what_if(&self, changes: &[Change]) -> Result<WhatIf, whatif::Error>;
    /// Whether the agent lives and is ready.
    fn health(&self) -> Health;
    /// Whether the Services of a database lead to its servers.
    fn routing(&self, database: &DatabaseName) -> Routing;
    /// What is wrong with a database by what the watches show: annotations that are not followed, containers that end with an error.
    fn seen_wrong(&self, database: &DatabaseName) -> Vec<WaitingReason>;
    /// The wall time, or later: times of the domain are compared with it, which may be ahead.
    fn now(&self) -> Millis;
}

impl dyn Source {
    /// What `look` finds in the domain.
    pub fn read<T>(&self, look: impl FnOnce(&Domain) -> T) -> T {
        let (mut look, mut found) = (Some(look), None);
        self.domain(&mut |domain| found = look.take().map(|look| look(domain)));
        found.expect("a source calls `look` once")
    }
}

/// Whether the Services of a database lead to its servers, as far as the agent knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// It has not read their slices, the API server has none, or they are of a later state than it knows.
    #[default]
    Unknown,
    /// They do.
    Kept,
    /// The API server refuses that the agents write where they lead: a permission is missing, or a slice of such a name may not be.
    Refused(String),
}

/// Why a read cannot be linearizable.
#[derive(Debug, thiserror::Error)]
#[error("no quorum of the servers answers: {0}")]
pub struct NoQuorum(pub String);

/// The anchor, as it was read afresh.
#[derive(Clone, Debug)]
pub struct ReadAnchor {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// The domain that it names.
    pub domain: DomainId,
    /// What was read.
    pub evidence: Evidence,
}

/// What became of a change.
#[derive(Debug)]
pub struct Written {
    /// Where it is in the log.
    pub index: u64,
    /// What the domain answered.
    pub outcome: Outcome,
}

impl Written {
    /// The same, unless the domain has refused the change.
    ///
    /// # Errors
    /// If it has.
    pub fn accepted(self) -> Result<Self, Refusal> {
        match self.outcome {
            Outcome::Refused(refusal) => Err(refusal),
            _ => Ok(self),
        }
    }
}

/// Why it is not said that a change was made.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    /// It certainly was not.
    #[error("nothing was changed: {0}")]
    Certainly(String),
    /// It may have been, or be yet.
    #[error("it is unknown whether the change was made: {0}")]
    Perhaps(String),
    /// It was, but this server does not show it yet.
    #[error("the change was made at log index {0}, which this server has not applied in time")]
    NotHere(u64),
}

/// One agent, as this one sees it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub id: ServerId,
    /// Whether it is the agent that answers.
    pub is_local: bool,
    /// Its part in the Raft group.
    pub membership: Membership,
    /// Whether it answers now.
    pub connected: bool,
    /// How long its last answer took.
    pub latency: Option<Duration>,
    /// How long ago it last answered.
    pub last_ack: Option<Duration>,
    /// What it said then.
    pub status: Option<Status>,
}

/// A server's part in the Raft group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Votes.
    Voter,
    /// Is replicated to, and does not vote yet.
    Learner,
    /// Does not vote, since it is not wanted.
    Evicted,
}

impl std::fmt::Display for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Voter => "VOTER",
            Self::Learner => "LEARNER",
            Self::Evicted => "EVICTED",
        })
    }
}

/// The voters, and what the servers wait for.
#[derive(Clone, Debug, Default)]
pub struct MembershipReport {
    /// The membership epoch; 0 while Raft does not run.
    pub epoch: MembershipEpoch,
    /// Who votes; in a change under way, by either half.
    pub voters: Vec<ServerId>,
    /// Who is replicated to and does not vote.
    pub learners: Vec<ServerId>,
    /// What an operator should know of the voters.
    pub warnings: Vec<Warning>,
    /// What the servers wait for: first what concerns this agent or all of them, then each server.
    pub waiting: Vec<Awaits>,
}

/// One reason to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaits {
    /// As one word: of `metrics::group_waits`, or of `kaa_core::membership::standing`.
    pub code: &'static str,
    /// The server that it is about; `None` if it is this agent, or all of them.
    pub server: Option<ServerId>,
    /// In words.
    pub words: String,
}

/// What an agent said of itself.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// `host:port` of its agent-to-agent port.
    pub address: String,
    /// Where it lives.
    pub cluster: String,
    /// The membership epoch.
    pub epoch: u64,
    /// The log it holds.
    pub raft_id: u64,
    /// LEADER, FOLLOWER, CANDIDATE, LEARNER; `None` while Raft does not run.
    pub role: Option<String>,
    /// INITIALIZING, SEALED, CATCHING_UP or ACTIVE.
    pub lifecycle: String,
    /// The leader it follows.
    pub leader: Option<String>,
    /// Without the epoch's bits.
    pub term: u64,
    /// The term of its last entry.
    pub last_log_term: u64,
    /// The index of its last entry.
    pub last_log_index: u64,
    /// How far it knows the log to be committed.
    pub commit_index: u64,
    /// How far it has applied it.
    pub applied_index: u64,
    /// Its version.
    pub version: String,
    /// Whether it is in touch with a quorum.
    pub quorum: bool,
    /// The holder of the resync Lease, as it last saw it.
    pub resync_leader: Option<String>,
    /// The servers with roles whose streams it has, by process.
    pub hears: BTreeMap<StartId, Heard>,
    /// How far servers were when it last heard that, by process: also those whose streams are down.
    pub reached: BTreeMap<StartId, Reached>,
}

/// How far the log of a server was: its end at a primary, what it had replayed at a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// How far.
    pub end: Position,
    /// When, by the clock of the agent that heard it.
    pub at: Millis,
}

/// What an agent hears of a server with a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// By which session.
    pub session: SessionNumber,
    /// Why the server does not do what it was assigned, if it does not.
    pub trouble: Option<String>,
    /// How it fares; `None` if its wrapper has not said.
    pub vitals: Option<Vitals>,
}

impl From<StatusReply> for Status {
    fn from(reply: StatusReply) -> Self {
        let known = |text: String| (!text.is_empty()).then_some(text);
        Self {
            address: reply.address,
            cluster: reply.cluster,
            epoch: reply.epoch,
            raft_id: reply.raft_id,
            role: known(reply.role),
            lifecycle: reply.lifecycle,
            leader: known(reply.leader),
            term: reply.term,
            last_log_term: reply.last_log_term,
            last_log_index: reply.last_log_index,
            commit_index: reply.commit_index,
            applied_index: reply.applied_index,
            version: reply.version,
            quorum: reply.quorum,
            resync_leader: known(reply.resync_leader),
            hears: later(reply.hears.into_iter().map(heard)),
            reached: reply.reached.into_iter().map(reached).collect(),
        }
    }
}

/// By process. Of two sessions of one, the later counts: the stream of the earlier one has not ended yet.
fn later(heard: impl Iterator<Item = (StartId, Heard)>) -> BTreeMap<StartId, Heard> {
    let mut known: BTreeMap<StartId, Heard> = BTreeMap::new();
    for (process, heard) in heard {
        if known.get(&process).is_none_or(|known| known.session < heard.session) {
            known.insert(process, heard);
        }
    }
    known
}

fn heard(said: Hears) -> (StartId, Heard) {
    let trouble = (!said.trouble.is_empty()).then_some(said.trouble);
    // What cannot be read is of an agent that is newer, and unknown.
    let vitals = (!said.vitals.is_empty()).then(|| wire::Vitals::decode(said.vitals.as_slice()).ok()).flatten();
    (StartId(said.process), Heard { session: SessionNumber(said.session), trouble, vitals: vitals.map(vitals_of) })
}

fn reached(said: raft::Reached) -> (StartId, Reached) {
    (StartId(said.process), Reached { end: Position(said.end), at: Millis(said.at_ms) })
}

fn seconds(since_1970: u64) -> Millis {
    Millis(since_1970.saturating_mul(1000))
}

fn vitals_of(said: wire::Vitals) -> Vitals {
    let connection = |it: wire::Connection| Connection {
        archive: ArchiveId(it.archive),
        flushed: Position(it.flushed),
        replayed: Position(it.replayed),
        streams: it.streams,
    };
    Vitals {
        answers: said.answers,
        end: Position(said.end),
        connections: said.connections.into_iter().map(connection).collect(),
        replay_lag_ms: said.replay_lag_ms,
        volume: (said.size_bytes != 0).then_some(Volume { free: said.free_bytes, size: said.size_bytes }),
        restart_pending: said.restart_pending,
        clients: said.clients,
        oldest_xid_age: said.oldest_xid_age,
        retained_log_bytes: said.retained_log_bytes,
        overridden: said.overridden,
        prepared_for_minutes: said.prepared_for_minutes,
        cancelled_waits: said.cancelled_waits,
        closed: said.closed,
        expiry: Expiry {
            certificate: said.certificate_not_after.map(seconds),
            authority: said.authority_not_after.map(seconds),
        },
        application: said.application.map(|it| Application { user: it.user, database: it.database }),
    }
}

/// What the next resync pass would propose, and what the last one did.
#[derive(Clone, Debug, Default)]
pub struct PlanReport {
    /// Whether this agent leads the resync. If it does not, its plan is what it would propose if it did.
    pub leading: bool,
    /// Who leads it.
    pub resync_leader: Option<ServerId>,
    /// Under which epoch.
    pub epoch: Option<ResyncEpoch>,
    /// The plan.
    pub plan: Plan,
    /// Whether everything that may be listed in Kubernetes has been listed completely.
    pub synced: bool,
    /// The permissions in Kubernetes that are missing, such as `get pods`.
    pub missing_permissions: Vec<String>,
    /// The last pass of this agent, as resync leader, that had something to do.
    pub last_pass: Option<LastPass>,
}

/// What the last resync pass came to.
#[derive(Clone, Debug, Default)]
pub struct ResyncReport {
    /// Whether this agent leads the resync. If it does not, it makes no passes.
    pub leading: bool,
    /// Whether everything that may be listed in Kubernetes has been listed completely.
    pub synced: bool,
    /// How much the pass found to propose.
    pub findings: usize,
    /// What it waited for.
    pub waiting: Vec<Waiting>,
}

/// What a resync pass did.
#[derive(Clone, Debug)]
pub struct LastPass {
    /// When it ended.
    pub at: Millis,
    /// One line for each thing it did or found in its way.
    pub lines: Vec<String>,
}

/// Whether the agent lives and is ready.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// What has to hold for it not to be restarted.
    pub live: Vec<Check>,
    /// What has to hold for it to be sent requests.
    pub ready: Vec<Check>,
    /// What an operator should know although it does not make the agent unready.
    pub notes: Vec<Note>,
}

/// A fault that does not keep the agent from answering.
#[derive(Clone, Debug)]
pub struct Note {
    /// What it is about: one word.
    pub name: &'static str,
    /// What is wrong.
    pub words: String,
}

/// One thing that has to hold.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its name: one word.
    pub name: &'static str,
    /// Why it does not hold; `None` if it does.
    pub failure: Option<String>,
}
