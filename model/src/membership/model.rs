//! The protocol of docs/membership.md as a state machine that can be explored completely. Where its rules are:
//!
//! | rule | what decides, in kaa-core's `membership` | what is then done |
//! | --- | --- | --- |
//! | log ids name logs | | `step::start_empty` |
//! | the anchor is created if absent, and swapped | [`gate`] | [`Action::Found`] |
//! | gate; an agent that sees a newer anchor | [`gate`], [`seen`] | [`Action::Boot`], [`Action::Behind`] |
//! | messages carry domain, epoch, id | | `decide::can_talk` |
//! | founding is one transaction | [`gate`] | [`Action::Adopt`] |
//! | ordinary change, by the leader | [`step`] | [`Action::Change`], [`Action::Finish`] |
//! | override: seal, ask, swap | [`called_for`], [`may_found`] | [`Action::Seal`], [`Action::Found`] |
//! | `kaa recover` | | [`Action::Recover`], [`Action::Adopt`] |
//!
//! An action is the smallest unit that can be interrupted: all writes of one action are durable together. A request and
//! its answer are one action; a network fault is an action that is not taken. There is no time: elections, seals and
//! overrides happen at any moment. The model has no removal of servers from the domain and no snapshots.
//!
//! [`gate`]: kaa_core::membership::gate
//! [`seen`]: kaa_core::membership::seen
//! [`step`]: kaa_core::membership::change::step
//! [`called_for`]: kaa_core::membership::quorum_override::called_for
//! [`may_found`]: kaa_core::membership::quorum_override::may_found

use super::rules::Rules;
use super::state::{Broken, State};
use stateright::{Model, Property};

/// The rules, the initial state, and the bounds of an exploration.
#[derive(Clone)]
pub struct Protocol {
    pub rules: Rules,
    pub init: State,
    /// The values that `replicas` may take.
    pub scales: &'static [u8],
    /// The maximum number of elections in one epoch.
    pub max_term: u8,
    pub max_epoch: u8,
    /// The maximum number of entries in one log.
    pub max_log: u8,
    /// Whether to search for states too from which the domain cannot make progress.
    pub liveness: bool,
}

/// Everything that can happen. Ordinals identify servers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// `kubectl scale`.
    Scale(u8),
    /// The kubelet stops a pod whose ordinal is no longer wanted. If this is never taken, the pod was force-deleted and
    /// still runs.
    Kill(u8),
    /// A pod ends for another reason; another pod takes its volume.
    Crash(u8),
    /// The container restarts in its pod, and does not pass the gate again.
    Restart(u8),
    /// The claim of a pod that is down is deleted, and with it the volume.
    Wipe(u8),
    /// A pod starts. With the flag, its read of the anchor is stale.
    Boot(u8, bool),
    /// A pod starts while the API is away (with `quorum_boot` only).
    BootBlind(u8),
    /// A running agent sees that the anchor is newer than its log.
    Behind(u8),
    /// These servers, bits by ordinal, elect a server.
    Elect(u8, u16),
    /// The first server replicates its log to the second.
    Push(u8, u8),
    Commit(u8),
    /// The leader appends a client's entry.
    Propose(u8),
    /// The leader that sees these `replicas` begins a change of the voters.
    Change(u8, u8),
    /// The leader finishes a change: forward, or back (without `forward`).
    Finish(u8, bool),
    Seal(u8),
    /// A server creates the anchor, or swaps it to the next epoch, as the founder.
    Found(u8),
    /// An operator runs `kaa recover --accept-data-loss` there.
    Recover(u8),
    /// The founder writes the epoch, and a membership with only itself.
    Adopt(u8),
    /// The write of the membership, if it is separate (without `one_write`).
    Inject(u8),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.init.clone()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.observer.is_content() {
            actions.extend(self.possible(s));
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        self.step(s, action)
    }

    fn within_boundary(&self, s: &State) -> bool {
        let small = |node: &super::state::Node| node.log.len() <= self.max_log && node.term & 15 <= self.max_term;
        s.anchor.epoch <= self.max_epoch && s.nodes.iter().all(small)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always("S1 one entry per position", |_, s| !s.observer.has_seen(Broken::OnePosition)),
            Property::<Self>::always("S2 acknowledged is kept", |_, s| !s.observer.has_seen(Broken::AcknowledgedKept)),
            Property::<Self>::always("S3 one side commits", |_, s| !s.observer.has_seen(Broken::OneSide)),
            Property::<Self>::always("S4 one domain", |_, s| !s.observer.has_seen(Broken::OneDomain)),
            Property::<Self>::always("S5 wiped id never votes", |_, s| !s.observer.has_seen(Broken::DeadNeverVotes)),
        ];
        if self.liveness {
            let can = Property::<Self>::always("L can continue", |protocol, s| {
                !s.observer.is_content() || protocol.can_continue(s)
            });
            properties.push(can);
        }
        properties
    }
}
