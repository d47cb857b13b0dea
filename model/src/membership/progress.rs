//! L: from this state, if every wanted pod is up and connected and the API is reachable, the protocol's own steps lead
//! to a leader that commits and whose voters are the wanted servers. The check takes these steps; it does not assume
//! that a possible action happens.

use super::decide::Heard;
use super::log::Ids;
use super::model::{Action, Protocol};
use super::state::{Budget, Node, State};
use super::step::has_room;
use kaa_core::membership::change::Step;
use kaa_core::membership::logs;
use std::collections::{BTreeSet, VecDeque};

/// The maximum number of steps of a walk.
const LONGEST_WALK: usize = 60;
/// How many states are explored if the direct walk fails.
const MOST_STATES: usize = 50_000;

impl Protocol {
    /// Whether L holds. L requires nothing if the wanted servers can neither commit nor block: then a scale-up to all
    /// servers must lead to progress, and so must `kaa recover`.
    pub fn can_continue(&self, s: &State) -> bool {
        if s.replicas == 0 {
            return true;
        }
        if Self::owes(s) {
            return self.arrives(s, false);
        }
        let all = State { replicas: s.nodes.len() as u8, ..s.clone() };
        (!Self::owes(&all) || self.arrives(&all, false)) && (survivors(s).count() == 0 || self.arrives(s, true))
    }

    fn owes(s: &State) -> bool {
        let wanted = s.wanted(s.replicas);
        if s.anchor.epoch == 0 {
            return true; // There is no epoch yet, and the first server must be able to found one.
        }
        let founder = s.nodes.iter().find(|node| node.id == s.anchor.founder);
        if let Some(founder) = founder.filter(|founder| founder.epoch < s.anchor.epoch) {
            return wanted.contains(founder); // The founder has not begun the epoch: everything depends on it.
        }
        let newest = s.nodes.iter().filter(|node| !node.log.is_empty()).map(|node| node.epoch).max();
        if s.anchor.epoch > newest.unwrap_or(0) {
            return !s.observer.dead.contains(s.anchor.founder); // Its volume was deleted before the epoch began.
        }
        let ids: Ids = survivors(s).map(|node| node.id).collect();
        let best = survivors(s).max_by_key(|node| node.log.last()).and_then(|node| node.log.membership());
        best.is_some_and(|(_, last)| logs::block(last.halves(), &ids))
    }

    fn arrives(&self, from: &State, recover: bool) -> bool {
        let mut s = from.clone();
        s.budget = Budget { recover: recover.into(), ..Budget::default() };
        s.stale_replicas = s.replicas;
        for node in s.nodes.iter_mut().skip(s.replicas.into()) {
            (node.up, node.leader) = (false, false); // A pod that was still running is gone in the end.
        }
        self.walks(s.clone()) || self.finds_a_way(s)
    }

    /// Takes the first useful step each time, up to a limit.
    fn walks(&self, mut s: State) -> bool {
        let mut elections = 0;
        for _ in 0..LONGEST_WALK {
            if has_arrived(&s) {
                return true;
            }
            let next = self.useful(&s).into_iter().find_map(|action| {
                elections += u32::from(matches!(action, Action::Elect(..)));
                let enough = matches!(action, Action::Elect(..)) && elections > 4;
                if enough { None } else { self.step(&s, action) }
            });
            match next.filter(|next| has_room(next, 2)) {
                Some(next) => s = next,
                None => return false,
            }
        }
        false
    }

    /// Tries all useful steps.
    fn finds_a_way(&self, from: State) -> bool {
        let longest = from.nodes.iter().map(|node| node.log.len()).max().unwrap_or(0) + 8;
        let mut seen = BTreeSet::from([from.clone()]);
        let mut ahead = VecDeque::from([from]);
        while let Some(s) = ahead.pop_front() {
            if has_arrived(&s) {
                return true;
            }
            for next in self.useful(&s).into_iter().filter_map(|action| self.step(&s, action)) {
                let small = has_room(&next, 2) && next.nodes.iter().all(|node| node.log.len() <= longest);
                if small && seen.len() < MOST_STATES && seen.insert(next.clone()) {
                    ahead.push_back(next);
                }
            }
        }
        false
    }

    /// The protocol's own steps, the more conclusive ones first.
    fn useful(&self, s: &State) -> Vec<Action> {
        let sealed = s.wanted(s.replicas).iter().any(|node| node.sealed && node.epoch == s.anchor.epoch);
        let rank = |action: &Action| {
            Some(match action {
                Action::Boot(_, false) => 0,
                Action::Adopt(_) | Action::Inject(_) => 1,
                Action::Behind(_) => 2,
                Action::Found(_) => 3,
                Action::Seal(_) if sealed => 4, // An override that was started is completed.
                Action::Commit(_) => 5,
                Action::Push(..) => 6,
                Action::Finish(_, true) => 7,
                Action::Change(server, view) if self.would_change(s, *server, *view) => 8,
                Action::Elect(..) => 9,
                Action::Seal(_) => 10,
                Action::Recover(_) => 11,
                _ => return None,
            })
        };
        let mut ranked: Vec<(u8, Action)> =
            self.possible(s).into_iter().filter_map(|action| Some((rank(&action)?, action))).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, action)| action).collect()
    }

    /// Whether a leader that counts only acknowledged logs makes this change: a possible change need not happen.
    fn would_change(&self, s: &State, leader: u8, replicas: u8) -> bool {
        replicas == s.replicas
            && matches!(self.next_change(s, leader, replicas, Heard::Acknowledged), Some(Step::Voters(..)))
    }
}

/// The wanted servers that hold a log of the anchor's epoch.
fn survivors(s: &State) -> impl Iterator<Item = &Node> {
    let of_today = |node: &&Node| node.epoch == s.anchor.epoch && node.domain == s.anchor.domain;
    s.wanted(s.replicas).iter().filter(|node| !node.log.is_empty()).filter(of_today)
}

fn has_arrived(s: &State) -> bool {
    let wanted: Ids = s.wanted(s.replicas).iter().map(|node| node.id).collect();
    s.nodes.iter().any(|node| {
        let as_wanted = node.log.membership().is_some_and(|(_, last)| last.halves() == [wanted]);
        node.up && node.leader && node.epoch == s.anchor.epoch && as_wanted && node.commit == node.log.len()
    })
}
