//! The initial states of the model, and how much may happen from there.

use super::log::{Entry, Ids, Log};
use super::model::Protocol;
use super::rules::Rules;
use super::state::{Anchor, Budget, Node, Observer, State};

/// The first term of the first epoch.
const FIRST_TERM: u8 = 16;

/// An initial state, with the bounds of the exploration.
pub struct Case {
    /// One word, a colon, and a description.
    pub name: &'static str,
    /// Whether it takes too long to run for every change of the project: minutes, and gigabytes.
    pub large: bool,
    init: State,
    scales: &'static [u8],
    max_term: u8,
    max_epoch: u8,
    max_log: u8,
}

impl Case {
    /// The protocol to explore: this case under these rules.
    pub fn protocol(&self, rules: Rules, liveness: bool) -> Protocol {
        let Self { scales, max_term, max_epoch, max_log, .. } = *self;
        Protocol { rules, init: self.init.clone(), scales, max_term, max_epoch, max_log, liveness }
    }

    /// The first word of the name.
    pub fn word(&self) -> &'static str {
        self.name.split(':').next().unwrap_or(self.name)
    }
}

/// Every case, in the order of exploration.
pub fn all() -> Vec<Case> {
    vec![new(), two(), pair(), three(), trio(), grow(), joint(), four(), stranded(), loss(), lost(), five()]
}

pub fn new() -> Case {
    let init = domain(2, 0, Budget { scale: 2, crash: 2, wipe: 1, ..Budget::default() });
    let name = "new: 2 empty servers, wipe, 2 crashes";
    Case { name, large: false, init, scales: &[1, 2], max_term: 2, max_epoch: 3, max_log: 8 }
}

pub fn two() -> Case {
    let init = domain(2, 2, Budget { scale: 3, crash: 1, wipe: 1, propose: 1, ..Budget::default() });
    let name = "two: 2 voters, scale 0..2, wipe, crash";
    Case { name, large: true, init, scales: &[0, 1, 2], max_term: 2, max_epoch: 3, max_log: 8 }
}

pub fn pair() -> Case {
    let init = domain(2, 2, Budget { scale: 2, crash: 1, wipe: 1, ..Budget::default() });
    let name = "pair: 2 voters, scale 0..2, shorter";
    Case { name, large: false, init, scales: &[0, 1, 2], max_term: 2, max_epoch: 3, max_log: 7 }
}

pub fn three() -> Case {
    let init = domain(3, 3, Budget { scale: 2, crash: 1, wipe: 1, ..Budget::default() });
    let name = "three: 3 voters, scale 1..3, wipe, crash";
    Case { name, large: true, init, scales: &[1, 2, 3], max_term: 2, max_epoch: 3, max_log: 6 }
}

pub fn trio() -> Case {
    let init = domain(3, 3, Budget { scale: 2, wipe: 1, ..Budget::default() });
    let name = "trio: 3 voters, scale 1..3, wipe";
    Case { name, large: false, init, scales: &[1, 2, 3], max_term: 2, max_epoch: 3, max_log: 6 }
}

pub fn grow() -> Case {
    let init = domain(3, 1, Budget { scale: 2, crash: 1, ..Budget::default() });
    let name = "grow: 1 voter, scale 1 or 3, crash";
    Case { name, large: false, init, scales: &[1, 3], max_term: 2, max_epoch: 3, max_log: 7 }
}

pub fn joint() -> Case {
    let init = half_way(Budget { scale: 2, ..Budget::default() });
    let name = "joint: half way from 1 to 3, scale 1 or 3";
    Case { name, large: false, init, scales: &[1, 3], max_term: 4, max_epoch: 2, max_log: 6 }
}

pub fn four() -> Case {
    let init = State { replicas: 2, ..domain(4, 4, Budget { scale: 1, crash: 1, ..Budget::default() }) };
    let name = "four: 4 voters, 2 wanted, scale 4, crash";
    Case { name, large: true, init, scales: &[2, 4], max_term: 1, max_epoch: 2, max_log: 5 }
}

pub fn stranded() -> Case {
    let init = State { replicas: 2, ..domain(4, 4, Budget::default()) };
    let name = "stranded: 4 voters, 2 wanted";
    Case { name, large: true, init, scales: &[2], max_term: 1, max_epoch: 2, max_log: 5 }
}

pub fn loss() -> Case {
    let init = domain(3, 3, Budget { scale: 2, crash: 1, recover: 1, ..Budget::default() });
    let name = "loss: 3 voters, scale 1 or 3, crash, recover";
    Case { name, large: true, init, scales: &[1, 3], max_term: 2, max_epoch: 2, max_log: 6 }
}

pub fn lost() -> Case {
    let init = domain(3, 3, Budget { scale: 2, recover: 1, ..Budget::default() });
    let name = "lost: 3 voters, scale 1 or 3, recover";
    Case { name, large: false, init, scales: &[1, 3], max_term: 2, max_epoch: 2, max_log: 6 }
}

pub fn five() -> Case {
    let init = after_the_fall(Budget { scale: 1, recover: 1, ..Budget::default() });
    let name = "five: 5 voters, 2 left, scale 5, recover";
    Case { name, large: true, init, scales: &[5], max_term: 2, max_epoch: 2, max_log: 4 }
}

/// The first `voters` servers are a domain with one committed entry; the others are empty.
fn domain(servers: u8, voters: u8, budget: Budget) -> State {
    let all: Ids = (1..=voters).collect();
    let mut log = Log::default();
    log.push(Entry::voters(FIRST_TERM, all));
    let node = |id| if id <= voters { member(id, log) } else { Node { id, ..Node::default() } };
    let anchor = Anchor { domain: 1, epoch: 1, founder: 1, voters: all, lossy: false };
    let observer = Observer::of_a_domain(1, log, FIRST_TERM);
    let (anchor, observer) = if voters == 0 { Default::default() } else { (anchor, observer) };
    let replicas = if voters == 0 { servers } else { voters };
    State {
        nodes: (1..=servers).map(node).collect(),
        replicas,
        stale_replicas: voters,
        anchor,
        stale_anchor: anchor,
        next_id: servers + 1,
        budget,
        observer,
    }
}

/// A server that is up and has committed this log.
fn member(id: u8, log: Log) -> Node {
    Node { id, domain: 1, epoch: 1, term: FIRST_TERM, log, commit: log.len(), up: true, ..Node::default() }
}

/// Three servers in the middle of a change from one voter to three: the joint membership is committed everywhere.
fn half_way(budget: Budget) -> State {
    let mut s = domain(3, 1, budget);
    let mut log = s.node(0).log;
    log.push(Entry::joint(FIRST_TERM, Ids::of(1), (1..=3).collect()));
    s.nodes = (1..=3).map(|id| member(id, log)).collect();
    s.observer.committed = log;
    (s.replicas, s.stale_replicas) = (3, 3);
    s
}

/// Five voters, and `replicas` is 2 already. The first and the last server lack the last committed entry; the servers
/// that are no longer wanted may still run.
fn after_the_fall(budget: Budget) -> State {
    let mut s = domain(5, 5, budget);
    let mut log = s.node(0).log;
    log.push(Entry::blank(FIRST_TERM + 1));
    for node in &mut s.nodes[1..4] {
        *node = Node { term: FIRST_TERM + 1, ..member(node.id, log) };
    }
    (s.observer.committed, s.observer.term) = (log, FIRST_TERM + 1);
    (s.replicas, s.stale_replicas) = (2, 5);
    s
}
