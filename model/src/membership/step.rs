//! The effect of each action. `None`: it is not possible, or it changes nothing.

use super::decide::Heard;
use super::log::{Entry, Ids, Log};
use super::model::{Action, Protocol};
use super::state::{Anchor, Broken, Node, State};
use kaa_core::membership::Gate;
use kaa_core::membership::change::Step;
use kaa_core::membership::logs::{self, Logs};

impl Protocol {
    /// The next state.
    pub fn step(&self, old: &State, action: Action) -> Option<State> {
        let mut s = old.clone();
        match action {
            Action::Scale(to) => {
                s.stale_replicas = s.replicas;
                s.replicas = to;
                s.budget.scale -= 1;
            }
            Action::Kill(server) => self.end(&mut s, server, false)?,
            Action::Crash(server) | Action::Restart(server) => {
                s.budget.crash -= 1;
                self.end(&mut s, server, matches!(action, Action::Restart(_)))?;
            }
            Action::Wipe(server) => {
                s.budget.wipe -= 1;
                self.start_empty(&mut s, server, true)?;
            }
            Action::Boot(server, stale) => {
                self.boot(&mut s, server, if stale { old.stale_anchor } else { old.anchor })?
            }
            Action::BootBlind(server) => Self::boot_blind(&mut s, server)?,
            Action::Behind(server) => self.see(&mut s, server)?,
            Action::Elect(server, by) => self.elect(&mut s, server, by)?,
            Action::Push(from, to) => self.push(&mut s, from, to)?,
            Action::Commit(server) => self.commit(&mut s, server)?,
            Action::Propose(server) => {
                s.budget.propose -= 1;
                append(s.node_mut(server), Entry::blank);
            }
            Action::Change(server, replicas) => {
                let (_, last) = s.node(server).log.membership()?;
                let Step::Voters(to, _) = self.next_change(&s, server, replicas, Heard::Hoped)? else { return None };
                append(s.node_mut(server), |term| Entry::joint(term, last.all_voters(), to));
            }
            Action::Finish(server, forward) => {
                let to = if forward { self.forward(&s, server)? } else { self.back(&s, server)? };
                append(s.node_mut(server), |term| Entry::voters(term, to));
            }
            Action::Seal(server) => s.node_mut(server).seal(),
            Action::Found(server) => {
                let node = *s.node(server);
                let wanted = s.wanted(s.replicas).iter().fold(Ids::default(), |all, node| all.union(&node.former));
                let wanted = wanted.union(&s.wanted(s.replicas).iter().map(|node| node.id).collect());
                let survivors = node.log.membership().map(|(_, last)| last.all_voters().common(&wanted));
                Self::swap(&mut s, server, survivors.unwrap_or(Ids::of(node.id)), false);
            }
            Action::Recover(server) => self.recover(&mut s, server)?,
            Action::Adopt(server) => self.adopt(&mut s, server)?,
            Action::Inject(server) => self.inject(&mut s, server),
        }
        (s != *old).then_some(s)
    }

    fn end(&self, s: &mut State, server: u8, another_follows: bool) -> Option<()> {
        let unused = s.next_id;
        let node = s.node_mut(server);
        node.restart(another_follows);
        if !self.rules.id_first && node.epoch == 0 && node.log.is_empty() {
            node.id = unused; // It was in memory only.
            s.next_id += 1;
            return Self::has_ids(s).then_some(());
        }
        Some(())
    }

    /// The log is retired (kept, never used again), or lost with its volume: the server gets an empty one, with another
    /// id.
    fn start_empty(&self, s: &mut State, server: u8, wiped: bool) -> Option<()> {
        let old = *s.node(server);
        if wiped {
            s.observer.dead = s.observer.dead.union(&Ids::of(old.id));
        }
        let used = wiped || !old.log.is_empty();
        let id = if self.rules.fresh_id && used { s.next_id } else { old.id };
        if id == s.next_id {
            if !Self::has_ids(s) {
                return None;
            }
            s.next_id += 1;
        }
        let former = if self.rules.by_id { Ids::default() } else { old.former.union(&Ids::of(old.id)) };
        *s.node_mut(server) = Node { id, up: old.up, former, ..Node::default() };
        Some(())
    }

    /// A pod starts, and passes the gate with what it read.
    fn boot(&self, s: &mut State, server: u8, read: Anchor) -> Option<()> {
        let node = s.node_mut(server);
        node.up = true;
        if self.rules.gate || node.log.is_empty() { self.pass_the_gate(s, server, read) } else { Some(()) }
    }

    fn pass_the_gate(&self, s: &mut State, server: u8, read: Anchor) -> Option<()> {
        match self.at_the_gate(server, s.node(server), read) {
            // The next step is a separate action: creating the anchor, founding, or continuing with the override.
            Gate::CreateAnchor | Gate::Found(_) | Gate::Start | Gate::Override => Some(()),
            Gate::Join(_) => {
                self.start_empty(s, server, false)?;
                let node = s.node_mut(server);
                (node.epoch, node.domain) = (read.epoch, read.domain);
                Some(())
            }
            // A pod that is up and has no log is one that waits.
            Gate::Wait(_) => s.node(server).log.is_empty().then_some(()),
            // The model has one cluster.
            Gate::Refuse(_) | Gate::CopyAnchor(_) | Gate::FollowAnchor(_) => None,
        }
    }

    /// Starts a server if a majority of the voters that its log names answer, all of its epoch and none sealed.
    fn boot_blind(s: &mut State, server: u8) -> Option<()> {
        let node = *s.node(server);
        let (_, last) = node.log.membership()?;
        let agrees = |other: &&Node| other.id == node.id || (other.of_the_same_epoch(&node) && !other.sealed);
        let answer: Ids = s.nodes.iter().filter(agrees).map(|other| other.id).collect();
        if node.sealed || !logs::commit(last.halves(), &answer) {
            return None;
        }
        s.node_mut(server).up = true;
        Some(())
    }

    /// A running agent that is behind sees the anchor.
    fn see(&self, s: &mut State, server: u8) -> Option<()> {
        let (anchor, node) = (s.anchor, *s.node(server));
        let founder = anchor.founder == node.id;
        let follows = !self.rules.one_founder && node.sealed && anchor.voters.contains(node.id) && !founder;
        if !follows && self.rules.retired {
            return self.pass_the_gate(s, server, anchor);
        }
        if !follows && (founder || node.log.is_empty()) {
            return None;
        }
        let node = s.node_mut(server);
        (node.epoch, node.sealed) = (anchor.epoch, false);
        node.step_down();
        Some(())
    }

    fn elect(&self, s: &mut State, server: u8, by: u16) -> Option<()> {
        let with = |other: &u8| by >> other & 1 == 1;
        let voting: Vec<u8> = (0..s.nodes.len() as u8).filter(with).collect();
        let candidate = *s.node(server);
        let known = voting.iter().map(|voter| s.node(*voter).term).max()?;
        let term = self.first_term(candidate.epoch, known) + 1;
        for voter in voting {
            let node = s.node_mut(voter);
            (node.term, node.vote) = (term, candidate.id);
            node.step_down();
            let id = node.id;
            if s.observer.dead.contains(id) {
                s.observer.saw(Broken::DeadNeverVotes);
            }
        }
        let node = s.node_mut(server);
        node.leader = true;
        append(node, Entry::blank);
        Some(())
    }

    fn first_term(&self, epoch: u8, at_least: u8) -> u8 {
        if self.rules.term_epoch { (epoch << 4).max(at_least) } else { at_least }
    }

    fn push(&self, s: &mut State, from: u8, to: u8) -> Option<()> {
        let leader = *s.node(from);
        let node = s.node_mut(to);
        if !self.can_talk(&leader, node) || node.sealed || (node.leader && node.term == leader.term) {
            return None;
        }
        if node.term > leader.term {
            let term = node.term; // Refused: another leader was elected meanwhile.
            let leader = s.node_mut(from);
            (leader.term, leader.vote) = (term, 0);
            leader.step_down();
            return Some(());
        }
        let overwrites = node.log.shared(&leader.log) < node.commit;
        (node.log, node.term, node.vote) = (leader.log, leader.term, leader.id);
        node.commit = leader.commit.max(node.commit).min(leader.log.len());
        node.step_down();
        if !self.rules.retired {
            node.epoch = leader.epoch;
        }
        let id = node.id;
        s.node_mut(from).acked[id as usize - 1] = leader.log.len();
        if overwrites {
            s.observer.saw(Broken::OnePosition); // It had applied the overwritten entries.
        }
        Some(())
    }

    fn commit(&self, s: &mut State, server: u8) -> Option<()> {
        let node = *s.node(server);
        let up_to = self.committable(&node)?;
        s.observer.committed(&node, up_to);
        let (at, last) = node.log.membership()?;
        let node = s.node_mut(server);
        node.commit = up_to;
        if !last.is_joint() && at <= up_to && !last.all_voters().contains(node.id) {
            node.step_down(); // The leader removed itself.
        }
        Some(())
    }

    fn forward(&self, s: &State, server: u8) -> Option<Ids> {
        match self.next_change(s, server, s.replicas, Heard::Hoped)? {
            Step::Voters(to, _) => Some(to),
            Step::HandOver(_) | Step::Wait(_) => None,
        }
    }

    /// The voter set before the change, under the conditions under which kaa-core completes a change forward.
    fn back(&self, s: &State, server: u8) -> Option<Ids> {
        let step = self.next_change(s, server, s.replicas, Heard::Hoped)?;
        let node = s.node(server);
        let (_, last) = node.log.membership()?;
        let to = *last.halves().first()?;
        let stays = to.contains(node.id) || !self.rules.stay;
        (!matches!(step, Step::Wait(_)) && stays).then_some(to)
    }

    fn swap(s: &mut State, server: u8, voters: Ids, lossy: bool) {
        let node = s.node_mut(server);
        node.won = true;
        let domain = if node.epoch == 0 { node.id } else { node.domain };
        let anchor = Anchor { domain, epoch: node.epoch + 1, founder: node.id, voters, lossy };
        s.stale_anchor = s.anchor;
        s.anchor = anchor;
    }

    /// All wanted servers with a log are sealed; the server with the most advanced log swaps the anchor.
    fn recover(&self, s: &mut State, server: u8) -> Option<()> {
        let me = *s.node(server);
        let looked = self.rules.gone && !self.rules.gone_after && me.checked;
        let wanted = if looked { 0 } else { s.replicas };
        for node in &mut s.nodes[..wanted as usize] {
            if !node.of_the_same_epoch(&me) || node.log.is_empty() {
                continue;
            }
            if !node.up || node.log.last() > me.log.last() {
                return None;
            }
            node.seal();
        }
        if self.rules.gone && !self.rules.gone_after && !me.checked {
            s.node_mut(server).checked = true;
            return old_pods_are_gone(s, me.epoch).then_some(());
        }
        s.budget.recover -= 1;
        Self::swap(s, server, Ids::of(me.id), true);
        Some(())
    }

    fn adopt(&self, s: &mut State, server: u8) -> Option<()> {
        let node = *s.node(server);
        if s.anchor.lossy {
            if self.rules.gone && self.rules.gone_after && !old_pods_are_gone(s, node.epoch) {
                return None;
            }
            let kept = s.observer.committed.shared(&node.log);
            s.observer.committed.truncate(kept); // The operator gave up the rest.
        }
        if node.epoch == 0 && s.observer.epoch > 0 {
            s.observer.saw(Broken::OneDomain);
        }
        let anchor = s.anchor;
        let node = s.node_mut(server);
        (node.epoch, node.domain) = (anchor.epoch, anchor.domain);
        (node.sealed, node.won, node.inject) = (false, false, true);
        node.step_down();
        if self.rules.one_write {
            self.inject(s, server);
        }
        Some(())
    }

    fn inject(&self, s: &mut State, server: u8) {
        let survivors = s.anchor.voters;
        let node = s.node_mut(server);
        let voters = if self.rules.one_founder { Ids::of(node.id) } else { survivors };
        (node.inject, node.vote) = (false, 0);
        node.term = self.first_term(node.epoch, node.term + 1);
        node.log.push(Entry::voters(node.term, voters));
    }
}

/// Whether every process of the old epoch is sealed or stopped.
fn old_pods_are_gone(s: &State, epoch: u8) -> bool {
    s.nodes.iter().all(|node| !node.up || node.sealed || node.epoch > epoch || node.log.is_empty())
}

fn append(leader: &mut Node, entry: impl Fn(u8) -> Entry) {
    leader.log.push(entry(leader.term));
    leader.acked[leader.id as usize - 1] = leader.log.len();
}

/// Whether every log has room for this number of entries more.
pub fn has_room(s: &State, more: u8) -> bool {
    s.nodes.iter().all(|node: &Node| Log::has_room_for(&node.log, more))
}
