//! The actions that are possible in a state.

use super::decide::Heard;
use super::log::{Log, MOST_IDS};
use super::model::{Action, Protocol};
use super::state::{Anchor, Node, State};
use kaa_core::membership::Gate;
use kaa_core::membership::change::Step;

impl Protocol {
    /// Every possible action; some of them change nothing.
    pub fn possible(&self, s: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        if s.budget.scale > 0 {
            actions.extend(self.scales.iter().filter(|to| **to != s.replicas).map(|to| Action::Scale(*to)));
        }
        for (server, node) in s.servers() {
            if node.up {
                self.of_a_pod(s, server, node, &mut actions);
            } else {
                self.of_a_volume(s, server, node, &mut actions);
            }
        }
        actions
    }

    fn of_a_volume(&self, s: &State, server: u8, node: &Node, actions: &mut Vec<Action>) {
        if s.budget.wipe > 0 && !node.log.is_empty() {
            actions.push(Action::Wipe(server));
        }
        if server >= s.replicas {
            return;
        }
        actions.push(Action::Boot(server, false));
        if !self.rules.fresh && s.stale_anchor != s.anchor {
            actions.push(Action::Boot(server, true));
        }
        if self.rules.quorum_boot {
            actions.push(Action::BootBlind(server));
        }
    }

    fn of_a_pod(&self, s: &State, server: u8, node: &Node, actions: &mut Vec<Action>) {
        if server >= s.replicas {
            actions.push(Action::Kill(server));
        }
        if s.budget.crash > 0 {
            actions.extend([Action::Crash(server), Action::Restart(server)]);
        }
        if self.is_behind(node, s.anchor) {
            actions.push(Action::Behind(server));
            if matches!(self.at_the_gate(server, node, s.anchor), Gate::Found(_)) {
                actions.push(Action::Adopt(server));
            }
        }
        if node.inject || self.is_half_founded(node, s.anchor) {
            actions.push(Action::Inject(server));
        }
        if node.log.is_empty() {
            // Without create-if-absent, any server that did not see the anchor creates it.
            let anchor = if self.rules.swap { s.anchor } else { Anchor::default() };
            if self.at_the_gate(server, node, anchor) == Gate::CreateAnchor {
                actions.push(Action::Found(server));
            }
            return;
        }
        if node.leader {
            self.of_a_leader(s, server, node, actions);
        } else {
            actions.extend(self.electorates(s, server).into_iter().map(|by| Action::Elect(server, by)));
        }
        self.of_an_override(s, server, node, actions);
        if s.budget.recover > 0 && server < s.replicas && s.anchor.epoch == node.epoch && node.epoch > 0 {
            actions.push(Action::Recover(server));
        }
    }

    /// Whether the founder crashed between its two writes and can repeat the second one.
    fn is_half_founded(&self, node: &Node, anchor: Anchor) -> bool {
        let began = |log: &Log| log.all().iter().any(|entry| entry.term >> 4 == node.epoch);
        let founder = node.epoch > 0 && anchor.epoch == node.epoch && anchor.founder == node.id;
        self.rules.reinject && self.rules.term_epoch && founder && !began(&node.log)
    }

    fn of_a_leader(&self, s: &State, server: u8, node: &Node, actions: &mut Vec<Action>) {
        actions.extend(s.servers().filter(|(to, _)| *to != server).map(|(to, _)| Action::Push(server, to)));
        actions.push(Action::Commit(server));
        if s.budget.propose > 0 {
            actions.push(Action::Propose(server));
        }
        if node.log.membership().is_some_and(|(_, last)| last.is_joint()) {
            actions.push(Action::Finish(server, true));
            if !self.rules.forward {
                actions.push(Action::Finish(server, false));
            }
            return;
        }
        // Here `replicas` may come from a cache: Raft keeps the change safe.
        for replicas in Self::views(s, true) {
            if matches!(self.next_change(s, server, replicas, Heard::Hoped), Some(Step::Voters(..))) {
                actions.push(Action::Change(server, replicas));
            }
        }
    }

    fn of_an_override(&self, s: &State, server: u8, node: &Node, actions: &mut Vec<Action>) {
        let rules = &self.rules;
        let views = || Self::views(s, !rules.fresh).filter(|replicas| server < *replicas);
        let called_for = |replicas: u8| self.called_for(s, node, replicas);
        if !node.sealed && rules.seal {
            let asks = |other: &Node| other.up && other.sealed && other.of_the_same_epoch(node);
            let asked = !rules.alone && s.nodes.iter().any(asks);
            if asked || views().any(called_for) {
                actions.push(Action::Seal(server));
            }
        }
        let ready = node.epoch > 0 && (node.sealed || !rules.seal);
        let swaps =
            s.anchor.epoch == node.epoch || (!rules.swap && s.anchor.epoch > node.epoch && s.anchor.founder != node.id);
        let continues = |replicas: u8| (rules.drive_on && rules.seal) || called_for(replicas);
        if ready && swaps && views().any(|replicas| continues(replicas) && self.may_found(s, server, replicas)) {
            actions.push(Action::Found(server));
        }
    }

    /// The values of `replicas` that a read may show.
    fn views(s: &State, may_be_stale: bool) -> impl Iterator<Item = u8> {
        let stale = (may_be_stale && s.stale_replicas != s.replicas).then_some(s.stale_replicas);
        std::iter::once(s.replicas).chain(stale)
    }

    /// Whether there is an unused log id.
    pub fn has_ids(s: &State) -> bool {
        usize::from(s.next_id) <= MOST_IDS
    }
}
