//! The state of the model: servers with their volumes, the anchor, `replicas`, and an observer that sees everything.

use super::log::{Ids, Log, MOST_IDS};
use kaa_core::domain::ids::{DomainId, MembershipEpoch, RaftId};
use kaa_core::membership::{self, LocalLog};

/// A server: its ordinal is its place in [`State::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node {
    // On its volume.
    /// The log id.
    pub id: u8,
    /// 0: none.
    pub domain: u8,
    /// 0: none.
    pub epoch: u8,
    pub sealed: bool,
    pub term: u8,
    pub vote: u8,
    pub log: Log,
    /// The index up to which entries are applied.
    pub commit: u8,

    // In the memory of its process.
    pub up: bool,
    pub leader: bool,
    /// By log id, how much of this leader's log the other log is known to have.
    pub acked: [u8; MOST_IDS],

    // Only for mutations; always the default under the corrected rules.
    /// The epoch is written, its membership not yet (without `one_write`).
    pub inject: bool,
    /// The process remembers that it swapped the anchor (without `resume`).
    pub won: bool,
    /// `kaa recover` has seen the old pods gone (without `gone_after`).
    pub checked: bool,
    /// The earlier log ids of this server (without `by_id`).
    pub former: Ids,
}

impl Node {
    /// The contents of the volume, as kaa-core reads them.
    pub fn local(&self) -> LocalLog {
        LocalLog {
            domain: (self.domain != 0).then(|| domain_id(self.domain)),
            epoch: MembershipEpoch(self.epoch.into()),
            raft_id: RaftId(self.id.into()),
            sealed: self.sealed,
        }
    }

    /// Raft stops leading; the leader forgets what the others have.
    pub fn step_down(&mut self) {
        (self.leader, self.acked) = (false, [0; MOST_IDS]);
    }

    /// The process ends, and with it all that is not on the volume. `up`: another follows at once.
    pub fn restart(&mut self, up: bool) {
        self.step_down();
        (self.up, self.inject, self.won, self.checked) = (up, false, false, false);
    }

    pub fn seal(&mut self) {
        self.sealed = true;
        self.step_down();
    }

    /// Whether both hold logs of the same domain and epoch.
    pub fn of_the_same_epoch(&self, other: &Node) -> bool {
        self.domain == other.domain && self.epoch == other.epoch
    }
}

/// The annotated Lease. With epoch 0 it does not exist.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Anchor {
    pub domain: u8,
    pub epoch: u8,
    pub founder: u8,
    /// Only used without `one_founder`.
    pub voters: Ids,
    pub lossy: bool,
}

impl Anchor {
    /// The result of a read of the anchor.
    pub fn as_read(&self) -> Option<membership::Anchor> {
        (self.epoch > 0).then(|| membership::Anchor {
            domain: domain_id(self.domain),
            epoch: MembershipEpoch(self.epoch.into()),
            founder: RaftId(self.founder.into()),
            lossy: self.lossy,
        })
    }
}

fn domain_id(number: u8) -> DomainId {
    DomainId::new(char::from(b'a' + number))
}

/// How often each event may still happen that the protocol does not cause.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Budget {
    pub scale: u8,
    pub crash: u8,
    pub wipe: u8,
    pub recover: u8,
    pub propose: u8,
}

/// The records of an observer that sees everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Observer {
    /// Every entry acknowledged so far, less what an operator gave up.
    pub committed: Log,
    /// The highest epoch and term that committed, and the only domain that did.
    pub term: u8,
    pub epoch: u8,
    pub domain: u8,
    /// Logs whose volume was deleted.
    pub dead: Ids,
    /// The properties that the observer saw fail, as bits: see [`Broken`].
    broken: u8,
}

/// The safety properties S1 to S5.
#[derive(Clone, Copy)]
pub enum Broken {
    OnePosition,
    AcknowledgedKept,
    OneSide,
    OneDomain,
    DeadNeverVotes,
}

impl Observer {
    /// The observer of a domain in its first epoch that has acknowledged this log.
    pub fn of_a_domain(domain: u8, committed: Log, term: u8) -> Self {
        Self { committed, term, epoch: 1, domain, ..Self::default() }
    }

    pub fn saw(&mut self, broken: Broken) {
        self.broken |= 1 << broken as u8;
    }

    pub fn has_seen(&self, broken: Broken) -> bool {
        self.broken >> broken as u8 & 1 == 1
    }

    pub fn is_content(&self) -> bool {
        self.broken == 0
    }

    /// A leader commits its log up to this index.
    pub fn committed(&mut self, leader: &Node, up_to: u8) {
        if self.domain != 0 && self.domain != leader.domain {
            self.saw(Broken::OneDomain);
        }
        self.domain = leader.domain;
        let old_side = leader.epoch < self.epoch;
        for (at, entry) in leader.log.up_to(up_to).iter().enumerate() {
            match self.committed.all().get(at) {
                Some(known) if known == entry => {}
                Some(_) => {
                    self.saw(Broken::OnePosition);
                    if old_side {
                        self.saw(Broken::OneSide);
                    }
                }
                None if old_side => self.saw(Broken::OneSide),
                None => self.committed.push(*entry),
            }
        }
        if (leader.epoch, leader.term) >= (self.epoch, self.term) {
            if self.committed.shared(&leader.log) < self.committed.len() {
                self.saw(Broken::AcknowledgedKept);
            }
            (self.epoch, self.term) = (leader.epoch, leader.term);
        }
    }
}

/// A state of the model.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct State {
    pub nodes: Vec<Node>,
    pub replicas: u8,
    /// The value that a cache may still have.
    pub stale_replicas: u8,
    pub anchor: Anchor,
    pub stale_anchor: Anchor,
    /// The next unused log id.
    pub next_id: u8,
    pub budget: Budget,
    pub observer: Observer,
}

impl State {
    /// Every node with its ordinal.
    pub fn servers(&self) -> impl Iterator<Item = (u8, &Node)> {
        (0u8..).zip(&self.nodes)
    }

    pub fn node(&self, server: u8) -> &Node {
        &self.nodes[server as usize]
    }

    pub fn node_mut(&mut self, server: u8) -> &mut Node {
        &mut self.nodes[server as usize]
    }

    /// The servers below this ordinal.
    pub fn wanted(&self, replicas: u8) -> &[Node] {
        &self.nodes[..replicas as usize]
    }
}
