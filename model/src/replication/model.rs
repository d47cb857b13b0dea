//! The protocol of docs/replication.md as a state machine that can be explored completely. Where its rules are:
//!
//! | rule | what decides, in kaa-core's `replication` | what is then done |
//! | --- | --- | --- |
//! | a grant | `Replication::grant` | [`Action::Grant`] |
//! | join, in force, leave | `Replication::ask_to_join`, `note_in_force`, `leave` | [`Action::Join`], [`Action::InForce`], [`Action::Leave`] |
//! | overwrite | `Replication::permit_overwrite`, `end_overwrite` | [`Action::PermitOverwrite`], [`Action::EndOverwrite`] |
//! | one promotion in a generation; older primaries | `Memory::take_up`, `follow` | [`Action::Promote`], [`Action::Follow`] |
//! | what a primary requires | `Replication::rule`, `Ruling::take`, `settle`, `report` | [`Action::Tell`], [`Action::Settle`], [`Action::InForce`] |
//! | open after the first record | | [`Action::Acknowledge`] |
//! | the number of a start | | [`Action::Start`] |
//! | the lease | `Lease::released`, `vouched`, `changes`, `holds` | [`Action::Renew`], [`Action::Tell`], [`Action::LeaseEnds`], [`Action::WaitEnds`] |
//!
//! An action is atomic; what takes time is several actions. A process that is paused or cut off takes no action for a while.
//! There is no time: the domain's commands are proposed at any moment, by any agent; `lease.rs` says what that means for a lease.
//! Readers read everywhere and always: what they can see counts as read at once.

use super::rules::Rules;
use super::state::{Broken, Set, State};
use stateright::{Model, Property};

/// The rules, the initial state, and the bounds of an exploration.
#[derive(Clone)]
pub struct Protocol {
    pub rules: Rules,
    pub init: State,
    pub servers: u8,
    pub max_generation: u8,
    pub max_log: u8,
    pub max_version: u8,
    /// So many archives, the primary's among them, must hold a commit before it is acknowledged. 1: degrade, 2: block.
    pub least: u8,
    /// A grant may keep any part of the sync set; off: all of it, or the winner alone.
    pub any_part: bool,
    /// The sync set may change.
    pub changes: bool,
    /// Whether to look also at what the proof rests on: the sync set holds what counts. Without it, a mutation has to break
    /// what a client sees.
    pub inner: bool,
    /// Whether primaries keep leases; off: clients are always let in at an open primary.
    pub lease: bool,
    /// Whether to search for states too from which the database cannot continue.
    pub liveness: bool,
}

/// What can happen. Numbers are those of servers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A client's write at an open primary.
    Write(u8),
    /// A standby takes an entry, and flushes it.
    Ship(u8),
    /// The primary hears how far a standby has flushed.
    Reply(u8, u8),
    /// A primary acknowledges what the rule allows; with the flag, by the rule before the one that is coming.
    Acknowledge(u8, bool),
    /// The domain grants the next generation to a server, with this sync set.
    Grant(u8, Set),
    Promote(u8),
    Follow(u8),
    /// The primary learns the version of the record.
    Tell(u8),
    /// No part of its engine obeys the older rule any more.
    Settle(u8),
    InForce(u8),
    Join(u8),
    /// Of an archive.
    Leave(u8),
    /// A primary stops to wait for a standby without the domain (without `leave_first` only).
    Drop(u8, u8),
    Crash(u8),
    Start(u8),
    Wipe(u8),
    PermitOverwrite(u8),
    BeginOverwrite(u8),
    FinishOverwrite(u8),
    EndOverwrite(u8),
    /// A message is sent that arrives later.
    LateInForce(u8),
    LateReturned(u8),
    LatePermitted(u8),
    LatePromote(u8),
    LateFollow(u8),
    LateTell(u8),
    Arrive,
    Snapshot(u8),
    SetBack(u8),
    /// A primary begins an own commit.
    Begin(u8),
    /// A standby flushes the record of its primary's own commit.
    Flush(u8),
    /// A primary asks the domain whether its generation is the current one.
    Ask(u8),
    /// A primary learns that its own commit was released, or gets the domain's word.
    Renew(u8),
    LeaseEnds(u8),
    /// A primary whose lease is over lets no client in any more, and ends their sessions.
    Close(u8),
    /// A winner has waited for as long as it has to.
    WaitEnds(u8),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.init.canonical(self.servers.into()).0]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.broken == Broken::Nothing {
            self.possible(s, actions);
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        self.step(s, action).map(|next| next.canonical(self.servers.into()).0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always("S1 acknowledged is kept", |_, s| s.broken != Broken::AcknowledgedKept),
            Property::<Self>::always("S2 none acknowledges what a newer generation lacks", |_, s| {
                s.broken != Broken::OlderBehindNewer
            }),
            Property::<Self>::always("S3 one primary in a generation", |_, s| s.broken != Broken::OnePrimary),
            Property::<Self>::always("S4 read is kept", |_, s| s.broken != Broken::ReadKept),
            Property::<Self>::always("S5 the recorded set confirms", |_, s| s.broken != Broken::AllConfirmed),
            Property::<Self>::always("S6 one history is read", |_, s| s.broken != Broken::OneHistory),
            Property::<Self>::always("S7 the recorded set holds what counts", |_, s| s.broken != Broken::SetHolds),
            Property::<Self>::always("S8 no reader sees an old state", |_, s| s.broken != Broken::Stale),
        ];
        if self.liveness {
            let can = Property::<Self>::always("L can continue", |protocol, s| {
                s.broken != Broken::Nothing || protocol.can_continue(s)
            });
            properties.push(can);
        }
        properties
    }
}
